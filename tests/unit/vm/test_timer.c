#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "hv/dev/timer.h"

static struct dev_timers q;
static uint64_t clock_now, armed_at;
static unsigned arms, order[8], fired;

struct probe {
    struct dev_timer t; /* first */
    unsigned id;
    uint64_t again; /* set to this when it fires, 0: no */
};
static struct probe p[3];

static uint64_t now(void *arg)
{
    (void)arg;
    return clock_now;
}

static void arm(void *arg, uint64_t at)
{
    (void)arg;
    armed_at = at;
    arms++;
}

static void fire(struct dev_timer *t, uint64_t at)
{
    struct probe *x = (struct probe *)t;

    assert_true(at >= t->at);
    order[fired++ % 8] = x->id;
    if (x->again)
        dev_timer_set(&q, t, x->again);
}

static int setup(void **state)
{
    (void)state;
    clock_now = armed_at = 0;
    arms = fired = 0;
    dev_timers_init(&q, now, arm, NULL);
    for (unsigned i = 0; i < 3; i++)
        p[i] = (struct probe){.t.fire = fire, .id = i};
    return 0;
}

/* Protects the order: earliest first, whatever the order of setting, moved ones at their new place.
 */
static void test_order(void **state)
{
    (void)state;
    dev_timer_set(&q, &p[0].t, 300);
    dev_timer_set(&q, &p[1].t, 100);
    dev_timer_set(&q, &p[2].t, 200);
    dev_timer_set(&q, &p[1].t, 250);
    clock_now = 299;
    dev_timers_run(&q);
    assert_int_equal(fired, 2);
    assert_int_equal(order[0], 2);
    assert_int_equal(order[1], 1);
    assert_int_equal(armed_at, 300);
}

/* Protects that the host is told of earlier deadlines only, and of the next one after each run. */
static void test_arming(void **state)
{
    (void)state;
    dev_timer_set(&q, &p[0].t, 100);
    assert_int_equal(arms, 1);
    dev_timer_set(&q, &p[1].t, 500);
    dev_timer_set(&q, &p[0].t, 400);
    assert_int_equal(arms, 1);
    dev_timer_set(&q, &p[0].t, 50);
    assert_int_equal(arms, 2);
    assert_int_equal(armed_at, 50);
    clock_now = 60;
    dev_timers_run(&q);
    assert_int_equal(fired, 1);
    assert_int_equal(armed_at, 500);
    dev_timer_cancel(&q, &p[1].t);
    clock_now = 600;
    dev_timers_run(&q);
    assert_int_equal(fired, 1);
}

/* Protects against a device that sets its deadline in the past for ever: a run ends. */
static void test_past_deadline_ends_the_run(void **state)
{
    (void)state;
    p[0].again = 10;
    dev_timer_set(&q, &p[0].t, 5);
    clock_now = 1000;
    dev_timers_run(&q);
    assert_int_equal(fired, 1);
    assert_int_equal(armed_at, 10);
    dev_timers_run(&q);
    assert_int_equal(fired, 2);
}

/* Protects the way back from a pause: the earliest deadline is told again. */
static void test_rearm(void **state)
{
    (void)state;
    dev_timer_set(&q, &p[0].t, 100);
    dev_timer_set(&q, &p[1].t, 90);
    arms = 0;
    dev_timers_rearm(&q);
    assert_int_equal(arms, 1);
    assert_int_equal(armed_at, 90);
    dev_timer_cancel(&q, &p[0].t);
    dev_timer_cancel(&q, &p[1].t);
    dev_timer_cancel(&q, &p[1].t);
    dev_timers_rearm(&q);
    assert_int_equal(arms, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_order, setup),
        cmocka_unit_test_setup(test_arming, setup),
        cmocka_unit_test_setup(test_past_deadline_ends_the_run, setup),
        cmocka_unit_test_setup(test_rearm, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
