/* What an allocator is put through. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "conform/alloc_model.h"

#define SMALL_FRAMES 6000u
#define LARGE_FRAMES 600000u /* more than two blocks of the highest order */
#define THREAD_MIN   2000u
#define THREAD_MAX   200000u
#define THREAD_MORE  10u
#define THREAD_TURNS 100u
#define THREAD_HELD  256u

struct run {
    const struct mf_allocator_ops *ops;
    struct conform_rng rng;
    uint64_t left; /* operations */
    uint64_t thread_ops;
};

static uint64_t random_frames(struct conform_rng *r)
{
    switch (conform_below(r, 4)) {
    case 0:
        return 1 + conform_below(r, 16);
    case 1: /* about one or two of what an allocator may keep together */
        return 512 * (1 + conform_below(r, 3)) + conform_below(r, 5) - 2;
    default:
        return 1 + conform_below(r, SMALL_FRAMES);
    }
}

static uint32_t random_order(struct conform_rng *r, uint64_t frames)
{
    uint32_t max = 0, order;

    while (max < MF_ORDER_MAX && UINT64_C(2) << max <= frames)
        max++;
    order = conform_chance(r, 50) ? 0 : (uint32_t)conform_below(r, max + 1);
    return conform_chance(r, 2) ? (uint32_t)conform_below(r, MF_ORDER_MAX + 1) : order;
}

/* ---- phases */

/* Nothing is free before it is given. */
static void check_empty(struct run *u)
{
    struct world w;
    struct block b;

    world_open(&w, u->ops, &u->rng, 1 + conform_below(&u->rng, 2000), 2, false);
    conform_blame(CONFORM_EMPTY);
    for (uint32_t order = 0; order <= MF_ORDER_MAX; order += 9)
        if (world_alloc(&w, order, &b))
            conform_fail(CONFORM_EMPTY, "a block of order %u right after init", order);
    world_check(&w);
    conform_blame(CONFORM_RULES);
    world_close(&w);
    world_forget(&w);
    conform_kept(CONFORM_EMPTY);
}

/* All of the memory can be had one frame at a time, and is whole again when it is back. */
static void check_all(struct run *u, uint64_t frames)
{
    struct world w;
    struct block b;

    world_open(&w, u->ops, &u->rng, frames, 1 + (uint32_t)conform_below(&u->rng, 4), false);
    world_add_random(&w);
    world_check(&w);
    while (world_alloc(&w, 0, &b))
        world_out(&w, b);
    if (w.free)
        conform_fail(CONFORM_LOST, "%llu free frames cannot be had", (unsigned long long)w.free);
    world_check(&w);
    world_free_all(&w);
    world_close(&w);
    world_forget(&w);
}

static void one_operation(struct run *u, struct world *w, uint64_t check_every)
{
    struct block b;
    bool more = w->nr_out < 8 || conform_chance(&u->rng, 52);

    if (more && world_alloc(w, random_order(&u->rng, w->frames), &b))
        world_out(w, b);
    else if (w->nr_out && conform_chance(&u->rng, 80))
        world_free(w, conform_below(&u->rng, w->nr_out));
    else if (w->nr_out)
        world_free_parts(w, conform_below(&u->rng, w->nr_out));
    if (w->since_check >= check_every)
        world_check(w);
}

/* A former allocator's free frames come over in runs, and what it handed out comes back here. */
static void take_over(struct run *u, struct world *w, uint32_t cpus)
{
    struct world next;

    world_close(w);
    world_open(&next, u->ops, &u->rng, w->frames, cpus, conform_chance(&u->rng, 30));
    if (!w->free)
        world_add(&next, 0, 0); /* as the core does: nothing to take over is said too */
    for (uint64_t at = 0, end; at < w->frames; at = end) {
        end = at + 1;
        if (w->state[at] != FRAME_FREE)
            continue;
        while (end < w->frames && w->state[end] == FRAME_FREE)
            end++;
        world_add(&next, at, end - at);
    }
    for (uint64_t i = 0; i < w->frames; i++)
        if (w->state[i] == FRAME_OUT)
            next.state[i] = FRAME_OUT;
    next.out = w->out;
    next.nr_out = w->nr_out;
    next.cap_out = w->cap_out;
    w->out = NULL;
    world_forget(w);
    *w = next;
    world_check(w);
}

