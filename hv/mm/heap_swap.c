/*
 * Selecting an allocator is a transaction: reserve everything, freeze, let the old one list its
 * free frames straight into the new one, compare with the frame table, switch or roll back.
 */
#include <string.h>

#include "hv/mm/heap_impl.h"

#define META_MAX_PER_FRAME UINT64_C(64) /* metadata beyond this is taken for a mistake */
#define META_MAX_BASE      (UINT64_C(16) << 20)

/* ---- what an allocator lists */

enum mf_status heap_listing_init(struct heap_listing *l, struct heap *h)
{
    uint64_t bits = h->ft.groups * (GROUP_FRAMES / 8);

    memset(l, 0, sizeof *l);
    l->h = h;
    l->bytes = bits + h->ft.groups;
    l->seen = h->env->reserve(h->env->arg, l->bytes);
    if (!l->seen)
        return MF_E_NO_MEMORY;
    l->seen_group = (uint8_t *)l->seen + bits;
    return MF_OK;
}

void heap_listing_fini(struct heap_listing *l)
{
    if (l->seen)
        l->h->env->release(l->h->env->arg, l->seen, l->bytes);
    l->seen = NULL;
}

static void listing_group(struct heap_listing *l, uint64_t g)
{
    uint32_t word = atomic_load_explicit(&l->h->ft.group[g], memory_order_relaxed);

    if (word & GROUP_WHOLE)
        l->in_use += GROUP_FRAMES;
    else
        l->in_use += word & GROUP_USED;
    if (l->seen_group[g])
        l->twice += GROUP_FRAMES;
    l->seen_group[g] = 2;
}

/* `take` frames from `first` on, all in one word. */
static void listing_word(struct heap_listing *l, uint64_t first, uint64_t take)
{
    uint64_t mask = take == 64 ? ~UINT64_C(0) : ((UINT64_C(1) << take) - 1) << (first & 63);
    uint64_t g = first >> GROUP_ORDER, *seen = &l->seen[first >> 6];

    l->in_use += mm_popcount(ft_used_word(&l->h->ft, first) & mask);
    l->twice += mm_popcount(*seen & mask);
    if (l->seen_group[g] == 2)
        l->twice += take;
    else
        l->seen_group[g] = 1;
    *seen |= mask;
}

static bool listing_range(void *arg, uint64_t first, uint64_t n)
{
    struct heap_listing *l = arg;
    uint64_t at = first, left = n;

    if (!n || first >= l->h->ft.frames || n > l->h->ft.frames - first) {
        l->outside++;
        return false;
    }
    l->ranges++;
    l->frames += n;
    while (left) {
        uint64_t take = 64 - (at & 63);

        if (!(at & (GROUP_FRAMES - 1)) && left >= GROUP_FRAMES) {
            take = GROUP_FRAMES;
            listing_group(l, at >> GROUP_ORDER);
        } else {
            take = take < left ? take : left;
            listing_word(l, at, take);
        }
        at += take;
        left -= take;
    }
    if (l->to && !l->in_use && !l->twice)
        l->to_status = l->to->ops->add(&l->to->env, first, n);
    return !l->to || (!l->in_use && !l->twice && l->to_status == MF_PL_OK);
}

void heap_listing_run(struct heap_listing *l, const struct heap_allocator *from)
{
    if (from->ops->drain)
        from->ops->drain(&from->env);
    from->ops->list(&from->env, listing_range, l);
}

/* ---- the transaction */

struct swap {
    struct heap *h;
    struct heap_allocator new, old;
    struct heap_listing list;
    const char *why;
    uint64_t free_frames, ranges;
};

static enum mf_status fail(struct swap *s, enum mf_status st, const char *why)
{
    s->why = why;
    return st;
}

/* `size` covers `member`: the ops of a plugin are long enough to have it. */
#define OPS_HAS(ops, member)                                                                       \
    ((ops)->size >= offsetof(struct mf_allocator_ops, member) + sizeof((ops)->member))

static enum mf_status check_ops(struct swap *s, const char *name,
                                const struct mf_allocator_ops *ops)
{
    if (!name || !name[0] || memchr(name, '\0', MF_NAME_MAX) == NULL)
        return fail(s, MF_E_NAME, "the allocator has no proper name");
    if (!ops || !OPS_HAS(ops, fini))
        return fail(s, MF_E_PLUGIN, "the operations table is too short");
    if (!ops->meta_size || !ops->init || !ops->add || !ops->alloc || !ops->free || !ops->list ||
        !ops->stats || !ops->fini)
        return fail(s, MF_E_PLUGIN, "the operations table has holes");
    return MF_OK;
}

/* Reserves metadata and starts the new allocator, empty. Nothing of the heap is touched. */
static enum mf_status start_new(struct swap *s, const char *name,
                                const struct mf_allocator_ops *ops)
{
    const struct mm_env *env = s->h->env;
    struct mf_alloc_env *e = &s->new.env;
    uint64_t bytes = ops->meta_size(s->h->ft.frames, s->h->cpus);

    if (!bytes)
        return fail(s, MF_E_PLUGIN, "the allocator cannot serve that many frames");
    if (bytes > s->h->ft.frames * META_MAX_PER_FRAME + META_MAX_BASE)
        return fail(s, MF_E_PLUGIN, "the allocator wants too much metadata");
    *e = (struct mf_alloc_env){.size = sizeof *e, .nr_cpus = s->h->cpus};
    e->nr_frames = s->h->ft.frames;
    e->meta_size = bytes;
    e->meta = env->reserve(env->arg, bytes);
    if (!e->meta)
        return fail(s, MF_E_NO_MEMORY, "no memory for the allocator's metadata");
    strncpy(s->new.name, name, sizeof s->new.name - 1);
    return MF_OK;
}

