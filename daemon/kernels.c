#include "daemon/kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/hypercall.h"

/* Somebody waits for a job. */
struct unpack_wait {
    struct unpack_wait *next;
    void (*fn)(void *arg, const struct problem *why);
    void *arg;
};

struct unpack_job {
    uv_work_t work;
    struct kernels *k;
    struct kernel_file *file; /* stays while this is set there */
    struct unpack_wait *waits;
    /* the worker's, while it works: */
    int fd; /* the file's own, which stays open */
    struct linux_kernel linux_;
    int out;
    struct problem p;
};

void kernels_init(struct kernels *k, uv_loop_t *loop, unsigned *jobs)
{
    *k = (struct kernels){.loop = loop, .jobs = jobs};
    for (int i = 0; i < KERNELS_MAX; i++)
        k->file[i].fd = k->file[i].unpacked = -1;
}

static void forget(struct kernel_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->unpacked >= 0)
        close(f->unpacked);
    free(f->path);
    *f = (struct kernel_file){.fd = -1, .unpacked = -1};
}

void kernels_fini(struct kernels *k)
{
    for (int i = 0; i < KERNELS_MAX; i++)
        forget(&k->file[i]);
}

/* ---- the cache */

static bool same_file(const struct kernel_file *f, const struct stat *s)
{
    return f->dev == s->st_dev && f->ino == s->st_ino && f->size == s->st_size &&
           f->mtime.tv_sec == s->st_mtim.tv_sec && f->mtime.tv_nsec == s->st_mtim.tv_nsec &&
           f->ctime.tv_sec == s->st_ctim.tv_sec && f->ctime.tv_nsec == s->st_ctim.tv_nsec;
}

/* What is asked for, and how errors name it. */
struct want {
    const char *path;
    enum kernel_use use;
    const char *field;
};

static enum mf_status check_stat(const struct want *w, const struct stat *s, struct problem *p)
{
    if (!S_ISREG(s->st_mode))
        return problem_set(p, MF_E_IMAGE, w->field, "the %s is not a regular file", w->field);
    if (s->st_size == 0)
        return problem_set(p, MF_E_IMAGE, w->field, "the %s file is empty", w->field);
    if ((uint64_t)s->st_size > MF_IMAGE_MAX)
        return problem_set(p, MF_E_IMAGE, w->field, "the %s file is larger than 2 GiB", w->field);
    return MF_OK;
}

/* The entry of the path, or the one that was used longest ago; NULL: all of them are being
 * unpacked. One that is being unpacked and has changed on disk is left to its job. */
static struct kernel_file *pick(struct kernels *k, const struct want *w, const struct stat *s)
{
    struct kernel_file *oldest = NULL;

    for (int i = 0; i < KERNELS_MAX; i++) {
        struct kernel_file *f = &k->file[i];
        if (f->path != NULL && !f->stale && f->use == w->use && strcmp(f->path, w->path) == 0) {
            if (f->job == NULL || same_file(f, s))
                return f;
            f->stale = true;
        }
        if (f->job == NULL && (oldest == NULL || f->used < oldest->used))
            oldest = f;
    }
    return oldest;
}

static enum mf_status cannot_open(const struct want *w, struct problem *p)
{
    return problem_set(p, MF_E_IMAGE, w->field, "the %s cannot be opened: %s", w->field,
                       strerror(errno));
}

static enum mf_status open_anew(struct kernel_file *f, const struct want *w, struct problem *p)
{
    struct linux_kernel linux_ = {.form = LINUX_NOT};
    struct stat s;
    /* Not to hang on a FIFO that somebody put there. */
    int fd = open(w->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0)
        return cannot_open(w, p);
    if (fstat(fd, &s) != 0)
        problem_set(p, MF_E_IMAGE, w->field, "the %s cannot be examined: %s", w->field,
                    strerror(errno));
    else if (check_stat(w, &s, p) == MF_OK && w->use == KERNEL_IMAGE)
        linux_examine(fd, (uint64_t)s.st_size, &linux_, p);
    char *copy = p->status == MF_OK ? strdup(w->path) : NULL;
    if (p->status == MF_OK && copy == NULL)
        problem_nomem(p);
    if (p->status != MF_OK) {
        close(fd);
        return p->status;
    }
    forget(f);
    *f = (struct kernel_file){.path = copy,
                              .use = w->use,
                              .fd = fd,
                              .dev = s.st_dev,
                              .ino = s.st_ino,
                              .size = s.st_size,
                              .mtime = s.st_mtim,
                              .ctime = s.st_ctim,
                              .linux_ = linux_,
                              .unpacked = -1};
    return MF_OK;
}

static struct kernel_file *look_up(struct kernels *k, const struct want *w, struct problem *p)
{
    struct stat s;

    if (stat(w->path, &s) != 0) {
        cannot_open(w, p);
        return NULL;
    }
    struct kernel_file *f = pick(k, w, &s);
    if (f == NULL) {
        problem_set(p, MF_E_LIMIT, w->field, "%d kernels are being unpacked", KERNELS_MAX);
        return NULL;
    }
    bool hit =
        f->path != NULL && f->use == w->use && strcmp(f->path, w->path) == 0 && same_file(f, &s);
    if (!hit && open_anew(f, w, p) != MF_OK)
        return NULL;
    f->used = ++k->tick;
    return f;
}

/* ---- unpacking */

static bool is_ready(const struct kernel_file *f)
{
    return f->linux_.form != LINUX_BZIMAGE || f->unpacked >= 0;
}

