#include "daemon/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 512

static char *lock_name(const char *path)
{
    size_t n = strlen(path);
    char *s;

    if (n > 5 && strcmp(path + n - 5, ".sock") == 0)
        n -= 5;
    return asprintf(&s, "%.*s.lock", (int)n, path) < 0 ? NULL : s;
}

static void read_owner(int fd, char *text, size_t size)
{
    ssize_t n = pread(fd, text, size - 1, 0);

    text[n < 0 ? 0 : n] = '\0';
    text[strspn(text, "0123456789")] = '\0';
}

static enum mf_status take_lock(const char *path, int *lock, struct problem *p)
{
    char text[24];
    char *name = lock_name(path);

    if (name == NULL)
        return problem_nomem(p);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        problem_set(p, MF_E_IO, NULL, "%s cannot be opened: %s", name, strerror(errno));
    } else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        read_owner(fd, text, sizeof text);
        problem_set(p, MF_E_BUSY, NULL, "another daemon (process %s) serves %s",
                    text[0] != '\0' ? text : "unknown", path);
    } else {
        int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
            problem_set(p, MF_E_IO, NULL, "%s cannot be written: %s", name, strerror(errno));
    }
    free(name);
    if (p->status != MF_OK && fd >= 0)
        close(fd);
    *lock = fd;
    return p->status;
}

/* With the lock in hand whatever socket lies there is nobody's; anything else is left alone. */
static enum mf_status remove_stale(const char *path, struct problem *p)
{
    struct stat s;

    if (lstat(path, &s) != 0)
        return MF_OK;
    if (!S_ISSOCK(s.st_mode))
        return problem_set(p, MF_E_EXISTS, NULL, "%s exists and is not a socket", path);
    if (unlink(path) != 0)
        return problem_set(p, MF_E_IO, NULL, "the stale socket %s cannot be removed: %s", path,
                           strerror(errno));
    return MF_OK;
}

static enum mf_status bind_socket(const char *path, int *out, struct problem *p)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memcpy(a.sun_path, path, strlen(path) + 1);
    mode_t old = umask(0177);
    int r = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&a, sizeof a);
    umask(old);
    if (r == 0)
        r = listen(fd, BACKLOG);
    if (r != 0) {
        problem_set(p, MF_E_IO, NULL, "no socket at %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return p->status;
    }
    *out = fd;
    return MF_OK;
}

enum mf_status listener_init(struct listener *l, const char *path, struct problem *p)
{
    *l = (struct listener){.fd = -1, .lock = -1};
    if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
        return problem_set(p, MF_E_RANGE, "socket", "the path %.120s is too long for a socket",
                           path);
    if (take_lock(path, &l->lock, p) != MF_OK) {
        l->lock = -1;
        return p->status;
    }
    l->path = strdup(path);
    if (l->path == NULL)
        problem_nomem(p);
    else if (remove_stale(path, p) == MF_OK)
        bind_socket(path, &l->fd, p);
    if (p->status != MF_OK) {
        free(l->path);
        close(l->lock);
        *l = (struct listener){.fd = -1, .lock = -1};
    }
    return p->status;
}

void listener_fini(struct listener *l, bool keep_fd)
{
    if (l->path != NULL)
        unlink(l->path);
    if (l->fd >= 0 && !keep_fd)
        close(l->fd);
    if (l->lock >= 0)
        close(l->lock);
    free(l->path);
    *l = (struct listener){.fd = -1, .lock = -1};
}
