/* Memory slots: the extents of a second stage, over the arena as it is mapped in this process. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hv/cpu/kvm/kvm.h"

struct wanted {
    struct kvm_slot *list;
    unsigned count, cap;
};

#define NO_ID UINT32_MAX

static int set_region(struct kvm_shell *s, const struct kvm_slot *slot, uint64_t bytes, void *at)
{
    struct kvm_userspace_memory_region r = {
        .slot = slot->id,
        .flags = slot->access & S2_WRITE ? 0 : KVM_MEM_READONLY,
        .guest_phys_addr = slot->gfn << FRAME_SHIFT,
        .memory_size = bytes,
        .userspace_addr = (uint64_t)(uintptr_t)at,
    };
    int rc;

    do
        rc = kvm_ioctl_p(s->fd, KVM_SET_USER_MEMORY_REGION, &r);
    while (rc && errno == EINTR);
    return rc;
}

/* ---- numbers of slots */

static bool put_id(struct kvm_shell *s, uint32_t id)
{
    if (s->nr_ids == s->cap_ids) {
        unsigned cap = s->cap_ids ? 2 * s->cap_ids : 16;
        uint32_t *ids = realloc(s->ids, cap * sizeof *ids);

        if (!ids)
            return false; /* the number is lost to this shell */
        s->ids = ids;
        s->cap_ids = cap;
    }
    s->ids[s->nr_ids++] = id;
    return true;
}

static uint32_t take_id(struct kvm_shell *s)
{
    if (s->nr_ids)
        return s->ids[--s->nr_ids];
    return s->next_id < kvm_host()->max_slots ? s->next_id++ : NO_ID;
}

/* ---- what the second stage wants */

static bool add_wanted(struct wanted *w, const struct s2_extent *e)
{
    if (w->count == w->cap) {
        unsigned cap = w->cap ? 2 * w->cap : 8;
        struct kvm_slot *list = realloc(w->list, cap * sizeof *list);

        if (!list)
            return false;
        w->list = list;
        w->cap = cap;
    }
    w->list[w->count++] = (struct kvm_slot){.gfn = e->g.v,
                                            .mfn = e->m.v,
                                            .frames = e->frames,
                                            .access = e->access & S2_WRITE ? S2_WRITE : 0,
                                            .id = NO_ID};
    return true;
}

static enum mf_status read_wanted(struct stage2 *s2, struct wanted *w)
{
    struct s2_extent e;
    uint64_t at = 0;

    for (; stage2_extent(s2, gfn(at), &e) == MF_OK; at = e.g.v + e.frames) {
        if (w->count >= kvm_host()->max_slots)
            return MF_E_LIMIT;
        if (!add_wanted(w, &e))
            return MF_E_NO_MEMORY;
    }
    return MF_OK;
}

/* ---- from what there is to what is wanted */

static bool same(const struct kvm_slot *a, const struct kvm_slot *b)
{
    return a->gfn == b->gfn && a->mfn == b->mfn && a->frames == b->frames && a->access == b->access;
}

/* Slots that stay give their number to what is wanted; the others go. */
static enum mf_status remove_others(struct kvm_shell *s, struct wanted *w)
{
    enum mf_status st = MF_OK;
    unsigned kept = 0;

    for (unsigned i = 0, j = 0; i < s->nr_slots; i++) {
        struct kvm_slot *old = &s->slots[i];

        while (j < w->count && w->list[j].gfn < old->gfn)
            j++;
        if (j < w->count && same(old, &w->list[j])) {
            w->list[j].id = old->id;
        } else if (!st && set_region(s, old, 0, NULL)) {
            st = MF_E_IO;
        } else if (!st) {
            put_id(s, old->id);
            continue;
        }
        s->slots[kept++] = *old;
    }
    s->nr_slots = kept;
    return st;
}

static enum mf_status add_missing(struct kvm_shell *s, struct wanted *w, struct stage2 *s2,
                                  unsigned *done)
{
    for (*done = 0; *done < w->count; ++*done) {
        struct kvm_slot *slot = &w->list[*done];

        if (slot->id != NO_ID)
            continue;
        slot->id = take_id(s);
        if (slot->id == NO_ID)
            return MF_E_LIMIT;
        if (set_region(s, slot, slot->frames << FRAME_SHIFT,
                       heap_ptr(stage2_heap(s2), mfn(slot->mfn)))) {
            int err = errno;

            put_id(s, slot->id);
            return err == ENOMEM ? MF_E_NO_MEMORY : MF_E_IO;
        }
    }
    return MF_OK;
}

/* The wanted slots that exist, up to `done`, and those behind that existed before. */
static void adopt(struct kvm_shell *s, struct wanted *w, unsigned done)
{
    unsigned n = 0;

    for (unsigned i = 0; i < w->count; i++)
        if (i < done || w->list[i].id != NO_ID)
            w->list[n++] = w->list[i];
    free(s->slots);
    s->slots = w->list;
    s->nr_slots = n;
    s->cap_slots = w->cap;
}

enum mf_status kvm_slots_sync(struct kvm_shell *s, struct stage2 *s2, bool force)
{
    struct wanted w = {0};
    struct s2_info info;
    enum mf_status st = MF_OK;
    unsigned done = 0;

    pthread_mutex_lock(&s->lock);
    /* Before the tree is read: a change after that moves the epoch again. */
    stage2_get_info(s2, &info);
    if (s->synced && s->epoch == info.epoch && !force)
        goto out;
    st = read_wanted(s2, &w);
    if (!st)
        st = remove_others(s, &w);
    if (st) {
        free(w.list);
        goto out;
    }
    st = add_missing(s, &w, s2, &done);
    if (st && done < w.count)
        w.list[done].id = NO_ID;
    adopt(s, &w, done);
    s->synced = !st;
    s->epoch = info.epoch;
out:
    pthread_mutex_unlock(&s->lock);
    return st;
}

void kvm_slots_drop(struct kvm_shell *s)
{
    free(s->slots);
    free(s->ids);
    s->slots = NULL;
    s->ids = NULL;
    s->nr_slots = s->cap_slots = s->nr_ids = s->cap_ids = 0;
}