/* Before anything is unpacked: nothing that is larger than the RAM ever is. */
static enum mf_status check_ram(const struct kernel_file *f, uint64_t ram, struct problem *p)
{
    if (f->linux_.form == LINUX_BZIMAGE && f->linux_.unpacked_max > ram)
        return problem_set(p, MF_E_IMAGE, "kernel",
                           "the kernel needs %" PRIu32
                           " bytes (init_size of its setup header), the "
                           "VM's RAM has %" PRIu64,
                           f->linux_.unpacked_max, ram);
    return MF_OK;
}

/* Unpacked images take memory: the oldest go, `keep` stays. */
static void trim(struct kernels *k, const struct kernel_file *keep)
{
    for (;;) {
        struct kernel_file *oldest = NULL;
        uint64_t bytes = 0;

        for (int i = 0; i < KERNELS_MAX; i++) {
            struct kernel_file *f = &k->file[i];
            bytes += f->unpacked_bytes;
            if (f->unpacked >= 0 && f != keep && (oldest == NULL || f->used < oldest->used))
                oldest = f;
        }
        if (oldest == NULL || bytes <= KERNELS_UNPACKED)
            return;
        forget(oldest);
    }
}

static void answer(struct unpack_job *j, const struct problem *why)
{
    while (j->waits != NULL) {
        struct unpack_wait *w = j->waits;
        j->waits = w->next;
        w->fn(w->arg, why);
        free(w);
    }
}

static void on_unpacked(uv_work_t *work, int status)
{
    struct unpack_job *j = work->data;
    struct kernel_file *f = j->file;
    struct stat s;

    (void)status;
    --*j->k->jobs;
    f->job = NULL;
    if (j->p.status == MF_OK && !f->stale && fstat(j->out, &s) == 0) {
        f->unpacked = j->out;
        f->unpacked_bytes = (uint64_t)s.st_size;
        trim(j->k, f);
    } else {
        if (j->p.status == MF_OK)
            close(j->out);
        problem_set(&j->p, MF_E_BUSY, "kernel", "the kernel file changed while it was read");
        if (f->stale)
            forget(f);
    }
    answer(j, j->p.status == MF_OK ? NULL : &j->p);
    free(j);
}

static void unpack_work(uv_work_t *work)
{
    struct unpack_job *j = work->data;

    linux_unpack(j->fd, &j->linux_, &j->out, &j->p);
}

static enum mf_status begin_job(struct kernels *k, struct kernel_file *f, struct problem *p)
{
    struct unpack_job *j = calloc(1, sizeof *j);

    if (j == NULL)
        return problem_nomem(p);
    *j = (struct unpack_job){.k = k, .file = f, .fd = f->fd, .linux_ = f->linux_, .out = -1};
    j->work.data = j;
    if (uv_queue_work(k->loop, &j->work, unpack_work, on_unpacked) != 0) {
        free(j);
        return problem_nomem(p);
    }
    ++*k->jobs;
    f->job = j;
    return MF_OK;
}

/* Joins the job of the entry, or begins one. */
static enum mf_status wait_for(struct kernels *k, struct kernel_file *f,
                               void (*fn)(void *arg, const struct problem *why), void *arg,
                               struct problem *p)
{
    struct unpack_wait *w = malloc(sizeof *w);

    if (w == NULL)
        return problem_nomem(p);
    if (f->job == NULL && begin_job(k, f, p) != MF_OK) {
        free(w);
        return p->status;
    }
    *w = (struct unpack_wait){f->job->waits, fn, arg};
    f->job->waits = w;
    return MF_OK;
}

void kernels_need(struct kernels *k, const char *path, uint64_t ram,
                  void (*fn)(void *arg, const struct problem *why), void *arg)
{
    const struct want w = {path, KERNEL_IMAGE, "kernel"};
    struct problem p = {0};
    struct kernel_file *f = look_up(k, &w, &p);

    if (f != NULL && check_ram(f, ram, &p) == MF_OK && !is_ready(f) &&
        wait_for(k, f, fn, arg, &p) == MF_OK)
        return;
    fn(arg, p.status == MF_OK ? NULL : &p);
}

void kernels_quit(struct kernels *k)
{
    struct problem p = {0};

    problem_set(&p, MF_E_UNAVAILABLE, NULL, "the daemon is going down");
    for (int i = 0; i < KERNELS_MAX; i++)
        if (k->file[i].job != NULL)
            answer(k->file[i].job, &p);
}

/* ---- all files of a VM */

static enum mf_status add_module(struct kernels *k, const char *path, const char *field,
                                 struct kernel_set *set, struct problem *p)
{
    const struct want w = {path, KERNEL_MODULE, field};
    struct kernel_file *f = look_up(k, &w, p);

    if (f == NULL)
        return p->status;
    set->fd[set->n++] = f->fd;
    return MF_OK;
}

enum mf_status kernels_open(struct kernels *k, const struct vm_def *def, struct kernel_set *set,
                            struct problem *p)
{
    const struct want w = {def->kernel == NULL ? "" : def->kernel, KERNEL_IMAGE, "kernel"};
    struct kernel_file *f = look_up(k, &w, p);

    if (f == NULL)
        return p->status;
    if (!is_ready(f))
        return problem_set(p, MF_E_BUSY, "kernel", "the kernel file changed while it was read");
    if (check_ram(f, def->memory, p) != MF_OK)
        return p->status;
    *set = (struct kernel_set){.n = 1, .linux_ = &f->linux_};
    set->fd[0] = f->unpacked >= 0 ? f->unpacked : f->fd;
    if (def->initrd != NULL && add_module(k, def->initrd, "initrd", set, p) != MF_OK)
        return p->status;
    for (unsigned i = 0; i < def->nr_modules; i++)
        if (add_module(k, def->module[i].file, "modules", set, p) != MF_OK)
            return p->status;
    return MF_OK;
}
