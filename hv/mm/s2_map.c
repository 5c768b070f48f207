/*
 * Second stage: map in two steps, look up, demand faults.
 */
#include <string.h>

#include "hv/mm/stage2_impl.h"

static unsigned order_level(unsigned order)
{
    return order / 9 + 1;
}

static uint64_t leaf_pte(mfn_t m, unsigned level, unsigned access, bool write)
{
    uint64_t pte = m.v << FRAME_SHIFT | MF_PTE_PRESENT | MF_PTE_USER;

    if (access & S2_WRITE)
        pte |= MF_PTE_WRITE;
    if (!(access & S2_EXEC))
        pte |= MF_PTE_NX;
    if (level > 1)
        pte |= MF_PTE_LEAF;
    return pte | (write ? MF_PTE_ACCESSED | MF_PTE_DIRTY : 0);
}

static unsigned pte_access(uint64_t pte)
{
    return S2_READ | (pte & MF_PTE_WRITE ? S2_WRITE : 0) | (pte & MF_PTE_NX ? 0 : S2_EXEC);
}

/* Hangs the tables `spare` in below the absent entry at *w, down to `level`. */
static void hang_tables(struct stage2 *s2, struct s2_walk *w, uint64_t g, unsigned level,
                        const mfn_t *spare)
{
    for (unsigned i = 0; w->level > level; i++) {
        s2_set_entry(s2, w->mfn, w->index,
                     spare[i].v << FRAME_SHIFT | MF_PTE_PRESENT | MF_PTE_WRITE | MF_PTE_USER);
        w->mfn = spare[i];
        w->level--;
        w->index = s2_index(g, w->level);
        w->tab = s2_table(s2, w->mfn);
        w->pte = 0;
    }
}

/* Sets the leaf at the absent entry *w and counts the frame's map. */
static void set_leaf(struct stage2 *s2, struct s2_walk *w, uint64_t g, mfn_t m, uint64_t pte)
{
    struct frame *f = heap_rec(s2->heap, m), r = {.u.word = frame_word_load(f)};

    if (!r.u.ram.maps) {
        r.u.ram.gfn = g & ((UINT64_C(1) << 40) - 1);
        s2->frames_ram += s2_span(w->level);
    }
    r.u.ram.maps++;
    frame_word_store(f, r.u.word);
    w->pte = pte;
    s2_set_entry(s2, w->mfn, w->index, pte);
}

static void free_tables(struct stage2 *s2, mfn_t *spare, unsigned n)
{
    while (n)
        s2_free_table(s2, spare[--n]);
}

static enum mf_status alloc_tables(struct stage2 *s2, mfn_t *spare, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        enum mf_status st = s2_alloc_table(s2, &spare[i]);

        if (st != MF_OK) {
            free_tables(s2, spare, i);
            return st;
        }
    }
    return MF_OK;
}

/* ---- prepare, commit */

static enum mf_status check_map(const struct stage2 *s2, unsigned root, gfn_t g, mfn_t m,
                                unsigned order, unsigned access)
{
    uint64_t n;
    union frame_head h;

    if (root >= s2->roots || (order != ORDER_4K && order != ORDER_2M && order != ORDER_1G) ||
        access & ~(S2_READ | S2_WRITE | S2_EXEC) || !(access & S2_READ))
        return MF_E_RANGE;
    n = UINT64_C(1) << order;
    if (g.v >= S2_GFN_END || g.v & (n - 1) || !ft_block_ok(&s2->heap->ft, m.v, order))
        return MF_E_RANGE;
    h = frame_head_load(heap_rec(s2->heap, m));
    if (h.f.state != FRAME_USED || h.f.type != FRAME_T_RAM || h.f.owner != s2->owner)
        return MF_E_WRONG_OWNER;
    return h.f.order == order ? MF_OK : MF_E_WRONG_ORDER;
}

