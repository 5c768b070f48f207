/*
 * Binary buddy allocator. One source, three plugins that differ in how they take frames in:
 *
 *   BUDDY_PAGE   frame by frame, merging as it goes
 *   BUDDY_CHUNK  by largest aligned chunk, but still touching the record of each frame
 *   BUDDY_LAZY   by largest aligned chunk, touching the records of the chunks only
 *
 * Records are kept in three densities, so that few pages are touched while blocks are large:
 *
 *   level 2   one record for each 1 GiB    free blocks of order 18
 *   level 1   one record for each 2 MiB    free blocks of order 9 to 17, at their first 2 MiB
 *   level 0   one record for each frame    free blocks of order 0 to 8, at their first frame
 *
 * A record is a state byte (0: no free block begins here; else order + 1) and the links of the free
 * list. All of it may be zero: then nothing is free. Blocks freed last are given first.
 *
 * Single frames go through a small cache for each CPU: what was freed last is given again, what has
 * lain longest goes back to the lists when the cache is full, one frame for each one that comes. An
 * empty cache is filled with the frames of one block. A cache is its CPU's alone, calls with the
 * same `cpu` never run at once; the lists have a lock, which is held for one block at a time.
 */
#include <stdatomic.h>

#include "proto/plugin.h"

#if defined(BUDDY_PAGE)
#define BUDDY_NAME "buddy-page"
#define BUDDY_TEXT "binary buddy, taking memory in frame by frame"
#elif defined(BUDDY_CHUNK)
#define BUDDY_NAME "buddy-chunk"
#define BUDDY_TEXT "binary buddy, taking memory in by chunk and touching each frame's record"
#elif defined(BUDDY_LAZY)
#define BUDDY_NAME "buddy-lazy"
#define BUDDY_TEXT "binary buddy, taking memory in by chunk and touching chunk heads only"
#else
#error "define BUDDY_PAGE, BUDDY_CHUNK or BUDDY_LAZY"
#endif

#define LEVELS     3u
#define ORDERS     (MF_ORDER_MAX + 1u)
#define FRAMES_MAX UINT64_C(0xfffffffe) /* links hold a frame number + 1 in 32 bits */
#define PAGE       UINT64_C(4096)
#define CPUS_MAX   4096u
#define CACHE      64u /* frames in a cache, a power of two */
#define FILL_ORDER 5u  /* largest block that an empty cache is filled with */

struct link {
    uint32_t next, prev; /* record number + 1 in the same level, 0: none */
};

struct level {
    uint8_t *state;
    struct link *link;
};

/* A ring: the newest is at top - 1. */
struct cache {
    _Alignas(128) uint32_t top, n;
    uint32_t frame[CACHE];
};

struct buddy {
    struct cache *cache;
    _Alignas(128) atomic_flag held;
    /* Under held, or when the core lets nobody else in. */
    uint64_t free;   /* frames in the lists */
    uint32_t orders; /* bit k: there is a free block of order k */
    uint32_t head[ORDERS];
    uint64_t blocks[ORDERS];
    struct level level[LEVELS];
};

static const uint8_t level_shift[LEVELS] = {0, 9, 18};

static inline unsigned level_of(unsigned order)
{
    return (order >= 9) + (order >= 18);
}

