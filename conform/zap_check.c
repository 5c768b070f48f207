/* What a teardown strategy is put through. */
#include <sched.h>
#include <string.h>

#include "conform/tree.h"

#define STATE_ALIGN   16u
#define STEPS_MAX     8192u
#define ADDED_BETWEEN 16u
#define ADDED_BESIDE  300u /* leaves that the other thread maps in one teardown */

struct run {
    const struct mf_teardown_ops *ops;
    const struct mf_zap_host *services;
    struct conform_rng rng;
    struct tree tree;
    struct tree_zap z;
    struct conform_area state_area;
    uint8_t *state;
    uint64_t idle; /* units of work since an entry was removed */
    bool adds;     /* between the steps something is mapped */
};

/* ---- the plugin's ops */

static size_t state_bytes(const struct run *u)
{
    size_t n = u->ops->state_size ? u->ops->state_size : 1;

    return (n + STATE_ALIGN - 1) & ~(size_t)(STATE_ALIGN - 1);
}

static void check_state(const struct run *u)
{
    for (size_t i = u->ops->state_size; i < state_bytes(u); i++)
        if (u->state[i] != 0xa5)
            conform_fail(CONFORM_STATE, "byte %zu of a state of %u bytes was written", i,
                         u->ops->state_size);
}

static void call_begin(struct run *u)
{
    struct mf_zap *z = &u->z.zap;
    int rc;

    memset(z, 0, sizeof *z);
    memset(u->state, 0, u->ops->state_size);
    memset(u->state + u->ops->state_size, 0xa5, state_bytes(u) - u->ops->state_size);
    z->size = sizeof *z;
    z->root_level = TREE_TOP;
    z->host = u->services;
    z->root = (mf_table)(const void *)u->tree.ro;
    z->first_gfn = u->tree.first;
    z->last_gfn = u->tree.last;
    z->whole = u->tree.whole;
    u->idle = 0;
    conform_enter("begin");
    rc = u->ops->begin(z, u->state);
    conform_leave();
    if (rc != MF_PL_OK)
        conform_fail(CONFORM_STATUS, "begin answers %d", rc);
}

static void call_end(struct run *u)
{
    check_state(u);
    if (!u->ops->end)
        return;
    conform_enter("end");
    u->ops->end(&u->z.zap, u->state);
    conform_leave();
}

/* About the budget: a run of entries may be taken as one piece, and looking costs less. */
static void check_bounds(const struct run *u, uint32_t budget, uint64_t loops)
{
    const struct tree *t = &u->tree;
    uint64_t most = 2 * (uint64_t)budget + 64;

    if (loops > most || t->removed > most)
        conform_fail(CONFORM_BOUNDED,
                     "a step with a budget of %u made %llu loops and took out %llu entries", budget,
                     (unsigned long long)loops, (unsigned long long)t->removed);
    if (t->asked > 16 * (uint64_t)budget + 256)
        conform_fail(CONFORM_BOUNDED, "a step with a budget of %u asked for %llu services", budget,
                     (unsigned long long)t->asked);
}

static void check_counters(const struct run *u, uint64_t before)
{
    const struct mf_zap *z = &u->z.zap;

    if (z->loops < before)
        conform_fail(CONFORM_COUNTERS, "loops went from %llu to %llu", (unsigned long long)before,
                     (unsigned long long)z->loops);
    for (unsigned p = 0; p < MF_ZAP_PASSES; p++)
        if (z->loops_per_pass[p] > z->loops)
            conform_fail(CONFORM_COUNTERS, "pass %u has %llu loops, all together %llu", p,
                         (unsigned long long)z->loops_per_pass[p], (unsigned long long)z->loops);
}

static void check_progress(struct run *u, uint64_t loops)
{
    uint64_t limit;

    pthread_mutex_lock(&u->tree.lock);
    limit = (u->tree.tables + 8) * MF_PT_ENTRIES * 8;
    pthread_mutex_unlock(&u->tree.lock);
    u->idle = u->tree.removed || u->tree.blocked_by ? 0 : u->idle + (loops ? loops : 1);
    if (u->idle > limit)
        conform_fail(CONFORM_ENDS, "%llu units of work and nothing was taken out",
                     (unsigned long long)u->idle);
}

