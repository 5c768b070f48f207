/*
 * RAM by blocks, for engines that map a guest's memory in few large pieces: backing it before the
 * guest runs, listing it by extents, and making it read as zero at the end. Root 0.
 */
#include "hv/mm/stage2_impl.h"

#define RWX           (S2_READ | S2_WRITE | S2_EXEC)
#define EXTENT_LEAVES 4096u /* a longer run is told in parts: bounded work under the lock */

/* ---- backing */

/* How many frames from g on are RAM of one region; 0: g is in none. */
static uint64_t frames_to_region_end(const struct stage2 *s2, uint64_t g)
{
    for (unsigned i = 0; i < s2->nr_regions; i++) {
        const struct s2_region *r = &s2->regions[i];

        if (g >= r->first.v && g - r->first.v < r->frames)
            return r->frames - (g - r->first.v);
    }
    return 0;
}

/* The first frame of RAM at or behind g; S2_GFN_END: none. */
static uint64_t next_ram(const struct stage2 *s2, uint64_t g)
{
    uint64_t best = S2_GFN_END;

    for (unsigned i = 0; i < s2->nr_regions; i++) {
        const struct s2_region *r = &s2->regions[i];

        if (g < r->first.v + r->frames && r->first.v < best)
            best = r->first.v > g ? r->first.v : g;
    }
    return best;
}

static enum mf_status map_block(struct stage2 *s2, uint64_t g, mfn_t m, unsigned order)
{
    struct s2_map map;
    enum mf_status st = stage2_map_prepare(s2, 0, gfn(g), m, order, RWX, &map);

    return st ? st : stage2_map_commit(&map);
}

/* Backs 2^order frames at g by one leaf. */
static enum mf_status back_leaf(struct stage2 *s2, uint64_t g, unsigned order)
{
    enum mf_status st;
    mfn_t m;

    st = heap_alloc(s2->heap, s2_hint(s2), order, s2->owner, FRAME_T_RAM, HEAP_ZERO, &m);
    if (st)
        return st;
    st = map_block(s2, g, m, order);
    if (st)
        heap_free_clean(s2->heap, s2_hint(s2), m, order, s2->owner);
    return st;
}

/* Backs 2^order frames, less than 2 MiB, by one block mapped frame by frame. */
static enum mf_status back_frames(struct stage2 *s2, uint64_t g, unsigned order)
{
    uint64_t n = UINT64_C(1) << order, i;
    enum mf_status st;
    mfn_t m;

    st = heap_alloc(s2->heap, s2_hint(s2), order, s2->owner, FRAME_T_RAM, HEAP_ZERO, &m);
    if (st)
        return st;
    st = heap_split(s2->heap, s2_hint(s2), m, order, 0, s2->owner);
    if (st) {
        heap_free_clean(s2->heap, s2_hint(s2), m, order, s2->owner);
        return st;
    }
    for (i = 0; i < n && !st; i++)
        st = map_block(s2, g + i, mfn(m.v + i), 0);
    /* What is mapped stays; the frame that failed and those behind it go back. */
    for (i -= st ? 1 : 0; i < n; i++)
        heap_free_clean(s2->heap, s2_hint(s2), mfn(m.v + i), 0, s2->owner);
    return st;
}

/* The largest order that fits at g, up to what `fits` frames allow. */
static unsigned order_at(uint64_t g, uint64_t fits)
{
    unsigned order = ORDER_1G;

    while (g & ((UINT64_C(1) << order) - 1) || UINT64_C(1) << order > fits)
        order--;
    return order >= ORDER_1G ? ORDER_1G : order >= ORDER_2M ? ORDER_2M : order;
}

static unsigned next_smaller(unsigned order)
{
    return order == ORDER_1G ? ORDER_2M : order - 1;
}

/* Backs some frames at g, where nothing is mapped for `fits` frames. *done: how many. */
static enum mf_status back_some(struct stage2 *s2, uint64_t g, uint64_t fits, uint64_t *done)
{
    unsigned order = order_at(g, fits);
    enum mf_status st;

    for (;;) {
        st = order && order < ORDER_2M ? back_frames(s2, g, order) : back_leaf(s2, g, order);
        if (st != MF_E_NO_MEMORY || !order)
            break;
        order = next_smaller(order);
    }
    *done = UINT64_C(1) << order;
    return st;
}

