/*
 * hvbench alloc: what its patterns share.
 */
#ifndef MAYFLY_BENCH_ALLOC_H
#define MAYFLY_BENCH_ALLOC_H

#include <pthread.h>
#include <time.h>

#include "hv/host/arena.h"
#include "hv/mm/heap.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_out.h"

#define ALLOC_LEVELS 4u   /* of `filling` */
#define ALLOC_ROUNDS 100u /* of `frag` */

struct alloc_run;

/* One way to take and give back. */
struct alloc_way {
    const char *name;
    bool (*alloc)(struct alloc_run *r, unsigned cpu, uint64_t *m);
    bool (*free)(struct alloc_run *r, unsigned cpu, uint64_t m);
    /* Free frames, and such as lie in free blocks of 2 MiB and more. */
    void (*count)(struct alloc_run *r, uint64_t *free_frames, uint64_t *huge);
};

struct alloc_run {
    const struct alloc_way *way;
    unsigned order, threads;
    struct heap *heap;
    const struct mf_allocator_ops *ops;
    struct mf_alloc_env env;
    uint64_t frames, blocks; /* of all; taken by each thread */
};

/* CPU time of the calling thread: what others do on the machine is not in it. */
static inline uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static inline uint64_t alloc_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

void alloc_shuffle(uint64_t *m, uint64_t n);

/*
 * All of memory is taken, a random half of it given back; then in each of ALLOC_ROUNDS rounds a
 * tenth of what is held is given back and taken anew, one random block at a time. Percent of the
 * free frames that lie in free blocks of 2 MiB or more, in tenths, before and after.
 */
bool alloc_frag(struct alloc_run *r, uint64_t *before, uint64_t *after);

/*
 * Memory is in use to 0, 50, 90 and 99 percent, what is free being scattered at random: tenths of a
 * nanosecond for one allocation at each of them.
 */
bool alloc_filling(struct alloc_run *r, uint64_t out[ALLOC_LEVELS]);

#endif
