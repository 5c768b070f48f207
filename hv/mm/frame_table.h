/*
 * The arrays of the frame table (hv/mm/frame.h) and the changes made to them. For hv/mm only.
 *
 * `shared` says whether other CPUs may change the same words at the same time (the allocator is
 * thread safe and runs without the heap's one lock). Without it the caller holds that lock and the
 * changes are plain loads and stores, which are several times cheaper than locked instructions.
 */
#ifndef MAYFLY_MM_FRAME_TABLE_H
#define MAYFLY_MM_FRAME_TABLE_H

#include <stdatomic.h>

#include "hv/mm/frame.h"

#define GROUP_ORDER    9u
#define GROUP_FRAMES   512u
#define GROUP_WORDS    (GROUP_FRAMES / 64u)
#define GROUP_USED     0x7fffu     /* frames in use, by blocks below order 9 */
#define GROUP_WHOLE    0x8000u     /* belongs to one block of order >= 9 */
#define GROUP_IN_USE   0xffffu     /* zero in these bits: all of it is free */
#define GROUP_DIRTY(n) ((n) << 16) /* dirty frames, 0 to 512 */

struct frame_table {
    uint64_t frames, groups;
    struct frame *rec;
    _Atomic uint64_t *used;
    _Atomic uint64_t *dirty;
    _Atomic uint32_t *group;
};

/* The first half of a record as one value, so that it is read and written as one. */
union frame_head {
    struct {
        uint32_t owner;
        uint8_t order, type, state, level;
    } f;
    uint64_t v;
};

static inline union frame_head frame_head_load(const struct frame *f)
{
    const uint64_t *p = (const uint64_t *)(const void *)f;
    return (union frame_head){.v = __atomic_load_n(p, __ATOMIC_ACQUIRE)};
}

static inline void frame_head_store(struct frame *f, union frame_head h)
{
    __atomic_store_n((uint64_t *)(void *)f, h.v, __ATOMIC_RELEASE);
}

/* True when the record held `was` and now is zero: one of several callers wins. */
static inline bool frame_head_clear(struct frame *f, union frame_head was)
{
    return __atomic_compare_exchange_n((uint64_t *)(void *)f, &was.v, UINT64_C(0), false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static inline uint64_t frame_word_load(const struct frame *f)
{
    return __atomic_load_n(&f->u.word, __ATOMIC_RELAXED);
}

static inline void frame_word_store(struct frame *f, uint64_t v)
{
    __atomic_store_n(&f->u.word, v, __ATOMIC_RELAXED);
}

static inline uint64_t ft_or(_Atomic uint64_t *p, uint64_t bits, bool shared)
{
    uint64_t old;

    if (shared)
        return atomic_fetch_or(p, bits);
    old = atomic_load_explicit(p, memory_order_relaxed);
    atomic_store_explicit(p, old | bits, memory_order_relaxed);
    return old;
}

static inline uint64_t ft_andn(_Atomic uint64_t *p, uint64_t bits, bool shared)
{
    uint64_t old;

    if (shared)
        return atomic_fetch_and(p, ~bits);
    old = atomic_load_explicit(p, memory_order_relaxed);
    atomic_store_explicit(p, old & ~bits, memory_order_relaxed);
    return old;
}

static inline uint32_t ft_add(_Atomic uint32_t *p, uint32_t n, bool shared)
{
    uint32_t old;

    if (shared)
        return atomic_fetch_add(p, n);
    old = atomic_load_explicit(p, memory_order_relaxed);
    atomic_store_explicit(p, old + n, memory_order_relaxed);
    return old;
}

/* The bits of a block of order below 6 in its word. */
static inline uint64_t ft_mask(uint64_t first, unsigned order)
{
    return ((UINT64_C(1) << (1u << order)) - 1) << (first & 63);
}

static inline uint64_t ft_frames(unsigned order)
{
    return UINT64_C(1) << order;
}

/* Inside the table and aligned. Order at most ORDER_MAX. */
static inline bool ft_block_ok(const struct frame_table *ft, uint64_t first, unsigned order)
{
    return first < ft->frames && ft_frames(order) <= ft->frames - first &&
           !(first & (ft_frames(order) - 1));
}

/*
 * Which frames of a block were dirty when it was taken, for orders below 9. Larger blocks own their
 * words and are looked through after the lock is dropped.
 */
struct ft_dirty {
    uint32_t n;
    uint64_t mask[GROUP_WORDS / 2];
};

/* Sets the block in use; false, with nothing changed, when any frame of it is. */
bool ft_claim_slow(struct frame_table *ft, uint64_t first, unsigned order, bool shared);
/* Undoes a claim; none of the frames is marked dirty. They become so when `dirty` says it. */
void ft_release_slow(struct frame_table *ft, uint64_t first, unsigned order, bool dirty,
                     bool shared);
/* Takes the dirty marks off a claimed block of order below 9. */
void ft_take_dirty_slow(struct frame_table *ft, uint64_t first, unsigned order, bool shared,
                        struct ft_dirty *out);
/* True when any frame of the range is in use. */
bool ft_any_used(const struct frame_table *ft, uint64_t first, uint64_t n);
/* Bits in use of the word that holds frame `first`. */
uint64_t ft_used_word(const struct frame_table *ft, uint64_t first);

static inline bool ft_claim(struct frame_table *ft, uint64_t first, unsigned order, bool shared)
{
    _Atomic uint32_t *g;
    uint64_t old;

    if (order)
        return ft_claim_slow(ft, first, order, shared);
    g = &ft->group[first >> GROUP_ORDER];
    if (atomic_load_explicit(g, memory_order_relaxed) & GROUP_WHOLE)
        return false;
    old = ft_or(&ft->used[first >> 6], UINT64_C(1) << (first & 63), shared);
    if (old >> (first & 63) & 1)
        return false;
    if (ft_add(g, 1, shared) & GROUP_WHOLE) {
        ft_release_slow(ft, first, 0, false, shared);
        return false;
    }
    return true;
}

static inline void ft_release(struct frame_table *ft, uint64_t first, unsigned order, bool dirty,
                              bool shared)
{
    uint64_t bit = UINT64_C(1) << (first & 63);

    if (order) {
        ft_release_slow(ft, first, order, dirty, shared);
        return;
    }
    if (dirty)
        ft_or(&ft->dirty[first >> 6], bit, shared);
    ft_andn(&ft->used[first >> 6], bit, shared);
    ft_add(&ft->group[first >> GROUP_ORDER], (dirty ? GROUP_DIRTY(1u) : 0u) - 1u, shared);
}

static inline void ft_take_dirty(struct frame_table *ft, uint64_t first, unsigned order,
                                 bool shared, struct ft_dirty *out)
{
    uint32_t g = atomic_load_explicit(&ft->group[first >> GROUP_ORDER], memory_order_relaxed);

    out->n = 0;
    if (g >= GROUP_DIRTY(1u))
        ft_take_dirty_slow(ft, first, order, shared, out);
}

#endif
