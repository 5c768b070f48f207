/*
 * hvbench scrub: what it costs that no frame is seen with another owner's data.
 *
 *   --what sizes     a range of machine memory made zero by writing and by giving it back to the
 *                    host (a hole in the memfd), and what it costs then to write to it again
 *   --what policies  a block that one owner has written, freed, and allocated by another, by
 *                    policy; `background` with the background work done in between (its cost
 *                    stands apart) and with it not done
 *
 * Times are CPU time of the thread, system calls and page faults included.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hv/host/arena.h"
#include "hv/mm/heap.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_out.h"
#include "tests/bench/svg.h"

#define REPEAT_MAX 101u
#define SIZES      10u
#define ONE        OWNER_VM(1)
#define OTHER      OWNER_VM(2)

struct options {
    struct bench_common b;
    bool policies;
};

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void touch(uint8_t *p, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += FRAME_SIZE)
        *(volatile uint8_t *)(p + i) = 1;
}

/* Out of line, so that the compiler does not know what the memory is for. */
static __attribute__((noinline)) void write_zeros(uint8_t *p, uint64_t bytes)
{
    memset(p, 0, bytes);
}

static uint64_t timed_touch(uint8_t *p, uint64_t bytes)
{
    uint64_t t0 = cpu_ns();

    touch(p, bytes);
    return cpu_ns() - t0;
}

/* ---- by size */

static void put_size(struct bench_row *row, uint64_t bytes)
{
    char s[24];

    snprintf(s, sizeof s, bytes < 1u << 20 ? "%llu KiB" : "%llu MiB",
             (unsigned long long)(bytes < 1u << 20 ? bytes >> 10 : bytes >> 20));
    bench_put_str(row, "size", s);
    bench_put_u64(row, "bytes", bytes);
}

static bool size_row(struct bench_out *out, const struct options *o, struct host_arena *a,
                     uint64_t bytes)
{
    static uint64_t zero[REPEAT_MAX], zero_use[REPEAT_MAX], hole[REPEAT_MAX], hole_use[REPEAT_MAX];
    uint8_t *p = a->mm.base;
    struct bench_row *row;

    for (unsigned i = 0; i < o->b.repeat; i++) {
        uint64_t t0;

        touch(p, bytes);
        t0 = cpu_ns();
        write_zeros(p, bytes);
        zero[i] = cpu_ns() - t0;
        zero_use[i] = timed_touch(p, bytes);
        t0 = cpu_ns();
        if (a->env.punch(a->env.arg, 0, bytes) != MF_OK)
            return false;
        hole[i] = cpu_ns() - t0;
        hole_use[i] = timed_touch(p, bytes);
    }
    row = bench_out_row(out);
    put_size(row, bytes);
    bench_put_u64(row, "memset_ns", bench_median(zero, o->b.repeat));
    bench_put_u64(row, "punch_ns", bench_median(hole, o->b.repeat));
    bench_put_u64(row, "use_after_memset_ns", bench_median(zero_use, o->b.repeat));
    bench_put_u64(row, "use_after_punch_ns", bench_median(hole_use, o->b.repeat));
    return true;
}

static bool run_sizes(struct bench_out *out, const struct options *o)
{
    struct host_arena arena;
    bool ok = true;

    if (host_arena_init(&arena, UINT64_C(4096) << 2 * (SIZES - 1), NULL) != MF_OK)
        return false;
    for (unsigned i = 0; ok && i < SIZES; i++)
        ok = size_row(out, o, &arena, UINT64_C(4096) << 2 * i);
    host_arena_fini(&arena);
    return ok;
}

/* ---- by policy */

struct sample {
    uint64_t free_ns[REPEAT_MAX], work_ns[REPEAT_MAX], alloc_ns[REPEAT_MAX];
};

static bool policy_once(struct heap *h, unsigned order, bool work, struct sample *s, unsigned i)
{
    uint64_t t0;
    mfn_t m;

    if (heap_alloc(h, 0, order, ONE, FRAME_T_RAM, HEAP_ZERO, &m) != MF_OK)
        return false;
    touch(heap_ptr(h, m), FRAME_SIZE << order);
    t0 = cpu_ns();
    if (heap_free(h, 0, m, order, ONE) != MF_OK)
        return false;
    s->free_ns[i] = cpu_ns() - t0;
    t0 = cpu_ns();
    while (work && heap_scrub_step(h, 64) == MF_AGAIN)
        ;
    s->work_ns[i] = work ? cpu_ns() - t0 : 0;
    t0 = cpu_ns();
    if (heap_alloc(h, 0, order, OTHER, FRAME_T_RAM, HEAP_ZERO, &m) != MF_OK)
        return false;
    s->alloc_ns[i] = cpu_ns() - t0;
    return heap_free(h, 0, m, order, OTHER) == MF_OK;
}

