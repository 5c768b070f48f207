#include "conform/alloc_model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ENV_OLD offsetof(struct mf_alloc_env, relax)

static uint64_t frames_of(uint32_t order)
{
    return UINT64_C(1) << order;
}

static void relax(void *arg, unsigned n)
{
    (void)arg;
    (void)n;
}

static void *must(void *p)
{
    if (!p)
        abort();
    return p;
}

/* ---- life */

static void make_env(struct world *w, uint32_t cpus, bool old)
{
    size_t bytes = old ? ENV_OLD : sizeof *w->env;

    conform_area_make(&w->env_area, bytes, CONFORM_SIZES,
                      "a member of mf_alloc_env was used that its size does not cover");
    w->env = conform_area_tail(&w->env_area, bytes);
    w->env->size = (uint32_t)bytes;
    w->env->nr_cpus = cpus;
    w->env->nr_frames = w->frames;
    if (!old)
        w->env->relax = relax;
}

void world_open(struct world *w, const struct mf_allocator_ops *ops, struct conform_rng *rng,
                uint64_t frames, uint32_t cpus, bool old_env)
{
    uint64_t bytes;
    int rc;

    *w = (struct world){.ops = ops, .rng = rng, .frames = frames};
    conform_enter("meta_size");
    bytes = ops->meta_size(frames, cpus);
    conform_leave();
    if (!bytes || bytes > UINT64_C(1) << 32)
        conform_fail(CONFORM_STATUS, "%llu bytes of metadata for %llu frames and %u CPUs",
                     (unsigned long long)bytes, (unsigned long long)frames, cpus);
    conform_area_make(&w->meta, bytes, CONFORM_META,
                      "memory was touched just outside the metadata, or after fini");
    /* The end of what was asked for need not be the end of a page. */
    memset(w->meta.at + bytes, 0xa5, w->meta.bytes - bytes);
    make_env(w, cpus, old_env);
    w->env->meta = w->meta.at;
    w->env->meta_size = bytes;
    w->state = must(calloc(frames, 1));
    conform_enter("init");
    rc = ops->init(w->env);
    conform_leave();
    if (rc != MF_PL_OK)
        conform_fail(CONFORM_STATUS, "init answers %d with all the metadata it asked for", rc);
}

static void check_tail(const struct world *w)
{
    for (size_t i = w->env->meta_size; i < w->meta.bytes; i++)
        if (w->meta.at[i] != 0xa5)
            conform_fail(CONFORM_META, "byte %zu of %llu bytes of metadata was written", i,
                         (unsigned long long)w->env->meta_size);
}

void world_close(struct world *w)
{
    check_tail(w);
    conform_enter("fini");
    w->ops->fini(w->env);
    conform_leave();
    conform_area_drop(&w->meta);
    conform_area_drop(&w->env_area);
}

void world_forget(struct world *w)
{
    free(w->state);
    free(w->out);
    *w = (struct world){0};
}

/* ---- giving */

void world_add(struct world *w, uint64_t first, uint64_t n)
{
    int rc;

    conform_enter("add");
    rc = w->ops->add(w->env, first, n);
    conform_leave();
    if (rc != MF_PL_OK)
        conform_fail(CONFORM_STATUS, "add of frames %llu to %llu answers %d",
                     (unsigned long long)first, (unsigned long long)(first + n - 1), rc);
    memset(w->state + first, FRAME_FREE, n);
    w->free += n;
    conform_count(1);
}

void world_add_random(struct world *w)
{
    uint64_t at = 0;

    if (conform_chance(w->rng, 25)) {
        world_add(w, 0, w->frames);
        return;
    }
    while (at < w->frames) {
        uint64_t left = w->frames - at, n = 1 + conform_below(w->rng, left);

        if (n > 8 && conform_chance(w->rng, 60))
            n = 1 + conform_below(w->rng, n / 4);
        world_add(w, at, n);
        at += n;
        if (conform_chance(w->rng, 70))
            at += 1 + conform_below(w->rng, 40);
    }
}

/* ---- blocks */

void world_out(struct world *w, struct block b)
{
    if (w->nr_out == w->cap_out) {
        w->cap_out = w->cap_out ? w->cap_out * 2 : 64;
        w->out = must(realloc(w->out, w->cap_out * sizeof *w->out));
    }
    w->out[w->nr_out++] = b;
}

static void drain(struct world *w)
{
    if (!OPS_HAS(w->ops, drain))
        return;
    conform_enter("drain");
    w->ops->drain(w->env);
    conform_leave();
}

/* Is there an aligned free block of this order? */
static bool exists(const struct world *w, uint32_t order)
{
    uint64_t n = frames_of(order);

    for (uint64_t at = 0; at + n <= w->frames; at += n) {
        uint64_t i = 0;

        while (i < n && w->state[at + i] == FRAME_FREE)
            i++;
        if (i == n)
            return true;
    }
    return false;
}

