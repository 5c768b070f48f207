/*
 * Teardown strategies and their driver.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define OWNER OWNER_VM(1)

static const char *const strategies[] = {"scan",    "skip",     "present", "single",
                                         "tracked", "deferred", "arena"};
#define STRATEGIES (sizeof strategies / sizeof strategies[0])

static struct stage2 *make(struct mm_testenv *e, unsigned roots, bool track, unsigned fault_order)
{
    struct s2_config c = {.owner = OWNER,
                          .roots = roots,
                          .track = track,
                          .nr_regions = 1,
                          .regions = {{{0}, UINT64_C(1) << 24}},
                          .fault_order = fault_order};
    struct stage2 *s2;

    assert_int_equal(stage2_create(e->heap, &c, &s2), MF_OK);
    return s2;
}

static void setup(struct mm_testenv *e, uint64_t frames)
{
    mm_testenv_init(e, frames, 1);
    mm_testenv_select(e, "buddy-lazy");
}

static enum mf_status run(struct teardown *t, struct stage2 *s2, uint32_t budget)
{
    enum mf_status st;

    while ((st = teardown_step(t, budget)) == MF_AGAIN || st == MF_BLOCKED)
        stage2_reap(s2, 256);
    return st;
}

struct expected {
    const char *name;
    uint64_t loops, root0[4], root1[4];
};

static const struct expected expected[] = {
    {"scan", 9216, {3584, 2048, 1024, 512}, {512, 512, 512, 512}},
    {"skip", 303, {118, 69, 35, 17}, {16, 16, 16, 16}},
    {"present", 18, {8, 6, 3, 1}, {0}},
    {"single", 8, {0}, {0}},
    {"tracked", 8, {0}, {0}},
    {"deferred", 8, {0}, {0}},
    {"arena", 8, {0}, {0}},
};

static void check_reference(const struct expected *x, uint32_t budget, bool track)
{
    struct mm_testenv e;
    struct teardown t;
    struct s2_info info;
    struct stage2 *s2;

    setup(&e, 4096);
    s2 = make(&e, 2, track, ORDER_4K);
    mm_test_reference_tree(s2);
    stage2_close(s2);
    assert_int_equal(teardown_begin_whole(&t, s2, mm_test_teardown(x->name)), MF_OK);
    assert_int_equal(run(&t, s2, budget), MF_OK);
    assert_int_equal(t.report.loops, x->loops);
    assert_memory_equal(t.report.loops_per_pass_by_root[0], x->root0, sizeof x->root0);
    assert_memory_equal(t.report.loops_per_pass_by_root[1], x->root1, sizeof x->root1);
    assert_int_equal(t.report.entries_removed, 8);
    assert_int_equal(t.report.leaves_removed, 2);
    assert_int_equal(t.report.tables_freed, 6);
    teardown_end(&t);
    assert_int_equal(stage2_reap(s2, 100), MF_OK);
    stage2_get_info(s2, &info);
    assert_int_equal(info.frames_table, 2);
    assert_int_equal(info.frames_ram, 0);
    assert_int_equal(stage2_destroy(s2), MF_OK);
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* The loop counts that the strategies are compared by, exact. */
static void test_reference_tree(void **state)
{
    (void)state;
    for (unsigned i = 0; i < STRATEGIES; i++) {
        check_reference(&expected[i], TEARDOWN_BUDGET, false);
        check_reference(&expected[i], TEARDOWN_BUDGET, true);
    }
}

/* After a yield: restart and advance, one entry never visited, a table leaked. */
static void test_restart_and_advance_after_a_yield(void **state)
{
    (void)state;
    for (unsigned i = 0; i < STRATEGIES; i++) {
        check_reference(&expected[i], 1, false);
        check_reference(&expected[i], 7, true);
    }
}

/* ---- ranges */

/* A chunk border inside a table freed the table. */
static void test_chunk_border_inside_a_table(void **state)
{
    (void)state;
    for (unsigned i = 0; i < STRATEGIES; i++) {
        struct mm_testenv e;
        struct s2_leaf leaf;
        struct stage2 *s2;
        struct teardown t;
        struct s2_info info;

        setup(&e, 8192);
        s2 = make(&e, 1, false, ORDER_4K);
        for (uint64_t g = 0; g < 2048; g++)
            assert_int_equal(stage2_fault(s2, 0, gfn(g), S2_WRITE, &leaf), MF_OK);
        /* From inside the first table to inside the third: only the second goes. */
        assert_int_equal(teardown_begin_range(&t, s2, mm_test_teardown(strategies[i]), 0, 1,
                                              gfn(100), gfn(1100)),
                         MF_OK);
        assert_int_equal(run(&t, s2, 5), MF_OK);
        assert_int_equal(t.report.leaves_removed, 1001);
        assert_int_equal(t.report.tables_freed, 1);
        teardown_end(&t);
        stage2_reap(s2, 5000);
        for (uint64_t g = 0; g < 2048; g++)
            assert_int_equal(stage2_lookup(s2, 0, gfn(g), S2_READ, &leaf),
                             g < 100 || g > 1100 ? MF_OK : MF_E_NOT_FOUND);
        stage2_get_info(s2, &info);
        assert_int_equal(info.frames_ram, 2048 - 1001);
        assert_int_equal(info.frames_table, 1 + 2 + 3);
        mm_test_end_stage2(s2, mm_test_teardown(strategies[i]));
        mm_testenv_audit(&e, 0);
        mm_testenv_fini(&e);
    }
}

