/*
 * Teardown driver: the services that a strategy works through, and the steps around it.
 *
 * A strategy names tables by pointer. Each pointer is looked up in the frame table before anything
 * is done: it must be a table of this VM, hung in below the root under work. What the strategy
 * keeps in struct mf_zap is never read back but for its loop counters.
 */
#include <string.h>

#include "hv/mm/stage2_impl.h"
#include "hv/mm/teardown.h"

struct zap_table {
    mfn_t m;
    unsigned level;
    uint64_t base; /* first guest frame it can map */
};

static struct teardown *zap_owner(struct mf_zap *z)
{
    return (struct teardown *)(void *)((uint8_t *)z - offsetof(struct teardown, zap));
}

/* The table that the strategy means; false when it is none of this root. */
static bool zap_find(const struct teardown *t, mf_table table, struct zap_table *out)
{
    const struct heap *h = t->s2->heap;
    uintptr_t off = (uintptr_t)table - (uintptr_t)heap_arena(h)->base;
    const struct frame *f;
    union s2_tab_word w;
    union frame_head head;

    if (off & (FRAME_SIZE - 1) || off >> FRAME_SHIFT >= h->ft.frames)
        return false;
    out->m = mfn(off >> FRAME_SHIFT);
    f = heap_rec(h, out->m);
    head = frame_head_load(f);
    if (head.f.state != FRAME_USED || head.f.type != FRAME_T_TABLE ||
        head.f.owner != t->s2->owner || !head.f.level || head.f.level > S2_LEVELS)
        return false;
    w.v = frame_word_load(f);
    out->level = head.f.level;
    out->base = (uint64_t)w.t.base << 9;
    return w.t.root == t->root;
}

static uint64_t zap_pte(const struct teardown *t, const struct zap_table *zt, uint32_t index)
{
    return atomic_load_explicit(&s2_table(t->s2, zt->m)[index], memory_order_acquire);
}

static mf_table host_child(struct mf_zap *z, mf_table table, uint32_t index)
{
    const struct teardown *t = zap_owner(z);
    struct zap_table zt;
    uint64_t pte;

    if (index >= MF_PT_ENTRIES || !zap_find(t, table, &zt))
        return NULL;
    pte = zap_pte(t, &zt, index);
    if (!pte || s2_is_leaf(pte, zt.level))
        return NULL;
    return heap_ptr(t->s2->heap, s2_target(pte));
}

static bool in_scope(const struct teardown *t, uint64_t first, uint64_t n)
{
    return first >= t->first.v && first + n - 1 <= t->last.v;
}

static bool touches_scope(const struct teardown *t, uint64_t first, uint64_t n)
{
    return first <= t->last.v && first + n - 1 >= t->first.v;
}

static void count_removed(struct teardown *t, uint64_t frames, bool table)
{
    t->report.entries_removed++;
    t->report.frames_retired += frames;
    if (table)
        t->report.tables_freed++;
    else
        t->report.leaves_removed++;
}

/* Removes one entry, present or not. Lock held. */
static int zap_entry(struct teardown *t, const struct zap_table *zt, uint32_t index)
{
    struct stage2 *s2 = t->s2;
    uint64_t pte = zap_pte(t, zt, index), span = s2_span(zt->level);
    uint64_t first = zt->base + index * span;
    union s2_tab_word w;

    if (!pte)
        return MF_PL_OK;
    if (s2_is_leaf(pte, zt->level)) {
        if (!in_scope(t, first, span))
            return MF_PL_RANGE;
        count_removed(t, s2_remove_leaf(s2, zt->m, index, zt->level), false);
        return MF_PL_OK;
    }
    if (!touches_scope(t, first, span))
        return MF_PL_RANGE;
    w.v = frame_word_load(heap_rec(s2->heap, s2_target(pte)));
    if (w.t.count)
        return MF_PL_NOT_EMPTY;
    s2_clear_entry(s2, zt->m, index);
    s2->frames_table--;
    s2_retire(s2, s2_target(pte), 1);
    count_removed(t, 1, true);
    return MF_PL_OK;
}

