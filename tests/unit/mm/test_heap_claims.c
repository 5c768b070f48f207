/*
 * Page heap: memory promised to owners, quotas charged by several CPUs, scrub policies.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define A OWNER_VM(1)
#define B OWNER_VM(2)

static const char *const allocators[] = {MM_TEST_ALLOCATORS};
#define ALLOCATORS (sizeof allocators / sizeof allocators[0])

static enum mf_status try(struct mm_testenv *e, unsigned cpu, uint32_t owner, mfn_t *m)
{
    return heap_alloc(e->heap, cpu, 0, owner, FRAME_T_RAM, 0, m);
}

static struct heap_info info_of(struct mm_testenv *e)
{
    struct heap_info i;

    heap_get_info(e->heap, &i);
    return i;
}

/* What is claimed is there for its owner, on every CPU, however the others eat; and only that. */
static void test_claim_holds(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct heap_shortage w;
        struct mm_testenv e;
        unsigned eaten = 0;
        mfn_t m;

        mm_testenv_init(&e, 5000, 4);
        mm_testenv_select(&e, allocators[i]);
        assert_int_equal(heap_claim(e.heap, A, 1, &w), MF_E_NOT_FOUND);
        assert_int_equal(heap_owner_begin(e.heap, A, 4000), MF_OK);
        assert_int_equal(heap_claim(e.heap, A, 3000, &w), MF_OK);
        assert_int_equal(info_of(&e).claimed, 3000);
        assert_int_equal(info_of(&e).free, 5000);
        while (try(&e, eaten % 4, B, &m) == MF_OK)
            eaten++;
        assert_int_equal(eaten, 2000);
        assert_int_equal(try(&e, 1, B, &m), MF_E_NO_MEMORY);
        for (unsigned k = 0; k < 3000; k++) {
            assert_int_equal(try(&e, k % 4, A, &m), MF_OK);
            if (k % 500 == 0) {
                assert_int_equal(heap_claim_left(e.heap, A), 2999 - k);
                assert_int_equal(try(&e, k % 4 + 1, B, &m), MF_E_NO_MEMORY);
                mm_testenv_select(&e, allocators[k / 500 % ALLOCATORS]);
            }
        }
        assert_int_equal(info_of(&e).claimed, 0);
        assert_int_equal(try(&e, 0, A, &m), MF_E_NO_MEMORY);
        mm_testenv_audit(&e, 5000);
        mm_testenv_fini(&e);
    }
}

/* A refusal changes nothing and says what was asked and what there is. */
static void test_claim_refused(void **state)
{
    struct heap_shortage w = {0};
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, 1000, 2);
    mm_testenv_select(&e, "buddy-lazy");
    assert_int_equal(heap_owner_begin(e.heap, A, 700), MF_OK);
    assert_int_equal(heap_owner_begin(e.heap, B, 5000), MF_OK);
    assert_int_equal(try(&e, 0, A, &m), MF_OK);
    assert_int_equal(heap_claim(e.heap, A, 600, NULL), MF_OK);
    assert_int_equal(heap_claim(e.heap, A, 100, &w), MF_E_QUOTA);
    assert_int_equal(w.asked, 100);
    assert_int_equal(w.limit, 700);
    assert_int_equal(w.held, 601);
    assert_int_equal(heap_claim(e.heap, B, 400, &w), MF_E_NO_MEMORY);
    assert_int_equal(w.asked, 400);
    assert_int_equal(w.free, 999);
    assert_int_equal(w.claimed, 600);
    assert_int_equal(heap_claim(e.heap, B, 399, &w), MF_OK);
    assert_int_equal(info_of(&e).claimed, 999);
    assert_int_equal(heap_claim(e.heap, A, 99, &w), MF_E_NO_MEMORY);
    assert_int_equal(heap_claim_release(e.heap, A), 600);
    assert_int_equal(heap_claim_release(e.heap, A), 0);
    assert_int_equal(heap_owner_end(e.heap, B), 0); /* its claim goes with it */
    assert_int_equal(info_of(&e).claimed, 0);
    assert_int_equal(heap_free(e.heap, 1, m, 0, A), MF_OK);
    assert_int_equal(heap_owner_end(e.heap, A), 0);
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* What an owner frees is not claimed again; what went out of use is not there for claims. */
static void test_claim_is_used_up(void **state)
{
    struct heap_offline_report r;
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, 1000, 2);
    mm_testenv_select(&e, "bitmap");
    assert_int_equal(heap_owner_begin(e.heap, A, 1000), MF_OK);
    assert_int_equal(heap_claim(e.heap, A, 10, NULL), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 3, A, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_claim_left(e.heap, A), 2);
    assert_int_equal(heap_free(e.heap, 0, m, 3, A), MF_OK);
    assert_int_equal(heap_claim_left(e.heap, A), 2);
    /* Neither a refused allocation nor one that the allocator fails uses anything of it. */
    assert_int_equal(heap_alloc(e.heap, 0, 10, A, FRAME_T_RAM, 0, &m), MF_E_QUOTA);
    assert_int_equal(heap_alloc(e.heap, 0, 9, A, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_claim(e.heap, A, 20, NULL), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 8, A, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 7, A, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_claim(e.heap, A, 20, NULL), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 6, A, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_claim(e.heap, A, 40, NULL), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 5, A, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_claim_left(e.heap, A), 8);
    assert_int_equal(info_of(&e).free, 8);
    assert_int_equal(heap_offline(e.heap, mfn(0), 1000, &r), MF_OK);
    assert_int_equal(r.changed, 8);
    assert_int_equal(try(&e, 0, A, &m), MF_E_NO_MEMORY);
    assert_int_equal(heap_online(e.heap, mfn(0), 1000, &r), MF_OK);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(try(&e, i, A, &m), MF_OK);
    mm_testenv_audit(&e, 1000);
    mm_testenv_fini(&e);
}

