/* The services that a strategy works with, each of which looks at what it is asked. */
#include "conform/tree.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct tree *tree_of(struct mf_zap *z)
{
    return ((struct tree_zap *)(void *)z)->tree;
}

/* The node that a table pointer names. Locked. */
static uint32_t node_of(struct tree *t, mf_table table, const char *service)
{
    uintptr_t at = (uintptr_t)table - (uintptr_t)t->ro;
    uint32_t node = (uint32_t)(at / 4096);

    if ((uintptr_t)table < (uintptr_t)t->ro || at % 4096 || at / 4096 >= t->nr_nodes)
        conform_fail(CONFORM_ARGUMENTS, "%s is asked about something that is no table", service);
    if (!t->node[node].live)
        conform_fail(CONFORM_FREED, "%s is asked about a table that was taken out", service);
    if (t->dropping)
        conform_fail(CONFORM_EXTENTS, "%s is used beside drop", service);
    return node;
}

static void entry_of(uint32_t index, uint32_t n, const char *service)
{
    if (index >= MF_PT_ENTRIES || n > MF_PT_ENTRIES - index)
        conform_fail(CONFORM_ARGUMENTS, "%s is asked about entries %u to %llu of a table", service,
                     index, (unsigned long long)index + n - 1);
}

/* May a service take something out now? False: it says MF_PL_BLOCKED. Locked. */
static bool may_remove(struct tree *t, const char *service)
{
    if (t->blocked_by)
        conform_fail(CONFORM_FLUSH, "%s is called after %s was blocked, before any flush", service,
                     t->blocked_by);
    if (!conform_chance(t->rng, t->block_pct))
        return true;
    t->blocked_by = service;
    return false;
}

static void check_scope(struct tree *t, const struct tree_node *n, uint32_t i, const char *service)
{
    uint64_t span = tree_span(n->level), first = n->base + i * span;

    if (tree_inside(t, first, span))
        return;
    if (n->base <= t->last && n->base + span * MF_PT_ENTRIES - 1 >= t->first)
        conform_fail(CONFORM_BORDER,
                     "%s of guest frame %#llx, outside the scope, in a table that lies partly in "
                     "it (level %u, entry %u)",
                     service, (unsigned long long)first, n->level, i);
    conform_fail(CONFORM_SCOPE, "%s of guest frame %#llx, outside the scope", service,
                 (unsigned long long)first);
}

static void clear_entry(struct tree *t, uint32_t node, uint32_t i, enum tree_was was)
{
    struct tree_node *n = &t->node[node];

    __atomic_store_n(&tree_entries(t, node)[i], 0, __ATOMIC_RELEASE);
    n->entries--;
    n->used[i / 64] &= ~(UINT64_C(1) << i % 64);
    n->was[i] = (uint8_t)was;
    t->removed++;
    t->removed_ever++;
}

static void remove_leaf(struct tree *t, uint32_t node, uint32_t i, const char *service)
{
    check_scope(t, &t->node[node], i, service);
    clear_entry(t, node, i, WAS_LEAF);
    t->leaves--;
}

/* The table's pages are no longer the plugin's to read. */
static void remove_table(struct tree *t, uint32_t node, uint32_t i)
{
    uint32_t child = t->node[node].child[i] - 1;
    uint8_t *page = (uint8_t *)(uintptr_t)t->ro + (size_t)child * 4096;

    clear_entry(t, node, i, WAS_TABLE);
    t->node[node].child[i] = 0;
    t->node[child].live = false;
    t->tables--;
    if (mprotect(page, 4096, PROT_NONE))
        abort();
}

static void check_absent(struct tree *t, uint32_t node, uint32_t i)
{
    enum tree_was was = t->node[node].was[i];

    if (was == WAS_TABLE)
        conform_fail(CONFORM_TWICE_TABLE,
                     "entry %u of a table of level %u was a table, and was "
                     "taken out before",
                     i, t->node[node].level);
    if (was == WAS_LEAF)
        conform_fail(CONFORM_TWICE_ENTRY, "entry %u of a table of level %u was taken out before", i,
                     t->node[node].level);
}

/* ---- the services */