static bool must_wait(const struct stage2 *s2)
{
    return s2_retired_entries(s2) >= S2_RETIRE_MAX;
}

static int host_zap(struct mf_zap *z, mf_table table, uint32_t index)
{
    struct teardown *t = zap_owner(z);
    struct zap_table zt;
    int rc;

    if (index >= MF_PT_ENTRIES || !zap_find(t, table, &zt))
        return MF_PL_RANGE;
    s2_lock(t->s2);
    rc = must_wait(t->s2) ? MF_PL_BLOCKED : zap_entry(t, &zt, index);
    s2_unlock(t->s2);
    if (rc == MF_PL_BLOCKED)
        t->waits = true;
    return rc;
}

static int host_zap_run(struct mf_zap *z, mf_table table, uint32_t index, uint32_t n,
                        uint32_t *removed)
{
    struct teardown *t = zap_owner(z);
    uint64_t before = t->report.entries_removed;
    struct zap_table zt;
    int rc = MF_PL_OK;

    *removed = 0;
    if (index >= MF_PT_ENTRIES || n > MF_PT_ENTRIES - index || !zap_find(t, table, &zt))
        return MF_PL_RANGE;
    s2_lock(t->s2);
    for (uint32_t i = index; i < index + n && rc == MF_PL_OK; i++) {
        uint64_t pte = zap_pte(t, &zt, i);

        if (!pte || !s2_is_leaf(pte, zt.level))
            continue;
        rc = must_wait(t->s2) ? MF_PL_BLOCKED : zap_entry(t, &zt, i);
    }
    s2_unlock(t->s2);
    *removed = (uint32_t)(t->report.entries_removed - before);
    if (rc == MF_PL_BLOCKED)
        t->waits = true;
    return rc;
}

static const volatile uint64_t *host_used(struct mf_zap *z, mf_table table)
{
    const struct teardown *t = zap_owner(z);
    const uint64_t *map;
    struct zap_table zt;

    if (!(t->ops->flags & MF_TD_TRACKS) || !zap_find(t, table, &zt))
        return NULL;
    s2_lock(t->s2);
    map = s2_keep_bitmap(t->s2, zt.m);
    s2_unlock(t->s2);
    return map;
}

static uint32_t host_count(struct mf_zap *z, mf_table table)
{
    const struct teardown *t = zap_owner(z);
    struct zap_table zt;
    union s2_tab_word w;

    if (!zap_find(t, table, &zt))
        return 0;
    w.v = frame_word_load(heap_rec(t->s2->heap, zt.m));
    return w.t.count;
}

/*
 * A level 1 table of at most MF_SWEEP_MAX entries, wholly inside the scope, that hangs at entry
 * `index` of a level 2 table. Lock held.
 */
static bool may_sweep(const struct teardown *t, const struct zap_table *zt, uint32_t index,
                      uint64_t pte, uint32_t *count)
{
    union s2_tab_word w;

    if (s2_is_leaf(pte, zt->level) ||
        !in_scope(t, zt->base + index * s2_span(zt->level), s2_span(zt->level)))
        return false;
    w.v = frame_word_load(heap_rec(t->s2->heap, s2_target(pte)));
    *count = w.t.count;
    return w.t.count <= MF_SWEEP_MAX;
}

/* Takes the table and its leaves out. */
static int sweep_table(struct teardown *t, const struct zap_table *zt, uint32_t index, mfn_t child)
{
    struct zap_table ct = {.m = child, .level = 1, .base = zt->base + index * s2_span(2)};
    int rc = MF_PL_OK;

    for (unsigned i = 0; rc == MF_PL_OK && s2_next_used(t->s2, child, &i); i++)
        rc = zap_entry(t, &ct, i);
    return rc == MF_PL_OK ? zap_entry(t, zt, index) : rc;
}

