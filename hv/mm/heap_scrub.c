/*
 * Scrubbing. A frame that held one owner's data reads as zero before another owner gets it: at
 * allocation, outside of any lock, or before that in the background or by who freed it.
 *
 * The background scrub writes frames that are free, which anybody may allocate meanwhile. It says
 * in scrub_lo/scrub_hi where it is at work, at most one word of the bitmaps (64 frames), and then
 * looks which frames there are free; an allocation claims its frames and then looks where the scrub
 * is. Either the scrub sees the claim, or the allocation sees the scrub and waits for it.
 */
#include <string.h>

#include "hv/mm/heap_impl.h"

/*
 * Giving memory back costs as much as writing zeros from about 1 GiB on and more below, and who
 * uses it next pays for fresh memory: `hvbench scrub` measures it. So only blocks of that size go
 * to the host, in steps.
 */
#define PUNCH_MIN_FRAMES (UINT64_C(1) << ORDER_1G)
#define PUNCH_STEP       UINT64_C(16384) /* frames at once */

static const char *const policies[HEAP_SCRUB_KINDS] = {"background", "free", "alloc"};

enum mf_status heap_set_scrub(struct heap *h, enum heap_scrub policy)
{
    if ((unsigned)policy >= HEAP_SCRUB_KINDS)
        return MF_E_RANGE;
    atomic_store(&h->scrub, policy);
    return MF_OK;
}

const char *heap_scrub_name(enum heap_scrub policy)
{
    return (unsigned)policy < HEAP_SCRUB_KINDS ? policies[policy] : NULL;
}

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
        atomic_fetch_add_explicit(&h->scrubbed, n, memory_order_relaxed);
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

/* ---- blocks that the caller holds */

static void count_zeroed(struct heap *h, uint64_t n, bool punched)
{
    atomic_fetch_add_explicit(punched ? &h->punched : &h->scrubbed, n, memory_order_relaxed);
}

/* Gives a range back to the host, which makes it read as zero; false when that is not to be had. */
static bool punch(struct heap *h, uint64_t first, uint64_t n)
{
    if (!h->env->punch || h->env->punch(h->env->arg, first << FRAME_SHIFT, n << FRAME_SHIFT))
        return false;
    count_zeroed(h, n, true);
    return true;
}

void heap_scrub_frames(struct heap *h, uint64_t first, uint64_t n)
{
    memset(arena_ptr(h->arena, mfn(first)), 0, n << FRAME_SHIFT);
    count_zeroed(h, n, false);
}

uint64_t heap_dirty_large(const struct heap *h, uint64_t first, unsigned order)
{
    uint64_t n = 0;

    for (uint64_t m = first; m < first + ft_frames(order); m += GROUP_FRAMES) {
        uint32_t g = ft_group(&h->ft, m);

        if (g & GROUP_ALL_DIRTY)
            n += GROUP_FRAMES;
        else if (g & GROUP_DIRTY)
            for (unsigned i = 0; i < GROUP_FRAMES; i += 8)
                n += mm_popcount(ft_marks_load(&h->ft, m + i) & MARKS(MARK_DIRTY));
    }
    return n;
}

/* One 2 MiB group. `zero`: it reads as zero already, or may stay as it is. */
static void clean_group(struct heap *h, uint64_t first, bool zero)
{
    uint32_t g = ft_group(&h->ft, first);

    if (g & GROUP_ALL_DIRTY && !zero)
        heap_scrub_frames(h, first, GROUP_FRAMES);
    for (unsigned i = 0; g & GROUP_TOUCHED && i < GROUP_FRAMES; i += 64) {
        uint64_t mask = 0;

        for (unsigned k = 0; k < 64; k += 8) {
            uint64_t was = __atomic_fetch_and(ft_marks(&h->ft, first + i + k), ~MARKS(MARK_DIRTY),
                                              __ATOMIC_ACQ_REL);

            mask |= (uint64_t)ft_pick(was, MARK_DIRTY) << k;
        }
        if (zero)
            forget_last(h, first + i, mask);
        else if (mask)
            scrub_word(h, first + i, mask);
    }
    frame_word_store(ft_rec(&h->ft, first), 0);
    ft_group_clear(&h->ft, first, GROUP_ALL_DIRTY | GROUP_DIRTY | GROUP_TOUCHED);
}

