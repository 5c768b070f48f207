/*
 * Changes to leaves that stay mapped: split and merge, access, harvest of written frames.
 */
#include "hv/mm/stage2_impl.h"

#define LEAF_FLAGS                                                                                 \
    (MF_PTE_PRESENT | MF_PTE_WRITE | MF_PTE_USER | MF_PTE_ACCESSED | MF_PTE_DIRTY | MF_PTE_NX)

/* ---- split, merge */

static void set_ram(struct stage2 *s2, mfn_t m, uint64_t g)
{
    struct frame r = {.u.word = 0};

    r.u.ram.gfn = g & ((UINT64_C(1) << 40) - 1);
    r.u.ram.maps = 1;
    frame_word_store(heap_rec(s2->heap, m), r.u.word);
}

static unsigned maps_of(const struct stage2 *s2, mfn_t m)
{
    struct frame r = {.u.word = frame_word_load(heap_rec(s2->heap, m))};

    return r.u.ram.maps;
}

/* Fills the new table with what the leaf at *w maps. */
static void fill_table(struct stage2 *s2, const struct s2_walk *w, unsigned root, uint64_t first,
                       mfn_t tab)
{
    union s2_tab_word word;
    uint64_t flags = w->pte & LEAF_FLAGS, span = s2_span(w->level - 1);
    s2_pte *p = s2_table(s2, tab);

    if (w->level > 2)
        flags |= MF_PTE_LEAF;
    s2_set_table(s2, tab, root, w->level - 1, first);
    for (unsigned i = 0; i < MF_PT_ENTRIES; i++) {
        mfn_t m = mfn(s2_target(w->pte).v + i * span);

        set_ram(s2, m, first + i * span);
        atomic_store_explicit(&p[i], m.v << FRAME_SHIFT | flags, memory_order_relaxed);
    }
    word.v = frame_word_load(heap_rec(s2->heap, tab));
    word.t.count = MF_PT_ENTRIES;
    frame_word_store(heap_rec(s2->heap, tab), word.v);
    if (s2->track != S2_TRACK_OFF)
        for (unsigned i = 0; i < HEAP_TRACK_WORDS; i++)
            __atomic_store_n(heap_track(s2->heap, tab) + i, ~UINT64_C(0), __ATOMIC_RELAXED);
}

static enum mf_status split_locked(struct stage2 *s2, unsigned root, uint64_t g, mfn_t tab)
{
    enum mf_status st;
    struct s2_walk w;

    s2_walk(s2, root, g, 1, &w);
    if (!w.pte)
        return MF_E_NOT_FOUND;
    if (w.level == 1)
        return MF_E_RANGE;
    if (maps_of(s2, s2_target(w.pte)) != 1)
        return MF_E_BUSY;
    st = heap_split(s2->heap, s2_hint(s2), s2_target(w.pte), 9 * (w.level - 1), 9 * (w.level - 2),
                    s2->owner);
    if (st != MF_OK)
        return st;
    fill_table(s2, &w, root, g & ~(s2_span(w.level) - 1), tab);
    s2->leaves[w.level - 1]--;
    s2->leaves[w.level - 2] += MF_PT_ENTRIES;
    s2->frames_table++;
    atomic_store_explicit(&w.tab[w.index],
                          tab.v << FRAME_SHIFT | MF_PTE_PRESENT | MF_PTE_WRITE | MF_PTE_USER,
                          memory_order_release);
    return MF_OK;
}

enum mf_status stage2_split(struct stage2 *s2, unsigned root, gfn_t g)
{
    enum mf_status st;
    mfn_t tab;

    if (root >= s2->roots || g.v >= S2_GFN_END)
        return MF_E_NOT_FOUND;
    st = s2_alloc_table(s2, &tab);
    if (st != MF_OK)
        return st;
    s2_lock(s2);
    st = split_locked(s2, root, g.v, tab);
    s2_unlock(s2);
    if (st != MF_OK)
        s2_free_table(s2, tab);
    return st;
}

/* The table below *w is full of leaves that make one block; *flags: their common ones. */
static bool is_mergeable(const struct stage2 *s2, mfn_t tab, unsigned level, uint64_t *flags)
{
    const uint64_t marks = MF_PTE_ACCESSED | MF_PTE_DIRTY;
    s2_pte *p = s2_table(s2, tab);
    uint64_t first = atomic_load(&p[0]), seen = 0;

    if (!first || s2_target(first).v & (s2_span(level + 1) - 1))
        return false;
    for (unsigned i = 0; i < MF_PT_ENTRIES; i++) {
        uint64_t pte = atomic_load(&p[i]);

        if (!pte || !s2_is_leaf(pte, level) ||
            (pte & ~marks) != (first & ~marks) + ((i * s2_span(level)) << FRAME_SHIFT) ||
            maps_of(s2, s2_target(pte)) != 1)
            return false;
        seen |= pte & marks;
    }
    *flags = (first & LEAF_FLAGS) | seen;
    return true;
}

/* Takes the table out; it is empty when it comes to its end, as every table that is freed. */
static void drop_table(struct stage2 *s2, mfn_t tab)
{
    s2_pte *p = s2_table(s2, tab);

    for (unsigned i = 0; i < MF_PT_ENTRIES; i++)
        atomic_store_explicit(&p[i], 0, memory_order_relaxed);
    s2->frames_table--;
    s2_retire(s2, tab, 1);
    s2_close_batch(s2);
}

