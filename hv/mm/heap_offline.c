/*
 * Frames out of use. To the allocator such a frame is allocated; in the table it is in use by
 * nobody: a record of its own says OFFLINE. One that is in use when it is to go only gets a mark;
 * when its block is freed it stays behind and the rest goes back in parts.
 */
#include "hv/mm/heap_impl.h"

static const union frame_head offline_head = {
    .f = {.owner = OWNER_CORE, .type = FRAME_T_NONE, .state = FRAME_OFFLINE}};

static bool is_offline(const struct heap *h, uint64_t m)
{
    return frame_head_load(heap_rec(h, mfn(m))).f.state == FRAME_OFFLINE;
}

/* Slot locked; the frame is the caller's. */
static void put_offline(struct heap *h, struct heap_slot *s, uint64_t m)
{
    frame_word_store(heap_rec(h, mfn(m)), 0);
    frame_head_store(heap_rec(h, mfn(m)), offline_head);
    ft_mark_store(&h->ft, m, MARK_USED | MARK_LEAVING);
    s->used[FRAME_T_NONE]++;
    s->changes++;
}

/* ---- a block with marked frames is freed */

struct leave {
    struct heap *h;
    struct heap_slot *s;
    unsigned cpu;
    bool shared, clean, lost;
};

static bool any_leaving(const struct heap *h, uint64_t first, unsigned order)
{
    if (order >= GROUP_ORDER)
        return heap_has_leaving(h, first, order);
    for (uint64_t m = first; m < first + ft_frames(order); m++)
        if (ft_mark(&h->ft, m) & MARK_LEAVING)
            return true;
    return false;
}

/* A part of the block, and its halves as long as some frame of it is marked. */
static uint64_t give_part(struct leave *l, uint64_t first, unsigned order)
{
    const struct heap_allocator *a = &l->h->alloc;

    if (!any_leaving(l->h, first, order)) {
        ft_release(&l->h->ft, first, order, !l->clean, l->shared);
        l->lost |= a->ops->free(&a->env, l->cpu, first, order) != MF_PL_OK;
        return ft_frames(order);
    }
    if (!order) {
        put_offline(l->h, l->s, first);
        atomic_fetch_sub(&l->h->waiting, 1);
        return 0;
    }
    if (order == GROUP_ORDER && ft_group(&l->h->ft, first) & GROUP_WHOLE)
        heap_group_to_marks(l->h, first);
    order--;
    return give_part(l, first, order) + give_part(l, first + ft_frames(order), order);
}

uint64_t heap_free_leaving(struct heap *h, struct heap_slot *s, bool shared, unsigned cpu,
                           uint64_t first, unsigned order, bool clean, bool *lost)
{
    struct leave l = {.h = h, .s = s, .cpu = cpu, .shared = shared, .clean = clean};
    uint64_t n = give_part(&l, first, order);

    *lost = l.lost;
    return n;
}

/* ---- out of use */

/* All slots locked. Free frames [first, first + n) leave the table's free ones. */
static void claim_free(struct heap *h, uint64_t first, uint64_t n)
{
    struct heap_slot *s = &h->slot[0];

    for (uint64_t m = first; m < first + n; m++) {
        struct ft_dirty d;

        ft_claim(&h->ft, m, 0, false, &d); /* free: found so with the same locks held */
        s->dirty -= d.n;
        put_offline(h, s, m);
        ft_group_set(&h->ft, m, GROUP_LEAVING);
    }
    atomic_fetch_sub(&h->avail, (int64_t)n);
}

/* All slots locked. The reverse: as it was, but for dirtiness, which is supposed. */
static void unclaim(struct heap *h, uint64_t m)
{
    frame_head_store(heap_rec(h, mfn(m)), (union frame_head){0});
    ft_release(&h->ft, m, 0, true, false);
    h->slot[0].used[FRAME_T_NONE]--;
    h->slot[0].dirty++;
    h->slot[0].changes++;
    atomic_fetch_add(&h->avail, 1);
}

static bool word_free(const struct heap *h, uint64_t m)
{
    return !(ft_used_word(&h->ft, m) >> (m & 63) & 1);
}

/* All slots locked: marks a frame in use, unless it is marked already. */
static void mark_leaving(struct heap *h, uint64_t m, struct heap_offline_report *r)
{
    uint8_t was = ft_mark(&h->ft, m);

    if (was & MARK_LEAVING) {
        r->already++;
        return;
    }
    ft_mark_store(&h->ft, m, was | MARK_LEAVING);
    ft_group_set(&h->ft, m, GROUP_LEAVING | GROUP_TOUCHED);
    atomic_fetch_add(&h->waiting, 1);
    r->waiting++;
}

/* Frames [first, end) of one word. All slots locked. */
static enum mf_status leave_word(struct heap *h, uint64_t first, uint64_t end,
                                 struct heap_offline_report *r)
{
    const struct heap_allocator *a = &h->alloc;