#define SWEEP_AHEAD 16u

/*
 * What the next tables need is fetched before it is used, each kind for all of them at a time: the
 * entries that point to them, their records, their one leaf, the record of its frame.
 */
static void sweep_prefetch(const struct stage2 *s2, const struct zap_table *zt, unsigned index)
{
    s2_pte *at[SWEEP_AHEAD];
    unsigned n = 0;

    for (unsigned i = index; n < SWEEP_AHEAD && s2_next_used(s2, zt->m, &i); i++) {
        at[n] = &s2_table(s2, zt->m)[i];
        __builtin_prefetch((void *)(uintptr_t)at[n++], 1);
    }
    for (unsigned k = 0; k < n; k++)
        __builtin_prefetch(heap_rec(s2->heap, s2_target(atomic_load(at[k]))), 1);
    for (unsigned k = 0; k < n; k++) {
        uint64_t pte = atomic_load_explicit(at[k], memory_order_relaxed);
        union s2_tab_word w = {.v = frame_word_load(heap_rec(s2->heap, s2_target(pte)))};

        if (pte & MF_PTE_LEAF) {
            n = k;
            break;
        }
        at[k] = &s2_table(s2, s2_target(pte))[w.t.sum];
        __builtin_prefetch((void *)(uintptr_t)at[k], 1);
    }
    for (unsigned k = 0; k < n; k++)
        __builtin_prefetch(
            heap_rec(s2->heap, s2_target(atomic_load_explicit(at[k], memory_order_relaxed))), 1);
}

static int host_sweep(struct mf_zap *z, mf_table table, uint32_t index, uint32_t max,
                      uint32_t *next, uint32_t *removed)
{
    struct teardown *t = zap_owner(z);
    uint64_t before = t->report.entries_removed;
    struct zap_table zt;
    unsigned i = index, ahead = 0;
    int rc = MF_PL_OK;

    *removed = 0;
    *next = index;
    if (index >= MF_PT_ENTRIES || !(t->ops->flags & MF_TD_TRACKS) || !zap_find(t, table, &zt) ||
        zt.level != 2)
        return MF_PL_RANGE;
    s2_lock(t->s2);
    while (s2_next_used(t->s2, zt.m, &i)) {
        uint64_t pte = zap_pte(t, &zt, i);
        uint32_t count = 0;

        if (!may_sweep(t, &zt, i, pte, &count) ||
            t->report.entries_removed - before + count + 1 > max)
            break;
        if (!ahead--) {
            sweep_prefetch(t->s2, &zt, i);
            ahead = SWEEP_AHEAD - 1;
        }
        rc = must_wait(t->s2) ? MF_PL_BLOCKED : sweep_table(t, &zt, i, s2_target(pte));
        if (rc != MF_PL_OK)
            break;
        i++;
    }
    s2_unlock(t->s2);
    *next = i < MF_PT_ENTRIES ? i : MF_PT_ENTRIES;
    *removed = (uint32_t)(t->report.entries_removed - before);
    if (rc == MF_PL_BLOCKED)
        t->waits = true;
    return rc;
}

static uint32_t host_next(struct mf_zap *z, mf_table table, uint32_t index)
{
    const struct teardown *t = zap_owner(z);
    struct zap_table zt;
    unsigned i = index;
    bool any;

    if (index >= MF_PT_ENTRIES || !(t->ops->flags & MF_TD_TRACKS) || !zap_find(t, table, &zt))
        return MF_PT_ENTRIES;
    s2_lock(t->s2);
    any = s2_next_used(t->s2, zt.m, &i);
    s2_unlock(t->s2);
    return any ? i : MF_PT_ENTRIES;
}

