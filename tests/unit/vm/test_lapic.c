#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "hv/dev/ioapic.h"
#include "hv/dev/lapic.h"

#define CPUS 4u

static struct dev_timers q;
static struct lapics bus;
static struct lapic cpu[CPUS];
static struct ioapic io;
static uint64_t clock_now, offset[CPUS];
static unsigned seen[CPUS][4];
static uint8_t sipi;

static uint64_t now(void *arg)
{
    (void)arg;
    return clock_now;
}

static void arm(void *arg, uint64_t at)
{
    (void)arg;
    (void)at;
}

static void event(void *arg, unsigned n, enum lapic_event e, uint8_t vector)
{
    (void)arg;
    seen[n][e]++;
    if (e == LAPIC_EV_SIPI)
        sipi = vector;
}

static void eoi(void *arg, uint8_t vector)
{
    (void)arg;
    ioapic_eoi(&io, vector);
}

static uint64_t tsc_offset(void *arg, unsigned n)
{
    (void)arg;
    return offset[n];
}

static int setup(void **state)
{
    (void)state;
    clock_now = 1000;
    memset(offset, 0, sizeof offset);
    dev_timers_init(&q, now, arm, NULL);
    bus = (struct lapics){.first = cpu,
                          .stride = sizeof cpu[0],
                          .count = CPUS,
                          .timers = &q,
                          .event = event,
                          .eoi = eoi,
                          .tsc_offset = tsc_offset};
    lapics_init(&bus);
    ioapic_init(&io, &bus);
    for (unsigned i = 0; i < CPUS; i++)
        lapic_write(&cpu[i], 0xf0, 0x1ff);
    memset(seen, 0, sizeof seen);
    return 0;
}

static void pass(uint64_t ns)
{
    uint64_t end = clock_now + ns;

    while (q.first && q.first->at <= end) {
        clock_now = q.first->at > clock_now ? q.first->at : clock_now;
        dev_timers_run(&q);
    }
    clock_now = end;
}

static void ipi(unsigned from, unsigned to, uint32_t low)
{
    lapic_write(&cpu[from], 0x310, to << 24);
    lapic_write(&cpu[from], 0x300, low);
}

/* Protects what a processor finds after power-on: id, version, everything masked but the 8259's way
 * to the first one. */
static void power_on(void **state)
{
    (void)state;
    lapics_init(&bus);
    for (unsigned i = 0; i < CPUS; i++) {
        assert_int_equal(lapic_read(&cpu[i], 0x20), i << 24);
        assert_int_equal(lapic_read(&cpu[i], 0x30) & 0xff, 0x14);
        assert_int_equal(lapic_read(&cpu[i], 0xf0), 0xff);
        assert_int_equal(lapic_read(&cpu[i], 0x320), 0x10000);
        assert_int_equal(lapic_takes_pic(&cpu[i]), i == 0);
    }
    ipi(1, 0, 0x40);
    assert_false(lapic_pending(&cpu[0])); /* switched off by software */
}

/* Protects priorities: by class, against those in service and against the task priority. */
static void priorities(void **state)
{
    (void)state;
    ipi(1, 0, 0x41);
    ipi(1, 0, 0x62);
    assert_int_equal(seen[0][LAPIC_EV_INTR], 2);
    assert_int_equal(lapic_ack(&cpu[0]), 0x62);
    assert_int_equal(lapic_ack(&cpu[0]), -1);
    assert_int_equal(lapic_read(&cpu[0], 0xa0), 0x60);
    ipi(1, 0, 0x6f); /* the same class does not nest */
    assert_false(lapic_pending(&cpu[0]));
    ipi(1, 0, 0x70);
    assert_int_equal(lapic_ack(&cpu[0]), 0x70);
    lapic_write(&cpu[0], 0xb0, 0);
    lapic_write(&cpu[0], 0x80, 0x60);
    lapic_write(&cpu[0], 0xb0, 0);
    assert_false(lapic_pending(&cpu[0]));
    memset(seen, 0, sizeof seen);
    lapic_set_cr8(&cpu[0], 5);
    assert_int_equal(seen[0][LAPIC_EV_INTR], 1); /* a lower task priority lets it through */
    assert_int_equal(lapic_get_cr8(&cpu[0]), 5);
    assert_int_equal(lapic_ack(&cpu[0]), 0x6f);
}

