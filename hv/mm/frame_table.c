/*
 * Changes of the frame table that are too long to be inlined: blocks above one frame.
 */
#include "hv/mm/frame_table.h"

/* Claims words [w, w + n) whole, or gives back what it took. */
static bool claim_words(struct frame_table *ft, uint64_t w, unsigned n, bool shared)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t old = ft_or(&ft->used[w + i], ~UINT64_C(0), shared);

        if (old) {
            ft_andn(&ft->used[w + i], ~old, shared);
            while (i--)
                ft_andn(&ft->used[w + i], ~UINT64_C(0), shared);
            return false;
        }
    }
    return true;
}

static void release_words(_Atomic uint64_t *p, unsigned n, bool set, bool shared)
{
    for (unsigned i = 0; i < n; i++) {
        if (set)
            ft_or(&p[i], ~UINT64_C(0), shared);
        else
            ft_andn(&p[i], ~UINT64_C(0), shared);
    }
}

static bool claim_small(struct frame_table *ft, uint64_t first, unsigned order, bool shared)
{
    _Atomic uint32_t *g = &ft->group[first >> GROUP_ORDER];
    uint64_t w = first >> 6;

    if (atomic_load_explicit(g, memory_order_relaxed) & GROUP_WHOLE)
        return false;
    if (order >= 6) {
        if (!claim_words(ft, w, 1u << (order - 6), shared))
            return false;
    } else {
        uint64_t mask = ft_mask(first, order);
        uint64_t old = ft_or(&ft->used[w], mask, shared);

        if (old & mask) {
            ft_andn(&ft->used[w], mask & ~old, shared);
            return false;
        }
    }
    if (ft_add(g, 1u << order, shared) & GROUP_WHOLE) {
        ft_release_slow(ft, first, order, false, shared);
        return false;
    }
    return true;
}

/* One group for a block of order >= 9. */
static bool claim_group(_Atomic uint32_t *g, bool shared)
{
    uint32_t old = atomic_load_explicit(g, memory_order_relaxed);

    do {
        if (old & GROUP_IN_USE)
            return false;
        if (!shared) {
            atomic_store_explicit(g, old | GROUP_WHOLE, memory_order_relaxed);
            return true;
        }
    } while (!atomic_compare_exchange_weak(g, &old, old | GROUP_WHOLE));
    return true;
}

bool ft_claim_slow(struct frame_table *ft, uint64_t first, unsigned order, bool shared)
{
    _Atomic uint32_t *g = &ft->group[first >> GROUP_ORDER];
    uint64_t n;

    if (order < GROUP_ORDER)
        return claim_small(ft, first, order, shared);
    n = ft_frames(order - GROUP_ORDER);
    for (uint64_t i = 0; i < n; i++) {
        if (claim_group(&g[i], shared))
            continue;
        while (i--)
            ft_add(&g[i], 0u - GROUP_WHOLE, shared);
        return false;
    }
    return true;
}

void ft_release_slow(struct frame_table *ft, uint64_t first, unsigned order, bool dirty,
                     bool shared)
{
    _Atomic uint32_t *g = &ft->group[first >> GROUP_ORDER];
    uint64_t w = first >> 6, n = ft_frames(order);

    if (order >= GROUP_ORDER) {
        if (dirty)
            release_words(&ft->dirty[w], (unsigned)(n / 64), true, false);
        for (uint64_t i = 0; i < n >> GROUP_ORDER; i++)
            ft_add(&g[i], (dirty ? GROUP_DIRTY(GROUP_FRAMES) : 0u) - GROUP_WHOLE, shared);
        return;
    }
    if (order >= 6) {
        if (dirty)
            release_words(&ft->dirty[w], (unsigned)(n / 64), true, shared);
        release_words(&ft->used[w], (unsigned)(n / 64), false, shared);
    } else {
        uint64_t mask = ft_mask(first, order);

        if (dirty)
            ft_or(&ft->dirty[w], mask, shared);
        ft_andn(&ft->used[w], mask, shared);
    }
    ft_add(g, (dirty ? GROUP_DIRTY((uint32_t)n) : 0u) - (uint32_t)n, shared);
}

void ft_take_dirty_slow(struct frame_table *ft, uint64_t first, unsigned order, bool shared,
                        struct ft_dirty *out)
{
    unsigned words = order < 6 ? 1 : 1u << (order - 6);
    uint64_t mask = order < 6 ? ft_mask(first, order) : ~UINT64_C(0);

    out->n = 0;
    for (unsigned i = 0; i < words; i++) {
        _Atomic uint64_t *p = &ft->dirty[(first >> 6) + i];

        out->mask[i] = atomic_load_explicit(p, memory_order_relaxed) & mask;
        if (out->mask[i]) {
            ft_andn(p, out->mask[i], shared);
            out->n += mm_popcount(out->mask[i]);
        }
    }
    if (out->n)
        ft_add(&ft->group[first >> GROUP_ORDER], 0u - GROUP_DIRTY(out->n), shared);
}

uint64_t ft_used_word(const struct frame_table *ft, uint64_t first)
{
    if (atomic_load(&ft->group[first >> GROUP_ORDER]) & GROUP_WHOLE)
        return ~UINT64_C(0);
    return atomic_load(&ft->used[first >> 6]);
}

bool ft_any_used(const struct frame_table *ft, uint64_t first, uint64_t n)
{
    uint64_t end = first + n;

    while (first < end) {
        uint64_t left = end - first, in_word = 64 - (first & 63);
        uint64_t take = left < in_word ? left : in_word, mask;

        if (!(first & (GROUP_FRAMES - 1)) && left >= GROUP_FRAMES) {
            if (atomic_load(&ft->group[first >> GROUP_ORDER]) & GROUP_IN_USE)
                return true;
            first += GROUP_FRAMES;
            continue;
        }
        mask = take == 64 ? ~UINT64_C(0) : ((UINT64_C(1) << take) - 1) << (first & 63);
        if (ft_used_word(ft, first) & mask)
            return true;
        first += take;
    }
    return false;
}