enum mf_status stage2_populate(struct stage2 *s2, gfn_t *at, uint64_t budget)
{
    while (budget--) {
        uint64_t g = next_ram(s2, at->v), span, left, done = 0;
        enum mf_status st = MF_OK;
        struct s2_walk w;

        if (g >= S2_GFN_END)
            return MF_OK;
        s2_lock(s2);
        s2_walk(s2, 0, g, 1, &w);
        s2_unlock(s2);
        left = frames_to_region_end(s2, g);
        span = s2_span(w.level) - (g & (s2_span(w.level) - 1));
        if (w.pte)
            done = span;
        else
            st = back_some(s2, g, span < left ? span : left, &done);
        if (st && st != MF_E_EXISTS)
            return st;
        *at = gfn(g + (st ? 0 : done));
    }
    return MF_AGAIN;
}

/* ---- extents */

/* The first leaf at or behind g; its first frame in *first. Lock held. */
static bool next_leaf(const struct stage2 *s2, uint64_t g, struct s2_walk *w, uint64_t *first)
{
    while (g < S2_GFN_END) {
        s2_walk(s2, 0, g, 1, w);
        *first = g & ~(s2_span(w->level) - 1);
        if (w->pte)
            return true;
        g = *first + s2_span(w->level);
    }
    return false;
}

static unsigned access_of(uint64_t pte)
{
    return S2_READ | (pte & MF_PTE_WRITE ? S2_WRITE : 0) | (pte & MF_PTE_NX ? 0 : S2_EXEC);
}

enum mf_status stage2_extent(struct stage2 *s2, gfn_t from, struct s2_extent *out)
{
    enum mf_status st = MF_E_NOT_FOUND;
    struct s2_walk w;
    uint64_t first;

    s2_lock(s2);
    if (next_leaf(s2, from.v, &w, &first)) {
        uint64_t skip = from.v > first ? from.v - first : 0;

        st = MF_OK;
        *out = (struct s2_extent){.g = gfn(first + skip),
                                  .m = mfn(s2_target(w.pte).v + skip),
                                  .frames = s2_span(w.level) - skip,
                                  .access = access_of(w.pte)};
        for (unsigned i = 0; i < EXTENT_LEAVES; i++) {
            uint64_t end = out->g.v + out->frames;

            if (end >= S2_GFN_END)
                break;
            s2_walk(s2, 0, end, 1, &w);
            if (!w.pte || end & (s2_span(w.level) - 1) || access_of(w.pte) != out->access ||
                s2_target(w.pte).v != out->m.v + out->frames)
                break;
            out->frames += s2_span(w.level);
        }
    }
    s2_unlock(s2);
    return st;
}

/* ---- the end */

/* Notes that the block of each leaf in [g, end) reads as zero and is written by nobody any more. */
static void mark_clean(struct stage2 *s2, uint64_t g, uint64_t end)
{
    struct s2_walk w;
    uint64_t first;

    s2_lock(s2);
    while (g < end && next_leaf(s2, g, &w, &first) && first < end) {
        struct frame *f = heap_rec(s2->heap, s2_target(w.pte));
        union frame_head h = frame_head_load(f);

        g = first + s2_span(w.level);
        /* Only whole leaves: the rest of one that is cut by the range was not zeroed. */
        if (first >= g || g > end || h.f.type != FRAME_T_RAM)
            continue;
        h.f.level = FRAME_CLEAN;
        frame_head_store(f, h);
    }
    s2_unlock(s2);
}

enum mf_status stage2_zero_step(struct stage2 *s2, gfn_t *at)
{
    const struct mm_env *env = heap_env(s2->heap);
    struct s2_extent e;

    if (!env->zero || stage2_extent(s2, *at, &e))
        return MF_OK;
    if (e.frames > S2_ZERO_STEP) {
        /* To the last whole leaf of 2 MiB; a larger leaf is taken whole. */
        struct s2_leaf leaf;

        if (stage2_lookup(s2, 0, e.g, S2_READ, &leaf) == MF_OK && leaf.order <= ORDER_2M)
            e.frames = S2_ZERO_STEP - (e.g.v & ((UINT64_C(1) << ORDER_2M) - 1));
        else
            e.frames = UINT64_C(1) << ORDER_1G;
    }
    *at = gfn(e.g.v + e.frames);
    if (env->zero(env->arg, e.m.v << FRAME_SHIFT, e.frames << FRAME_SHIFT) == MF_OK)
        mark_clean(s2, e.g.v, at->v);
    return MF_AGAIN;
}