static enum mf_status merge_locked(struct stage2 *s2, unsigned root, uint64_t g)
{
    uint64_t flags, first;
    struct s2_walk w, up;
    mfn_t m;

    if (s2->teardown)
        return MF_E_STATE;
    s2_walk(s2, root, g, 1, &w);
    if (!w.pte)
        return MF_E_NOT_FOUND;
    if (w.level > 2 || !is_mergeable(s2, w.mfn, w.level, &flags))
        return MF_E_STATE;
    s2_walk(s2, root, g, w.level + 1, &up);
    m = s2_target(atomic_load(&w.tab[0]));
    if (heap_join(s2->heap, s2_hint(s2), m, 9 * w.level, 9 * (w.level - 1), s2->owner) != MF_OK)
        return MF_E_STATE;
    first = g & ~(s2_span(up.level) - 1);
    set_ram(s2, m, first);
    s2->leaves[w.level - 1] -= MF_PT_ENTRIES;
    s2->leaves[up.level - 1]++;
    atomic_store_explicit(&up.tab[up.index], m.v << FRAME_SHIFT | flags | MF_PTE_LEAF,
                          memory_order_release);
    drop_table(s2, w.mfn);
    return MF_OK;
}

enum mf_status stage2_merge(struct stage2 *s2, unsigned root, gfn_t g)
{
    enum mf_status st;

    if (root >= s2->roots || g.v >= S2_GFN_END)
        return MF_E_NOT_FOUND;
    s2_lock(s2);
    st = merge_locked(s2, root, g.v);
    s2_unlock(s2);
    return st;
}

/* ---- access and written frames */

/* The first leaf at or behind g that begins before `end`; *g is then where the walk stands. */
static bool next_leaf(const struct stage2 *s2, unsigned root, uint64_t *g, uint64_t end,
                      struct s2_walk *w)
{
    while (*g < end) {
        s2_walk(s2, root, *g, 1, w);
        if (w->pte)
            return true;
        *g = (*g | (s2_span(w->level) - 1)) + 1;
    }
    return false;
}

static bool range_ok(const struct stage2 *s2, unsigned root, gfn_t first, uint64_t n)
{
    return root < s2->roots && n && n <= S2_PART_MAX && first.v < S2_GFN_END &&
           n <= S2_GFN_END - first.v;
}

static bool cuts(const struct stage2 *s2, unsigned root, uint64_t first, uint64_t end)
{
    struct s2_walk w;

    s2_walk(s2, root, first, 1, &w);
    if (w.pte && first & (s2_span(w.level) - 1))
        return true;
    s2_walk(s2, root, end - 1, 1, &w);
    return w.pte && end & (s2_span(w.level) - 1);
}

enum mf_status stage2_protect(struct stage2 *s2, unsigned root, gfn_t first, uint64_t n,
                              unsigned access, uint64_t *epoch)
{
    uint64_t end = first.v + n, g = first.v;
    enum mf_status st = MF_OK;
    struct s2_walk w;

    if (!range_ok(s2, root, first, n) || !(access & S2_READ) ||
        access & ~(S2_READ | S2_WRITE | S2_EXEC))
        return MF_E_RANGE;
    s2_lock(s2);
    if (cuts(s2, root, first.v, end))
        st = MF_E_ALIGN;
    while (st == MF_OK && next_leaf(s2, root, &g, end, &w)) {
        if (access & S2_WRITE)
            atomic_fetch_or(&w.tab[w.index], MF_PTE_WRITE);
        else
            atomic_fetch_and(&w.tab[w.index], ~MF_PTE_WRITE);
        if (access & S2_EXEC)
            atomic_fetch_and(&w.tab[w.index], ~MF_PTE_NX);
        else
            atomic_fetch_or(&w.tab[w.index], MF_PTE_NX);
        g = (g | (s2_span(w.level) - 1)) + 1;
    }
    *epoch = st == MF_OK ? atomic_fetch_add(&s2->epoch, 1) + 1 : 0;
    s2_unlock(s2);
    return st;
}

enum mf_status stage2_dirty_fetch(struct stage2 *s2, unsigned root, gfn_t first, uint64_t n,
                                  uint64_t *bits, uint64_t *epoch)
{
    uint64_t end = first.v + n, g = first.v;
    struct s2_walk w;

    if (!range_ok(s2, root, first, n))
        return MF_E_RANGE;
    for (uint64_t i = 0; i < (n + 63) / 64; i++)
        bits[i] = 0;
    s2_lock(s2);
    while (next_leaf(s2, root, &g, end, &w)) {
        uint64_t next = (g | (s2_span(w.level) - 1)) + 1;

        next = next < end ? next : end;
        if (w.pte & MF_PTE_DIRTY) {
            atomic_fetch_and(&w.tab[w.index], ~MF_PTE_DIRTY);
            for (uint64_t i = g - first.v; i < next - first.v; i++)
                bits[i / 64] |= UINT64_C(1) << i % 64;
        }
        g = next;
    }
    *epoch = atomic_fetch_add(&s2->epoch, 1) + 1;
    s2_unlock(s2);
    return MF_OK;
}

bool stage2_flushed(struct stage2 *s2, uint64_t epoch)
{
    bool passed;

    s2_lock(s2);
    passed = s2_viewers_passed(s2, epoch);
    s2_unlock(s2);
    return passed;
}
