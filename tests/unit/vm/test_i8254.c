#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "hv/dev/i8254.h"

static struct dev_timers q;
static struct i8254 p;
static uint64_t clock_now;
static bool line;
static unsigned rises;

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

static void set_line(void *arg, bool level)
{
    (void)arg;
    rises += level && !line;
    line = level;
}

static int setup(void **state)
{
    (void)state;
    clock_now = 12345;
    dev_timers_init(&q, now, arm, NULL);
    i8254_init(&p, &q, set_line, NULL);
    line = false;
    rises = 0;
    return 0;
}

static void program(unsigned channel, unsigned mode, uint16_t count)
{
    i8254_write(&p, 0x43, (uint8_t)(channel << 6 | 0x30 | mode << 1));
    i8254_write(&p, (uint16_t)(0x40 + channel), (uint8_t)count);
    i8254_write(&p, (uint16_t)(0x40 + channel), (uint8_t)(count >> 8));
}

/* Lets `n` ticks of the 8254 pass, a little more so that rounding never matters. */
static void ticks(uint64_t n)
{
    uint64_t end = clock_now + n * 1000000000 / I8254_HZ + 2;

    while (q.first && q.first->at <= end) {
        clock_now = q.first->at > clock_now ? q.first->at : clock_now;
        dev_timers_run(&q);
    }
    clock_now = end;
}

static unsigned read_count(unsigned channel)
{
    unsigned low;

    i8254_write(&p, 0x43, (uint8_t)(channel << 6));
    low = i8254_read(&p, (uint16_t)(0x40 + channel));
    return low | (unsigned)i8254_read(&p, (uint16_t)(0x40 + channel)) << 8;
}

/* Protects mode 2, the guest's tick: one edge each period, at the right rate. */
static void rate_generator(void **state)
{
    (void)state;
    program(0, 2, 11932); /* 100 Hz */
    rises = 0;
    ticks(11000);
    assert_int_equal(rises, 0);
    ticks(1000);
    assert_int_equal(rises, 1);
    ticks(11932 * 50);
    assert_int_equal(rises, 51);
}

/* Protects the host: ticks that nobody served are not made up for, and no guest gets more than a
 * bounded number of them. */
static void no_storm(void **state)
{
    (void)state;
    program(0, 2, 1000);
    rises = 0;
    clock_now += 1000000000;
    dev_timers_run(&q);
    dev_timers_run(&q);
    assert_int_equal(rises, 1);
    program(0, 2, 2);
    rises = 0;
    ticks(I8254_HZ / 10);
    assert_in_range(rises, 900, 1000);
}

/* Protects mode 0: the line is low until the count is over, then high for good. */
static void terminal_count(void **state)
{
    (void)state;
    program(0, 0, 500);
    assert_false(line);
    ticks(499 - 1);
    assert_false(line);
    ticks(2);
    assert_true(line);
    ticks(100000);
    assert_int_equal(rises, 1);
    program(0, 0, 500);
    assert_false(line);
}

/* Protects the latch: the count as it was when latched, in two bytes, counting down. */
static void latch(void **state)
{
    unsigned low;

    (void)state;
    program(2, 0, 0xffff);
    i8254_write(&p, 0x61, 1);
    ticks(0x100);
    i8254_write(&p, 0x43, 0x80);
    ticks(5000);
    low = i8254_read(&p, 0x42);
    assert_in_range(low | i8254_read(&p, 0x42) << 8, 0xfefd, 0xfeff);
    assert_in_range(read_count(2), 0xffff - 5000 - 0x103, 0xffff - 5000 - 0x100);
}

/* Protects channel 2 as calibration loops use it: gate by port 0x61 bit 0, output at bit 5. */
static void gate_and_output(void **state)
{
    (void)state;
    i8254_write(&p, 0x61, 0);
    program(2, 0, 1000);
    ticks(5000);
    assert_int_equal(i8254_read(&p, 0x61) & 0x20, 0); /* the gate is low: it does not count */
    assert_int_equal(read_count(2), 1000);
    i8254_write(&p, 0x61, 1);
    ticks(900);
    assert_int_equal(i8254_read(&p, 0x61) & 0x21, 1);
    i8254_write(&p, 0x61, 0);
    ticks(900);
    i8254_write(&p, 0x61, 1);
    assert_int_equal(i8254_read(&p, 0x61) & 0x20, 0);
    ticks(101);
    assert_int_equal(i8254_read(&p, 0x61) & 0x20, 0x20);
}

/* Protects mode 3: a square wave, its count down by two. */
static void square_wave(void **state)
{
    unsigned high = 0;

    (void)state;
    program(2, 3, 1000);
    i8254_write(&p, 0x61, 1);
    for (unsigned i = 0; i < 1000; i++) {
        ticks(1);
        high += (i8254_read(&p, 0x61) & 0x20) != 0;
    }
    assert_in_range(high, 490, 510);
}

/* Protects read-back: status with mode, access and "no count yet". */
static void read_back(void **state)
{
    (void)state;
    i8254_write(&p, 0x43, 0xb4); /* channel 2, both bytes, mode 2 */
    i8254_write(&p, 0x43, 0xe8); /* its status */
    assert_int_equal(i8254_read(&p, 0x42), 0xf4);
    i8254_write(&p, 0x42, 0x10);
    i8254_write(&p, 0x42, 0x00);
    i8254_write(&p, 0x43, 0xc8); /* status, then count */
    assert_int_equal(i8254_read(&p, 0x42) & 0x40, 0);
    assert_int_equal(i8254_read(&p, 0x42), 0x10);
    assert_int_equal(i8254_read(&p, 0x42), 0x00);
}

/* Protects single byte access and BCD, where 0 is 10000. */
static void bytes_and_bcd(void **state)
{
    (void)state;
    i8254_write(&p, 0x43, 0x50); /* channel 1, low byte, mode 0 */
    i8254_write(&p, 0x41, 200);
    ticks(99);
    assert_in_range(i8254_read(&p, 0x41), 100, 101);
    i8254_write(&p, 0x43, 0x71); /* both bytes, BCD */
    i8254_write(&p, 0x41, 0x00);
    i8254_write(&p, 0x41, 0x00);
    ticks(1);
    assert_in_range(read_count(1), 0x9998, 0x9999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rate_generator, setup),
        cmocka_unit_test_setup(no_storm, setup),
        cmocka_unit_test_setup(terminal_count, setup),
        cmocka_unit_test_setup(latch, setup),
        cmocka_unit_test_setup(gate_and_output, setup),
        cmocka_unit_test_setup(square_wave, setup),
        cmocka_unit_test_setup(read_back, setup),
        cmocka_unit_test_setup(bytes_and_bcd, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