/* Protects destinations: physical, shorthands, logical flat and cluster, broadcast. */
static void destinations(void **state)
{
    static const struct {
        uint32_t dfr, dest, low;
        unsigned hit; /* bit per vCPU */
    } cases[] = {
        {0xf, 2, 0x50, 0x4},     {0xf, 0xff, 0x50, 0xf},  {0xf, 0, 0x40050, 0x2},
        {0xf, 0, 0x80050, 0xf},  {0xf, 0, 0xc0050, 0xd},  {0xf, 0x05, 0x850, 0x5},
        {0x0, 0x13, 0x850, 0x1}, {0x0, 0x23, 0x850, 0x6}, {0xf, 9, 0x50, 0},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setup(NULL);
        for (unsigned n = 0; n < CPUS; n++) {
            /* flat: a bit each; clusters: 0 alone in 1, 1 and 2 in 2 */
            uint32_t ldr = cases[i].dfr ? 1u << n : n == 0 ? 0x11 : n < 3 ? 0x20 | n : 0x31;

            lapic_write(&cpu[n], 0xe0, cases[i].dfr << 28);
            lapic_write(&cpu[n], 0xd0, ldr << 24);
        }
        ipi(1, cases[i].dest, cases[i].low);
        for (unsigned n = 0; n < CPUS; n++)
            assert_int_equal(lapic_pending(&cpu[n]), cases[i].hit >> n & 1);
    }
}

/* Protects lowest priority delivery: one processor, the least busy one, in turn. */
static void lowest_priority(void **state)
{
    unsigned total = 0;

    (void)state;
    lapic_write(&cpu[0], 0x80, 0x30);
    for (unsigned i = 0; i < 3; i++)
        ipi(0, 0xff, (0x50 + i) | 0x100);
    assert_false(lapic_pending(&cpu[0]));
    for (unsigned n = 1; n < CPUS; n++)
        total += lapic_pending(&cpu[n]);
    assert_int_equal(total, 3);
}

/* Protects the start of processors: NMI, INIT resets the LAPIC, SIPI carries its page, the
 * de-assert of old software is nothing. */
static void start_messages(void **state)
{
    (void)state;
    ipi(0, 2, 0x400);
    assert_int_equal(seen[2][LAPIC_EV_NMI], 1);
    lapic_write(&cpu[2], 0x80, 0x20);
    ipi(0, 2, 0x8500); /* INIT, level, de-assert */
    assert_int_equal(seen[2][LAPIC_EV_INIT], 0);
    ipi(0, 2, 0xc500);
    assert_int_equal(seen[2][LAPIC_EV_INIT], 1);
    assert_int_equal(lapic_read(&cpu[2], 0x80), 0);
    assert_int_equal(lapic_read(&cpu[2], 0xf0), 0xff);
    assert_int_equal(lapic_read(&cpu[2], 0x20), 2u << 24);
    ipi(0, 2, 0x69a);
    assert_int_equal(seen[2][LAPIC_EV_SIPI], 1);
    assert_int_equal(sipi, 0x9a);
}

/* Protects errors: vectors below 16 are refused, told in ESR and by the error vector. */
static void illegal_vectors(void **state)
{
    (void)state;
    lapic_write(&cpu[0], 0x370, 0x33);
    ipi(0, 1, 0x0f);
    assert_false(lapic_pending(&cpu[1]));
    assert_int_equal(lapic_ack(&cpu[0]), 0x33);
    lapic_write(&cpu[0], 0x280, 0);
    assert_int_equal(lapic_read(&cpu[0], 0x280), 0x20);
    lapic_write(&cpu[0], 0x370, 0x05); /* an error vector that is itself illegal must not recurse */
    ipi(0, 1, 0x01);
    lapic_write(&cpu[0], 0x280, 0);
    assert_int_equal(lapic_read(&cpu[0], 0x280), 0x60);
}

/* Protects the one-shot timer: once, after count times divider, with the count going down. */
static void timer_one_shot(void **state)
{
    (void)state;
    lapic_write(&cpu[0], 0x320, 0x30);
    lapic_write(&cpu[0], 0x3e0, 0x3); /* by 16 */
    lapic_write(&cpu[0], 0x380, 1000);
    pass(8000);
    assert_in_range(lapic_read(&cpu[0], 0x390), 499, 501);
    pass(7999);
    assert_false(lapic_pending(&cpu[0]));
    pass(1);
    assert_int_equal(lapic_ack(&cpu[0]), 0x30);
    assert_int_equal(lapic_read(&cpu[0], 0x390), 0);
    lapic_write(&cpu[0], 0xb0, 0);
    pass(1000000);
    assert_false(lapic_pending(&cpu[0]));
}

