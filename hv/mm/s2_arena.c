/*
 * Arena: the tables and the demand-faulted RAM of an address space come from chunks of its own, and
 * a list remembers them, and every block that is mapped by hand, as *extents*:
 *
 *   dir ─▶ [ next | extent | extent | ... ] ─▶ [ next | ... ]      frames of the owner, a stack
 *                    │ first frame, order
 *                    ▼
 *                  [ F F F F F F F . ]      single-frame blocks, drawn one behind the other
 *
 * Each frame of a chunk is a block of its own from the start, so whatever else happens to it (unmap
 * of a part, split, merge, another strategy) needs to know nothing of arenas; a chunk may get
 * holes. At the end of the address space every frame of its owner goes: a chunk without holes as
 * one block, of any other what is still there. So all that must hold is that each block of RAM and
 * each table begins inside some extent; `loose` says that one may not.
 *
 * A chunk is at most a quarter of what was drawn before it: small VMs reserve nothing.
 */
#include "hv/mm/stage2_impl.h"

#define DIR_ENTRIES     512u /* the first is the link */
#define EXTENT_ORDER    56u
#define EXTENT_FRAME    ((UINT64_C(1) << EXTENT_ORDER) - 1)
#define CHUNK_MAX       7u /* 512 KiB: what a fault may have to scrub at once */
#define TABLES_MIN      2u
#define RECORDS_AT_ONCE 32u /* of an extent with holes, in one unit of work */

/* ---- the list; pool_lock held, or nobody else knows of the stage2 any more */

static uint64_t *dir_frame(const struct stage2 *s2)
{
    return heap_ptr(s2->heap, mfn(s2->dir - 1));
}

static bool dir_push(struct stage2 *s2, mfn_t m, unsigned order)
{
    mfn_t d;

    if (!s2->dir || s2->dir_used == DIR_ENTRIES) {
        if (heap_alloc(s2->heap, s2_hint(s2), 0, s2->owner, FRAME_T_CORE, HEAP_ZERO, &d) != MF_OK)
            return false;
        *(uint64_t *)heap_ptr(s2->heap, d) = s2->dir;
        s2->dir = d.v + 1;
        s2->dir_used = 1;
        s2->dir_frames++;
    }
    dir_frame(s2)[s2->dir_used++] = m.v | (uint64_t)order << EXTENT_ORDER;
    return true;
}

/* Frees the top frame, which is empty but for its link. */
static void dir_drop_frame(struct stage2 *s2)
{
    mfn_t d = mfn(s2->dir - 1);

    s2->dir = dir_frame(s2)[0];
    s2->dir_used = s2->dir ? DIR_ENTRIES : 0;
    *(uint64_t *)heap_ptr(s2->heap, d) = 0;
    s2->dir_frames--;
    heap_free_clean(s2->heap, s2_hint(s2), d, 0, s2->owner);
}

static void dir_pop(struct stage2 *s2)
{
    dir_frame(s2)[--s2->dir_used] = 0;
    if (s2->dir_used == 1)
        dir_drop_frame(s2);
}

/* ---- drawing */

static unsigned log2_of(uint64_t v)
{
    unsigned n = 0;

    while (v >>= 1)
        n++;
    return n;
}

static unsigned chunk_order(const struct stage2 *s2, enum frame_type type, uint64_t drawn)
{
    unsigned order = drawn < 8 ? 0 : log2_of(drawn / 4);

    if (type == FRAME_T_TABLE && order < TABLES_MIN)
        order = TABLES_MIN;
    if (order > CHUNK_MAX)
        order = CHUNK_MAX;
    /* No more RAM than the VM has: its quota counts on that. */
    while (type == FRAME_T_RAM && order && s2->frames_ram + ft_frames(order) > s2->ram_total)
        order--;
    return order;
}

static enum mf_status refill(struct stage2 *s2, struct s2_pool *p, enum frame_type type)
{
    unsigned order = chunk_order(s2, type, p->drawn);
    enum mf_status st;
    mfn_t m;

    for (;; order--) {
        st = heap_alloc(s2->heap, s2_hint(s2), order, s2->owner, type, HEAP_ZERO, &m);
        if (!order || (st != MF_E_NO_MEMORY && st != MF_E_QUOTA))
            break;
    }
    if (st != MF_OK)
        return st;
    if (order)
        heap_split(s2->heap, s2_hint(s2), m, order, 0, s2->owner);
    if (!dir_push(s2, m, order))
        s2->loose = true;
    p->at = m.v;
    p->end = m.v + ft_frames(order);
    p->drawn += ft_frames(order);
    return MF_OK;
}

