/*
 * hvbench alloc: what one allocation and one free cost.
 *
 *   repeat   one block taken and given back, over and over: the cache-hot case
 *   bulk     half of the memory taken, block by block, then all given back in the same order
 *   rand     half of the memory taken, then given back in random order
 *   frag     how much of the free memory is in blocks of 2 MiB after long random use
 *   filling  one allocation when memory is in use to 0, 50, 90, 99 percent, scattered
 *
 * `plugin` is the allocator alone, called as the core calls it; `heap` goes through heap_alloc and
 * heap_free with every check of the frame table. The frames are the core's own and come back to it
 * without being asked to read as zero, so nothing is scrubbed; `hvbench scrub` measures that.
 * Times are CPU time of the threads. Frames are never touched.
 */
#include "tests/bench/bench_alloc.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/bench/svg.h"

#define REPEAT_MAX  101u
#define THREADS_MAX 16u
#define REPEATS     1000000u

enum pattern { REPEAT, BULK, RAND, FRAG, FILLING, PATTERNS };
static const char *const patterns[PATTERNS] = {"repeat", "bulk", "rand", "frag", "filling"};

struct options {
    struct bench_common b;
    uint64_t memory;
    unsigned order, threads;
    enum pattern pattern;
};

struct thread {
    struct alloc_run *r;
    enum pattern pattern;
    pthread_barrier_t *start;
    pthread_t id;
    unsigned cpu;
    bool ok;
    uint64_t alloc_ns, free_ns; /* sums over all blocks */
    uint64_t n;
};

/* ---- the two ways */

static bool heap_way_alloc(struct alloc_run *r, unsigned cpu, uint64_t *m)
{
    mfn_t out;
    bool ok = heap_alloc(r->heap, cpu, r->order, OWNER_CORE, FRAME_T_CORE, 0, &out) == MF_OK;

    *m = out.v;
    return ok;
}

static bool heap_way_free(struct alloc_run *r, unsigned cpu, uint64_t m)
{
    return heap_free(r->heap, cpu, mfn(m), r->order, OWNER_CORE) == MF_OK;
}

static uint64_t huge_frames(const uint64_t *blocks)
{
    uint64_t n = 0;

    for (unsigned k = ORDER_2M; k <= ORDER_MAX; k++)
        n += blocks[k] << k;
    return n;
}

static void heap_way_count(struct alloc_run *r, uint64_t *free_frames, uint64_t *huge)
{
    struct heap_info i;

    heap_get_info(r->heap, &i);
    *free_frames = i.free;
    *huge = huge_frames(i.free_blocks);
}

static bool plugin_way_alloc(struct alloc_run *r, unsigned cpu, uint64_t *m)
{
    int rc = r->ops->alloc(&r->env, cpu, r->order, m);

    /* As the core does: what other CPUs have in their caches comes last. One thread only. */
    if (rc == MF_PL_NO_MEMORY && r->threads == 1 && r->ops->drain) {
        r->ops->drain(&r->env);
        rc = r->ops->alloc(&r->env, cpu, r->order, m);
    }
    return rc == MF_PL_OK;
}

static bool plugin_way_free(struct alloc_run *r, unsigned cpu, uint64_t m)
{
    return r->ops->free(&r->env, cpu, m, r->order) == MF_PL_OK;
}

static void plugin_way_count(struct alloc_run *r, uint64_t *free_frames, uint64_t *huge)
{
    struct mf_alloc_stats st = {.size = sizeof st};

    r->ops->stats(&r->env, &st);
    *free_frames = st.free_frames;
    *huge = huge_frames(st.free_blocks);
}

static const struct alloc_way ways[] = {
    {"plugin", plugin_way_alloc, plugin_way_free, plugin_way_count},
    {"heap", heap_way_alloc, heap_way_free, heap_way_count},
};

/* ---- timed patterns */

