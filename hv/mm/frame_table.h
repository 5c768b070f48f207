/*
 * The arrays of the frame table (hv/mm/frame.h) and the changes made to them. For hv/mm only.
 *
 * `shared` says whether other CPUs may change the same words at the same time (the allocator is
 * thread safe and runs without the heap's one lock). Without it the caller holds that lock and the
 * changes are plain loads and stores, which are several times cheaper than locked instructions.
 *
 * A claim of frames and a claim of the whole group around them meet like this: the first sets its
 * marks, then looks at the group; the second sets WHOLE, then looks at the marks, unless TOUCHED is
 * clear. Whoever finds the group not TOUCHED sets it with a locked instruction that tells whether
 * WHOLE was set meanwhile. So at least one of the two sees the other. TOUCHED is taken off only by
 * who holds the group whole, after WHOLE is set and the marks are found zero, or with all locks.
 */
#ifndef MAYFLY_MM_FRAME_TABLE_H
#define MAYFLY_MM_FRAME_TABLE_H

#include <stdatomic.h>

#include "hv/mm/frame.h"

#define GROUP_ORDER  9u
#define GROUP_FRAMES 512u
#define GROUP_WORDS  (GROUP_FRAMES / 64u)

/* Flags of a group. */
#define GROUP_WHOLE     0x01u /* belongs to one block of order >= 9 */
#define GROUP_TOUCHED   0x02u /* some mark may be set */
#define GROUP_ALL_DIRTY 0x04u /* all free frames of it are dirty, their marks do not say so yet */
#define GROUP_EXPANDING 0x08u /* ALL_DIRTY is being written out into the marks */
#define GROUP_DIRTY     0x10u /* some mark may say dirty */
#define GROUP_LEAVING   0x20u /* some mark may say leaving */

/* Marks of a frame. A free frame is 0 or DIRTY. LEAVING is also kept while the group is WHOLE. */
#define MARK_USED    0x01u
#define MARK_DIRTY   0x02u
#define MARK_LEAVING 0x04u /* goes out of use when it is freed */

#define MARKS(m) (UINT64_C(0x0101010101010101) * (m)) /* the same mark for eight frames */

typedef uint64_t __attribute__((may_alias)) mark_word; /* eight marks at once */

struct frame_table {
    uint64_t frames, groups;
    struct frame *rec;
    struct frame *group_rec; /* of frames at a 2 MiB boundary */
    uint8_t *mark;
    _Atomic uint32_t *group;
};

/* The first half of a record as one value, so that it is read and written as one. */
union frame_head {
    struct {
        uint32_t owner;
        uint8_t order, type, state, level;
    } f;
    uint64_t v;
};

static inline union frame_head frame_head_load(const struct frame *f)
{
    const uint64_t *p = (const uint64_t *)(const void *)f;
    return (union frame_head){.v = __atomic_load_n(p, __ATOMIC_ACQUIRE)};
}

static inline void frame_head_store(struct frame *f, union frame_head h)
{
    __atomic_store_n((uint64_t *)(void *)f, h.v, __ATOMIC_RELEASE);
}

/* True when the record held `was` and now holds `to`: one of several callers wins. */
static inline bool frame_head_change(struct frame *f, union frame_head was, union frame_head to,
                                     bool shared)
{
    if (!shared) {
        if (frame_head_load(f).v != was.v)
            return false;
        frame_head_store(f, to);
        return true;
    }
    return __atomic_compare_exchange_n((uint64_t *)(void *)f, &was.v, to.v, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED);
}

static inline uint64_t frame_word_load(const struct frame *f)
{
    return __atomic_load_n(&f->u.word, __ATOMIC_RELAXED);
}

static inline void frame_word_store(struct frame *f, uint64_t v)
{
    __atomic_store_n(&f->u.word, v, __ATOMIC_RELAXED);
}

static inline struct frame *ft_rec(const struct frame_table *ft, uint64_t m)
{
    return m & (GROUP_FRAMES - 1) ? &ft->rec[m] : &ft->group_rec[m >> GROUP_ORDER];
}

static inline uint64_t ft_frames(unsigned order)
{
    return UINT64_C(1) << order;
}

/* Inside the table and aligned. Order at most ORDER_MAX. */
static inline bool ft_block_ok(const struct frame_table *ft, uint64_t first, unsigned order)
{
    return first < ft->frames && ft_frames(order) <= ft->frames - first &&
           !(first & (ft_frames(order) - 1));
}

static inline uint32_t ft_group(const struct frame_table *ft, uint64_t m)
{
    return atomic_load_explicit(&ft->group[m >> GROUP_ORDER], memory_order_acquire);
}

static inline uint32_t ft_group_set(struct frame_table *ft, uint64_t m, uint32_t bits)
{
    return atomic_fetch_or(&ft->group[m >> GROUP_ORDER], bits);
}

static inline uint32_t ft_group_clear(struct frame_table *ft, uint64_t m, uint32_t bits)
{
    return atomic_fetch_and(&ft->group[m >> GROUP_ORDER], ~bits);
}

