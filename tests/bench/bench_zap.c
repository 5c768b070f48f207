/*
 * hvbench zap: teardown of a whole second stage, for each strategy, on trees of known shape.
 *
 *   reference  the tree of the design: 2 roots, 6 tables, two 4 KiB leaves
 *   sparse     random 4 KiB leaves over 1 TiB
 *   dense      4 KiB leaves without a gap
 *   huge       2 MiB leaves without a gap
 *   linux      512 MiB of RAM as a small Linux guest leaves it: firmware area, kernel image, initrd
 *              and clusters of pages. A synthetic shape, made from a fixed seed.
 *
 * zap_ns is begin to the last step, reap_ns the return of the frames to the heap after it; no vCPU
 * is there to wait for. map_ns is what a leaf took to map, bitmaps kept only for strategies that
 * use them. Leaves are mapped, their memory is not touched.
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
#include "tests/bench/svg.h"

#define REPEAT_MAX    1000u
#define OWNER         OWNER_VM(1)
#define SPARSE_FRAMES (UINT64_C(1) << 28) /* 1 TiB */

struct options {
    struct bench_common b;
    const char *tree;
    uint64_t size; /* bytes mapped; 0: the tree's own */
    uint32_t budget;
};

struct tree {
    const char *name;
    uint64_t size; /* bytes mapped by default */
    unsigned roots, fault_order;
    bool (*build)(struct stage2 *s2, uint64_t frames);
};

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static bool touch(struct stage2 *s2, uint64_t g)
{
    struct s2_leaf leaf;

    return stage2_fault(s2, 0, gfn(g), S2_READ | S2_WRITE, &leaf) == MF_OK;
}

static bool touch_run(struct stage2 *s2, uint64_t first, uint64_t n, uint64_t step)
{
    for (uint64_t g = first; g < first + n; g += step)
        if (!touch(s2, g))
            return false;
    return true;
}

static uint64_t at(unsigned l3, unsigned l2, unsigned l1)
{
    return (uint64_t)l3 << 18 | (uint64_t)l2 << 9 | l1;
}

static bool build_reference(struct stage2 *s2, uint64_t frames)
{
    struct s2_walk w;

    (void)frames;
    if (!touch(s2, at(0, 102, 123)) || !touch(s2, at(0, 190, 0)) || !touch(s2, at(3, 303, 432)))
        return false;
    /* The middle table has no leaf: what it was made with goes again. */
    s2_walk(s2, 0, at(0, 190, 0), 1, &w);
    s2_lock(s2);
    s2_remove_leaf(s2, w.mfn, w.index, 1);
    s2_unlock(s2);
    return stage2_reap(s2, 16) == MF_OK;
}

static bool build_sparse(struct stage2 *s2, uint64_t frames)
{
    uint64_t seed = 88172645463325252u;

    for (uint64_t i = 0; i < frames; i++)
        if (!touch(s2, next_random(&seed) % SPARSE_FRAMES))
            return false;
    return true;
}

static bool build_dense(struct stage2 *s2, uint64_t frames)
{
    return touch_run(s2, 0, frames, 1);
}

static bool build_huge(struct stage2 *s2, uint64_t frames)
{
    return touch_run(s2, 0, frames, 512);
}

static bool build_linux(struct stage2 *s2, uint64_t frames)
{
    uint64_t seed = 1442695040888963407u, ram = 131072, left = frames;

    if (!touch_run(s2, 0, 160, 1) || !touch_run(s2, 0x1000, 7168, 1) ||
        !touch_run(s2, ram - 1024, 1024, 1))
        return false;
    for (left -= left < 8352 ? left : 8352; left;) {
        uint64_t n = 1 + next_random(&seed) % 64, first = 0x3000 + next_random(&seed) % 0x1c000;

        n = n < left ? n : left;
        if (!touch_run(s2, first, n, 1))
            return false;
        left -= n;
    }
    return true;
}

static const struct tree trees[] = {
    {"reference", 2 << 12, 2, ORDER_4K, build_reference},
    {"sparse", UINT64_C(10000) << 12, 1, ORDER_4K, build_sparse},
    {"dense", UINT64_C(1) << 30, 1, ORDER_4K, build_dense},
    {"huge", UINT64_C(64) << 30, 1, ORDER_2M, build_huge},
    {"linux", UINT64_C(60) << 20, 1, ORDER_4K, build_linux},
};

