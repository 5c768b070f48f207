/*
 * hvbench alloc: what one allocation and one free cost.
 *
 *   repeat   one block taken and given back, over and over: the cache-hot case
 *   bulk     half of the memory taken, block by block, then all given back in the same order
 *   rand     half of the memory taken, then given back in random order
 *
 * `plugin` is the allocator alone, called as the core calls it; `heap` goes through heap_alloc and
 * heap_free with every check of the frame table, for frames of the core: single ones come back to
 * their former owner as they are, larger blocks are scrubbed, and that is in their time.
 * Only `heap` runs with several threads: a plugin that is not thread safe needs the heap's lock.
 * Frames are never touched.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "hv/host/arena.h"
#include "hv/mm/heap.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_out.h"

#define REPEAT_MAX  101u
#define THREADS_MAX 16u
#define REPEATS     1000000u

enum pattern { REPEAT, BULK, RAND };
static const char *const patterns[] = {"repeat", "bulk", "rand"};

struct options {
    uint64_t memory;
    unsigned order, threads, repeat;
    enum pattern pattern;
    const char *only;
    bool json;
};

struct run;

/* One way to take and give back. */
struct way {
    const char *name;
    bool (*alloc)(struct run *r, unsigned cpu, uint64_t *m);
    bool (*free)(struct run *r, unsigned cpu, uint64_t m);
};

struct run {
    const struct options *o;
    const struct way *way;
    struct heap *heap;
    const struct mf_allocator_ops *ops;
    struct mf_alloc_env env;
    uint64_t blocks; /* each thread takes */
    pthread_barrier_t start;
};

struct thread {
    struct run *r;
    pthread_t id;
    unsigned cpu;
    bool ok;
    uint64_t alloc_ns, free_ns; /* sums over all blocks */
    uint64_t n;
};

static bool heap_way_alloc(struct run *r, unsigned cpu, uint64_t *m)
{
    mfn_t out;
    bool ok = heap_alloc(r->heap, cpu, r->o->order, OWNER_CORE, FRAME_T_CORE, 0, &out) == MF_OK;

    *m = out.v;
    return ok;
}

static bool heap_way_free(struct run *r, unsigned cpu, uint64_t m)
{
    return heap_free(r->heap, cpu, mfn(m), r->o->order, OWNER_CORE) == MF_OK;
}

static bool plugin_way_alloc(struct run *r, unsigned cpu, uint64_t *m)
{
    return r->ops->alloc(&r->env, cpu, r->o->order, m) == MF_PL_OK;
}

static bool plugin_way_free(struct run *r, unsigned cpu, uint64_t m)
{
    return r->ops->free(&r->env, cpu, m, r->o->order) == MF_PL_OK;
}

static const struct way ways[] = {
    {"plugin", plugin_way_alloc, plugin_way_free},
    {"heap", heap_way_alloc, heap_way_free},
};

/* CPU time of the calling thread: what others do on the machine is not in it. */
static uint64_t thread_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static bool run_repeat(struct thread *t)
{
    struct run *r = t->r;
    unsigned n = r->o->order ? REPEATS / 10 : REPEATS;
    uint64_t t0 = thread_ns(), m;

    for (unsigned i = 0; i < n; i++)
        if (!r->way->alloc(r, t->cpu, &m) || !r->way->free(r, t->cpu, m))
            return false;
    t->n = n;
    t->alloc_ns = thread_ns() - t0; /* of the pair */
    return true;
}

static void shuffle(uint64_t *m, uint64_t n)
{
    uint64_t s = 88172645463325252u;

    for (uint64_t i = n; i > 1; i--) {
        uint64_t k, x;

        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        k = s % i;
        x = m[k], m[k] = m[i - 1], m[i - 1] = x;
    }
}

static bool run_bulk(struct thread *t, bool random)
{
    struct run *r = t->r;
    uint64_t *m = malloc(r->blocks * sizeof *m), t0;
    bool ok = m != NULL;

    if (m)
        memset(m, 0xff, r->blocks * sizeof *m);
    t0 = thread_ns();
    for (uint64_t i = 0; ok && i < r->blocks; i++)
        ok = r->way->alloc(r, t->cpu, &m[i]);
    t->alloc_ns = thread_ns() - t0;
    if (ok && random)
        shuffle(m, r->blocks);
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

    pthread_barrier_wait(&t->r->start);
    if (t->r->o->pattern == REPEAT)
        t->ok = run_repeat(t);
    else
        t->ok = run_bulk(t, t->r->o->pattern == RAND);
    return NULL;
}

/* Tenths of a nanosecond for each block, mean of the threads. */
static bool run_threads(struct run *r, unsigned n, uint64_t *alloc, uint64_t *give)
{
    struct thread t[THREADS_MAX];
    unsigned made = 0;
    bool ok = true;

    *alloc = *give = 0;
    pthread_barrier_init(&r->start, NULL, n);
    for (; made < n; made++) {
        t[made] = (struct thread){.r = r, .cpu = made};
        if (pthread_create(&t[made].id, NULL, thread_main, &t[made]))
            abort(); /* the others wait at the barrier for ever */
    }
    while (made--) {
        pthread_join(t[made].id, NULL);
        ok = ok && t[made].ok;
        *alloc += t[made].n ? t[made].alloc_ns * 10 / t[made].n / n : 0;
        *give += t[made].n ? t[made].free_ns * 10 / t[made].n / n : 0;
    }
    pthread_barrier_destroy(&r->start);
    return ok;
}

