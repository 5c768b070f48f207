/*
 * What allocations pay with: free frames that nobody claimed, claims, quotas. The scheme stands in
 * heap_impl.h.
 */
#include "hv/mm/heap_impl.h"

/* Takes between `need` and `want` off *p, as much as there is; 0 when that is less than `need`. */
static int64_t fetch(_Atomic int64_t *p, int64_t need, int64_t want)
{
    int64_t have = atomic_load_explicit(p, memory_order_relaxed), n;

    do {
        if (have < need || have <= 0)
            return 0;
        n = have < want ? have : want;
    } while (!atomic_compare_exchange_weak(p, &have, have - n));
    return n;
}

/* Charges the owner with between `need` and `want` frames; 0 when its limit does not allow it. */
static int64_t charge(struct heap_owner *o, int64_t need, int64_t want)
{
    int64_t used = atomic_load_explicit(&o->used, memory_order_relaxed), n;

    do {
        int64_t room = atomic_load_explicit(&o->limit, memory_order_relaxed) - used;

        if (room < need || room <= 0)
            return 0;
        n = room < want ? room : want;
    } while (!atomic_compare_exchange_weak(&o->used, &used, used + n));
    return n;
}

/* The slot works for nobody: what it has at hand for its owner goes back. */
static void let_owner_go(struct heap *h, struct heap_slot *s)
{
    struct heap_owner *o = s->owner == OWNER_NONE ? NULL : heap_owner_find(h, s->owner);

    if (o) {
        atomic_fetch_sub(&o->used, s->quota);
        atomic_fetch_add(&o->claim, s->backed);
        atomic_fetch_add(&h->claimed, s->backed);
    }
    s->owner = OWNER_NONE;
    s->quota = s->backed = 0;
}

/* The slot works for `owner` and has n frames at hand for it, if they can be had so. */
static enum mf_status refill(struct heap *h, struct heap_slot *s, uint32_t owner, int64_t n)
{
    struct heap_owner *o = heap_owner_find(h, owner);
    int64_t need;

    if (s->owner != owner) {
        let_owner_go(h, s);
        s->owner = owner;
        s->quota = o ? 0 : HEAP_UNLIMITED;
    }
    if (s->quota < n) {
        s->quota += charge(o, n - s->quota, n - s->quota + HEAP_CREDIT_BATCH);
        if (s->quota < n)
            return MF_E_QUOTA;
    }
    if (o && s->backed < n && atomic_load_explicit(&o->claim, memory_order_relaxed)) {
        int64_t got = fetch(&o->claim, 1, n - s->backed + HEAP_CREDIT_BATCH);

        atomic_fetch_sub(&h->claimed, got);
        s->backed += got;
    }
    need = n - (s->backed < n ? s->backed : n);
    if (s->avail < need)
        s->avail += fetch(&h->avail, need - s->avail, need - s->avail + HEAP_CREDIT_BATCH);
    return s->avail < need ? MF_E_NO_MEMORY : MF_OK;
}

void heap_credit_gather(struct heap *h, uint32_t owner)
{
    for (unsigned i = 0; i < h->slots; i++) {
        struct heap_slot *s = &h->slot[i];

        atomic_fetch_add(&h->avail, s->avail);
        s->avail = 0;
        if (s->owner == owner)
            let_owner_go(h, s);
    }
}

/* An owner that has gone meanwhile has no claim left: the frames are anybody's. */
static void return_claim(struct heap *h, struct heap_slot *s, uint32_t owner, int64_t n)
{
    struct heap_owner *o = heap_owner_find(h, owner);

    if (!n)
        return;
    if (!o) {
        s->avail += n;
        return;
    }
    atomic_fetch_add(&o->claim, n);
    atomic_fetch_add(&h->claimed, n);
}

struct heap_slot *heap_credit_find(struct heap *h, struct heap_slot *s, unsigned cpu, bool *shared,
                                   uint32_t owner, int64_t n, int64_t *claimed, enum mf_status *st)
{
    *st = refill(h, s, owner, n);
    if (*st != MF_OK) {
        heap_leave(s);
        heap_lock_all(h);
        heap_credit_gather(h, owner);
        *st = refill(h, heap_slot_of(h, cpu, shared), owner, n);
        s = heap_keep_one(h, cpu, shared);
    }
    if (*st == MF_OK && !heap_credit_take(s, owner, n, claimed))
        *st = MF_E_NO_MEMORY;
    return s;
}

void heap_credit_refund(struct heap *h, struct heap_slot *s, uint32_t owner, int64_t n,
                        int64_t claimed)
{
    s->avail += n - claimed;
    if (s->owner == owner) { /* not the case when another came while the locks changed hands */
        s->quota += n;
        s->backed += claimed;
        return;
    }
    heap_credit_return(h, owner, n);
    return_claim(h, s, owner, claimed);
}

void heap_credit_return(struct heap *h, uint32_t owner, int64_t n)
{
    struct heap_owner *o = heap_owner_find(h, owner);

    if (o)
        atomic_fetch_sub_explicit(&o->used, n, memory_order_relaxed);
}

void heap_credit_back(struct heap *h, struct heap_slot *s)
{
    int64_t over = s->avail - HEAP_CREDIT_BATCH;

    if (over > 0) {
        s->avail -= over;
        atomic_fetch_add(&h->avail, over);
    }
    over = s->quota - HEAP_CREDIT_BATCH;
    if (over > 0 && s->quota < HEAP_UNLIMITED / 2) {
        s->quota -= over;
        heap_credit_return(h, s->owner, over);
    }
}

bool heap_credit_ok(const struct heap *h)
{
    int64_t sum = atomic_load(&h->avail) + atomic_load(&h->claimed), used = 0;

    for (unsigned i = 0; i < h->slots; i++) {
        sum += h->slot[i].avail + h->slot[i].backed;
        for (unsigned t = 0; t < 4; t++)
            used += h->slot[i].used[t];
    }
    return sum == (int64_t)h->ft.frames - used;
}