static int call_step(struct run *u, uint32_t budget)
{
    struct tree *t = &u->tree;
    uint64_t before = u->z.zap.loops, loops;
    int rc;

    t->removed = t->asked = 0;
    t->blocked_by = NULL;
    conform_enter("step");
    rc = u->ops->step(&u->z.zap, u->state, budget);
    conform_leave();
    loops = u->z.zap.loops - before;
    if (rc != MF_PL_OK && rc != MF_PL_AGAIN && rc != MF_PL_BLOCKED)
        conform_fail(CONFORM_STATUS, "step answers %d", rc);
    if (t->blocked_by && rc != MF_PL_BLOCKED)
        conform_fail(CONFORM_BLOCKED, "%s was blocked, and step answers %d", t->blocked_by, rc);
    check_state(u);
    check_counters(u, before);
    check_bounds(u, budget, loops);
    check_progress(u, loops);
    conform_count(1 + t->removed);
    return rc;
}

/* ---- one teardown */

static uint32_t random_budget(struct conform_rng *r)
{
    static const uint32_t some[] = {1, 1, 2, 3, 7, 32, 100, 512, 4096};

    return some[conform_below(r, sizeof some / sizeof some[0])];
}

/*
 * Not so small for a large tree that a strategy which looks at every entry needs more than some
 * thousands of steps.
 */
static uint32_t enough(struct run *u, uint32_t budget)
{
    uint64_t least;

    pthread_mutex_lock(&u->tree.lock);
    least = u->tree.tables * MF_PT_ENTRIES * MF_ZAP_PASSES / STEPS_MAX;
    pthread_mutex_unlock(&u->tree.lock);
    return budget > least ? budget : (uint32_t)least;
}

static void map_some(struct run *u, unsigned most)
{
    struct tree *t = &u->tree;
    unsigned n = 1 + (unsigned)conform_below(&u->rng, most);

    pthread_mutex_lock(&t->lock);
    while (n-- > 0)
        tree_map(t, tree_somewhere(t), 1);
    pthread_mutex_unlock(&t->lock);
}

static void finish(struct run *u)
{
    struct tree *t = &u->tree;

    if (t->dropping && t->extents)
        conform_fail(CONFORM_EXTENTS, "done, and %llu extents are left",
                     (unsigned long long)t->extents);
    if (!t->dropping)
        tree_check_done(t);
}

static void one_teardown(struct run *u)
{
    uint32_t budget = random_budget(&u->rng);
    bool mixed = conform_chance(&u->rng, 40);
    /* Given up once and begun anew, at this step. */
    uint64_t again = conform_chance(&u->rng, 30) ? 1 + conform_below(&u->rng, 40) : 0;
    unsigned adds = u->adds ? ADDED_BETWEEN : 0;
    int rc;

    call_begin(u);
    for (uint64_t i = 1;; i++) {
        if (adds && conform_chance(&u->rng, 5)) {
            map_some(u, 20);
            adds--;
        }
        if (mixed)
            budget = random_budget(&u->rng);
        if (i == again && !u->tree.dropping) {
            call_end(u);
            tree_again(&u->tree);
            call_begin(u);
        }
        rc = call_step(u, enough(u, budget));
        if (rc == MF_PL_OK)
            break;
    }
    finish(u);
    call_end(u);
}

/* Does a large leaf reach over the edge at `first` or `last`? Then the scope grows by it. */
static bool grow_scope(struct tree *t, uint64_t *first, uint64_t *last)
{
    for (uint32_t i = 0; i < t->nr_nodes; i++) {
        struct tree_node *n = &t->node[i];
        uint64_t span = tree_span(n->level);

        if (!n->live || n->level == 1)
            continue;
        for (uint32_t e = 0; e < MF_PT_ENTRIES; e++) {
            uint64_t from = n->base + e * span, to = from + span - 1;

            if (!tree_entries(t, i)[e] || n->child[e] || from > *last || to < *first ||
                (from >= *first && to <= *last))
                continue;
            *first = from < *first ? from : *first;
            *last = to > *last ? to : *last;
            return true;
        }
    }
    return false;
}

