/*
 * Sequences of heap and second-stage calls with any arguments: after each sequence every frame is
 * free again and counted once; no call damages what another owner holds.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hv/host/arena.h"
#include "hv/mm/teardown.h"

#define FRAMES     8192u
#define HELD       32u
#define VM         OWNER_VM(1)
#define OTHER      OWNER_VM(2)
#define STRATEGIES 7u
#define ALLOCATORS 4u

static const char *const allocators[ALLOCATORS] = {"buddy-page", "buddy-chunk", "buddy-lazy",
                                                   "bitmap"};
static const char *const strategies[STRATEGIES] = {"scan",    "skip",     "present", "single",
                                                   "tracked", "deferred", "arena"};

struct op {
    uint8_t what, a;
    uint16_t b;
};

struct held {
    mfn_t m;
    unsigned order;
    bool used;
};

static struct host_arena arena;
static struct heap *heap;
static const struct mf_allocator_ops *alloc_ops[ALLOCATORS];
static const struct mf_teardown_ops *zap_ops[STRATEGIES];
static struct teardown zap;

static const struct mf_plugin *load(const char *kind, const char *name)
{
    const struct mf_plugin *p;
    char path[512];
    void *so;

    snprintf(path, sizeof path, "%s/%s_%s.so", FUZZ_PLUGINS, kind, name);
    so = dlopen(path, RTLD_NOW);
    FUZZ_ASSERT(so);
    p = dlsym(so, MF_PLUGIN_SYMBOL);
    FUZZ_ASSERT(p);
    return p;
}

static void no_log(void *arg, enum mm_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

static void start(void)
{
    enum mf_status st;

    FUZZ_ASSERT(host_arena_init(&arena, FRAMES * FRAME_SIZE, NULL) == MF_OK);
    arena.env.log = no_log; /* refused frees are what this is about */
    heap = heap_create(&arena.env, &arena.mm, 2, &st);
    FUZZ_ASSERT(heap);
    for (unsigned i = 0; i < ALLOCATORS; i++)
        alloc_ops[i] = load("allocator", allocators[i])->ops.allocator;
    for (unsigned i = 0; i < STRATEGIES; i++)
        zap_ops[i] = load("teardown", strategies[i])->ops.teardown;
    FUZZ_ASSERT(heap_select(heap, allocators[0], alloc_ops[0], NULL, NULL) == MF_OK);
}

static void run_zap(struct stage2 *s2)
{
    enum mf_status st;

    while ((st = teardown_step(&zap, 100)) == MF_AGAIN || st == MF_BLOCKED)
        stage2_reap(s2, 1000);
    FUZZ_ASSERT(st == MF_OK);
    teardown_end(&zap);
}

static void audit(uint64_t used)
{
    struct heap_audit a = {0};

    while (heap_audit_step(heap, &a, FRAMES) == MF_AGAIN)
        ;
    FUZZ_ASSERT(!a.overlaps && !a.bad_records && !a.lost && !a.listed_in_use);
    FUZZ_ASSERT(a.used_ram + a.used_table + a.used_core == used);
}

static void heap_op(const struct op *o, struct held *held)
{
    struct held *h = &held[o->a % HELD];
    enum mf_status st;

    switch (o->what % 4) {
    case 0:
        if (h->used)
            break;
        h->order = o->b % 21;
        h->used =
            heap_alloc(heap, o->b, h->order, OTHER, 1 + (o->b >> 8) % 3, HEAP_ZERO, &h->m) == MF_OK;
        FUZZ_ASSERT(!h->used || h->order <= ORDER_MAX);
        if (h->used)
            *(uint64_t *)heap_ptr(heap, h->m) = 0xdead;
        break;
    case 1:
        if (h->used)
            FUZZ_ASSERT(heap_free(heap, o->b, h->m, h->order, OTHER) == MF_OK);
        h->used = false;
        break;
    case 2: /* of whoever: only a block of OTHER can go, and then it is one of ours */
        st = heap_free(heap, 0, mfn(o->b % (FRAMES + 10)), o->a % 20, OTHER);
        for (unsigned i = 0; st == MF_OK && i < HELD; i++)
            if (held[i].used && held[i].m.v == o->b % (FRAMES + 10)) {
                FUZZ_ASSERT(held[i].order == o->a % 20);
                held[i].used = false;
                st = MF_E_NOT_FOUND;
            }
        FUZZ_ASSERT(st != MF_OK);
        break;
    default:
        if (o->a % 16 == 0)
            FUZZ_ASSERT(heap_select(heap, allocators[o->b % ALLOCATORS],
                                    alloc_ops[o->b % ALLOCATORS], NULL, NULL) == MF_OK);
        else
            heap_scrub_step(heap, o->b % 100);
    }
}

