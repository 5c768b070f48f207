/*
 * Second stage: maps, faults, copies, bitmaps; and random use of all of it against a model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define OWNER OWNER_VM(7)
#define RWX   (S2_READ | S2_WRITE | S2_EXEC)

static struct stage2 *make(struct mm_testenv *e, unsigned roots, bool track, unsigned fault_order,
                           uint64_t frames)
{
    struct s2_config c = {.owner = OWNER,
                          .roots = roots,
                          .track = track,
                          .nr_regions = 2,
                          .regions = {{{0}, frames}, {{UINT64_C(1) << 20}, frames}},
                          .fault_order = fault_order};
    struct stage2 *s2;

    assert_int_equal(stage2_create(e->heap, &c, &s2), MF_OK);
    return s2;
}

static void setup(struct mm_testenv *e, uint64_t frames)
{
    mm_testenv_init(e, frames, 2);
    mm_testenv_select(e, "buddy-lazy");
}

static void finish(struct mm_testenv *e, struct stage2 *s2, const char *strategy)
{
    mm_test_end_stage2(s2, mm_test_teardown(strategy));
    mm_testenv_audit(e, 0);
    mm_testenv_fini(e);
}

/* Wrong configurations, each refused with nothing left behind. */
static void test_config(void **state)
{
    const struct s2_config good = {
        .owner = OWNER, .roots = 1, .nr_regions = 1, .regions = {{{0}, 16}}};
    struct s2_config c;
    struct mm_testenv e;
    struct stage2 *s2;

    (void)state;
    setup(&e, 64);
    c = good, c.roots = 0;
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_RANGE);
    c = good, c.roots = 5;
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_RANGE);
    c = good, c.nr_regions = 5;
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_RANGE);
    c = good, c.fault_order = 3;
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_RANGE);
    c = good, c.regions[0].frames = 0;
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_RANGE);
    c = good, c.regions[0].first = gfn(S2_GFN_END - 15);
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_RANGE);
    c = good, c.regions[0].frames = UINT64_MAX;
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_RANGE);
    c = good, c.nr_regions = 2, c.regions[1] = (struct s2_region){{15}, 4};
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_RANGE);
    mm_testenv_audit(&e, 0);
    assert_int_equal(heap_owner_begin(e.heap, OWNER, 2), MF_OK);
    c = good, c.roots = 4;
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_E_QUOTA);
    mm_testenv_audit(&e, 0);
    assert_int_equal(stage2_create(e.heap, &good, &s2), MF_OK);
    mm_testenv_audit(&e, 2);
    assert_int_equal(stage2_destroy(s2), MF_OK);
    assert_int_equal(stage2_destroy(NULL), MF_OK);
    assert_int_equal(heap_owner_end(e.heap, OWNER), 0);
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* Demand faults: zeroed, inside regions only, accessed and dirty as the access was. */
static void test_fault(void **state)
{
    struct s2_leaf leaf, again;
    struct mm_testenv e;
    struct stage2 *s2;
    struct s2_info info;
    struct s2_walk w;

    (void)state;
    setup(&e, 1024);
    s2 = make(&e, 1, false, ORDER_4K, 100);
    assert_int_equal(stage2_lookup(s2, 0, gfn(5), S2_READ, &leaf), MF_E_NOT_FOUND);
    assert_int_equal(stage2_fault(s2, 0, gfn(5), S2_READ, &leaf), MF_OK);
    assert_int_equal(leaf.order, 0);
    assert_int_equal(leaf.access, RWX);
    assert_int_equal(*(uint64_t *)heap_ptr(e.heap, leaf.mfn), 0);
    s2_walk(s2, 0, 5, 1, &w);
    assert_int_equal(w.pte & (MF_PTE_ACCESSED | MF_PTE_DIRTY), MF_PTE_ACCESSED);
    assert_int_equal(stage2_lookup(s2, 0, gfn(5), S2_WRITE, &again), MF_OK);
    assert_int_equal(again.mfn.v, leaf.mfn.v);
    s2_walk(s2, 0, 5, 1, &w);
    assert_true(w.pte & MF_PTE_DIRTY);
    assert_int_equal(heap_frame(e.heap, leaf.mfn)->u.ram.gfn, 5);
    assert_int_equal(stage2_fault(s2, 0, gfn(100), S2_READ, &leaf), MF_E_RANGE);
    assert_int_equal(stage2_fault(s2, 0, gfn((1u << 20) + 99), S2_READ, &leaf), MF_OK);
    assert_int_equal(stage2_fault(s2, 0, gfn((1u << 20) + 100), S2_READ, &leaf), MF_E_RANGE);
    assert_int_equal(stage2_fault(s2, 0, gfn(S2_GFN_END), S2_READ, &leaf), MF_E_RANGE);
    assert_int_equal(stage2_fault(s2, 0, gfn(UINT64_MAX), S2_READ, &leaf), MF_E_RANGE);
    assert_int_equal(stage2_fault(s2, 1, gfn(0), S2_READ, &leaf), MF_E_RANGE);
    assert_int_equal(stage2_lookup(s2, 0, gfn(S2_GFN_END), S2_READ, &leaf), MF_E_NOT_FOUND);
    stage2_get_info(s2, &info);
    assert_int_equal(info.faults, 2);
    assert_int_equal(info.frames_ram, 2);
    assert_int_equal(info.leaves[0], 2);
    assert_int_equal(info.frames_table, 1 + 1 + 2 * 2);
    finish(&e, s2, "single");
}

