#include <string.h>

#include "hv/mm/reaper.h"
#include "hv/mm/stage2_impl.h"

enum tree_phase { TREE_BEGIN, TREE_ZAP, TREE_REAP };

struct reaper_tree {
    struct reaper_tree *next;
    struct stage2 *s2;
    const struct mf_teardown_ops *ops; /* NULL: wants another */
    void *tag;
    uint64_t taken_at, frames; /* not yet in the heap */
    enum mf_status why;        /* the last strategy failed so */
    enum tree_phase phase;
    struct teardown_report sum; /* of the strategies before the one at work */
    struct teardown zap;
};

#define TREE_OFFSET ((sizeof(struct stage2) + 63u) & ~(size_t)63u)

_Static_assert(TREE_OFFSET + sizeof(struct reaper_tree) <= FRAME_SIZE,
               "a stage2 and what the reaper needs fit in one frame");

static uint64_t now(const struct reaper *r)
{
    const struct mm_env *env = heap_env(r->heap);

    return env->now_ns(env->arg);
}

/* ---- the queue */

/* Lock held. */
static void enqueue(struct reaper *r, struct reaper_tree *t)
{
    t->next = NULL;
    if (r->first)
        r->last->next = t;
    else
        r->first = t;
    r->last = t;
}

/* The tree that is worked on leaves the queue; it is the first. Lock held. */
static void dequeue(struct reaper *r)
{
    r->first = r->first->next;
}

/* Makes the caller the one that works; NULL when there is nothing, or *busy: somebody does. */
static struct reaper_tree *work_begin(struct reaper *r, bool *busy)
{
    struct reaper_tree *t = NULL;

    mm_lock_take(&r->lock, heap_env(r->heap));
    *busy = r->working;
    if (!r->working && r->first) {
        t = r->first;
        r->working = true;
    }
    mm_lock_drop(&r->lock);
    return t;
}

static void work_end(struct reaper *r)
{
    mm_lock_take(&r->lock, heap_env(r->heap));
    r->working = false;
    mm_lock_drop(&r->lock);
}

/* ---- taking over */

static uint64_t frames_of(struct stage2 *s2)
{
    struct s2_info info;

    stage2_get_info(s2, &info);
    return info.frames_ram + info.frames_table + info.retired + info.spare + 1;
}

enum mf_status reaper_take(struct reaper *r, struct stage2 *s2, const struct mf_teardown_ops *ops,
                           void *tag)
{
    struct reaper_tree *t = (void *)((uint8_t *)s2 + TREE_OFFSET);
    bool busy;

    if (!teardown_ops_ok(ops))
        return MF_E_PLUGIN;
    s2_lock(s2);
    busy = s2->nr_viewers || s2->teardown;
    if (!busy)
        s2->closed = true;
    s2_unlock(s2);
    if (busy)
        return MF_E_BUSY;
    /* The rest of the frame was zero all its life and has just become the reaper's. */
    t->s2 = s2;
    t->ops = ops;
    t->tag = tag;
    t->taken_at = now(r);
    t->frames = frames_of(s2);
    t->phase = TREE_BEGIN;
    atomic_fetch_add(&r->frames, t->frames);
    atomic_fetch_add(&r->trees, 1);
    mm_lock_take(&r->lock, heap_env(r->heap));
    enqueue(r, t);
    mm_lock_drop(&r->lock);
    return MF_OK;
}

/* ---- steps */

static void note_frames(struct reaper *r, struct reaper_tree *t)
{
    uint64_t left = frames_of(t->s2);

    /* An arena's chunks hold more frames than are in use: never below nothing. */
    left = left < t->frames ? left : t->frames;
    atomic_fetch_sub(&r->frames, t->frames - left);
    t->frames = left;
}

static void add_report(struct teardown_report *to, const struct teardown_report *t)
{
    uint64_t max = to->step_max_ns > t->step_max_ns ? to->step_max_ns : t->step_max_ns;
    const uint64_t *from = (const void *)t;
    uint64_t *sum = (void *)to;

    _Static_assert(sizeof *t % sizeof *from == 0, "counters only");
    for (unsigned i = 0; i < sizeof *t / sizeof *from; i++)
        sum[i] += from[i];
    to->step_max_ns = max;
}

/* The strategy is through, or has failed: its counters are kept. */
static void end_zap(struct reaper_tree *t)
{
    add_report(&t->sum, &t->zap.report);
    teardown_end(&t->zap);
}

static enum mf_status fail(struct reaper_tree *t, enum mf_status why)
{
    t->why = why;
    t->ops = NULL;
    t->phase = TREE_BEGIN;
    return MF_AGAIN;
}

static enum mf_status zap(struct reaper_tree *t, uint32_t budget)
{
    struct s2_info info;
    enum mf_status st;

