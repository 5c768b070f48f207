/*
 * The page heap: front end of the machine memory. Ownership is checked here, on every call, in the
 * frame table; which free block is given is the allocator plugin's choice.
 *
 * Thread safe. Frames handed out never hold another owner's data: a dirty frame is scrubbed before
 * it is given (or in the background before that, heap_scrub_step).
 */
#ifndef MAYFLY_MM_HEAP_H
#define MAYFLY_MM_HEAP_H

#include "hv/mm/frame.h"
#include "hv/mm/lock.h"
#include "proto/plugin.h"

struct heap; /* opaque to users; the definition is in heap_impl.h for hv/mm and its unit tests */

/* When the data of a former owner is taken out of a frame. */
enum heap_scrub {
    HEAP_SCRUB_BACKGROUND =
        0,                /* by heap_scrub_step; what is still dirty when it is allocated, then */
    HEAP_SCRUB_FREE = 1,  /* by who frees it; blocks above 2 MiB as with BACKGROUND */
    HEAP_SCRUB_ALLOC = 2, /* by who allocates it; heap_scrub_step does nothing */
};
#define HEAP_SCRUB_KINDS 3u

struct heap_info {
    /* frames = free + used_ram + used_table + used_core + offline */
    uint64_t frames, free, cached, dirty;
    uint64_t used_ram, used_table, used_core, retired; /* retired ones are among the used */
    uint64_t claimed;           /* of the free ones: promised to owners, heap_claim */
    uint64_t offline;           /* out of use, heap_offline */
    uint64_t offline_waiting;   /* in use and marked: they go offline when they are freed */
    uint64_t scrubbed, punched; /* frames ever zeroed by memset, and by giving them to the host */
    enum heap_scrub scrub;
    uint64_t free_blocks[ORDER_MAX + 1];
    uint64_t refused_double, refused_order, refused_owner, refused_plugin;
    uint64_t init_ns, swaps, swap_pause_ns, meta_bytes;
    int largest_free_order;
    char allocator[MF_NAME_MAX];
};

struct heap_audit {
    uint64_t next; /* where the walk goes on; 0 at the start, *a all zero then */
    uint64_t frames, free, used_ram, used_table, used_core, retired, offline;
    uint64_t overlaps, bad_records, listed_free, listed_in_use, lost;
    bool stable;      /* nothing changed the heap during the walk: the totals are one moment's */
    uint64_t changes; /* of the walk itself: what the heap had seen at the last step */
};

struct heap_swap_report {
    uint64_t pause_ns, total_ns, free_frames, ranges;
    char from[MF_NAME_MAX], to[MF_NAME_MAX];
};

/*
 * Makes a heap over `arena`, all of it free, without an allocator: until heap_select every
 * allocation answers MF_E_NO_ALLOCATOR. `env` and `arena` must outlive the heap. `cpus` at least 1.
 * NULL and *st = MF_E_NO_MEMORY when the metadata cannot be reserved.
 */
struct heap *heap_create(const struct mm_env *env, const struct mm_arena *arena, unsigned cpus,
                         enum mf_status *st);
/* Takes NULL. The memory in use stays in the arena; nothing of it is looked at. */
void heap_destroy(struct heap *h);

/*
 * Makes `ops` the allocator: the first one gets all free frames (init_ns is this), a later one
 * takes over from its predecessor while frames are allocated. A transaction: on any failure the
 * former one goes on and *why (static string, may be NULL) says what failed. `name` is copied.
 */
enum mf_status heap_select(struct heap *h, const char *name, const struct mf_allocator_ops *ops,
                           struct heap_swap_report *report, const char **why);
/* True when `ops` is in use. */
bool heap_uses(struct heap *h, const struct mf_allocator_ops *ops);

/*
 * Quota: at most `frames` frames for `owner`; heap_owner_end forgets the owner and returns how many
 * frames it still held (0 in a correct program). Unknown owners have no limit.
 */
enum mf_status heap_owner_begin(struct heap *h, uint32_t owner, uint64_t frames);
uint64_t heap_owner_end(struct heap *h, uint32_t owner);

/*
 * Claims: promises `frames` more free frames to `owner` before it allocates them. Nobody else gets
 * them, so that the owner's next allocations of single frames do not fail for lack of memory until
 * that many are taken (blocks of a higher order may still fail: free memory may be in pieces). An
 * allocation by the owner uses its claim up first. What it frees is not claimed again.
 * Errors, with nothing changed: MF_E_NOT_FOUND (the owner did not begin), MF_E_QUOTA (what it holds
 * and has claimed would exceed its limit), MF_E_NO_MEMORY. *why, when not NULL, is filled then.
 */
struct heap_shortage {
    uint64_t asked;   /* frames */
    uint64_t free;    /* frames that are free */
    uint64_t claimed; /* of them, promised already */
    uint64_t limit;   /* of the owner; UINT64_MAX when it has none */
    uint64_t held;    /* by the owner, its claim included */
};
enum mf_status heap_claim(struct heap *h, uint32_t owner, uint64_t frames,
                          struct heap_shortage *why);
