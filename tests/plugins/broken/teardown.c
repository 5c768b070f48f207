/*
 * A small teardown strategy that is right, and one fault put into it by -DFAULT=NAME: the
 * conformance kit must catch each by the name of its rule (meson.build has the pairs). Never
 * installed. One walk in post-order over the entries of the scope.
 */
#include "proto/plugin.h"

enum fault {
    NOTHING,
    SKIPS_AFTER_YIELD,
    SAYS_DONE,
    LEAVES_TABLES,
    TABLE_TWICE,
    ENTRY_TWICE,
    BORDER,
    OUTSIDE_SCOPE,
    UNBOUNDED,
    ASKS_WITHOUT_END,
    EARLY_RETURN,
    IGNORES_BLOCKED,
    HIDES_BLOCKED,
    WRITES_TABLE,
    READS_FREED,
    ASKS_FREED,
    NO_ENTRY,
    WRITES_BEHIND_STATE,
    NEVER_ENDS,
    COUNTS_BACK,
    BAD_STATUS,
    NEW_SERVICE,
    DROP_AND_WALK,
    LEAVES_EXTENTS,
    CRASH,
    ENDLESS_LOOP,
};

#define IS(f) (FAULT == (f))

struct walk {
    mf_table table[5]; /* by level */
    uint64_t base[5];
    uint32_t index[5];
    uint32_t level;
    uint32_t steps;
    mf_table gone; /* a table that was taken out */
};

static uint64_t span(uint32_t level)
{
    return UINT64_C(1) << (9 * (level - 1));
}

/* Does the fault make the walk look at what lies beside the scope? */
static bool looks_beside(const struct mf_zap *z, const struct walk *w, uint32_t level)
{
    uint64_t end = w->base[level] + span(level) * MF_PT_ENTRIES - 1;
    bool partly = w->base[level] <= z->last_gfn && end >= z->first_gfn;

    if (IS(BORDER))
        return level == 1 && partly;
    return IS(OUTSIDE_SCOPE) && (level > 1 || !partly);
}

static bool in_scope(const struct mf_zap *z, const struct walk *w, uint32_t level, uint32_t i,
                     bool wholly)
{
    uint64_t first = w->base[level] + i * span(level), last = first + span(level) - 1;

    if (looks_beside(z, w, level))
        return !wholly || level == 1 || (first >= z->first_gfn && last <= z->last_gfn);
    if (wholly)
        return first >= z->first_gfn && last <= z->last_gfn;
    return first <= z->last_gfn && last >= z->first_gfn;
}

static int begin(struct mf_zap *z, void *state)
{
    struct walk *w = state;

    w->level = z->root_level;
    w->table[w->level] = z->root;
    return MF_PL_OK;
}

static int remove_table(struct mf_zap *z, struct walk *w)
{
    uint32_t parent = w->level + 1;
    int rc;

    if (IS(LEAVES_TABLES)) {
        w->index[parent]++;
        w->level = parent;
        return MF_PL_OK;
    }
    rc = z->host->zap(z, w->table[parent], w->index[parent]);
    if (rc == MF_PL_BLOCKED && !IS(IGNORES_BLOCKED))
        return rc;
    if (IS(TABLE_TWICE) && rc == MF_PL_OK)
        z->host->zap(z, w->table[parent], w->index[parent]);
    if (IS(READS_FREED) && rc == MF_PL_OK && w->table[w->level][0])
        z->loops++;
    if (IS(ASKS_FREED) && rc == MF_PL_OK)
        z->host->count(z, w->table[w->level]);
    w->index[parent]++;
    w->level = parent;
    return MF_PL_OK;
}

static int remove_leaf(struct mf_zap *z, struct walk *w, uint32_t i)
{
    int rc = z->host->zap(z, w->table[w->level], i);

    if (rc == MF_PL_BLOCKED && IS(EARLY_RETURN)) /* as if the flush had been */
        rc = z->host->zap(z, w->table[w->level], i);
    if (rc == MF_PL_BLOCKED && !IS(IGNORES_BLOCKED))
        return rc;
    if (IS(ENTRY_TWICE))
        z->host->zap(z, w->table[w->level], i);
    return MF_PL_OK;
}

