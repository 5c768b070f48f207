/*
 * Threads at once, for the thread sanitizer and for lost or doubled frames: vCPUs that fault and
 * write through what they looked up, teardowns of ranges under them, reaping, heap churn,
 * scrubbing, swaps of the allocator.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define OWNER       OWNER_VM(1)
#define VCPUS       2
#define GFNS        2048u
#define STARVED_MAX 20000000u
#define ROUNDS      1000u /* hundreds of leaves that the unmapper removes before it ends */

static const char *const allocators[] = {MM_TEST_ALLOCATORS};
#define ALLOCATORS (sizeof allocators / sizeof allocators[0])

enum {
    WRONG_VIEWER,   /* a viewer was not taken */
    WRONG_FAULT,    /* a fault failed */
    WRONG_DATA,     /* a frame held what it must not */
    WRONG_TEARDOWN, /* a teardown failed */
    WRONG_FREE,     /* a free was refused */
    WRONG_SWAP,     /* a swap failed */
    WRONG_AUDIT,    /* the table and the allocator do not agree */
    WRONG_OFFLINE,  /* frames did not go out of use, or not back */
    WRONG_KINDS
};

struct world {
    struct mm_testenv e;
    struct stage2 *s2;
    _Atomic bool stop;
    /* Threads must not call cmocka's asserts: they count what is wrong, by kind. */
    _Atomic unsigned wrong[WRONG_KINDS];
    const struct mf_teardown_ops *strategy[4];
    const struct mf_allocator_ops *alloc[ALLOCATORS];
};

/*
 * A vCPU with a translation cache of one. A frame that it may still write must not be in other
 * hands: it puts its mark there and finds it again as long as its translation is valid.
 */
static void *vcpu(void *arg)
{
    struct world *w = arg;
    struct s2_viewer v = {0};
    uint64_t seed = (uint64_t)(uintptr_t)&v | 1;
    unsigned starved = 0; /* faults without memory, one behind the other */

    if (s2_viewer_add(w->s2, &v) != MF_OK)
        w->wrong[WRONG_VIEWER]++;
    while (!w->stop) {
        s2_viewer_enter(&v);
        for (unsigned i = 0; i < 50 && !w->stop; i++) {
            uint64_t g = mm_test_random(&seed) % GFNS;
            struct s2_leaf leaf;
            enum mf_status st;
            _Atomic uint64_t *p;

            if (s2_viewer_stale(&v))
                s2_viewer_ack(&v);
            st = stage2_fault(w->s2, 0, gfn(g), S2_WRITE, &leaf);
            if (st != MF_OK) {
                /* What waits for another viewer to run can be all the memory that there is. */
                if (st != MF_E_NO_MEMORY || ++starved == STARVED_MAX)
                    w->wrong[WRONG_FAULT]++;
                sched_yield();
                continue;
            }
            starved = 0;
            p = heap_ptr(w->e.heap, leaf.mfn);
            for (unsigned k = 0; k < 5; k++) {
                uint64_t was = atomic_load_explicit(p, memory_order_relaxed);

                if (was && was != g + 1)
                    w->wrong[WRONG_DATA]++;
                atomic_store_explicit(p, g + 1, memory_order_relaxed);
            }
        }
        s2_viewer_leave(&v);
    }
    s2_viewer_remove(&v);
    return NULL;
}

static void *unmapper(void *arg)
{
    struct teardown *t = malloc(sizeof *t);
    struct world *w = arg;
    uint64_t seed = 31, removed = 0;

    for (unsigned i = 0; removed < ROUNDS * 100u; i++) {
        uint64_t a = mm_test_random(&seed) % GFNS, b = a + mm_test_random(&seed) % 700;
        enum mf_status st;

        if (teardown_begin_range(t, w->s2, w->strategy[i % 4], 0, 1, gfn(a), gfn(b)) != MF_OK)
            w->wrong[WRONG_TEARDOWN]++;
        while ((st = teardown_step(t, 64)) == MF_AGAIN || st == MF_BLOCKED)
            stage2_reap(w->s2, 64);
        if (st != MF_OK)
            w->wrong[WRONG_TEARDOWN]++;
        removed += t->report.leaves_removed;
        teardown_end(t);
        stage2_reap(w->s2, 512);
    }
    w->stop = true;
    free(t);
    return NULL;
}

