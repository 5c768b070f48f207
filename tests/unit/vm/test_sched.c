#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "hv/vm/sched.h"

#define VMS 4

/* A VM whose slices take `cost` of a clock that only they move. */
struct fake {
    struct sched_vm vm; /* first */
    struct sched_cpu cpu[2];
    uint64_t cost, slices, jobs;
    unsigned jobs_left;
    enum sched_after after;
    bool deadline;
    unsigned timers;
    bool wakes_itself;
    uint64_t timer_at, timer_next;
    _Atomic int inside;
    bool overlap;
};

static struct sched sched;
static struct fake fake[VMS];
static uint64_t clock_ns;
static uint64_t scrubs;
static unsigned scrubs_left, idles, kicks;

static uint64_t now(void *arg)
{
    (void)arg;
    return clock_ns;
}

static enum sched_after slice(struct sched_cpu *c)
{
    struct fake *f = (struct fake *)c->vm;

    f->slices++;
    clock_ns += f->cost;
    if (f->wakes_itself)
        sched_wake(&sched, c);
    return f->after;
}

static bool job(struct sched_vm *v)
{
    struct fake *f = (struct fake *)v;

    f->jobs++;
    clock_ns += f->cost;
    return f->jobs_left && --f->jobs_left;
}

static void deadline(struct sched_vm *v)
{
    ((struct fake *)v)->deadline = true;
}

static void kick(struct sched_cpu *c)
{
    (void)c;
    kicks++;
}

static void idle(struct sched_vm *v)
{
    (void)v;
    idles++;
}

static bool scrub(void *arg)
{
    (void)arg;
    scrubs++;
    clock_ns += 1000;
    return scrubs_left && --scrubs_left;
}

static uint64_t reap_ns;
static unsigned reaps_left;

static bool reap(void *arg)
{
    (void)arg;
    reap_ns += 150000;
    clock_ns += 150000;
    return reaps_left && --reaps_left;
}

static void timer(struct sched_vm *v)
{
    struct fake *f = (struct fake *)v;

    f->timers++;
    f->timer_at = clock_ns;
    if (f->timer_next)
        sched_timer(&sched, v, f->timer_next);
}

static const struct sched_ops ops = {
    .slice = slice,
    .job = job,
    .timer = timer,
    .deadline = deadline,
    .kick = kick,
    .idle = idle,
    .scrub = scrub,
    .reap = reap,
    .now_ns = now,
};

static int setup(void **state)
{
    (void)state;
    memset(fake, 0, sizeof fake);
    clock_ns = 1000000;
    reap_ns = reaps_left = 0;
    scrubs = scrubs_left = idles = kicks = 0;
    if (!sched_init(&sched, &ops, 0) || !sched_reserve(&sched, VMS))
        return -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sched_fini(&sched);
    return 0;
}

static struct fake *add(unsigned i, uint32_t weight, uint32_t cap, uint64_t cost)
{
    struct fake *f = &fake[i];

    sched_vm_init(&f->vm, weight, cap);
    sched_cpu_init(&f->vm, &f->cpu[0]);
    f->cost = cost;
    f->after = SCHED_AFTER_QUEUE;
    return f;
}

/* Runs until `until`; idle time passes to the next timer. */
static void run_until(uint64_t until)
{
    while (clock_ns < until)
        if (!sched_step(&sched))
            clock_ns = sched.timers_len ? sched.timers[0]->at : until;
}

/* Protects: CPU time is shared by weight, whatever the length of the slices. */
static void shares_follow_weight(void **state)
{
    struct fake *a = add(0, 100, 0, 1000000), *b = add(1, 300, 0, 700000);
    uint64_t from = clock_ns;

    (void)state;
    sched_vm_start(&sched, &a->vm);
    sched_vm_start(&sched, &b->vm);
    run_until(from + UINT64_C(4000000000));
    assert_in_range(a->vm.run_ns, 980000000, 1020000000);
    assert_in_range(b->vm.run_ns, 2980000000, 3020000000);
}

/* Protects: a VM with a cap gets its percentage over time and the CPU idles for the rest. */
static void cap_holds(void **state)
{
    struct fake *a = add(0, 100, 20, 900000);
    uint64_t from = clock_ns;

    (void)state;
    sched_vm_start(&sched, &a->vm);
    run_until(from + UINT64_C(10000000000));
    assert_in_range(a->vm.run_ns, 1950000000, 2050000000);
}