static void check_random(struct run *u, uint64_t frames, uint64_t operations)
{
    uint32_t cpus = 1 + (uint32_t)conform_below(&u->rng, 4);
    uint64_t check_every = 16 + frames / 16;
    struct world w;

    world_open(&w, u->ops, &u->rng, frames, cpus, conform_chance(&u->rng, 30));
    world_add_random(&w);
    world_check(&w);
    for (uint64_t i = 0; i < operations; i++) {
        one_operation(u, &w, check_every);
        if (i == operations / 2)
            take_over(u, &w, 1 + (uint32_t)conform_below(&u->rng, 4));
    }
    world_free_all(&w);
    world_close(&w);
    world_forget(&w);
}

/* Some of it free, some not: what is asked for goes as a whole or not at all. */
static void check_take(struct run *u)
{
    struct world w;
    struct block b;

    if (!OPS_HAS(u->ops, take)) {
        conform_not_claimed(CONFORM_TAKE);
        return;
    }
    for (unsigned round = 0; round < 6; round++) {
        world_open(&w, u->ops, &u->rng, 64 + conform_below(&u->rng, 3000), 2, false);
        world_add_random(&w);
        for (unsigned i = 0; i < 40; i++) {
            uint64_t first = conform_below(&u->rng, w.frames);

            if (world_alloc(&w, random_order(&u->rng, 64), &b))
                world_out(&w, b);
            world_take(&w, first, 1 + conform_below(&u->rng, (w.frames - first + 7) / 8));
        }
        world_free_all(&w);
        world_close(&w);
        world_forget(&w);
    }
}

/* With a page less than it asked for, init refuses; it does not write where nothing is. */
static void check_small_meta(struct run *u)
{
    uint64_t frames = 100000, bytes = u->ops->meta_size(frames, 2);
    struct mf_alloc_env env = {.size = sizeof env, .nr_cpus = 2, .nr_frames = frames};
    struct conform_area a;
    int rc;

    for (uint64_t less = 4096; less <= bytes; less *= 2) {
        conform_area_make(&a, bytes - less ? bytes - less : 1, CONFORM_META_SMALL,
                          "init wrote behind metadata smaller than it asked for");
        env.meta = a.at;
        env.meta_size = bytes - less;
        conform_enter("init");
        rc = u->ops->init(&env);
        conform_leave();
        if (rc == MF_PL_OK)
            conform_fail(CONFORM_META_SMALL, "init is content with %llu bytes of %llu",
                         (unsigned long long)env.meta_size, (unsigned long long)bytes);
        conform_area_drop(&a);
    }
    conform_kept(CONFORM_META_SMALL);
}

/* ---- several CPUs at once: who gets a frame marks it, and nobody else may */

struct track {
    _Atomic unsigned started, last, turns; /* who called last, and how often that changed */
};

struct racer {
    struct track *track;
    const struct mf_allocator_ops *ops;
    struct mf_alloc_env *env;
    uint8_t *owner; /* atomic, per frame; 0: nobody */
    uint64_t frames, held_frames, seed, operations;
    uint32_t cpu;
};