    /* Frames on their way come first: somebody may wait for them. */
    stage2_get_info(t->s2, &info);
    if (info.retired >= budget && stage2_reap(t->s2, budget) != MF_BLOCKED)
        return MF_AGAIN;
    st = teardown_step(&t->zap, budget);
    if (st == MF_AGAIN || st == MF_BLOCKED)
        return MF_AGAIN;
    end_zap(t);
    if (st != MF_OK)
        return fail(t, st);
    t->phase = TREE_REAP;
    return MF_AGAIN;
}

static enum mf_status begin(struct reaper *r, struct reaper_tree *t)
{
    enum mf_status st;

    if (!t->ops) {
        t->ops = r->ops->replace(r->ops->arg, t->tag, t->why);
        return t->ops ? MF_AGAIN : MF_E_PLUGIN;
    }
    st = teardown_begin_whole(&t->zap, t->s2, t->ops);
    if (st != MF_OK)
        return fail(t, st);
    t->phase = TREE_ZAP;
    return MF_AGAIN;
}

/* MF_OK: nothing is left but the roots. MF_E_PLUGIN: no strategy can finish it. */
static enum mf_status tree_step(struct reaper *r, struct reaper_tree *t, uint32_t budget)
{
    enum mf_status st;

    if (t->phase == TREE_BEGIN)
        return begin(r, t);
    if (t->phase == TREE_ZAP)
        return zap(t, budget);
    st = stage2_reap(t->s2, budget);
    return st == MF_OK ? MF_OK : MF_AGAIN;
}

static void park(struct reaper *r, struct reaper_tree *t)
{
    mm_lock_take(&r->lock, heap_env(r->heap));
    dequeue(r);
    t->next = r->parked;
    r->parked = t;
    mm_lock_drop(&r->lock);
    atomic_fetch_sub(&r->frames, t->frames);
    atomic_fetch_sub(&r->trees, 1);
}

static void finish(struct reaper *r, struct reaper_tree *t)
{
    struct reaper_result res = {.tag = t->tag, .roots = t->s2->roots, .report = t->sum};
    uint64_t at = t->taken_at, frames = t->frames;
    uint32_t owner = t->s2->owner;
    struct stage2 *s2 = t->s2;

    mm_lock_take(&r->lock, heap_env(r->heap));
    dequeue(r);
    mm_lock_drop(&r->lock);
    memset(t, 0, sizeof *t); /* the frame goes back as one that reads as zero */
    /* Nothing can be left: the teardown has said so and all that was retired is back. */
    stage2_destroy(s2);
    res.lost = heap_owner_end(r->heap, owner);
    res.took_ns = now(r) - at;
    atomic_fetch_sub(&r->frames, frames);
    r->ops->done(r->ops->arg, &res);
    /* Last: who waits until nothing is on its way finds everything in place. */
    atomic_fetch_sub(&r->trees, 1);
}

enum mf_status reaper_step(struct reaper *r, uint32_t budget)
{
    struct reaper_tree *t;
    uint64_t t0, ns;
    bool busy;
    enum mf_status st;

    if (!atomic_load(&r->trees))
        return MF_OK;
    t = work_begin(r, &busy);
    if (!t)
        return busy ? MF_BLOCKED : MF_OK;
    t0 = now(r);
    st = tree_step(r, t, budget);
    if (st == MF_OK)
        finish(r, t);
    else if (st == MF_AGAIN)
        note_frames(r, t);
    else
        park(r, t);
    ns = now(r) - t0;
    atomic_fetch_add_explicit(&r->steps, 1, memory_order_relaxed);
    if (ns > atomic_load_explicit(&r->step_max_ns, memory_order_relaxed))
        atomic_store_explicit(&r->step_max_ns, ns, memory_order_relaxed);
    work_end(r);
    return atomic_load(&r->trees) ? MF_AGAIN : MF_OK;
}

void reaper_retry(struct reaper *r)
{
    struct reaper_tree *t;

    for (;;) {
        mm_lock_take(&r->lock, heap_env(r->heap));
        t = r->parked;
        if (t) {
            r->parked = t->next;
            atomic_fetch_add(&r->frames, t->frames);
            atomic_fetch_add(&r->trees, 1);
            enqueue(r, t);
        }
        mm_lock_drop(&r->lock);
        if (!t)
            return;
    }
}

/* ---- helping */

/* For an allocation that found nothing: true when it is worth another try. */
static bool help(void *arg, unsigned tries)
{
    struct reaper *r = arg;
    const struct mm_env *env = heap_env(r->heap);
    enum mf_status st;

    if (!atomic_load(&r->trees))
        return false;
    st = reaper_step(r, TEARDOWN_BUDGET);
    if (st == MF_BLOCKED)
        env->relax(env->arg, 64 + tries); /* the one at work may have been preempted */
    return true;
}

void reaper_init(struct reaper *r, struct heap *h, const struct reaper_ops *ops)
{
    memset(r, 0, sizeof *r);
    r->heap = h;
    r->ops = ops;
    mm_lock_init(&r->lock);
    heap_set_helper(h, help, r);
}
