#include "daemon/plugins.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/paths.h"
#include "proto/plugin_note.h"

static enum mf_status check_owner(const struct stat *s, const char *what, struct problem *p)
{
    if (s->st_uid != 0 && s->st_uid != geteuid())
        return problem_set(p, MF_E_PERM, "path", "%s belongs to user %lu, not to root or to us",
                           what, (unsigned long)s->st_uid);
    if ((s->st_mode & 022) != 0)
        return problem_set(p, MF_E_PERM, "path", "%s can be written by its group or by others",
                           what);
    return MF_OK;
}

static enum mf_status check_dir(const char *path, struct problem *p)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash == NULL ? strdup(".") : strndup(path, (size_t)(slash - path) + 1);
    struct stat s;

    if (dir == NULL)
        return problem_nomem(p);
    if (stat(dir, &s) != 0)
        problem_set(p, MF_E_NOT_FOUND, "path", "the directory cannot be examined: %s",
                    strerror(errno));
    else
        check_owner(&s, "its directory", p);
    free(dir);
    return p->status;
}

static enum mf_status check_file(int fd, struct mf_plugin_note *note, struct problem *p)
{
    const char *why = NULL;
    struct stat s;

    if (fstat(fd, &s) != 0)
        return problem_set(p, MF_E_PLUGIN, "path", "the file cannot be examined: %s",
                           strerror(errno));
    if (!S_ISREG(s.st_mode))
        return problem_set(p, MF_E_PLUGIN, "path", "not a regular file");
    if (check_owner(&s, "the file", p) != MF_OK)
        return p->status;
    if (s.st_size == 0 || s.st_size > MF_PLUGIN_FILE_MAX)
        return problem_set(p, MF_E_PLUGIN, "path", "a plugin has 1 to %u bytes, this file has %lld",
                           MF_PLUGIN_FILE_MAX, (long long)s.st_size);
    /* Read, not mapped: a file that is cut meanwhile must not kill us. */
    size_t n = (size_t)s.st_size;
    uint8_t *bytes = malloc(n);
    if (bytes == NULL)
        return problem_nomem(p);
    if (pread(fd, bytes, n, 0) != (ssize_t)n) {
        problem_set(p, MF_E_PLUGIN, "path", "the file cannot be read");
    } else {
        enum mf_status st = mf_plugin_note_find(bytes, n, note, &why);
        if (st == MF_E_ABI)
            problem_set(p, st, "path", "%s: it has %u, spoken here is %u", why, note->abi,
                        MF_PLUGIN_ABI);
        else if (st != MF_OK)
            problem_set(p, st, "path", "%s", why);
    }
    free(bytes);
    return p->status;
}

enum mf_status plugin_open(const char *path, int *out, struct mf_plugin_note *note,
                           struct problem *p)
{
    if (check_dir(path, p) != MF_OK)
        return p->status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && errno == ELOOP)
        return problem_set(p, MF_E_PLUGIN, "path", "not a regular file");
    if (fd < 0)
        return problem_set(p, errno == ENOENT ? MF_E_NOT_FOUND : MF_E_PLUGIN, "path",
                           "the file cannot be opened: %s", strerror(errno));
    if (check_file(fd, note, p) != MF_OK) {
        close(fd);
        return p->status;
    }
    *out = fd;
    return MF_OK;
}

static bool known_before(const struct plugin_list *l, const struct mf_plugin_note *n)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->file[i].fd >= 0 && l->file[i].note.kind == n->kind &&
            strcmp(l->file[i].note.name, n->name) == 0)
            return true;
    return false;
}

static bool add_file(struct plugin_list *l, const char *dir, const char *name)
{
    struct plugin_file *grown = realloc(l->file, (l->count + 1) * sizeof *grown);
    struct problem p = {0};

    if (grown == NULL)
        return false;
    l->file = grown;
    struct plugin_file f = {.fd = -1, .path = path_join(dir, name)};
    if (f.path == NULL)
        return false;
    if (plugin_open(f.path, &f.fd, &f.note, &p) == MF_OK && known_before(l, &f.note)) {
        close(f.fd);
        problem_set(&p, MF_E_EXISTS, "path", "another file has a plugin of this name");
    }
    if (p.status != MF_OK)
        f.fd = -1;
    snprintf(f.why, sizeof f.why, "%.255s", p.detail);
    l->file[l->count++] = f;
    return true;
}

static int only_so(const struct dirent *e)
{
    size_t n = strlen(e->d_name);

    return e->d_name[0] != '.' && n > 3 && strcmp(e->d_name + n - 3, ".so") == 0;
}

struct scan {
    struct plugin_list *l;
    bool ok;
};

static void scan_dir(void *arg, const char *dir)
{
    struct scan *s = arg;
    struct dirent **names = NULL;
    int n = scandir(dir, &names, only_so, alphasort);

    for (int i = 0; i < n; i++) {
        if (s->ok && !add_file(s->l, dir, names[i]->d_name))
            s->ok = false;
        free(names[i]);
    }
    free(names);
}

bool plugin_scan(struct plugin_list *l)
{
    struct scan s = {.l = l, .ok = true};

    *l = (struct plugin_list){0};
    path_plugin_dirs(scan_dir, &s);
    return s.ok;
}

/* The refused file of that path, which is so no more. */
static struct plugin_file *find_refused(struct plugin_list *l, const char *path)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->file[i].why[0] != '\0' && strcmp(l->file[i].path, path) == 0)
            return &l->file[i];
    return NULL;
}

bool plugin_list_add(struct plugin_list *l, const char *path, const struct mf_plugin_note *note,
                     enum plugin_check check)
{
    struct plugin_file *f = find_refused(l, path);

    if (f == NULL) {
        struct plugin_file *grown = realloc(l->file, (l->count + 1) * sizeof *grown);
        if (grown == NULL)
            return false;
        l->file = grown;
        f = &l->file[l->count];
        *f = (struct plugin_file){.path = strdup(path)};
        if (f->path == NULL)
            return false;
        l->count++;
    }
    f->fd = -1;
    f->note = *note;
    f->check = check;
    f->why[0] = '\0';
    return true;
}

void plugin_list_fini(struct plugin_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        if (l->file[i].fd >= 0)
            close(l->file[i].fd);
        free(l->file[i].path);
    }
    free(l->file);
    *l = (struct plugin_list){0};
}