/* A limit is exact, though CPUs charge in advance and frees come in on other CPUs. */
static void test_quota_is_exact_over_cpus(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        mfn_t m[500], none;
        struct mm_testenv e;

        mm_testenv_init(&e, 4096, 8);
        mm_testenv_select(&e, allocators[i]);
        assert_int_equal(try(&e, 3, A, &m[0]), MF_OK); /* unknown: no limit, and remembered so */
        assert_int_equal(heap_free(e.heap, 3, m[0], 0, A), MF_OK);
        assert_int_equal(heap_owner_begin(e.heap, A, 500), MF_OK);
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned k = 0; k < 500; k++)
                assert_int_equal(try(&e, k + round, A, &m[k]), MF_OK);
            for (unsigned cpu = 0; cpu < 8; cpu++)
                assert_int_equal(try(&e, cpu, A, &none), MF_E_QUOTA);
            for (unsigned k = 0; k < 500; k++)
                assert_int_equal(heap_free(e.heap, k * 5, m[k], 0, A), MF_OK);
        }
        assert_int_equal(try(&e, 6, A, &m[0]), MF_OK);
        assert_int_equal(heap_owner_end(e.heap, A), 1);
        assert_int_equal(heap_free(e.heap, 0, m[0], 0, A), MF_OK);
        mm_testenv_audit(&e, 0);
        mm_testenv_fini(&e);
    }
}

/* ---- several threads */

struct eater {
    struct mm_testenv *e;
    unsigned cpu;
    uint32_t owner;
    unsigned got;
};

static void *eat(void *arg)
{
    struct eater *t = arg;
    mfn_t m;

    while (try(t->e, t->cpu, t->owner, &m) == MF_OK)
        t->got++;
    return NULL;
}

/* Two that have claimed and two that have not, all at once: each claim is served in full. */
static void test_claims_hold_between_threads(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct mm_testenv e;
        struct eater t[4];
        pthread_t id[4];

        mm_testenv_init(&e, 20000, 4);
        mm_testenv_select(&e, allocators[i]);
        for (unsigned k = 0; k < 4; k++) {
            t[k] = (struct eater){.e = &e, .cpu = k, .owner = OWNER_VM(k)};
            assert_int_equal(heap_owner_begin(e.heap, OWNER_VM(k), 20000), MF_OK);
        }
        assert_int_equal(heap_claim(e.heap, OWNER_VM(0), 6000, NULL), MF_OK);
        assert_int_equal(heap_claim(e.heap, OWNER_VM(1), 7000, NULL), MF_OK);
        for (unsigned k = 0; k < 4; k++)
            assert_int_equal(pthread_create(&id[k], NULL, eat, &t[k]), 0);
        for (unsigned k = 0; k < 4; k++)
            assert_int_equal(pthread_join(id[k], NULL), 0);
        assert_true(t[0].got >= 6000);
        assert_true(t[1].got >= 7000);
        assert_int_equal(t[0].got + t[1].got + t[2].got + t[3].got, 20000);
        mm_testenv_audit(&e, 20000);
        mm_testenv_fini(&e);
    }
}

