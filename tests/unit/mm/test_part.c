/*
 * Changes to leaves that stay mapped: split and merge of leaves and blocks, access, written frames.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define OWNER OWNER_VM(2)

static const char *const allocators[] = {MM_TEST_ALLOCATORS};
#define ALLOCATORS (sizeof allocators / sizeof allocators[0])

static struct stage2 *make(struct mm_testenv *e, const char *allocator, unsigned roots, bool track,
                           uint64_t frames)
{
    struct s2_config c = {.owner = OWNER,
                          .roots = roots,
                          .track = track,
                          .nr_regions = 1,
                          .regions = {{{0}, 4096}},
                          .fault_order = ORDER_2M};
    struct stage2 *s2;

    mm_testenv_init(e, frames, 2);
    mm_testenv_select(e, allocator);
    assert_int_equal(stage2_create(e->heap, &c, &s2), MF_OK);
    return s2;
}

static void finish(struct mm_testenv *e, struct stage2 *s2, const char *strategy)
{
    mm_test_end_stage2(s2, mm_test_teardown(strategy));
    mm_testenv_audit(e, 0);
    mm_testenv_fini(e);
}

static uint64_t *at(struct mm_testenv *e, struct stage2 *s2, uint64_t g)
{
    struct s2_leaf leaf;

    assert_int_equal(stage2_fault(s2, 0, gfn(g), S2_WRITE, &leaf), MF_OK);
    return heap_ptr(e->heap, leaf.mfn);
}

/* Partial frees of a larger block, by every allocator, and whole again at the end. */
static void test_heap_split(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct mm_testenv e;
        struct heap_info info;
        mfn_t m;

        mm_testenv_init(&e, 1u << 18, 1);
        mm_testenv_select(&e, allocators[i]);
        assert_int_equal(heap_alloc(e.heap, 0, 18, OWNER, FRAME_T_RAM, 0, &m), MF_OK);
        assert_int_equal(heap_split(e.heap, 0, m, 18, 8, OWNER), MF_E_RANGE);
        assert_int_equal(heap_split(e.heap, 0, m, 18, 18, OWNER), MF_E_RANGE);
        assert_int_equal(heap_split(e.heap, 0, m, 17, 9, OWNER), MF_E_WRONG_ORDER);
        assert_int_equal(heap_split(e.heap, 0, m, 18, 9, OWNER + 1), MF_E_WRONG_OWNER);
        assert_int_equal(heap_split(e.heap, 0, m, 18, 9, OWNER), MF_OK);
        mm_testenv_audit(&e, 1u << 18);
        assert_int_equal(heap_split(e.heap, 0, mfn(512), 9, 0, OWNER), MF_OK);
        assert_int_equal(heap_split(e.heap, 0, mfn(1024), 9, 3, OWNER), MF_OK);
        assert_int_equal(heap_split(e.heap, 0, mfn(1024 + 8), 3, 1, OWNER), MF_OK);
        mm_testenv_audit(&e, 1u << 18);
        assert_int_equal(heap_free(e.heap, 0, mfn(512), 9, OWNER), MF_E_WRONG_ORDER);
        for (unsigned k = 0; k < 512; k += 2)
            assert_int_equal(heap_free(e.heap, 0, mfn(512 + k), 0, OWNER), MF_OK);
        assert_int_equal(heap_free(e.heap, 0, mfn(1024 + 10), 1, OWNER), MF_OK);
        mm_testenv_audit(&e, (1u << 18) - 256 - 2);
        mm_testenv_select(&e, allocators[(i + 1) % ALLOCATORS]);
        for (unsigned k = 1; k < 512; k += 2)
            assert_int_equal(heap_free(e.heap, 0, mfn(512 + k), 0, OWNER), MF_OK);
        for (unsigned k = 0; k < 64; k++)
            if (k != 1)
                assert_int_equal(heap_free(e.heap, 0, mfn(1024 + 8 * k), 3, OWNER), MF_OK);
        for (unsigned k = 8; k < 16; k += 2)
            if (k != 10)
                assert_int_equal(heap_free(e.heap, 0, mfn(1024 + k), 1, OWNER), MF_OK);
        for (unsigned k = 0; k < 512; k++)
            if (k != 1 && k != 2)
                assert_int_equal(heap_free(e.heap, 0, mfn(512 * k), 9, OWNER), MF_OK);
        mm_testenv_audit(&e, 0);
        heap_get_info(e.heap, &info);
        assert_int_equal(info.free_blocks[18], 1);
        assert_int_equal(info.dirty, 1u << 18);
        mm_testenv_fini(&e);
    }
}