    if (a->ops->drain)
        a->ops->drain(&a->env);
    for (uint64_t m = first, n; m < end; m += n) {
        int rc;

        for (n = 0; m + n < end && word_free(h, m + n); n++)
            ;
        if (!n) {
            mark_leaving(h, m, r);
            n = 1;
            continue;
        }
        rc = heap_ops_take(a->ops)(&a->env, m, n);
        if (rc != MF_PL_OK)
            return rc == MF_PL_NO_MEMORY ? MF_E_NO_MEMORY : MF_E_PLUGIN;
        claim_free(h, m, n);
        r->changed += n;
    }
    return MF_OK;
}

/* For an allocator that cannot let single frames go: it starts anew with the others. */
struct leave_all {
    uint64_t first, n;
    struct heap_offline_report *r;
    uint64_t claimed[HEAP_OFFLINE_MAX / 64]; /* which frames were free */
};

static void leave_all(struct heap *h, void *arg)
{
    struct leave_all *l = arg;

    for (uint64_t i = 0; i < l->n; i++) {
        if (!word_free(h, l->first + i)) {
            mark_leaving(h, l->first + i, l->r);
            continue;
        }
        claim_free(h, l->first + i, 1);
        l->claimed[i / 64] |= UINT64_C(1) << i % 64;
        l->r->changed++;
    }
}

/* Marks on frames in use stay; nothing was promised about them. */
static void undo_leave_all(struct heap *h, void *arg)
{
    struct leave_all *l = arg;

    for (uint64_t i = 0; i < l->n; i++)
        if (l->claimed[i / 64] >> i % 64 & 1)
            unclaim(h, l->first + i);
    l->r->changed = 0;
}

static enum mf_status leave_restart(struct heap *h, uint64_t first, uint64_t n,
                                    struct heap_offline_report *r)
{
    struct leave_all l = {.first = first, .n = n, .r = r};

    return heap_restart(h, leave_all, undo_leave_all, &l);
}

static enum mf_status check_range(const struct heap *h, uint64_t first, uint64_t n)
{
    if (!n || n > HEAP_OFFLINE_MAX || first >= h->ft.frames || n > h->ft.frames - first)
        return MF_E_RANGE;
    return MF_OK;
}

/* The end of the word that `m` lies in, or `end`. */
static uint64_t word_end(uint64_t m, uint64_t end)
{
    uint64_t next = (m & ~UINT64_C(63)) + 64;

    return next < end ? next : end;
}

enum mf_status heap_offline(struct heap *h, mfn_t first, uint64_t n, struct heap_offline_report *r)
{
    enum mf_status st = check_range(h, first.v, n);
    uint64_t end = first.v + n;

    *r = (struct heap_offline_report){0};
    if (st != MF_OK)
        return st;
    for (uint64_t m = first.v; st == MF_OK && m < end; m = word_end(m, end)) {
        bool restart = false;

        heap_lock_all(h);
        if (!h->alloc.ops)
            st = MF_E_NO_ALLOCATOR;
        else if (heap_ops_take(h->alloc.ops))
            st = leave_word(h, m, word_end(m, end), r);
        else
            restart = true;
        heap_unlock_all(h);
        if (restart)
            return leave_restart(h, m, end - m, r);
    }
    return st;
}

/* ---- and back */

static enum mf_status enter_word(struct heap *h, uint64_t first, uint64_t end,
                                 struct heap_offline_report *r)
{
    const struct heap_allocator *a = &h->alloc;
    enum mf_status st = MF_OK;

    for (uint64_t m = first; m < end; m++) {
        uint8_t was = ft_mark(&h->ft, m);

        if (!(was & MARK_LEAVING)) {
            r->already++;
        } else if (is_offline(h, m)) {
            unclaim(h, m);
            if (a->ops->free(&a->env, 0, m, 0) != MF_PL_OK)
                st = MF_E_PLUGIN;
            r->changed++;
        } else {
            ft_mark_store(&h->ft, m, was & (uint8_t)~MARK_LEAVING);
            atomic_fetch_sub(&h->waiting, 1);
            r->waiting++;
        }
    }
    if (!ft_group_any(&h->ft, first, MARK_LEAVING))
        ft_group_clear(&h->ft, first, GROUP_LEAVING);
    return st;
}

enum mf_status heap_online(struct heap *h, mfn_t first, uint64_t n, struct heap_offline_report *r)
{
    enum mf_status st = check_range(h, first.v, n);
    uint64_t end = first.v + n;

    *r = (struct heap_offline_report){0};
    for (uint64_t m = first.v; st == MF_OK && m < end; m = word_end(m, end)) {
        heap_lock_all(h);
        st = h->alloc.ops ? enter_word(h, m, word_end(m, end), r) : MF_E_NO_ALLOCATOR;
        heap_unlock_all(h);
    }
    return st;
}

enum heap_frame_use heap_frame_use(struct heap *h, mfn_t m)
{
    enum heap_frame_use use = HEAP_FRAME_FREE;
    struct heap_slot *s;
    bool shared;

    if (m.v >= h->ft.frames)
        return use;
    s = heap_enter(h, 0, &shared);
    if (!word_free(h, m.v))
        use = !(ft_mark(&h->ft, m.v) & MARK_LEAVING) ? HEAP_FRAME_USED
              : is_offline(h, m.v)                   ? HEAP_FRAME_OFFLINE
                                                     : HEAP_FRAME_WAITING;
    heap_leave(s);
    return use;
}
