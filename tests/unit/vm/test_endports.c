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

/* Protects: only SLP_EN ends the VM, as a word or by its high byte. */
static void acpi_power_off(void **state)
{
    (void)state;
    assert_int_equal(bus_port_write(&bus, 0x604, 2, 0x0400), BUS_OK);
    assert_int_equal(kind, -1);
    assert_int_equal(bus_port_write(&bus, 0x604, 2, 0x3400), BUS_STOP);
    assert_int_equal(kind, END_KIND_POWEROFF);
    kind = -1;
    assert_int_equal(bus_port_write(&bus, 0x605, 1, 0x20), BUS_STOP);
    assert_int_equal(kind, END_KIND_POWEROFF);
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

/* Protects: reset by the keyboard controller's pulse only, and its status lets a driver write. */
static void i8042_reset(void **state)
{
    uint32_t v;

    (void)state;
    assert_int_equal(bus_port_read(&bus, 0x64, 1, &v), BUS_OK);
    assert_int_equal(v & 2, 0);
    assert_int_equal(bus_port_write(&bus, 0x64, 1, 0xaa), BUS_OK);
    assert_int_equal(bus_port_write(&bus, 0x60, 1, 0xfe), BUS_OK);
    assert_int_equal(kind, -1);
    assert_int_equal(bus_port_write(&bus, 0x64, 1, 0xfe), BUS_STOP);
    assert_int_equal(kind, END_KIND_RESET);
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
        cmocka_unit_test_setup(acpi_power_off, setup),
        cmocka_unit_test_setup(debug_exit_code, setup),
        cmocka_unit_test_setup(i8042_reset, setup),
        cmocka_unit_test_setup(chipset_reset, setup),
        cmocka_unit_test_setup(delay_port, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
