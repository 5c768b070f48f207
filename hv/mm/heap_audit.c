/*
 * The walk over the frame table: every frame is counted once, by its record or as free, and what
 * the records, the marks and the groups say is compared, and what allocations pay with. At the end
 * the allocator lists its free frames and these are compared too.
 */
#include "hv/mm/heap_impl.h"

#define AUDIT_PER_LOCK 4096u /* units of work with the locks held */

static void count_type(struct heap_audit *a, union frame_head f, uint64_t n)
{
    if (f.f.type == FRAME_T_RAM)
        a->used_ram += n;
    else if (f.f.type == FRAME_T_TABLE)
        a->used_table += n;
    else if (f.f.type == FRAME_T_CORE)
        a->used_core += n;
    else
        a->offline += n;
    if (f.f.state == FRAME_RETIRED)
        a->retired += n;
}

static bool record_ok(const struct heap *h, uint64_t m, union frame_head f)
{
    if (f.f.order > ORDER_MAX || !ft_block_ok(&h->ft, m, f.f.order) || f.f.owner == OWNER_NONE)
        return false;
    if (f.f.state == FRAME_OFFLINE)
        return f.f.type == FRAME_T_NONE && !f.f.order;
    return f.f.type >= FRAME_T_RAM && f.f.type <= FRAME_T_CORE &&
           (f.f.state == FRAME_USED || f.f.state == FRAME_RETIRED || f.f.state == FRAME_LEAVING);
}

/* A block from its head on; returns its frames. */
static uint64_t audit_block(struct heap *h, struct heap_audit *a, uint64_t m, union frame_head f)
{
    uint64_t n;

    if (!record_ok(h, m, f)) {
        a->bad_records++;
        return 1;
    }
    n = ft_frames(f.f.order);
    count_type(a, f, n);
    if (f.f.order >= GROUP_ORDER) {
        for (uint64_t i = 0; i < n; i += GROUP_FRAMES)
            if (!(ft_group(&h->ft, m + i) & GROUP_WHOLE))
                a->bad_records++;
        return n;
    }
    for (uint64_t i = 0; i < n; i++) {
        if (i && frame_head_load(heap_rec(h, mfn(m + i))).f.state != FRAME_FREE)
            a->overlaps++;
        if (!(ft_used_word(&h->ft, m + i) >> ((m + i) & 63) & 1))
            a->bad_records++;
    }
    return n;
}

/*
 * A frame in use that heads no block: the walk met the inside of a block that came to be between
 * two steps. Returns the frames up to its end, 0 when no block covers it.
 */
static uint64_t audit_inside(struct heap *h, struct heap_audit *a, uint64_t m)
{
    for (unsigned k = 1; k <= ORDER_MAX; k++) {
        uint64_t head = m & ~(ft_frames(k) - 1);
        union frame_head f = frame_head_load(heap_rec(h, mfn(head)));

        if (f.f.state == FRAME_FREE || head == m || head + ft_frames(f.f.order) <= m)
            continue;
        count_type(a, f, head + ft_frames(f.f.order) - m);
        return head + ft_frames(f.f.order) - m;
    }
    return 0;
}

static uint64_t audit_one(struct heap *h, struct heap_audit *a, uint64_t m, bool resumed)
{
    union frame_head f;
    uint64_t n;

    if (!(m & (GROUP_FRAMES - 1)) && ft_group_free(&h->ft, m)) {
        n = h->ft.frames - m < GROUP_FRAMES ? h->ft.frames - m : GROUP_FRAMES;
        a->free += n;
        return n;
    }
    f = frame_head_load(heap_rec(h, mfn(m)));
    if (f.f.state != FRAME_FREE)
        return audit_block(h, a, m, f);
    if (!(ft_used_word(&h->ft, m) >> (m & 63) & 1)) {
        a->free++;
        return 1;
    }
    n = resumed ? audit_inside(h, a, m) : 0;
    if (!n)
        a->bad_records++;
    return n ? n : 1;
}

static enum mf_status audit_listing(struct heap *h, struct heap_audit *a)
{
    struct heap_listing l;
    enum mf_status st;
    uint64_t want;

    if (atomic_exchange(&h->busy, true))
        return MF_AGAIN; /* a swap is under way; the allocator may be gone when it is listed */
    st = heap_listing_init(&l, h);
    if (st != MF_OK)
        goto out;
    heap_lock_all(h);
    if (!heap_credit_ok(h))
        a->bad_records++;
    a->stable = a->stable && a->changes == heap_count_changes(h);
    if (h->alloc.ops) {
        heap_listing_run(&l, &h->alloc);
        want = h->ft.frames - heap_count_used(h);
        a->listed_free = l.frames;
        a->listed_in_use = l.in_use;
        a->overlaps += l.twice;
        a->bad_records += l.outside;
        a->lost = l.frames - l.twice - l.in_use < want ? want - (l.frames - l.twice - l.in_use) : 0;
    }
    heap_unlock_all(h);
    heap_listing_fini(&l);
out:
    atomic_store(&h->busy, false);
    return st;
}

enum mf_status heap_audit_step(struct heap *h, struct heap_audit *a, uint64_t budget)
{
    if (!a->next) {
        *a = (struct heap_audit){.stable = true};
        a->frames = h->ft.frames;
    }
    while (budget && a->next < h->ft.frames) {
        uint64_t units = budget < AUDIT_PER_LOCK ? budget : AUDIT_PER_LOCK, changes;
        bool resumed = a->next != 0;

        budget -= units;
        heap_lock_all(h);
        changes = heap_count_changes(h);
        if (resumed && changes != a->changes)
            a->stable = false;
        a->changes = changes;
        while (units && a->next < h->ft.frames) {
            uint64_t n = audit_one(h, a, a->next, resumed);

            a->next += n;
            units -= n < units && !(n == GROUP_FRAMES) ? n : 1;
            resumed = false;
        }
        heap_unlock_all(h);
    }
    if (a->next < h->ft.frames)
        return MF_AGAIN;
    return audit_listing(h, a);
}
