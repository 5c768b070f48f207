#include "daemon/kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/hypercall.h"

void kernels_init(struct kernels *k)
{
    *k = (struct kernels){0};
    for (int i = 0; i < KERNELS_MAX; i++)
        k->file[i].fd = -1;
}

static void forget(struct kernel_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    free(f->path);
    *f = (struct kernel_file){.fd = -1};
}

void kernels_fini(struct kernels *k)
{
    for (int i = 0; i < KERNELS_MAX; i++)
        forget(&k->file[i]);
}

static bool same_file(const struct kernel_file *f, const struct stat *s)
{
    return f->dev == s->st_dev && f->ino == s->st_ino && f->size == s->st_size &&
           f->mtime.tv_sec == s->st_mtim.tv_sec && f->mtime.tv_nsec == s->st_mtim.tv_nsec &&
           f->ctime.tv_sec == s->st_ctim.tv_sec && f->ctime.tv_nsec == s->st_ctim.tv_nsec;
}

static enum mf_status check_stat(const struct stat *s, struct problem *p)
{
    if (!S_ISREG(s->st_mode))
        return problem_set(p, MF_E_IMAGE, "kernel", "the kernel is not a regular file");
    if (s->st_size == 0)
        return problem_set(p, MF_E_IMAGE, "kernel", "the kernel file is empty");
    if ((uint64_t)s->st_size > MF_IMAGE_MAX)
        return problem_set(p, MF_E_IMAGE, "kernel", "the kernel file is larger than 2 GiB");
    return MF_OK;
}

/* The entry of `path`, or the one that was used longest ago. */
static struct kernel_file *pick(struct kernels *k, const char *path)
{
    struct kernel_file *oldest = &k->file[0];

    for (int i = 0; i < KERNELS_MAX; i++) {
        struct kernel_file *f = &k->file[i];
        if (f->path != NULL && strcmp(f->path, path) == 0)
            return f;
        if (f->used < oldest->used)
            oldest = f;
    }
    return oldest;
}

static enum mf_status open_anew(struct kernel_file *f, const char *path, struct problem *p)
{
    struct stat s;
    /* Not to hang on a FIFO that somebody put there. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0)
        return problem_set(p, MF_E_IMAGE, "kernel", "the kernel cannot be opened: %s",
                           strerror(errno));
    if (fstat(fd, &s) != 0)
        problem_set(p, MF_E_IMAGE, "kernel", "the kernel cannot be examined: %s", strerror(errno));
    else
        check_stat(&s, p);
    char *copy = p->status == MF_OK ? strdup(path) : NULL;
    if (p->status == MF_OK && copy == NULL)
        problem_nomem(p);
    if (p->status != MF_OK) {
        close(fd);
        return p->status;
    }
    forget(f);
    *f = (struct kernel_file){.path = copy,
                              .fd = fd,
                              .dev = s.st_dev,
                              .ino = s.st_ino,
                              .size = s.st_size,
                              .mtime = s.st_mtim,
                              .ctime = s.st_ctim};
    return MF_OK;
}

enum mf_status kernels_open(struct kernels *k, const char *path, int *fd, struct problem *p)
{
    struct kernel_file *f = pick(k, path);
    struct stat s;

    if (stat(path, &s) != 0)
        return problem_set(p, MF_E_IMAGE, "kernel", "the kernel cannot be opened: %s",
                           strerror(errno));
    bool hit = f->path != NULL && strcmp(f->path, path) == 0 && same_file(f, &s);
    if (!hit && open_anew(f, path, p) != MF_OK)
        return p->status;
    f->used = ++k->tick;
    *fd = f->fd;
    return MF_OK;
}