static inline struct buddy *buddy_of(const struct mf_alloc_env *env)
{
    return env->meta;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

static uint64_t level_records(uint64_t nr_frames, unsigned l)
{
    return round_up(nr_frames, UINT64_C(1) << 18) >> level_shift[l];
}

/* Lays the arrays out; the densest in front, so that a young heap lives in a few pages. */
static uint64_t layout(uint64_t nr_frames, uint32_t nr_cpus, struct buddy *b)
{
    uint64_t at = round_up(sizeof(struct buddy), 128);
    uint8_t *base = (uint8_t *)b;

    if (b)
        b->cache = (struct cache *)(void *)(base + at);
    at += nr_cpus * sizeof(struct cache);
    for (unsigned l = LEVELS; l--;) {
        uint64_t n = level_records(nr_frames, l);

        if (b)
            b->level[l].state = base + at;
        at = round_up(at + n, 64);
        if (b)
            b->level[l].link = (struct link *)(void *)(base + at);
        at = round_up(at + n * sizeof(struct link), 64);
    }
    return round_up(at, PAGE);
}

static uint64_t buddy_meta_size(uint64_t nr_frames, uint32_t nr_cpus)
{
    if (!nr_frames || nr_frames > FRAMES_MAX || !nr_cpus || nr_cpus > CPUS_MAX)
        return 0;
    return layout(nr_frames, nr_cpus, NULL);
}

static int buddy_init(const struct mf_alloc_env *env)
{
    struct buddy *b = buddy_of(env);

    if (env->meta_size < buddy_meta_size(env->nr_frames, env->nr_cpus))
        return MF_PL_NO_MEMORY;
    layout(env->nr_frames, env->nr_cpus, b);
    return MF_PL_OK;
}

/* ---- free lists */

static void lock(const struct mf_alloc_env *env, struct buddy *b)
{
    bool relax =
        env->size >= offsetof(struct mf_alloc_env, relax_arg) + sizeof env->relax_arg && env->relax;

    for (unsigned n = 0; atomic_flag_test_and_set_explicit(&b->held, memory_order_acquire); n++) {
        if (relax)
            env->relax(env->relax_arg, n);
        else
            __builtin_ia32_pause();
    }
}

static void unlock(struct buddy *b)
{
    atomic_flag_clear_explicit(&b->held, memory_order_release);
}

static inline void push(struct buddy *b, uint64_t first, unsigned order)
{
    unsigned l = level_of(order);
    uint32_t r = (uint32_t)(first >> level_shift[l]), head = b->head[order];
    struct link *link = b->level[l].link;

    b->level[l].state[r] = (uint8_t)(order + 1);
    link[r].next = head;
    link[r].prev = 0;
    if (head)
        link[head - 1].prev = r + 1;
    b->head[order] = r + 1;
    b->blocks[order]++;
    b->orders |= 1u << order;
}

static inline void unlink_block(struct buddy *b, uint64_t first, unsigned order)
{
    unsigned l = level_of(order);
    uint32_t r = (uint32_t)(first >> level_shift[l]);
    struct link *link = b->level[l].link, at = link[r];

    b->level[l].state[r] = 0;
    if (at.next)
        link[at.next - 1].prev = at.prev;
    if (at.prev)
        link[at.prev - 1].next = at.next;
    else
        b->head[order] = at.next;
    b->blocks[order]--;
    if (!b->head[order])
        b->orders &= ~(1u << order);
}

static inline bool is_free(const struct buddy *b, uint64_t first, unsigned order)
{
    unsigned l = level_of(order);

    return b->level[l].state[first >> level_shift[l]] == order + 1;
}

/* Makes a block free, merged with its buddies as far as they are free. */
static inline void insert(struct buddy *b, uint64_t first, unsigned order)
{
    while (order < MF_ORDER_MAX) {
        uint64_t other = first ^ (UINT64_C(1) << order);

        if (!is_free(b, other, order))
            break;
        unlink_block(b, other, order);
        first &= other;
        order++;
    }
    push(b, first, order);
}

/* ---- operations */

/* The largest order at which a block may begin at `first` and end within `n` frames. */
static unsigned chunk_order(uint64_t first, uint64_t n)
{
    unsigned order = 63u - (unsigned)__builtin_clzll(n);

    if (first && (unsigned)__builtin_ctzll(first) < order)
        order = (unsigned)__builtin_ctzll(first);
    return order < MF_ORDER_MAX ? order : MF_ORDER_MAX;
}

/* Makes a run free by largest aligned chunks. */
static void insert_run(struct buddy *b, uint64_t first, uint64_t n)
{
    while (n) {
        unsigned order = chunk_order(first, n);

        insert(b, first, order);
        first += UINT64_C(1) << order;
        n -= UINT64_C(1) << order;
    }
}

#if defined(BUDDY_CHUNK)
/* What an initialisation by chunks that does not trust its records does for each frame of one. */
static int touch_records(struct buddy *b, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n; i++) {
        if (b->level[0].state[i])
            return MF_PL_RANGE;
        b->level[0].link[i] = (struct link){0, 0};
    }
    return MF_PL_OK;
}
#endif