/* Takes back what is left of the owner's claim; how many frames that were. heap_owner_end does so
 * too. */
uint64_t heap_claim_release(struct heap *h, uint32_t owner);
uint64_t heap_claim_left(struct heap *h, uint32_t owner);

#define HEAP_ZERO                                                                                  \
    0x1u /* the block must read as zero. Without it: only scrubbed of other owners                 \
          */

/*
 * Takes one block of 2^order frames, order at most ORDER_MAX, aligned, for `owner`, typed.
 * Errors: MF_E_RANGE (order, type, flags), MF_E_NO_MEMORY, MF_E_QUOTA, MF_E_NO_ALLOCATOR,
 * MF_E_PLUGIN (the allocator gave a block that is not free: refused and counted).
 * `cpu` is a hint, any value.
 */
enum mf_status heap_alloc(struct heap *h, unsigned cpu, unsigned order, uint32_t owner,
                          enum frame_type type, unsigned flags, mfn_t *out);
/*
 * Called by an allocation that finds no memory: takes a bounded part in bringing back what is on
 * its way to the heap. True: try again (`tries` goes up, from 0). False: nothing is on its way, and
 * the allocation fails. The caller may hold locks, up to that of a stage2.
 */
typedef bool (*heap_helper)(void *arg, unsigned tries);
void heap_set_helper(struct heap *h, heap_helper fn, void *arg);

/*
 * Gives a block back. Refused, counted and logged, with nothing changed: MF_E_RANGE,
 * MF_E_DOUBLE_FREE, MF_E_WRONG_ORDER, MF_E_WRONG_OWNER.
 * The frames become dirty: another owner gets them scrubbed.
 */
enum mf_status heap_free(struct heap *h, unsigned cpu, mfn_t m, unsigned order, uint32_t owner);

/*
 * Turns one block in use into blocks of order `to` of the same owner and type, so that parts of it
 * can go back alone; heap_join does the reverse with blocks that all are of one owner, type and
 * order. At most 512 parts. The unions of the parts' records are zero after it. Errors, with
 * nothing changed: those of heap_free, not counted as refused frees.
 */
enum mf_status heap_split(struct heap *h, unsigned cpu, mfn_t m, unsigned order, unsigned to,
                          uint32_t owner);
enum mf_status heap_join(struct heap *h, unsigned cpu, mfn_t m, unsigned order, unsigned to,
                         uint32_t owner);

/* The record of frame `m`, NULL outside the arena. Its union is the owner's to use. */
struct frame *heap_frame(struct heap *h, mfn_t m);
const struct mm_arena *heap_arena(const struct heap *h);
const struct mm_env *heap_env(const struct heap *h);

static inline void *heap_ptr(const struct heap *h, mfn_t m)
{
    return arena_ptr(heap_arena(h), m);
}

/*
 * Takes the frames [first, first + n) out of use. Free ones at once; one in use is marked and goes
 * when it is freed, the rest of its block stays usable. Repeating it does no harm. Goes on while
 * allocations run, at most 64 frames under the locks at a time; what it takes may leave claims
 * without memory behind them. Not counted as free, listed nor handed out until heap_online, also
 * after the allocator was swapped. n from 1 to HEAP_OFFLINE_MAX.
 * Errors: MF_E_RANGE, MF_E_NO_ALLOCATOR (nothing changed); MF_E_NO_MEMORY or MF_E_PLUGIN when the
 * allocator does not let free frames go: those before *r's sum are done.
 */
#define HEAP_OFFLINE_MAX UINT64_C(32768)
struct heap_offline_report {
    uint64_t changed; /* frames that went out of, or into, use just now */
    uint64_t waiting; /* in use: marked; heap_online: the mark was taken off */
    uint64_t already; /* nothing to do */
};
enum mf_status heap_offline(struct heap *h, mfn_t first, uint64_t n, struct heap_offline_report *r);
/* The reverse: frames become free, to be scrubbed; marks go. The same errors. */
enum mf_status heap_online(struct heap *h, mfn_t first, uint64_t n, struct heap_offline_report *r);
enum heap_frame_use { HEAP_FRAME_FREE, HEAP_FRAME_USED, HEAP_FRAME_WAITING, HEAP_FRAME_OFFLINE };
/* FREE for a frame outside the arena. */
enum heap_frame_use heap_frame_use(struct heap *h, mfn_t m);

/* MF_E_RANGE. Changes nothing about frames that are dirty now. */
enum mf_status heap_set_scrub(struct heap *h, enum heap_scrub policy);
/* "background", "free", "alloc"; NULL outside the range. */
const char *heap_scrub_name(enum heap_scrub policy);

/* Scrubs at most `budget` dirty free frames; MF_AGAIN while some are left. */
enum mf_status heap_scrub_step(struct heap *h, uint64_t budget);
void heap_get_info(struct heap *h, struct heap_info *out);
/*
 * Walks at most `budget` frames of the table from a->next on and adds to *a; MF_AGAIN until the end
 * is reached, where what the allocator lists is compared with the table.
 */
enum mf_status heap_audit_step(struct heap *h, struct heap_audit *a, uint64_t budget);

#endif
