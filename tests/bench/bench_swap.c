/*
 * hvbench swap: how long the heap stands still while one allocator takes over from another, half of
 * the memory in use.
 *
 *   half    the lower half in use, the upper half free in one piece
 *   holes   every second block of 2 MiB in use: as many runs to hand over as there are holes
 *
 * Frames are never touched. Times are the core's own (heap_swap_report). The new allocator is
 * filled while the heap goes on: that is in the total. In the pause: listing the old one's free
 * frames, checking them against the frame table, what changed since it was filled, comparing
 * totals.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hv/host/arena.h"
#include "hv/mm/heap.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_out.h"
#include "tests/bench/svg.h"

#define REPEAT_MAX 101u

struct options {
    struct bench_common b;
    uint64_t memory;
    bool holes;
};

/* Takes all of it in blocks of 2 MiB, then frees what is to be free. */
static bool fill(struct heap *h, const struct options *o)
{
    uint64_t n = o->memory >> (FRAME_SHIFT + ORDER_2M);
    mfn_t m;

    for (uint64_t i = 0; i < n; i++)
        if (heap_alloc(h, 0, ORDER_2M, OWNER_CORE, FRAME_T_CORE, 0, &m) != MF_OK)
            return false;
    for (uint64_t i = 0; i < n; i++)
        if ((o->holes ? i & 1 : i >= n / 2) &&
            heap_free(h, 0, mfn(i << ORDER_2M), ORDER_2M, OWNER_CORE) != MF_OK)
            return false;
    return true;
}

static bool select_one(struct heap *h, const struct mf_plugin *p, struct heap_swap_report *r)
{
    const char *why = NULL;

    if (heap_select(h, p->name, p->ops.allocator, r, &why) == MF_OK)
        return true;
    bench_error(p->name, why);
    return false;
}

static bool run_pair(struct bench_out *out, struct heap *h, const struct options *o,
                     const struct mf_plugin *from, const struct mf_plugin *to)
{
    uint64_t pause[REPEAT_MAX], total[REPEAT_MAX];
    struct heap_swap_report r = {0};
    struct bench_row *row;

    for (unsigned i = 0; i < o->b.repeat; i++) {
        if (!select_one(h, from, &r) || !select_one(h, to, &r))
            return false;
        pause[i] = r.pause_ns;
        total[i] = r.total_ns;
    }
    row = bench_out_row(out);
    bench_put_str(row, "strategy", to->name);
    bench_put_str(row, "from", from->name);
    bench_put_u64(row, "pause_ns", bench_median(pause, o->b.repeat));
    bench_put_u64(row, "total_ns", bench_median(total, o->b.repeat));
    bench_put_u64(row, "ranges", r.ranges);
    bench_put_u64(row, "free_frames", r.free_frames);
    return true;
}

static bool run_all(struct bench_out *out, const struct options *o, const struct bench_plugins *p)
{
    struct host_arena arena;
    enum mf_status st;
    struct heap *h;
    bool ok;

    if (host_arena_init(&arena, o->memory, NULL) != MF_OK)
        return false;
    h = heap_create(&arena.env, &arena.mm, 1, &st);
    ok = h && select_one(h, p->plugin[0], NULL) && fill(h, o);
    for (unsigned i = 0; ok && i < p->n; i++)
        for (unsigned k = 0; ok && k < p->n; k++)
            if (i != k)
                ok = run_pair(out, h, o, p->plugin[i], p->plugin[k]);
    heap_destroy(h);
    host_arena_fini(&arena);
    return ok;
}

static int usage(void)
{
    fprintf(stderr, "usage: hvbench swap [--memory SIZE] [--fill half|holes] [--repeat N]\n"
                    "                    [--plugins DIR] [--json] [--svg FILE]\n");
    return BENCH_USAGE;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {{"memory", required_argument, NULL, 'm'},
                                          {"fill", required_argument, NULL, 'f'},
                                          {"repeat", required_argument, NULL, 'r'},
                                          {"plugins", required_argument, NULL, 'p'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"svg", required_argument, NULL, 'g'},
                                          {NULL, 0, NULL, 0}};
    bool ok = true;
    int c;

    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'm')
            ok = bench_parse_size(optarg, &o->memory) && o->memory >= UINT64_C(64) << 20 &&
                 o->memory <= UINT64_C(1) << 40 && o->memory % (UINT64_C(4) << 20) == 0;
        else if (c == 'f')
            ok = (o->holes = !strcmp(optarg, "holes")) || !strcmp(optarg, "half");
        else
            ok = bench_common_option(c, REPEAT_MAX, &o->b);
    }
    return ok && optind == argc;
}

static const struct svg_spec plot = {
    "One allocator taking over from another",
    "strategy",
    "from",
    "time",
    true,
    {{"pause_ns", "the heap stands still"}, {"total_ns", "all of it"}}};

int bench_swap(int argc, char **argv)
{
    struct options o = {.memory = UINT64_C(64) << 30, .b.repeat = 3};
    struct bench_plugins plugins;
    struct bench_out *out;
    bool ok;

    if (!parse(argc, argv, &o))
        return usage();
    if (!bench_load(&plugins, MF_PLUGIN_ALLOCATOR, NULL))
        return 1;
    out = bench_out_new("swap");
    if (!out)
        return 1;
    bench_put_u64(&out->conditions, "memory", o.memory);
    bench_put_str(&out->conditions, "fill", o.holes ? "holes" : "half");
    bench_put_u64(&out->conditions, "repeat", o.b.repeat);
    ok = run_all(out, &o, &plugins);
    if (ok)
        bench_out_print(out, o.b.json);
    if (ok && o.b.svg)
        ok = svg_write(o.b.svg, out, &plot);
    free(out);
    return ok ? 0 : 1;
}
