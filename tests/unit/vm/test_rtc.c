#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "hv/dev/rtc.h"

#define NS UINT64_C(1000000000)

static struct dev_timers q;
static struct rtc r;
static uint64_t clock_now;
static bool line;

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
    line = level;
}

static uint8_t get(uint8_t reg)
{
    rtc_write(&r, 0x70, reg);
    return rtc_read(&r, 0x71);
}

static void put(uint8_t reg, uint8_t v)
{
    rtc_write(&r, 0x70, reg);
    rtc_write(&r, 0x71, v);
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

/* 2026-11-30 23:59:58.25, a Monday. */
static int setup(void **state)
{
    (void)state;
    clock_now = 5 * NS;
    line = false;
    dev_timers_init(&q, now, arm, NULL);
    rtc_init(&r, &q, set_line, NULL);
    rtc_reset(&r, 1796083198 * NS + NS / 4, 96u << 20, UINT64_C(3) << 30);
    return 0;
}

/* Protects date and time in BCD, and their carry over all fields. */
static void tells_time(void **state)
{
    static const uint8_t at[] = {0, 2, 4, 6, 7, 8, 9, 0x32};
    static const uint8_t before[] = {0x58, 0x59, 0x23, 2, 0x30, 0x11, 0x26, 0x20};
    static const uint8_t after[] = {0x01, 0x00, 0x00, 3, 0x01, 0x12, 0x26, 0x20};

    (void)state;
    for (unsigned i = 0; i < sizeof at; i++)
        assert_int_equal(get(at[i]), before[i]);
    pass(3 * NS);
    for (unsigned i = 0; i < sizeof at; i++)
        assert_int_equal(get(at[i]), after[i]);
}

/* Protects the formats: binary, and 12 hours with the PM bit. */
static void formats(void **state)
{
    (void)state;
    put(11, 0x06);
    assert_int_equal(get(0), 58);
    assert_int_equal(get(4), 23);
    put(11, 0x00);
    assert_int_equal(get(4), 0x91);
    pass(3 * NS);
    assert_int_equal(get(4), 0x12); /* midnight */
}

/* Protects against the C library's calendar: every 11 days from 1970 to 2200, binary mode. */
static void calendar(void **state)
{
    (void)state;
    for (uint64_t t = 0; t < 7258118400; t += 11 * 86400 + 12345) {
        time_t seconds = (time_t)t;
        struct tm tm;

        gmtime_r(&seconds, &tm);
        rtc_reset(&r, t * NS, 1, 0);
        put(11, 0x06);
        assert_int_equal(get(7), tm.tm_mday);
        assert_int_equal(get(8), tm.tm_mon + 1);
        assert_int_equal(get(6), tm.tm_wday + 1);
        assert_int_equal(get(0x32) * 100 + get(9), tm.tm_year + 1900);
        assert_int_equal(get(0), tm.tm_sec);
    }
}

/* Protects setting the clock: it stands while SET is on and goes on from what was written; values
 * that are no date harm nobody. */
static void set_time(void **state)
{
    (void)state;
    put(11, 0x82);
    pass(10 * NS);
    assert_int_equal(get(0), 0x58);
    put(0, 0x59);
    put(2, 0x59);
    put(4, 0x23);
    put(7, 0x28);
    put(8, 0x02);
    put(9, 0x28);
    put(0x32, 0x20);
    put(11, 0x02);
    assert_int_equal(get(7), 0x28);
    pass(NS);
    assert_int_equal(get(7), 0x29); /* a leap year */
    assert_int_equal(get(4), 0x00);
    put(11, 0x82);
    for (uint8_t i = 0; i < 10; i++)
        put(i, 0xff);
    put(0x32, 0xff);
    put(11, 0x06);
    pass(NS);
    assert_in_range(get(8), 1, 12);
}

/* Protects the moment before an update: the bit is on shortly before the second changes. */
static void update_in_progress(void **state)
{
    (void)state;
    assert_int_equal(get(10), 0x26);
    pass(NS * 3 / 4 - 100000);
    assert_int_equal(get(10), 0xa6);
    pass(100000);
    assert_int_equal(get(10), 0x26);
}

/* Protects interrupts: update, alarm with and without wildcards, periodic; reading C ends them. */
static void interrupts(void **state)
{
    unsigned n = 0;

    (void)state;
    put(11, 0x12);
    pass(NS * 3 / 4);
    assert_true(line);
    assert_int_equal(get(12) & 0x90, 0x90);
    assert_false(line);
    assert_int_equal(get(12), 0);
    put(1, 0x05);
    put(3, 0x00);
    put(5, 0xff); /* any hour */
    put(11, 0x22);
    pass(5 * NS);
    assert_false(line);
    pass(NS + 1);
    assert_true(line);
    assert_int_equal(get(12) & 0xa0, 0xa0);
    put(10, 0x26); /* 1024 Hz */
    put(11, 0x42);
    for (unsigned i = 0; i < 5000; i++) {
        pass(200000);
        n += (get(12) & 0x40) != 0;
    }
    assert_in_range(n, 1020, 1026);
    put(11, 0x02);
    assert_null(q.first);
}

/* Protects the memory: bytes are kept, sizes are there, C and D cannot be written. */
static void memory(void **state)
{
    (void)state;
    put(0x0f, 0x5a);
    assert_int_equal(get(0x0f), 0x5a);
    assert_int_equal(get(0x17) | get(0x18) << 8, 0xffff);
    assert_int_equal(get(0x34) | get(0x35) << 8, (96 - 16) * 16);
    assert_int_equal(get(0x5b) | get(0x5c) << 8, (UINT64_C(3) << 30) >> 16 & 0xffff);
    put(13, 0);
    assert_int_equal(get(13), 0x80);
    put(12, 0xff);
    assert_int_equal(get(12), 0);
    assert_int_equal(rtc_read(&r, 0x70), 0xff);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(tells_time, setup),
        cmocka_unit_test_setup(formats, setup),
        cmocka_unit_test_setup(calendar, setup),
        cmocka_unit_test_setup(set_time, setup),
        cmocka_unit_test_setup(update_in_progress, setup),
        cmocka_unit_test_setup(interrupts, setup),
        cmocka_unit_test_setup(memory, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