/* Protects: a slice far longer than the share of a period is paid back in later periods. */
static void cap_counts_overrun(void **state)
{
    struct fake *a = add(0, 100, 1, 5000000);
    uint64_t from = clock_ns;

    (void)state;
    sched_vm_start(&sched, &a->vm);
    run_until(from + UINT64_C(20000000000));
    assert_in_range(a->vm.run_ns, 190000000, 215000000);
}

/* Protects: a capped VM leaves its unused share to others, and cannot take theirs. */
static void cap_beside_others(void **state)
{
    struct fake *a = add(0, 10000, 10, 500000), *b = add(1, 1, 0, 500000);
    uint64_t from = clock_ns;

    (void)state;
    sched_vm_start(&sched, &a->vm);
    sched_vm_start(&sched, &b->vm);
    run_until(from + UINT64_C(5000000000));
    assert_in_range(a->vm.run_ns, 480000000, 520000000);
    assert_in_range(b->vm.run_ns, 4470000000, 4530000000);
}

/* Protects: sleeping saves up no claim: a VM that wakes does not shut the others out. */
static void sleep_saves_nothing(void **state)
{
    struct fake *a = add(0, 100, 0, 1000000), *b = add(1, 100, 0, 1000000);

    (void)state;
    sched_vm_start(&sched, &a->vm);
    run_until(clock_ns + UINT64_C(3000000000));
    sched_vm_start(&sched, &b->vm);
    uint64_t before = a->slices;
    run_until(clock_ns + UINT64_C(200000000));
    assert_in_range(a->slices - before, 95, 105);
    assert_in_range(b->slices, 95, 105);
}

/* Protects: background steps take turns with guests; neither starves the other. */
static void background_is_fair(void **state)
{
    struct fake *a = add(0, 100, 0, 1000000), *b = add(1, 100, 0, 100000);
    uint64_t from = clock_ns;

    (void)state;
    b->jobs_left = 1000000;
    sched_vm_start(&sched, &a->vm);
    sched_job(&sched, &b->vm);
    run_until(from + UINT64_C(1000000000));
    assert_in_range(a->slices, 480, 520);
    assert_in_range(b->jobs, 4800, 5200);
}

/* Protects: VMs that are torn down at once take turns, step by step. */
static void jobs_take_turns(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        add(i, 100, 0, 1000)->jobs_left = 10;
        sched_job(&sched, &fake[i].vm);
    }
    for (unsigned i = 0; i < 15; i++)
        assert_true(sched_step(&sched));
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(fake[i].jobs, 5);
}

/* Protects: a halted vCPU is never run; a wake-up runs it; one that comes while it runs is kept. */
static void halt_and_wake(void **state)
{
    struct fake *a = add(0, 100, 0, 1000);

    (void)state;
    a->after = SCHED_AFTER_HALT;
    sched_vm_start(&sched, &a->vm);
    assert_true(sched_step(&sched));
    assert_false(sched_step(&sched));
    assert_int_equal(sched_vm_halted(&sched, &a->vm), 1);
    sched_wake(&sched, &a->cpu[0]);
    assert_true(sched_step(&sched));
    assert_false(sched_step(&sched));
    assert_int_equal(a->slices, 2);
    /* woken while it runs: it does not sleep on that halt, and needs no kick */
    a->wakes_itself = true;
    sched_wake(&sched, &a->cpu[0]);
    assert_true(sched_step(&sched));
    a->wakes_itself = false;
    assert_true(sched_step(&sched));
    assert_int_equal(kicks, 0);
    assert_false(sched_step(&sched));
    /* woken twice before it runs: runs once */
    sched_wake(&sched, &a->cpu[0]);
    sched_wake(&sched, &a->cpu[0]);
    assert_true(sched_step(&sched));
    assert_false(sched_step(&sched));
}

/* Protects: devices' timers come before slices, not early, once, and again when set again; an
 * earlier moment wins; a halted vCPU waits for them without running. */
static void device_timers(void **state)
{
    struct fake *a = add(0, 100, 0, 1000);

    (void)state;
    a->after = SCHED_AFTER_HALT;
    sched_vm_start(&sched, &a->vm);
    assert_true(sched_step(&sched));
    sched_timer(&sched, &a->vm, clock_ns + 500);
    sched_timer(&sched, &a->vm, clock_ns + 900);
    assert_false(sched_step(&sched));
    clock_ns += 499;
    assert_false(sched_step(&sched));
    clock_ns += 1;
    a->timer_next = clock_ns + 100;
    sched_wake(&sched, &a->cpu[0]);
    assert_true(sched_step(&sched));
    assert_int_equal(a->timers, 1);
    assert_int_equal(a->slices, 1);
    a->timer_next = 0;
    assert_true(sched_step(&sched)); /* the slice, which takes longer than the timer */
    assert_int_equal(a->slices, 2);
    assert_true(sched_step(&sched));
    assert_int_equal(a->timers, 2);
    assert_false(sched_step(&sched));
    clock_ns += 10000;
    assert_false(sched_step(&sched));
}

