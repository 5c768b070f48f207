/*
 * Teardowns against a model: random trees, ranges, budgets and strategies on one address space,
 * with a second thread that faults in another part of it, and now and then in the scope itself.
 * MAYFLY_TEARDOWN_OPS says how many teardowns; the short run is part of ./test, 1000000 take some
 * minutes.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define OWNER OWNER_VM(9)
#define GFNS  4096u
#define SPREAD                                                                                     \
    173u /* guest frames between two of the model: tables of one and of several leaves             \
          */
#define OTHER (UINT64_C(1) << 30)
#define SHORT 400u

static const char *const strategies[] = {MM_TEST_TEARDOWNS};
#define STRATEGIES (sizeof strategies / sizeof strategies[0])

static struct mm_testenv e;
static struct stage2 *s2;
static bool mapped[GFNS];
static uint64_t seed;
static _Atomic bool quit;

static uint64_t below(uint64_t n)
{
    return mm_test_random(&seed) % n;
}

/* Dense in one half of the cases, sparse in the other. */
static uint64_t gfn_of(unsigned i)
{
    return i < GFNS / 2 ? i : (uint64_t)i * SPREAD;
}

static void *other_faults(void *arg)
{
    uint64_t s = 77;
    struct s2_leaf leaf;

    (void)arg;
    while (!atomic_load(&quit)) {
        enum mf_status st =
            stage2_fault(s2, 0, gfn(OTHER + mm_test_random(&s) % 700), S2_WRITE, &leaf);

        if (st != MF_OK && st != MF_E_STATE)
            return s2;
    }
    return NULL;
}

static void map_some(void)
{
    for (uint64_t n = below(60); n; n--) {
        unsigned i = (unsigned)below(GFNS), run = below(4) ? 1 : (unsigned)below(40);

        for (; run && i < GFNS; run--, i++) {
            struct s2_leaf leaf;

            assert_int_equal(stage2_fault(s2, 0, gfn(gfn_of(i)), S2_WRITE, &leaf), MF_OK);
            mapped[i] = true;
        }
    }
}

static void run_teardown(struct teardown *t)
{
    uint32_t budget = below(3) ? 1 + (uint32_t)below(40) : TEARDOWN_BUDGET;
    enum mf_status st;

    while ((st = teardown_step(t, budget)) == MF_AGAIN || st == MF_BLOCKED)
        if (!below(3))
            stage2_reap(s2, 1 + below(64));
    assert_int_equal(st, MF_OK);
    teardown_end(t);
}

static const struct mf_teardown_ops *any_strategy(void)
{
    const struct mf_teardown_ops *ops = mm_test_teardown(strategies[below(STRATEGIES)]);

    if (!below(8))
        stage2_set_arena(s2, ops->flags & MF_TD_ARENA);
    if (!below(16))
        stage2_untrack(s2);
    return ops;
}

/* A range of the model goes; exactly its leaves are removed. */
static void tear_range(struct teardown *t)
{
    unsigned a = (unsigned)below(GFNS), b = a + (unsigned)below(below(2) ? 20 : GFNS - a);
    uint64_t expected = 0;

    if (b >= GFNS)
        b = GFNS - 1;
    for (unsigned i = a; i <= b; i++) {
        expected += mapped[i];
        mapped[i] = false;
    }
    assert_int_equal(
        teardown_begin_range(t, s2, any_strategy(), 0, 1, gfn(gfn_of(a)), gfn(gfn_of(b))), MF_OK);
    run_teardown(t);
    assert_int_equal(t->report.leaves_removed, expected);
    stage2_reap(s2, below(2) ? 5000 : 10);
}

static void tear_all(struct teardown *t)
{
    struct s2_info info;
    enum mf_status st;
    uint64_t leaves;

    stage2_close(s2);
    stage2_get_info(s2, &info);
    leaves = info.leaves[0];
    assert_int_equal(teardown_begin_whole(t, s2, any_strategy()), MF_OK);
    run_teardown(t);
    assert_int_equal(t->report.leaves_removed, leaves);
    assert_int_equal(t->report.tables_freed, info.frames_table - 1);
    while ((st = stage2_reap(s2, 1000)) == MF_AGAIN)
        ;
    assert_int_equal(st, MF_OK);
    stage2_get_info(s2, &info);
    assert_int_equal(info.frames_ram + info.leaves[0], 0);
    memset(mapped, 0, sizeof mapped);
    assert_int_equal(stage2_reopen(s2), MF_OK);
}

static void check_model(void)
{
    struct s2_leaf leaf;

    for (unsigned i = 0; i < GFNS; i++)
        assert_int_equal(stage2_lookup(s2, 0, gfn(gfn_of(i)), S2_READ, &leaf),
                         mapped[i] ? MF_OK : MF_E_NOT_FOUND);
}

/* Each present entry goes exactly once, nothing outside the range does, no frame is lost. */
static void test_random_teardowns(void **state)
{
    struct s2_config c = {
        .owner = OWNER, .roots = 1, .nr_regions = 1, .regions = {{{0}, UINT64_C(1) << 32}}};
    const char *env = getenv("MAYFLY_TEARDOWN_OPS");
    uint64_t ops = env ? strtoull(env, NULL, 0) : SHORT;
    struct teardown *t = malloc(sizeof *t);
    pthread_t thread;
    void *failed;

    (void)state;
    assert_non_null(t);
    seed = 88172645463325252u;
    mm_testenv_init(&e, 32768, 2);
    mm_testenv_select(&e, "buddy-lazy");
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_OK);
    assert_int_equal(pthread_create(&thread, NULL, other_faults, NULL), 0);
    for (uint64_t i = 0; i < ops; i++) {
        map_some();
        if (below(10))
            tear_range(t);
        else
            tear_all(t);
        if (i % 64 == 0)
            check_model();
    }
    check_model();
    atomic_store(&quit, true);
    pthread_join(thread, &failed);
    assert_null(failed);
    mm_test_end_stage2(s2, mm_test_teardown("arena"));
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_teardowns)};

    return cmocka_run_group_tests_name("teardown model", tests, NULL, NULL);
}
