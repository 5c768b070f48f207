/*
 * Inside of the second stage. For hv/mm and its unit tests only.
 */
#ifndef MAYFLY_MM_STAGE2_IMPL_H
#define MAYFLY_MM_STAGE2_IMPL_H

#include "hv/mm/heap_impl.h"
#include "hv/mm/stage2.h"

#define S2_BATCHES    4u
#define S2_RETIRE_MAX 65536u /* blocks that may wait for a flush; a zap beyond is told to wait */

typedef _Atomic uint64_t s2_pte;

enum s2_track { S2_TRACK_OFF, S2_TRACK_BUILDING, S2_TRACK_ON };

/* Retired blocks, linked through their records. They may go when `target` is acknowledged. */
struct s2_batch {
    uint64_t head, tail; /* mfn + 1, 0: none */
    uint64_t entries, frames, target;
};

/* Frames [at, end) of a chunk that were not drawn yet. */
struct s2_pool {
    uint64_t at, end;
    uint64_t drawn; /* frames of all chunks, ever */
};

struct stage2 {
    struct heap *heap;
    mfn_t self; /* this structure lies in a frame of the arena */
    uint32_t owner;
    unsigned roots, nr_regions, fault_order;
    struct s2_region regions[S2_REGIONS_MAX];
    mfn_t root[S2_ROOTS_MAX];
    _Atomic uint64_t epoch;        /* counts flush requests */
    _Atomic uint64_t retired_back; /* retired frames that are in the heap again */

    struct mm_lock lock;
    /* Under lock. */
    bool closed;
    bool teardown; /* one is under way */
    bool td_added; /* ... and an entry was added inside its scope */
    unsigned td_root, td_root_end;
    uint64_t td_first, td_last;
    uint64_t frames_ram, frames_table, faults, retired_in;
    uint64_t leaves[3];
    uint64_t harvested_accessed, harvested_dirty; /* leaves that had the bit when cleared */
    struct s2_batch open;                         /* being filled, not yet flushed for */
    struct s2_batch batch[S2_BATCHES];            /* a ring, oldest at batch_first */
    unsigned batch_first, batch_count;
    enum s2_track track;
    unsigned track_root;
    uint64_t track_gfn;
    bool dropping;    /* the roots are unlinked, the extents go one by one */
    uint64_t drop_at; /* in the extent on top of the list: frames that are done */
    /* Under pool_lock; `arena` changes under both. */
    bool arena; /* tables and RAM come from chunks, extents are listed */
    bool loose; /* something is mapped that is in no extent */
    struct s2_pool pool_ram, pool_tables;
    uint64_t dir; /* mfn + 1 of the top frame of the list of extents */
    unsigned dir_used;
    uint64_t dir_frames;
    struct mm_lock pool_lock; /* after lock, before slot locks */
    uint64_t ram_total;       /* frames of all regions */

    /* Under lock again. */
    unsigned nr_viewers;
    struct s2_viewer *viewer[S2_VIEWERS_MAX];
};

_Static_assert(sizeof(struct stage2) <= FRAME_SIZE, "stage2 fits in one frame");

/* A table's record as one value. */
union s2_tab_word {
    struct {
        uint64_t count : 16, sum : 9, kept : 1, root : 6, base : 32;
    } t;
    uint64_t v;
};

/* Where a walk stands: entry `index` of the table `mfn` of `level`, with its value. */
struct s2_walk {
    unsigned level, index;
    mfn_t mfn;
    s2_pte *tab;
    uint64_t pte;
};

static inline unsigned s2_index(uint64_t g, unsigned level)
{
    return (unsigned)(g >> (9 * (level - 1))) & (MF_PT_ENTRIES - 1);
}

static inline uint64_t s2_span(unsigned level)
{
    return UINT64_C(1) << (9 * (level - 1));
}

static inline bool s2_is_leaf(uint64_t pte, unsigned level)
{
    return level == 1 || (pte & MF_PTE_LEAF);
}

static inline mfn_t s2_target(uint64_t pte)
{
    return mfn((pte & MF_PTE_ADDR) >> FRAME_SHIFT);
}

static inline s2_pte *s2_table(const struct stage2 *s2, mfn_t m)
{
    return heap_ptr(s2->heap, m);
}

static inline unsigned s2_hint(const struct stage2 *s2)
{
    return s2->owner;
}

static inline void s2_lock(struct stage2 *s2)
{
    mm_lock_take(&s2->lock, heap_env(s2->heap));
}