static int buddy_add(const struct mf_alloc_env *env, uint64_t first, uint64_t n)
{
    struct buddy *b = buddy_of(env);

    if (first > env->nr_frames || n > env->nr_frames - first)
        return MF_PL_RANGE;
#if defined(BUDDY_PAGE)
    for (uint64_t i = 0; i < n; i++)
        insert(b, first + i, 0);
#else
#if defined(BUDDY_CHUNK)
    if (touch_records(b, first, n) != MF_PL_OK)
        return MF_PL_RANGE;
#endif
    insert_run(b, first, n);
#endif
    b->free += n;
    return MF_PL_OK;
}

/* Takes a block off the lists, splitting a larger one; false when there is none. */
static inline bool take(struct buddy *b, unsigned order, uint64_t *first)
{
    uint32_t fit = b->orders >> order;
    unsigned have;
    uint64_t at;

    if (!fit)
        return false;
    have = order + (unsigned)__builtin_ctz(fit);
    at = (uint64_t)(b->head[have] - 1) << level_shift[level_of(have)];
    unlink_block(b, at, have);
    while (have > order) {
        have--;
        push(b, at + (UINT64_C(1) << have), have);
    }
    *first = at;
    return true;
}

static void drain_cache(struct buddy *b, struct cache *c)
{
    b->free += c->n;
    for (; c->n; c->n--)
        insert(b, c->frame[--c->top % CACHE], 0);
}

static void buddy_drain(const struct mf_alloc_env *env)
{
    struct buddy *b = buddy_of(env);

    for (uint32_t i = 0; i < env->nr_cpus; i++)
        drain_cache(b, &b->cache[i]);
}

/* Fills an empty cache with one block: the smallest there is, or a part of a larger one. */
static bool fill_cache(const struct mf_alloc_env *env, struct buddy *b, struct cache *c)
{
    unsigned order;
    uint64_t first;
    bool ok;

    lock(env, b);
    order = b->orders ? (unsigned)__builtin_ctz(b->orders) : 0;
    order = order < FILL_ORDER ? order : FILL_ORDER;
    ok = take(b, order, &first);
    if (ok)
        b->free -= UINT64_C(1) << order;
    unlock(b);
    if (!ok)
        return false;
    c->n = 1u << order;
    c->top = c->n;
    for (uint32_t i = 0; i < c->n; i++) /* the lowest is given first */
        c->frame[i] = (uint32_t)first + c->n - 1 - i;
    return true;
}

static bool alloc_block(const struct mf_alloc_env *env, struct buddy *b, uint32_t order,
                        uint64_t *first)
{
    bool ok;

    lock(env, b);
    ok = take(b, order, first);
    if (ok)
        b->free -= UINT64_C(1) << order;
    unlock(b);
    return ok;
}

static void free_block(const struct mf_alloc_env *env, struct buddy *b, uint64_t first,
                       uint32_t order)
{
    lock(env, b);
    b->free += UINT64_C(1) << order;
    insert(b, first, order);
    unlock(b);
}

static int buddy_alloc(const struct mf_alloc_env *env, uint32_t cpu, uint32_t order,
                       uint64_t *first)
{
    struct buddy *b = buddy_of(env);
    struct cache *c = &b->cache[cpu];

    if (order > MF_ORDER_MAX)
        return MF_PL_NO_MEMORY;
    if (order)
        return alloc_block(env, b, order, first) ? MF_PL_OK : MF_PL_NO_MEMORY;
    if (!c->n && !fill_cache(env, b, c))
        return MF_PL_NO_MEMORY;
    c->n--;
    *first = c->frame[--c->top % CACHE];
    return MF_PL_OK;
}

