/*
 * A second stage of the kit's own: tables that the plugin sees read-only, and a shadow that knows
 * of each entry what it is, what it was and when it came. The services are in tree_host.c.
 */
#ifndef MAYFLY_CONFORM_TREE_H
#define MAYFLY_CONFORM_TREE_H

#include <pthread.h>

#include "conform/impl.h"

#define TREE_TABLES  1024u
#define TREE_TOP     4u
#define TREE_GFN_END (UINT64_C(1) << 36)

enum tree_was { WAS_NOTHING, WAS_LEAF, WAS_TABLE };

struct tree_node {
    bool live;
    bool grew;    /* got an entry since the teardown began */
    bool blessed; /* was there when the teardown began */
    uint32_t level, parent, parent_entry, entries;
    uint64_t base; /* first guest frame */
    uint64_t used[MF_PT_ENTRIES / 64];
    uint32_t child[MF_PT_ENTRIES]; /* node + 1 where the entry points to a table */
    uint8_t was[MF_PT_ENTRIES];    /* of what is gone: enum tree_was */
    uint8_t young[MF_PT_ENTRIES];  /* came since the teardown began */
};

struct tree {
    struct conform_rng *rng;
    uint8_t *rw;       /* TREE_TABLES pages, ours */
    const uint8_t *ro; /* the same pages, the plugin's */
    uint32_t nr_nodes; /* ever made; node 0 is the root */
    struct tree_node *node;

    /* scope of the teardown under way */
    uint64_t first, last;
    bool whole;
    bool tracked;       /* the plugin has MF_TD_TRACKS */
    bool arena;         /* drop may be used, nothing else is needed */
    unsigned block_pct; /* chance that a service says MF_PL_BLOCKED */

    /* of the step under way */
    const char *blocked_by; /* a service said MF_PL_BLOCKED */
    uint64_t removed, asked;
    bool dropping;
    uint64_t extents;

    pthread_mutex_t lock;
    /* under lock: nodes, tables, counters below */
    uint64_t leaves, tables, removed_ever;
};

void tree_init(struct tree *t, struct conform_rng *rng);
void tree_fini(struct tree *t);
/* Empties it: one root without an entry. */
void tree_clear(struct tree *t);
/* A leaf at `level`, with the tables it needs. False: something is there, or no table is left. */
bool tree_map(struct tree *t, uint64_t gfn, uint32_t level);
/* The shape that KVM's loops were counted on: 3 + 1 tables with two leaves of 4 KiB. */
void tree_reference(struct tree *t);
void tree_random(struct tree *t);
/* A guest frame near to what is mapped, or anywhere. */
uint64_t tree_somewhere(struct tree *t);
/* What is there now was there when the teardown began. */
void tree_begin(struct tree *t, uint64_t first, uint64_t last, bool whole);
/* The teardown under way is begun anew: the strategy knows nothing of what it took out. */
void tree_again(struct tree *t);
/* The strategy says that it is done. */
void tree_check_done(struct tree *t);

static inline uint64_t tree_span(uint32_t level)
{
    return UINT64_C(1) << (9 * (level - 1));
}
static inline uint64_t *tree_entries(struct tree *t, uint32_t node)
{
    return (uint64_t *)(void *)(t->rw + (size_t)node * 4096);
}
static inline bool tree_inside(const struct tree *t, uint64_t first, uint64_t n)
{
    return first >= t->first && first + n - 1 <= t->last;
}

/* The services, as a core of today has them, or one of the first. Valid while the area is. */
const struct mf_zap_host *tree_host(struct conform_area *a, bool old);
/* The tree behind a teardown. */
struct tree *tree_of(struct mf_zap *z);

struct tree_zap {
    struct mf_zap zap;
    struct tree *tree;
};

#endif