static void random_scope(struct run *u)
{
    struct tree *t = &u->tree;
    uint64_t first = tree_somewhere(t), last = tree_somewhere(t), swap = first;

    if (conform_chance(&u->rng, 50)) {
        tree_begin(t, 0, TREE_GFN_END - 1, true);
        return;
    }
    if (conform_chance(&u->rng, 50))
        last = first + conform_below(&u->rng, 2000);
    if (last < first) {
        first = last;
        last = swap;
    }
    if (last >= TREE_GFN_END)
        last = TREE_GFN_END - 1;
    while (grow_scope(t, &first, &last))
        ;
    tree_begin(t, first, last, false);
}

/* Whole teardowns of strategies that work on dying or detached address spaces see nothing new. */
static bool may_add(const struct run *u)
{
    if (u->tree.whole && (u->ops->flags & MF_TD_DEFERS || u->tree.arena))
        return false;
    return true;
}

static void map_beside(void *arg)
{
    struct tree *t = arg;

    for (unsigned i = 0; i < ADDED_BESIDE; i++) {
        pthread_mutex_lock(&t->lock);
        tree_map(t, tree_somewhere(t), 1);
        pthread_mutex_unlock(&t->lock);
        sched_yield();
    }
}

/* A few teardowns of one tree, until nothing is left of it. */
static void one_tree(struct run *u, bool beside)
{
    struct tree *t = &u->tree;

    tree_clear(t);
    if (conform_chance(&u->rng, 10))
        tree_reference(t);
    else
        tree_random(t);
    for (unsigned i = 0; i < 4 && !t->dropping; i++) {
        t->arena = u->ops->flags & MF_TD_ARENA && conform_chance(&u->rng, 50);
        t->block_pct = conform_chance(&u->rng, 50) ? 0 : (unsigned)conform_below(&u->rng, 30);
        random_scope(u);
        u->adds = may_add(u) && conform_chance(&u->rng, 50);
        if (beside && may_add(u))
            conform_beside(map_beside, t);
        one_teardown(u);
        conform_beside_wait();
    }
}

/* The reference tree, whole, undisturbed, at a large budget: the loops that a strategy claims. */
static void check_reference(struct run *u)
{
    tree_clear(&u->tree);
    tree_reference(&u->tree);
    u->tree.arena = u->adds = false;
    u->tree.block_pct = 0;
    tree_begin(&u->tree, 0, TREE_GFN_END - 1, true);
    one_teardown(u);
    if (u->tree.removed_ever != 8)
        conform_fail(CONFORM_SKIPPED, "%llu entries of the reference tree's 8 were taken out",
                     (unsigned long long)u->tree.removed_ever);
}

static void run_with(struct run *u, bool old, uint64_t operations)
{
    struct conform_area host;
    uint64_t from = conform_shared->v.operations;

    u->services = tree_host(&host, old);
    check_reference(u);
    while (conform_shared->v.operations - from < operations)
        one_tree(u, !old && conform_shared->v.operations - from > operations / 2);
    conform_area_drop(&host);
}

void conform_teardown(const struct mf_teardown_ops *ops, const struct conform_options *o)
{
    struct run u = {.ops = ops, .rng = {o->seed}};
    struct conform_rng tree_rng = {o->seed ^ 1};

    if (!(ops->flags & MF_TD_ARENA))
        conform_not_claimed(CONFORM_EXTENTS);
    tree_init(&u.tree, &tree_rng);
    u.tree.tracked = ops->flags & MF_TD_TRACKS;
    u.z.tree = &u.tree;
    conform_area_make(&u.state_area, state_bytes(&u), CONFORM_STATE,
                      "memory just outside the state was touched");
    u.state = conform_area_tail(&u.state_area, state_bytes(&u));
    run_with(&u, true, o->operations / 4);
    run_with(&u, false, o->operations - o->operations / 4);
    conform_area_drop(&u.state_area);
    tree_fini(&u.tree);
}
