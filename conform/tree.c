#include "conform/tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BYTES ((size_t)TREE_TABLES * 4096)

void tree_init(struct tree *t, struct conform_rng *rng)
{
    void *rw, *ro;

    *t = (struct tree){.rng = rng, .last = TREE_GFN_END - 1, .whole = true};
    rw = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (rw == MAP_FAILED)
        abort();
    /* With an old size of 0 a shared mapping is mapped a second time. */
    ro = mremap(rw, 0, BYTES, MREMAP_MAYMOVE);
    t->node = calloc(TREE_TABLES, sizeof *t->node);
    if (ro == MAP_FAILED || !t->node || mprotect(ro, BYTES, PROT_READ))
        abort();
    t->rw = rw;
    t->ro = ro;
    pthread_mutex_init(&t->lock, NULL);
    conform_fault_is(ro, BYTES, CONFORM_WRITTEN, "an entry of a table was written");
    conform_fault_read_is(ro, CONFORM_FREED, "a table was read that had been taken out");
    tree_clear(t);
}

void tree_fini(struct tree *t)
{
    conform_fault_forget(t->ro);
    munmap(t->rw, BYTES);
    munmap((void *)(uintptr_t)t->ro, BYTES);
    free(t->node);
    pthread_mutex_destroy(&t->lock);
}

void tree_clear(struct tree *t)
{
    memset(t->rw, 0, (size_t)t->nr_nodes * 4096);
    memset(t->node, 0, t->nr_nodes * sizeof *t->node);
    if (mprotect((void *)(uintptr_t)t->ro, BYTES, PROT_READ))
        abort();
    t->node[0] = (struct tree_node){.live = true, .blessed = true, .level = TREE_TOP};
    t->nr_nodes = 1;
    t->leaves = t->removed_ever = 0;
    t->tables = 1;
    t->dropping = false;
}

/* ---- growing. Locked, or nobody else there. */

static void set_entry(struct tree *t, uint32_t node, uint32_t i, uint64_t pte)
{
    struct tree_node *n = &t->node[node];

    n->entries++;
    n->used[i / 64] |= UINT64_C(1) << i % 64;
    n->was[i] = WAS_NOTHING;
    n->young[i] = 1;
    n->grew = true;
    __atomic_store_n(&tree_entries(t, node)[i], pte, __ATOMIC_RELEASE);
}

static bool add_table(struct tree *t, uint32_t node, uint32_t i)
{
    struct tree_node *n = &t->node[node];
    uint32_t m = t->nr_nodes;

    if (m == TREE_TABLES)
        return false;
    t->nr_nodes++;
    t->tables++;
    t->node[m] = (struct tree_node){.live = true,
                                    .grew = true,
                                    .level = n->level - 1,
                                    .parent = node,
                                    .parent_entry = i,
                                    .base = n->base + i * tree_span(n->level)};
    n->child[i] = m + 1;
    set_entry(t, node, i,
              (UINT64_C(0x100000) + m) << 12 | MF_PTE_PRESENT | MF_PTE_WRITE | MF_PTE_USER);
    return true;
}

/* Some leaves are in use by software while the CPU sees them as absent. */
static uint64_t leaf_bits(struct tree *t, uint32_t level)
{
    uint64_t bits = MF_PTE_WRITE | MF_PTE_USER | (conform_below(t->rng, 4) << 5);

    if (level > 1)
        bits |= MF_PTE_LEAF;
    return conform_chance(t->rng, 95) ? bits | MF_PTE_PRESENT : bits;
}

bool tree_map(struct tree *t, uint64_t gfn, uint32_t level)
{
    uint32_t node = 0;

    gfn &= ~(tree_span(level) - 1);
    for (;;) {
        struct tree_node *n = &t->node[node];
        uint32_t i = (uint32_t)((gfn - n->base) / tree_span(n->level));

        if (n->level == level) {
            if (tree_entries(t, node)[i])
                return false;
            set_entry(t, node, i, gfn << 12 | leaf_bits(t, level));
            t->leaves++;
            return true;
        }
        if (!tree_entries(t, node)[i] && !add_table(t, node, i))
            return false;
        if (!n->child[i])
            return false;
        node = n->child[i] - 1;
    }
}

