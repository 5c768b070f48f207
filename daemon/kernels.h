/*
 * Open kernel files and modules, by path: a guest that is started a thousand times is opened, and
 * where it is packed unpacked, once. An entry is used only while the file at the path is still the
 * one that was opened. Loop thread only; unpacking runs on the thread pool.
 */
#ifndef MAYFLY_DAEMON_KERNELS_H
#define MAYFLY_DAEMON_KERNELS_H

#include <stdint.h>
#include <sys/types.h>
#include <time.h>
#include <uv.h>

#include "daemon/def.h"
#include "daemon/linux.h"
#include "daemon/problem.h"

#define KERNELS_MAX 32
#define KERNELS_UNPACKED                                                                           \
    (UINT64_C(256) << 20) /* bytes of unpacked images kept, or the last one                        \
                           */

enum kernel_use { KERNEL_IMAGE, KERNEL_MODULE };

struct kernel_file {
    char *path; /* owned; NULL: unused */
    enum kernel_use use;
    int fd;
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec mtime;
    struct timespec ctime;
    uint64_t used; /* tick of the last use */
    struct linux_kernel linux_;
    int unpacked;            /* sealed memfd; -1: none yet, or not packed */
    uint64_t unpacked_bytes; /* its size */
    struct unpack_job *job;  /* on its way: the entry stays */
    bool stale;              /* the file changed meanwhile: goes with the job */
};

struct kernels {
    uv_loop_t *loop;
    unsigned *jobs; /* counts what is on the thread pool */
    uint64_t tick;
    struct kernel_file file[KERNELS_MAX];
};

void kernels_init(struct kernels *k, uv_loop_t *loop, unsigned *jobs);
/* No job may be under way. */
void kernels_fini(struct kernels *k);
/* Everybody who waits is told MF_E_UNAVAILABLE. */
void kernels_quit(struct kernels *k);

/*
 * Calls `fn` once, perhaps before it returns: when the kernel at `path` can be opened by
 * kernels_open without waiting (why is NULL), or with the reason why it cannot be: errors of
 * linux_examine and linux_unpack, MF_E_LIMIT. `ram` is the guest's.
 */
void kernels_need(struct kernels *k, const char *path, uint64_t ram,
                  void (*fn)(void *arg, const struct problem *why), void *arg);

/* What vm_image gets: the kernel's fd, then the modules'. All stay the cache's. */
struct kernel_set {
    int fd[1 + MF_MODULES_MAX];
    unsigned n;
    const struct linux_kernel *linux_; /* of the kernel */
};

/*
 * The files of a definition, whose kernel is prepared by kernels_need. They must be regular, not
 * empty and at most MF_IMAGE_MAX bytes. Valid until the next call of any function here.
 * MF_E_IMAGE with the field `kernel`, `initrd` or `modules`; MF_E_BUSY: the kernel has just
 * changed.
 */
enum mf_status kernels_open(struct kernels *k, const struct vm_def *def, struct kernel_set *set,
                            struct problem *p);

#endif
