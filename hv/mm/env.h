/*
 * What hv/mm needs from whatever runs it. hv/mm is freestanding: it knows no libc beyond mem and
 * str functions and no operating system; the program that links it fills one `struct mm_env`
 * (hv/host does, and so do the unit tests and benchmarks, some with failure injected).
 */
#ifndef MAYFLY_MM_ENV_H
#define MAYFLY_MM_ENV_H

#include "hv/mm/types.h"

enum mm_log_level { MM_LOG_ERROR, MM_LOG_WARNING, MM_LOG_INFO };

struct mm_env {
    void *arg; /* handed to each function */
    /* Monotonic nanoseconds. */
    uint64_t (*now_ns)(void *arg);
    /* Called while spinning on a lock for the n-th time; may yield the CPU. */
    void (*relax)(void *arg, unsigned n);
    /*
     * Zeroed, page-aligned, lazily committed memory for metadata; NULL when there is none.
     * `release` takes the same size.
     */
    void *(*reserve)(void *arg, uint64_t bytes);
    void (*release)(void *arg, void *p, uint64_t bytes);
    /*
     * Makes [offset, offset + bytes) of the arena read as zero by giving the memory back to the
     * host. May be NULL: then memset does it.
     */
    enum mf_status (*punch)(void *arg, uint64_t offset, uint64_t bytes);
    /*
     * Makes the range read as zero at a cost that goes with the part of it that ever was touched.
     * May be NULL. On an error some of it may be as before.
     */
    enum mf_status (*zero)(void *arg, uint64_t offset, uint64_t bytes);
    /* One line, no newline, already formatted. */
    void (*log)(void *arg, enum mm_log_level level, const char *line);
};

/* Machine memory: `base` is where frame 0 is mapped in this program. Owned by the caller. */
struct mm_arena {
    uint8_t *base;
    uint64_t frames;
};

static inline void *arena_ptr(const struct mm_arena *a, mfn_t m)
{
    return a->base + (m.v << FRAME_SHIFT);
}

#endif
