#include "daemon/verdicts.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/plugin.h"

#define FORMAT  1
#define HEAD    "mayfly-plugin-verdicts %d %u "
#define ID      "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64
#define ID_SCAN "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNd64 " %" SCNd64
#define ROW_MAX 640

static int64_t ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool file_id_of(int fd, struct file_id *out)
{
    struct stat s;

    if (fstat(fd, &s) != 0)
        return false;
    *out = (struct file_id){.dev = s.st_dev,
                            .ino = s.st_ino,
                            .size = (uint64_t)s.st_size,
                            .mtime = ns(s.st_mtim),
                            .ctime = ns(s.st_ctim)};
    return true;
}

bool file_id_same(const struct file_id *a, const struct file_id *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime == b->mtime &&
           a->ctime == b->ctime;
}

/* ---- rows */

static struct verdict_row *find(const struct verdicts *v, const struct file_id *file)
{
    for (size_t i = 0; i < v->count; i++)
        if (file_id_same(&v->row[i].file, file))
            return &v->row[i];
    return NULL;
}

static void forget(struct verdicts *v)
{
    free(v->row);
    v->row = NULL;
    v->count = 0;
}

static void drop(struct verdicts *v, struct verdict_row *r)
{
    size_t at = (size_t)(r - v->row);

    memmove(r, r + 1, (v->count - at - 1) * sizeof *r);
    v->count--;
}

void verdicts_put(struct verdicts *v, const struct file_id *file, const struct verdict *what)
{
    struct verdict_row *old = find(v, file);

    if (old != NULL)
        drop(v, old);
    else if (v->count == VERDICTS_MAX)
        drop(v, v->row);
    struct verdict_row *grown = realloc(v->row, (v->count + 1) * sizeof *grown);
    if (grown == NULL)
        return;
    v->row = grown;
    v->row[v->count++] = (struct verdict_row){*file, *what};
}

const struct verdict *verdicts_find(const struct verdicts *v, const struct file_id *file)
{
    const struct verdict_row *r = find(v, file);

    return r == NULL ? NULL : &r->v;
}

void verdicts_by(struct verdicts *v, const struct file_id *checker)
{
    if (file_id_same(&v->checker, checker))
        return;
    forget(v);
    v->checker = *checker;
}

/* ---- reading */

static bool is_rule(const char *s)
{
    return *s != '\0' && s[strspn(s, "abcdefghijklmnopqrstuvwxyz-")] == '\0';
}

static bool read_row(const char *line, struct verdict_row *r)
{
    char rule[sizeof r->v.rule];
    int at = -1;

    *r = (struct verdict_row){0};
    if (sscanf(line, ID_SCAN " %" SCNu64 " %39s %n", &r->file.dev, &r->file.ino, &r->file.size,
               &r->file.mtime, &r->file.ctime, &r->v.seed, rule, &at) != 7 ||
        at < 0)
        return false;
    r->v.ok = strcmp(rule, "-") == 0;
    if (!r->v.ok && !is_rule(rule))
        return false;
    if (r->v.ok)
        return line[at] == '\0';
    snprintf(r->v.rule, sizeof r->v.rule, "%s", rule);
    snprintf(r->v.text, sizeof r->v.text, "%s", line + at);
    return line[at] != '\0';
}

static bool read_head(const char *line, struct file_id *checker)
{
    int format = 0;
    unsigned abi = 0;

    return sscanf(line, HEAD ID_SCAN, &format, &abi, &checker->dev, &checker->ino, &checker->size,
                  &checker->mtime, &checker->ctime) == 7 &&
           format == FORMAT && abi == MF_PLUGIN_ABI;
}

/* A line without its end; false: the file's end, or a line that is too long or is cut. */
static bool next_line(FILE *f, char line[ROW_MAX])
{
    if (fgets(line, ROW_MAX, f) == NULL)
        return false;
    size_t n = strlen(line);
    if (n == 0 || line[n - 1] != '\n')
        return false;
    line[n - 1] = '\0';
    return true;
}

static void read_all(struct verdicts *v, FILE *f)
{
    char line[ROW_MAX];
    struct verdict_row r;

    if (!next_line(f, line) || !read_head(line, &v->checker)) {
        v->checker = (struct file_id){0};
        return;
    }
    while (next_line(f, line)) {
        if (!read_row(line, &r)) {
            forget(v);
            return;
        }
        verdicts_put(v, &r.file, &r.v);
    }
    if (!feof(f))
        forget(v);
}

void verdicts_init(struct verdicts *v, char *path)
{
    struct stat s;

    *v = (struct verdicts){.path = path};
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    bool ours =
        fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_uid == geteuid() && (s.st_mode & 022) == 0;
    FILE *f = ours ? fdopen(fd, "r") : NULL;
    if (f == NULL) {
        close(fd);
        return;
    }
    read_all(v, f);
    fclose(f);
}

void verdicts_fini(struct verdicts *v)
{
    forget(v);
    free(v->path);
    *v = (struct verdicts){0};
}

/* ---- writing */

static void write_id(FILE *f, const struct file_id *i)
{
    fprintf(f, ID, i->dev, i->ino, i->size, i->mtime, i->ctime);
}

/* One line, whatever the text holds. */
static void write_row(FILE *f, const struct verdict_row *r)
{
    write_id(f, &r->file);
    fprintf(f, " %" PRIu64 " %s ", r->v.seed, r->v.ok ? "-" : r->v.rule);
    for (const char *s = r->v.ok ? "" : r->v.text; *s != '\0'; s++)
        putc((unsigned char)*s < 0x20 || *s == 0x7f ? ' ' : *s, f);
    putc('\n', f);
}

static bool write_all(const struct verdicts *v, int fd)
{
    FILE *f = fdopen(fd, "w");

    if (f == NULL) {
        close(fd);
        return false;
    }
    fprintf(f, HEAD, FORMAT, MF_PLUGIN_ABI);
    write_id(f, &v->checker);
    putc('\n', f);
    for (size_t i = 0; i < v->count; i++)
        write_row(f, &v->row[i]);
    bool ok = !ferror(f);
    return fclose(f) == 0 && ok;
}

bool verdicts_save(const struct verdicts *v)
{
    char *fresh = NULL;
    bool ok = false;

    if (v->path == NULL)
        return true;
    if (asprintf(&fresh, "%s.new-XXXXXX", v->path) < 0) {
        errno = ENOMEM;
        return false;
    }
    int fd = mkostemp(fresh, O_CLOEXEC);
    if (fd >= 0) {
        ok = write_all(v, fd) && rename(fresh, v->path) == 0;
        int e = errno;
        if (!ok)
            unlink(fresh);
        errno = e;
    }
    free(fresh);
    return ok;
}