struct sample {
    uint64_t map_ns, leaves, zap_ns, reap_ns;
    struct teardown_report report;
};

static bool tear_down(struct stage2 *s2, const struct mf_teardown_ops *ops, uint32_t budget,
                      struct sample *out)
{
    static struct teardown t;
    enum mf_status st;
    uint64_t t0 = host_now_ns(), t1;

    stage2_close(s2);
    st = teardown_begin_whole(&t, s2, ops);
    if (st != MF_OK)
        return false;
    while ((st = teardown_step(&t, budget)) == MF_AGAIN || st == MF_BLOCKED) {
        t1 = host_now_ns();
        stage2_reap(s2, budget);
        t1 = host_now_ns() - t1;
        out->reap_ns += t1;
        t0 += t1; /* not counted as zap */
    }
    teardown_end(&t);
    t1 = host_now_ns();
    out->zap_ns = t1 - t0;
    out->report = t.report;
    while (stage2_reap(s2, 4096) == MF_AGAIN)
        ;
    out->reap_ns += host_now_ns() - t1;
    return st == MF_OK;
}

static bool in_heap(struct heap *h, const struct tree *tr, uint64_t frames,
                    const struct mf_plugin *p, uint32_t budget, struct sample *out)
{
    struct s2_config c = {.owner = OWNER,
                          .roots = tr->roots,
                          .track = (p->ops.teardown->flags & MF_TD_TRACKS) != 0,
                          .arena = (p->ops.teardown->flags & MF_TD_ARENA) != 0,
                          .nr_regions = 1,
                          .regions = {{{0}, SPARSE_FRAMES}},
                          .fault_order = tr->fault_order};
    struct heap_info info;
    struct stage2 *s2;
    uint64_t t0;
    bool ok;

    if (stage2_create(h, &c, &s2) != MF_OK)
        return false;
    t0 = host_now_ns();
    ok = tr->build(s2, frames);
    out->map_ns = host_now_ns() - t0;
    if (!ok || !tear_down(s2, p->ops.teardown, budget, out) || stage2_destroy(s2) != MF_OK)
        return false;
    heap_get_info(h, &info);
    return info.free == info.frames;
}

static bool run_once(const struct tree *tr, const struct options *o, const struct mf_plugin *p,
                     const struct mf_plugin *alloc, struct sample *out)
{
    uint64_t size = o->size ? o->size : tr->size;
    struct host_arena arena;
    enum mf_status st;
    struct heap *h;
    bool ok;

    memset(out, 0, sizeof *out);
    /* Each leaf may need a table of its own, and the tables above them. */
    if (host_arena_init(&arena, size * 2 + (UINT64_C(64) << 20), NULL) != MF_OK)
        return false;
    h = heap_create(&arena.env, &arena.mm, 1, &st);
    ok = h && heap_select(h, alloc->name, alloc->ops.allocator, NULL, NULL) == MF_OK &&
         in_heap(h, tr, size / FRAME_SIZE, p, o->budget, out);
    heap_destroy(h);
    host_arena_fini(&arena);
    if (!ok)
        bench_error(p->name, "the teardown failed or frames are missing after it");
    return ok;
}