/* Memory runs out at each possible point of a fault: nothing is left half done, a retry works. */
static void test_fault_without_memory(void **state)
{
    (void)state;
    for (uint64_t limit = 2; limit < 6; limit++) {
        struct mm_testenv e;
        struct s2_leaf leaf;
        struct stage2 *s2;

        setup(&e, 256);
        assert_int_equal(heap_owner_begin(e.heap, OWNER, limit), MF_OK);
        s2 = make(&e, 1, true, ORDER_4K, 100);
        assert_int_equal(stage2_fault(s2, 0, gfn(5), S2_READ, &leaf), MF_E_QUOTA);
        assert_int_equal(stage2_lookup(s2, 0, gfn(5), S2_READ, &leaf), MF_E_NOT_FOUND);
        mm_testenv_audit(&e, 2);
        assert_int_equal(heap_owner_end(e.heap, OWNER), 2);
        assert_int_equal(stage2_fault(s2, 0, gfn(5), S2_READ, &leaf), MF_OK);
        mm_testenv_audit(&e, 6);
        finish(&e, s2, "tracked");
    }
}

/* Large faults where range and alignment allow, single frames elsewhere. */
static void test_large_fault(void **state)
{
    struct mm_testenv e;
    struct s2_leaf leaf;
    struct stage2 *s2;
    struct s2_info info;

    (void)state;
    setup(&e, 4096);
    s2 = make(&e, 2, true, ORDER_2M, 1200);
    assert_int_equal(stage2_fault(s2, 0, gfn(513), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(leaf.order, ORDER_2M);
    assert_int_equal(leaf.mfn.v % 512, 1);
    assert_int_equal(stage2_lookup(s2, 0, gfn(1023), S2_READ, &leaf), MF_OK);
    assert_int_equal(stage2_fault(s2, 0, gfn(1100), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(leaf.order, 0); /* the region ends inside these 2 MiB */
    assert_int_equal(stage2_fault(s2, 1, gfn(600), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(leaf.order, ORDER_2M); /* the same block in the other root */
    stage2_get_info(s2, &info);
    assert_int_equal(info.frames_ram, 513);
    assert_int_equal(info.leaves[1], 2);
    finish(&e, s2, "skip");
}

/* Two roots show the same RAM; a frame goes back only when the last map of it is gone. */
static void test_roots_share_frames(void **state)
{
    struct mm_testenv e;
    struct s2_leaf a, b;
    struct stage2 *s2;
    struct teardown t;
    enum mf_status st;

    (void)state;
    setup(&e, 1024);
    s2 = make(&e, 2, false, ORDER_4K, 100);
    assert_int_equal(stage2_fault(s2, 1, gfn(3), S2_WRITE, &b), MF_OK);
    assert_int_equal(stage2_lookup(s2, 0, gfn(3), S2_WRITE, &a), MF_OK);
    assert_int_equal(a.mfn.v, b.mfn.v);
    assert_int_equal(heap_frame(e.heap, a.mfn)->u.ram.maps, 2);
    assert_int_equal(teardown_begin_range(&t, s2, mm_test_teardown("single"), 0, 1, gfn(3), gfn(3)),
                     MF_OK);
    while ((st = teardown_step(&t, 10)) == MF_AGAIN)
        ;
    assert_int_equal(st, MF_OK);
    teardown_end(&t);
    assert_int_equal(stage2_reap(s2, 100), MF_OK);
    assert_int_equal(stage2_lookup(s2, 0, gfn(3), S2_READ, &a), MF_E_NOT_FOUND);
    assert_int_equal(stage2_lookup(s2, 1, gfn(3), S2_READ, &b), MF_OK);
    assert_int_equal(heap_frame(e.heap, b.mfn)->u.ram.maps, 1);
    finish(&e, s2, "scan");
}

/* Map by hand: ranges, alignment, ownership, occupation; abandon gives everything back. */
static void test_map(void **state)
{
    struct mm_testenv e;
    struct s2_leaf leaf;
    struct s2_map map, map2;
    struct stage2 *s2;
    mfn_t m, big, other;

    (void)state;
    setup(&e, 4096);
    s2 = make(&e, 1, true, ORDER_4K, 100);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 9, OWNER, FRAME_T_RAM, 0, &big), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER + 1, FRAME_T_RAM, 0, &other), MF_OK);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(1), big, 9, RWX, &map), MF_E_RANGE);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(512), big, 8, RWX, &map), MF_E_RANGE);
    assert_int_equal(stage2_map_prepare(s2, 2, gfn(512), big, 9, RWX, &map), MF_E_RANGE);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(512), big, 9, S2_WRITE, &map), MF_E_RANGE);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(512), big, 9, 0x80 | S2_READ, &map), MF_E_RANGE);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(S2_GFN_END), m, 0, RWX, &map), MF_E_RANGE);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(0), mfn(4096), 0, RWX, &map), MF_E_RANGE);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(0), other, 0, RWX, &map), MF_E_WRONG_OWNER);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(0), s2->root[0], 0, RWX, &map),
                     MF_E_WRONG_OWNER);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(0), big, 0, RWX, &map), MF_E_WRONG_ORDER);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(0), mfn(big.v + 1), 0, RWX, &map),
                     MF_E_WRONG_OWNER);
    mm_testenv_audit(&e, 2 + 1 + 512 + 1);

    assert_int_equal(stage2_map_prepare(s2, 0, gfn(512), big, 9, S2_READ, &map), MF_OK);
    mm_testenv_audit(&e, 2 + 1 + 512 + 1 + 2);
    stage2_map_abandon(&map);
    mm_testenv_audit(&e, 2 + 1 + 512 + 1);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(512), big, 9, S2_READ, &map), MF_OK);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(600), m, 0, RWX, &map2), MF_OK);
    assert_int_equal(stage2_map_commit(&map), MF_OK);
    assert_int_equal(stage2_map_commit(&map2), MF_E_EXISTS); /* the race is lost cleanly */
    assert_int_equal(stage2_lookup(s2, 0, gfn(600), S2_WRITE, &leaf), MF_E_PERM);
    assert_int_equal(stage2_lookup(s2, 0, gfn(600), S2_EXEC, &leaf), MF_E_PERM);
    assert_int_equal(stage2_lookup(s2, 0, gfn(600), S2_READ, &leaf), MF_OK);
    assert_int_equal(leaf.mfn.v, big.v + 88);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(700), m, 0, RWX, &map2), MF_E_EXISTS);
    assert_int_equal(heap_free(e.heap, 0, m, 0, OWNER), MF_OK);
    assert_int_equal(heap_free(e.heap, 0, other, 0, OWNER + 1), MF_OK);
    finish(&e, s2, "tracked");
}

