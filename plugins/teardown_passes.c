/*
 * Teardown in four passes: first the 4 KiB leaves, then what stands at level 2, 3 and 4. A pass
 * goes through the tree in pre-order, one entry a loop, and removes what it meets at its level;
 * tables are empty by then, because the passes before emptied them.
 *
 * One source, three plugins:
 *   PASSES_SCAN     every entry is a loop
 *   PASSES_PRESENT  every present entry is a loop; to find them all entries are still read
 *   PASSES_SKIP     a loop that meets an absent entry steps over up to 32 further ones; when it
 * comes to a present one it stops there and handles it in the same loop
 */
#include "proto/plugin.h"

#if defined(PASSES_SCAN)
#define PASSES_NAME "scan"
#define PASSES_TEXT "four passes, one entry a loop"
#define SKIP_MAX    0u
#elif defined(PASSES_SKIP)
#define PASSES_NAME "skip"
#define PASSES_TEXT "four passes, stepping over up to 32 absent entries in a loop"
#define SKIP_MAX    32u
#elif defined(PASSES_PRESENT)
#define PASSES_NAME "present"
#define PASSES_TEXT "four passes, one loop for each present entry"
#define SKIP_MAX    0u
#else
#error "define PASSES_SCAN, PASSES_SKIP or PASSES_PRESENT"
#endif

#define TOP        4u
#define ROUNDS_MAX 8u /* how often it starts over because a guest kept mapping */

/* Where the walk is in the table of one level. */
struct place {
    mf_table table;
    uint64_t base;   /* first guest frame the table maps */
    uint32_t at, hi; /* next entry, last entry in the scope */
};

struct passes {
    uint32_t pass;  /* 0 ... 3; removes at level pass + 1 */
    uint32_t level; /* the walk is here */
    uint32_t rounds;
    bool again; /* a table inside the scope was not empty: something was mapped behind us */
    struct place place[TOP + 1];
};

static uint64_t span(uint32_t level)
{
    return UINT64_C(1) << (9 * (level - 1));
}

static uint64_t load(mf_table table, uint32_t i)
{
    return __atomic_load_n(&table[i], __ATOMIC_ACQUIRE);
}

static void enter(const struct mf_zap *z, struct passes *s, uint32_t level, mf_table table,
                  uint64_t base)
{
    struct place *p = &s->place[level];
    uint64_t end = base + span(level) * MF_PT_ENTRIES - 1;

    s->level = level;
    p->table = table;
    p->base = base;
    p->at = z->first_gfn > base ? (uint32_t)((z->first_gfn - base) / span(level)) : 0;
    p->hi = z->last_gfn < end ? (uint32_t)((z->last_gfn - base) / span(level)) : MF_PT_ENTRIES - 1;
}

static int passes_begin(struct mf_zap *z, void *state)
{
    enter(z, state, TOP, z->root, 0);
    return MF_PL_OK;
}

/* Removes the entry where the walk is. */
static int remove_entry(struct mf_zap *z, struct passes *s, struct place *p)
{
    uint64_t first = p->base + p->at * span(s->level), last = first + span(s->level) - 1;
    int rc = z->host->zap(z, p->table, p->at);

    if (rc == MF_PL_BLOCKED)
        return rc;
    if (rc == MF_PL_NOT_EMPTY && first >= z->first_gfn && last <= z->last_gfn)
        s->again = true;
    p->at++;
    return MF_PL_OK;
}

/* One loop. */
static int visit(struct mf_zap *z, struct passes *s)
{
    struct place *p = &s->place[s->level];
    uint64_t entry = load(p->table, p->at);
    mf_table child;
    int rc = MF_PL_OK;

    for (uint32_t left = SKIP_MAX; !entry && left && p->at < p->hi; left--)
        entry = load(p->table, ++p->at);
    if (!entry) {
        p->at++;
    } else if (s->level == s->pass + 1) {
        rc = remove_entry(z, s, p);
    } else {
        child = z->host->child(z, p->table, p->at);
        if (child)
            enter(z, s, s->level - 1, child, p->base + p->at * span(s->level));
        else
            p->at++;
    }
    if (rc == MF_PL_OK) {
        z->loops++;
        z->loops_per_pass[s->pass]++;
    }
    return rc;
}

/* The tables at their ends are left, passes at their ends are changed; false: all is done. */
static bool settle(struct mf_zap *z, struct passes *s)
{
    while (s->place[s->level].at > s->place[s->level].hi) {
        if (s->level < TOP) {
            s->place[++s->level].at++;
            continue;
        }
        if (++s->pass == MF_ZAP_PASSES) {
            if (!s->again || ++s->rounds == ROUNDS_MAX) {
                s->pass--;
                return false;
            }
            s->again = false;
            s->pass = 0;
        }
        enter(z, s, TOP, z->root, 0);
    }
    return true;
}

#if defined(PASSES_PRESENT)
#define READS 32u /* entries read that cost as much as a loop */

/* Reads on to the next present entry, at most READS of them; true when the walk is at one. */
static bool find_present(struct passes *s)
{
    struct place *p = &s->place[s->level];

    for (uint32_t n = 0; n < READS && p->at <= p->hi; n++, p->at++)
        if (load(p->table, p->at))
            return true;
    return false;
}
#else
static bool find_present(struct passes *s)
{
    (void)s; /* absent entries are visited too */
    return true;
}
#endif

static int passes_step(struct mf_zap *z, void *state, uint32_t budget)
{
    struct passes *s = state;

    while (settle(z, s)) {
        int rc;

        if (!budget--)
            return MF_PL_AGAIN;
        if (!find_present(s))
            continue;
        rc = visit(z, s);
        if (rc != MF_PL_OK)
            return rc;
    }
    return MF_PL_OK;
}

_Static_assert(sizeof(struct passes) <= MF_ZAP_STATE_MAX, "state size");

static const struct mf_teardown_ops passes_ops = {
    .size = sizeof(struct mf_teardown_ops),
    .state_size = sizeof(struct passes),
    .begin = passes_begin,
    .step = passes_step,
};

MF_TEARDOWN_PLUGIN(PASSES_NAME, "1.0", PASSES_TEXT, &passes_ops);
