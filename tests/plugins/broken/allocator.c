/*
 * A small allocator that is right, and one fault put into it by -DFAULT=NAME: the conformance kit
 * must catch each by the name of its rule (meson.build has the pairs). Never installed.
 *
 * A byte a frame says FREE or not; blocks are looked for from the lowest frame on, so that free
 * buddies are as good as merged.
 */
#include "proto/plugin.h"

enum fault {
    NOTHING,
    DOUBLE_HAND_OUT,
    ORDER_IGNORED,
    LOST_TAIL,
    MISALIGNED_REMAINDER,
    ROUNDS_UP,
    BEHIND_THE_END,
    STARTS_FULL,
    STATS_LIE,
    BLOCKS_LIE,
    UNMERGED,
    LISTS_USED,
    LISTS_TWICE,
    LIST_GOES_ON,
    OUTSIDE_METADATA,
    BEFORE_METADATA,
    SMALL_METADATA,
    NO_PARTS,
    NO_STRANGERS,
    LOSES_FREED,
    TAKES_SOME,
    UNSAFE_THREADS,
    BAD_STATUS,
    SYSTEM_CALL,
    READS_BEHIND_ENV,
    CRASH,
    ENDLESS_LOOP,
};

#define IS(f) (FAULT == (f))
#define OFTEN 50u /* a fault that does not show at once shows every so often */

struct meta {
    uint64_t free_frames;
    uint64_t calls;
    uint8_t frame[]; /* nr_frames */
};

enum { USED, FREE, PART }; /* PART: used, and not the first frame of its block */

static struct meta *meta_of(const struct mf_alloc_env *env)
{
    return env->meta;
}

static uint64_t meta_size(uint64_t nr_frames, uint32_t nr_cpus)
{
    (void)nr_cpus;
    return sizeof(struct meta) + nr_frames;
}

static int init(const struct mf_alloc_env *env)
{
    struct meta *m = meta_of(env);

    if (!IS(SMALL_METADATA) && env->meta_size < meta_size(env->nr_frames, env->nr_cpus))
        return MF_PL_RANGE;
    if (env->meta_size < sizeof *m)
        return MF_PL_RANGE;
    if (IS(STARTS_FULL)) {
        m->frame[0] = FREE;
        m->free_frames = 1;
    }
    return MF_PL_OK;
}

static int add(const struct mf_alloc_env *env, uint64_t first, uint64_t n)
{
    struct meta *m = meta_of(env);
    uint64_t end = first + n;

    m->free_frames += n;
    if (IS(LOST_TAIL) && n > 8)
        end -= n % 8;
    if (IS(ROUNDS_UP) && end < env->nr_frames)
        end++;
    for (uint64_t i = first; i < end; i++)
        m->frame[i] = FREE;
    if (IS(OUTSIDE_METADATA))
        m->frame[env->nr_frames] = FREE;
    if (IS(BEFORE_METADATA))
        ((volatile uint8_t *)m)[-1] = 0;
    return MF_PL_OK;
}

static bool is_free(const struct meta *m, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n; i++)
        if (m->frame[i] != FREE)
            return false;
    return true;
}

static void misbehave(const struct mf_alloc_env *env, struct meta *m)
{
    if (IS(CRASH) && m->calls > OFTEN)
        *(volatile uint64_t *)(uintptr_t)m->calls = 0;
    while (IS(ENDLESS_LOOP) && m->calls > OFTEN)
        __asm__ volatile("");
    if (IS(SYSTEM_CALL) && m->calls > OFTEN) {
        long rc = 39; /* getpid */
        __asm__ volatile("syscall" : "+a"(rc) : : "rcx", "r11", "memory");
    }
    if (IS(READS_BEHIND_ENV))
        m->calls += ((const volatile uint8_t *)env)[sizeof *env + 64];
}

/* Wide open between the look and the mark. */
static void dawdle(void)
{
    for (volatile unsigned i = 0; IS(UNSAFE_THREADS) && i < 2000; i++)
        ;
}

static void mark(struct meta *m, uint64_t first, uint64_t n)
{
    if (IS(DOUBLE_HAND_OUT) && m->calls % OFTEN == 0)
        return;
    if (IS(ORDER_IGNORED))
        n = 1;
    m->frame[first] = USED;
    for (uint64_t i = first + 1; i < first + n; i++)
        m->frame[i] = PART;
}

