/*
 * Teardown in one post-order pass: the leaves of a table, then the table itself. Work is one entry
 * handled.
 *
 * One source, four plugins:
 *   POSTORDER_SINGLE   looks at each entry of each table, once
 *   POSTORDER_DEFERRED the same, but when a whole VM ends the core has taken the tree away from it
 *                      before, and a reaper in the background runs this
 *   POSTORDER_ARENA    drops the extents of a whole VM; walks like SINGLE where that cannot be
 *   POSTORDER_TRACKED  asks the bitmap of used entries, and so visits nothing that is not there
 */
#include "proto/plugin.h"

#define TOP        4u
#define WORDS      (MF_PT_ENTRIES / 64u)
#define ROUNDS_MAX 8u  /* how often it starts over because a guest kept mapping */
#define READS      32u /* entries read that cost as much as one handled */

#if defined(POSTORDER_SINGLE)
#define POSTORDER_NAME  "single"
#define POSTORDER_TEXT  "one post-order pass over every entry"
#define POSTORDER_FLAGS 0u
#elif defined(POSTORDER_DEFERRED)
#define POSTORDER_NAME  "deferred"
#define POSTORDER_TEXT  "detached at once, taken apart in the background in one pass"
#define POSTORDER_FLAGS MF_TD_DEFERS
#elif defined(POSTORDER_ARENA)
#define POSTORDER_NAME  "arena"
#define POSTORDER_TEXT  "tables and RAM in chunks of the VM's own, taken out whole"
#define POSTORDER_FLAGS MF_TD_ARENA
#elif defined(POSTORDER_TRACKED)
#define POSTORDER_NAME  "tracked"
#define POSTORDER_TEXT  "one post-order pass over the used entries, found by bitmap"
#define POSTORDER_FLAGS MF_TD_TRACKS
#else
#error "define POSTORDER_SINGLE, _DEFERRED, _ARENA or _TRACKED"
#endif

struct place {
    mf_table table;
    uint64_t base;
    uint32_t at, hi;
    const volatile uint64_t *used;
};

struct walk {
    uint32_t level;
    uint32_t rounds;
    uint32_t reads; /* not yet charged */
    bool again;
    bool walks; /* arena: extents cannot be dropped */
    struct place place[TOP + 1];
};

static uint64_t span(uint32_t level)
{
    return UINT64_C(1) << (9 * (level - 1));
}

static void enter(struct mf_zap *z, struct walk *w, uint32_t level, mf_table table, uint64_t base)
{
    struct place *p = &w->place[level];
    uint64_t end = base + span(level) * MF_PT_ENTRIES - 1;

    w->level = level;
    p->table = table;
    p->base = base;
    p->at = z->first_gfn > base ? (uint32_t)((z->first_gfn - base) / span(level)) : 0;
    p->hi = z->last_gfn < end ? (uint32_t)((z->last_gfn - base) / span(level)) : MF_PT_ENTRIES - 1;
    p->used = NULL;
}

#if !defined(POSTORDER_TRACKED)
/* Goes on to the next present entry; at is behind hi when there is none, or after READS reads. */
static bool next_used(struct mf_zap *z, struct walk *w, struct place *p)
{
    (void)z;
    for (uint32_t n = 0; p->at <= p->hi; p->at++) {
        if (__atomic_load_n(&p->table[p->at], __ATOMIC_ACQUIRE))
            return true;
        w->reads++;
        if (++n == READS)
            return false;
    }
    return false;
}

/* How many entries to hand to zap_run: it looks at each itself. */
static uint32_t run_length(const struct place *p)
{
    return p->hi - p->at + 1;
}
#else
static uint64_t used_word(const struct place *p, uint32_t i)
{
    return __atomic_load_n(&p->used[i], __ATOMIC_RELAXED);
}

/* The bitmap is asked for where it pays: level 1, or a core that knows no better. */
static bool next_used(struct mf_zap *z, struct walk *w, struct place *p)
{
    (void)w;
    if (w->level > 1 && MF_ZAP_HAS(z->host, next)) {
        p->at = p->at <= p->hi ? z->host->next(z, p->table, p->at) : p->at;
        return p->at <= p->hi;
    }
    if (!p->used)
        p->used = z->host->used(z, p->table);
    if (!p->used) /* no table of ours: then there is nothing in it */
        p->at = p->hi + 1;
    while (p->at <= p->hi) {
        uint64_t bits = used_word(p, p->at / 64) >> p->at % 64;

        if (bits) {
            p->at += (uint32_t)__builtin_ctzll(bits);
            return p->at <= p->hi;
        }
        p->at = (p->at / 64 + 1) * 64;
    }
    return false;
}

/* The used entries from here on without a gap. */
static uint32_t run_length(const struct place *p)
{
    uint32_t at = p->at;

    while (at <= p->hi) {
        uint64_t gaps = ~(used_word(p, at / 64) >> at % 64);

        if (gaps && at % 64 + (uint32_t)__builtin_ctzll(gaps) < 64) {
            at += (uint32_t)__builtin_ctzll(gaps);
            break;
        }
        at = (at / 64 + 1) * 64;
    }
    return (at <= p->hi ? at : p->hi + 1) - p->at;
}
#endif

