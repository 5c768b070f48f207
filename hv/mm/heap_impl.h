/*
 * Inside of the page heap. For hv/mm and its unit tests only.
 *
 * Locks: each CPU slot has one. With an allocator that is not thread safe every call goes through
 * slot 0, which thus is *the* heap lock; with a thread-safe one each CPU takes its own slot, so
 * that CPUs run beside each other. Whoever must stand alone (swap, info, audit) takes all of them
 * in ascending order.
 *
 * Lock order: stage2.lock, owner_lock, scrub_lock before slot locks.
 *
 * Free frames are counted like money, so that a claim holds without a counter that all CPUs fight
 * for: what nobody has claimed lies in heap.avail or, taken from there in advance, in the `avail`
 * of a slot; what an owner has claimed lies in its record and is used first. An allocation pays
 * from its slot, which fetches more when it runs out. Only when that fails everything is gathered
 * with all slots locked, and the answer is exact. Quotas work the same way.
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

#define HEAP_CREDIT_BATCH 8192 /* frames fetched in advance; a slot keeps four times that */
#define HEAP_UNLIMITED    (INT64_MAX / 2) /* quota at hand for an owner that has no record */

struct heap_slot {
    _Alignas(128) struct mm_lock lock; /* two lines: CPUs fetch neighbours */
    /* Under lock. */
    uint32_t owner;         /* whose quota is at hand here; OWNER_NONE: nobody's */
    struct heap_owner *rec; /* its record, NULL when it has none and thus no limit */
    int64_t quota;          /* frames it may still take here */
    int64_t avail;          /* free frames that nobody has claimed, paid out here */
    uint64_t changes;
    /* A slot's share may be negative where it is a difference; the sums are right. */
    int64_t used[4]; /* frames by enum frame_type; NONE: out of use */
    int64_t dirty;
    uint64_t refused[REFUSED_KINDS];
};

/* One owner. `key` is 0 where a slot was never used, HEAP_OWNER_GONE where it was. */
struct heap_owner {
    _Atomic uint32_t key;
    uint32_t reserved;
    _Atomic int64_t used; /* frames it holds and such as slots have at hand for it */
    _Atomic int64_t limit;
    _Atomic int64_t claim; /* frames promised to it */
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
    _Atomic uint32_t scrub;    /* enum heap_scrub */
    _Atomic uint64_t scrub_lo; /* frames that the scrubber writes just now: [lo, hi) */
    _Atomic uint64_t scrub_hi;

    _Alignas(64) _Atomic bool busy; /* a swap or the end of an audit is under way */
    _Atomic int64_t avail;          /* free frames that nobody has claimed and no slot has at hand;
                                       below zero when frames behind claims went out of use */
    _Atomic int64_t claimed;        /* sum of the owners' claims */
    _Atomic uint64_t retired;       /* frames in all retire queues */
    _Atomic uint64_t waiting;       /* frames in use that are to go out of use */
    _Atomic uint64_t scrubbed, punched;
    _Atomic uint64_t scrub_at; /* cursor of the background scrub */
    struct mm_lock scrub_lock; /* one background scrub at a time; before slot locks */

