/*
 * Changes to leaves that stay mapped: split and merge, access, harvest of written frames.
 */
#include "hv/mm/stage2_impl.h"

#define LEAF_FLAGS                                                                                 \
    (MF_PTE_PRESENT | MF_PTE_WRITE | MF_PTE_USER | MF_PTE_ACCESSED | MF_PTE_DIRTY | MF_PTE_NX)

/* ---- split, merge */

static void set_ram(struct stage2 *s2, mfn_t m, uint64_t g, unsigned maps)
{
    struct frame r = {.u.word = 0};

    r.u.ram.gfn = g & ((UINT64_C(1) << 40) - 1);
    r.u.ram.maps = maps & 0xffffffu;
    frame_word_store(heap_rec(s2->heap, m), r.u.word);
}

static unsigned maps_of(const struct stage2 *s2, mfn_t m)
{
    struct frame r = {.u.word = frame_word_load(heap_rec(s2->heap, m))};

    return r.u.ram.maps;
}

/* The records of the parts of a block that is mapped by `w` and `maps` - 1 leaves like it. */
static void set_parts(struct stage2 *s2, const struct s2_walk *w, uint64_t first, unsigned maps)
{
    uint64_t span = s2_span(w->level - 1);

    for (unsigned i = 0; i < MF_PT_ENTRIES; i++)
        set_ram(s2, mfn(s2_target(w->pte).v + i * span), first + i * span, maps);
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

        atomic_store_explicit(&p[i], m.v << FRAME_SHIFT | flags, memory_order_relaxed);
    }
    word.v = frame_word_load(heap_rec(s2->heap, tab));
    word.t.count = MF_PT_ENTRIES;
    word.t.sum = 0; /* of all indexes */
    word.t.kept = s2->track != S2_TRACK_OFF;
    frame_word_store(heap_rec(s2->heap, tab), word.v);
    if (s2->track != S2_TRACK_OFF)
        for (unsigned i = 0; i < HEAP_TRACK_WORDS; i++)
            __atomic_store_n(heap_track(s2->heap, tab) + i, ~UINT64_C(0), __ATOMIC_RELAXED);
}

/*
 * Hangs `tab` in the place of the leaf at *w. What a vCPU wrote meanwhile through the leaf has its
 * dirty mark in the entry that is exchanged: it goes over to the parts.
 */
static void put_table(struct stage2 *s2, struct s2_walk *w, unsigned root, uint64_t first,
                      mfn_t tab)
{
    const uint64_t marks = MF_PTE_ACCESSED | MF_PTE_DIRTY;
    s2_pte *p = s2_table(s2, tab);
    uint64_t old;

    fill_table(s2, w, root, first, tab);
    s2->leaves[w->level - 1]--;
    s2->leaves[w->level - 2] += MF_PT_ENTRIES;
    s2->frames_table++;
    old = atomic_exchange(&w->tab[w->index],
                          tab.v << FRAME_SHIFT | MF_PTE_PRESENT | MF_PTE_WRITE | MF_PTE_USER);
    for (unsigned i = 0; (old & ~w->pte & marks) && i < MF_PT_ENTRIES; i++)
        atomic_fetch_or(&p[i], old & marks);
}

/* In how many roots the leaf at *w stands, at the same guest frame; w[r].pte is 0 in the others. */
static unsigned same_leaf(const struct stage2 *s2, unsigned root, uint64_t g, struct s2_walk *w)
{
    unsigned n = 0;

    s2_walk(s2, root, g, 1, &w[root]);
    for (unsigned r = 0; r < s2->roots; r++) {
        s2_walk(s2, r, g, 1, &w[r]);
        if (w[r].level != w[root].level || !w[root].pte || !w[r].pte ||
            s2_target(w[r].pte).v != s2_target(w[root].pte).v)
            w[r].pte = 0;
        n += w[r].pte != 0;
    }
    return n;
}