static void check_block(const struct world *w, uint64_t first, uint32_t order)
{
    uint64_t n = frames_of(order);

    if (first & (n - 1))
        conform_fail(CONFORM_ALIGNED, "frame %#llx for a block of order %u",
                     (unsigned long long)first, order);
    if (first >= w->frames || n > w->frames - first)
        conform_fail(CONFORM_RANGE, "frame %#llx, order %u, of %llu frames",
                     (unsigned long long)first, order, (unsigned long long)w->frames);
    for (uint64_t i = first; i < first + n; i++) {
        if (w->state[i] == FRAME_OUT)
            conform_fail(CONFORM_DOUBLE, "frame %#llx, of a block of order %u, is in use",
                         (unsigned long long)i, order);
        if (w->state[i] != FRAME_FREE)
            conform_fail(CONFORM_RANGE, "frame %#llx, of a block of order %u, was never given",
                         (unsigned long long)i, order);
    }
}

static int call_alloc(struct world *w, uint32_t order, uint64_t *first)
{
    uint32_t cpu = (uint32_t)conform_below(w->rng, w->env->nr_cpus);
    int rc;

    *first = UINT64_MAX;
    conform_enter("alloc");
    rc = w->ops->alloc(w->env, cpu, order, first);
    conform_leave();
    conform_count(1);
    if (rc != MF_PL_OK && rc != MF_PL_NO_MEMORY)
        conform_fail(CONFORM_STATUS, "alloc of order %u answers %d", order, rc);
    return rc;
}

bool world_alloc(struct world *w, uint32_t order, struct block *b)
{
    int rc = call_alloc(w, order, &b->first);

    if (rc == MF_PL_NO_MEMORY) {
        drain(w);
        rc = call_alloc(w, order, &b->first);
    }
    b->order = order;
    if (rc == MF_PL_OK) {
        check_block(w, b->first, order);
        memset(w->state + b->first, FRAME_OUT, frames_of(order));
        w->free -= frames_of(order);
        w->since_check++;
        return true;
    }
    if ((!order || w->ops->flags & MF_ALLOC_MERGES) && w->free && exists(w, order))
        conform_fail(CONFORM_LOST, "no block of order %u, and there is one; %llu frames are free",
                     order, (unsigned long long)w->free);
    return false;
}

static void give_back(struct world *w, uint64_t first, uint32_t order)
{
    uint32_t cpu = (uint32_t)conform_below(w->rng, w->env->nr_cpus);
    int rc;

    conform_enter("free");
    rc = w->ops->free(w->env, cpu, first, order);
    conform_leave();
    if (rc != MF_PL_OK)
        conform_fail(CONFORM_FREE, "free of frame %#llx, order %u, answers %d",
                     (unsigned long long)first, order, rc);
    memset(w->state + first, FRAME_FREE, frames_of(order));
    w->free += frames_of(order);
    w->since_check++;
    conform_count(1);
}

static struct block pick(struct world *w, uint64_t i)
{
    struct block b = w->out[i];

    w->out[i] = w->out[--w->nr_out];
    return b;
}

void world_free(struct world *w, uint64_t i)
{
    struct block b = pick(w, i);

    give_back(w, b.first, b.order);
}

/* Halves it down at a random place; each half may stay out for a while. */
void world_free_parts(struct world *w, uint64_t i)
{
    struct block b = pick(w, i);

    while (b.order && conform_chance(w->rng, 80)) {
        struct block half = {b.first, b.order - 1};

        b.order--;
        if (conform_chance(w->rng, 50))
            b.first += frames_of(b.order);
        else
            half.first += frames_of(b.order);
        if (conform_chance(w->rng, 50))
            world_out(w, half);
        else
            give_back(w, half.first, half.order);
    }
    give_back(w, b.first, b.order);
}

/* ---- looking */

struct listing {
    struct world *w;
    uint64_t seen, calls, stop_after;
};

static bool on_range(void *arg, uint64_t first, uint64_t n)
{
    struct listing *l = arg;
    struct world *w = l->w;

    if (l->calls++ == l->stop_after)
        conform_fail(CONFORM_LIST, "list went on after it was told to stop");
    if (!n || first >= w->frames || n > w->frames - first)
        conform_fail(CONFORM_LIST, "a run of %llu frames from %#llx, of %llu frames",
                     (unsigned long long)n, (unsigned long long)first,
                     (unsigned long long)w->frames);
    for (uint64_t i = first; i < first + n; i++) {
        if (w->state[i] == FRAME_SEEN)
            conform_fail(CONFORM_LIST, "frame %#llx was listed twice", (unsigned long long)i);
        if (w->state[i] != FRAME_FREE)
            conform_fail(CONFORM_LIST, "frame %#llx was listed and is not free",
                         (unsigned long long)i);
        w->state[i] = FRAME_SEEN;
    }
    l->seen += n;
    return l->calls < l->stop_after;
}

