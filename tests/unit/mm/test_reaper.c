/*
 * The reaper: trees of VMs that are gone.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "hv/mm/reaper.h"
#include "tests/unit/mm/mm_testenv.h"

static const char *const strategies[] = {MM_TEST_TEARDOWNS};
#define STRATEGIES (sizeof strategies / sizeof strategies[0])

static struct mm_testenv e;
static struct reaper reaper;
static struct reaper_result result;
static unsigned done, asked;
static const struct mf_teardown_ops *spare; /* what `replace` answers, once */

static void on_done(void *arg, const struct reaper_result *r)
{
    (void)arg;
    result = *r;
    done++;
}

static const struct mf_teardown_ops *on_replace(void *arg, void *tag, enum mf_status why)
{
    const struct mf_teardown_ops *ops = spare;

    (void)arg;
    (void)tag;
    assert_int_equal(why, MF_E_PLUGIN);
    spare = NULL;
    asked++;
    return ops;
}

static const struct reaper_ops reaper_ops = {on_done, on_replace, NULL};

static void setup(uint64_t frames)
{
    mm_testenv_init(&e, frames, 2);
    mm_testenv_select(&e, "buddy-lazy");
    reaper_init(&reaper, e.heap, &reaper_ops);
    done = asked = 0;
    spare = NULL;
}

static struct stage2 *life(uint32_t owner, uint64_t touched, bool track)
{
    struct s2_config c = {.owner = owner,
                          .roots = 2,
                          .track = track,
                          .nr_regions = 1,
                          .regions = {{{0}, UINT64_C(1) << 24}}};
    struct s2_leaf leaf;
    struct stage2 *s2;

    assert_int_equal(heap_owner_begin(e.heap, owner, UINT64_C(1) << 24), MF_OK);
    assert_int_equal(stage2_create(e.heap, &c, &s2), MF_OK);
    for (uint64_t g = 0; g < touched; g++)
        assert_int_equal(stage2_fault(s2, g % 5 == 4, gfn(g * 3), S2_WRITE, &leaf), MF_OK);
    return s2;
}

static void finish(uint32_t budget)
{
    enum mf_status st;

    while ((st = reaper_step(&reaper, budget)) == MF_AGAIN)
        ;
    assert_int_equal(st, MF_OK);
    assert_int_equal(atomic_load(&reaper.frames), 0);
}

