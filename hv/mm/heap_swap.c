/*
 * Selecting an allocator is a transaction: reserve everything, fill the new one with what is free
 * by the frame table while the heap goes on, freeze, compare what the old one lists with the table,
 * bring the new one up to date, compare the totals, switch or roll back.
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
    if (!ft_group_free(&l->h->ft, g << GROUP_ORDER))
        for (unsigned i = 0; i < GROUP_FRAMES; i += 64)
            l->in_use += mm_popcount(ft_used_word(&l->h->ft, (g << GROUP_ORDER) + i));
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
    return !l->in_use && !l->twice;
}

void heap_listing_run(struct heap_listing *l, const struct heap_allocator *from)
{
    if (from->ops->drain)
        from->ops->drain(&from->env);
    from->ops->list(&from->env, listing_range, l);
}

/* ---- free frames by the table */

/* Hands runs of frames to one of an allocator's operations. */
struct runs {
    const struct heap_allocator *a;
    int (*op)(const struct mf_alloc_env *env, uint64_t first, uint64_t n);
    uint64_t first, n; /* the run being put together */
    uint64_t count;
    int status; /* the first that is not MF_PL_OK; then nothing more is handed over */
};

static void runs_flush(struct runs *r)
{
    if (r->n && r->status == MF_PL_OK) {
        r->status = r->op(&r->a->env, r->first, r->n);
        r->count++;
    }
    r->n = 0;
}

static void runs_add(struct runs *r, uint64_t first, uint64_t n)
{
    if (r->n && r->first + r->n == first) {
        r->n += n;
        return;
    }
    runs_flush(r);
    r->first = first;
    r->n = n;
}

static void runs_word(struct runs *r, uint64_t base, uint64_t mask)
{
    while (mask) {
        unsigned at = (unsigned)__builtin_ctzll(mask), n;
        uint64_t rest = ~(mask >> at);

        n = rest ? (unsigned)__builtin_ctzll(rest) : 64 - at;
        runs_add(r, base + at, n);
        mask &= at + n >= 64 ? 0 : ~UINT64_C(0) << (at + n);
    }
}

/*
 * What the new allocator was given while the heap went on: all that was free when it was looked
 * at. With the heap frozen only the difference is left to do.
 */
struct given {
    uint64_t *frame; /* bit per frame, for groups given in part */
    uint8_t *group;  /* 1: given in part, 2: given whole */
    uint64_t bytes;
};

/* Free frames of the 64 at `base`; none beyond the table's end. */
static uint64_t free_word(const struct heap *h, uint64_t base)
{
    uint64_t left = h->ft.frames > base ? h->ft.frames - base : 0;
    uint64_t have = left >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << left) - 1;

    return have & ~ft_used_word(&h->ft, base);
}

static bool group_is_whole_and_free(const struct heap *h, uint64_t g)
{
    return ((g + 1) << GROUP_ORDER) <= h->ft.frames && ft_group_free(&h->ft, g << GROUP_ORDER);
}

/* Gives one group's free frames and notes them where `v` is not NULL. */
static void give_group(const struct heap *h, uint64_t g, struct runs *add, struct given *v)
{
    if (group_is_whole_and_free(h, g)) {
        if (v)
            v->group[g] = 2;
        runs_add(add, g << GROUP_ORDER, GROUP_FRAMES);
        return;
    }
    if (ft_group(&h->ft, g << GROUP_ORDER) & GROUP_WHOLE)
        return;
    for (uint64_t base = g << GROUP_ORDER; base < (g + 1) << GROUP_ORDER; base += 64) {
        uint64_t mask = free_word(h, base);

        if (mask && v) {
            v->group[g] = 1;
            v->frame[base >> 6] = mask;
        }
        runs_word(add, base, mask);
    }
}

