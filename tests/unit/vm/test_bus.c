#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hv/dev/bus.h"

struct fake {
    struct bus_device device;
    uint64_t offset, value;
    unsigned size, reads, writes, resets;
};

static enum bus_result fake_read(struct bus_device *d, uint64_t offset, unsigned size,
                                 uint64_t *value)
{
    struct fake *f = (struct fake *)d;

    f->offset = offset;
    f->size = size;
    f->reads++;
    *value = UINT64_C(0x1122334455667788);
    return BUS_OK;
}

static enum bus_result fake_write(struct bus_device *d, uint64_t offset, unsigned size,
                                  uint64_t value)
{
    struct fake *f = (struct fake *)d;

    f->offset = offset;
    f->size = size;
    f->value = value;
    f->writes++;
    return value == 0x55 ? BUS_STOP : BUS_OK;
}

static void fake_reset(struct bus_device *d)
{
    ((struct fake *)d)->resets++;
}

static const struct bus_ops ops = {"fake", fake_read, fake_write, fake_reset};

/* Protects: an access reaches the device whose range holds it, with the offset inside the range. */
static void routes_by_range(void **state)
{
    struct fake a = {.device = {&ops}}, b = {.device = {&ops}};
    struct bus bus;
    uint32_t v;

    (void)state;
    bus_init(&bus);
    assert_int_equal(bus_claim_ports(&bus, &b.device, 0x100, 0x10f), MF_OK);
    assert_int_equal(bus_claim_ports(&bus, &a.device, 0x10, 0x1f), MF_OK);
    assert_int_equal(bus_port_read(&bus, 0x13, 1, &v), BUS_OK);
    assert_int_equal(v, 0x88);
    assert_int_equal(a.offset, 3);
    assert_int_equal(bus_port_write(&bus, 0x10f, 1, 0x1ff), BUS_OK);
    assert_int_equal(b.offset, 0xf);
    assert_int_equal(b.value, 0xff);
    assert_int_equal(bus_port_write(&bus, 0x100, 1, 0x55), BUS_STOP);
    assert_int_equal(a.writes, 0);
}

/* Protects: a port that nobody claims reads all ones of the access's size and takes writes. */
static void unclaimed_is_all_ones(void **state)
{
    struct bus bus;
    uint32_t v;
    uint64_t w;

    (void)state;
    bus_init(&bus);
    assert_int_equal(bus_port_read(&bus, 0x3f8, 1, &v), BUS_NONE);
    assert_int_equal(v, 0xff);
    assert_int_equal(bus_port_read(&bus, 0xffff, 2, &v), BUS_NONE);
    assert_int_equal(v, 0xffff);
    assert_int_equal(bus_port_read(&bus, 0, 4, &v), BUS_NONE);
    assert_int_equal(v, UINT32_MAX);
    assert_int_equal(bus_mmio_read(&bus, UINT64_MAX, 8, &w), BUS_NONE);
    assert_true(w == UINT64_MAX);
    assert_int_equal(bus_port_write(&bus, 0x80, 1, 1), BUS_NONE);
}

/* Protects: an access that leaves a device's range does not reach it. */
static void straddling_access_is_nobodys(void **state)
{
    struct fake a = {.device = {&ops}};
    struct bus bus;
    uint32_t v;

    (void)state;
    bus_init(&bus);
    assert_int_equal(bus_claim_ports(&bus, &a.device, 0x10, 0x11), MF_OK);
    assert_int_equal(bus_port_read(&bus, 0x11, 2, &v), BUS_NONE);
    assert_int_equal(bus_port_read(&bus, 0x0f, 2, &v), BUS_NONE);
    assert_int_equal(bus_port_read(&bus, 0x10, 2, &v), BUS_OK);
    assert_int_equal(a.reads, 1);
}

/* Protects: two devices never claim one port, whatever end they overlap at. */
static void overlaps_are_refused(void **state)
{
    struct fake a = {.device = {&ops}}, b = {.device = {&ops}};
    struct bus bus;

    (void)state;
    bus_init(&bus);
    assert_int_equal(bus_claim_mmio(&bus, &a.device, 0x1000, 0x1fff), MF_OK);
    assert_int_equal(bus_claim_mmio(&bus, &b.device, 0x1fff, 0x2fff), MF_E_EXISTS);
    assert_int_equal(bus_claim_mmio(&bus, &b.device, 0, 0x1000), MF_E_EXISTS);
    assert_int_equal(bus_claim_mmio(&bus, &b.device, 0, UINT64_MAX), MF_E_EXISTS);
    assert_int_equal(bus_claim_mmio(&bus, &b.device, 0x1800, 0x1801), MF_E_EXISTS);
    assert_int_equal(bus_claim_mmio(&bus, &b.device, 5, 4), MF_E_RANGE);
    assert_int_equal(bus_claim_mmio(&bus, &b.device, 0x2000, UINT64_MAX), MF_OK);
    assert_int_equal(bus_claim_mmio(&bus, &b.device, 0, 0xfff), MF_OK);
}

/* Protects: the number of ranges is bounded, and reset reaches each device once. */
static void limit_and_reset(void **state)
{
    struct fake a = {.device = {&ops}};
    struct bus bus;

    (void)state;
    bus_init(&bus);
    for (unsigned i = 0; i < BUS_DEVICES_MAX; i++)
        assert_int_equal(bus_claim_ports(&bus, &a.device, (uint16_t)(2 * i), (uint16_t)(2 * i)),
                         MF_OK);
    assert_int_equal(bus_claim_ports(&bus, &a.device, 0x1000, 0x1000), MF_E_LIMIT);
    bus_reset(&bus);
    assert_int_equal(a.resets, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routes_by_range),      cmocka_unit_test(unclaimed_is_all_ones),
        cmocka_unit_test(overlaps_are_refused), cmocka_unit_test(straddling_access_is_nobodys),
        cmocka_unit_test(limit_and_reset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