void tree_reference(struct tree *t)
{
    tree_map(t, (UINT64_C(102) << 9) + 123, 1);
    tree_map(t, (UINT64_C(190) << 9) + 432, 1);
    add_table(t, t->node[0].child[0] - 1, 3);
    add_table(t, t->nr_nodes - 1, 303);
}

uint64_t tree_somewhere(struct tree *t)
{
    struct tree_node *n = &t->node[conform_below(t->rng, t->nr_nodes)];

    if (conform_chance(t->rng, 10))
        return conform_below(t->rng, TREE_GFN_END);
    return n->base + conform_below(t->rng, MF_PT_ENTRIES) * tree_span(n->level) +
           conform_below(t->rng, tree_span(n->level));
}

static uint32_t random_level(struct conform_rng *r)
{
    return conform_chance(r, 80) ? 1 : (uint32_t)conform_below(r, 3) + 1;
}

/* Runs of leaves here and there, single ones, and tables without an entry. */
void tree_random(struct tree *t)
{
    unsigned clusters = 1 + (unsigned)conform_below(t->rng, 12);

    for (unsigned c = 0; c < clusters; c++) {
        uint64_t at =
            conform_chance(t->rng, 50) ? tree_somewhere(t) : conform_below(t->rng, TREE_GFN_END);
        uint32_t level = random_level(t->rng);
        uint64_t n =
            conform_chance(t->rng, 30) ? conform_below(t->rng, 1200) : conform_below(t->rng, 12);

        for (uint64_t i = 0; i < n && at < TREE_GFN_END; i++) {
            tree_map(t, at, level);
            at += tree_span(level) * (conform_chance(t->rng, 85) ? 1 : conform_below(t->rng, 70));
        }
    }
    for (unsigned i = 0; i < 6; i++) {
        uint32_t node = (uint32_t)conform_below(t->rng, t->nr_nodes);
        uint32_t e = (uint32_t)conform_below(t->rng, MF_PT_ENTRIES);

        if (t->node[node].level > 1 && !tree_entries(t, node)[e])
            add_table(t, node, e);
    }
}

/* ---- a teardown's beginning and end */

void tree_begin(struct tree *t, uint64_t first, uint64_t last, bool whole)
{
    t->first = first;
    t->last = last;
    t->whole = whole;
    t->blocked_by = NULL;
    for (uint32_t i = 0; i < t->nr_nodes; i++) {
        struct tree_node *n = &t->node[i];

        n->blessed = n->live;
        n->grew = false;
        memset(n->young, 0, sizeof n->young);
        memset(n->was, 0, sizeof n->was);
    }
}

void tree_again(struct tree *t)
{
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->nr_nodes; i++)
        memset(t->node[i].was, WAS_NOTHING, sizeof t->node[i].was);
    pthread_mutex_unlock(&t->lock);
}

static void check_node(struct tree *t, uint32_t node)
{
    struct tree_node *n = &t->node[node];
    uint64_t span = tree_span(n->level);

    for (uint32_t i = 0; i < MF_PT_ENTRIES; i++) {
        uint64_t first = n->base + i * span;

        if (!tree_entries(t, node)[i] || n->young[i] || n->child[i])
            continue;
        if (tree_inside(t, first, span))
            conform_fail(CONFORM_SKIPPED,
                         "the leaf at guest frame %#llx (level %u, entry %u) is still there",
                         (unsigned long long)first, n->level, i);
    }
    if (node && n->blessed && !n->grew && !n->entries &&
        tree_inside(t, n->base, span * MF_PT_ENTRIES))
        conform_fail(CONFORM_LEFT, "the empty table of level %u for guest frame %#llx is left",
                     n->level, (unsigned long long)n->base);
}

void tree_check_done(struct tree *t)
{
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->nr_nodes; i++)
        if (t->node[i].live)
            check_node(t, i);
    pthread_mutex_unlock(&t->lock);
}
