#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "hv/dev/uart16550.h"

struct out {
    char text[64];
    size_t n;
    bool level;
    unsigned edges;
};

static struct out out;
static struct uart16550 uart;
static struct bus bus;

static void sink(void *arg, uint8_t byte)
{
    struct out *o = arg;

    if (o->n < sizeof o->text)
        o->text[o->n++] = (char)byte;
}

static void irq(void *arg, bool level)
{
    struct out *o = arg;

    o->level = level;
    o->edges++;
}

static int setup(void **state)
{
    (void)state;
    memset(&out, 0, sizeof out);
    bus_init(&bus);
    uart16550_init(&uart, sink, irq, &out);
    return bus_claim_ports(&bus, &uart.device, 0x3f8, 0x3ff);
}

static void put(uint16_t reg, uint8_t v)
{
    assert_int_equal(bus_port_write(&bus, (uint16_t)(0x3f8 + reg), 1, v), BUS_OK);
}

static uint8_t get(uint16_t reg)
{
    uint32_t v;

    assert_int_equal(bus_port_read(&bus, (uint16_t)(0x3f8 + reg), 1, &v), BUS_OK);
    return (uint8_t)v;
}

/* Protects: what a guest prints leaves in order, and the transmitter is always ready. */
static void output_leaves_at_once(void **state)
{
    (void)state;
    assert_int_equal(get(5), 0x60);
    for (const char *s = "Hello"; *s; s++)
        put(0, (uint8_t)*s);
    assert_int_equal(get(5), 0x60);
    assert_int_equal(out.n, 5);
    assert_memory_equal(out.text, "Hello", 5);
}

/* Protects: with DLAB set the divisor is meant, nothing is printed. */
static void divisor_latch(void **state)
{
    (void)state;
    put(3, 0x83);
    put(0, 1);
    put(1, 2);
    assert_int_equal(get(0), 1);
    assert_int_equal(get(1), 2);
    put(3, 0x03);
    assert_int_equal(get(3), 0x03);
    assert_int_equal(get(1), 0);
    assert_int_equal(out.n, 0);
}

/* Protects: the probes by which drivers tell a 16550A from older parts. */
static void identification(void **state)
{
    (void)state;
    put(7, 0x5a);
    assert_int_equal(get(7), 0x5a);
    assert_int_equal(get(2) & 0xc0, 0);
    put(2, 1);
    assert_int_equal(get(2) & 0xc0, 0xc0);
    put(2, 0);
    assert_int_equal(get(2) & 0xc0, 0);
    put(1, 0xff);
    assert_int_equal(get(1), 0x0f);
    put(1, 0);
}

/* Protects: loopback returns data and modem lines to the guest and prints nothing. */
static void loopback(void **state)
{
    (void)state;
    put(4, 0x10 | 0x0a);
    assert_int_equal(get(6) & 0xf0, 0x90); /* RTS to CTS, OUT2 to DCD */
    put(0, 0xae);
    assert_int_equal(get(5) & 0x01, 0x01);
    assert_int_equal(get(0), 0xae);
    assert_int_equal(get(5) & 0x01, 0);
    put(4, 0x03);
    assert_int_equal(get(6) & 0xf0, 0xb0);
    assert_int_equal(out.n, 0);
}

/* Protects: input beyond the queue is left to the sender, not lost; one byte without the FIFO. */
static void input_queue(void **state)
{
    const uint8_t bytes[20] = "abcdefghijklmnopqrs";

    (void)state;
    assert_int_equal(uart16550_input(&uart, bytes, 3), 1);
    assert_int_equal(get(0), 'a');
    put(2, 1);
    assert_int_equal(uart16550_input(&uart, bytes, 20), 16);
    assert_int_equal(uart16550_input(&uart, bytes, 1), 0);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(get(0), bytes[i]);
    assert_int_equal(get(5) & 1, 0);
    assert_int_equal(get(0), 0);
    assert_int_equal(uart16550_input(&uart, bytes, 2), 2);
    put(2, 3);
    assert_int_equal(get(5) & 1, 0);
}

/* Protects: the line follows enabled causes by priority, gated by OUT2. */
static void interrupts(void **state)
{
    (void)state;
    put(1, 0x02); /* an empty transmitter: pending at once, but OUT2 is off */
    assert_false(out.level);
    put(4, 0x08);
    assert_true(out.level);
    assert_int_equal(get(2) & 0x0f, 0x02);
    assert_false(out.level); /* reading IIR took it */
    put(0, 'x');
    assert_true(out.level);
    put(1, 0x03);
    assert_int_equal(uart16550_input(&uart, (const uint8_t *)"y", 1), 1);
    assert_int_equal(get(2) & 0x0f, 0x04); /* data comes before the transmitter */
    assert_int_equal(get(0), 'y');
    assert_int_equal(get(2) & 0x0f, 0x02);
    assert_int_equal(get(2) & 0x0f, 0x01);
    assert_false(out.level);
    put(1, 0);
    put(1, 2); /* enabling it again raises it again: drivers rely on it */
    assert_true(out.level);
}

/* Protects: power-on state after a reset of the machine. */
static void reset_state(void **state)
{
    (void)state;
    put(1, 5);
    put(2, 1);
    put(4, 0x1f);
    put(0, 1);
    bus_reset(&bus);
    assert_int_equal(get(1), 0);
    assert_int_equal(get(2), 1);
    assert_int_equal(get(4), 0);
    assert_int_equal(get(5), 0x60);
    assert_false(out.level);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(output_leaves_at_once, setup),
        cmocka_unit_test_setup(divisor_latch, setup),
        cmocka_unit_test_setup(identification, setup),
        cmocka_unit_test_setup(loopback, setup),
        cmocka_unit_test_setup(input_queue, setup),
        cmocka_unit_test_setup(interrupts, setup),
        cmocka_unit_test_setup(reset_state, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
