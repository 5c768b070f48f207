/* Ballooning from inside: the calls are made again until they are finished. */
#ifndef GUEST_BALLOON_H
#define GUEST_BALLOON_H

#include "lib/hypercall.h"

#define PAGE_BYTES UINT64_C(4096)

static inline long balloon_call(long nr, uint64_t first, uint64_t frames)
{
    long r;

    do
        r = hypercall_vmmcall(nr, first, frames, 0, 0);
    while (r == -(long)MF_AGAIN);
    return r;
}

static inline long balloon_give(uint64_t first, uint64_t frames)
{
    return balloon_call(MF_CALL_GUEST_BALLOON_GIVE, first, frames);
}

static inline long balloon_take(uint64_t first, uint64_t frames)
{
    return balloon_call(MF_CALL_GUEST_BALLOON_TAKE, first, frames);
}

static inline volatile uint64_t *word_of(uint64_t frame)
{
    return (volatile uint64_t *)(uintptr_t)(frame * PAGE_BYTES);
}

#endif