static mf_table host_child(struct mf_zap *z, mf_table table, uint32_t index)
{
    struct tree *t = tree_of(z);
    uint32_t node, child;

    pthread_mutex_lock(&t->lock);
    t->asked++;
    entry_of(index, 1, "child");
    node = node_of(t, table, "child");
    child = t->node[node].child[index];
    /* Who was told that nothing is there may zap it all the same: an absent entry is no error. */
    if (!tree_entries(t, node)[index])
        t->node[node].was[index] = WAS_NOTHING;
    pthread_mutex_unlock(&t->lock);
    return child ? (mf_table)(const void *)(t->ro + (size_t)(child - 1) * 4096) : NULL;
}

static int zap_locked(struct tree *t, mf_table table, uint32_t index)
{
    uint32_t node = node_of(t, table, "zap"), child;

    entry_of(index, 1, "zap");
    if (!tree_entries(t, node)[index]) {
        check_absent(t, node, index);
        return MF_PL_OK;
    }
    if (!may_remove(t, "zap"))
        return MF_PL_BLOCKED;
    child = t->node[node].child[index];
    if (!child) {
        remove_leaf(t, node, index, "zap");
        return MF_PL_OK;
    }
    if (t->node[child - 1].entries)
        return MF_PL_NOT_EMPTY;
    remove_table(t, node, index);
    return MF_PL_OK;
}

