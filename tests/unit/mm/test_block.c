/* RAM by blocks: backing it before the guest runs, listing it by extents, zeroing it at the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define OWNER OWNER_VM(3)

static const char *const allocators[] = {MM_TEST_ALLOCATORS};
#define ALLOCATORS (sizeof allocators / sizeof allocators[0])

static struct mm_testenv env;
static uint64_t zeroed;
static bool zero_fails;

static enum mf_status zero(void *arg, uint64_t offset, uint64_t bytes)
{
    (void)arg;
    if (zero_fails)
        return MF_E_IO;
    memset(heap_ptr(env.heap, mfn(offset >> FRAME_SHIFT)), 0, bytes);
    zeroed += bytes >> FRAME_SHIFT;
    return MF_OK;
}

/* Two regions: [0, low) and [8192, 8192 + high). */
static struct stage2 *make(const char *allocator, uint64_t frames, uint64_t low, uint64_t high)
{
    struct s2_config c = {.owner = OWNER,
                          .roots = 2,
                          .nr_regions = high ? 2 : 1,
                          .regions = {{{0}, low}, {{8192}, high}}};
    struct stage2 *s2;

    mm_testenv_init(&env, frames, 2);
    env.env.zero = zero;
    zeroed = 0;
    zero_fails = false;
    mm_testenv_select(&env, allocator);
    assert_int_equal(stage2_create(env.heap, &c, &s2), MF_OK);
    return s2;
}

static enum mf_status populate_all(struct stage2 *s2)
{
    enum mf_status st;
    gfn_t at = gfn(0);

    while ((st = stage2_populate(s2, &at, 3)) == MF_AGAIN)
        ;
    return st;
}

static void finish(struct stage2 *s2)
{
    mm_test_end_stage2(s2, mm_test_teardown("single"));
    mm_testenv_audit(&env, 0);
    mm_testenv_fini(&env);
}

/* Sums what the extents cover and checks that they agree with the tree, frame by frame. */
static uint64_t walk_extents(struct stage2 *s2, unsigned *count)
{
    struct s2_extent e;
    uint64_t sum = 0, at = 0;

    for (*count = 0; stage2_extent(s2, gfn(at), &e) == MF_OK; ++*count) {
        assert_true(e.g.v >= at && e.frames);
        for (uint64_t i = 0; i < e.frames; i++) {
            struct s2_leaf leaf;

            assert_int_equal(stage2_lookup(s2, 0, gfn(e.g.v + i), S2_READ, &leaf), MF_OK);
            assert_int_equal(leaf.mfn.v, e.m.v + i);
            assert_int_equal(leaf.access, e.access);
        }
        sum += e.frames;
        at = e.g.v + e.frames;
    }
    return sum;
}

/* Protects: all RAM is backed, in the largest leaves that alignment allows, nothing beside it. */
static void backs_all(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct stage2 *s2 = make(allocators[i], 1u << 15, 2048 + 77, 512 + 3);
        struct s2_info info;
        unsigned count;

        assert_int_equal(populate_all(s2), MF_OK);
        stage2_get_info(s2, &info);
        assert_int_equal(info.frames_ram, 2048 + 77 + 512 + 3);
        assert_int_equal(info.leaves[1], 5);
        assert_int_equal(info.leaves[0], 77 + 3);
        assert_int_equal(walk_extents(s2, &count), 2048 + 77 + 512 + 3);
        assert_int_equal(populate_all(s2), MF_OK); /* again: nothing to do */
        finish(s2);
    }
}

/* Protects: what is mapped already stays, holes around it are filled. */
static void fills_holes(void **state)
{
    struct stage2 *s2 = make("buddy-lazy", 1u << 14, 1536, 0);
    uint64_t word = 0x1122334455667788, got = 0;
    struct s2_info info;
    unsigned count;

    (void)state;
    assert_int_equal(stage2_write(s2, gpa(700 * FRAME_SIZE), &word, sizeof word), MF_OK);
    assert_int_equal(populate_all(s2), MF_OK);
    stage2_get_info(s2, &info);
    assert_int_equal(info.frames_ram, 1536);
    assert_int_equal(info.leaves[1], 2);
    assert_int_equal(stage2_read(s2, gpa(700 * FRAME_SIZE), &got, sizeof got), MF_OK);
    assert_true(got == word);
    assert_int_equal(walk_extents(s2, &count), 1536);
    finish(s2);
}

/* Protects: too little memory says so and loses nothing; fragments serve where blocks are gone. */
static void little_memory(void **state)
{
    static mfn_t taken[4096];
    struct stage2 *s2 = make("buddy-lazy", 4096, 8000, 0);
    unsigned n = 0;

    (void)state;
    assert_int_equal(populate_all(s2), MF_E_NO_MEMORY);
    finish(s2);

    s2 = make("buddy-lazy", 4096, 1024, 0);
    while (heap_alloc(env.heap, 0, 0, OWNER_CORE, FRAME_T_CORE, 0, &taken[n]) == MF_OK)
        n++;
    for (unsigned i = 0; i < n; i += 2)
        assert_int_equal(heap_free(env.heap, 0, taken[i], 0, OWNER_CORE), MF_OK);
    assert_int_equal(populate_all(s2), MF_OK);
    for (unsigned i = 1; i < n; i += 2)
        assert_int_equal(heap_free(env.heap, 0, taken[i], 0, OWNER_CORE), MF_OK);
    finish(s2);
}

/* Protects: after the end RAM goes back clean and reads as zero for its next owner. */
static void zero_at_end(void **state)
{
    struct heap_info info;
    gfn_t at = gfn(0);

    (void)state;
    for (unsigned fails = 0; fails < 2; fails++) {
        struct stage2 *s2 = make("buddy-lazy", 1u << 14, 2048 + 5, 0);
        unsigned count;
        mfn_t m;

        assert_int_equal(populate_all(s2), MF_OK);
        assert_int_equal(stage2_fill(s2, gpa(0), 0xaa, (2048 + 5) * FRAME_SIZE), MF_OK);
        zero_fails = fails;
        for (at = gfn(0); stage2_zero_step(s2, &at) == MF_AGAIN;)
            ;
        assert_int_equal(zeroed, fails ? 0 : 2048 + 5);
        assert_int_equal(walk_extents(s2, &count), 2048 + 5);
        mm_test_end_stage2(s2, mm_test_teardown("single"));
        heap_get_info(env.heap, &info);
        assert_int_equal(info.dirty, fails ? 2048 + 5 : 0);
        for (unsigned i = 0; i < 8; i++) {
            assert_int_equal(heap_alloc(env.heap, 0, 9, OWNER_CORE, FRAME_T_CORE, HEAP_ZERO, &m),
                             MF_OK);
            for (unsigned k = 0; k < 512 * FRAME_SIZE / 8; k++)
                assert_int_equal(((uint64_t *)heap_ptr(env.heap, m))[k], 0);
        }
        mm_testenv_fini(&env);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(backs_all),
        cmocka_unit_test(fills_holes),
        cmocka_unit_test(little_memory),
        cmocka_unit_test(zero_at_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
