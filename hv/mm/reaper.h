/*
 * Reaper: what is left of address spaces whose VMs are gone already. A whole second stage is handed
 * over in O(1); bounded steps then take it apart with its strategy, give its frames to the heap and
 * end it. Whoever has time calls the steps; an allocation that finds the heap empty does too
 * (heap_set_helper), so that it waits for memory on its way instead of failing.
 *
 *   taken -> begin -> zap, reap, zap, reap ... -> reap -> destroyed, told by `done`
 *
 * No allocation is needed for any of this: the bookkeeping of a tree lies in the frame of its
 * stage2. Locks: reaper.lock is a leaf. A step works on one tree without it; nobody else knows of
 * that tree, so its stage2.lock may be taken by an allocation that holds another stage2's lock.
 */
#ifndef MAYFLY_MM_REAPER_H
#define MAYFLY_MM_REAPER_H

#include "hv/mm/teardown.h"

struct reaper_tree; /* in the frame of the stage2 */

struct reaper_result {
    void *tag;        /* of reaper_take */
    uint64_t lost;    /* frames that the owner still had at the end: 0, or something is wrong */
    uint64_t took_ns; /* from the take on */
    unsigned roots;
    struct teardown_report report;
};

/* Called by steps, without a lock. */
struct reaper_ops {
    /* The tree is gone and its owner ended. The strategy is not in use any more. */
    void (*done)(void *arg, const struct reaper_result *r);
    /*
     * The strategy of the tree `tag` failed with `why`: the one to go on with, NULL: none. The
     * failed one is not in use any more.
     */
    const struct mf_teardown_ops *(*replace)(void *arg, void *tag, enum mf_status why);
    void *arg;
};

struct reaper {
    struct heap *heap;
    const struct reaper_ops *ops;
    _Atomic uint64_t trees;  /* on their way; parked ones are not */
    _Atomic uint64_t frames; /* of them: not yet in the heap */
    _Atomic uint64_t steps, step_max_ns;

    struct mm_lock lock;
    /* Under lock. */
    struct reaper_tree *first, *last; /* the first is worked on */
    struct reaper_tree *parked;       /* no strategy could finish them */
    bool working;
};

/* Also makes the reaper the heap's helper. `ops` must outlive it. */
void reaper_init(struct reaper *r, struct heap *h, const struct reaper_ops *ops);
/*
 * Takes `s2` over, which must not be used any more: closed from here on. The owner of its frames is
 * ended with it (heap_owner_end). MF_E_BUSY: it has viewers, or a teardown is under way.
 * MF_E_PLUGIN: `ops` is none. Then nothing is changed.
 */
enum mf_status reaper_take(struct reaper *r, struct stage2 *s2, const struct mf_teardown_ops *ops,
                           void *tag);
/*
 * One bounded step: at most about `budget` units. MF_OK: nothing is on its way. MF_AGAIN: more to
 * do. MF_BLOCKED: another caller is in a step.
 */
enum mf_status reaper_step(struct reaper *r, uint32_t budget);
/* Trees that no strategy could finish get another chance: strategies have changed. */
void reaper_retry(struct reaper *r);

#endif
