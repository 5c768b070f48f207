/*
 * Owners with a quota: an open hash table that is read without a lock. An owner's place is found by
 * probing at most HEAP_OWNER_PROBE slots from its number on; numbers that come in sequence thus
 * meet no collision. What it holds is charged in batches (heap_credit.c); what must be exact is
 * computed with all slots locked, after what they have at hand was gathered.
 */
#include "hv/mm/heap_impl.h"

#define LIMIT_MAX (INT64_MAX / 4) /* more frames than there can be */

static struct heap_owner *owner_slot(struct heap *h, uint32_t owner, unsigned i)
{
    return &h->owners[(owner + i) & (HEAP_OWNERS - 1)];
}

struct heap_owner *heap_owner_find(struct heap *h, uint32_t owner)
{
    for (unsigned i = 0; i < HEAP_OWNER_PROBE; i++) {
        struct heap_owner *o = owner_slot(h, owner, i);
        uint32_t key = atomic_load_explicit(&o->key, memory_order_acquire);

        if (key == owner)
            return o;
        if (!key)
            return NULL;
    }
    return NULL;
}

static void forget_owner(struct heap *h, uint32_t owner)
{
    heap_lock_all(h);
    heap_credit_gather(h, owner);
    heap_unlock_all(h);
}

enum mf_status heap_owner_begin(struct heap *h, uint32_t owner, uint64_t frames)
{
    enum mf_status st = MF_E_LIMIT;

    if (owner == OWNER_NONE || owner == HEAP_OWNER_GONE)
        return MF_E_RANGE;
    mm_lock_take(&h->owner_lock, h->env);
    if (heap_owner_find(h, owner)) {
        st = MF_E_EXISTS;
        goto out;
    }
    forget_owner(h, owner); /* slots may take it for one without a limit */
    for (unsigned i = 0; i < HEAP_OWNER_PROBE; i++) {
        struct heap_owner *o = owner_slot(h, owner, i);
        uint32_t key = atomic_load_explicit(&o->key, memory_order_relaxed);

        if (key != OWNER_NONE && key != HEAP_OWNER_GONE)
            continue;
        atomic_store_explicit(&o->used, 0, memory_order_relaxed);
        atomic_store_explicit(&o->claim, 0, memory_order_relaxed);
        atomic_store_explicit(&o->limit, frames < LIMIT_MAX ? (int64_t)frames : LIMIT_MAX,
                              memory_order_relaxed);
        atomic_store_explicit(&o->key, owner, memory_order_release);
        st = MF_OK;
        break;
    }
out:
    mm_lock_drop(&h->owner_lock);
    return st;
}

/* A slot is free again for good when nobody probes past it: the one behind it is empty. */
static void owner_sweep(struct heap *h, uint32_t index)
{
    for (unsigned i = 0; i < HEAP_OWNER_PROBE; i++) {
        struct heap_owner *o = &h->owners[(index - i) & (HEAP_OWNERS - 1)];
        struct heap_owner *behind = &h->owners[(index - i + 1) & (HEAP_OWNERS - 1)];

        if (atomic_load_explicit(&o->key, memory_order_relaxed) != HEAP_OWNER_GONE ||
            atomic_load_explicit(&behind->key, memory_order_relaxed))
            return;
        atomic_store_explicit(&o->key, OWNER_NONE, memory_order_relaxed);
    }
}

/* The owner's claim is free for all again. All slots locked, gathered. */
static int64_t drop_claim(struct heap *h, struct heap_owner *o)
{
    int64_t n = atomic_exchange(&o->claim, 0);

    atomic_fetch_sub(&h->claimed, n);
    atomic_fetch_add(&h->avail, n);
    return n;
}

/* Owner lock held. NULL for the two keys that mean something else. */
static struct heap_owner *known(struct heap *h, uint32_t owner)
{
    return owner == OWNER_NONE || owner == HEAP_OWNER_GONE ? NULL : heap_owner_find(h, owner);
}

/*
 * Alone with the heap: owner lock and all slots held, the owner's credit gathered, so that the
 * numbers are exact. NULL: not begun; also then to be left again.
 */
static struct heap_owner *alone_enter(struct heap *h, uint32_t owner)
{
    struct heap_owner *o;

    mm_lock_take(&h->owner_lock, h->env);
    o = known(h, owner);
    heap_lock_all(h);
    heap_credit_gather(h, owner);
    return o;
}

static void alone_leave(struct heap *h)
{
    heap_unlock_all(h);
    mm_lock_drop(&h->owner_lock);
}

uint64_t heap_owner_end(struct heap *h, uint32_t owner)
{
    struct heap_owner *o = alone_enter(h, owner);
    int64_t held = 0;

    if (o) {
        drop_claim(h, o);
        held = atomic_load_explicit(&o->used, memory_order_relaxed);
        atomic_store_explicit(&o->key, HEAP_OWNER_GONE, memory_order_release);
        owner_sweep(h, (uint32_t)(o - h->owners));
    }
    alone_leave(h);
    return held > 0 ? (uint64_t)held : 0;
}

/* ---- claims */

/* All slots locked, gathered: the numbers are exact. */
static enum mf_status check_claim(const struct heap *h, const struct heap_owner *o, uint64_t frames,
                                  struct heap_shortage *w)
{
    int64_t avail = atomic_load(&h->avail), claimed = atomic_load(&h->claimed);
    *w = (struct heap_shortage){.asked = frames, .limit = UINT64_MAX};
    w->claimed = (uint64_t)claimed;
    w->free = avail + claimed > 0 ? (uint64_t)(avail + claimed) : 0;
    if (!o)
        return MF_E_NOT_FOUND;
    w->limit = (uint64_t)atomic_load(&o->limit);
    w->held = (uint64_t)(atomic_load(&o->used) + atomic_load(&o->claim));
    if (w->limit == LIMIT_MAX)
        w->limit = UINT64_MAX;
    if (w->held > w->limit || frames > w->limit - w->held)
        return MF_E_QUOTA;
    return avail < 0 || frames > (uint64_t)avail ? MF_E_NO_MEMORY : MF_OK;
}

enum mf_status heap_claim(struct heap *h, uint32_t owner, uint64_t frames,
                          struct heap_shortage *why)
{
    struct heap_owner *o = alone_enter(h, owner);
    struct heap_shortage w;
    enum mf_status st = check_claim(h, o, frames, &w);

    if (st == MF_OK) {
        atomic_fetch_sub(&h->avail, (int64_t)frames);
        atomic_fetch_add(&h->claimed, (int64_t)frames);
        atomic_fetch_add(&o->claim, (int64_t)frames);
    } else if (why) {
        *why = w;
    }
    alone_leave(h);
    return st;
}

uint64_t heap_claim_release(struct heap *h, uint32_t owner)
{
    struct heap_owner *o = alone_enter(h, owner);
    int64_t n = o ? drop_claim(h, o) : 0;

    alone_leave(h);
    return (uint64_t)n;
}

uint64_t heap_claim_left(struct heap *h, uint32_t owner)
{
    struct heap_owner *o = alone_enter(h, owner);
    int64_t n = o ? atomic_load(&o->claim) : 0;

    alone_leave(h);
    return (uint64_t)n;
}