static uint64_t list(struct world *w, uint64_t stop_after)
{
    struct listing l = {.w = w, .stop_after = stop_after};

    conform_enter("list");
    w->ops->list(w->env, on_range, &l);
    conform_leave();
    for (uint64_t i = 0; i < w->frames; i++)
        if (w->state[i] == FRAME_SEEN)
            w->state[i] = FRAME_FREE;
    return l.seen;
}

static void check_list(struct world *w)
{
    uint64_t seen = list(w, UINT64_MAX);

    if (seen != w->free)
        conform_fail(CONFORM_LOST, "%llu frames are free, list names %llu",
                     (unsigned long long)w->free, (unsigned long long)seen);
    list(w, 1);
}

/* The blocks that are there when every pair of free buddies is merged. */
static void canonical(const struct world *w, uint64_t blocks[MF_ORDER_MAX + 1])
{
    memset(blocks, 0, (MF_ORDER_MAX + 1) * sizeof *blocks);
    for (uint64_t at = 0, end; at < w->frames; at = end + 1) {
        for (end = at; end < w->frames && w->state[end] == FRAME_FREE;)
            end++;
        while (at < end) {
            uint32_t order = MF_ORDER_MAX;

            while (at & (frames_of(order) - 1) || frames_of(order) > end - at)
                order--;
            blocks[order]++;
            at += frames_of(order);
        }
    }
}

static void check_blocks(const struct world *w, const struct mf_alloc_stats *st)
{
    uint64_t sum = 0, right[MF_ORDER_MAX + 1];

    for (uint32_t k = 0; k <= MF_ORDER_MAX; k++)
        sum += st->free_blocks[k] << k;
    if (sum != w->free)
        conform_fail(CONFORM_TOTALS, "after drain %llu frames are free, the blocks have %llu",
                     (unsigned long long)w->free, (unsigned long long)sum);
    if (!(w->ops->flags & MF_ALLOC_MERGES))
        return;
    canonical(w, right);
    for (uint32_t k = 0; k <= MF_ORDER_MAX; k++)
        if (st->free_blocks[k] != right[k])
            conform_fail(CONFORM_MERGES, "%llu free blocks of order %u, merged they are %llu",
                         (unsigned long long)st->free_blocks[k], k, (unsigned long long)right[k]);
}

static struct mf_alloc_stats get_stats(struct world *w)
{
    struct mf_alloc_stats st = {.size = sizeof st};

    conform_enter("stats");
    w->ops->stats(w->env, &st);
    conform_leave();
    return st;
}

static void check_totals(const struct world *w, const struct mf_alloc_stats *st)
{
    if (st->free_frames != w->free || st->cached > w->free)
        conform_fail(CONFORM_TOTALS, "%llu frames are free, stats says %llu, %llu of them cached",
                     (unsigned long long)w->free, (unsigned long long)st->free_frames,
                     (unsigned long long)st->cached);
}

/* What list says is looked at first: memory that is lost makes the totals wrong, too. */
void world_check(struct world *w)
{
    struct mf_alloc_stats before = get_stats(w), st;

    w->since_check = 0;
    drain(w);
    check_list(w);
    check_totals(w, &before);
    st = get_stats(w);
    check_totals(w, &st);
    if (st.cached)
        conform_fail(CONFORM_TOTALS, "after drain %llu frames are cached",
                     (unsigned long long)st.cached);
    check_blocks(w, &st);
    check_tail(w);
}

void world_free_all(struct world *w)
{
    while (w->nr_out)
        world_free(w, conform_below(w->rng, w->nr_out));
    world_check(w);
}

/* ---- taking out of use */

void world_take(struct world *w, uint64_t first, uint64_t n)
{
    bool all = true;
    int rc;

    for (uint64_t i = first; i < first + n; i++)
        all = all && w->state[i] == FRAME_FREE;
    world_check(w);
    conform_blame(CONFORM_TAKE);
    conform_enter("take");
    rc = w->ops->take(w->env, first, n);
    conform_leave();
    conform_count(1);
    if (rc != (all ? MF_PL_OK : MF_PL_RANGE))
        conform_fail(CONFORM_TAKE, "take of %llu frames from %#llx, %s free, answers %d",
                     (unsigned long long)n, (unsigned long long)first, all ? "all" : "not all", rc);
    if (all) {
        memset(w->state + first, FRAME_OUT, n);
        w->free -= n;
        for (uint64_t i = first; i < first + n; i++)
            world_out(w, (struct block){i, 0});
    }
    if (list(w, UINT64_MAX) != w->free)
        conform_fail(CONFORM_TAKE, "after a take of %llu frames list does not name the rest",
                     (unsigned long long)n);
    conform_blame(CONFORM_RULES);
    world_check(w);
}