/* Extents until `n` units of work are spent or nothing is left. Lock held. */
static void drop(struct teardown *t, uint32_t n, uint32_t *dropped)
{
    struct s2_dropped d = {0};

    while (d.extents < n && !must_wait(t->s2)) {
        s2_drop(t->s2, &d);
        if (!s2_drop_left(t->s2))
            break;
    }
    t->report.entries_removed += d.leaves + d.tables;
    t->report.leaves_removed += d.leaves;
    t->report.tables_freed += d.tables;
    t->report.frames_retired += d.frames;
    *dropped = (uint32_t)d.extents;
}

static int host_drop(struct mf_zap *z, uint32_t n, uint32_t *dropped)
{
    struct teardown *t = zap_owner(z);
    int rc = MF_PL_OK;

    *dropped = 0;
    if (!(t->ops->flags & MF_TD_ARENA) || !t->all)
        return MF_PL_RANGE;
    s2_lock(t->s2);
    if (!s2_can_drop(t->s2))
        rc = MF_PL_RANGE;
    else
        drop(t, n, dropped);
    if (!rc && n && !*dropped && s2_drop_left(t->s2)) {
        rc = MF_PL_BLOCKED;
        t->waits = true;
    }
    s2_unlock(t->s2);
    return rc;
}

static const struct mf_zap_host zap_host = {
    .size = sizeof(struct mf_zap_host),
    .child = host_child,
    .zap = host_zap,
    .zap_run = host_zap_run,
    .used = host_used,
    .count = host_count,
    .sweep = host_sweep,
    .drop = host_drop,
    .next = host_next,
};

/* ---- begin, end */

/* A leaf that lies over the edge of the range, seen from the guest frame at that edge. */
static bool cuts_leaf(const struct stage2 *s2, unsigned root, uint64_t first, uint64_t last)
{
    struct s2_walk w;
    uint64_t span;

    s2_walk(s2, root, first, 1, &w);
    span = s2_span(w.level);
    if (w.pte && first & (span - 1))
        return true;
    s2_walk(s2, root, last, 1, &w);
    span = s2_span(w.level);
    return w.pte && (last + 1) & (span - 1);
}

bool teardown_ops_ok(const struct mf_teardown_ops *ops)
{
    return ops && ops->size >= sizeof *ops && ops->begin && ops->step &&
           ops->state_size <= MF_ZAP_STATE_MAX && !(ops->flags & ~MF_TD_FLAGS);
}

static enum mf_status begin(struct teardown *t, struct stage2 *s2,
                            const struct mf_teardown_ops *ops, uint64_t first, uint64_t last)
{
    enum mf_status st = MF_OK;

    if (!teardown_ops_ok(ops))
        return MF_E_PLUGIN;
    s2_lock(s2);
    if (s2->teardown)
        st = MF_E_BUSY;
    for (unsigned r = t->root; st == MF_OK && !t->whole && r < t->root_end; r++)
        if (cuts_leaf(s2, r, first, last))
            st = MF_E_ALIGN;
    if (st == MF_OK) {
        s2->teardown = true;
        s2->td_added = false;
        s2->td_root = t->root;
        s2->td_root_end = t->root_end;
        s2->td_first = first;
        s2->td_last = last;
    }
    s2_unlock(s2);
    if (st != MF_OK)
        return st;
    t->s2 = s2;
    t->ops = ops;
    t->first = gfn(first);
    t->last = gfn(last);
    t->begun = true;
    return MF_OK;
}

/* Everything but the strategy's state, which is cleared for each root as far as it is used. */
static void clear(struct teardown *t)
{
    memset(t, 0, offsetof(struct teardown, state));
}

enum mf_status teardown_begin_whole(struct teardown *t, struct stage2 *s2,
                                    const struct mf_teardown_ops *ops)
{
    clear(t);
    t->whole = t->all = true;
    t->root_end = s2->roots;
    return begin(t, s2, ops, 0, S2_GFN_END - 1);
}