static inline uint8_t ft_mark(const struct frame_table *ft, uint64_t m)
{
    return __atomic_load_n(&ft->mark[m], __ATOMIC_ACQUIRE);
}

/* Of a frame that the caller holds. */
static inline void ft_mark_store(struct frame_table *ft, uint64_t m, uint8_t v)
{
    __atomic_store_n(&ft->mark[m], v, __ATOMIC_RELEASE);
}

static inline mark_word *ft_marks(const struct frame_table *ft, uint64_t m)
{
    return (mark_word *)(void *)&ft->mark[m & ~UINT64_C(7)];
}

static inline uint64_t ft_marks_load(const struct frame_table *ft, uint64_t m)
{
    return __atomic_load_n(ft_marks(ft, m), __ATOMIC_ACQUIRE);
}

/* Which of the eight marks hold `mark` (one bit), as the bits 0 to 7. */
static inline unsigned ft_pick(uint64_t marks, unsigned mark)
{
    uint64_t low = (marks >> (mark == MARK_USED ? 0 : mark == MARK_DIRTY ? 1 : 2)) & MARKS(1u);

    return (unsigned)(low * UINT64_C(0x0102040810204080) >> 56);
}

/*
 * Which frames of a block below order 9 were dirty when it was taken. Larger blocks own their
 * groups and are looked through after the lock is dropped.
 */
struct ft_dirty {
    uint32_t n;
    uint64_t mask[GROUP_WORDS / 2];
};

/*
 * Sets the block in use, order below 9, and takes the dirty marks off it into *d; false, with
 * nothing changed, when any frame of it is in use.
 */
bool ft_claim_slow(struct frame_table *ft, uint64_t first, unsigned order, bool shared,
                   struct ft_dirty *d);
/* The rest of a claim of a single frame in a group that needs a second look. */
bool ft_claim_settle(struct frame_table *ft, uint64_t first, unsigned order, struct ft_dirty *d);
/*
 * Sets a block of order >= 9 in use; all or nothing. Its dirtiness stays in groups and marks, but
 * for a block of one group that is all dirty and has no marks: *all_dirty says so, and the group
 * has forgotten it.
 */
bool ft_claim_large(struct frame_table *ft, uint64_t first, unsigned order, bool shared,
                    bool *all_dirty);
/* Gives a block back that has no mark LEAVING. Its frames become dirty when `dirty` says it. */
void ft_release_slow(struct frame_table *ft, uint64_t first, unsigned order, bool dirty,
                     bool shared);
/* True when any frame of the range is in use. */
bool ft_any_used(const struct frame_table *ft, uint64_t first, uint64_t n);
/* The frames in use of the 64 that begin at `base`, one bit each. Ends at the table's end. */
uint64_t ft_used_word(const struct frame_table *ft, uint64_t base);
/* The same for dirty ones; of a group that is all dirty: those that are free. */
uint64_t ft_dirty_word(const struct frame_table *ft, uint64_t base);
/* Any of the group's marks holds one of `marks`. */
bool ft_group_any(const struct frame_table *ft, uint64_t m, unsigned marks);
/* No frame of the group is in use. */
bool ft_group_free(const struct frame_table *ft, uint64_t m);
/*
 * Writes ALL_DIRTY of a group out into its marks, or waits for who does. A group that is held whole
 * is its holder's business: without `wait` nothing is done; with it the holder, which will find
 * that the group is not free, is waited for.
 */
void ft_expand(struct frame_table *ft, uint64_t m, bool wait);

static inline bool ft_claim(struct frame_table *ft, uint64_t first, unsigned order, bool shared,
                            struct ft_dirty *d)
{
    uint8_t was;

    d->n = 0;
    if (order)
        return ft_claim_slow(ft, first, order, shared, d);
    was = ft_mark(ft, first);
    if (was & MARK_USED)
        return false;
    if (!shared)
        ft_mark_store(ft, first, MARK_USED);
    else if (!__atomic_compare_exchange_n(&ft->mark[first], &was, MARK_USED, false,
                                          __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
        return ft_claim_slow(ft, first, 0, shared, d);
    if (was) {
        d->n = 1;
        d->mask[0] = UINT64_C(1) << (first & 63);
    }
    if ((ft_group(ft, first) & (GROUP_WHOLE | GROUP_TOUCHED | GROUP_ALL_DIRTY | GROUP_EXPANDING)) ==
        GROUP_TOUCHED)
        return true;
    return ft_claim_settle(ft, first, 0, d);
}

static inline void ft_release(struct frame_table *ft, uint64_t first, unsigned order, bool dirty,
                              bool shared)
{
    if (order) {
        ft_release_slow(ft, first, order, dirty, shared);
        return;
    }
    if (dirty && !(ft_group(ft, first) & GROUP_DIRTY))
        ft_group_set(ft, first, GROUP_DIRTY);
    ft_mark_store(ft, first, dirty ? MARK_DIRTY : 0);
}

#endif