static void *churn(void *arg)
{
    struct world *w = arg;
    uint64_t seed = (uint64_t)(uintptr_t)&seed | 1;
    uint32_t owner = OWNER_VM(10 + seed % 1000000);
    unsigned cpu = (unsigned)(seed >> 4);

    while (!w->stop) {
        mfn_t m[16];
        unsigned order[16], n = 0;

        for (; n < 16; n++) {
            uint64_t *p;

            order[n] = (unsigned)(mm_test_random(&seed) % 4) * (n % 5 == 0 ? 3 : 1);
            if (heap_alloc(w->e.heap, cpu, order[n], owner, FRAME_T_RAM, HEAP_ZERO, &m[n]) != MF_OK)
                break;
            p = heap_ptr(w->e.heap, m[n]);
            if (*p)
                w->wrong[WRONG_DATA]++;
            *p = owner;
        }
        while (n--) {
            if (*(uint64_t *)heap_ptr(w->e.heap, m[n]) != owner)
                w->wrong[WRONG_DATA]++;
            if (heap_free(w->e.heap, cpu, m[n], order[n], owner) != MF_OK)
                w->wrong[WRONG_FREE]++;
        }
    }
    return NULL;
}

/* Frames leave and come back while others use them. */
static void offline_some(struct world *w, unsigned i)
{
    mfn_t first = mfn(i * 977u % 16000);
    struct heap_offline_report r;

    if (heap_offline(w->e.heap, first, 100, &r) != MF_OK ||
        r.changed + r.waiting + r.already != 100)
        w->wrong[WRONG_OFFLINE]++;
    if (heap_online(w->e.heap, first, 100, &r) != MF_OK || r.already)
        w->wrong[WRONG_OFFLINE]++;
}

static void *keeper(void *arg)
{
    struct world *w = arg;

    for (unsigned i = 0; !w->stop; i++) {
        struct heap_audit a = {0};
        struct heap_info info;

        heap_scrub_step(w->e.heap, 32);
        heap_set_scrub(w->e.heap, (enum heap_scrub)(i / 30 % HEAP_SCRUB_KINDS));
        offline_some(w, i);
        if (i % 20 == 0 && heap_select(w->e.heap, allocators[i / 20 % ALLOCATORS],
                                       w->alloc[i / 20 % ALLOCATORS], NULL, NULL) != MF_OK)
            w->wrong[WRONG_SWAP]++;
        if (i % 50 == 0) {
            while (heap_audit_step(w->e.heap, &a, 2000) == MF_AGAIN)
                ;
            if (a.overlaps || a.listed_in_use || a.lost)
                w->wrong[WRONG_AUDIT]++;
        }
        heap_get_info(w->e.heap, &info);
        stage2_track_step(w->s2, 64);
    }
    return NULL;
}

/*
 * A list changed with the lock held only for reading: retired frames, tables and marks are changed
 * by teardown, faults, protection and swaps while others read them, all at once. Nothing is reused
 * while a viewer may see it, handed out twice, lost or leaked.
 */
static void test_list_changed_with_the_lock_held_for_reading(void **state)
{
    struct s2_config c = {.owner = OWNER, .roots = 1, .nr_regions = 1, .regions = {{{0}, GFNS}}};
    struct world *w = calloc(1, sizeof *w);
    pthread_t t[VCPUS + 4];
    unsigned n = 0;

    (void)state;
    assert_non_null(w);
    mm_testenv_init(&w->e, 16384, 4);
    mm_testenv_select(&w->e, allocators[0]);
    for (unsigned i = 0; i < ALLOCATORS; i++)
        w->alloc[i] = mm_test_allocator(allocators[i]);
    w->strategy[0] = mm_test_teardown("scan");
    w->strategy[1] = mm_test_teardown("skip");
    w->strategy[2] = mm_test_teardown("single");
    w->strategy[3] = mm_test_teardown("tracked");
    assert_int_equal(stage2_create(w->e.heap, &c, &w->s2), MF_OK);
    for (; n < VCPUS; n++)
        assert_int_equal(pthread_create(&t[n], NULL, vcpu, w), 0);
    assert_int_equal(pthread_create(&t[n++], NULL, churn, w), 0);
    assert_int_equal(pthread_create(&t[n++], NULL, churn, w), 0);
    assert_int_equal(pthread_create(&t[n++], NULL, keeper, w), 0);
    assert_int_equal(pthread_create(&t[n++], NULL, unmapper, w), 0);
    while (n)
        assert_int_equal(pthread_join(t[--n], NULL), 0);
    for (unsigned i = 0; i < WRONG_KINDS; i++)
        if (w->wrong[i])
            fail_msg("%u errors of kind %u", w->wrong[i], i);
    mm_test_end_stage2(w->s2, w->strategy[0]);
    mm_testenv_audit(&w->e, 0);
    mm_testenv_fini(&w->e);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list_changed_with_the_lock_held_for_reading),
    };

    return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
