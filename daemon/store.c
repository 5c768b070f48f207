#include "daemon/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/parse.h"

#define SUFFIX     ".xml"
#define TMP_SUFFIX ".tmp" /* behind ".<name>.xml": no name begins with a dot */
#define FILE_NAME  (MF_VM_NAME_MAX + 16)

static enum mf_status io_problem(struct problem *p, const char *what)
{
    return problem_set(p, MF_E_IO, NULL, "%s: %s", what, strerror(errno));
}

static bool make_dirs(const char *path)
{
    char *copy = strdup(path);
    bool ok = copy != NULL;

    for (char *s = copy; ok && s != NULL;) {
        s = strchr(s + 1, '/');
        if (s != NULL)
            *s = '\0';
        if (mkdir(copy, 0700) != 0 && errno != EEXIST)
            ok = false;
        if (s != NULL)
            *s = '/';
    }
    free(copy);
    return ok;
}

enum mf_status store_init(struct store *s, const char *path, struct problem *p)
{
    s->dir = -1;
    if (make_dirs(path))
        s->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0)
        return problem_set(p, MF_E_IO, NULL, "the directory %s cannot be used: %s", path,
                           strerror(errno));
    return MF_OK;
}

void store_fini(struct store *s)
{
    if (s->dir >= 0)
        close(s->dir);
    s->dir = -1;
}

static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* A whole file, on the disk. What is half done is removed. */
static enum mf_status write_file(const struct store *s, const char *name, const struct buf *b,
                                 struct problem *p)
{
    int fd = openat(s->dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return io_problem(p, "the definition cannot be written");
    if (!write_all(fd, b->p, b->len) || fsync(fd) != 0)
        io_problem(p, "the definition cannot be written");
    if (close(fd) != 0)
        io_problem(p, "the definition cannot be written");
    if (p->status != MF_OK)
        unlinkat(s->dir, name, 0);
    return p->status;
}

enum mf_status store_save(const struct store *s, const struct vm_def *d, struct problem *p)
{
    char name[FILE_NAME];
    char tmp[FILE_NAME];
    struct buf b = {0};

    snprintf(name, sizeof name, "%s" SUFFIX, d->name);
    snprintf(tmp, sizeof tmp, ".%s" SUFFIX TMP_SUFFIX, d->name);
    def_to_xml(d, &b);
    if (b.failed) {
        buf_fini(&b);
        return problem_nomem(p);
    }
    write_file(s, tmp, &b, p);
    buf_fini(&b);
    if (p->status != MF_OK)
        return p->status;
    if (renameat(s->dir, tmp, s->dir, name) != 0) {
        io_problem(p, "the definition cannot be put in place");
        unlinkat(s->dir, tmp, 0);
        return p->status;
    }
    /* The new name is seen already; whether it outlives a power cut is all that is open. */
    if (fsync(s->dir) != 0)
        return io_problem(p, "the directory of definitions cannot be written");
    return MF_OK;
}

enum mf_status store_remove(const struct store *s, const char *vm, struct problem *p)
{
    char name[FILE_NAME];

    snprintf(name, sizeof name, "%s" SUFFIX, vm);
    if (unlinkat(s->dir, name, 0) != 0) {
        if (errno == ENOENT)
            return problem_set(p, MF_E_NOT_FOUND, NULL, "no definition of %s on the disk", vm);
        return io_problem(p, "the definition cannot be removed");
    }
    if (fsync(s->dir) != 0)
        return io_problem(p, "the directory of definitions cannot be written");
    return MF_OK;
}

static enum mf_status read_file(int fd, struct buf *b, struct problem *p)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        return io_problem(p, "cannot be examined");
    if (!S_ISREG(st.st_mode) || st.st_size > DEF_TEXT_MAX)
        return problem_set(p, MF_E_MALFORMED, NULL, "not a regular file of at most %u bytes",
                           DEF_TEXT_MAX);
    while (b->len <= DEF_TEXT_MAX && buf_reserve(b, 4096)) {
        ssize_t n = read(fd, b->p + b->len, 4096);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return io_problem(p, "cannot be read");
        if (n == 0)
            return MF_OK;
        b->len += (size_t)n;
    }
    return b->failed ? problem_nomem(p) : problem_set(p, MF_E_TOO_BIG, NULL, "too long");
}

static enum mf_status load_one(const struct store *s, const char *file, struct vm_def *d,
                               struct problem *p)
{
    struct buf b = {0};
    size_t n = strlen(file) - strlen(SUFFIX);
    int fd = openat(s->dir, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0)
        return io_problem(p, "cannot be opened");
    if (read_file(fd, &b, p) == MF_OK && def_from_xml(d, b.p == NULL ? "" : b.p, b.len, p) == MF_OK)
        def_check(d, DEF_DEFINE, 0, p);
    if (p->status == MF_OK && (strlen(d->name) != n || strncmp(d->name, file, n) != 0))
        problem_set(p, MF_E_MALFORMED, "name", "the name inside is %s", d->name);
    if (p->status == MF_OK && uuid_is_zero(d->uuid))
        problem_set(p, MF_E_MALFORMED, "uuid", "it has no uuid");
    buf_fini(&b);
    close(fd);
    return p->status;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s);
    size_t k = strlen(end);

    return n > k && strcmp(s + n - k, end) == 0;
}

enum mf_status store_load(const struct store *s, store_def_fn fn, store_bad_fn bad, void *arg,
                          struct problem *p)
{
    int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    if (dir == NULL) {
        io_problem(p, "the directory of definitions cannot be read");
        if (fd >= 0)
            close(fd);
        return p->status;
    }
    while ((e = readdir(dir)) != NULL) {
        struct problem why = {0};
        struct vm_def d;
        if (e->d_name[0] == '.') {
            if (ends_with(e->d_name, SUFFIX TMP_SUFFIX))
                unlinkat(s->dir, e->d_name, 0);
            continue;
        }
        if (!ends_with(e->d_name, SUFFIX))
            continue;
        def_init(&d, DEF_DEFINE);
        if (load_one(s, e->d_name, &d, &why) == MF_OK) {
            fn(arg, &d);
        } else {
            def_fini(&d);
            bad(arg, e->d_name, why.detail);
        }
    }
    closedir(dir);
    return MF_OK;
}