/* A teardown takes a table away between prepare and commit: the commit makes do. */
static void test_commit_after_teardown(void **state)
{
    struct mm_testenv e;
    struct s2_leaf leaf;
    struct s2_map map;
    struct stage2 *s2;
    struct teardown t;
    mfn_t m;

    (void)state;
    setup(&e, 1024);
    s2 = make(&e, 1, true, ORDER_4K, 100);
    assert_int_equal(stage2_fault(s2, 0, gfn(1), S2_READ, &leaf), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(2), m, 0, RWX, &map), MF_OK);
    assert_int_equal(map.spare_count, 0);
    assert_int_equal(teardown_begin_whole(&t, s2, mm_test_teardown("tracked")), MF_OK);
    assert_int_equal(teardown_step(&t, 1000), MF_OK);
    teardown_end(&t);
    assert_int_equal(stage2_map_commit(&map), MF_OK);
    assert_int_equal(stage2_lookup(s2, 0, gfn(2), S2_READ, &leaf), MF_OK);
    assert_int_equal(leaf.mfn.v, m.v);
    finish(&e, s2, "tracked");
}

/* Copies: over frame borders, at region ends, overflow; nothing is copied when a part is outside.
 */
static void test_copy(void **state)
{
    uint8_t in[9000], out[9000], zero[9000] = {0};
    uint64_t end = 100 << 12;
    struct mm_testenv e;
    struct stage2 *s2;
    struct s2_info info;

    (void)state;
    setup(&e, 1024);
    s2 = make(&e, 1, false, ORDER_4K, 100);
    for (unsigned i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)(i * 7 + 1);
    assert_int_equal(stage2_read(s2, gpa(100), out, sizeof out), MF_OK);
    assert_memory_equal(out, zero, sizeof out);
    stage2_get_info(s2, &info);
    assert_int_equal(info.frames_ram, 0); /* reading makes nothing */
    assert_int_equal(stage2_write(s2, gpa(4000), in, sizeof in), MF_OK);
    assert_int_equal(stage2_read(s2, gpa(4000), out, sizeof out), MF_OK);
    assert_memory_equal(out, in, sizeof in);
    stage2_get_info(s2, &info);
    assert_int_equal(info.frames_ram, 4);
    assert_int_equal(stage2_fill(s2, gpa(4001), 0xee, 5000), MF_OK);
    assert_int_equal(stage2_read(s2, gpa(4000), out, sizeof out), MF_OK);
    assert_int_equal(out[0], in[0]);
    assert_int_equal(out[1], 0xee);
    assert_int_equal(out[5000], 0xee);
    assert_int_equal(out[5001], in[5001]);

    assert_int_equal(stage2_write(s2, gpa(end - 8), in, 9), MF_E_RANGE);
    assert_int_equal(stage2_read(s2, gpa(end - 8), out, 8), MF_OK);
    assert_memory_equal(out, zero, 8); /* not even the part inside */
    assert_int_equal(stage2_write(s2, gpa(end - 8), in, 8), MF_OK);
    assert_int_equal(stage2_write(s2, gpa(UINT64_MAX - 3), in, 8), MF_E_RANGE);
    assert_int_equal(stage2_read(s2, gpa(8), out, UINT64_MAX), MF_E_RANGE);
    assert_int_equal(stage2_check(s2, gpa(0), 0), MF_OK);
    assert_int_equal(stage2_check(s2, gpa(end), 0), MF_E_RANGE);
    assert_int_equal(stage2_check(s2, gpa(0), end), MF_OK);
    assert_int_equal(stage2_check(s2, gpa(1), end), MF_E_RANGE);
    assert_int_equal(stage2_check(s2, gpa(UINT64_C(1) << 32), end), MF_OK);
    assert_int_equal(stage2_write(s2, gpa(0), in, 0), MF_OK);
    stage2_close(s2);
    assert_int_equal(stage2_write(s2, gpa(4000), in, 10), MF_OK);
    assert_int_equal(stage2_write(s2, gpa(20u << 12), in, 10), MF_E_STATE);
    finish(&e, s2, "single");
}