static bool run_repeat(struct thread *t)
{
    struct alloc_run *r = t->r;
    uint64_t t0 = thread_ns(), m;

    for (unsigned i = 0; i < REPEATS; i++)
        if (!r->way->alloc(r, t->cpu, &m) || !r->way->free(r, t->cpu, m))
            return false;
    t->n = REPEATS;
    t->alloc_ns = thread_ns() - t0; /* of the pair */
    return true;
}

static bool run_bulk(struct thread *t, bool random)
{
    struct alloc_run *r = t->r;
    uint64_t *m = malloc(r->blocks * sizeof *m), t0;
    bool ok = m != NULL;

    if (m)
        memset(m, 0xff, r->blocks * sizeof *m);
    t0 = thread_ns();
    for (uint64_t i = 0; ok && i < r->blocks; i++)
        ok = r->way->alloc(r, t->cpu, &m[i]);
    t->alloc_ns = thread_ns() - t0;
    if (ok && random)
        alloc_shuffle(m, r->blocks);
    t0 = thread_ns();
    for (uint64_t i = 0; ok && i < r->blocks; i++)
        ok = r->way->free(r, t->cpu, m[i]);
    t->free_ns = thread_ns() - t0;
    t->n = r->blocks;
    free(m);
    return ok;
}

static void *thread_main(void *arg)
{
    struct thread *t = arg;

    pthread_barrier_wait(t->start);
    t->ok = t->pattern == REPEAT ? run_repeat(t) : run_bulk(t, t->pattern == RAND);
    return NULL;
}

/* Tenths of a nanosecond for each block, mean of the threads. */
static bool run_threads(struct alloc_run *r, enum pattern pattern, uint64_t *alloc, uint64_t *give)
{
    struct thread t[THREADS_MAX];
    unsigned n = r->threads, made = 0;
    pthread_barrier_t start;
    bool ok = true;

    *alloc = *give = 0;
    pthread_barrier_init(&start, NULL, n);
    for (; made < n; made++) {
        t[made] = (struct thread){.r = r, .cpu = made, .pattern = pattern, .start = &start};
        if (pthread_create(&t[made].id, NULL, thread_main, &t[made]))
            abort(); /* the others wait at the barrier for ever */
    }
    while (made--) {
        pthread_join(t[made].id, NULL);
        ok = ok && t[made].ok;
        *alloc += t[made].n ? t[made].alloc_ns * 10 / t[made].n / n : 0;
        *give += t[made].n ? t[made].free_ns * 10 / t[made].n / n : 0;
    }
    pthread_barrier_destroy(&start);
    return ok;
}

/* ---- rows */

static void env_relax(void *arg, unsigned n)
{
    const struct mm_env *env = arg;

    env->relax(env->arg, n);
}