/* ---- scrub policies */

/* At free: clean before it is free. In the background: by steps. At allocation: not before. */
static void test_scrub_policies(void **state)
{
    static const unsigned orders[] = {0, 4, 9, 10};

    (void)state;
    for (unsigned i = 0; i < 4 * HEAP_SCRUB_KINDS; i++) {
        enum heap_scrub policy = (enum heap_scrub)(i / 4);
        unsigned order = orders[i % 4];
        bool at_free = policy == HEAP_SCRUB_FREE && order <= 9;
        struct mm_testenv e;
        mfn_t m;

        mm_testenv_init(&e, 4096, 1);
        mm_testenv_select(&e, "buddy-lazy");
        assert_int_equal(heap_set_scrub(e.heap, policy), MF_OK);
        assert_int_equal(info_of(&e).scrub, policy);
        assert_int_equal(heap_alloc(e.heap, 0, order, A, FRAME_T_RAM, HEAP_ZERO, &m), MF_OK);
        memset(heap_ptr(e.heap, m), 9, FRAME_SIZE << order);
        assert_int_equal(heap_free(e.heap, 0, m, order, B), MF_E_WRONG_OWNER);
        assert_int_equal(*(uint8_t *)heap_ptr(e.heap, m), 9);
        assert_int_equal(heap_free(e.heap, 0, m, order, A), MF_OK);
        assert_int_equal(heap_free(e.heap, 0, m, order, A), MF_E_DOUBLE_FREE);
        assert_int_equal(info_of(&e).dirty, at_free ? 0 : 1u << order);
        while (heap_scrub_step(e.heap, 64) == MF_AGAIN)
            ;
        if (policy == HEAP_SCRUB_ALLOC)
            assert_int_equal(info_of(&e).dirty, 1u << order);
        else
            assert_int_equal(info_of(&e).dirty, 0);
        assert_int_equal(*(uint8_t *)heap_ptr(e.heap, m), policy == HEAP_SCRUB_ALLOC ? 9 : 0);
        assert_int_equal(heap_alloc(e.heap, 0, 12, B, FRAME_T_RAM, 0, &m), MF_OK);
        for (unsigned k = 0; k < 4096; k++)
            assert_int_equal(((uint8_t *)heap_ptr(e.heap, mfn(k)))[5], 0);
        assert_int_equal(info_of(&e).scrubbed + info_of(&e).punched, 1u << order);
        mm_testenv_fini(&e);
    }
}

/* Names for people, and nothing beyond the last policy. */
static void test_scrub_policy_names(void **state)
{
    struct mm_testenv e;

    (void)state;
    mm_testenv_init(&e, 64, 1);
    assert_string_equal(heap_scrub_name(HEAP_SCRUB_BACKGROUND), "background");
    assert_string_equal(heap_scrub_name(HEAP_SCRUB_FREE), "free");
    assert_string_equal(heap_scrub_name(HEAP_SCRUB_ALLOC), "alloc");
    assert_null(heap_scrub_name((enum heap_scrub)3));
    assert_int_equal(heap_set_scrub(e.heap, (enum heap_scrub)3), MF_E_RANGE);
    assert_int_equal(heap_set_scrub(e.heap, (enum heap_scrub) - 1), MF_E_RANGE);
    mm_testenv_fini(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claim_holds),
        cmocka_unit_test(test_claim_refused),
        cmocka_unit_test(test_claim_is_used_up),
        cmocka_unit_test(test_quota_is_exact_over_cpus),
        cmocka_unit_test(test_claims_hold_between_threads),
        cmocka_unit_test(test_scrub_policies),
        cmocka_unit_test(test_scrub_policy_names),
    };

    return cmocka_run_group_tests_name("heap_claims", tests, NULL, NULL);
}