static void map_op(const struct op *o, struct stage2 *s2)
{
    struct s2_map map;
    mfn_t m;
    unsigned order = o->a & 1 ? 9 : 0;

    if (heap_alloc(heap, 0, order, VM, FRAME_T_RAM, HEAP_ZERO, &m) != MF_OK)
        return;
    if (stage2_map_prepare(s2, o->a >> 1 & 1, gfn((uint64_t)o->b * 37), m, order, o->a >> 4,
                           &map) != MF_OK ||
        stage2_map_commit(&map) != MF_OK)
        FUZZ_ASSERT(heap_free(heap, 0, m, order, VM) == MF_OK);
}

static void stage2_op(const struct op *o, struct stage2 *s2)
{
    uint64_t g = (uint64_t)o->b * 37, epoch, bits[4], value = 1;
    struct s2_leaf leaf;

    switch (o->what % 9) {
    case 0:
    case 1:
        if (stage2_fault(s2, o->a % 3, gfn(g), o->a >> 2, &leaf) == MF_OK)
            FUZZ_ASSERT(leaf.mfn.v < FRAMES &&
                        heap_frame(heap, mfn(leaf.mfn.v >> leaf.order << leaf.order))->owner == VM);
        break;
    case 2:
        map_op(o, s2);
        break;
    case 3:
        if (teardown_begin_range(&zap, s2, zap_ops[o->a % STRATEGIES], o->a >> 4 & 1,
                                 (o->a >> 4 & 1) + 1, gfn(g),
                                 gfn(g + (uint64_t)o->a * 97)) == MF_OK)
            run_zap(s2);
        break;
    case 4:
        stage2_split(s2, o->a & 1, gfn(g));
        break;
    case 5:
        stage2_merge(s2, o->a & 1, gfn(g));
        break;
    case 6:
        stage2_dirty_fetch(s2, o->a & 1, gfn(g), o->a, bits, &epoch);
        stage2_protect(s2, o->a & 1, gfn(g), o->a, o->a & 7, &epoch);
        break;
    case 7:
        stage2_write(s2, gpa(g << FRAME_SHIFT | o->a), &value, sizeof value);
        stage2_reap(s2, o->a);
        break;
    default:
        if (o->a & 2)
            stage2_set_arena(s2, o->a & 1);
        else if (o->a & 1)
            stage2_track_step(s2, o->a);
        else
            stage2_untrack(s2);
    }
}

static void finish(struct stage2 *s2, struct held *held, unsigned strategy)
{
    uint64_t used = 0;
    struct s2_info info;

    for (unsigned i = 0; i < HELD; i++)
        used += held[i].used ? UINT64_C(1) << held[i].order : 0;
    stage2_get_info(s2, &info);
    audit(used + 1 + info.frames_ram + info.frames_table + info.retired + info.spare);
    stage2_close(s2);
    FUZZ_ASSERT(teardown_begin_whole(&zap, s2, zap_ops[strategy]) == MF_OK);
    run_zap(s2);
    FUZZ_ASSERT(stage2_reap(s2, UINT64_MAX) == MF_OK);
    FUZZ_ASSERT(stage2_destroy(s2) == MF_OK);
    for (unsigned i = 0; i < HELD; i++)
        if (held[i].used) {
            FUZZ_ASSERT(*(uint64_t *)heap_ptr(heap, held[i].m) == 0xdead);
            FUZZ_ASSERT(heap_free(heap, 0, held[i].m, held[i].order, OTHER) == MF_OK);
        }
    audit(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct held held[HELD] = {0};
    struct s2_config c = {.owner = VM,
                          .roots = 2,
                          .nr_regions = 2,
                          .regions = {{{0}, 70000}, {{100000}, 1u << 21}},
                          .fault_order = size & 1 ? ORDER_2M : ORDER_4K};
    struct stage2 *s2;
    struct op o;

    if (!heap)
        start();
    FUZZ_ASSERT(stage2_create(heap, &c, &s2) == MF_OK);
    for (size_t at = 0; at + sizeof o <= size; at += sizeof o) {
        memcpy(&o, data + at, sizeof o);
        if (o.what & 0x80)
            heap_op(&o, held);
        else
            stage2_op(&o, s2);
    }
    finish(s2, held, (unsigned)(size / 2 % STRATEGIES));
    return 0;
}

/* Seeds: random sequences, one of the heap, one of the second stage, one of both. */
size_t fuzz_seed(unsigned i, uint8_t *buf)
{
    static const size_t sizes[] = {257, 320, 512, 641, 1024};
    uint64_t s = 88172645463325252u + i;

    if (i >= sizeof sizes / sizeof sizes[0])
        return 0;
    for (size_t k = 0; k < sizes[i]; k++) {
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        buf[k] = (uint8_t)(s >> 24);
        if (k % 4 == 0 && i < 2)
            buf[k] = (uint8_t)(i ? buf[k] & 0x7f : buf[k] | 0x80);
    }
    return sizes[i];
}