/* Parts join only when all of them are there and alike. */
static void test_heap_join(void **state)
{
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, 4096, 1);
    mm_testenv_select(&e, "buddy-lazy");
    assert_int_equal(heap_alloc(e.heap, 0, 9, OWNER, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_split(e.heap, 0, m, 9, 0, OWNER), MF_OK);
    assert_int_equal(heap_free(e.heap, 0, mfn(m.v + 77), 0, OWNER), MF_OK);
    assert_int_equal(heap_join(e.heap, 0, m, 9, 0, OWNER), MF_E_DOUBLE_FREE);
    assert_int_equal(heap_join(e.heap, 0, m, 6, 0, OWNER), MF_OK);
    assert_int_equal(heap_join(e.heap, 0, m, 7, 0, OWNER), MF_E_WRONG_ORDER);
    mm_testenv_audit(&e, 511);
    assert_int_equal(heap_free(e.heap, 0, m, 6, OWNER), MF_OK);
    for (unsigned k = 64; k < 512; k++)
        if (k != 77)
            assert_int_equal(heap_free(e.heap, 0, mfn(m.v + k), 0, OWNER), MF_OK);
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* A large leaf cut in the middle: what stays keeps its data, what goes can be had again, zeroed. */
static void test_split_then_unmap(void **state)
{
    static const char *const strategies[] = {"scan", "skip", "present", "single", "tracked"};

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        struct mm_testenv e;
        struct stage2 *s2 = make(&e, allocators[i % ALLOCATORS], 1, i & 1, 16384);
        struct teardown t;
        struct s2_info info;
        enum mf_status st;

        for (uint64_t g = 512; g < 1024; g++)
            *at(&e, s2, g) = g;
        assert_int_equal(stage2_split(s2, 0, gfn(5000)), MF_E_NOT_FOUND);
        assert_int_equal(stage2_split(s2, 0, gfn(700)), MF_OK);
        assert_int_equal(stage2_split(s2, 0, gfn(700)), MF_E_RANGE);
        stage2_get_info(s2, &info);
        assert_int_equal(info.leaves[0], 512);
        assert_int_equal(info.leaves[1], 0);
        assert_int_equal(info.frames_ram, 512);
        assert_int_equal(
            teardown_begin_range(&t, s2, mm_test_teardown(strategies[i]), 0, 1, gfn(600), gfn(699)),
            MF_OK);
        while ((st = teardown_step(&t, 33)) == MF_AGAIN)
            ;
        assert_int_equal(st, MF_OK);
        assert_int_equal(t.report.leaves_removed, 100);
        teardown_end(&t);
        assert_int_equal(stage2_reap(s2, 1000), MF_OK);
        for (uint64_t g = 512; g < 1024; g++)
            assert_int_equal(*at(&e, s2, g), g >= 600 && g < 700 ? 0 : g);
        assert_int_equal(stage2_merge(s2, 0, gfn(700)), MF_E_STATE); /* not one block any more */
        finish(&e, s2, strategies[i]);
    }
}

