/*
 * hvbench heap-init: from a heap without an allocator to all frames given, for each allocator.
 *
 * The time is the core's own (heap_info.init_ns): the strategy's init and add. With `--touch pre`
 * its metadata has been written once before, so that the algorithm is measured; with `fresh` it
 * comes straight from the host and the first touch of each page is in the time. The frames
 * themselves are never touched.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hv/host/arena.h"
#include "hv/mm/heap.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_out.h"
#include "tests/bench/svg.h"

#define REPEAT_MAX 1000u

struct options {
    struct bench_common b;
    uint64_t memory;
    bool fresh;
};

struct machine {
    struct mm_env env;
    struct mm_arena arena;
    bool touch; /* write what is reserved from now on */
};

static uint64_t now(void *arg)
{
    (void)arg;
    return host_now_ns();
}

static void relax(void *arg, unsigned n)
{
    (void)arg;
    (void)n;
}

static void *map(uint64_t bytes, int prot)
{
    void *p = mmap(NULL, bytes, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static void *reserve(void *arg, uint64_t bytes)
{
    const struct machine *m = arg;
    uint8_t *p = map(bytes, PROT_READ | PROT_WRITE);

    if (p && m->touch)
        for (uint64_t i = 0; i < bytes; i += FRAME_SIZE)
            *(volatile uint8_t *)(p + i) = 0;
    return p;
}

static void release(void *arg, void *p, uint64_t bytes)
{
    (void)arg;
    munmap(p, bytes);
}

static bool measure(const struct mf_plugin *p, const struct options *o, uint64_t *ns,
                    struct heap_info *info)
{
    struct machine m = {.env = {.now_ns = now, .relax = relax}};
    const char *why = "no memory for the frame table";
    enum mf_status st = MF_E_NO_MEMORY;
    struct heap *h;

    m.env.arg = &m;
    m.env.reserve = reserve;
    m.env.release = release;
    m.arena.frames = o->memory / FRAME_SIZE;
    m.arena.base = map(o->memory, PROT_NONE);
    h = m.arena.base ? heap_create(&m.env, &m.arena, 2, &st) : NULL;
    m.touch = !o->fresh;
    if (h)
        st = heap_select(h, p->name, p->ops.allocator, NULL, &why);
    if (h && st == MF_OK) {
        heap_get_info(h, info);
        *ns = info->init_ns;
    } else {
        bench_error(p->name, why ? why : mf_status_text(st));
    }
    heap_destroy(h);
    if (m.arena.base)
        munmap(m.arena.base, o->memory);
    return st == MF_OK;
}

static bool run_row(struct bench_out *out, const struct mf_plugin *p, const struct options *o)
{
    uint64_t ns[REPEAT_MAX], best = UINT64_MAX;
    struct bench_row *r = bench_out_row(out);
    struct heap_info info = {0};

    for (unsigned i = 0; i < o->b.repeat; i++) {
        if (!measure(p, o, &ns[i], &info))
            return false;
        best = ns[i] < best ? ns[i] : best;
    }
    bench_put_str(r, "strategy", p->name);
    bench_put_u64(r, "init_ns", bench_median(ns, o->b.repeat));
    bench_put_u64(r, "min_ns", best);
    bench_put_u64(r, "meta_bytes", info.meta_bytes);
    return true;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: hvbench heap-init [--memory SIZE] [--touch pre|fresh] [--repeat N]\n"
            "                         [--only NAME] [--plugins DIR] [--json] [--svg FILE]\n");
    return BENCH_USAGE;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"memory", required_argument, NULL, 'm'},  {"touch", required_argument, NULL, 't'},
        {"repeat", required_argument, NULL, 'r'},  {"only", required_argument, NULL, 'o'},
        {"plugins", required_argument, NULL, 'p'}, {"json", no_argument, NULL, 'j'},
        {"svg", required_argument, NULL, 'g'},     {NULL, 0, NULL, 0}};
    bool ok = true;
    int c;

    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'm')
            ok = bench_parse_size(optarg, &o->memory) && o->memory >= 1u << 20 &&
                 o->memory <= UINT64_C(1) << 44 && o->memory % FRAME_SIZE == 0;
        else if (c == 't')
            ok = !strcmp(optarg, "pre") || (o->fresh = !strcmp(optarg, "fresh"));
        else
            ok = bench_common_option(c, REPEAT_MAX, &o->b);
    }
    return ok && optind == argc;
}

static const struct svg_spec plot = {
    "From an empty heap to all frames given",    "strategy", NULL, "time", true,
    {{"init_ns", "median"}, {"min_ns", "least"}}};

int bench_heap_init(int argc, char **argv)
{
    struct options o = {.memory = UINT64_C(90) << 30, .b.repeat = 5};
    struct bench_plugins plugins;
    struct bench_out *out;
    bool ok = true;

    if (!parse(argc, argv, &o))
        return usage();
    if (!bench_load(&plugins, MF_PLUGIN_ALLOCATOR, o.b.only))
        return 1;
    out = bench_out_new("heap-init");
    if (!out)
        return 1;
    bench_put_u64(&out->conditions, "memory", o.memory);
    bench_put_str(&out->conditions, "touch", o.fresh ? "fresh" : "pre");
    bench_put_u64(&out->conditions, "repeat", o.b.repeat);
    for (unsigned i = 0; ok && i < plugins.n; i++)
        ok = run_row(out, plugins.plugin[i], &o);
    if (ok)
        bench_out_print(out, o.b.json);
    if (ok && o.b.svg)
        ok = svg_write(o.b.svg, out, &plot);
    free(out);
    return ok ? 0 : 1;
}