static int host_zap(struct mf_zap *z, mf_table table, uint32_t index)
{
    struct tree *t = tree_of(z);
    int rc;

    pthread_mutex_lock(&t->lock);
    t->asked++;
    rc = zap_locked(t, table, index);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

static int host_zap_run(struct mf_zap *z, mf_table table, uint32_t index, uint32_t n,
                        uint32_t *removed)
{
    struct tree *t = tree_of(z);
    uint32_t node;
    int rc = MF_PL_OK;

    pthread_mutex_lock(&t->lock);
    t->asked++;
    *removed = 0;
    node = node_of(t, table, "zap_run");
    entry_of(index, n, "zap_run");
    for (uint32_t i = index; i < index + n && rc == MF_PL_OK; i++) {
        if (!tree_entries(t, node)[i] || t->node[node].child[i])
            continue;
        /* The chance is that of a call, not of an entry. */
        if (*removed == 0 || conform_chance(t->rng, 5))
            rc = may_remove(t, "zap_run") ? MF_PL_OK : MF_PL_BLOCKED;
        if (rc == MF_PL_OK) {
            remove_leaf(t, node, i, "zap_run");
            ++*removed;
        }
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

static const volatile uint64_t *host_used(struct mf_zap *z, mf_table table)
{
    struct tree *t = tree_of(z);
    const volatile uint64_t *used;

    pthread_mutex_lock(&t->lock);
    t->asked++;
    used = t->node[node_of(t, table, "used")].used;
    pthread_mutex_unlock(&t->lock);
    return t->tracked ? used : NULL;
}

static uint32_t host_count(struct mf_zap *z, mf_table table)
{
    struct tree *t = tree_of(z);
    uint32_t n;

    pthread_mutex_lock(&t->lock);
    t->asked++;
    n = t->node[node_of(t, table, "count")].entries;
    pthread_mutex_unlock(&t->lock);
    return n;
}

/* One table below a level 2 one. MF_PL_NOT_EMPTY: the sweep stops before it. */
static int sweep_one(struct tree *t, uint32_t node, uint32_t i, uint32_t max, uint32_t *removed)
{
    struct tree_node *n = &t->node[node];
    uint32_t child = n->child[i], entries;

    if (!child || !tree_inside(t, n->base + i * tree_span(2), tree_span(2)))
        return MF_PL_NOT_EMPTY;
    entries = t->node[child - 1].entries;
    if (entries > MF_SWEEP_MAX || *removed + entries + 1 > max)
        return MF_PL_NOT_EMPTY;
    if (!may_remove(t, "sweep"))
        return MF_PL_BLOCKED;
    for (uint32_t e = 0; e < MF_PT_ENTRIES; e++)
        if (tree_entries(t, child - 1)[e])
            remove_leaf(t, child - 1, e, "sweep");
    remove_table(t, node, i);
    *removed += entries + 1;
    return MF_PL_OK;
}

static int host_sweep(struct mf_zap *z, mf_table table, uint32_t index, uint32_t max,
                      uint32_t *next, uint32_t *removed)
{
    struct tree *t = tree_of(z);
    int rc = MF_PL_OK;
    uint32_t node;

    pthread_mutex_lock(&t->lock);
    t->asked++;
    *removed = 0;
    *next = index;
    node = node_of(t, table, "sweep");
    if (index > MF_PT_ENTRIES || t->node[node].level != 2)
        conform_fail(CONFORM_ARGUMENTS, "sweep from entry %u of a table of level %u", index,
                     t->node[node].level);
    if (!t->tracked)
        conform_fail(CONFORM_ARGUMENTS, "sweep without MF_TD_TRACKS");
    for (; *next < MF_PT_ENTRIES && rc == MF_PL_OK; ++*next) {
        if (!tree_entries(t, node)[*next])
            continue;
        rc = sweep_one(t, node, *next, max, removed);
        if (rc != MF_PL_OK)
            break;
    }
    pthread_mutex_unlock(&t->lock);
    return rc == MF_PL_NOT_EMPTY ? MF_PL_OK : rc;
}

/* The first drop takes the whole tree away from whoever walks. */
static void unlink_all(struct tree *t)
{
    t->dropping = true;
    t->extents = 1 + conform_below(t->rng, 300);
    t->removed += 1;
    t->removed_ever += t->leaves + t->tables - 1;
    t->leaves = 0;
    t->tables = 1;
    memset(t->rw, 0, (size_t)t->nr_nodes * 4096);
    for (uint32_t i = 1; i < t->nr_nodes; i++)
        t->node[i].live = false;
    t->node[0].entries = 0;
    memset(t->node[0].child, 0, sizeof t->node[0].child);
    memset(t->node[0].used, 0, sizeof t->node[0].used);
    if (mprotect((void *)(uintptr_t)t->ro, (size_t)TREE_TABLES * 4096, PROT_NONE))
        abort();
}

static int host_drop(struct mf_zap *z, uint32_t n, uint32_t *dropped)
{
    struct tree *t = tree_of(z);
    int rc = MF_PL_OK;

    pthread_mutex_lock(&t->lock);
    t->asked++;
    *dropped = 0;
    if (!t->arena || !t->whole)
        rc = MF_PL_RANGE;
    else if (n && !may_remove(t, "drop"))
        rc = MF_PL_BLOCKED;
    if (rc == MF_PL_OK && n) {
        if (!t->dropping)
            unlink_all(t);
        *dropped = (uint32_t)(n < t->extents ? n : t->extents);
        t->extents -= *dropped;
        t->removed += *dropped;
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

static uint32_t host_next(struct mf_zap *z, mf_table table, uint32_t index)
{
    struct tree *t = tree_of(z);
    uint32_t node;

    pthread_mutex_lock(&t->lock);
    t->asked++;
    node = node_of(t, table, "next");
    if (!t->tracked)
        conform_fail(CONFORM_ARGUMENTS, "next without MF_TD_TRACKS");
    while (index < MF_PT_ENTRIES && !tree_entries(t, node)[index])
        index++;
    pthread_mutex_unlock(&t->lock);
    return index < MF_PT_ENTRIES ? index : MF_PT_ENTRIES;
}

const struct mf_zap_host *tree_host(struct conform_area *a, bool old)
{
    const struct mf_zap_host all = {.size = sizeof all,
                                    .child = host_child,
                                    .zap = host_zap,
                                    .zap_run = host_zap_run,
                                    .used = host_used,
                                    .count = host_count,
                                    .sweep = host_sweep,
                                    .drop = host_drop,
                                    .next = host_next};
    size_t bytes = old ? offsetof(struct mf_zap_host, sweep) : sizeof all;
    struct mf_zap_host *h;

    conform_area_make(a, bytes, CONFORM_SIZES,
                      "a service was used that the size of mf_zap_host does not cover");
    h = conform_area_tail(a, bytes);
    memcpy(h, &all, bytes);
    h->size = (uint32_t)bytes;
    return h;
}
