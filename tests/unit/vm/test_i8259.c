#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "hv/dev/i8259.h"

static struct i8259 p;

/* As a PC's software does it: vectors 0x20 and 0x28, slave on 2, 8086 mode, all open. */
static void program(uint8_t icw4)
{
    static const uint16_t port[2] = {0x20, 0xa0};

    for (unsigned i = 0; i < 2; i++) {
        i8259_write(&p, port[i], 0x11);
        i8259_write(&p, port[i] + 1, (uint8_t)(0x20 + 8 * i));
        i8259_write(&p, port[i] + 1, i ? 2 : 4);
        i8259_write(&p, port[i] + 1, icw4);
        i8259_write(&p, port[i] + 1, 0);
    }
}

static int setup(void **state)
{
    (void)state;
    i8259_reset(&p);
    program(1);
    return 0;
}

static void pulse(unsigned input)
{
    i8259_set(&p, input, true);
    i8259_set(&p, input, false);
}

/* Protects that after power-on nothing interrupts before the guest has asked for it. */
static void quiet_after_reset(void **state)
{
    (void)state;
    i8259_reset(&p);
    for (unsigned i = 0; i < 16; i++)
        i8259_set(&p, i, true);
    assert_false(i8259_pending(&p));
}

/* Protects vectors and fixed priorities, on both chips, and that EOI lets the next one through. */
static void priorities(void **state)
{
    (void)state;
    pulse(4);
    pulse(12);
    pulse(1);
    assert_true(i8259_pending(&p));
    assert_int_equal(i8259_ack(&p), 0x21);
    assert_false(i8259_pending(&p)); /* 1 is in service: 4 and the slave wait */
    i8259_write(&p, 0x20, 0x20);
    assert_int_equal(i8259_ack(&p), 0x2c);
    assert_false(i8259_pending(&p));
    i8259_write(&p, 0xa0, 0x20);
    i8259_write(&p, 0x20, 0x20);
    assert_int_equal(i8259_ack(&p), 0x24);
    i8259_write(&p, 0x20, 0x64); /* specific EOI of 4 */
    assert_false(i8259_pending(&p));
}

/* Protects that a higher one interrupts the service of a lower one. */
static void nesting(void **state)
{
    (void)state;
    pulse(4);
    assert_int_equal(i8259_ack(&p), 0x24);
    pulse(5);
    assert_false(i8259_pending(&p));
    pulse(0);
    assert_int_equal(i8259_ack(&p), 0x20);
    i8259_write(&p, 0x20, 0x0b);
    assert_int_equal(i8259_read(&p, 0x20), 0x11);
    i8259_write(&p, 0x20, 0x0a);
    assert_int_equal(i8259_read(&p, 0x20), 0x20);
}

/* Protects the mask: a masked edge is kept and comes when it is opened. */
static void mask(void **state)
{
    (void)state;
    i8259_write(&p, 0x21, 0x10);
    assert_int_equal(i8259_read(&p, 0x21), 0x10);
    pulse(4);
    assert_false(i8259_pending(&p));
    i8259_write(&p, 0x21, 0);
    assert_true(i8259_pending(&p));
    assert_int_equal(i8259_ack(&p), 0x24);
}

/* Protects edges: a line that stays high interrupts once; a level triggered one until it falls. */
static void edge_and_level(void **state)
{
    (void)state;
    i8259_set(&p, 5, true);
    i8259_set(&p, 5, true);
    assert_int_equal(i8259_ack(&p), 0x25);
    i8259_write(&p, 0x20, 0x20);
    assert_false(i8259_pending(&p));
    i8259_write(&p, 0x4d0, 0xff);
    assert_int_equal(i8259_read(&p, 0x4d0), 0xf8); /* timer, keyboard, cascade stay edges */
    assert_true(i8259_pending(&p));
    assert_int_equal(i8259_ack(&p), 0x25);
    i8259_write(&p, 0x20, 0x20);
    assert_true(i8259_pending(&p));
    i8259_set(&p, 5, false);
    assert_false(i8259_pending(&p));
}

/* Protects the spurious vector: a level that went before it was acknowledged. Nothing is in service
 * then on the chip that had it. */
static void spurious(void **state)
{
    (void)state;
    assert_int_equal(i8259_ack(&p), 0x27);
    i8259_write(&p, 0x20, 0x0b);
    assert_int_equal(i8259_read(&p, 0x20), 0);
    i8259_write(&p, 0x4d1, 0x04); /* input 10 */
    i8259_set(&p, 10, true);
    assert_true(i8259_pending(&p));
    i8259_set(&p, 10, false);
    assert_false(i8259_pending(&p));
}

/* Protects automatic EOI: nothing stays in service. */
static void auto_eoi(void **state)
{
    (void)state;
    program(3);
    pulse(3);
    assert_int_equal(i8259_ack(&p), 0x23);
    i8259_write(&p, 0x20, 0x0b);
    assert_int_equal(i8259_read(&p, 0x20), 0);
    pulse(3);
    assert_true(i8259_pending(&p));
}

/* Protects rotation: after a rotating EOI the served input is the last in turn. */
static void rotation(void **state)
{
    (void)state;
    pulse(3);
    assert_int_equal(i8259_ack(&p), 0x23);
    i8259_write(&p, 0x20, 0xa0);
    pulse(3);
    pulse(7);
    assert_int_equal(i8259_ack(&p), 0x27);
    i8259_write(&p, 0x20, 0x20);
    i8259_write(&p, 0x20, 0xc7); /* 7 is the lowest again */
    pulse(0);
    assert_int_equal(i8259_ack(&p), 0x20);
}

/* Protects the poll command: an acknowledge by a read. */
static void poll(void **state)
{
    (void)state;
    i8259_write(&p, 0x20, 0x0c);
    assert_int_equal(i8259_read(&p, 0x20), 0);
    pulse(6);
    i8259_write(&p, 0x20, 0x0c);
    assert_int_equal(i8259_read(&p, 0x20), 0x86);
    assert_false(i8259_pending(&p));
}

/* Protects special mask mode: an input in service that is masked blocks nobody. */
static void special_mask(void **state)
{
    (void)state;
    pulse(1);
    assert_int_equal(i8259_ack(&p), 0x21);
    pulse(4);
    assert_false(i8259_pending(&p));
    i8259_write(&p, 0x21, 0x02);
    i8259_write(&p, 0x20, 0x68);
    assert_int_equal(i8259_ack(&p), 0x24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(quiet_after_reset, setup),
        cmocka_unit_test_setup(priorities, setup),
        cmocka_unit_test_setup(nesting, setup),
        cmocka_unit_test_setup(mask, setup),
        cmocka_unit_test_setup(edge_and_level, setup),
        cmocka_unit_test_setup(spurious, setup),
        cmocka_unit_test_setup(auto_eoi, setup),
        cmocka_unit_test_setup(rotation, setup),
        cmocka_unit_test_setup(poll, setup),
        cmocka_unit_test_setup(special_mask, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