/* A large leaf over the edge of a range is neither cut nor taken. */
static void test_range_through_leaf(void **state)
{
    struct mm_testenv e;
    struct s2_leaf leaf;
    struct stage2 *s2;
    struct teardown t;

    (void)state;
    setup(&e, 8192);
    s2 = make(&e, 1, false, ORDER_2M);
    assert_int_equal(stage2_fault(s2, 0, gfn(700), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(leaf.order, ORDER_2M);
    assert_int_equal(
        teardown_begin_range(&t, s2, mm_test_teardown("scan"), 0, 1, gfn(512), gfn(800)),
        MF_E_ALIGN);
    assert_int_equal(
        teardown_begin_range(&t, s2, mm_test_teardown("scan"), 0, 1, gfn(600), gfn(1023)),
        MF_E_ALIGN);
    assert_int_equal(
        teardown_begin_range(&t, s2, mm_test_teardown("scan"), 0, 1, gfn(512), gfn(1023)), MF_OK);
    assert_int_equal(run(&t, s2, 100), MF_OK);
    assert_int_equal(t.report.frames_retired, 512 + 2);
    teardown_end(&t);
    mm_test_end_stage2(s2, mm_test_teardown("single"));
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* Two teardowns of one second stage at a time would free under each other. */
static void test_one_at_a_time(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2;
    struct teardown a, b;

    (void)state;
    setup(&e, 1024);
    s2 = make(&e, 1, false, ORDER_4K);
    assert_int_equal(teardown_begin_whole(&a, s2, mm_test_teardown("skip")), MF_OK);
    assert_int_equal(teardown_begin_whole(&b, s2, mm_test_teardown("skip")), MF_E_BUSY);
    assert_int_equal(stage2_destroy(s2), MF_E_STATE);
    teardown_end(&a);
    assert_int_equal(teardown_begin_range(&b, s2, mm_test_teardown("skip"), 0, 2, gfn(0), gfn(1)),
                     MF_E_RANGE);
    assert_int_equal(teardown_begin_range(&b, s2, mm_test_teardown("skip"), 0, 1, gfn(2), gfn(1)),
                     MF_E_RANGE);
    assert_int_equal(teardown_step(&b, 1), MF_E_STATE);
    mm_test_end_stage2(s2, mm_test_teardown("skip"));
    mm_testenv_fini(&e);
}

/* ---- strategies that break the rules */

static int bad_begin(struct mf_zap *z, void *state)
{
    (void)z;
    (void)state;
    return MF_PL_OK;
}

static int claims_done(struct mf_zap *z, void *state, uint32_t budget)
{
    (void)z;
    (void)state;
    (void)budget;
    return MF_PL_OK;
}

static int never_moves(struct mf_zap *z, void *state, uint32_t budget)
{
    (void)state;
    (void)budget;
    z->loops++;
    return MF_PL_AGAIN;
}

static int nonsense(struct mf_zap *z, void *state, uint32_t budget)
{
    (void)z;
    (void)state;
    (void)budget;
    return 77;
}

/* Every call that a wrong strategy may try; nothing of it may have an effect. */
static int wrong_calls(struct mf_zap *z, void *state, uint32_t budget)
{
    const struct mf_zap_host *h = z->host;
    mf_table child = h->child(z, z->root, 0);
    uint32_t n = 99;

    (void)state;
    (void)budget;
    assert_non_null(child);
    assert_int_equal(h->zap(z, z->root, 0), MF_PL_NOT_EMPTY);
    assert_int_equal(h->zap(z, z->root, 512), MF_PL_RANGE);
    assert_int_equal(h->zap(z, z->root + 1, 0), MF_PL_RANGE);
    assert_int_equal(h->zap(z, NULL, 0), MF_PL_RANGE);
    assert_int_equal(h->zap(z, z->root - 512, 0), MF_PL_RANGE);
    assert_int_equal(h->zap(z, (mf_table)(uintptr_t)&n, 0), MF_PL_RANGE);
    assert_int_equal(h->zap(z, z->root, 5), MF_PL_OK); /* absent: no error, no effect */
    assert_int_equal(h->zap_run(z, z->root, 500, 13, &n), MF_PL_RANGE);
    assert_int_equal(h->zap_run(z, z->root, 1, UINT32_MAX, &n), MF_PL_RANGE);
    assert_int_equal(h->zap_run(z, z->root, 0, 512, &n), MF_PL_OK); /* tables stay */
    assert_int_equal(n, 0);
    assert_null(h->child(z, z->root, 512));
    assert_null(h->child(z, z->root, 1));
    assert_null(h->child(z, NULL, 0));
    assert_null(h->used(z, z->root)); /* it did not say that it tracks */
    assert_int_equal(h->count(z, z->root), 1);
    assert_int_equal(h->count(z, z->root + 8), 0);
    return MF_PL_OK;
}

/* A leaf outside the scope stays, whatever the strategy asks. */
static int outside_scope(struct mf_zap *z, void *state, uint32_t budget)
{
    mf_table t = z->root;

    (void)state;
    (void)budget;
    for (int i = 0; i < 3; i++) {
        t = z->host->child(z, t, 0);
        assert_non_null(t);
    }
    z->first_gfn = 0; /* its own copy: the driver does not read it back */
    assert_int_equal(z->host->zap(z, t, 0), MF_PL_RANGE);
    assert_int_equal(z->host->zap(z, t, 2), MF_PL_OK);
    return MF_PL_OK;
}

static enum mf_status with_step(int (*step)(struct mf_zap *, void *, uint32_t), uint64_t first,
                                uint64_t last, struct teardown *t)
{
    struct mf_teardown_ops ops = {
        .size = sizeof ops, .state_size = 16, .begin = bad_begin, .step = step};
    struct mm_testenv e;
    struct s2_leaf leaf;
    struct stage2 *s2;
    enum mf_status st;

    setup(&e, 1024);
    s2 = make(&e, 1, false, ORDER_4K);
    for (uint64_t g = 0; g < 4; g++)
        assert_int_equal(stage2_fault(s2, 0, gfn(g), S2_WRITE, &leaf), MF_OK);
    if (last)
        st = teardown_begin_range(t, s2, &ops, 0, 1, gfn(first), gfn(last));
    else
        st = teardown_begin_whole(t, s2, &ops);
    assert_int_equal(st, MF_OK);
    st = run(t, s2, 1000);
    teardown_end(t);
    mm_test_end_stage2(s2, mm_test_teardown("skip"));
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
    return st;
}

/* A wrong strategy can be slow or incomplete; it is noticed and frees nothing wrongly. */
static void test_wrong_strategies(void **state)
{
    struct mf_teardown_ops ops = {.size = 8};
    struct mm_testenv e;
    struct stage2 *s2;
    struct teardown t;

    (void)state;
    assert_int_equal(with_step(claims_done, 0, 0, &t), MF_E_PLUGIN);
    assert_int_equal(with_step(claims_done, 1, 2, &t), MF_E_PLUGIN);
    assert_int_equal(with_step(never_moves, 0, 0, &t), MF_E_PLUGIN);
    assert_int_equal(with_step(nonsense, 0, 0, &t), MF_E_PLUGIN);
    assert_int_equal(with_step(wrong_calls, 0, 0, &t), MF_E_PLUGIN);
    assert_int_equal(t.report.entries_removed, 0);
    assert_int_equal(with_step(outside_scope, 2, 2, &t), MF_OK);
    assert_int_equal(t.report.entries_removed, 1);

    setup(&e, 64);
    s2 = make(&e, 1, false, ORDER_4K);
    assert_int_equal(teardown_begin_whole(&t, s2, &ops), MF_E_PLUGIN);
    assert_int_equal(teardown_begin_whole(&t, s2, NULL), MF_E_PLUGIN);
    ops = *mm_test_teardown("single");
    ops.flags |= 0x80000000u; /* of a later core */
    assert_int_equal(teardown_begin_whole(&t, s2, &ops), MF_E_PLUGIN);
    mm_test_end_stage2(s2, mm_test_teardown("skip"));
    mm_testenv_fini(&e);
}

/* ---- flushes */

/* A table back in the pool with a flush still pending; a frame before every viewer has flushed. */
static void test_table_back_in_the_pool_with_a_flush_pending(void **state)
{
    struct s2_viewer v, idle;
    struct mm_testenv e;
    struct s2_leaf leaf;
    struct stage2 *s2;
    struct teardown t;
    struct heap_info info;

    (void)state;
    setup(&e, 1024);
    s2 = make(&e, 1, false, ORDER_4K);
    assert_int_equal(s2_viewer_add(s2, &v), MF_OK);
    assert_int_equal(s2_viewer_add(s2, &idle), MF_OK);
    assert_false(s2_viewer_enter(&v));
    assert_int_equal(stage2_fault(s2, 0, gfn(9), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(teardown_begin_whole(&t, s2, mm_test_teardown("single")), MF_OK);
    assert_int_equal(run(&t, s2, 100), MF_OK);
    teardown_end(&t);
    assert_true(s2_viewer_stale(&v));
    assert_int_equal(stage2_reap(s2, 100), MF_BLOCKED);
    heap_get_info(e.heap, &info);
    assert_int_equal(info.retired, 4);
    assert_int_equal(heap_free(e.heap, 0, leaf.mfn, 0, OWNER), MF_E_DOUBLE_FREE);
    assert_int_equal(stage2_destroy(s2), MF_E_STATE);
    s2_viewer_ack(&v);
    assert_false(s2_viewer_stale(&v));
    assert_int_equal(stage2_reap(s2, 2), MF_AGAIN);
    assert_int_equal(stage2_reap(s2, 100), MF_OK);
    heap_get_info(e.heap, &info);
    assert_int_equal(info.retired, 0);
    assert_int_equal(stage2_destroy(s2), MF_E_STATE); /* v is inside */
    s2_viewer_leave(&v);
    assert_true(s2_viewer_enter(&idle)); /* the epoch moved since it was last inside: never */
    s2_viewer_leave(&idle);
    s2_viewer_remove(&v);
    assert_int_equal(stage2_destroy(s2), MF_OK);
    s2_viewer_remove(&idle); /* detached by the destroy */
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* Mappings added while the VM is dying. */
static void test_mapping_added_while_dying(void **state)
{
    struct mm_testenv e;
    struct s2_leaf leaf;
    struct stage2 *s2;
    struct s2_map map;
    mfn_t m;

    (void)state;
    setup(&e, 1024);
    s2 = make(&e, 1, false, ORDER_4K);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(5), m, 0, S2_READ, &map), MF_OK);
    stage2_close(s2);
    assert_int_equal(stage2_map_commit(&map), MF_E_STATE);
    assert_int_equal(stage2_map_prepare(s2, 0, gfn(5), m, 0, S2_READ, &map), MF_E_STATE);
    assert_int_equal(stage2_fault(s2, 0, gfn(6), S2_READ, &leaf), MF_E_STATE);
    assert_int_equal(heap_free(e.heap, 0, m, 0, OWNER), MF_OK);
    assert_int_equal(stage2_reopen(s2), MF_OK);
    assert_int_equal(stage2_fault(s2, 0, gfn(6), S2_READ, &leaf), MF_OK);
    stage2_close(s2);
    assert_int_equal(stage2_reopen(s2), MF_E_STATE);
    mm_test_end_stage2(s2, mm_test_teardown("tracked"));
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* Too many frames wait for a flush: the teardown stands still and loses nothing. */
static void test_blocked_and_resumed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < STRATEGIES; i++) {
        uint64_t n = S2_RETIRE_MAX + 3000;
        struct mm_testenv e;
        struct s2_leaf leaf;
        struct s2_viewer v;
        struct stage2 *s2;
        struct teardown t;
        enum mf_status st;

        setup(&e, n + 2000);
        s2 = make(&e, 1, true, ORDER_4K);
        assert_int_equal(s2_viewer_add(s2, &v), MF_OK);
        for (uint64_t g = 0; g < n; g++)
            assert_int_equal(stage2_fault(s2, 0, gfn(g), S2_READ, &leaf), MF_OK);
        s2_viewer_enter(&v);
        assert_int_equal(teardown_begin_whole(&t, s2, mm_test_teardown(strategies[i])), MF_OK);
        while ((st = teardown_step(&t, 1000)) == MF_AGAIN)
            ;
        assert_int_equal(st, MF_BLOCKED);
        assert_int_equal(t.report.entries_removed, S2_RETIRE_MAX);
        assert_int_equal(teardown_step(&t, 1000), MF_BLOCKED);
        s2_viewer_leave(&v);
        assert_int_equal(run(&t, s2, 1000), MF_OK);
        teardown_end(&t);
        while (stage2_reap(s2, 1000) == MF_AGAIN)
            ;
        assert_int_equal(stage2_destroy(s2), MF_OK);
        mm_testenv_audit(&e, 0);
        mm_testenv_fini(&e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_tree),
        cmocka_unit_test(test_restart_and_advance_after_a_yield),
        cmocka_unit_test(test_chunk_border_inside_a_table),
        cmocka_unit_test(test_range_through_leaf),
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_wrong_strategies),
        cmocka_unit_test(test_table_back_in_the_pool_with_a_flush_pending),
        cmocka_unit_test(test_mapping_added_while_dying),
        cmocka_unit_test(test_blocked_and_resumed),
    };

    return cmocka_run_group_tests_name("teardown", tests, NULL, NULL);
}