/* The data in the group is `same`'s own and nobody else's. */
static bool is_own(const struct heap *h, uint64_t first, uint32_t same, uint64_t last)
{
    return same != OWNER_NONE && last == same && ft_group(&h->ft, first) & GROUP_ALL_DIRTY;
}

/* A 1 GiB block goes to the host by PUNCH_STEP, others are written by group: no step takes long. */
void heap_scrub_large(struct heap *h, uint64_t first, unsigned order, uint32_t same,
                      uint64_t head_last)
{
    uint64_t end = first + ft_frames(order);
    bool give =
        heap_dirty_large(h, first, order) >= PUNCH_MIN_FRAMES && !is_own(h, first, same, head_last);

    for (uint64_t m = first; m < end; m += PUNCH_STEP) {
        uint64_t n = end - m < PUNCH_STEP ? end - m : PUNCH_STEP;
        bool punched = give && punch(h, m, n);

        for (uint64_t i = m; i < m + n; i += GROUP_FRAMES) {
            uint64_t last = i == first ? head_last : frame_word_load(ft_rec(&h->ft, i));

            clean_group(h, i, punched || is_own(h, i, same, last));
        }
    }
}

void heap_scrub_wait(struct heap *h, uint64_t first, uint64_t n)
{
    unsigned spins = 0;

    while (heap_scrub_overlaps(h, first, n))
        h->env->relax(h->env->arg, spins++);
}

/* ---- in the background */

/* All slots locked. Says where the scrub works and gives the dirty free frames there. */
static uint64_t window_open(struct heap *h, uint64_t base)
{
    atomic_store(&h->scrub_lo, base);
    atomic_store(&h->scrub_hi, base + 64);
    if (ft_group(&h->ft, base) & GROUP_WHOLE)
        return 0;
    ft_expand(&h->ft, base, false);
    return ft_dirty_word(&h->ft, base) & ~ft_used_word(&h->ft, base);
}

/*
 * All slots locked. Takes the marks off those frames that still are free; an allocation that came
 * meanwhile has taken its frames' marks itself and waits for the window to close.
 */
static uint64_t window_close(struct heap *h, uint64_t base, uint64_t mask)
{
    uint64_t n = 0;

    if (!(ft_group(&h->ft, base) & GROUP_WHOLE)) {
        for (uint64_t left = mask; left; left &= left - 1) {
            uint64_t m = base + (unsigned)__builtin_ctzll(left);

            if (ft_mark(&h->ft, m) != MARK_DIRTY)
                continue;
            ft_mark_store(&h->ft, m, 0);
            n++;
        }
        if (!ft_group_any(&h->ft, base, MARK_DIRTY))
            ft_group_clear(&h->ft, base, GROUP_DIRTY);
    }
    atomic_store(&h->scrub_hi, 0);
    h->slot[0].dirty -= (int64_t)n;
    h->slot[0].changes += n;
    return n;
}

static uint64_t scrub_at_word(struct heap *h, uint64_t base)
{
    uint64_t mask, n;

    heap_lock_all(h);
    mask = window_open(h, base);
    heap_unlock_all(h);
    if (mask)
        scrub_word(h, base, mask);
    heap_lock_all(h);
    n = window_close(h, base, mask);
    heap_unlock_all(h);
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
        uint32_t w = ft_group(&h->ft, g << GROUP_ORDER);

        if (w & (GROUP_DIRTY | GROUP_ALL_DIRTY) && !(w & GROUP_WHOLE))
            break;
    }
    return g;
}

enum mf_status heap_scrub_step(struct heap *h, uint64_t budget)
{
    uint64_t done = 0, at, start;
    bool wrapped = false;

    if (atomic_load_explicit(&h->scrub, memory_order_relaxed) == HEAP_SCRUB_ALLOC ||
        !count_dirty(h))
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
        /* The last word of a group also for its hint's sake, which is taken off where it is wrong.
         */
        if (ft_dirty_word(&h->ft, at) || (at & (GROUP_FRAMES - 1)) == GROUP_FRAMES - 64)
            done += scrub_at_word(h, at);
        at = (at & ~UINT64_C(63)) + 64;
    }
    atomic_store_explicit(&h->scrub_at, at, memory_order_relaxed);
    mm_lock_drop(&h->scrub_lock);
    return count_dirty(h) > 0 && done >= budget ? MF_AGAIN : MF_OK;
}