static void check_bitmaps(struct stage2 *s2, mfn_t tab, unsigned level)
{
    s2_pte *p = s2_table(s2, tab);
    union s2_tab_word w = {.v = frame_word_load(heap_rec(s2->heap, tab))};
    unsigned n = 0, sum = 0;

    for (unsigned i = 0; i < MF_PT_ENTRIES; i++) {
        uint64_t pte = atomic_load(&p[i]);
        bool used =
            w.t.kept ? heap_track(s2->heap, tab)[i / 64] >> i % 64 & 1 : w.t.count && w.t.sum == i;

        n += pte != 0;
        sum ^= pte ? i : 0;
        if (s2->track == S2_TRACK_ON)
            assert_int_equal(used, pte != 0);
        if (pte && !s2_is_leaf(pte, level))
            check_bitmaps(s2, s2_target(pte), level - 1);
    }
    assert_int_equal(w.t.count, n);
    assert_int_equal(w.t.sum, sum);
    if (s2->track == S2_TRACK_ON)
        assert_true(w.t.kept || n <= 1);
}

/* Bitmaps switched on while the VM lives, in steps, with maps between the steps. */
static void test_track_steps(void **state)
{
    struct mm_testenv e;
    struct s2_leaf leaf;
    struct stage2 *s2;
    uint64_t seed = 5;
    unsigned steps = 0;

    (void)state;
    setup(&e, 16384);
    s2 = make(&e, 2, false, ORDER_4K, 1u << 19);
    for (unsigned i = 0; i < 1000; i++)
        assert_int_equal(
            stage2_fault(s2, i & 1, gfn(mm_test_random(&seed) & 0x7ffff), S2_READ, &leaf), MF_OK);
    while (stage2_track_step(s2, 40) == MF_AGAIN) {
        if (steps++ < 500)
            assert_int_equal(
                stage2_fault(s2, steps & 1, gfn(mm_test_random(&seed) & 0x7ffff), S2_READ, &leaf),
                MF_OK);
    }
    assert_true(steps > 100);
    for (unsigned r = 0; r < 2; r++)
        check_bitmaps(s2, s2->root[r], S2_LEVELS);
    stage2_untrack(s2);
    assert_int_equal(stage2_fault(s2, 0, gfn(77), S2_READ, &leaf), MF_OK);
    finish(&e, s2, "tracked"); /* builds them anew, from stale ones */
}