static void misbehave(struct mf_zap *z, struct walk *w, mf_table t, uint32_t i)
{
    uint32_t a, b;

    if (IS(CRASH))
        *(volatile uint64_t *)(uintptr_t)(8 + i) = 0;
    if (IS(WRITES_TABLE))
        *(uint64_t *)(uintptr_t)&t[i] = 0;
    if (IS(NO_ENTRY))
        z->host->child(z, t, MF_PT_ENTRIES);
    if (IS(COUNTS_BACK) && w->steps > 2)
        z->loops = 1;
    if (IS(NEW_SERVICE) && w->level == 2)
        z->host->sweep(z, t, 0, 1, &a, &b);
    while (IS(ENDLESS_LOOP))
        __asm__ volatile("");
}

/* One entry, or the end of a table. */
static int one(struct mf_zap *z, struct walk *w, bool *done)
{
    mf_table t = w->table[w->level], child;
    uint32_t i = w->index[w->level];
    int rc = MF_PL_OK;

    z->loops++;
    if (i == MF_PT_ENTRIES) {
        *done = w->level == z->root_level;
        return *done ? MF_PL_OK : remove_table(z, w);
    }
    if (!t[i] || !in_scope(z, w, w->level, i, false)) {
        w->index[w->level]++;
        return MF_PL_OK;
    }
    misbehave(z, w, t, i);
    child = z->host->child(z, t, i);
    if (child) {
        w->base[w->level - 1] = w->base[w->level] + i * span(w->level);
        w->level--;
        w->table[w->level] = child;
        w->index[w->level] = 0;
        return MF_PL_OK;
    }
    if (in_scope(z, w, w->level, i, true))
        rc = remove_leaf(z, w, i);
    if (rc == MF_PL_OK)
        w->index[w->level]++;
    return rc;
}

static void before_step(struct mf_zap *z, struct walk *w)
{
    uint32_t i = w->index[w->level];

    w->steps++;
    if (IS(SKIPS_AFTER_YIELD) && w->steps > 1 && i < MF_PT_ENTRIES && w->table[w->level][i] &&
        !z->host->child(z, w->table[w->level], i))
        w->index[w->level]++;
    if (IS(WRITES_BEHIND_STATE))
        ((volatile uint8_t *)w)[sizeof *w] = 0;
    if (IS(ASKS_WITHOUT_END))
        for (unsigned n = 0; n < 100000; n++)
            z->host->count(z, z->root);
}

/* Extents go, if they can. */
static int drop(struct mf_zap *z, uint32_t budget, bool *used)
{
    uint32_t n = 0;
    int rc;

    *used = false;
    if (z->host->size <= offsetof(struct mf_zap_host, drop) || !z->whole)
        return MF_PL_OK;
    rc = z->host->drop(z, budget, &n);
    *used = rc != MF_PL_RANGE;
    if (IS(DROP_AND_WALK) && *used)
        z->host->count(z, z->root);
    if (IS(LEAVES_EXTENTS) && rc == MF_PL_OK)
        return MF_PL_OK;
    return rc == MF_PL_OK && n ? MF_PL_AGAIN : rc;
}

static int step(struct mf_zap *z, void *state, uint32_t budget)
{
    struct walk *w = state;
    bool done = IS(SAYS_DONE), used;
    int rc = MF_PL_OK;

    if (IS(BAD_STATUS))
        return 5;
    if (IS(NEVER_ENDS)) {
        z->loops++;
        return MF_PL_AGAIN;
    }
    if (IS(DROP_AND_WALK) || IS(LEAVES_EXTENTS)) {
        rc = drop(z, budget, &used);
        if (used)
            return rc;
        rc = MF_PL_OK;
    }
    before_step(z, w);
    while (!done && (budget-- > 0 || IS(UNBOUNDED))) {
        rc = one(z, w, &done);
        if (rc != MF_PL_OK)
            return IS(HIDES_BLOCKED) ? MF_PL_AGAIN : rc;
    }
    return done ? MF_PL_OK : MF_PL_AGAIN;
}

static const struct mf_teardown_ops ops = {
    .size = sizeof ops,
    .flags = IS(DROP_AND_WALK) || IS(LEAVES_EXTENTS) ? MF_TD_ARENA : 0,
    .state_size = sizeof(struct walk),
    .begin = begin,
    .step = step,
};

MF_TEARDOWN_PLUGIN("broken-teardown", "1.0", "has one fault", &ops);