static void end(void)
{
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* Every strategy takes a tree apart behind the VM's back, with any budget, and loses nothing. */
static void test_takes_trees_apart(void **state)
{
    static const uint32_t budgets[] = {1, 7, TEARDOWN_BUDGET};
    struct s2_info info;

    (void)state;
    for (unsigned i = 0; i < STRATEGIES * 3; i++) {
        const struct mf_teardown_ops *ops = mm_test_teardown(strategies[i / 3]);
        struct stage2 *s2;

        setup(8192);
        s2 = life(OWNER_VM(1), 300, i & 1);
        stage2_get_info(s2, &info);
        assert_int_equal(reaper_take(&reaper, s2, ops, &e), MF_OK);
        assert_int_equal(atomic_load(&reaper.trees), 1);
        assert_int_equal(atomic_load(&reaper.frames),
                         info.frames_ram + info.frames_table + info.spare + 1);
        assert_int_equal(done, 0);
        finish(budgets[i % 3]);
        assert_int_equal(done, 1);
        assert_ptr_equal(result.tag, &e);
        assert_int_equal(result.lost, 0);
        assert_int_equal(result.roots, 2);
        assert_int_equal(result.report.leaves_removed, 360);
        assert_int_equal(result.report.tables_freed, info.frames_table - 2);
        end();
    }
}

/* A new life of the same VM while its old tree is on its way: each has its own frames and quota. */
static void test_new_life_beside_old_tree(void **state)
{
    const struct mf_teardown_ops *ops = mm_test_teardown("deferred");
    struct stage2 *old, *new;
    struct s2_leaf leaf;

    (void)state;
    setup(8192);
    old = life(OWNER_VM(1), 200, false);
    assert_int_equal(reaper_take(&reaper, old, ops, NULL), MF_OK);
    assert_int_equal(heap_owner_begin(e.heap, OWNER_VM(1), 1), MF_E_EXISTS);
    new = life(OWNER_VM(2), 50, false);
    assert_int_equal(reaper_step(&reaper, 20), MF_AGAIN);
    assert_int_equal(stage2_lookup(new, 0, gfn(0), S2_READ, &leaf), MF_OK);
    assert_int_equal(heap_frame(e.heap, leaf.mfn)->owner, OWNER_VM(2));
    assert_int_equal(reaper_take(&reaper, new, ops, NULL), MF_OK);
    finish(TEARDOWN_BUDGET);
    assert_int_equal(done, 2);
    assert_int_equal(heap_owner_begin(e.heap, OWNER_VM(1), 1), MF_OK);
    assert_int_equal(heap_owner_end(e.heap, OWNER_VM(1)), 0);
    end();
}

/* A vCPU that could still hold a translation keeps its tree out of the reaper. */
static void test_viewers_keep_it(void **state)
{
    const struct mf_teardown_ops *ops = mm_test_teardown("deferred");
    struct teardown t;
    struct s2_viewer v;
    struct stage2 *s2;

    (void)state;
    setup(8192);
    s2 = life(OWNER_VM(1), 10, false);
    assert_int_equal(s2_viewer_add(s2, &v), MF_OK);
    assert_int_equal(reaper_take(&reaper, s2, ops, NULL), MF_E_BUSY);
    s2_viewer_remove(&v);
    assert_int_equal(teardown_begin_whole(&t, s2, ops), MF_OK);
    assert_int_equal(reaper_take(&reaper, s2, ops, NULL), MF_E_BUSY);
    teardown_end(&t);
    assert_int_equal(reaper_take(&reaper, s2, NULL, NULL), MF_E_PLUGIN);
    assert_int_equal(atomic_load(&reaper.trees), 0);
    assert_int_equal(reaper_take(&reaper, s2, ops, NULL), MF_OK);
    finish(TEARDOWN_BUDGET);
    end();
}

static int ok_begin(struct mf_zap *z, void *state)
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

/* A strategy that fails is replaced; where none can finish, the tree waits and others go on. */
static void test_failed_strategy_is_replaced(void **state)
{
    const struct mf_teardown_ops bad = {
        .size = sizeof bad, .flags = MF_TD_DEFERS, .begin = ok_begin, .step = claims_done};

    (void)state;
    setup(8192);
    spare = mm_test_teardown("single");
    assert_int_equal(reaper_take(&reaper, life(OWNER_VM(1), 100, false), &bad, NULL), MF_OK);
    finish(50);
    assert_int_equal(asked, 1);
    assert_int_equal(done, 1);

    assert_int_equal(reaper_take(&reaper, life(OWNER_VM(1), 100, false), &bad, NULL), MF_OK);
    assert_int_equal(
        reaper_take(&reaper, life(OWNER_VM(2), 100, false), mm_test_teardown("deferred"), NULL),
        MF_OK);
    finish(50);
    assert_int_equal(asked, 2);
    assert_int_equal(done, 2); /* the second one's; the first is parked, on nobody's way */
    spare = mm_test_teardown("scan");
    reaper_retry(&reaper);
    finish(50);
    assert_int_equal(done, 3);
    end();
}

/* An allocation that finds nothing brings in what is on its way instead of failing. */
static void test_allocation_helps(void **state)
{
    const uint64_t frames = 4096;
    uint64_t got = 0;
    mfn_t m, first = MFN_NONE;

    (void)state;
    setup(frames);
    for (unsigned i = 1; i <= 2; i++)
        assert_int_equal(
            reaper_take(&reaper, life(OWNER_VM(i), 500, false), mm_test_teardown("deferred"), NULL),
            MF_OK);
    while (heap_alloc(e.heap, 0, 0, OWNER_CORE, FRAME_T_CORE, 0, &m) == MF_OK) {
        *(uint64_t *)heap_ptr(e.heap, m) = first.v;
        first = m;
        got++;
    }
    assert_int_equal(got, frames); /* not one that was on its way was missed */
    assert_int_equal(done, 2);
    for (; got; got--) {
        m = first;
        first.v = *(uint64_t *)heap_ptr(e.heap, m);
        assert_int_equal(heap_free(e.heap, 0, m, 0, OWNER_CORE), MF_OK);
    }
    end();
}

static void *fault_all(void *arg)
{
    struct stage2 *s2 = arg;
    struct s2_leaf leaf;

    for (uint64_t g = 0; g < 700; g++)
        if (stage2_fault(s2, 0, gfn(g), S2_WRITE, &leaf) != MF_OK)
            return s2;
    return NULL;
}

/* Two VMs that fault under pressure, and the reaper's own caller: all go on, none fails. */
static void test_faults_help_side_by_side(void **state)
{
    struct stage2 *s2[2];
    pthread_t thread[2];
    enum mf_status st;
    void *failed;

    (void)state;
    for (unsigned round = 0; round < 5; round++) {
        setup(2048);
        assert_int_equal(reaper_take(&reaper, life(OWNER_VM(3), 1300, false),
                                     mm_test_teardown("deferred"), NULL),
                         MF_OK);
        for (unsigned i = 0; i < 2; i++) {
            s2[i] = life(OWNER_VM(1 + i), 1, false);
            assert_int_equal(pthread_create(&thread[i], NULL, fault_all, s2[i]), 0);
        }
        while ((st = reaper_step(&reaper, 16)) == MF_AGAIN || st == MF_BLOCKED)
            ;
        for (unsigned i = 0; i < 2; i++) {
            pthread_join(thread[i], &failed);
            assert_null(failed);
            mm_test_end_stage2(s2[i], mm_test_teardown("skip"));
            assert_int_equal(heap_owner_end(e.heap, OWNER_VM(1 + i)), 0);
        }
        assert_int_equal(done, 1);
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_trees_apart),
        cmocka_unit_test(test_new_life_beside_old_tree),
        cmocka_unit_test(test_viewers_keep_it),
        cmocka_unit_test(test_failed_strategy_is_replaced),
        cmocka_unit_test(test_allocation_helps),
        cmocka_unit_test(test_faults_help_side_by_side),
    };

    return cmocka_run_group_tests_name("reaper", tests, NULL, NULL);
}
