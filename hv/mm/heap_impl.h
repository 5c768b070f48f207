/*
 * Inside of the page heap. For hv/mm and its unit tests only.
 *
 * Locks: each CPU slot has one. With an allocator that is not thread safe every call goes through
 * slot 0, which thus is *the* heap lock; with a thread-safe one each CPU takes its own slot, so
 * that CPUs run beside each other. Whoever must stand alone (swap, info, audit) takes all of them
 * in ascending order.
 *
 * Lock order: stage2.lock before slot locks; owner_lock and the lock of a slot are never both held.
 */
#ifndef MAYFLY_MM_HEAP_IMPL_H
#define MAYFLY_MM_HEAP_IMPL_H

#include "hv/mm/frame_table.h"
#include "hv/mm/heap.h"
#include "hv/mm/line.h"

#define HEAP_SLOTS_MAX   64u
#define HEAP_OWNERS      131072u /* size of the owner table, a power of two */
#define HEAP_OWNER_PROBE 32u
#define HEAP_OWNER_GONE  UINT32_MAX
#define HEAP_TRACK_WORDS 8u /* used-entry bitmap of a table frame */

enum { REFUSED_DOUBLE, REFUSED_ORDER, REFUSED_OWNER, REFUSED_PLUGIN, REFUSED_KINDS };

struct heap_slot {
    _Alignas(64) struct mm_lock lock;
    /* Under lock. A slot's share may be negative where it is a difference; the sums are right. */
    uint64_t changes;
    int64_t used[4]; /* frames by enum frame_type */
    int64_t dirty;
    uint64_t refused[REFUSED_KINDS];
};

/* Quota of one owner. `key` is 0 where a slot was never used, HEAP_OWNER_GONE where it was. */
struct heap_owner {
    _Atomic uint32_t key;
    uint32_t reserved;
    _Atomic uint64_t used, limit;
};

/* An allocator at work: its operations and what was handed to it. */
struct heap_allocator {
    const struct mf_allocator_ops *ops; /* NULL: none */
    struct mf_alloc_env env;
    char name[MF_NAME_MAX];
};

struct heap {
    const struct mm_env *env;
    const struct mm_arena *arena;
    struct frame_table ft;
    uint64_t *track;   /* HEAP_TRACK_WORDS for each frame, used for those that are tables */
    unsigned cpus;     /* what the allocator was told */
    unsigned slots;    /* power of two */
    uint64_t reserved; /* bytes of all the metadata above, in one piece behind this structure */

    _Atomic bool shared;       /* changes with all slots locked */
    _Atomic bool busy;         /* a swap or the end of an audit is under way */
    _Atomic uint64_t retired;  /* frames in all retire queues */
    _Atomic uint64_t scrub_lo; /* frames that the scrubber writes just now: [lo, hi) */
    _Atomic uint64_t scrub_hi;
    _Atomic uint64_t scrub_at; /* cursor of the background scrub */
    struct mm_lock scrub_lock; /* one background scrub at a time; before slot locks */

    struct mm_lock owner_lock; /* keys of the owner table change under it */
    struct heap_owner *owners;

    /* Changes with all slots locked, read under any. */
    struct heap_allocator alloc;
    uint64_t init_ns, swaps, swap_pause_ns;
    struct heap_slot slot[HEAP_SLOTS_MAX];
};

static inline bool heap_shared(struct heap *h)
{
    return atomic_load_explicit(&h->shared, memory_order_relaxed);
}

/* Locks the slot through which `cpu` goes. */
static inline struct heap_slot *heap_enter(struct heap *h, unsigned cpu, bool *shared)
{
    for (;;) {
        struct heap_slot *s;

        *shared = heap_shared(h);
        s = &h->slot[*shared ? cpu & (h->slots - 1) : 0];
        mm_lock_take(&s->lock, h->env);
        if (heap_shared(h) == *shared)
            return s;
        mm_lock_drop(&s->lock);
    }
}

static inline void heap_leave(struct heap_slot *s)
{
    mm_lock_drop(&s->lock);
}

void heap_lock_all(struct heap *h);
void heap_unlock_all(struct heap *h);
/* With all slots locked. */
uint64_t heap_count_used(const struct heap *h);
uint64_t heap_count_changes(const struct heap *h);

/*
 * What an allocator lists, compared with the frame table: each listed frame must be free there and
 * be listed once. Prepared before the locks are taken; all memory it needs is reserved then.
 */
struct heap_listing {
    struct heap *h;
    const struct heap_allocator *to; /* gets every range too; NULL: only counts */
    int to_status;
    uint64_t ranges, frames, in_use, twice, outside;
    uint64_t *seen;      /* bit per frame, for groups listed in part */
    uint8_t *seen_group; /* 1: listed in part, 2: listed whole */
    uint64_t bytes;
};
enum mf_status heap_listing_init(struct heap_listing *l, struct heap *h);
/* All slots locked. Drains and lists. */
void heap_listing_run(struct heap_listing *l, const struct heap_allocator *from);
void heap_listing_fini(struct heap_listing *l);

/* Owners (heap_owner.c). NULL: no limit, nothing counted. */
struct heap_owner *heap_owner_find(struct heap *h, uint32_t owner);
static inline bool heap_owner_charge(struct heap_owner *o, uint64_t n)
{
    uint64_t was = atomic_fetch_add_explicit(&o->used, n, memory_order_relaxed);
    uint64_t limit = atomic_load_explicit(&o->limit, memory_order_relaxed);

    if (was <= limit && n <= limit - was)
        return true;
    atomic_fetch_sub_explicit(&o->used, n, memory_order_relaxed);
    return false;
}
static inline void heap_owner_uncharge(struct heap_owner *o, uint64_t n)
{
    atomic_fetch_sub_explicit(&o->used, n, memory_order_relaxed);
}

/* Scrub (heap_scrub.c). Zeroes what `d` names of the block at `first` (order below 9). */
void heap_scrub_small(struct heap *h, uint64_t first, const struct ft_dirty *d);
/* Looks a claimed block of order >= 9 through; returns how many frames were dirty. */
uint64_t heap_scrub_large(struct heap *h, uint64_t first, unsigned order);
/* Waits until the background scrub is not at work in [first, first + n). */
void heap_scrub_wait(struct heap *h, uint64_t first, uint64_t n);

static inline bool heap_scrub_overlaps(struct heap *h, uint64_t first, uint64_t n)
{
    uint64_t hi = atomic_load(&h->scrub_hi);

    return hi && first < hi && atomic_load(&h->scrub_lo) < first + n;
}

/* A free of a block that the caller knows to read as zero: it does not become dirty. */
enum mf_status heap_free_clean(struct heap *h, unsigned cpu, mfn_t m, unsigned order,
                               uint32_t owner);
/*
 * Frees retired blocks of `owner`, linked through their records from `head` (mfn + 1) on; tables
 * are clean. Returns how many frames went back.
 */
uint64_t heap_free_chain(struct heap *h, unsigned cpu, uint64_t head, uint32_t owner);
/* Adds to the number of retired frames; negative to take off. */
void heap_note_retired(struct heap *h, int64_t frames);

static inline struct frame *heap_rec(const struct heap *h, mfn_t m)
{
    return &h->ft.rec[m.v];
}

static inline uint64_t *heap_track(const struct heap *h, mfn_t m)
{
    return h->track + m.v * HEAP_TRACK_WORDS;
}

#endif