/* Viewers: a limit, and removal in any order. */
static void test_viewer_limit(void **state)
{
    static struct s2_viewer v[S2_VIEWERS_MAX + 1];
    struct mm_testenv e;
    struct stage2 *s2;

    (void)state;
    setup(&e, 64);
    s2 = make(&e, 1, false, ORDER_4K, 16);
    for (unsigned i = 0; i < S2_VIEWERS_MAX; i++)
        assert_int_equal(s2_viewer_add(s2, &v[i]), MF_OK);
    assert_int_equal(s2_viewer_add(s2, &v[S2_VIEWERS_MAX]), MF_E_LIMIT);
    for (unsigned i = 0; i < S2_VIEWERS_MAX; i++)
        s2_viewer_remove(&v[i * 13 % S2_VIEWERS_MAX]);
    assert_int_equal(s2->nr_viewers, 0);
    assert_int_equal(s2_viewer_add(s2, &v[S2_VIEWERS_MAX]), MF_OK);
    finish(&e, s2, "single");
}

/* ---- against a model */

#define MODEL_GFNS 6000u

struct model {
    struct mm_testenv e;
    struct stage2 *s2;
    struct teardown t;
    bool busy;
    uint64_t first, last; /* of the teardown under way */
    bool inside;
    struct s2_viewer v;
    uint64_t stamp[MODEL_GFNS]; /* what the guest wrote; 0: nothing yet */
    uint64_t seed;
};

static const char *const strategies[] = {"scan", "skip", "present", "single", "tracked"};

/* Model gfns are spread so that every level of table is used. */
static uint64_t spread(unsigned i)
{
    return (i & 15) + (uint64_t)(i >> 4 & 15) * 509 + (uint64_t)(i >> 8) * 262139;
}

static void model_touch(struct model *m, unsigned i)
{
    struct s2_leaf leaf;
    uint64_t *p;

    assert_int_equal(stage2_fault(m->s2, 0, gfn(spread(i)), S2_WRITE, &leaf), MF_OK);
    p = heap_ptr(m->e.heap, leaf.mfn);
    if (m->busy && spread(i) >= m->first && spread(i) <= m->last) {
        m->stamp[i] = 0; /* may go at any moment from here on */
        return;
    }
    assert_int_equal(*p, m->stamp[i]);
    *p = m->stamp[i] = mm_test_random(&m->seed) | 1;
}

static void model_begin(struct model *m)
{
    uint64_t a = spread((unsigned)(mm_test_random(&m->seed) % MODEL_GFNS));
    uint64_t b = spread((unsigned)(mm_test_random(&m->seed) % MODEL_GFNS));
    const char *name =
        strategies[mm_test_random(&m->seed) % (sizeof strategies / sizeof strategies[0])];

    m->first = a < b ? a : b;
    m->last = a < b ? b : a;
    if (mm_test_random(&m->seed) % 20 == 0) {
        m->first = 0;
        m->last = S2_GFN_END - 1;
    }
    assert_int_equal(teardown_begin_range(&m->t, m->s2, mm_test_teardown(name), 0, 1, gfn(m->first),
                                          gfn(m->last)),
                     MF_OK);
    m->busy = true;
    for (unsigned i = 0; i < MODEL_GFNS; i++)
        if (spread(i) >= m->first && spread(i) <= m->last)
            m->stamp[i] = 0;
}