/* Heap frozen: what of one group has changed hands since it was given. */
static void correct_group(const struct heap *h, uint64_t g, struct runs *add, struct runs *take,
                          const struct given *v)
{
    if (v->group[g] == 2 ? group_is_whole_and_free(h, g)
                         : !v->group[g] && ft_group(&h->ft, g << GROUP_ORDER) & GROUP_WHOLE)
        return;
    for (uint64_t base = g << GROUP_ORDER; base < (g + 1) << GROUP_ORDER; base += 64) {
        uint64_t had = v->group[g] == 2 ? ~UINT64_C(0) : v->group[g] ? v->frame[base >> 6] : 0;
        uint64_t now = free_word(h, base);

        runs_word(take, base, had & ~now);
        runs_word(add, base, now & ~had);
    }
}

/* ---- the transaction */

struct swap {
    struct heap *h;
    struct heap_allocator new, old;
    struct heap_listing list;
    struct given given;
    const char *why;
    uint64_t free_frames, ranges;
};

static enum mf_status fail(struct swap *s, enum mf_status st, const char *why)
{
    s->why = why;
    return st;
}

static enum mf_status check_ops(struct swap *s, const char *name,
                                const struct mf_allocator_ops *ops)
{
    if (!name || !name[0] || memchr(name, '\0', MF_NAME_MAX) == NULL)
        return fail(s, MF_E_NAME, "the allocator has no proper name");
    if (!ops || !HEAP_OPS_HAS(ops, fini))
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
    e->relax = env->relax;
    e->relax_arg = env->arg;
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

static enum mf_status given_init(struct swap *s)
{
    uint64_t bits = s->h->ft.groups * (GROUP_FRAMES / 8);

    s->given.bytes = bits + s->h->ft.groups;
    s->given.frame = s->h->env->reserve(s->h->env->arg, s->given.bytes);
    if (!s->given.frame)
        return fail(s, MF_E_NO_MEMORY, "no memory to note the free frames in");
    s->given.group = (uint8_t *)s->given.frame + bits;
    return MF_OK;
}

static void given_fini(struct swap *s)
{
    if (s->given.frame)
        s->h->env->release(s->h->env->arg, s->given.frame, s->given.bytes);
}

/* Gives the new allocator what is free by the table, with or without the heap frozen. */
static enum mf_status fill_new(struct swap *s, struct given *v)
{
    struct runs add = {.a = &s->new, .op = s->new.ops->add};

    for (uint64_t g = 0; g < s->h->ft.groups && add.status == MF_PL_OK; g++)
        give_group(s->h, g, &add, v);
    runs_flush(&add);
    s->ranges += add.count;
    /* Nothing is free: said too, so that no allocator takes untouched metadata for all free. */
    if (add.status == MF_PL_OK && !add.count)
        add.status = s->new.ops->add(&s->new.env, 0, 0);
    return add.status == MF_PL_OK ? MF_OK
                                  : fail(s, MF_E_PLUGIN, "the new allocator refuses free frames");
}

/* All slots are locked. */
static enum mf_status correct_new(struct swap *s)
{
    struct runs add = {.a = &s->new, .op = s->new.ops->add};
    struct runs take = {.a = &s->new, .op = heap_ops_take(s->new.ops)};

    if (s->new.ops->drain)
        s->new.ops->drain(&s->new.env);
    for (uint64_t g = 0; g < s->h->ft.groups; g++)
        correct_group(s->h, g, &add, &take, &s->given);
    runs_flush(&take);
    runs_flush(&add);
    s->ranges += add.count + take.count;
    if (add.status != MF_PL_OK || take.status != MF_PL_OK)
        return fail(s, MF_E_PLUGIN, "the new allocator refuses to follow what changed meanwhile");
    return MF_OK;
}

static enum mf_status check_total(struct swap *s)
{
    s->free_frames = s->h->ft.frames - heap_count_used(s->h);
    if (free_frames_of(&s->new) != s->free_frames)
        return fail(s, MF_E_PLUGIN, "the new allocator lost frames on the way");
    return MF_OK;
}

/* Does the old one still know what it should? All slots are locked. */
static enum mf_status check_old(struct swap *s)
{
    struct heap_listing *l = &s->list;

    heap_listing_run(l, &s->h->alloc);
    if (l->outside)
        return fail(s, MF_E_PLUGIN, "the old allocator lists frames outside the arena");
    if (l->in_use)
        return fail(s, MF_E_PLUGIN, "the old allocator lists frames that are in use");
    if (l->twice)
        return fail(s, MF_E_PLUGIN, "the old allocator lists a frame twice");
    if (l->frames != s->h->ft.frames - heap_count_used(s->h))
        return fail(s, MF_E_PLUGIN, "the old allocator does not list every free frame");
    return MF_OK;
}

/* With the heap frozen: verify, bring the new one up to date, compare. */
static enum mf_status take_over(struct swap *s, bool filled)
{
    enum mf_status st = check_old(s);

    if (st == MF_OK)
        st = filled ? correct_new(s) : fill_new(s, NULL);
    return st == MF_OK ? check_total(s) : st;
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

/* The first allocator of the heap; the time is its init and add. */
static enum mf_status first_run(struct swap *s, uint64_t *init_ns)
{
    struct heap *h = s->h;
    uint64_t t0 = h->env->now_ns(h->env->arg);
    enum mf_status st;

    if (s->new.ops->init(&s->new.env) != MF_PL_OK)
        return fail(s, MF_E_PLUGIN, "the allocator does not start");
    st = take_all(s);
    if (st != MF_OK)
        return st;
    heap_lock_all(h);
    switch_to_new(s);
    *init_ns = h->env->now_ns(h->env->arg) - t0;
    h->init_ns = *init_ns;
    heap_unlock_all(h);
    return MF_OK;
}

/*
 * The new one is filled while the heap goes on, if it can let go again what was allocated
 * meanwhile. Otherwise, and for the difference, the heap stands still.
 */
static enum mf_status swap_run(struct swap *s, uint64_t *pause_ns)
{
    bool filled = heap_ops_take(s->new.ops) != NULL;
    struct heap *h = s->h;
    enum mf_status st;
    uint64_t t0;

    if (s->new.ops->init(&s->new.env) != MF_PL_OK)
        return fail(s, MF_E_PLUGIN, "the allocator does not start");
    st = filled ? fill_new(s, &s->given) : MF_OK;
    if (st != MF_OK)
        return st;
    t0 = h->env->now_ns(h->env->arg);
    heap_lock_all(h);
    st = take_over(s, filled);
    if (st == MF_OK)
        switch_to_new(s);
    *pause_ns = h->env->now_ns(h->env->arg) - t0;
    if (st == MF_OK) {
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
    if (s->h->alloc.ops) {
        st = given_init(s);
        if (st == MF_OK)
            st = swap_run(s, pause_ns);
    } else {
        st = first_run(s, pause_ns);
    }
    given_fini(s);
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

enum mf_status heap_restart(struct heap *h, void (*change)(struct heap *h, void *arg),
                            void (*undo)(struct heap *h, void *arg), void *arg)
{
    const struct mf_allocator_ops *ops;
    struct swap s = {.h = h};
    enum mf_status st;

    if (atomic_exchange(&h->busy, true))
        return MF_E_BUSY;
    ops = h->alloc.ops;
    st = ops ? start_new(&s, h->alloc.name, ops) : MF_E_NO_ALLOCATOR;
    if (st == MF_OK) {
        s.new.ops = ops;
        st = ops->init(&s.new.env) == MF_PL_OK ? MF_OK : MF_E_PLUGIN;
    }
    if (st == MF_OK) {
        heap_lock_all(h);
        change(h, arg);
        st = fill_new(&s, NULL);
        if (st == MF_OK)
            st = check_total(&s);
        if (st == MF_OK)
            switch_to_new(&s);
        else
            undo(h, arg);
        heap_unlock_all(h);
    }
    release_allocator(h, st == MF_OK ? &s.old : &s.new);
    atomic_store(&h->busy, false);
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
