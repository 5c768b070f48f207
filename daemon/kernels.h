/*
 * Open kernel files, by path: a guest that is started a thousand times is opened once. An entry is
 * used only while the file at the path is still the one that was opened.
 */
#ifndef MAYFLY_DAEMON_KERNELS_H
#define MAYFLY_DAEMON_KERNELS_H

#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "daemon/problem.h"

#define KERNELS_MAX 16

struct kernels {
    uint64_t tick;
    struct kernel_file {
        char *path; /* owned; NULL: unused */
        int fd;
        dev_t dev;
        ino_t ino;
        off_t size;
        struct timespec mtime;
        struct timespec ctime;
        uint64_t used; /* tick of the last use */
    } file[KERNELS_MAX];
};

void kernels_init(struct kernels *k);
void kernels_fini(struct kernels *k);

/*
 * A readable fd of the file, which must be regular, not empty and at most MF_IMAGE_MAX bytes. *fd
 * stays the cache's and is valid until the next call. MF_E_IMAGE with the field `kernel`.
 */
enum mf_status kernels_open(struct kernels *k, const char *path, int *fd, struct problem *p);

#endif