enum mf_status stage2_map_prepare(struct stage2 *s2, unsigned root, gfn_t g, mfn_t m,
                                  unsigned order, unsigned access, struct s2_map *map)
{
    enum mf_status st = check_map(s2, root, g, m, order, access);
    struct s2_walk w;

    memset(map, 0, sizeof *map);
    if (st != MF_OK)
        return st;
    *map =
        (struct s2_map){.s2 = s2, .root = root, .order = order, .access = access, .g = g, .m = m};
    s2_lock(s2);
    s2_walk(s2, root, g.v, order_level(order), &w);
    st = s2->closed ? MF_E_STATE : w.pte ? MF_E_EXISTS : MF_OK;
    s2_unlock(s2);
    if (st != MF_OK)
        return st;
    st = alloc_tables(s2, map->spare, w.level - order_level(order));
    if (st == MF_OK)
        map->spare_count = w.level - order_level(order);
    return st;
}

void stage2_map_abandon(struct s2_map *map)
{
    free_tables(map->s2, map->spare, map->spare_count);
    map->spare_count = 0;
}

/* A teardown took tables out since the prepare: gets the missing ones. Lock held. */
static enum mf_status more_tables(struct s2_map *map, unsigned need)
{
    enum mf_status st = MF_OK;

    while (st == MF_OK && map->spare_count < need) {
        st = s2_alloc_table(map->s2, &map->spare[map->spare_count]);
        if (st == MF_OK)
            map->spare_count++;
    }
    return st;
}

/* A leaf here would be partly in the scope of the teardown under way, which could not remove it. */
static bool cuts_scope(const struct stage2 *s2, unsigned root, uint64_t first, uint64_t n)
{
    uint64_t last = first + n - 1;

    return s2->teardown && root >= s2->td_root && root < s2->td_root_end &&
           ((first < s2->td_first && last >= s2->td_first) ||
            (first <= s2->td_last && last > s2->td_last));
}

enum mf_status stage2_map_commit(struct s2_map *map)
{
    struct stage2 *s2 = map->s2;
    unsigned level = order_level(map->order), need = 0;
    enum mf_status st;
    struct s2_walk w;

    s2_lock(s2);
    s2_walk(s2, map->root, map->g.v, level, &w);
    st = s2->closed ? MF_E_STATE : w.pte ? MF_E_EXISTS : MF_OK;
    if (st == MF_OK && cuts_scope(s2, map->root, map->g.v, s2_span(level)))
        st = MF_E_BUSY;
    if (st == MF_OK) {
        need = w.level - level;
        st = more_tables(map, need);
    }
    if (st == MF_OK) {
        hang_tables(s2, &w, map->g.v, level, map->spare);
        set_leaf(s2, &w, map->g.v, map->m, leaf_pte(map->m, level, map->access, false));
        s2_note_block(s2, map->m, map->order);
    } else {
        need = 0;
    }
    s2_unlock(s2);
    free_tables(s2, map->spare + need, map->spare_count - need);
    map->spare_count = 0;
    return st;
}

/* ---- lookup and fault */

/* A present leaf at *w: checks the access, sets accessed and dirty, fills *out. */
static enum mf_status use_leaf(struct s2_walk *w, uint64_t g, unsigned access, struct s2_leaf *out)
{
    uint64_t want = MF_PTE_ACCESSED | (access & S2_WRITE ? MF_PTE_DIRTY : 0);

    out->access = pte_access(w->pte);
    if (access & ~out->access)
        return MF_E_PERM;
    out->order = 9 * (w->level - 1);
    out->mfn = mfn(s2_target(w->pte).v + (g & (s2_span(w->level) - 1)));
    if ((w->pte & want) != want)
        atomic_fetch_or(&w->tab[w->index], want);
    return MF_OK;
}

/* Backs g with a fresh frame at the absent entry *w. Lock held. */
static enum mf_status populate(struct stage2 *s2, struct s2_walk *w, uint64_t g, unsigned access)
{
    unsigned need = w->level - 1;
    mfn_t m, spare[S2_LEVELS];
    enum mf_status st;

    st = s2_alloc_ram(s2, &m);
    if (st != MF_OK)
        return st;
    st = alloc_tables(s2, spare, need);
    if (st != MF_OK) {
        heap_free_clean(s2->heap, s2_hint(s2), m, 0, s2->owner);
        return st;
    }
    hang_tables(s2, w, g, 1, spare);
    set_leaf(s2, w, g, m,
             leaf_pte(m, 1, S2_READ | S2_WRITE | S2_EXEC, false) | MF_PTE_ACCESSED |
                 (access & S2_WRITE ? MF_PTE_DIRTY : 0));
    s2->faults++;
    return MF_OK;
}