    /* Set before the first allocation, or never. */
    heap_helper helper;
    void *helper_arg;

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

/* The slot through which `cpu` goes. It is that one for as long as any slot is locked. */
static inline struct heap_slot *heap_slot_of(struct heap *h, unsigned cpu, bool *shared)
{
    *shared = heap_shared(h);
    return &h->slot[*shared ? cpu & (h->slots - 1) : 0];
}

/* Locks the slot through which `cpu` goes. */
static inline struct heap_slot *heap_enter(struct heap *h, unsigned cpu, bool *shared)
{
    for (;;) {
        struct heap_slot *s = heap_slot_of(h, cpu, shared);

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

/* ---- credit (heap_credit.c) */

/* Pays for n frames of `owner` from what the slot has at hand; not when it has a claim left. */
static inline bool heap_credit_take(struct heap_slot *s, uint32_t owner, int64_t n)
{
    if (s->owner != owner || s->quota < n || s->avail < n ||
        (s->rec && atomic_load_explicit(&s->rec->claim, memory_order_relaxed)))
        return false;
    s->quota -= n;
    s->avail -= n;
    return true;
}
/*
 * The same with all that is needed to find an exact answer. `s` is locked and is so afterwards,
 * which may be another one: it is returned. *claimed: frames that the owner's claim paid for. *st:
 * MF_OK, MF_E_QUOTA or MF_E_NO_MEMORY.
 */
struct heap_slot *heap_credit_find(struct heap *h, struct heap_slot *s, unsigned cpu, bool *shared,
                                   uint32_t owner, int64_t n, int64_t *claimed, enum mf_status *st);
void heap_credit_back(struct heap *h, struct heap_slot *s);
void heap_credit_return(struct heap *h, uint32_t owner, int64_t n);
/* `n` frames of `owner` were freed; `avail` of them can be given again. Slot locked. */
static inline void heap_credit_give(struct heap *h, struct heap_slot *s, uint32_t owner, int64_t n,
                                    int64_t avail)
{
    s->avail += avail;
    if (s->owner == owner)
        s->quota += n;
    else
        heap_credit_return(h, owner, n);
    if (s->avail > 4 * HEAP_CREDIT_BATCH ||
        (s->quota > 4 * HEAP_CREDIT_BATCH && s->quota < HEAP_UNLIMITED / 2))
        heap_credit_back(h, s);
}
/* Pays back for an allocation that did not come about. Slot locked. */
void heap_credit_refund(struct heap *h, struct heap_slot *s, uint32_t owner, int64_t n,
                        int64_t claimed);
/* All slots locked: takes back what they have at hand, of owners only `owner`'s. */
void heap_credit_gather(struct heap *h, uint32_t owner);
/* All slots locked. What there is at hand and what is free agree. */
bool heap_credit_ok(const struct heap *h);

/* Drops all locks but the one through which `cpu` goes, and returns that. */
struct heap_slot *heap_keep_one(struct heap *h, unsigned cpu, bool *shared);

/* ---- scrub (heap_scrub.c) */

/* Zeroes what `d` names of the block at `first` (order below 9). */
void heap_scrub_small(struct heap *h, uint64_t first, const struct ft_dirty *d);
/* How many frames of a claimed block of order >= 9 are dirty. */
uint64_t heap_dirty_large(const struct heap *h, uint64_t first, unsigned order);
/*
 * Takes the dirtiness off a claimed block of order >= 9 and zeroes what was dirty, but for groups
 * that `same` (not OWNER_NONE) left there itself. `head_last` is who the record of the first group
 * said it was before it was written.
 */
void heap_scrub_large(struct heap *h, uint64_t first, unsigned order, uint32_t same,
                      uint64_t head_last);
/* Zeroes n frames that the caller holds. */
void heap_scrub_frames(struct heap *h, uint64_t first, uint64_t n);
/* Waits until the background scrub is not at work in [first, first + n). */
void heap_scrub_wait(struct heap *h, uint64_t first, uint64_t n);

static inline bool heap_scrub_overlaps(struct heap *h, uint64_t first, uint64_t n)
{
    uint64_t hi = atomic_load(&h->scrub_hi);

    return hi && first < hi && atomic_load(&h->scrub_lo) < first + n;
}

/* ---- parts of a block (heap_split.c). The group is the caller's. */

/* A group that belonged to one block is kept by marks from here on, all of them in use. */
void heap_group_to_marks(struct heap *h, uint64_t first);
void heap_group_to_whole(struct heap *h, uint64_t first);

/* ---- frames out of use (heap_offline.c) */

/*
 * Gives a block back that has frames marked to go: those stay, the rest is freed in parts. The
 * record is zero already. Slot locked. Returns how many frames are free now.
 */
uint64_t heap_free_leaving(struct heap *h, struct heap_slot *s, bool shared, unsigned cpu,
                           uint64_t first, unsigned order, bool clean, bool *lost);

/*
 * Starts the allocator anew with all frames that are free after `change` has taken some away in the
 * table; `undo` when that fails. Both with all slots locked. MF_E_BUSY, MF_E_NO_ALLOCATOR,
 * MF_E_NO_MEMORY, MF_E_PLUGIN.
 */
enum mf_status heap_restart(struct heap *h, void (*change)(struct heap *h, void *arg),
                            void (*undo)(struct heap *h, void *arg), void *arg);

/* `size` covers `member`: the operations of a plugin are long enough to have it. */
#define HEAP_OPS_HAS(ops, member)                                                                  \
    ((ops)->size >= offsetof(struct mf_allocator_ops, member) + sizeof((ops)->member))

/* NULL when the allocator has none. */
static inline int (*heap_ops_take(const struct mf_allocator_ops *ops))(const struct mf_alloc_env *,
                                                                       uint64_t, uint64_t)
{
    return HEAP_OPS_HAS(ops, take) ? ops->take : NULL;
}

/* Any group of the block has frames that are marked. */
static inline bool heap_has_leaving(const struct heap *h, uint64_t first, unsigned order)
{
    if (order <= GROUP_ORDER)
        return ft_group(&h->ft, first) & GROUP_LEAVING;
    for (uint64_t i = 0; i < ft_frames(order); i += GROUP_FRAMES)
        if (ft_group(&h->ft, first + i) & GROUP_LEAVING)
            return true;
    return false;
}

/* A free of a block that the caller knows to read as zero: it does not become dirty. */
enum mf_status heap_free_clean(struct heap *h, unsigned cpu, mfn_t m, unsigned order,
                               uint32_t owner);
/*
 * Frees retired blocks of `owner`, linked through their records from `head` (mfn + 1) on; tables
 * are clean. Returns how many frames went back.
 */
uint64_t heap_free_chain(struct heap *h, unsigned cpu, uint64_t head, uint32_t owner);
/*
 * Makes one block of the 2^order frames at `m` when each is a block of its own, in use by `owner`
 * and of `type`; order below 9. Their records' unions go; *out sums them up before.
 */
struct heap_bulk {
    uint64_t maps;   /* RAM: leaves that pointed to them */
    uint64_t mapped; /* RAM: frames with such a leaf; tables: frames with a level */
};
bool heap_join_bulk(struct heap *h, unsigned cpu, mfn_t m, unsigned order, uint32_t owner,
                    enum frame_type type, struct heap_bulk *out);
/* Adds to the number of retired frames; negative to take off. */
void heap_note_retired(struct heap *h, int64_t frames);

static inline struct frame *heap_rec(const struct heap *h, mfn_t m)
{
    return ft_rec(&h->ft, m.v);
}

static inline uint64_t *heap_track(const struct heap *h, mfn_t m)
{
    return h->track + m.v * HEAP_TRACK_WORDS;
}

#endif