static void model_step(struct model *m)
{
    enum mf_status st = teardown_step(&m->t, 1 + (uint32_t)(mm_test_random(&m->seed) % 300));

    if (st == MF_AGAIN)
        return;
    assert_int_equal(st, MF_OK);
    assert_int_equal(m->t.report.entries_removed,
                     m->t.report.leaves_removed + m->t.report.tables_freed);
    teardown_end(&m->t);
    m->busy = false;
    /* What was written into the range while it went may still be there: it is taken again. */
    assert_int_equal(teardown_begin_range(&m->t, m->s2, mm_test_teardown("single"), 0, 1,
                                          gfn(m->first), gfn(m->last)),
                     MF_OK);
    while ((st = teardown_step(&m->t, 500)) == MF_AGAIN)
        ;
    assert_int_equal(st, MF_OK);
    teardown_end(&m->t);
}

static void model_check(struct model *m)
{
    struct s2_info info;
    struct s2_leaf leaf;
    uint64_t ram = 0;

    for (unsigned i = 0; i < MODEL_GFNS; i++) {
        if (m->busy && spread(i) >= m->first && spread(i) <= m->last)
            continue;
        if (!m->stamp[i]) {
            assert_int_equal(stage2_lookup(m->s2, 0, gfn(spread(i)), S2_READ, &leaf),
                             MF_E_NOT_FOUND);
            continue;
        }
        ram++;
        assert_int_equal(stage2_lookup(m->s2, 0, gfn(spread(i)), S2_READ, &leaf), MF_OK);
        assert_int_equal(*(uint64_t *)heap_ptr(m->e.heap, leaf.mfn), m->stamp[i]);
    }
    stage2_get_info(m->s2, &info);
    if (!m->busy)
        assert_int_equal(info.frames_ram, ram);
    check_bitmaps(m->s2, m->s2->root[0], S2_LEVELS);
    /* The object itself, RAM, tables, what waits: every frame is accounted for. */
    mm_testenv_audit(&m->e, 1 + info.frames_ram + info.frames_table + info.retired);
}

static void model_viewer(struct model *m, uint64_t r)
{
    if (!m->inside)
        s2_viewer_enter(&m->v);
    else if (r & 1)
        s2_viewer_leave(&m->v);
    else if (s2_viewer_stale(&m->v))
        s2_viewer_ack(&m->v);
    if (!m->inside || r & 1)
        m->inside = !m->inside;
}

/* Random maps, faults, range teardowns by all strategies at random budgets: nothing is lost. */
static void test_random_against_model(void **state)
{
    struct model *m = calloc(1, sizeof *m);

    (void)state;
    assert_non_null(m);
    setup(&m->e, 24000);
    m->s2 = make(&m->e, 1, false, ORDER_4K, UINT64_C(1) << 20);
    m->s2->regions[0].frames = UINT64_C(1) << 24;
    m->s2->nr_regions = 1;
    m->seed = 4711;
    assert_int_equal(s2_viewer_add(m->s2, &m->v), MF_OK);
    for (unsigned i = 0; i < 60000; i++) {
        uint64_t r = mm_test_random(&m->seed);

        if (r % 16 < 10)
            model_touch(m, (unsigned)(r >> 8) % MODEL_GFNS);
        else if (r % 16 == 10)
            model_viewer(m, r >> 8);
        else if (r % 16 == 11)
            stage2_reap(m->s2, (r >> 8) % 50);
        else if (m->busy)
            model_step(m);
        else if (r % 16 == 12)
            model_begin(m);
        else if (r >> 8 & 1)
            stage2_track_step(m->s2, 100);
        else if ((r >> 9) % 50 == 0)
            stage2_untrack(m->s2);
        if (i % 3000 == 0)
            model_check(m);
    }
    while (m->busy)
        model_step(m);
    if (m->inside)
        s2_viewer_leave(&m->v);
    model_check(m);
    s2_viewer_remove(&m->v);
    finish(&m->e, m->s2, "tracked");
    free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_fault),
        cmocka_unit_test(test_fault_without_memory),
        cmocka_unit_test(test_large_fault),
        cmocka_unit_test(test_roots_share_frames),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_commit_after_teardown),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_track_steps),
        cmocka_unit_test(test_viewer_limit),
        cmocka_unit_test(test_random_against_model),
    };

    return cmocka_run_group_tests_name("stage2", tests, NULL, NULL);
}