static int postorder_begin(struct mf_zap *z, void *state)
{
    enter(z, state, TOP, z->root, 0);
#if defined(POSTORDER_TRACKED)
    if (!MF_ZAP_HAS(z->host, next) && !z->host->used(z, z->root))
        return MF_PL_RANGE;
#endif
    return MF_PL_OK;
}

/* Removes the entry at the place; `table`: it points to a table that was gone through. */
static int remove_entry(struct mf_zap *z, struct walk *w, uint32_t level, bool table)
{
    struct place *p = &w->place[level];
    uint64_t first = p->base + p->at * span(level), last = first + span(level) - 1;
    int rc = z->host->zap(z, p->table, p->at);

    if (rc == MF_PL_BLOCKED)
        return rc;
    if (rc == MF_PL_OK)
        z->loops++;
    if (table && rc == MF_PL_NOT_EMPTY && first >= z->first_gfn && last <= z->last_gfn)
        w->again = true;
    p->at++;
    return MF_PL_OK;
}

/* The table of this level is at its end: goes up and removes it. *done at the end of the root. */
static int leave(struct mf_zap *z, struct walk *w, bool *done)
{
    int rc;

    if (w->level < TOP) {
        rc = remove_entry(z, w, w->level + 1, true);
        if (rc == MF_PL_OK)
            w->level++;
        return rc;
    }
    *done = !w->again || ++w->rounds == ROUNDS_MAX;
    if (!*done) {
        w->again = false;
        enter(z, w, TOP, z->root, 0);
    }
    return MF_PL_OK;
}

/* Leaves of level 1, several in a call. */
static int remove_run(struct mf_zap *z, struct place *p, uint32_t budget, uint32_t *cost)
{
    uint32_t n = run_length(p), removed = 0;
    int rc;

    n = n < budget ? n : budget;
    rc = z->host->zap_run(z, p->table, p->at, n, &removed);
    z->loops += removed;
    *cost = removed + n / READS + 1;
    if (rc == MF_PL_BLOCKED)
        return rc;
    p->at += n;
    return MF_PL_OK;
}

#if defined(POSTORDER_TRACKED)
/*
 * Tables with a few leaves go several in a call. *cost 0: the place is at an entry that wants to be
 * looked at.
 */
static int sweep(struct mf_zap *z, struct place *p, uint32_t budget, uint32_t *cost)
{
    uint32_t next = p->at, removed = 0;
    int rc = MF_PL_OK;

    if (MF_ZAP_HAS(z->host, sweep) && p->at <= p->hi)
        rc = z->host->sweep(z, p->table, p->at, budget, &next, &removed);
    if (rc == MF_PL_RANGE)
        rc = MF_PL_OK;
    z->loops += removed;
    p->at = next;
    *cost = removed;
    return rc;
}
#endif

/* One piece of work; *cost in units. */
static int work(struct mf_zap *z, struct walk *w, uint32_t budget, uint32_t *cost, bool *done)
{
    struct place *p = &w->place[w->level];
    mf_table child;

    *cost = 1;
#if defined(POSTORDER_TRACKED)
    if (w->level == 2) {
        int rc = sweep(z, p, budget, cost);

        if (rc != MF_PL_OK || *cost)
            return rc;
        *cost = 1;
    }
#endif
    if (!next_used(z, w, p))
        return p->at > p->hi ? leave(z, w, done) : MF_PL_OK;
    if (w->level == 1)
        return remove_run(z, p, budget, cost);
    child = z->host->child(z, p->table, p->at);
    if (!child)
        return remove_entry(z, w, w->level, false);
    *cost = 0;
    enter(z, w, w->level - 1, child, p->base + p->at * span(w->level));
    return MF_PL_OK;
}

#if defined(POSTORDER_ARENA)
/* Drops extents, as far as the budget goes. MF_PL_RANGE: the tree has to be walked. */
static int drop_extents(struct mf_zap *z, struct walk *w, uint32_t budget)
{
    uint32_t n = 0;
    int rc = MF_PL_RANGE;

    if (z->whole && !w->walks && MF_ZAP_HAS(z->host, drop))
        rc = z->host->drop(z, budget, &n);
    z->loops += n;
    if (rc == MF_PL_OK && n)
        return MF_PL_AGAIN;
    w->walks = rc == MF_PL_RANGE;
    return rc;
}
#endif

static int postorder_step(struct mf_zap *z, void *state, uint32_t budget)
{
    struct walk *w = state;
    bool done = false;

#if defined(POSTORDER_ARENA)
    int dropped = drop_extents(z, w, budget);

    if (dropped != MF_PL_RANGE)
        return dropped;
#endif

    while (budget) {
        uint32_t cost;
        int rc = work(z, w, budget, &cost, &done);

        if (rc != MF_PL_OK)
            return rc;
        if (done)
            return MF_PL_OK;
        budget -= cost < budget ? cost : budget;
    }
    return MF_PL_AGAIN;
}

_Static_assert(sizeof(struct walk) <= MF_ZAP_STATE_MAX, "state size");

static const struct mf_teardown_ops postorder_ops = {
    .size = sizeof(struct mf_teardown_ops),
    .flags = POSTORDER_FLAGS,
    .state_size = sizeof(struct walk),
    .begin = postorder_begin,
    .step = postorder_step,
};

MF_TEARDOWN_PLUGIN(POSTORDER_NAME, "1.0", POSTORDER_TEXT, &postorder_ops);