/* Protects the periodic timer, and that one too fast for the host is slowed down, not piled up. */
static void timer_periodic(void **state)
{
    unsigned n = 0;

    (void)state;
    lapic_write(&cpu[1], 0x3e0, 0xb); /* by 1 */
    lapic_write(&cpu[1], 0x320, 0x20031);
    lapic_write(&cpu[1], 0x380, 1000000);
    for (unsigned i = 0; i < 100; i++) {
        pass(100000);
        if (lapic_ack(&cpu[1]) == 0x31)
            n++;
        lapic_write(&cpu[1], 0xb0, 0);
    }
    assert_int_equal(n, 10);
    memset(seen, 0, sizeof seen);
    lapic_write(&cpu[1], 0x380, 1);
    for (unsigned i = 0; i < 100; i++) {
        pass(10000);
        if (lapic_ack(&cpu[1]) >= 0)
            lapic_write(&cpu[1], 0xb0, 0);
    }
    assert_in_range(seen[1][LAPIC_EV_INTR], 10, 1000000 / LAPIC_MIN_STEP_NS + 1);
    lapic_write(&cpu[1], 0x380, 0);
    assert_null(q.first);
}

/* Protects the TSC deadline: by the vCPU's own TSC, at once when it is past, off by 0, and nothing
 * in the other modes. */
static void timer_deadline(void **state)
{
    uint64_t v;

    (void)state;
    offset[0] = UINT64_C(0) - 500;
    assert_true(lapic_msr_write(&cpu[0], 0x6e0, 123));
    assert_true(lapic_msr_read(&cpu[0], 0x6e0, &v) && v == 0);
    lapic_write(&cpu[0], 0x320, 0x40032);
    assert_true(lapic_msr_write(&cpu[0], 0x6e0, clock_now - 500 + 2000));
    pass(1999);
    assert_false(lapic_pending(&cpu[0]));
    assert_true(lapic_msr_read(&cpu[0], 0x6e0, &v) && v);
    pass(1);
    assert_int_equal(lapic_ack(&cpu[0]), 0x32);
    assert_true(lapic_msr_read(&cpu[0], 0x6e0, &v) && v == 0);
    lapic_write(&cpu[0], 0xb0, 0);
    assert_true(lapic_msr_write(&cpu[0], 0x6e0, 1));
    pass(0);
    assert_int_equal(lapic_ack(&cpu[0]), 0x32);
    lapic_write(&cpu[0], 0xb0, 0);
    assert_true(lapic_msr_write(&cpu[0], 0x6e0, clock_now + 1000));
    offset[0] += 600;
    lapic_tsc_moved(&cpu[0]);
    pass(950);
    assert_true(lapic_pending(&cpu[0]));
    assert_true(lapic_msr_write(&cpu[0], 0x6e0, UINT64_C(1) << 62));
    assert_non_null(q.first);
    assert_true(lapic_msr_write(&cpu[0], 0x6e0, 0));
    assert_null(q.first);
}

/* Protects x2APIC: the way into it, its registers, 32-bit ids, self IPI, and #GP for the rest. */
static void x2apic(void **state)
{
    uint64_t v;

    (void)state;
    assert_false(lapic_msr_read(&cpu[3], 0x802, &v));
    assert_false(lapic_msr_write(&cpu[3], 0x1b, 0xfee00400));
    for (unsigned i = 0; i < CPUS; i++)
        assert_true(lapic_msr_write(&cpu[i], 0x1b, 0xfee00c00));
    assert_true(lapic_msr_read(&cpu[0], 0x1b, &v) && v == 0xfee00d00);
    assert_true(lapic_msr_read(&cpu[3], 0x802, &v) && v == 3);
    assert_true(lapic_msr_read(&cpu[3], 0x80d, &v) && v == 8);
    assert_true(lapic_msr_write(&cpu[0], 0x830, UINT64_C(3) << 32 | 0x51));
    assert_int_equal(lapic_ack(&cpu[3]), 0x51);
    assert_true(lapic_msr_write(&cpu[0], 0x830, UINT64_C(6) << 32 | 0x852)); /* logical */
    assert_true(lapic_pending(&cpu[1]) && lapic_pending(&cpu[2]));
    assert_true(lapic_msr_write(&cpu[0], 0x830, UINT64_C(0xffffffff) << 32 | 0x53));
    assert_true(lapic_msr_write(&cpu[2], 0x83f, 0x77));
    assert_int_equal(lapic_ack(&cpu[2]), 0x77);
    assert_true(lapic_msr_write(&cpu[2], 0x80b, 0));
    assert_false(lapic_msr_write(&cpu[2], 0x80b, 1));
    assert_false(lapic_msr_write(&cpu[2], 0x802, 1)); /* the id is read only */
    assert_false(lapic_msr_read(&cpu[2], 0x80e, &v)); /* no DFR */
    assert_false(lapic_msr_write(&cpu[2], 0x808, UINT64_C(1) << 32));
    assert_false(lapic_msr_write(&cpu[2], 0x1b, 0xfee00800)); /* not straight back */
    assert_true(lapic_msr_write(&cpu[2], 0x1b, 0xfee00000));
    assert_false(lapic_msr_write(&cpu[2], 0x1b, 0xfee00c00));
    assert_true(lapic_msr_write(&cpu[2], 0x1b, 0xfee00800));
    assert_int_equal(lapic_read(&cpu[2], 0xf0), 0xff);
}