static enum mf_status draw(struct stage2 *s2, struct s2_pool *p, enum frame_type type, mfn_t *out)
{
    enum mf_status st = MF_OK;

    if (p->at == p->end)
        st = refill(s2, p, type);
    if (st == MF_OK)
        *out = mfn(p->at++);
    return st;
}

enum mf_status s2_alloc_ram(struct stage2 *s2, mfn_t *out)
{
    enum mf_status st = MF_E_NOT_SUPPORTED;

    if (s2->arena) {
        mm_lock_take(&s2->pool_lock, heap_env(s2->heap));
        st = draw(s2, &s2->pool_ram, FRAME_T_RAM, out);
        mm_lock_drop(&s2->pool_lock);
        return st;
    }
    return heap_alloc(s2->heap, s2_hint(s2), 0, s2->owner, FRAME_T_RAM, HEAP_ZERO, out);
}

enum mf_status s2_alloc_table(struct stage2 *s2, mfn_t *out)
{
    enum mf_status st = MF_E_NOT_SUPPORTED;
    bool arena;

    mm_lock_take(&s2->pool_lock, heap_env(s2->heap));
    arena = s2->arena;
    if (arena)
        st = draw(s2, &s2->pool_tables, FRAME_T_TABLE, out);
    mm_lock_drop(&s2->pool_lock);
    if (arena)
        return st;
    return heap_alloc(s2->heap, s2_hint(s2), 0, s2->owner, FRAME_T_TABLE, HEAP_ZERO, out);
}

void s2_free_table(struct stage2 *s2, mfn_t m)
{
    union frame_head head = frame_head_load(heap_rec(s2->heap, m));

    /* A spare table that was dropped with its chunk meanwhile. */
    if (head.f.state != FRAME_RETIRED)
        heap_free_clean(s2->heap, s2_hint(s2), m, 0, s2->owner);
}

void s2_note_block(struct stage2 *s2, mfn_t m, unsigned order)
{
    if (!s2->arena)
        return;
    mm_lock_take(&s2->pool_lock, heap_env(s2->heap));
    if (!dir_push(s2, m, order))
        s2->loose = true;
    mm_lock_drop(&s2->pool_lock);
}

/* ---- on and off */

uint64_t s2_arena_spare(struct stage2 *s2)
{
    uint64_t n;

    mm_lock_take(&s2->pool_lock, heap_env(s2->heap));
    n = s2->pool_ram.end - s2->pool_ram.at + s2->pool_tables.end - s2->pool_tables.at +
        s2->dir_frames;
    mm_lock_drop(&s2->pool_lock);
    return n;
}

static void pool_empty(struct stage2 *s2, struct s2_pool *p)
{
    while (p->at < p->end)
        heap_free_clean(s2->heap, s2_hint(s2), mfn(p->at++), 0, s2->owner);
    *p = (struct s2_pool){0};
}

void s2_arena_end(struct stage2 *s2)
{
    mm_lock_take(&s2->pool_lock, heap_env(s2->heap));
    pool_empty(s2, &s2->pool_ram);
    pool_empty(s2, &s2->pool_tables);
    while (s2->dir) {
        while (s2->dir_used > 1)
            dir_frame(s2)[--s2->dir_used] = 0;
        dir_drop_frame(s2);
    }
    s2->arena = false;
    mm_lock_drop(&s2->pool_lock);
}

void stage2_set_arena(struct stage2 *s2, bool on)
{
    s2_lock(s2);
    if (on && !s2->arena && !s2->dropping) {
        mm_lock_take(&s2->pool_lock, heap_env(s2->heap));
        s2->arena = true;
        s2->loose = s2->frames_ram || s2->frames_table > s2->roots;
        mm_lock_drop(&s2->pool_lock);
    } else if (!on && s2->arena && !s2->teardown && !s2->dropping) {
        s2_arena_end(s2);
    }
    s2_unlock(s2);
}

/* ---- dropping; stage2.lock held */

bool s2_can_drop(const struct stage2 *s2)
{
    return s2->dropping || (s2->arena && s2->closed && !s2->loose);
}

bool s2_drop_left(const struct stage2 *s2)
{
    return s2->dropping && s2->dir;
}

