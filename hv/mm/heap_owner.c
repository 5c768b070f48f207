/*
 * Owners with a quota: an open hash table that is read without a lock. An owner's place is found by
 * probing at most HEAP_OWNER_PROBE slots from its number on; numbers that come in sequence thus
 * meet no collision.
 */
#include "hv/mm/heap_impl.h"

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
    for (unsigned i = 0; i < HEAP_OWNER_PROBE; i++) {
        struct heap_owner *o = owner_slot(h, owner, i);
        uint32_t key = atomic_load_explicit(&o->key, memory_order_relaxed);

        if (key != OWNER_NONE && key != HEAP_OWNER_GONE)
            continue;
        atomic_store_explicit(&o->used, 0, memory_order_relaxed);
        atomic_store_explicit(&o->limit, frames, memory_order_relaxed);
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

uint64_t heap_owner_end(struct heap *h, uint32_t owner)
{
    struct heap_owner *o;
    uint64_t held = 0;

    mm_lock_take(&h->owner_lock, h->env);
    o = heap_owner_find(h, owner);
    if (o && owner != OWNER_NONE && owner != HEAP_OWNER_GONE) {
        held = atomic_load_explicit(&o->used, memory_order_relaxed);
        atomic_store_explicit(&o->key, HEAP_OWNER_GONE, memory_order_release);
        owner_sweep(h, (uint32_t)(o - h->owners));
    }
    mm_lock_drop(&h->owner_lock);
    return held;
}
