/*
 * Changes of the frame table that are too long to be inlined: blocks above one frame, groups.
 */
#include "hv/mm/frame_table.h"

#define WORD_MARKS 8u /* marks in a word */

/* ---- blocks below 2 MiB */

/*
 * Sets the marks of `bytes` (0xff for each frame meant) in one word; *was is what was there. False
 * when one of them is in use.
 */
static bool claim_word(mark_word *p, uint64_t bytes, bool shared, uint64_t *was)
{
    uint64_t w = __atomic_load_n(p, __ATOMIC_RELAXED), to;

    do {
        if (w & bytes & MARKS(MARK_USED))
            return false;
        to = (w & ~bytes) | (MARKS(MARK_USED) & bytes);
        *was = w & bytes;
        if (!shared) {
            __atomic_store_n(p, to, __ATOMIC_RELAXED);
            return true;
        }
    } while (!__atomic_compare_exchange_n(p, &w, to, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return true;
}

static void note_dirty(struct ft_dirty *d, uint64_t first, uint64_t at, uint64_t marks)
{
    unsigned bits = ft_pick(marks, MARK_DIRTY), i = (unsigned)((at >> 6) - (first >> 6));

    if (!bits)
        return;
    d->mask[i] |= (uint64_t)bits << (at & 56);
    d->n += mm_popcount(bits);
}

/* Gives marks back that a claim has set: what was dirty is so again. */
static void undo_claim(struct frame_table *ft, uint64_t first, unsigned order,
                       const struct ft_dirty *d)
{
    for (uint64_t m = first; m < first + ft_frames(order); m++) {
        bool dirty = d->n && d->mask[(m >> 6) - (first >> 6)] >> (m & 63) & 1;

        ft_mark_store(ft, m, dirty ? MARK_DIRTY : 0);
    }
}

static uint64_t bytes_of(uint64_t first, unsigned order)
{
    return order >= 3 ? ~UINT64_C(0)
                      : ((UINT64_C(1) << (WORD_MARKS << order)) - 1) << WORD_MARKS * (first & 7);
}

/* The words of a block of order < 9. */
static unsigned words_of(unsigned order)
{
    return order > 3 ? 1u << (order - 3) : 1;
}

bool ft_claim_slow(struct frame_table *ft, uint64_t first, unsigned order, bool shared,
                   struct ft_dirty *d)
{
    uint64_t was[GROUP_FRAMES / 2 / WORD_MARKS], bytes = bytes_of(first, order);
    unsigned words = words_of(order);
    mark_word *p = ft_marks(ft, first);

    d->n = 0;
    d->mask[0] = d->mask[1] = d->mask[2] = d->mask[3] = 0;
    for (unsigned i = 0; i < words; i++) {
        if (claim_word(&p[i], bytes, shared, &was[i])) {
            if (was[i])
                note_dirty(d, first, (first & ~UINT64_C(7)) + i * WORD_MARKS, was[i]);
            continue;
        }
        while (i--) /* only blocks of whole words have come so far */
            __atomic_store_n(&p[i], was[i], __ATOMIC_RELEASE);
        return false;
    }
    if ((ft_group(ft, first) & (GROUP_WHOLE | GROUP_TOUCHED | GROUP_ALL_DIRTY | GROUP_EXPANDING)) ==
        GROUP_TOUCHED)
        return true;
    return ft_claim_settle(ft, first, order, d);
}

/* Takes the dirty marks off a claimed block. */
static void take_dirty(struct frame_table *ft, uint64_t first, unsigned order, struct ft_dirty *d)
{
    uint64_t bytes = bytes_of(first, order) & MARKS(MARK_DIRTY);
    mark_word *p = ft_marks(ft, first);

    d->n = 0;
    d->mask[0] = d->mask[1] = d->mask[2] = d->mask[3] = 0;
    for (unsigned i = 0; i < words_of(order); i++) {
        uint64_t was = __atomic_fetch_and(&p[i], ~bytes, __ATOMIC_ACQ_REL) & bytes;

        note_dirty(d, first, (first & ~UINT64_C(7)) + i * WORD_MARKS, was);
    }
}

bool ft_claim_settle(struct frame_table *ft, uint64_t first, unsigned order, struct ft_dirty *d)
{
    uint32_t g = ft_group(ft, first);

    if (!(g & GROUP_TOUCHED))
        g = ft_group_set(ft, first, GROUP_TOUCHED);
    if (g & GROUP_WHOLE) {
        undo_claim(ft, first, order, d);
        return false;
    }
    if (g & (GROUP_ALL_DIRTY | GROUP_EXPANDING)) {
        ft_expand(ft, first, true);
        take_dirty(ft, first, order, d);
    }
    return true;
}

/* Whoever turns ALL_DIRTY into EXPANDING writes the marks; a claim in the group waits for that. */
void ft_expand(struct frame_table *ft, uint64_t m, bool wait)
{
    _Atomic uint32_t *p = &ft->group[m >> GROUP_ORDER];
    mark_word *w = ft_marks(ft, m & ~(uint64_t)(GROUP_FRAMES - 1));
    uint32_t g = atomic_load(p);

    while (g & (GROUP_ALL_DIRTY | GROUP_EXPANDING)) {
        uint32_t to = (g & ~GROUP_ALL_DIRTY) | GROUP_EXPANDING | GROUP_TOUCHED | GROUP_DIRTY;

        if (g & GROUP_WHOLE && !wait)
            return;
        if (g & (GROUP_EXPANDING | GROUP_WHOLE) || !atomic_compare_exchange_weak(p, &g, to)) {
            __builtin_ia32_pause();
            g = atomic_load(p);
            continue;
        }
        for (unsigned i = 0; i < GROUP_FRAMES / WORD_MARKS; i++)
            __atomic_fetch_or(&w[i], MARKS(MARK_DIRTY), __ATOMIC_ACQ_REL);
        atomic_fetch_and(p, ~GROUP_EXPANDING);
        return;
    }
}

void ft_release_slow(struct frame_table *ft, uint64_t first, unsigned order, bool dirty,
                     bool shared)
{
    uint64_t marks = dirty ? MARKS(MARK_DIRTY) : 0;
    mark_word *p = ft_marks(ft, first);

    (void)shared;
    if (order >= GROUP_ORDER) {
        /* The group is the holder's alone, its marks are zero: a plain store. */
        for (uint64_t i = 0; i < ft_frames(order - GROUP_ORDER); i++)
            atomic_store_explicit(&ft->group[(first >> GROUP_ORDER) + i],
                                  dirty ? GROUP_ALL_DIRTY : 0, memory_order_release);
        return;
    }
    if (dirty && !(ft_group(ft, first) & GROUP_DIRTY))
        ft_group_set(ft, first, GROUP_DIRTY);
    if (order < 3) {
        for (uint64_t i = 0; i < ft_frames(order); i++)
            ft_mark_store(ft, first + i, dirty ? MARK_DIRTY : 0);
        return;
    }
    for (unsigned i = 0; i < words_of(order); i++)
        __atomic_store_n(&p[i], marks, __ATOMIC_RELEASE);
}

/* ---- groups */

static uint64_t group_marks(const struct frame_table *ft, uint64_t m)
{
    const mark_word *w = ft_marks(ft, m & ~(uint64_t)(GROUP_FRAMES - 1));
    uint64_t all = 0;

    for (unsigned i = 0; i < GROUP_FRAMES / WORD_MARKS; i++)
        all |= __atomic_load_n(&w[i], __ATOMIC_ACQUIRE);
    return all;
}

bool ft_group_any(const struct frame_table *ft, uint64_t m, unsigned marks)
{
    return group_marks(ft, m) & MARKS((uint64_t)marks);
}

/* *was: its flags before; with `take` ALL_DIRTY is taken off when there is no other. */
static bool claim_group(struct frame_table *ft, uint64_t m, bool shared, bool take, uint32_t *was)
{
    _Atomic uint32_t *p = &ft->group[m >> GROUP_ORDER];
    uint32_t g = atomic_load_explicit(p, memory_order_relaxed), to;
    uint64_t marks;

    do {
        while (g & GROUP_EXPANDING) { /* the background scrub; it takes nothing */
            __builtin_ia32_pause();
            g = atomic_load(p);
        }
        if (g & GROUP_WHOLE)
            return false;
        to = take && g == GROUP_ALL_DIRTY ? GROUP_WHOLE : g | GROUP_WHOLE;
        if (!shared) {
            atomic_store_explicit(p, to, memory_order_relaxed);
            break;
        }
    } while (!atomic_compare_exchange_weak(p, &g, to));
    *was = g;
    if (!(g & GROUP_TOUCHED))
        return true;
    marks = group_marks(ft, m);
    if (marks & MARKS(MARK_USED)) {
        atomic_fetch_and(p, ~GROUP_WHOLE);
        return false;
    }
    if (!marks)
        atomic_fetch_and(p, ~(GROUP_TOUCHED | GROUP_DIRTY));
    return true;
}

bool ft_claim_large(struct frame_table *ft, uint64_t first, unsigned order, bool shared,
                    bool *all_dirty)
{
    bool one = order == GROUP_ORDER;
    uint32_t was = 0;

    for (uint64_t i = 0; i < ft_frames(order); i += GROUP_FRAMES) {
        if (claim_group(ft, first + i, shared, one, &was))
            continue;
        while (i) {
            i -= GROUP_FRAMES;
            ft_group_clear(ft, first + i, GROUP_WHOLE);
        }
        return false;
    }
    *all_dirty = one && was == GROUP_ALL_DIRTY;
    return true;
}

/* ---- looking */

bool ft_group_free(const struct frame_table *ft, uint64_t m)
{
    uint32_t g = ft_group(ft, m);

    return !(g & GROUP_WHOLE) && (!(g & GROUP_TOUCHED) || !ft_group_any(ft, m, MARK_USED));
}

static uint64_t gather(const struct frame_table *ft, uint64_t base, unsigned mark)
{
    uint64_t bits = 0;

    for (unsigned i = 0; i < 64; i += WORD_MARKS)
        bits |= (uint64_t)ft_pick(ft_marks_load(ft, base + i), mark) << i;
    return bits;
}

uint64_t ft_used_word(const struct frame_table *ft, uint64_t base)
{
    uint32_t g = ft_group(ft, base);

    base &= ~UINT64_C(63);
    if (g & GROUP_WHOLE)
        return ~UINT64_C(0);
    return g & GROUP_TOUCHED ? gather(ft, base, MARK_USED) : 0;
}

uint64_t ft_dirty_word(const struct frame_table *ft, uint64_t base)
{
    uint32_t g = ft_group(ft, base);

    base &= ~UINT64_C(63);
    if (g & (GROUP_ALL_DIRTY | GROUP_EXPANDING))
        return ~ft_used_word(ft, base);
    return g & GROUP_DIRTY ? gather(ft, base, MARK_DIRTY) : 0;
}

bool ft_any_used(const struct frame_table *ft, uint64_t first, uint64_t n)
{
    uint64_t end = first + n;

    while (first < end) {
        uint64_t left = end - first, in_word = 64 - (first & 63);
        uint64_t take = left < in_word ? left : in_word, mask;

        if (!(first & (GROUP_FRAMES - 1)) && left >= GROUP_FRAMES) {
            if (!ft_group_free(ft, first))
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
