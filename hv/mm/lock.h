/*
 * Spin lock for short critical sections, with a hook that yields when the holder was preempted.
 * Lock order is written in docs/ARCHITECTURE.md.
 */
#ifndef MAYFLY_MM_LOCK_H
#define MAYFLY_MM_LOCK_H

#include <stdatomic.h>

#include "hv/mm/env.h"

struct mm_lock {
    atomic_flag held;
};

#define MM_LOCK_INIT                                                                               \
    {                                                                                              \
        ATOMIC_FLAG_INIT                                                                           \
    }

static inline void mm_lock_init(struct mm_lock *l)
{
    atomic_flag_clear(&l->held);
}

static inline void mm_lock_take(struct mm_lock *l, const struct mm_env *env)
{
    unsigned n = 0;

    while (atomic_flag_test_and_set_explicit(&l->held, memory_order_acquire))
        env->relax(env->arg, n++);
}

static inline bool mm_lock_try(struct mm_lock *l)
{
    return !atomic_flag_test_and_set_explicit(&l->held, memory_order_acquire);
}

static inline void mm_lock_drop(struct mm_lock *l)
{
    atomic_flag_clear_explicit(&l->held, memory_order_release);
}

#endif