static bool policy_row(struct bench_out *out, const struct options *o, struct heap *h,
                       enum heap_scrub policy, bool work, unsigned order)
{
    static struct sample s;
    struct bench_row *row;

    heap_set_scrub(h, policy);
    for (unsigned i = 0; i < o->b.repeat; i++)
        if (!policy_once(h, order, work, &s, i))
            return false;
    row = bench_out_row(out);
    bench_put_str(row, "policy",
                  policy == HEAP_SCRUB_BACKGROUND && !work ? "background, no time"
                                                           : heap_scrub_name(policy));
    bench_put_str(row, "block", order == 0 ? "4 KiB" : order == 9 ? "2 MiB" : "64 MiB");
    bench_put_u64(row, "free_ns", bench_median(s.free_ns, o->b.repeat));
    bench_put_u64(row, "background_ns", bench_median(s.work_ns, o->b.repeat));
    bench_put_u64(row, "alloc_ns", bench_median(s.alloc_ns, o->b.repeat));
    return true;
}

static bool run_policies(struct bench_out *out, const struct options *o)
{
    static const unsigned orders[] = {0, 9, 14};
    struct bench_plugins alloc;
    struct host_arena arena;
    enum mf_status st;
    struct heap *h;
    bool ok;

    if (!bench_load(&alloc, MF_PLUGIN_ALLOCATOR, "buddy-lazy") ||
        host_arena_init(&arena, UINT64_C(256) << 20, NULL) != MF_OK)
        return false;
    h = heap_create(&arena.env, &arena.mm, 1, &st);
    ok = h && heap_select(h, "buddy-lazy", alloc.plugin[0]->ops.allocator, NULL, NULL) == MF_OK;
    for (unsigned k = 0; ok && k < 3; k++)
        ok = policy_row(out, o, h, HEAP_SCRUB_FREE, false, orders[k]) &&
             policy_row(out, o, h, HEAP_SCRUB_BACKGROUND, true, orders[k]) &&
             policy_row(out, o, h, HEAP_SCRUB_BACKGROUND, false, orders[k]) &&
             policy_row(out, o, h, HEAP_SCRUB_ALLOC, false, orders[k]);
    heap_destroy(h);
    host_arena_fini(&arena);
    return ok;
}

/* ---- command line */

static int usage(void)
{
    fprintf(stderr, "usage: hvbench scrub [--what sizes|policies] [--repeat N] [--plugins DIR] "
                    "[--json]\n"
                    "                     [--svg FILE]\n");
    return BENCH_USAGE;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {
        {"what", required_argument, NULL, 'w'},    {"repeat", required_argument, NULL, 'r'},
        {"plugins", required_argument, NULL, 'p'}, {"json", no_argument, NULL, 'j'},
        {"svg", required_argument, NULL, 'g'},     {NULL, 0, NULL, 0}};
    bool ok = true;
    int c;

    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'w')
            ok = (o->policies = !strcmp(optarg, "policies")) || !strcmp(optarg, "sizes");
        else
            ok = bench_common_option(c, REPEAT_MAX, &o->b);
    }
    return ok && optind == argc;
}

static const struct svg_spec plots[] = {
    {"Making a range of machine memory zero",
     "size",
     NULL,
     "CPU time",
     true,
     {{"memset_ns", "writing zeros"},
      {"punch_ns", "giving it to the host"},
      {"use_after_memset_ns", "using it after the first"},
      {"use_after_punch_ns", "using it after the second"}}},
    {"A block that changes its owner, by scrub policy",
     "policy",
     "block",
     "CPU time of a block",
     true,
     {{"free_ns", "free"}, {"background_ns", "in the background"}, {"alloc_ns", "allocation"}}},
};

int bench_scrub(int argc, char **argv)
{
    struct options o = {.b.repeat = 9};
    struct bench_out *out;
    bool ok;

    if (!parse(argc, argv, &o))
        return usage();
    out = bench_out_new("scrub");
    if (!out)
        return 1;
    bench_put_str(&out->conditions, "what", o.policies ? "policies" : "sizes");
    bench_put_u64(&out->conditions, "repeat", o.b.repeat);
    bench_put_str(&out->conditions, "clock", "thread-cpu");
    ok = o.policies ? run_policies(out, &o) : run_sizes(out, &o);
    if (ok)
        bench_out_print(out, o.b.json);
    else
        bench_error("scrub", "memory could not be had");
    if (ok && o.b.svg)
        ok = svg_write(o.b.svg, out, &plots[o.policies]);
    free(out);
    return ok ? 0 : 1;
}