/* ---- IOAPIC */

static void entry(unsigned pin, uint64_t v)
{
    ioapic_write(&io, 0, 0x11 + 2 * pin);
    ioapic_write(&io, 0x10, (uint32_t)(v >> 32));
    ioapic_write(&io, 0, 0x10 + 2 * pin);
    ioapic_write(&io, 0x10, (uint32_t)v);
}

static uint32_t entry_low(unsigned pin)
{
    ioapic_write(&io, 0, 0x10 + 2 * pin);
    return ioapic_read(&io, 0x10);
}

/* Protects the IOAPIC's identity: 24 inputs, all masked after power-on. */
static void io_power_on(void **state)
{
    (void)state;
    ioapic_write(&io, 0, 1);
    assert_int_equal(ioapic_read(&io, 0x10), 0x170020);
    for (unsigned i = 0; i < IOAPIC_PINS; i++)
        assert_int_equal(entry_low(i), 0x10000);
    ioapic_write(&io, 0, 0xff);
    ioapic_write(&io, 0x10, UINT32_MAX);
    assert_int_equal(ioapic_read(&io, 0x10), 0);
}

/* Protects edges: one message a rise, none while masked, none by a level that stays. */
static void io_edge(void **state)
{
    (void)state;
    entry(4, UINT64_C(2) << 56 | 0x10044);
    ioapic_set(&io, 4, true);
    entry(4, UINT64_C(2) << 56 | 0x44);
    assert_false(lapic_pending(&cpu[2]));
    ioapic_set(&io, 4, false);
    ioapic_set(&io, 4, true);
    assert_int_equal(lapic_ack(&cpu[2]), 0x44);
    lapic_write(&cpu[2], 0xb0, 0);
    ioapic_set(&io, 4, true);
    assert_false(lapic_pending(&cpu[2]));
}

/* Protects levels: remote IRR holds further messages until EOI; a line still high sends again. */
static void io_level(void **state)
{
    (void)state;
    entry(9, UINT64_C(1) << 56 | 0x8049);
    ioapic_set(&io, 9, true);
    assert_int_equal(entry_low(9), 0xc049);
    assert_int_equal(lapic_ack(&cpu[1]), 0x49);
    ioapic_set(&io, 9, false);
    ioapic_set(&io, 9, true);
    assert_false(lapic_read(&cpu[1], 0x220)); /* nothing new in IRR */
    lapic_write(&cpu[1], 0xb0, 0);
    assert_int_equal(lapic_ack(&cpu[1]), 0x49);
    ioapic_set(&io, 9, false);
    lapic_write(&cpu[1], 0xb0, 0);
    assert_int_equal(entry_low(9), 0x8049);
    assert_false(lapic_pending(&cpu[1]));
    /* one that got stuck is freed by the EOI register, or by the change to edge */
    ioapic_set(&io, 9, true);
    ioapic_set(&io, 9, false);
    ioapic_write(&io, 0x40, 0x49);
    assert_int_equal(entry_low(9), 0x8049);
    ioapic_set(&io, 9, true);
    entry(9, 0x49);
    assert_int_equal(entry_low(9), 0x49);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(power_on, setup),
        cmocka_unit_test_setup(priorities, setup),
        cmocka_unit_test_setup(destinations, setup),
        cmocka_unit_test_setup(lowest_priority, setup),
        cmocka_unit_test_setup(start_messages, setup),
        cmocka_unit_test_setup(illegal_vectors, setup),
        cmocka_unit_test_setup(timer_one_shot, setup),
        cmocka_unit_test_setup(timer_periodic, setup),
        cmocka_unit_test_setup(timer_deadline, setup),
        cmocka_unit_test_setup(x2apic, setup),
        cmocka_unit_test_setup(io_power_on, setup),
        cmocka_unit_test_setup(io_edge, setup),
        cmocka_unit_test_setup(io_level, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