static inline void s2_unlock(struct stage2 *s2)
{
    mm_lock_drop(&s2->lock);
}

/* Goes down to the entry for g at `stop`, or to the first absent entry or leaf above it. */
static inline void s2_walk(const struct stage2 *s2, unsigned root, uint64_t g, unsigned stop,
                           struct s2_walk *w)
{
    w->mfn = s2->root[root];
    for (w->level = S2_LEVELS;; w->level--) {
        w->tab = s2_table(s2, w->mfn);
        w->index = s2_index(g, w->level);
        w->pte = atomic_load_explicit(&w->tab[w->index], memory_order_acquire);
        if (!w->pte || w->level == stop || s2_is_leaf(w->pte, w->level))
            return;
        w->mfn = s2_target(w->pte);
    }
}

static inline bool s2_in_regions(const struct stage2 *s2, uint64_t first, uint64_t n)
{
    for (unsigned i = 0; i < s2->nr_regions; i++) {
        const struct s2_region *r = &s2->regions[i];

        if (first >= r->first.v && first - r->first.v < r->frames)
            return n <= r->frames - (first - r->first.v);
    }
    return false;
}

/* All with the lock held. */

/* Sets entry `index`, absent before, and counts it. */
void s2_set_entry(struct stage2 *s2, mfn_t tab, unsigned index, uint64_t pte);
/* Clears an entry and uncounts it; returns what it was, accessed and dirty bits included. */
uint64_t s2_clear_entry(struct stage2 *s2, mfn_t tab, unsigned index);
/* Clears a leaf, harvests its bits and retires its frames when no other leaf maps them. */
uint64_t s2_remove_leaf(struct stage2 *s2, mfn_t tab, unsigned index, unsigned level);
/* Puts a block, no longer mapped, into the open batch. */
void s2_retire(struct stage2 *s2, mfn_t m, uint64_t frames);
/* Asks for a flush of what the open batch holds. */
void s2_close_batch(struct stage2 *s2);
uint64_t s2_retired_entries(const struct stage2 *s2);
/* The leaf for g; populates it in RAM when `populate`. Takes and keeps nothing on failure. */
enum mf_status s2_get(struct stage2 *s2, unsigned root, uint64_t g, unsigned access, bool populate,
                      struct s2_leaf *out);
/* Every viewer is outside or has seen `target`. */
bool s2_viewers_passed(const struct stage2 *s2, uint64_t target);
/*
 * Used entries of a table (s2_track.c). The first one from *i on, in *i; false, and MF_PT_ENTRIES,
 * when there is none. Of a table with one entry its record says which; else the bitmap is asked, if
 * it is kept.
 */
bool s2_next_used(const struct stage2 *s2, mfn_t tab, unsigned *i);
/* A new or former entry, after `w` counted it; writes the bitmap and w->t.kept. */
void s2_track_entry(struct stage2 *s2, mfn_t tab, unsigned index, bool used, union s2_tab_word *w);
/* Makes the bitmap right if it is not. */
const uint64_t *s2_keep_bitmap(struct stage2 *s2, mfn_t tab);
/* The record of a table that is about to be hung in, empty. */
void s2_set_table(struct stage2 *s2, mfn_t m, unsigned root, unsigned level, uint64_t base);
unsigned s2_root_count(const struct stage2 *s2, unsigned root);

/* Arena (s2_arena.c). A zeroed frame for RAM; lock held. */
enum mf_status s2_alloc_ram(struct stage2 *s2, mfn_t *out);
/* A block was mapped by hand. Lock held. */
void s2_note_block(struct stage2 *s2, mfn_t m, unsigned order);
/* Frames held beside tables and mapped RAM. */
uint64_t s2_arena_spare(struct stage2 *s2);
/* Gives back what was not drawn, and the list. */
void s2_arena_end(struct stage2 *s2);
/* All of the address space can go by extents. Lock held, also for what follows. */
bool s2_can_drop(const struct stage2 *s2);
/* Dropping has begun and extents are left. */
bool s2_drop_left(const struct stage2 *s2);
struct s2_dropped {
    uint64_t extents, leaves, tables, frames;
};
/* One bounded piece of work, about one extent; counts are added to *d. */
void s2_drop(struct stage2 *s2, struct s2_dropped *d);

/* With or without the lock: a table frame, zeroed, not yet hung in. */
enum mf_status s2_alloc_table(struct stage2 *s2, mfn_t *out);
void s2_free_table(struct stage2 *s2, mfn_t m);

#endif