/* Split and merged again: one leaf, the same data, the table gone only after the flush. */
static void test_merge(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2 = make(&e, "buddy-lazy", 1, true, 16384);
    struct s2_viewer v = {0};
    struct s2_info info;
    struct s2_leaf leaf;

    (void)state;
    for (uint64_t g = 0; g < 512; g++)
        *at(&e, s2, g) = g + 1;
    assert_int_equal(stage2_merge(s2, 0, gfn(3)), MF_E_STATE);
    assert_int_equal(stage2_split(s2, 0, gfn(3)), MF_OK);
    assert_int_equal(s2_viewer_add(s2, &v), MF_OK);
    s2_viewer_enter(&v);
    assert_int_equal(stage2_merge(s2, 0, gfn(511)), MF_OK);
    assert_int_equal(stage2_reap(s2, 10), MF_BLOCKED);
    s2_viewer_ack(&v);
    assert_int_equal(stage2_reap(s2, 10), MF_OK);
    s2_viewer_leave(&v);
    s2_viewer_remove(&v);
    stage2_get_info(s2, &info);
    assert_int_equal(info.leaves[0], 0);
    assert_int_equal(info.leaves[1], 1);
    assert_int_equal(info.frames_table, 3);
    assert_int_equal(stage2_lookup(s2, 0, gfn(300), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(leaf.order, ORDER_2M);
    for (uint64_t g = 0; g < 512; g++)
        assert_int_equal(*at(&e, s2, g), g + 1);
    mm_testenv_audit(&e, 1 + 3 + 512);
    finish(&e, s2, "tracked");
}

/* A leaf that another root shows too is split there as well, and every part goes back once. */
static void test_split_of_shared(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2 = make(&e, "buddy-lazy", 2, true, 16384);
    struct teardown t;
    struct s2_info info;
    struct s2_leaf leaf;
    enum mf_status st;

    (void)state;
    assert_int_equal(stage2_fault(s2, 1, gfn(5), S2_READ, &leaf), MF_OK);
    for (uint64_t g = 0; g < 512; g++)
        *at(&e, s2, g) = g + 1;
    assert_int_equal(stage2_split(s2, 2, gfn(5)), MF_E_NOT_FOUND);
    assert_int_equal(stage2_split(s2, 1, gfn(5)), MF_OK);
    stage2_get_info(s2, &info);
    assert_int_equal(info.leaves[0], 1024);
    assert_int_equal(info.leaves[1], 0);
    assert_int_equal(info.frames_ram, 512);
    assert_int_equal(stage2_merge(s2, 0, gfn(5)), MF_E_STATE);
    assert_int_equal(
        teardown_begin_range(&t, s2, mm_test_teardown("tracked"), 0, 2, gfn(100), gfn(199)), MF_OK);
    while ((st = teardown_step(&t, 64)) == MF_AGAIN)
        ;
    assert_int_equal(st, MF_OK);
    assert_int_equal(t.report.leaves_removed, 200);
    assert_int_equal(t.report.frames_retired, 100);
    teardown_end(&t);
    assert_int_equal(stage2_reap(s2, 1000), MF_OK);
    for (uint64_t g = 0; g < 512; g++) {
        assert_int_equal(stage2_fault(s2, 1, gfn(g), S2_READ, &leaf), MF_OK);
        assert_int_equal(*at(&e, s2, g), g >= 100 && g < 200 ? 0 : g + 1);
    }
    finish(&e, s2, "single");
}

/* A block that is mapped at another guest frame too is left whole. */
static void test_split_of_block_mapped_elsewhere(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2 = make(&e, "buddy-lazy", 2, false, 16384);
    struct s2_leaf leaf;
    struct s2_map map;

    (void)state;
    assert_int_equal(stage2_fault(s2, 0, gfn(0), S2_READ, &leaf), MF_OK);
    assert_int_equal(stage2_map_prepare(s2, 1, gfn(1024), leaf.mfn, ORDER_2M, S2_READ, &map),
                     MF_OK);
    assert_int_equal(stage2_map_commit(&map), MF_OK);
    assert_int_equal(stage2_split(s2, 0, gfn(5)), MF_E_BUSY);
    assert_int_equal(stage2_split(s2, 1, gfn(1024)), MF_E_BUSY);
    mm_testenv_audit(&e, 1 + 2 + 4 + 512);
    finish(&e, s2, "single");
}

/* What lies over an edge of a range is split, what is inside stays large; 1 GiB leaves too. */
static void test_split_edges(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2 = make(&e, "buddy-lazy", 2, true, UINT64_C(1) << 19);
    struct s2_leaf leaf;
    struct s2_info info;
    struct s2_map map;
    unsigned splits;
    mfn_t m;

    (void)state;
    for (uint64_t g = 0; g < 2048; g += 512)
        assert_int_equal(stage2_fault(s2, 1, gfn(g), S2_READ, &leaf), MF_OK);
    assert_int_equal(stage2_split_edges(s2, gfn(512), 1024, &splits), MF_OK);
    assert_int_equal(splits, 0);
    assert_int_equal(stage2_split_edges(s2, gfn(10), 1024, &splits), MF_OK);
    assert_int_equal(splits, 2);
    stage2_get_info(s2, &info);
    assert_int_equal(info.leaves[0], 4 * 512);
    assert_int_equal(info.leaves[1], 2 + 2);
    assert_int_equal(stage2_split_edges(s2, gfn(10), 1024, &splits), MF_OK);
    assert_int_equal(splits, 0);
    assert_int_equal(heap_alloc(e.heap, 0, ORDER_1G, OWNER, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(
        stage2_map_prepare(s2, 0, gfn(UINT64_C(1) << 18), m, ORDER_1G, S2_READ | S2_WRITE, &map),
        MF_OK);
    assert_int_equal(stage2_map_commit(&map), MF_OK);
    assert_int_equal(stage2_split_edges(s2, gfn((UINT64_C(1) << 18) + 700), 1, &splits), MF_OK);
    assert_int_equal(splits, 2); /* 1 GiB, and the 2 MiB around the frame */
    stage2_get_info(s2, &info);
    assert_int_equal(info.leaves[0], 5 * 512);
    assert_int_equal(info.leaves[1], 2 + 2 + 511);
    assert_int_equal(info.leaves[2], 0);
    assert_int_equal(stage2_split_edges(s2, gfn(S2_GFN_END - 1), 2, &splits), MF_E_RANGE);
    finish(&e, s2, "tracked");
}

/* While a range is taken out no large leaf comes in over its edge, but beside it one may. */
static void test_no_large_leaf_over_an_edge(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2 = make(&e, "buddy-lazy", 1, false, 16384);
    struct teardown t;
    struct s2_leaf leaf;

    (void)state;
    assert_int_equal(
        teardown_begin_range(&t, s2, mm_test_teardown("single"), 0, 1, gfn(100), gfn(1023)), MF_OK);
    assert_int_equal(stage2_fault(s2, 0, gfn(50), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(leaf.order, ORDER_4K);
    assert_int_equal(stage2_fault(s2, 0, gfn(1024), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(leaf.order, ORDER_2M);
    assert_int_equal(stage2_fault(s2, 0, gfn(600), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(leaf.order, ORDER_2M);
    assert_int_equal(teardown_step(&t, 10000), MF_OK);
    teardown_end(&t);
    assert_int_equal(stage2_lookup(s2, 0, gfn(600), S2_READ, &leaf), MF_E_NOT_FOUND);
    assert_int_equal(stage2_lookup(s2, 0, gfn(50), S2_READ, &leaf), MF_OK);
    assert_int_equal(stage2_reap(s2, 1000), MF_OK);
    finish(&e, s2, "single");
}

/* No table for the split: nothing is changed. */
static void test_split_without_memory(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2 = make(&e, "buddy-lazy", 1, false, 16384);

    (void)state;
    *at(&e, s2, 0) = 1;
    assert_int_equal(heap_owner_begin(e.heap, OWNER, 0), MF_OK);
    assert_int_equal(stage2_split(s2, 0, gfn(0)), MF_E_QUOTA);
    heap_owner_end(e.heap, OWNER);
    mm_testenv_audit(&e, 1 + 3 + 512);
    finish(&e, s2, "single");
}

/* Written frames are told once, after the marks are cleared a new write is seen again. */
static void test_dirty(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2 = make(&e, "buddy-lazy", 1, false, 16384);
    struct s2_viewer v = {0};
    uint64_t bits[16], epoch;
    struct s2_leaf leaf;

    (void)state;
    assert_int_equal(stage2_fault(s2, 0, gfn(0), S2_READ, &leaf), MF_OK);
    assert_int_equal(stage2_split(s2, 0, gfn(0)), MF_OK);
    assert_int_equal(stage2_dirty_fetch(s2, 0, gfn(0), 1024, bits, &epoch), MF_OK);
    assert_int_equal(s2_viewer_add(s2, &v), MF_OK);
    s2_viewer_enter(&v);
    *at(&e, s2, 3) = 1;
    *at(&e, s2, 130) = 1;
    assert_int_equal(stage2_dirty_fetch(s2, 0, gfn(2), 1000, bits, &epoch), MF_OK);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(bits[i], i == 0 || i == 2 ? (i ? 1 : 2) : 0);
    assert_false(stage2_flushed(s2, epoch));
    assert_true(s2_viewer_stale(&v));
    s2_viewer_ack(&v);
    assert_true(stage2_flushed(s2, epoch));
    assert_int_equal(stage2_dirty_fetch(s2, 0, gfn(0), 1024, bits, &epoch), MF_OK);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(bits[i], 0);
    *at(&e, s2, 600) = 1; /* a large leaf counts as a whole */
    assert_int_equal(stage2_dirty_fetch(s2, 0, gfn(512), 512, bits, &epoch), MF_OK);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(bits[i], UINT64_MAX);
    assert_int_equal(stage2_dirty_fetch(s2, 0, gfn(0), 0, bits, &epoch), MF_E_RANGE);
    assert_int_equal(stage2_dirty_fetch(s2, 0, gfn(0), S2_PART_MAX + 1, bits, &epoch), MF_E_RANGE);
    assert_int_equal(stage2_dirty_fetch(s2, 0, gfn(S2_GFN_END - 1), 2, bits, &epoch), MF_E_RANGE);
    assert_int_equal(stage2_dirty_fetch(s2, 1, gfn(0), 1, bits, &epoch), MF_E_RANGE);
    s2_viewer_leave(&v);
    s2_viewer_remove(&v);
    finish(&e, s2, "present");
}

/* Write protection: seen by the next lookup, not for a part of a leaf, and taken back. */
static void test_protect(void **state)
{
    struct mm_testenv e;
    struct stage2 *s2 = make(&e, "buddy-lazy", 1, false, 16384);
    struct s2_leaf leaf;
    uint64_t epoch;

    (void)state;
    *at(&e, s2, 0) = 1;
    *at(&e, s2, 512) = 1;
    assert_int_equal(stage2_protect(s2, 0, gfn(0), 600, S2_READ, &epoch), MF_E_ALIGN);
    assert_int_equal(stage2_protect(s2, 0, gfn(0), 512, S2_WRITE, &epoch), MF_E_RANGE);
    assert_int_equal(stage2_lookup(s2, 0, gfn(7), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(stage2_protect(s2, 0, gfn(0), 512, S2_READ, &epoch), MF_OK);
    assert_true(stage2_flushed(s2, epoch));
    assert_int_equal(stage2_fault(s2, 0, gfn(7), S2_WRITE, &leaf), MF_E_PERM);
    assert_int_equal(stage2_fault(s2, 0, gfn(7), S2_EXEC, &leaf), MF_E_PERM);
    assert_int_equal(stage2_fault(s2, 0, gfn(7), S2_READ, &leaf), MF_OK);
    assert_int_equal(stage2_fault(s2, 0, gfn(519), S2_WRITE, &leaf), MF_OK);
    assert_int_equal(stage2_protect(s2, 0, gfn(0), 512, S2_READ | S2_WRITE | S2_EXEC, &epoch),
                     MF_OK);
    assert_int_equal(stage2_fault(s2, 0, gfn(7), S2_WRITE, &leaf), MF_OK);
    finish(&e, s2, "single");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heap_split),
        cmocka_unit_test(test_heap_join),
        cmocka_unit_test(test_split_then_unmap),
        cmocka_unit_test(test_merge),
        cmocka_unit_test(test_split_of_shared),
        cmocka_unit_test(test_split_of_block_mapped_elsewhere),
        cmocka_unit_test(test_split_edges),
        cmocka_unit_test(test_no_large_leaf_over_an_edge),
        cmocka_unit_test(test_split_without_memory),
        cmocka_unit_test(test_dirty),
        cmocka_unit_test(test_protect),
    };

    return cmocka_run_group_tests_name("part", tests, NULL, NULL);
}