static bool run_row(struct bench_out *out, const struct tree *tr, const struct options *o,
                    const struct mf_plugin *p, const struct mf_plugin *alloc)
{
    static uint64_t zap[REPEAT_MAX], reap[REPEAT_MAX], map[REPEAT_MAX], step[REPEAT_MAX];
    struct bench_row *r = bench_out_row(out);
    struct teardown_report *t;
    struct sample s;

    for (unsigned i = 0; i < o->b.repeat; i++) {
        if (!run_once(tr, o, p, alloc, &s))
            return false;
        zap[i] = s.zap_ns;
        reap[i] = s.reap_ns;
        map[i] = s.report.leaves_removed ? s.map_ns / s.report.leaves_removed : 0;
        step[i] = s.report.step_max_ns;
    }
    t = &s.report;
    bench_put_str(r, "strategy", p->name);
    bench_put_u64(r, "zap_ns", bench_median(zap, o->b.repeat));
    bench_put_u64(r, "reap_ns", bench_median(reap, o->b.repeat));
    bench_put_u64(r, "step_max_ns", bench_median(step, o->b.repeat));
    bench_put_u64(r, "map_ns", bench_median(map, o->b.repeat));
    bench_put_u64(r, "steps", t->steps);
    bench_put_u64(r, "loops", t->loops);
    bench_put_array(r, "loops_per_pass", t->loops_per_pass_by_root[0], MF_ZAP_PASSES);
    bench_put_array(r, "loops_per_pass_root1", t->loops_per_pass_by_root[1], MF_ZAP_PASSES);
    bench_put_u64(r, "entries_removed", t->entries_removed);
    bench_put_u64(r, "tables_freed", t->tables_freed);
    bench_put_u64(r, "frames_retired", t->frames_retired);
    return true;
}

static int usage(void)
{
    fprintf(stderr, "usage: hvbench zap [--tree reference|sparse|dense|huge|linux] [--size SIZE]\n"
                    "                   [--repeat N] [--budget N] [--only NAME] [--plugins DIR] "
                    "[--json] [--svg FILE]\n");
    return BENCH_USAGE;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {{"tree", required_argument, NULL, 't'},
                                          {"size", required_argument, NULL, 's'},
                                          {"repeat", required_argument, NULL, 'r'},
                                          {"budget", required_argument, NULL, 'b'},
                                          {"only", required_argument, NULL, 'o'},
                                          {"plugins", required_argument, NULL, 'p'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"svg", required_argument, NULL, 'g'},
                                          {NULL, 0, NULL, 0}};
    bool ok = true;
    int c;

    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 't')
            o->tree = optarg;
        else if (c == 's')
            ok = bench_parse_size(optarg, &o->size) && o->size <= UINT64_C(1) << 40 &&
                 o->size >= UINT64_C(1) << 21 && o->size % (UINT64_C(1) << 21) == 0;
        else if (c == 'b')
            ok = bench_parse_count(optarg, 1u << 30, &o->budget);
        else
            ok = bench_common_option(c, REPEAT_MAX, &o->b);
    }
    return ok && optind == argc;
}

static const struct svg_spec plot = {"Taking a VM's second stage apart",
                                     "strategy",
                                     NULL,
                                     "time",
                                     true,
                                     {{"zap_ns", "teardown"},
                                      {"reap_ns", "frames back to the heap"},
                                      {"step_max_ns", "longest step"}}};

int bench_zap(int argc, char **argv)
{
    struct options o = {.tree = "reference", .budget = TEARDOWN_BUDGET};
    struct bench_plugins plugins, alloc;
    const struct tree *tr = NULL;
    struct bench_out *out;
    bool ok = true;

    if (!parse(argc, argv, &o))
        return usage();
    for (unsigned i = 0; i < sizeof trees / sizeof trees[0]; i++)
        if (!strcmp(trees[i].name, o.tree))
            tr = &trees[i];
    if (!tr)
        return usage();
    if (!o.b.repeat)
        o.b.repeat = tr->build == build_reference ? 101 : 5;
    if (!bench_load(&plugins, MF_PLUGIN_TEARDOWN, o.b.only) ||
        !bench_load(&alloc, MF_PLUGIN_ALLOCATOR, "buddy-lazy"))
        return 1;
    out = bench_out_new("zap");
    if (!out)
        return 1;
    bench_put_str(&out->conditions, "tree", tr->name);
    bench_put_u64(&out->conditions, "mapped_bytes", o.size ? o.size : tr->size);
    bench_put_u64(&out->conditions, "budget", o.budget);
    bench_put_u64(&out->conditions, "repeat", o.b.repeat);
    bench_put_str(&out->conditions, "allocator", alloc.plugin[0]->name);
    for (unsigned i = 0; ok && i < plugins.n; i++)
        ok = run_row(out, tr, &o, plugins.plugin[i], alloc.plugin[0]);
    if (ok)
        bench_out_print(out, o.b.json);
    if (ok && o.b.svg)
        ok = svg_write(o.b.svg, out, &plot);
    free(out);
    return ok ? 0 : 1;
}