static bool make_plugin(struct run *r, const struct mf_plugin *p, uint64_t frames)
{
    struct mf_alloc_env *e = &r->env;

    r->ops = p->ops.allocator;
    *e = (struct mf_alloc_env){.size = sizeof *e, .nr_cpus = r->o->threads, .nr_frames = frames};
    e->meta_size = r->ops->meta_size(frames, e->nr_cpus);
    e->meta = mmap(NULL, e->meta_size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (e->meta == MAP_FAILED)
        return false;
    return r->ops->init(e) == MF_PL_OK && r->ops->add(e, 0, frames) == MF_PL_OK;
}

static bool run_row(struct bench_out *out, const struct mf_plugin *p, const struct options *o,
                    const struct way *way)
{
    uint64_t alloc[REPEAT_MAX], give[REPEAT_MAX], frames = o->memory / FRAME_SIZE;
    struct run r = {.o = o, .way = way};
    struct host_arena arena;
    struct bench_row *row;
    enum mf_status st;
    bool ok;

    r.blocks = (frames / 2 >> o->order) / o->threads;
    if (host_arena_init(&arena, o->memory, NULL) != MF_OK)
        return false;
    r.heap = heap_create(&arena.env, &arena.mm, o->threads, &st);
    ok = r.heap && make_plugin(&r, p, frames) &&
         heap_select(r.heap, p->name, p->ops.allocator, NULL, NULL) == MF_OK;
    for (unsigned i = 0; ok && i < o->repeat + 1; i++) /* the first one warms up */
        ok = run_threads(&r, o->threads, &alloc[i ? i - 1 : 0], &give[i ? i - 1 : 0]);
    heap_destroy(r.heap);
    host_arena_fini(&arena);
    if (r.ops)
        munmap(r.env.meta, r.env.meta_size);
    if (!ok) {
        bench_error(p->name, "an allocation or a free failed");
        return false;
    }
    row = bench_out_row(out);
    bench_put_str(row, "strategy", p->name);
    bench_put_str(row, "through", way->name);
    bench_put_tenths(row, o->pattern == REPEAT ? "pair_ns" : "alloc_ns",
                     bench_median(alloc, o->repeat));
    if (o->pattern != REPEAT)
        bench_put_tenths(row, "free_ns", bench_median(give, o->repeat));
    return true;
}

static int usage(void)
{
    fprintf(stderr, "usage: hvbench alloc [--pattern repeat|bulk|rand] [--order 0..9] "
                    "[--threads N]\n"
                    "                     [--memory SIZE] [--repeat N] [--only NAME] "
                    "[--plugins DIR] [--json]\n");
    return BENCH_USAGE;
}

static bool parse_pattern(const char *s, enum pattern *out)
{
    for (unsigned i = 0; i < 3; i++) {
        if (!strcmp(patterns[i], s)) {
            *out = (enum pattern)i;
            return true;
        }
    }
    return false;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {{"pattern", required_argument, NULL, 'a'},
                                          {"order", required_argument, NULL, 'k'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"memory", required_argument, NULL, 'm'},
                                          {"repeat", required_argument, NULL, 'r'},
                                          {"only", required_argument, NULL, 'o'},
                                          {"plugins", required_argument, NULL, 'p'},
                                          {"json", no_argument, NULL, 'j'},
                                          {NULL, 0, NULL, 0}};
    bool ok = true;
    int c;

    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'a')
            ok = parse_pattern(optarg, &o->pattern);
        else if (c == 'k')
            ok = !strcmp(optarg, "0") ? (o->order = 0, true)
                                      : bench_parse_count(optarg, 9, &o->order);
        else if (c == 't')
            ok = bench_parse_count(optarg, THREADS_MAX, &o->threads);
        else if (c == 'm')
            ok = bench_parse_size(optarg, &o->memory) && o->memory >= UINT64_C(64) << 20 &&
                 o->memory <= UINT64_C(1) << 40 && o->memory % FRAME_SIZE == 0;
        else if (c == 'r')
            ok = bench_parse_count(optarg, REPEAT_MAX - 1, &o->repeat);
        else if (c == 'o')
            o->only = optarg;
        else if (c == 'p')
            bench_set_plugin_dir(optarg);
        else if (c == 'j')
            o->json = true;
        else
            ok = false;
    }
    return ok && optind == argc;
}

int bench_alloc(int argc, char **argv)
{
    struct options o = {.memory = UINT64_C(4) << 30, .threads = 1, .repeat = 5};
    struct bench_plugins plugins;
    struct bench_out *out;
    bool ok = true;

    if (!parse(argc, argv, &o))
        return usage();
    if (!bench_load(&plugins, MF_PLUGIN_ALLOCATOR, o.only))
        return 1;
    out = bench_out_new("alloc");
    if (!out)
        return 1;
    bench_put_str(&out->conditions, "pattern", patterns[o.pattern]);
    bench_put_u64(&out->conditions, "order", o.order);
    bench_put_u64(&out->conditions, "threads", o.threads);
    bench_put_u64(&out->conditions, "memory", o.memory);
    bench_put_u64(&out->conditions, "repeat", o.repeat);
    for (unsigned i = 0; ok && i < plugins.n; i++)
        for (unsigned w = 0; ok && w < 2; w++)
            if (w || o.threads == 1 ||
                plugins.plugin[i]->ops.allocator->flags & MF_ALLOC_THREAD_SAFE)
                ok = run_row(out, plugins.plugin[i], &o, &ways[w]);
    if (ok)
        bench_out_print(out, o.json);
    free(out);
    return ok ? 0 : 1;
}