/* Another root shows the same RAM: maps what root 0 has there, in the same size. Lock held. */
static enum mf_status mirror(struct stage2 *s2, unsigned root, uint64_t g, struct s2_walk *w)
{
    mfn_t spare[S2_LEVELS];
    enum mf_status st;
    struct s2_walk r0;

    s2_walk(s2, 0, g, 1, &r0);
    if (!r0.pte)
        return MF_E_NOT_FOUND;
    s2_walk(s2, root, g, r0.level, w);
    if (w->pte)
        return MF_E_EXISTS; /* mapped by hand in smaller pieces, but for this one */
    st = alloc_tables(s2, spare, w->level - r0.level);
    if (st != MF_OK)
        return st;
    hang_tables(s2, w, g, r0.level, spare);
    set_leaf(s2, w, g, s2_target(r0.pte),
             leaf_pte(s2_target(r0.pte), r0.level, pte_access(r0.pte), false));
    s2->faults++;
    return MF_OK;
}

enum mf_status s2_get(struct stage2 *s2, unsigned root, uint64_t g, unsigned access, bool fill,
                      struct s2_leaf *out)
{
    enum mf_status st;
    struct s2_walk w;

    s2_walk(s2, root, g, 1, &w);
    if (!w.pte) {
        if (!fill)
            return MF_E_NOT_FOUND;
        if (!s2_in_regions(s2, g, 1))
            return MF_E_RANGE;
        if (s2->closed)
            return MF_E_STATE;
        if (root) {
            struct s2_walk r0;

            s2_walk(s2, 0, g, 1, &r0);
            st = r0.pte ? MF_OK : populate(s2, &r0, g, access);
            if (st == MF_OK)
                st = mirror(s2, root, g, &w);
        } else {
            st = populate(s2, &w, g, access);
        }
        if (st != MF_OK)
            return st;
    }
    return use_leaf(&w, g, access, out);
}

enum mf_status stage2_lookup(struct stage2 *s2, unsigned root, gfn_t g, unsigned access,
                             struct s2_leaf *out)
{
    enum mf_status st;

    if (root >= s2->roots || g.v >= S2_GFN_END)
        return MF_E_NOT_FOUND;
    s2_lock(s2);
    st = s2_get(s2, root, g.v, access, false, out);
    s2_unlock(s2);
    return st;
}

/*
 * Tries to back the 2 MiB around g with one block, in root 0. Any failure only means that a single
 * frame has to do. The block is taken without the lock: it may need a long scrub.
 */
static void fault_large(struct stage2 *s2, uint64_t g)
{
    uint64_t first = g & ~UINT64_C(511);
    struct s2_map map;
    struct s2_walk w;
    bool fits;
    mfn_t m;

    if (!s2_in_regions(s2, first, 512))
        return;
    s2_lock(s2);
    s2_walk(s2, 0, first, 2, &w);
    fits = !w.pte && !s2->closed;
    s2_unlock(s2);
    if (!fits ||
        heap_alloc(s2->heap, s2_hint(s2), ORDER_2M, s2->owner, FRAME_T_RAM, HEAP_ZERO, &m) != MF_OK)
        return;
    if (stage2_map_prepare(s2, 0, gfn(first), m, ORDER_2M, S2_READ | S2_WRITE | S2_EXEC, &map) !=
            MF_OK ||
        stage2_map_commit(&map) != MF_OK)
        heap_free_clean(s2->heap, s2_hint(s2), m, ORDER_2M, s2->owner);
}

enum mf_status stage2_fault(struct stage2 *s2, unsigned root, gfn_t g, unsigned access,
                            struct s2_leaf *out)
{
    enum mf_status st;

    if (root >= s2->roots || g.v >= S2_GFN_END)
        return MF_E_RANGE;
    s2_lock(s2);
    st = s2_get(s2, root, g.v, access, s2->fault_order == ORDER_4K, out);
    s2_unlock(s2);
    if (st != MF_E_NOT_FOUND)
        return st;
    fault_large(s2, g.v);
    s2_lock(s2);
    st = s2_get(s2, root, g.v, access, true, out);
    s2_unlock(s2);
    return st;
}
