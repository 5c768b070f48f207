/*
 * Used-entry bitmaps, one cache line for each table, in an array of the heap. They are kept from
 * the moment tracking is switched on; the tables that were there before are gone through in bounded
 * steps, each one under the lock, so a bitmap is never half right.
 */
#include "hv/mm/stage2_impl.h"

#define TABLE_UNITS 64u /* what going through one table costs of a budget */

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
            rebuild(s2, w.mfn);
            cost += TABLE_UNITS;
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