enum mf_status teardown_begin_range(struct teardown *t, struct stage2 *s2,
                                    const struct mf_teardown_ops *ops, unsigned root,
                                    unsigned root_end, gfn_t first, gfn_t last)
{
    clear(t);
    if (root >= root_end || root_end > s2->roots || first.v > last.v || last.v >= S2_GFN_END)
        return MF_E_RANGE;
    t->root = root;
    t->root_end = root_end;
    t->whole = !first.v && last.v == S2_GFN_END - 1;
    return begin(t, s2, ops, first.v, last.v);
}

static void root_end(struct teardown *t)
{
    if (t->active && t->ops->end)
        t->ops->end(&t->zap, t->state);
    t->active = false;
}

void teardown_end(struct teardown *t)
{
    if (!t->begun)
        return;
    root_end(t);
    s2_lock(t->s2);
    s2_close_batch(t->s2);
    t->s2->teardown = false;
    s2_unlock(t->s2);
    t->begun = false;
}

/* ---- steps */

static enum mf_status root_begin(struct teardown *t)
{
    struct stage2 *s2 = t->s2;

    memset(&t->zap, 0, sizeof t->zap);
    memset(t->state, 0, t->ops->state_size);
    t->zap.size = sizeof t->zap;
    t->zap.root_level = S2_LEVELS;
    t->zap.host = &zap_host;
    t->zap.root = heap_ptr(s2->heap, s2->root[t->root]);
    t->zap.first_gfn = t->first.v;
    t->zap.last_gfn = t->last.v;
    t->zap.whole = t->whole;
    t->active = true;
    t->idle = 0;
    return t->ops->begin(&t->zap, t->state) == MF_PL_OK ? MF_OK : MF_E_PLUGIN;
}

/* Takes over the counters of the strategy's own work. Returns the loops since the last time. */
static uint64_t take_counters(struct teardown *t)
{
    uint64_t *by_root = &t->report.loops_by_root[t->root], n = t->zap.loops - *by_root;

    t->report.loops += n;
    *by_root = t->zap.loops;
    for (unsigned p = 0; p < MF_ZAP_PASSES; p++) {
        uint64_t *pass = &t->report.loops_per_pass_by_root[t->root][p];

        t->report.loops_per_pass[p] += t->zap.loops_per_pass[p] - *pass;
        *pass = t->zap.loops_per_pass[p];
    }
    return n;
}

/*
 * Is anything of the scope left below this table? Only the tables at the two edges of the range are
 * looked into: one that lies wholly inside must be gone. So it reads two tables a level at most.
 */
static bool anything_left(const struct teardown *t, mfn_t m, unsigned level, uint64_t base)
{
    uint64_t span = s2_span(level);
    unsigned lo = 0, hi = MF_PT_ENTRIES - 1;

    if (t->first.v > base)
        lo = (unsigned)((t->first.v - base) / span);
    if (t->last.v < base + span * MF_PT_ENTRIES - 1)
        hi = (unsigned)((t->last.v - base) / span);
    for (unsigned i = lo; i <= hi; i++) {
        uint64_t pte = atomic_load(&s2_table(t->s2, m)[i]), first = base + i * span;

        if (!pte)
            continue;
        if (in_scope(t, first, span))
            return true;
        if (!s2_is_leaf(pte, level) && anything_left(t, s2_target(pte), level - 1, first))
            return true;
    }
    return false;
}

static bool root_is_done(struct teardown *t)
{
    bool left;

    s2_lock(t->s2);
    left = t->whole ? s2_root_count(t->s2, t->root) != 0
                    : anything_left(t, t->s2->root[t->root], S2_LEVELS, 0);
    /* What came in while we worked is not the strategy's fault. */
    left = (left && !t->s2->td_added) || s2_drop_left(t->s2);
    s2_unlock(t->s2);
    return !left;
}