/* Protects: no timer of a VM that is blocked or stopping is served, whenever it was set or came. */
static void device_timers_stand_still(void **state)
{
    struct fake *a = add(0, 100, 0, 1000);

    (void)state;
    sched_vm_start(&sched, &a->vm);
    sched_timer(&sched, &a->vm, clock_ns + 5);
    sched_vm_block(&sched, &a->vm);
    sched_timer(&sched, &a->vm, clock_ns + 6);
    clock_ns += 100;
    assert_false(sched_step(&sched));
    sched_vm_unblock(&sched, &a->vm);
    assert_true(sched_step(&sched));
    assert_int_equal(a->timers, 0);
    sched_timer(&sched, &a->vm, clock_ns);
    sched_vm_stop(&sched, &a->vm);
    sched_timer(&sched, &a->vm, clock_ns);
    while (sched_step(&sched))
        ;
    assert_int_equal(a->timers, 0);
    sched_vm_reset(&sched, &a->vm);
    assert_true(sched_vm_idle(&sched, &a->vm));
}

/* Protects: a blocked VM runs no slice, keeps its place and goes on; its job runs all the same. */
static void block_and_unblock(void **state)
{
    struct fake *a = add(0, 100, 0, 1000);

    (void)state;
    sched_vm_start(&sched, &a->vm);
    sched_vm_block(&sched, &a->vm);
    assert_false(sched_step(&sched));
    sched_job(&sched, &a->vm);
    assert_true(sched_step(&sched));
    assert_int_equal(a->jobs, 1);
    assert_int_equal(a->slices, 0);
    sched_vm_unblock(&sched, &a->vm);
    assert_true(sched_step(&sched));
    assert_int_equal(a->slices, 1);
}

/* Protects: after stop comes the job and no slice, whether it was blocked, throttled or halted. */
static void stop_leads_to_job(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct fake *f = add(i, 100, i == 2 ? 1 : 0, 50000000);

        f->after = i == 1 ? SCHED_AFTER_HALT : SCHED_AFTER_QUEUE;
        sched_vm_start(&sched, &f->vm);
        if (i == 0)
            sched_vm_block(&sched, &f->vm);
        else
            assert_true(sched_step(&sched));
        uint64_t slices = f->slices;
        sched_vm_stop(&sched, &f->vm);
        assert_true(sched_step(&sched));
        assert_int_equal(f->jobs, 1);
        assert_int_equal(f->slices, slices);
        assert_false(sched_step(&sched));
        sched_vm_reset(&sched, &f->vm);
        assert_true(sched_vm_idle(&sched, &f->vm));
    }
}

/* Protects: the earlier of two deadlines counts; it fires once, and not after a stop. */
static void deadlines(void **state)
{
    struct fake *a = add(0, 100, 0, 1000), *b = add(1, 100, 0, 1000);

    (void)state;
    sched_deadline(&sched, &a->vm, clock_ns + 5000);
    sched_deadline(&sched, &a->vm, clock_ns + 9000);
    sched_deadline(&sched, &a->vm, clock_ns + 3000);
    assert_false(sched_step(&sched));
    clock_ns += 3000;
    assert_true(sched_step(&sched));
    assert_true(a->deadline);
    assert_int_equal(a->jobs, 1);
    clock_ns += 100000;
    assert_false(sched_step(&sched));
    sched_deadline(&sched, &b->vm, clock_ns + 1000);
    sched_vm_stop(&sched, &b->vm);
    clock_ns += 2000;
    assert_true(sched_step(&sched));
    assert_false(sched_step(&sched));
    assert_false(b->deadline);
}

/* Protects: scrubbing runs when there is something to scrub and ends when there is not. */
static void scrubbing_ends(void **state)
{
    (void)state;
    scrubs_left = 5;
    sched_scrub(&sched);
    while (sched_step(&sched))
        ;
    assert_int_equal(scrubs, 5);
}

/* ---- with threads */

static enum sched_after slice_threads(struct sched_cpu *c)
{
    struct fake *f = (struct fake *)c->vm;

    atomic_fetch_add(&f->inside, 1);
    for (volatile int i = 0; i < 2000; i++)
        ;
    atomic_fetch_sub(&f->inside, 1);
    return SCHED_AFTER_QUEUE;
}