static int alloc(const struct mf_alloc_env *env, uint32_t cpu, uint32_t order, uint64_t *first)
{
    struct meta *m = meta_of(env);
    uint64_t n = UINT64_C(1) << order, by = IS(MISALIGNED_REMAINDER) ? 1 : n;

    (void)cpu;
    m->calls++;
    misbehave(env, m);
    if (IS(BAD_STATUS) && m->calls > OFTEN)
        return 7;
    for (uint64_t at = 0; at + n <= env->nr_frames; at += by) {
        if (!is_free(m, at, n))
            continue;
        dawdle();
        mark(m, at, n);
        m->free_frames -= n;
        *first = at;
        return MF_PL_OK;
    }
    if (IS(BEHIND_THE_END) && m->calls > OFTEN) {
        *first = (env->nr_frames + n - 1) / n * n;
        return MF_PL_OK;
    }
    return MF_PL_NO_MEMORY;
}

static int give_back(const struct mf_alloc_env *env, uint32_t cpu, uint64_t first, uint32_t order)
{
    struct meta *m = meta_of(env);
    uint64_t n = UINT64_C(1) << order;

    (void)cpu;
    m->calls++;
    if (IS(NO_PARTS) &&
        (m->frame[first] == PART || (first + n < env->nr_frames && m->frame[first + n] == PART)))
        return MF_PL_RANGE;
    if (IS(NO_STRANGERS) && m->calls < 2)
        return MF_PL_RANGE;
    m->free_frames += n;
    for (uint64_t i = first; i < first + n; i++)
        m->frame[i] = IS(LOSES_FREED) && m->calls % OFTEN == 0 ? USED : FREE;
    return MF_PL_OK;
}

static void list(const struct mf_alloc_env *env, mf_alloc_range_fn fn, void *arg)
{
    struct meta *m = meta_of(env);

    for (uint64_t at = 0, end; at < env->nr_frames; at = end + 1) {
        for (end = at; end < env->nr_frames && m->frame[end] == FREE;)
            end++;
        if (end == at)
            continue;
        if (IS(LISTS_USED) && at > 0)
            at--;
        if (!fn(arg, at, end - at) && !IS(LIST_GOES_ON))
            return;
        if (IS(LISTS_TWICE) && !fn(arg, end - 1, 1))
            return;
    }
}

static void stats(const struct mf_alloc_env *env, struct mf_alloc_stats *out)
{
    struct meta *m = meta_of(env);

    out->free_frames = m->free_frames;
    out->cached = 0;
    if (IS(STATS_LIE) && m->calls > OFTEN)
        out->free_frames++;
    for (uint64_t at = 0; at < env->nr_frames;) {
        uint32_t order = IS(UNMERGED) ? 0 : MF_ORDER_MAX;

        if (m->frame[at] != FREE) {
            at++;
            continue;
        }
        while (at & ((UINT64_C(1) << order) - 1) || (UINT64_C(1) << order) > env->nr_frames - at ||
               !is_free(m, at, UINT64_C(1) << order))
            order--;
        out->free_blocks[order] += IS(BLOCKS_LIE) ? 2 : 1;
        at += UINT64_C(1) << order;
    }
}

static void fini(const struct mf_alloc_env *env)
{
    (void)env;
}

/* Some of the frames are not free: half done. */
static int take(const struct mf_alloc_env *env, uint64_t first, uint64_t n)
{
    struct meta *m = meta_of(env);
    uint64_t i = first;

    if (!IS(TAKES_SOME) && !is_free(m, first, n))
        return MF_PL_RANGE;
    for (; i < first + n && m->frame[i] == FREE; i++) {
        m->frame[i] = USED;
        m->free_frames--;
    }
    return i == first + n ? MF_PL_OK : MF_PL_RANGE;
}

static const struct mf_allocator_ops ops = {
    .size = sizeof ops,
    .flags = MF_ALLOC_MERGES | (IS(UNSAFE_THREADS) ? MF_ALLOC_THREAD_SAFE : 0),
    .meta_size = meta_size,
    .init = init,
    .add = add,
    .alloc = alloc,
    .free = give_back,
    .list = list,
    .stats = stats,
    .fini = fini,
    .take = take,
};

MF_ALLOCATOR_PLUGIN("broken-allocator", "1.0", "has one fault", &ops);
