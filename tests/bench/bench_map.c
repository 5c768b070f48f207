/*
 * hvbench map: what a demand fault of a 4 KiB page costs with and without the used-entry bitmaps,
 * and with an arena. Rounds of the three take turns, so that they meet the same machine; memory is
 * pre-touched by a round before. `ratio` is to the first row.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hv/host/arena.h"
#include "hv/mm/stage2_impl.h"
#include "hv/mm/teardown.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_out.h"

#define ROUNDS_MAX 1000u
#define OWNER      OWNER_VM(1)
#define SPAN       (UINT64_C(1) << 28) /* 1 TiB */
#define KINDS      3u

struct options {
    struct bench_common b;
    bool sparse;
    uint64_t leaves;
};

static const char *const kinds[KINDS] = {"plain", "tracked", "arena"};

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static bool map_all(struct stage2 *s2, const struct options *o)
{
    uint64_t seed = 88172645463325252u;
    struct s2_leaf leaf;

    for (uint64_t i = 0; i < o->leaves; i++) {
        uint64_t g = o->sparse ? next_random(&seed) % SPAN : i;

        if (stage2_fault(s2, 0, gfn(g), S2_READ | S2_WRITE, &leaf) != MF_OK)
            return false;
    }
    return true;
}

static bool clear(struct stage2 *s2, const struct mf_teardown_ops *ops)
{
    static struct teardown t;
    enum mf_status st;

    stage2_close(s2);
    if (teardown_begin_whole(&t, s2, ops) != MF_OK)
        return false;
    while ((st = teardown_step(&t, TEARDOWN_BUDGET)) == MF_AGAIN || st == MF_BLOCKED)
        stage2_reap(s2, 4096);
    teardown_end(&t);
    while (stage2_reap(s2, 4096) == MF_AGAIN)
        ;
    return st == MF_OK && stage2_destroy(s2) == MF_OK;
}

static bool round_of(struct heap *h, const struct options *o, unsigned kind,
                     const struct mf_teardown_ops *ops, uint64_t *ns)
{
    struct s2_config c = {.owner = OWNER,
                          .roots = 1,
                          .track = kind == 1,
                          .arena = kind == 2,
                          .nr_regions = 1,
                          .regions = {{{0}, SPAN}}};
    struct stage2 *s2;
    uint64_t t0;

    if (stage2_create(h, &c, &s2) != MF_OK)
        return false;
    t0 = host_now_ns();
    if (!map_all(s2, o))
        return false;
    *ns = (host_now_ns() - t0) * 1000 / o->leaves;
    if (!clear(s2, ops))
        return false;
    /* Else the next round would measure the scrub of what this one used. */
    while (heap_scrub_step(h, 4096) == MF_AGAIN)
        ;
    return true;
}

static bool run(const struct options *o, struct heap *h, const struct mf_teardown_ops *ops,
                struct bench_out *out)
{
    static uint64_t ns[KINDS][ROUNDS_MAX];
    uint64_t base = 0;

    for (unsigned i = 0; i < o->b.repeat + 1; i++)
        for (unsigned k = 0; k < KINDS; k++)
            if (!round_of(h, o, k, ops, &ns[k][i ? i - 1 : 0]))
                return false;
    for (unsigned k = 0; k < KINDS; k++) {
        struct bench_row *r = bench_out_row(out);
        uint64_t ps = bench_median(ns[k], o->b.repeat);

        base = k ? base : ps;
        bench_put_str(r, "kind", kinds[k]);
        bench_put_u64(r, "map_ps", ps);
        bench_put_u64(r, "percent_of_plain", base ? ps * 100 / base : 0);
    }
    return true;
}

static int usage(void)
{
    fprintf(stderr, "usage: hvbench map [--tree dense|sparse] [--leaves N] [--repeat N]\n"
                    "                   [--plugins DIR] [--json]\n");
    return BENCH_USAGE;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"tree", required_argument, NULL, 't'},   {"leaves", required_argument, NULL, 'l'},
        {"repeat", required_argument, NULL, 'r'}, {"plugins", required_argument, NULL, 'p'},
        {"json", no_argument, NULL, 'j'},         {NULL, 0, NULL, 0}};
    unsigned n = 0;
    bool ok = true;
    int c;

    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 't') {
            o->sparse = !strcmp(optarg, "sparse");
            ok = o->sparse || !strcmp(optarg, "dense");
        } else if (c == 'l') {
            ok = bench_parse_count(optarg, 1u << 20, &n);
            o->leaves = n;
        } else {
            ok = bench_common_option(c, ROUNDS_MAX, &o->b);
        }
    }
    return ok && optind == argc && o->leaves && o->b.repeat;
}

int bench_map(int argc, char **argv)
{
    struct options o = {.b.repeat = 21, .leaves = 20000};
    struct bench_plugins zap, alloc;
    struct host_arena arena;
    struct bench_out *out;
    enum mf_status st;
    struct heap *h;
    bool ok;

    if (!parse(argc, argv, &o))
        return usage();
    if (!bench_load(&zap, MF_PLUGIN_TEARDOWN, "single") ||
        !bench_load(&alloc, MF_PLUGIN_ALLOCATOR, "buddy-lazy") ||
        host_arena_init(&arena, o.leaves * 3 * FRAME_SIZE + (UINT64_C(64) << 20), NULL) != MF_OK)
        return 1;
    out = bench_out_new("map");
    h = heap_create(&arena.env, &arena.mm, 1, &st);
    ok = out && h &&
         heap_select(h, alloc.plugin[0]->name, alloc.plugin[0]->ops.allocator, NULL, NULL) == MF_OK;
    if (ok) {
        bench_put_str(&out->conditions, "tree", o.sparse ? "sparse" : "dense");
        bench_put_u64(&out->conditions, "leaves", o.leaves);
        bench_put_u64(&out->conditions, "repeat", o.b.repeat);
        ok = run(&o, h, zap.plugin[0]->ops.teardown, out);
    }
    if (ok)
        bench_out_print(out, o.b.json);
    heap_destroy(h);
    host_arena_fini(&arena);
    free(out);
    return ok ? 0 : 1;
}
