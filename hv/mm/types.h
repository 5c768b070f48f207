/*
 * Boxed address types and the few constants that all of hv shares.
 *
 *   mfn_t  machine frame number: index of a 4 KiB frame in the arena
 *   gfn_t  guest frame number
 *   gpa_t  guest-physical address, bytes
 *
 * The boxes exist so that one cannot be passed where another is meant.
 */
#ifndef MAYFLY_MM_TYPES_H
#define MAYFLY_MM_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

#define FRAME_SHIFT 12u
#define FRAME_SIZE  (UINT64_C(1) << FRAME_SHIFT)
#define ORDER_4K    0u
#define ORDER_2M    9u
#define ORDER_1G    18u
#define ORDER_MAX   18u

typedef struct {
    uint64_t v;
} mfn_t;
typedef struct {
    uint64_t v;
} gfn_t;
typedef struct {
    uint64_t v;
} gpa_t;

/* Bits set. The compiler's own may need a library call, which freestanding code has not. */
static inline unsigned mm_popcount(uint64_t v)
{
    v -= v >> 1 & UINT64_C(0x5555555555555555);
    v = (v & UINT64_C(0x3333333333333333)) + (v >> 2 & UINT64_C(0x3333333333333333));
    v = (v + (v >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    return (unsigned)(v * UINT64_C(0x0101010101010101) >> 56);
}

#define MFN_NONE ((mfn_t){UINT64_MAX})

static inline mfn_t mfn(uint64_t v)
{
    return (mfn_t){v};
}
static inline gfn_t gfn(uint64_t v)
{
    return (gfn_t){v};
}
static inline gpa_t gpa(uint64_t v)
{
    return (gpa_t){v};
}
static inline gfn_t gpa_to_gfn(gpa_t a)
{
    return (gfn_t){a.v >> FRAME_SHIFT};
}
static inline gpa_t gfn_to_gpa(gfn_t g)
{
    return (gpa_t){g.v << FRAME_SHIFT};
}
static inline uint64_t gpa_offset(gpa_t a)
{
    return a.v & (FRAME_SIZE - 1);
}

#endif
