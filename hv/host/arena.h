/*
 * Machine memory on a Linux host: one memfd, mapped once, reserved and not committed, so that it
 * may be larger than the host's RAM; and the services that hv/mm asks for.
 */
#ifndef MAYFLY_HOST_ARENA_H
#define MAYFLY_HOST_ARENA_H

#include "hv/host/error.h"
#include "hv/mm/env.h"

struct host_arena {
    int fd;
    uint64_t bytes;
    struct mm_arena mm;
    struct mm_env env; /* its `arg` is this object, which must thus stay where it is */
};

/* `bytes`: a multiple of 4096, at least 1 MiB, at most 2^46. MF_E_RANGE, MF_E_ALIGN, MF_E_IO. */
enum mf_status host_arena_init(struct host_arena *a, uint64_t bytes, struct mf_error *e);
void host_arena_fini(struct host_arena *a);
/* CLOCK_MONOTONIC, nanoseconds. */
uint64_t host_now_ns(void);

#endif