static void mark(struct racer *r, struct block b, uint8_t from, uint8_t to)
{
    for (uint64_t i = b.first; i < b.first + (UINT64_C(1) << b.order); i++) {
        uint8_t was = from;

        if (!__atomic_compare_exchange_n(&r->owner[i], &was, to, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            conform_fail(CONFORM_THREADS, "frame %#llx was handed to two CPUs at once",
                         (unsigned long long)i);
    }
}

static void race_alloc(struct racer *r, struct conform_rng *rng, struct block *held, unsigned *n)
{
    struct block b = {UINT64_MAX, conform_chance(rng, 80) ? 0 : (uint32_t)conform_below(rng, 10)};
    uint64_t size = UINT64_C(1) << b.order;
    int rc = r->ops->alloc(r->env, r->cpu, b.order, &b.first);

    if (rc == MF_PL_NO_MEMORY)
        return;
    if (rc != MF_PL_OK || b.first % size || b.first >= r->frames || size > r->frames - b.first)
        conform_fail(CONFORM_THREADS, "alloc of order %u answers %d and frame %#llx", b.order, rc,
                     (unsigned long long)b.first);
    mark(r, b, 0, (uint8_t)(r->cpu + 1));
    held[(*n)++] = b;
}

static void race_free(struct racer *r, struct block b)
{
    int rc;

    mark(r, b, (uint8_t)(r->cpu + 1), 0);
    rc = r->ops->free(r->env, r->cpu, b.first, b.order);
    if (rc != MF_PL_OK)
        conform_fail(CONFORM_THREADS, "free of frame %#llx, order %u, answers %d",
                     (unsigned long long)b.first, b.order, rc);
}

/*
 * Another round? Two threads may hardly meet on a busy machine: they go on until they took turns
 * often enough, within reason.
 */
static bool race_on(struct racer *r, uint64_t i)
{
    struct track *t = r->track;

    if (atomic_exchange(&t->last, r->cpu) != r->cpu)
        atomic_fetch_add(&t->turns, 1);
    if (r->cpu == 0)
        conform_alive();
    return i < r->operations ||
           (i < r->operations * THREAD_MORE && atomic_load(&t->turns) < THREAD_TURNS);
}

static void race(void *arg)
{
    struct racer *r = arg;
    struct conform_rng rng = {r->seed};
    struct block held[THREAD_HELD];
    unsigned n = 0;

    atomic_fetch_add(&r->track->started, 1);
    while (atomic_load(&r->track->started) < 2)
        sched_yield();
    for (uint64_t i = 0; race_on(r, i); i++) {
        unsigned which = n ? (unsigned)conform_below(&rng, n) : 0;

        if (n < THREAD_HELD && (!n || conform_chance(&rng, 55))) {
            race_alloc(r, &rng, held, &n);
            continue;
        }
        race_free(r, held[which]);
        held[which] = held[--n];
    }
    while (n)
        race_free(r, held[--n]);
}

static void check_threads(struct run *u)
{
    struct track track = {0};
    struct racer r[2];
    struct world w;
    uint8_t *owner;

    if (!(u->ops->flags & MF_ALLOC_THREAD_SAFE)) {
        conform_not_claimed(CONFORM_THREADS);
        return;
    }
    world_open(&w, u->ops, &u->rng, 2048 + conform_below(&u->rng, 4000), 2, false);
    world_add(&w, 0, w.frames);
    owner = calloc(w.frames, 1);
    if (!owner)
        abort();
    for (uint32_t i = 0; i < 2; i++)
        r[i] = (struct racer){.track = &track,
                              .ops = u->ops,
                              .env = w.env,
                              .owner = owner,
                              .frames = w.frames,
                              .seed = conform_random(&u->rng),
                              .operations = u->thread_ops,
                              .cpu = i};
    /* Whatever is wrong from here on is so because there were two. */
    conform_blame(CONFORM_THREADS);
    conform_beside(race, &r[1]);
    conform_enter("alloc and free, two CPUs");
    race(&r[0]);
    conform_leave();
    conform_beside_wait();
    conform_count(2 * u->thread_ops);
    world_check(&w);
    conform_blame(CONFORM_RULES);
    world_close(&w);
    world_forget(&w);
    free(owner);
}

void conform_allocator(const struct mf_allocator_ops *ops, const struct conform_options *o)
{
    struct run u = {.ops = ops, .rng = {o->seed}, .left = o->operations};
    uint64_t round = 0;

    u.thread_ops = o->operations < THREAD_MIN   ? THREAD_MIN
                   : o->operations > THREAD_MAX ? THREAD_MAX
                                                : o->operations;
    if (!(ops->flags & MF_ALLOC_MERGES))
        conform_not_claimed(CONFORM_MERGES);
    check_empty(&u);
    check_take(&u);
    check_all(&u, 1 + conform_below(&u.rng, SMALL_FRAMES));
    check_random(&u, LARGE_FRAMES + conform_below(&u.rng, 1000), 100);
    while (u.left) {
        uint64_t n = 50 + conform_below(&u.rng, 2000);

        n = n < u.left ? n : u.left;
        u.left -= n;
        check_random(&u, random_frames(&u.rng), n);
        if (++round % 8 == 0)
            check_all(&u, random_frames(&u.rng));
    }
    check_threads(&u);
    check_small_meta(&u);
}