/* A table for each root that shows the leaf; *used: how many it took. */
static enum mf_status split_locked(struct stage2 *s2, unsigned root, uint64_t g, const mfn_t *tab,
                                   unsigned tabs, unsigned *used)
{
    struct s2_walk w[S2_ROOTS_MAX];
    unsigned n = same_leaf(s2, root, g, w), level = w[root].level;
    uint64_t first = g & ~(s2_span(level) - 1);
    enum mf_status st;

    if (!n)
        return MF_E_NOT_FOUND;
    if (level == 1)
        return MF_E_RANGE;
    if (maps_of(s2, s2_target(w[root].pte)) != n)
        return MF_E_BUSY;
    if (n > tabs)
        return MF_AGAIN;
    st = heap_split(s2->heap, s2_hint(s2), s2_target(w[root].pte), 9 * (level - 1), 9 * (level - 2),
                    s2->owner);
    if (st != MF_OK)
        return st;
    set_parts(s2, &w[root], first, n);
    for (unsigned r = 0; r < s2->roots; r++)
        if (w[r].pte)
            put_table(s2, &w[r], r, first, tab[(*used)++]);
    return MF_OK;
}

/* With `n` tables at hand. MF_AGAIN: it takes more of them. */
static enum mf_status split_with(struct stage2 *s2, unsigned root, uint64_t g, unsigned n)
{
    mfn_t tab[S2_ROOTS_MAX];
    unsigned got = 0, used = 0;
    enum mf_status st = MF_OK;

    while (st == MF_OK && got < n) {
        st = s2_alloc_table(s2, &tab[got]);
        got += st == MF_OK;
    }
    if (st == MF_OK) {
        s2_lock(s2);
        st = split_locked(s2, root, g, tab, got, &used);
        s2_unlock(s2);
    }
    while (got > used)
        s2_free_table(s2, tab[--got]);
    return st;
}

enum mf_status stage2_split(struct stage2 *s2, unsigned root, gfn_t g)
{
    enum mf_status st = MF_AGAIN;

    if (root >= s2->roots || g.v >= S2_GFN_END)
        return MF_E_NOT_FOUND;
    for (unsigned n = 1; st == MF_AGAIN && n <= s2->roots; n++)
        st = split_with(s2, root, g.v, n);
    return st;
}

/* A leaf of `root` that begins before and ends behind the edge in front of guest frame g. */
static bool lies_over(const struct stage2 *s2, unsigned root, uint64_t g)
{
    struct s2_walk w;

    if (!g || g >= S2_GFN_END)
        return false;
    s2_walk(s2, root, g, 1, &w);
    return w.pte && g & (s2_span(w.level) - 1);
}

static bool find_over(struct stage2 *s2, uint64_t first, uint64_t end, unsigned *root, uint64_t *g)
{
    bool found = false;

    s2_lock(s2);
    for (unsigned r = 0; !found && r < s2->roots; r++) {
        *root = r;
        *g = first;
        found = lies_over(s2, r, first);
        if (!found) {
            *g = end;
            found = lies_over(s2, r, end);
        }
    }
    s2_unlock(s2);
    return found;
}

/* Two edges, two sizes, each root: what is more comes from a racing vCPU. */
#define EDGE_SPLITS 32u

enum mf_status stage2_split_edges(struct stage2 *s2, gfn_t first, uint64_t n, unsigned *splits)
{
    unsigned root;
    uint64_t g;

    *splits = 0;
    if (first.v >= S2_GFN_END || n > S2_GFN_END - first.v)
        return MF_E_RANGE;
    for (unsigned i = 0; find_over(s2, first.v, first.v + n, &root, &g); i++) {
        enum mf_status st = i < EDGE_SPLITS ? stage2_split(s2, root, gfn(g)) : MF_AGAIN;

        /* Whoever was faster took the leaf away, which is as good. */
        if (st != MF_OK && st != MF_E_NOT_FOUND && st != MF_E_RANGE)
            return st;
        *splits += st == MF_OK;
    }
    return MF_OK;
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
    set_ram(s2, m, first, 1);
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
    bool any = false;
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
            any = true;
            for (uint64_t i = g - first.v; i < next - first.v; i++)
                bits[i / 64] |= UINT64_C(1) << i % 64;
        }
        g = next;
    }
    /* No mark was cleared: nobody need forget anything but what earlier calls asked for. */
    *epoch = any ? atomic_fetch_add(&s2->epoch, 1) + 1 : atomic_load(&s2->epoch);
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