static bool make_plugin(struct alloc_run *r, const struct mf_plugin *p, struct host_arena *arena)
{
    struct mf_alloc_env *e = &r->env;

    r->ops = p->ops.allocator;
    *e = (struct mf_alloc_env){.size = sizeof *e, .nr_cpus = r->threads, .nr_frames = r->frames};
    e->relax = env_relax;
    e->relax_arg = &arena->env;
    e->meta_size = r->ops->meta_size(r->frames, e->nr_cpus);
    e->meta = mmap(NULL, e->meta_size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (e->meta == MAP_FAILED)
        return false;
    return r->ops->init(e) == MF_PL_OK && r->ops->add(e, 0, r->frames) == MF_PL_OK;
}

struct result {
    uint64_t alloc[REPEAT_MAX], give[REPEAT_MAX]; /* before and after with `frag` */
    uint64_t level[ALLOC_LEVELS];
};

static bool measure(struct alloc_run *r, const struct options *o, struct result *res)
{
    bool ok = true;

    if (o->pattern == FRAG)
        return alloc_frag(r, &res->alloc[0], &res->give[0]);
    if (o->pattern == FILLING)
        return alloc_filling(r, res->level);
    for (unsigned i = 0; ok && i < o->b.repeat + 1; i++) /* the first one warms up */
        ok = run_threads(r, o->pattern, &res->alloc[i ? i - 1 : 0], &res->give[i ? i - 1 : 0]);
    return ok;
}

static void put_row(struct bench_row *row, const struct options *o, struct result *res)
{
    static const char *const levels[ALLOC_LEVELS] = {"at0_ns", "at50_ns", "at90_ns", "at99_ns"};

    if (o->pattern == FRAG) {
        bench_put_tenths(row, "huge_before_percent", res->alloc[0]);
        bench_put_tenths(row, "huge_after_percent", res->give[0]);
        return;
    }
    for (unsigned i = 0; o->pattern == FILLING && i < ALLOC_LEVELS; i++)
        bench_put_tenths(row, levels[i], res->level[i]);
    if (o->pattern == FILLING)
        return;
    /* bench_median sorts: the least is in front then. */
    bench_put_tenths(row, o->pattern == REPEAT ? "pair_ns" : "alloc_ns",
                     bench_median(res->alloc, o->b.repeat));
    if (o->pattern != REPEAT)
        bench_put_tenths(row, "free_ns", bench_median(res->give, o->b.repeat));
    bench_put_tenths(row, o->pattern == REPEAT ? "min_pair_ns" : "min_alloc_ns", res->alloc[0]);
    if (o->pattern != REPEAT)
        bench_put_tenths(row, "min_free_ns", res->give[0]);
}

static bool run_row(struct bench_out *out, const struct mf_plugin *p, const struct options *o,
                    const struct alloc_way *way)
{
    struct alloc_run r = {.way = way, .order = o->order, .threads = o->threads};
    static struct result res;
    struct host_arena arena;
    struct bench_row *row;
    enum mf_status st;
    bool ok;

    r.frames = o->memory / FRAME_SIZE;
    r.blocks = (r.frames / 2 >> o->order) / o->threads;
    if (host_arena_init(&arena, o->memory, NULL) != MF_OK)
        return false;
    r.heap = heap_create(&arena.env, &arena.mm, o->threads, &st);
    ok = r.heap && make_plugin(&r, p, &arena) &&
         heap_select(r.heap, p->name, p->ops.allocator, NULL, NULL) == MF_OK &&
         measure(&r, o, &res);
    heap_destroy(r.heap);
    host_arena_fini(&arena);
    if (r.ops && r.env.meta != MAP_FAILED)
        munmap(r.env.meta, r.env.meta_size);
    if (!ok) {
        bench_error(p->name, "an allocation or a free failed");
        return false;
    }
    row = bench_out_row(out);
    bench_put_str(row, "strategy", p->name);
    bench_put_str(row, "through", way->name);
    put_row(row, o, &res);
    return true;
}

static bool draw(const struct bench_out *out, const struct options *o)
{
    static const struct svg_spec specs[PATTERNS] = {
        [REPEAT] = {"One allocation and one free, cache hot",
                    "strategy",
                    "through",
                    "CPU time of a pair",
                    true,
                    {{"pair_ns", "allocation + free, median"}}},
        [BULK] = {"Half of memory taken, then given back",
                  "strategy",
                  "through",
                  "CPU time of a block",
                  true,
                  {{"alloc_ns", "allocation, median"}, {"free_ns", "free, median"}}},
        [RAND] = {"Half of memory taken, then given back at random",
                  "strategy",
                  "through",
                  "CPU time of a block",
                  true,
                  {{"alloc_ns", "allocation, median"}, {"free_ns", "free, median"}}},
        [FRAG] = {"Free memory in blocks of 2 MiB or more",
                  "strategy",
                  "through",
                  "percent of the free memory",
                  false,
                  {{"huge_before_percent", "after a random half was freed"},
                   {"huge_after_percent", "after 100 rounds of 10 % anew"}}},
        [FILLING] =
            {"One allocation by how full memory is",
             "strategy",
             "through",
             "CPU time of an allocation",
             true,
             {{"at0_ns", "empty"}, {"at50_ns", "50 %"}, {"at90_ns", "90 %"}, {"at99_ns", "99 %"}}},
    };

    return svg_write(o->b.svg, out, &specs[o->pattern]);
}

/* ---- command line */

static int usage(void)
{
    fprintf(stderr, "usage: hvbench alloc [--pattern repeat|bulk|rand|frag|filling] "
                    "[--order 0..9] [--threads N]\n"
                    "                     [--memory SIZE] [--repeat N] [--only NAME] "
                    "[--plugins DIR] [--json] [--svg FILE]\n");
    return BENCH_USAGE;
}

static bool parse_pattern(const char *s, enum pattern *out)
{
    for (unsigned i = 0; i < PATTERNS; i++) {
        if (!strcmp(patterns[i], s)) {
            *out = (enum pattern)i;
            return true;
        }
    }
    return false;
}

static bool parse_one(int c, struct options *o)
{
    switch (c) {
    case 'a':
        return parse_pattern(optarg, &o->pattern);
    case 'k':
        return !strcmp(optarg, "0") ? (o->order = 0, true)
                                    : bench_parse_count(optarg, 9, &o->order);
    case 't':
        return bench_parse_count(optarg, THREADS_MAX, &o->threads);
    case 'm':
        return bench_parse_size(optarg, &o->memory) && o->memory >= UINT64_C(64) << 20 &&
               o->memory <= UINT64_C(1) << 40 && o->memory % FRAME_SIZE == 0;
    default:
        return bench_common_option(c, REPEAT_MAX - 1, &o->b);
    }
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"pattern", required_argument, NULL, 'a'}, {"order", required_argument, NULL, 'k'},
        {"threads", required_argument, NULL, 't'}, {"memory", required_argument, NULL, 'm'},
        {"repeat", required_argument, NULL, 'r'},  {"only", required_argument, NULL, 'o'},
        {"plugins", required_argument, NULL, 'p'}, {"json", no_argument, NULL, 'j'},
        {"svg", required_argument, NULL, 'g'},     {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
        if (!parse_one(c, o))
            return false;
    /* Where free memory lies is looked at by one thread; it may act for several CPUs. */
    return optind == argc && (o->pattern < FRAG || o->threads == 1);
}

static bool run_all(struct bench_out *out, const struct options *o, const struct bench_plugins *p)
{
    for (unsigned i = 0; i < p->n; i++)
        for (unsigned w = 0; w < 2; w++)
            if (w || o->threads == 1 || p->plugin[i]->ops.allocator->flags & MF_ALLOC_THREAD_SAFE)
                if (!run_row(out, p->plugin[i], o, &ways[w]))
                    return false;
    return true;
}

int bench_alloc(int argc, char **argv)
{
    struct options o = {.memory = UINT64_C(4) << 30, .threads = 1, .b.repeat = 5};
    struct bench_plugins plugins;
    struct bench_out *out;
    bool ok;

    if (!parse(argc, argv, &o))
        return usage();
    if (!bench_load(&plugins, MF_PLUGIN_ALLOCATOR, o.b.only))
        return 1;
    out = bench_out_new("alloc");
    if (!out)
        return 1;
    bench_put_str(&out->conditions, "pattern", patterns[o.pattern]);
    bench_put_u64(&out->conditions, "order", o.order);
    bench_put_u64(&out->conditions, "threads", o.threads);
    bench_put_u64(&out->conditions, "memory", o.memory);
    bench_put_u64(&out->conditions, "repeat", o.pattern < FRAG ? o.b.repeat : 1);
    bench_put_str(&out->conditions, "clock", "thread-cpu");
    bench_put_str(&out->conditions, "scrub", "none needed");
    ok = run_all(out, &o, &plugins);
    if (ok)
        bench_out_print(out, o.b.json);
    if (ok && o.b.svg)
        ok = draw(out, &o);
    free(out);
    return ok ? 0 : 1;
}