static bool job_threads(struct sched_vm *v)
{
    struct fake *f = (struct fake *)v;

    if (atomic_load(&f->inside))
        f->overlap = true;
    __atomic_fetch_add(&f->jobs, 1, __ATOMIC_SEQ_CST);
    return false;
}

static uint64_t now_threads(void *arg)
{
    static _Atomic uint64_t t = 1;

    (void)arg;
    return atomic_fetch_add(&t, 1000);
}

static void idle_threads(struct sched_vm *v)
{
    (void)v;
}

static void kick_threads(struct sched_cpu *c)
{
    (void)c;
}

static void timer_threads(struct sched_vm *v)
{
    struct fake *f = (struct fake *)v;

    atomic_fetch_add(&f->inside, 1);
    __atomic_fetch_add(&f->timers, 1, __ATOMIC_SEQ_CST);
    atomic_fetch_sub(&f->inside, 1);
}

static const struct sched_ops ops_threads = {
    .slice = slice_threads,
    .job = job_threads,
    .timer = timer_threads,
    .deadline = deadline,
    .kick = kick_threads,
    .idle = idle_threads,
    .scrub = scrub,
    .now_ns = now_threads,
};

/* Protects: a stopping VM's job never runs beside one of its slices, with slices on two threads. */
static void stop_waits_for_slices(void **state)
{
    struct sched s;

    (void)state;
    memset(fake, 0, sizeof fake);
    assert_true(sched_init(&s, &ops_threads, 3));
    assert_true(sched_reserve(&s, VMS));
    for (unsigned round = 0; round < 50; round++) {
        struct fake *f = &fake[round % VMS];
        uint64_t jobs = __atomic_load_n(&f->jobs, __ATOMIC_SEQ_CST);

        sched_vm_init(&f->vm, 100, 0);
        sched_cpu_init(&f->vm, &f->cpu[0]);
        sched_cpu_init(&f->vm, &f->cpu[1]);
        sched_vm_start(&s, &f->vm);
        sched_wake(&s, &f->cpu[1]);
        for (unsigned i = 0; i < 20; i++) {
            sched_timer(&s, &f->vm, 1);
            usleep(10);
        }
        sched_vm_stop(&s, &f->vm);
        for (unsigned i = 0; i < 100000 && !sched_vm_idle(&s, &f->vm); i++)
            usleep(100);
        assert_true(__atomic_load_n(&f->jobs, __ATOMIC_SEQ_CST) > jobs);
        assert_true(sched_vm_idle(&s, &f->vm));
        assert_false(f->overlap);
        sched_vm_reset(&s, &f->vm);
    }
    sched_fini(&s);
}

/* Protects: the reaper takes at most a tenth of a CPU while a vCPU wants one, all of an idle one.
 */
static void reaper_leaves_vcpus_theirs(void **state)
{
    struct fake *a = add(0, 100, 0, 100000);
    uint64_t from = clock_ns;

    (void)state;
    reaps_left = 1000000;
    sched_vm_start(&sched, &a->vm);
    sched_reap(&sched);
    run_until(from + UINT64_C(1000000000));
    assert_in_range(reap_ns, 80000000, 100500000);
    a->after = SCHED_AFTER_HALT;
    run_until(clock_ns + UINT64_C(10000000));
    reap_ns = 0;
    from = clock_ns;
    run_until(from + UINT64_C(100000000));
    assert_in_range(reap_ns, 99000000, 100500000);
    reaps_left = 1;
    run_until(clock_ns + UINT64_C(1000000));
    assert_false(sched_step(&sched));
}

/* Protects: jobs that never end do not keep the reaper from its turn, nor it them. */
static void reaper_and_jobs_take_turns(void **state)
{
    struct fake *a = add(0, 100, 0, 150000);

    (void)state;
    reaps_left = 1000000;
    a->jobs_left = 1000000;
    sched_job(&sched, &a->vm);
    sched_reap(&sched);
    run_until(clock_ns + UINT64_C(100000000));
    assert_in_range(reap_ns, 49000000, 51000000);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(shares_follow_weight),
        T(cap_holds),
        T(cap_counts_overrun),
        T(cap_beside_others),
        T(sleep_saves_nothing),
        T(background_is_fair),
        T(jobs_take_turns),
        T(halt_and_wake),
        T(device_timers),
        T(device_timers_stand_still),
        T(block_and_unblock),
        T(stop_leads_to_job),
        T(deadlines),
        T(scrubbing_ends),
        T(reaper_leaves_vcpus_theirs),
        T(reaper_and_jobs_take_turns),
        cmocka_unit_test(stop_waits_for_slices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