/* Nobody finds a table from here on. */
static void unlink_roots(struct stage2 *s2)
{
    for (unsigned r = 0; r < s2->roots; r++) {
        struct frame *f = heap_rec(s2->heap, s2->root[r]);
        union s2_tab_word w = {.v = frame_word_load(f)};
        s2_pte *p = s2_table(s2, s2->root[r]);

        for (unsigned i = 0; i < MF_PT_ENTRIES; i++)
            atomic_store_explicit(&p[i], 0, memory_order_release);
        w.t.count = w.t.sum = w.t.kept = 0;
        frame_word_store(f, w.v);
    }
    s2->pool_ram = s2->pool_tables = (struct s2_pool){0}; /* what is left goes with its chunk */
    s2->drop_at = 0;
    s2->dropping = true;
}

static void count_ram(struct stage2 *s2, unsigned order, uint64_t maps, uint64_t frames,
                      struct s2_dropped *d)
{
    s2->leaves[order / 9] -= maps;
    s2->frames_ram -= frames;
    d->leaves += maps;
}

static void count_tables(struct stage2 *s2, uint64_t n, struct s2_dropped *d)
{
    s2->frames_table -= n;
    d->tables += n;
}

static void retire(struct stage2 *s2, mfn_t m, unsigned order, struct s2_dropped *d)
{
    s2_retire(s2, m, ft_frames(order));
    d->frames += ft_frames(order);
}

/* Is there a block of this VM's RAM or a table of it, but no root? */
static bool is_ours(const struct stage2 *s2, union frame_head h)
{
    return h.f.state == FRAME_USED && h.f.owner == s2->owner &&
           (h.f.type == FRAME_T_RAM || (h.f.type == FRAME_T_TABLE && h.f.level < S2_LEVELS));
}

static void drop_block(struct stage2 *s2, mfn_t m, union frame_head h, struct s2_dropped *d)
{
    struct frame *f = heap_rec(s2->heap, m), r = {.u.word = frame_word_load(f)};

    if (h.f.type == FRAME_T_RAM) {
        uint64_t maps = r.u.ram.maps;

        count_ram(s2, h.f.order, maps, maps ? ft_frames(h.f.order) : 0, d);
    } else {
        count_tables(s2, h.f.level != 0, d);
        h.f.level = FRAME_STALE;
        frame_head_store(f, h);
    }
    retire(s2, m, h.f.order, d);
}

/* An extent that is all there. */
static bool drop_whole(struct stage2 *s2, mfn_t m, unsigned order, struct s2_dropped *d)
{
    union frame_head h = frame_head_load(heap_rec(s2->heap, m));
    struct heap_bulk b;

    if (!is_ours(s2, h))
        return false;
    if (h.f.order == order) {
        drop_block(s2, m, h, d);
        return true;
    }
    if (!heap_join_bulk(s2->heap, s2_hint(s2), m, order, s2->owner, h.f.type, &b))
        return false;
    if (h.f.type == FRAME_T_RAM)
        count_ram(s2, 0, b.maps, b.mapped, d);
    else
        count_tables(s2, b.mapped, d);
    retire(s2, m, order, d);
    return true;
}

/* Some records of an extent with holes, from drop_at on; true at its end. */
static bool drop_some(struct stage2 *s2, uint64_t first, unsigned order, struct s2_dropped *d)
{
    for (unsigned n = 0; n < RECORDS_AT_ONCE && s2->drop_at < ft_frames(order); n++) {
        mfn_t m = mfn(first + s2->drop_at);
        union frame_head h = frame_head_load(heap_rec(s2->heap, m));
        bool ours = is_ours(s2, h);

        if (ours)
            drop_block(s2, m, h, d);
        s2->drop_at += ours ? ft_frames(h.f.order) : 1;
    }
    return s2->drop_at >= ft_frames(order);
}

void s2_drop(struct stage2 *s2, struct s2_dropped *d)
{
    uint64_t extent, first;
    unsigned order;

    if (!s2->dropping)
        unlink_roots(s2);
    if (!s2->dir)
        return;
    extent = dir_frame(s2)[s2->dir_used - 1];
    first = extent & EXTENT_FRAME;
    order = (unsigned)(extent >> EXTENT_ORDER);
    d->extents++;
    if (s2->drop_at || !drop_whole(s2, mfn(first), order, d))
        if (!drop_some(s2, first, order, d))
            return;
    s2->drop_at = 0;
    dir_pop(s2);
}
