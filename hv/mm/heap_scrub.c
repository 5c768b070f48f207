/*
 * Scrubbing. A frame that held one owner's data reads as zero before another owner gets it: here at
 * allocation, outside of any lock, or before that in the background.
 *
 * The background scrub writes frames that are free, which anybody may allocate meanwhile. It says
 * in scrub_lo/scrub_hi where it is at work, at most one word of the bitmaps (64 frames), and then
 * looks which frames there are free; an allocation claims its frames and then looks where the scrub
 * is. Either the scrub sees the claim, or the allocation sees the scrub and waits for it.
 */
#include <string.h>

#include "hv/mm/heap_impl.h"

#define PUNCH_MIN_FRAMES                                                                           \
    UINT64_C(4096) /* from 16 MiB on giving memory back beats writing zeros                        \
                    */

/* Forgets who freed the frames of `mask`. */
static void forget_last(struct heap *h, uint64_t base, uint64_t mask)
{
    for (; mask; mask &= mask - 1) {
        struct frame *f = heap_rec(h, mfn(base + (unsigned)__builtin_ctzll(mask)));

        if (frame_word_load(f))
            frame_word_store(f, 0);
    }
}

/* Zeroes the frames of `mask` in the word that holds frame `first`, in runs. */
static void scrub_word(struct heap *h, uint64_t first, uint64_t mask)
{
    uint64_t base = first & ~UINT64_C(63);

    forget_last(h, base, mask);
    while (mask) {
        unsigned lo = (unsigned)__builtin_ctzll(mask), n;
        uint64_t rest = ~(mask >> lo);

        n = rest ? (unsigned)__builtin_ctzll(rest) : 64 - lo;
        memset(arena_ptr(h->arena, mfn(base + lo)), 0, (uint64_t)n << FRAME_SHIFT);
        mask &= lo + n == 64 ? 0 : ~UINT64_C(0) << (lo + n);
    }
}

void heap_scrub_small(struct heap *h, uint64_t first, const struct ft_dirty *d)
{
    uint64_t left = d->n;

    for (unsigned i = 0; left; i++) {
        left -= mm_popcount(d->mask[i]);
        scrub_word(h, first + 64u * i, d->mask[i]);
    }
}

/* One 2 MiB group of a claimed block. */
static uint64_t scrub_group(struct heap *h, uint64_t first, bool punched)
{
    _Atomic uint32_t *g = &h->ft.group[first >> GROUP_ORDER];
    uint32_t n = atomic_load_explicit(g, memory_order_relaxed) >> 16;

    if (!n)
        return 0;
    for (unsigned i = 0; i < GROUP_WORDS; i++) {
        _Atomic uint64_t *w = &h->ft.dirty[(first >> 6) + i];
        uint64_t mask = atomic_exchange_explicit(w, 0, memory_order_relaxed);

        if (punched)
            forget_last(h, first + 64u * i, mask);
        else
            scrub_word(h, first + 64u * i, mask);
    }
    atomic_fetch_sub_explicit(g, GROUP_DIRTY(n), memory_order_relaxed);
    return n;
}

static uint64_t dirty_in(struct heap *h, uint64_t first, uint64_t groups)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < groups; i++)
        n += atomic_load_explicit(&h->ft.group[(first >> GROUP_ORDER) + i], memory_order_relaxed) >>
             16;
    return n;
}

uint64_t heap_scrub_large(struct heap *h, uint64_t first, unsigned order)
{
    uint64_t groups = ft_frames(order - GROUP_ORDER), n = dirty_in(h, first, groups);
    bool punched = false;

    if (!n)
        return 0;
    if (h->env->punch && n >= PUNCH_MIN_FRAMES)
        punched = h->env->punch(h->env->arg, first << FRAME_SHIFT,
                                ft_frames(order) << FRAME_SHIFT) == MF_OK;
    for (uint64_t i = 0; i < groups; i++)
        scrub_group(h, first + i * GROUP_FRAMES, punched);
    return n;
}

void heap_scrub_wait(struct heap *h, uint64_t first, uint64_t n)
{
    unsigned spins = 0;

    while (heap_scrub_overlaps(h, first, n))
        h->env->relax(h->env->arg, spins++);
}

/* ---- in the background */

/* Says where the scrub works and gives the dirty free frames there. With any slot's lock held. */
static uint64_t window_open(struct heap *h, uint64_t base)
{
    atomic_store(&h->scrub_lo, base);
    atomic_store(&h->scrub_hi, base + 64);
    return atomic_load(&h->ft.dirty[base >> 6]) & ~ft_used_word(&h->ft, base);
}

static uint64_t scrub_at_word(struct heap *h, uint64_t base)
{
    struct heap_slot *s;
    uint64_t mask, n;
    bool shared;

    s = heap_enter(h, 0, &shared);
    mask = window_open(h, base);
    heap_leave(s);
    scrub_word(h, base, mask);
    n = mm_popcount(mask);
    s = heap_enter(h, 0, &shared);
    if (mask) {
        ft_andn(&h->ft.dirty[base >> 6], mask, shared);
        ft_add(&h->ft.group[base >> GROUP_ORDER], 0u - GROUP_DIRTY((uint32_t)n), shared);
        s->dirty -= (int64_t)n;
        s->changes++;
    }
    atomic_store(&h->scrub_hi, 0);
    heap_leave(s);
    return n;
}

static int64_t count_dirty(struct heap *h)
{
    int64_t n = 0;

    heap_lock_all(h);
    for (unsigned i = 0; i < h->slots; i++)
        n += h->slot[i].dirty;
    heap_unlock_all(h);
    return n;
}

/* The next group from `g` on that has dirty frames and is not one whole block; groups if none. */
static uint64_t next_dirty_group(struct heap *h, uint64_t g)
{
    for (; g < h->ft.groups; g++) {
        uint32_t w = atomic_load_explicit(&h->ft.group[g], memory_order_relaxed);

        if (w >= GROUP_DIRTY(1u) && !(w & GROUP_WHOLE))
            break;
    }
    return g;
}

enum mf_status heap_scrub_step(struct heap *h, uint64_t budget)
{
    uint64_t done = 0, at, start;
    bool wrapped = false;

    if (!count_dirty(h))
        return MF_OK;
    if (!mm_lock_try(&h->scrub_lock))
        return MF_AGAIN;
    start = at = atomic_load_explicit(&h->scrub_at, memory_order_relaxed);
    while (done < budget && !(wrapped && at >= start)) {
        uint64_t g = next_dirty_group(h, at >> GROUP_ORDER);

        if (g > at >> GROUP_ORDER)
            at = g << GROUP_ORDER;
        if (at >= h->ft.groups << GROUP_ORDER) {
            if (wrapped)
                break;
            wrapped = true;
            at = 0;
            continue;
        }
        if (atomic_load_explicit(&h->ft.dirty[at >> 6], memory_order_relaxed))
            done += scrub_at_word(h, at);
        at = (at & ~UINT64_C(63)) + 64;
    }
    atomic_store_explicit(&h->scrub_at, at, memory_order_relaxed);
    mm_lock_drop(&h->scrub_lock);
    return count_dirty(h) > 0 && done >= budget ? MF_AGAIN : MF_OK;
}
