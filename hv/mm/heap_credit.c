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
static void let_owner_go(struct heap_slot *s)
{
    if (s->rec)
        atomic_fetch_sub(&s->rec->used, s->quota);
    s->owner = OWNER_NONE;
    s->rec = NULL;
    s->quota = 0;
}

/* Frames of a claim that were not used after all. */
static void move_claim(struct heap *h, struct heap_owner *o, int64_t c)
{
    if (!c)
        return;
    atomic_fetch_add(&o->claim, c);
    atomic_fetch_add(&h->claimed, c);
}

/* Pays for n frames of `owner`; nothing is paid when it cannot be done. */
static enum mf_status pay(struct heap *h, struct heap_slot *s, uint32_t owner, int64_t n,
                          int64_t *claimed)
{
    int64_t c = 0, need;

    if (s->owner != owner) {
        let_owner_go(s);
        s->owner = owner;
        s->rec = heap_owner_find(h, owner);
        s->quota = s->rec ? 0 : HEAP_UNLIMITED;
    }
    if (s->quota < n && s->rec)
        s->quota += charge(s->rec, n - s->quota, n - s->quota + HEAP_CREDIT_BATCH);
    if (s->quota < n)
        return MF_E_QUOTA;
    if (s->rec)
        c = fetch(&s->rec->claim, 1, n);
    need = n - c - s->avail;
    if (need > 0)
        s->avail += fetch(&h->avail, need, need + HEAP_CREDIT_BATCH);
    if (s->avail < n - c) {
        if (c)
            atomic_fetch_add(&s->rec->claim, c);
        return MF_E_NO_MEMORY;
    }
    atomic_fetch_sub(&h->claimed, c);
    s->quota -= n;
    s->avail -= n - c;
    *claimed = c;
    return MF_OK;
}

void heap_credit_gather(struct heap *h, uint32_t owner)
{
    for (unsigned i = 0; i < h->slots; i++) {
        struct heap_slot *s = &h->slot[i];

        atomic_fetch_add(&h->avail, s->avail);
        s->avail = 0;
        if (s->owner == owner)
            let_owner_go(s);
    }
}

struct heap_slot *heap_credit_find(struct heap *h, struct heap_slot *s, unsigned cpu, bool *shared,
                                   uint32_t owner, int64_t n, int64_t *claimed, enum mf_status *st)
{
    *st = pay(h, s, owner, n, claimed);
    if (*st != MF_OK) {
        heap_leave(s);
        heap_lock_all(h);
        heap_credit_gather(h, owner);
        *st = pay(h, heap_slot_of(h, cpu, shared), owner, n, claimed);
        s = heap_keep_one(h, cpu, shared);
    }
    return s;
}

void heap_credit_refund(struct heap *h, struct heap_slot *s, uint32_t owner, int64_t n,
                        int64_t claimed)
{
    struct heap_owner *o = heap_owner_find(h, owner);

    /* An owner that has gone meanwhile has no claim left: the frames are anybody's. */
    s->avail += o ? n - claimed : n;
    if (o)
        move_claim(h, o, claimed);
    if (s->owner == owner)
        s->quota += n;
    else /* another came while the locks changed hands */
        heap_credit_return(h, owner, n);
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
        sum += h->slot[i].avail;
        for (unsigned t = 0; t < 4; t++)
            used += h->slot[i].used[t];
    }
    return sum == (int64_t)h->ft.frames - used;
}