/* A strategy that takes nothing out may walk every entry of every table a few times, not longer. */
static uint64_t idle_limit(struct stage2 *s2)
{
    uint64_t tables;

    s2_lock(s2);
    tables = s2->frames_table;
    s2_unlock(s2);
    return (tables + 8) * MF_PT_ENTRIES * 8;
}

/* One step of the root under work; *budget goes down by what it used. */
static enum mf_status root_step(struct teardown *t, uint32_t *budget)
{
    uint64_t removed = t->report.entries_removed, loops, used;
    int rc;

    t->waits = false;
    rc = t->ops->step(&t->zap, t->state, *budget);
    loops = take_counters(t);
    removed = t->report.entries_removed - removed;
    used = loops > removed ? loops : removed;
    if (rc != MF_PL_OK && rc != MF_PL_AGAIN && rc != MF_PL_BLOCKED)
        return MF_E_PLUGIN;
    if (rc == MF_PL_OK) {
        *budget = used < *budget ? *budget - (uint32_t)used : 0;
        return root_is_done(t) ? MF_OK : MF_E_PLUGIN;
    }
    *budget = 0;
    t->idle = removed || t->waits ? 0 : t->idle + (used ? used : 1);
    if (t->idle > idle_limit(t->s2))
        return MF_E_PLUGIN;
    return t->waits ? MF_BLOCKED : MF_AGAIN;
}

/* The strategy wants the bitmaps: they are built first, in steps of their own. */
static enum mf_status ensure_tracking(struct teardown *t, uint32_t *budget)
{
    enum mf_status st = MF_OK;

    if (t->tracking || !(t->ops->flags & MF_TD_TRACKS))
        return MF_OK;
    st = stage2_track_step(t->s2, *budget);
    if (st == MF_OK)
        t->tracking = true;
    else
        *budget = 0;
    return st;
}

/*
 * A strategy that drops extents was replaced on the way: no walk finds what is left, so the driver
 * goes on itself.
 */
static enum mf_status finish_drop(struct teardown *t, uint32_t *budget)
{
    uint32_t dropped = 0;
    bool left;

    if (t->ops->flags & MF_TD_ARENA || !t->all)
        return MF_OK;
    s2_lock(t->s2);
    left = s2_drop_left(t->s2);
    if (left)
        drop(t, *budget, &dropped);
    left = left && s2_drop_left(t->s2);
    s2_unlock(t->s2);
    *budget -= dropped < *budget ? dropped : *budget;
    return !left ? MF_OK : dropped ? MF_AGAIN : MF_BLOCKED;
}

static enum mf_status step(struct teardown *t, uint32_t budget)
{
    enum mf_status st = finish_drop(t, &budget);

    if (st == MF_OK)
        st = ensure_tracking(t, &budget);

    while (st == MF_OK && t->root < t->root_end) {
        if (!budget)
            return MF_AGAIN;
        if (!t->active)
            st = root_begin(t);
        if (st == MF_OK)
            st = root_step(t, &budget);
        if (st != MF_OK)
            return st;
        root_end(t);
        t->root++;
    }
    return st;
}

enum mf_status teardown_step(struct teardown *t, uint32_t budget)
{
    const struct mm_env *env;
    enum mf_status st;
    uint64_t t0, ns;

    if (!t->begun)
        return MF_E_STATE;
    env = heap_env(t->s2->heap);
    t0 = env->now_ns(env->arg);
    st = step(t, budget ? budget : 1);
    s2_lock(t->s2);
    s2_close_batch(t->s2);
    s2_unlock(t->s2);
    /* Frames that wait too long already: those whose time has come make room. */
    if (st == MF_BLOCKED && stage2_reap(t->s2, TEARDOWN_BUDGET) == MF_AGAIN)
        st = MF_AGAIN;
    ns = env->now_ns(env->arg) - t0;
    t->report.steps++;
    if (ns > t->report.step_max_ns)
        t->report.step_max_ns = ns;
    return st;
}