static int buddy_free(const struct mf_alloc_env *env, uint32_t cpu, uint64_t first, uint32_t order)
{
    struct buddy *b = buddy_of(env);
    struct cache *c = &b->cache[cpu];

    if (order > MF_ORDER_MAX || first >= env->nr_frames)
        return MF_PL_RANGE;
    if (order) {
        free_block(env, b, first, order);
        return MF_PL_OK;
    }
    if (c->n == CACHE)
        free_block(env, b, c->frame[c->top % CACHE], 0); /* the oldest, which this one replaces */
    else
        c->n++;
    c->frame[c->top++ % CACHE] = (uint32_t)first;
    return MF_PL_OK;
}

/* The free block that a frame lies in; false when there is none. */
static bool block_around(const struct buddy *b, uint64_t frame, uint64_t *first, unsigned *order)
{
    for (*order = 0; *order <= MF_ORDER_MAX; ++*order) {
        *first = frame & ~((UINT64_C(1) << *order) - 1);
        if (is_free(b, *first, *order))
            return true;
    }
    return false;
}

static int buddy_take(const struct mf_alloc_env *env, uint64_t first, uint64_t n)
{
    struct buddy *b = buddy_of(env);
    uint64_t end = first + n, at, head;
    unsigned order;

    if (first >= env->nr_frames || n > env->nr_frames - first)
        return MF_PL_RANGE;
    for (at = first; at < end; at = head + (UINT64_C(1) << order))
        if (!block_around(b, at, &head, &order))
            return MF_PL_RANGE;
    for (at = first; at < end;) {
        uint64_t tail, stop;

        block_around(b, at, &head, &order);
        tail = head + (UINT64_C(1) << order);
        stop = tail < end ? tail : end;
        unlink_block(b, head, order);
        insert_run(b, head, at - head);
        insert_run(b, stop, tail - stop);
        at = stop;
    }
    b->free -= n;
    return MF_PL_OK;
}

static void buddy_list(const struct mf_alloc_env *env, mf_alloc_range_fn fn, void *arg)
{
    const struct buddy *b = buddy_of(env);

    for (unsigned order = ORDERS; order--;) {
        unsigned l = level_of(order);

        for (uint32_t r = b->head[order]; r; r = b->level[l].link[r - 1].next)
            if (!fn(arg, (uint64_t)(r - 1) << level_shift[l], UINT64_C(1) << order))
                return;
    }
}

static void buddy_stats(const struct mf_alloc_env *env, struct mf_alloc_stats *out)
{
    const struct buddy *b = buddy_of(env);

    if (out->size < sizeof *out)
        return;
    out->free_frames = b->free;
    out->cached = 0;
    for (uint32_t i = 0; i < env->nr_cpus; i++)
        out->cached += b->cache[i].n;
    out->free_frames += out->cached;
    for (unsigned k = 0; k < ORDERS; k++)
        out->free_blocks[k] = b->blocks[k];
}

static void buddy_fini(const struct mf_alloc_env *env)
{
    (void)env; /* all there is lies in the metadata, which is the core's */
}

static const struct mf_allocator_ops buddy_ops = {
    .size = sizeof(struct mf_allocator_ops),
    .flags = MF_ALLOC_THREAD_SAFE | MF_ALLOC_MERGES,
    .meta_size = buddy_meta_size,
    .init = buddy_init,
    .add = buddy_add,
    .alloc = buddy_alloc,
    .free = buddy_free,
    .drain = buddy_drain,
    .list = buddy_list,
    .stats = buddy_stats,
    .fini = buddy_fini,
    .take = buddy_take,
};

MF_ALLOCATOR_PLUGIN(BUDDY_NAME, "1.0", BUDDY_TEXT, &buddy_ops);
