#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hv/dev/endports.h"

static int kind;
static uint64_t code;
static struct end_ports ports;
static struct bus bus;

static void end(void *arg, enum end_kind k, uint64_t c)
{
    (void)arg;
    kind = (int)k;
    code = c;
}

static int setup(void **state)
{
    (void)state;
    kind = -1;
    code = 0;
    bus_init(&bus);
    return end_ports_init(&ports, &bus, end, NULL);
}

/* Protects: the value a guest writes to 0xf4 is the code reported, all 32 bits of it. */
static void debug_exit_code(void **state)
{
    (void)state;
    assert_int_equal(bus_port_write(&bus, 0xf4, 1, 7), BUS_STOP);
    assert_int_equal(kind, END_KIND_DEBUG_EXIT);
    assert_int_equal(code, 7);
    assert_int_equal(bus_port_write(&bus, 0xf4, 4, 0xdeadbeef), BUS_STOP);
    assert_true(code == 0xdeadbeef);
}

/* Protects: 0xcf9 resets by bit 2; choosing the kind of reset alone does nothing. */
static void chipset_reset(void **state)
{
    (void)state;
    assert_int_equal(bus_port_write(&bus, 0xcf9, 1, 0x02), BUS_OK);
    assert_int_equal(kind, -1);
    assert_int_equal(bus_port_write(&bus, 0xcf9, 1, 0x06), BUS_STOP);
    assert_int_equal(kind, END_KIND_RESET);
}

/* Protects: the delay port swallows writes and reads all ones. */
static void delay_port(void **state)
{
    uint32_t v;

    (void)state;
    assert_int_equal(bus_port_write(&bus, 0x80, 1, 0), BUS_OK);
    bus_port_read(&bus, 0x80, 1, &v);
    assert_int_equal(v, 0xff);
    assert_int_equal(kind, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(debug_exit_code, setup),
        cmocka_unit_test_setup(chipset_reset, setup),
        cmocka_unit_test_setup(delay_port, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