static uint64_t free_frames_of(const struct heap_allocator *a)
{
    struct mf_alloc_stats st = {.size = sizeof st};

    a->ops->stats(&a->env, &st);
    return st.free_frames;
}

/* Fills the new allocator from the old one; all slots are locked. */
static enum mf_status take_over(struct swap *s)
{
    struct heap_listing *l = &s->list;
    uint64_t want = s->h->ft.frames - heap_count_used(s->h);

    l->to = &s->new;
    heap_listing_run(l, &s->h->alloc);
    s->free_frames = l->frames;
    s->ranges = l->ranges;
    if (l->outside)
        return fail(s, MF_E_PLUGIN, "the old allocator lists frames outside the arena");
    if (l->in_use)
        return fail(s, MF_E_PLUGIN, "the old allocator lists frames that are in use");
    if (l->twice)
        return fail(s, MF_E_PLUGIN, "the old allocator lists a frame twice");
    if (l->to_status != MF_PL_OK)
        return fail(s, MF_E_PLUGIN, "the new allocator refuses free frames");
    if (l->frames != want)
        return fail(s, MF_E_PLUGIN, "the old allocator does not list every free frame");
    if (free_frames_of(&s->new) != want)
        return fail(s, MF_E_PLUGIN, "the new allocator lost frames on the way");
    return MF_OK;
}

/* The first allocator gets all frames. */
static enum mf_status take_all(struct swap *s)
{
    uint64_t n = s->h->ft.frames;

    if (s->new.ops->add(&s->new.env, 0, n) != MF_PL_OK)
        return fail(s, MF_E_PLUGIN, "the allocator refuses free frames");
    if (free_frames_of(&s->new) != n)
        return fail(s, MF_E_PLUGIN, "the allocator lost frames on the way");
    s->free_frames = n;
    s->ranges = 1;
    return MF_OK;
}

/* With all slots locked. */
static void switch_to_new(struct swap *s)
{
    struct heap *h = s->h;

    s->old = h->alloc;
    h->alloc = s->new;
    atomic_store_explicit(&h->shared, (s->new.ops->flags &MF_ALLOC_THREAD_SAFE) != 0,
                          memory_order_relaxed);
}

static void release_allocator(struct heap *h, struct heap_allocator *a)
{
    if (a->ops)
        a->ops->fini(&a->env);
    if (a->env.meta)
        h->env->release(h->env->arg, a->env.meta, a->env.meta_size);
    memset(a, 0, sizeof *a);
}

static enum mf_status swap_run(struct swap *s, uint64_t *pause_ns)
{
    struct heap *h = s->h;
    uint64_t t0 = h->env->now_ns(h->env->arg);
    bool first = !h->alloc.ops;
    enum mf_status st = MF_OK;

    if (s->new.ops->init(&s->new.env) != MF_PL_OK)
        return fail(s, MF_E_PLUGIN, "the allocator does not start");
    if (first)
        st = take_all(s);
    else
        t0 = h->env->now_ns(h->env->arg);
    heap_lock_all(h);
    if (!first)
        st = take_over(s);
    if (st == MF_OK)
        switch_to_new(s);
    *pause_ns = h->env->now_ns(h->env->arg) - t0;
    if (st == MF_OK && first)
        h->init_ns = *pause_ns;
    if (st == MF_OK && !first) {
        h->swaps++;
        h->swap_pause_ns = *pause_ns;
    }
    heap_unlock_all(h);
    return st;
}

/* Reserve, run, clean up behind whichever side lost. */
static enum mf_status swap_all(struct swap *s, const char *name, const struct mf_allocator_ops *ops,
                               uint64_t *pause_ns)
{
    enum mf_status st = check_ops(s, name, ops);

    if (st != MF_OK)
        return st;
    st = start_new(s, name, ops);
    if (st != MF_OK)
        return st;
    st = s->h->alloc.ops ? heap_listing_init(&s->list, s->h) : MF_OK;
    if (st != MF_OK) {
        fail(s, st, "no memory to check the free frames with");
        goto drop_new;
    }
    s->new.ops = ops;
    st = swap_run(s, pause_ns);
    heap_listing_fini(&s->list);
    if (st == MF_OK) {
        release_allocator(s->h, &s->old);
        return MF_OK;
    }
drop_new:
    release_allocator(s->h, &s->new);
    return st;
}

enum mf_status heap_select(struct heap *h, const char *name, const struct mf_allocator_ops *ops,
                           struct heap_swap_report *report, const char **why)
{
    uint64_t t0 = h->env->now_ns(h->env->arg), pause_ns = 0;
    struct swap s = {.h = h};
    enum mf_status st = MF_E_BUSY;
    char from[MF_NAME_MAX];

    if (!atomic_exchange(&h->busy, true)) {
        memcpy(from, h->alloc.name, sizeof from);
        st = swap_all(&s, name, ops, &pause_ns);
        atomic_store(&h->busy, false);
    } else {
        s.why = "another swap is under way";
    }
    if (why)
        *why = s.why;
    if (st == MF_OK && report) {
        *report = (struct heap_swap_report){
            .pause_ns = pause_ns, .free_frames = s.free_frames, .ranges = s.ranges};
        report->total_ns = h->env->now_ns(h->env->arg) - t0;
        memcpy(report->from, from, sizeof from);
        strncpy(report->to, name, sizeof report->to - 1);
    }
    return st;
}

bool heap_uses(struct heap *h, const struct mf_allocator_ops *ops)
{
    bool shared, uses;
    struct heap_slot *s = heap_enter(h, 0, &shared);

    uses = h->alloc.ops == ops;
    heap_leave(s);
    return uses;
}
