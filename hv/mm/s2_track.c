/*
 * Used-entry bitmaps, one cache line for each table, in an array of the heap. They are kept from
 * the moment tracking is switched on; the tables that were there before are gone through in bounded
 * steps, each one under the lock, so a bitmap is never half right.
 *
 * Many tables of a sparse tree have one entry. Where that is, the table's record says (`sum`), in a
 * line that is touched anyway; the bitmap of a table begins to be kept when it gets its second.
 */
#include "hv/mm/stage2_impl.h"

#define TABLE_UNITS 64u /* what going through one table costs of a budget */

static union s2_tab_word tab_word(const struct stage2 *s2, mfn_t tab)
{
    return (union s2_tab_word){.v = frame_word_load(heap_rec(s2->heap, tab))};
}

static void put_bit(uint64_t *map, unsigned index, bool used)
{
    uint64_t *word = map + index / 64, bit = UINT64_C(1) << index % 64;
    uint64_t old = __atomic_load_n(word, __ATOMIC_RELAXED);

    __atomic_store_n(word, used ? old | bit : old & ~bit, __ATOMIC_RELAXED);
}

static void clear_bits(uint64_t *map)
{
    for (unsigned i = 0; i < HEAP_TRACK_WORDS; i++)
        __atomic_store_n(map + i, UINT64_C(0), __ATOMIC_RELAXED);
}

void s2_track_entry(struct stage2 *s2, mfn_t tab, unsigned index, bool used, union s2_tab_word *w)
{
    uint64_t *map = heap_track(s2->heap, tab);

    if (!w->t.kept) {
        if (!used)
            return; /* down to two: what is not kept stays so */
        /* The second entry: the sum without it is the first. */
        clear_bits(map);
        put_bit(map, w->t.sum ^ index, true);
    }
    put_bit(map, index, used);
    w->t.kept = w->t.count != 0;
}

static void rebuild(struct stage2 *s2, mfn_t tab)
{
    s2_pte *p = s2_table(s2, tab);
    uint64_t *word = heap_track(s2->heap, tab);

    for (unsigned i = 0; i < HEAP_TRACK_WORDS; i++) {
        uint64_t bits = 0;

        for (unsigned b = 0; b < 64; b++)
            if (atomic_load_explicit(&p[64 * i + b], memory_order_relaxed))
                bits |= UINT64_C(1) << b;
        __atomic_store_n(&word[i], bits, __ATOMIC_RELAXED);
    }
}

const uint64_t *s2_keep_bitmap(struct stage2 *s2, mfn_t tab)
{
    struct frame *f = heap_rec(s2->heap, tab);
    union s2_tab_word w = {.v = frame_word_load(f)};
    uint64_t *map = heap_track(s2->heap, tab);

    if (w.t.kept)
        return map;
    if (w.t.count > 1) {
        rebuild(s2, tab);
    } else {
        clear_bits(map);
        if (w.t.count)
            put_bit(map, w.t.sum, true);
    }
    w.t.kept = 1;
    frame_word_store(f, w.v);
    return map;
}

bool s2_next_used(const struct stage2 *s2, mfn_t tab, unsigned *i)
{
    union s2_tab_word w = tab_word(s2, tab);
    const uint64_t *map = heap_track(s2->heap, tab);
    s2_pte *p = s2_table(s2, tab);
    unsigned at = *i;

    if (w.t.count <= 1) {
        *i = w.t.count && w.t.sum >= at ? w.t.sum : MF_PT_ENTRIES;
        return *i < MF_PT_ENTRIES;
    }
    while (at < MF_PT_ENTRIES) {
        uint64_t bits = w.t.kept ? __atomic_load_n(map + at / 64, __ATOMIC_RELAXED) >> at % 64
                                 : atomic_load_explicit(&p[at], memory_order_relaxed) != 0;

        if (bits) {
            *i = at + (unsigned)__builtin_ctzll(bits);
            return true;
        }
        at = w.t.kept ? (at / 64 + 1) * 64 : at + 1;
    }
    *i = MF_PT_ENTRIES;
    return false;
}

/*
 * One move of the cursor: the tables that begin at its gfn are rebuilt, then it steps to the next
 * entry of the lowest table there. Returns the cost.
 */
static uint64_t track_one(struct stage2 *s2)
{
    uint64_t g = s2->track_gfn, cost = 1;
    struct s2_walk w;

    for (unsigned stop = S2_LEVELS; stop; stop--) {
        s2_walk(s2, s2->track_root, g, stop, &w);
        if (w.level != stop)
            break;
        if (!(g & (s2_span(stop + 1) - 1))) {
            union s2_tab_word word = tab_word(s2, w.mfn);

            if (word.t.count > 1 && !word.t.kept) {
                s2_keep_bitmap(s2, w.mfn);
                cost += TABLE_UNITS;
            }
            cost++;
        }
    }
    /* At level 1 the whole table is done; above, the entry is absent or a leaf. */
    s2->track_gfn = w.level == 1 ? (g | 511) + 1 : (g | (s2_span(w.level) - 1)) + 1;
    if (s2->track_gfn >= S2_GFN_END) {
        s2->track_gfn = 0;
        s2->track_root++;
    }
    return cost;
}

enum mf_status stage2_track_step(struct stage2 *s2, uint64_t budget)
{
    enum mf_status st;
    uint64_t cost = 0;

    s2_lock(s2);
    if (s2->track == S2_TRACK_OFF) {
        s2->track = S2_TRACK_BUILDING;
        s2->track_root = 0;
        s2->track_gfn = 0;
    }
    while (s2->track == S2_TRACK_BUILDING && cost < budget) {
        cost += track_one(s2);
        if (s2->track_root == s2->roots)
            s2->track = S2_TRACK_ON;
    }
    st = s2->track == S2_TRACK_ON ? MF_OK : MF_AGAIN;
    s2_unlock(s2);
    return st;
}

void stage2_untrack(struct stage2 *s2)
{
    s2_lock(s2);
    if (!s2->teardown)
        s2->track = S2_TRACK_OFF;
    s2_unlock(s2);
}
