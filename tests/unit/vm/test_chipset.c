#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "hv/dev/chipset.h"

#define CPUS 2u

static struct chipset cs;
static struct lapic lapics[CPUS];
static uint64_t clock_now, armed_at;
static unsigned events[CPUS][4];
static int ended;
static unsigned foreign_line, foreign_calls, walls;

static uint64_t now(void *arg)
{
    (void)arg;
    return clock_now;
}

static uint64_t wall(void *arg)
{
    (void)arg;
    walls++;
    return UINT64_C(1796083198000000000);
}

static void arm(void *arg, uint64_t at)
{
    (void)arg;
    armed_at = at;
}

static void event(void *arg, unsigned cpu, enum lapic_event e, uint8_t vector)
{
    (void)arg;
    (void)vector;
    events[cpu][e]++;
}

static uint64_t tsc_offset(void *arg, unsigned cpu)
{
    (void)arg;
    (void)cpu;
    return 0;
}

static void end(void *arg, enum chipset_end kind)
{
    (void)arg;
    ended = (int)kind;
    /* The lock is free: whoever ends the VM may look at the chipset. */
    chipset_button(&cs);
}

static const struct chipset_ops ops = {now, wall, arm, event, tsc_offset, end};

static void begin(const struct irq_lines *foreign)
{
    struct chipset_config c = {.lapics = lapics,
                               .stride = sizeof lapics[0],
                               .cpus = CPUS,
                               .ram_low = 64 << 20,
                               .foreign = foreign};

    clock_now = 1000;
    armed_at = 0;
    ended = -1;
    foreign_calls = walls = 0;
    memset(events, 0, sizeof events);
    chipset_init(&cs, &ops, NULL, &c);
}

static int setup(void **state)
{
    (void)state;
    begin(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    chipset_fini(&cs);
    return 0;
}

static uint32_t in(uint16_t port, unsigned size)
{
    uint32_t v = 0;

    assert_int_equal(chipset_port_read(&cs, port, size, &v), BUS_OK);
    return v;
}

static void out(uint16_t port, unsigned size, uint32_t v)
{
    assert_int_equal(chipset_port_write(&cs, port, size, v), BUS_OK);
}

static uint32_t mmio_in(unsigned cpu, uint64_t at)
{
    uint64_t v = 0;

    assert_int_equal(chipset_mmio_read(&cs, cpu, at, 4, &v), BUS_OK);
    return (uint32_t)v;
}

static void mmio_out(unsigned cpu, uint64_t at, uint32_t v)
{
    assert_int_equal(chipset_mmio_write(&cs, cpu, at, 4, v), BUS_OK);
}

static void io_entry(unsigned pin, uint32_t low)
{
    mmio_out(0, IOAPIC_BASE, 0x10 + 2 * pin);
    mmio_out(0, IOAPIC_BASE + 0x10, low);
}

static void open_pic(void)
{
    out(0x20, 1, 0x11);
    out(0x21, 1, 0x20);
    out(0x21, 1, 4);
    out(0x21, 1, 1);
    out(0x21, 1, 0);
    out(0xa0, 1, 0x11);
    out(0xa1, 1, 0x28);
    out(0xa1, 1, 2);
    out(0xa1, 1, 1);
    out(0xa1, 1, 0);
}

/* Protects the routes of lines: the 8259's input, and the IOAPIC's; the timer's is pin 2 there. */
static void routes(void **state)
{
    static const struct {
        unsigned line, pin, pic; /* pic 16: none */
    } cases[] = {{0, 2, 0}, {4, 4, 4}, {9, 9, 9}, {15, 15, 15}, {16, 16, 16}, {23, 23, 16}};

    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        chipset_reset(&cs);
        open_pic();
        mmio_out(0, LAPIC_BASE + 0xf0, 0x1ff);
        io_entry(cases[i].pin, 0x55);
        irq_set(&cs.lines, cases[i].line, true);
        assert_true(events[0][LAPIC_EV_INTR] > 0);
        assert_int_equal(chipset_ack(&cs, 0), 0x55);
        assert_int_equal(chipset_ack(&cs, 0), cases[i].pic == 16 ? -1 : 0x20 + (int)cases[i].pic);
        assert_int_equal(chipset_ack(&cs, 0), -1);
    }
    irq_set(&cs.lines, 2, true);
    irq_set(&cs.lines, 24, true);
    irq_set(&cs.lines, UINT32_MAX, true);
    assert_int_equal(chipset_ack(&cs, 0), -1);
}

/* Protects the 8259's way: to the first vCPU after power-on, to nobody once LINT0 is masked, again
 * when it is opened. */
static void virtual_wire(void **state)
{
    (void)state;
    open_pic();
    irq_set(&cs.lines, 4, true);
    assert_int_equal(events[1][LAPIC_EV_INTR], 0);
    assert_int_equal(chipset_ack(&cs, 1), -1);
    mmio_out(0, LAPIC_BASE + 0xf0, 0x1ff);
    mmio_out(0, LAPIC_BASE + 0x350, 0x10700);
    assert_int_equal(chipset_ack(&cs, 0), -1);
    memset(events, 0, sizeof events);
    mmio_out(0, LAPIC_BASE + 0x350, 0x700);
    assert_int_equal(events[0][LAPIC_EV_INTR], 1);
    assert_int_equal(chipset_ack(&cs, 0), 0x24);
}

/* Protects messages of devices: address and data of an MSI, and that others are ignored. */
static void msi(void **state)
{
    (void)state;
    mmio_out(1, LAPIC_BASE + 0xf0, 0x1ff);
    irq_msi(&cs.lines, 0xfee01000, 0x4066);
    irq_msi(&cs.lines, 0xfed01000, 0x4067);
    irq_msi(&cs.lines, UINT64_C(0x1fee01000), 0x4068);
    assert_int_equal(chipset_ack(&cs, 1), 0x66);
    assert_int_equal(chipset_ack(&cs, 1), -1);
}

/* Protects MMIO: the asking vCPU's own LAPIC, wide and narrow accesses, x2APIC mode takes the page
 * away, other addresses are nobody's. */
static void mmio(void **state)
{
    uint64_t v;

    (void)state;
    assert_int_equal(mmio_in(0, LAPIC_BASE + 0x20), 0);
    assert_int_equal(mmio_in(1, LAPIC_BASE + 0x20), 1u << 24);
    assert_int_equal(chipset_mmio_read(&cs, 1, LAPIC_BASE + 0x23, 1, &v), BUS_OK);
    assert_int_equal(v, 1);
    assert_int_equal(chipset_mmio_read(&cs, 1, LAPIC_BASE + 0x24, 4, &v), BUS_OK);
    assert_int_equal(v, 0);
    assert_int_equal(chipset_mmio_read(&cs, 1, LAPIC_BASE - 4, 4, &v), BUS_NONE);
    assert_int_equal(chipset_mmio_write(&cs, 1, IOAPIC_BASE + 0x1000, 4, 0), BUS_NONE);
    assert_true(chipset_msr_write(&cs, 1, 0x1b, 0xfee00c00));
    assert_int_equal(mmio_in(1, LAPIC_BASE + 0x20), UINT32_MAX);
    assert_int_equal(mmio_in(0, LAPIC_BASE + 0x20), 0);
}

/* Protects power-off: SLP_EN alone ends the VM, as a word or by its high byte. */
static void power_off(void **state)
{
    (void)state;
    assert_int_equal(in(0x604, 2), 1); /* SCI_EN: ACPI mode, always */
    out(0x604, 2, 0x1401);
    assert_int_equal(in(0x604, 2), 0x1401);
    assert_int_equal(ended, -1);
    assert_int_equal(chipset_port_write(&cs, 0x604, 2, 0x3401), BUS_STOP);
    assert_int_equal(ended, CHIPSET_OFF);
    ended = -1;
    assert_int_equal(chipset_port_write(&cs, 0x605, 1, 0x20), BUS_STOP);
    assert_int_equal(ended, CHIPSET_OFF);
}

/* Protects the power button: status, SCI only when enabled, cleared by writing one. */
static void power_button(void **state)
{
    (void)state;
    mmio_out(0, LAPIC_BASE + 0xf0, 0x1ff);
    io_entry(9, 0x8049);
    chipset_button(&cs);
    assert_int_equal(in(0x600, 2), 0x100);
    assert_int_equal(chipset_ack(&cs, 0), -1);
    out(0x602, 2, 0x100);
    assert_int_equal(chipset_ack(&cs, 0), 0x49);
    out(0x600, 2, 0x100);
    assert_int_equal(in(0x600, 4), 0x01000000);
    mmio_out(0, LAPIC_BASE + 0xb0, 0);
    assert_int_equal(chipset_ack(&cs, 0), -1);
}

/* Protects the PM timer's rate, and that it is read in one piece. */
static void pm_timer(void **state)
{
    (void)state;
    clock_now = UINT64_C(1000000000) * 3600;
    assert_int_equal(in(0x608, 4), (uint32_t)(UINT64_C(3579545) * 3600));
    assert_int_equal(in(0x609, 1), (UINT64_C(3579545) * 3600) >> 8 & 0xff);
    out(0x608, 4, 0);
    assert_int_equal(in(0x608, 4), (uint32_t)(UINT64_C(3579545) * 3600));
}

/* Protects the panic port: it says what it can, bit 0 ends the VM as panicked. */
static void panic_port(void **state)
{
    (void)state;
    assert_int_equal(in(0x505, 1), 1);
    out(0x505, 1, 2);
    assert_int_equal(ended, -1);
    assert_int_equal(chipset_port_write(&cs, 0x505, 1, 1), BUS_STOP);
    assert_int_equal(ended, CHIPSET_PANIC);
}

/* Protects the keyboard controller: self test, mode, reset by pulse and by the output port, and a
 * device that is not there answers at once. */
static void keyboard_controller(void **state)
{
    (void)state;
    assert_int_equal(in(0x64, 1) & 3, 0);
    out(0x64, 1, 0xaa);
    assert_int_equal(in(0x64, 1) & 1, 1);
    assert_int_equal(in(0x60, 1), 0x55);
    out(0x64, 1, 0x60);
    out(0x60, 1, 0x65);
    out(0x64, 1, 0x20);
    assert_int_equal(in(0x60, 1), 0x65);
    open_pic();
    out(0x60, 1, 0xf2); /* identify */
    assert_int_equal(in(0x64, 1) & 0x41, 0x41);
    assert_int_equal(chipset_ack(&cs, 0), 0x21);
    assert_int_equal(in(0x60, 1), 0xfe);
    assert_int_equal(in(0x64, 1) & 1, 0);
    out(0x64, 1, 0xd1);
    out(0x60, 1, 0xff);
    assert_int_equal(ended, -1);
    out(0x60, 1, 0xfe);
    out(0x64, 1, 0xf1);
    assert_int_equal(ended, -1);
    assert_int_equal(chipset_port_write(&cs, 0x64, 1, 0xfe), BUS_STOP);
    assert_int_equal(ended, CHIPSET_RESET);
    out(0x64, 1, 0xd1);
    ended = -1;
    assert_int_equal(chipset_port_write(&cs, 0x60, 1, 0x02), BUS_STOP);
    assert_int_equal(ended, CHIPSET_RESET);
}

/* Protects accesses wider than a device: each byte to its port, ones where nobody is. */
static void wide_accesses(void **state)
{
    uint32_t v;

    (void)state;
    out(0x70, 2, 0x5a0f);
    out(0x70, 1, 0x0f);
    assert_int_equal(in(0x71, 1), 0x5a);
    assert_int_equal(in(0x71, 2) & 0xffff, 0xff5a);
    assert_int_equal(chipset_port_read(&cs, 0x300, 4, &v), BUS_NONE);
    assert_int_equal(chipset_port_write(&cs, 0xffff, 4, 0), BUS_NONE);
}

/* Protects time: a timer of a device is told to the host, fires by chipset_run, and is told again
 * after a pause. */
static void time_passes(void **state)
{
    (void)state;
    open_pic();
    out(0x43, 1, 0x34);
    out(0x40, 1, 0);
    out(0x40, 1, 0);
    assert_in_range(armed_at, 54925000, 54940000);
    while (chipset_ack(&cs, 0) >= 0)
        out(0x20, 1, 0x20);
    clock_now = armed_at - 1;
    chipset_run(&cs);
    assert_int_equal(chipset_ack(&cs, 0), -1);
    clock_now = 54940000;
    chipset_run(&cs);
    assert_int_equal(chipset_ack(&cs, 0), 0x20);
    assert_in_range(armed_at, 109840000, 109870000);
    armed_at = 0;
    chipset_rearm(&cs);
    assert_in_range(armed_at, 109840000, 109870000);
}

/* Protects a restart: everything is as after power-on, no timer is left; an untouched one costs no
 * look at the host's clock. */
static void reset(void **state)
{
    (void)state;
    assert_int_equal(walls, 0);
    open_pic();
    out(0x43, 1, 0x34);
    out(0x40, 1, 9);
    out(0x40, 1, 9);
    out(0x70, 1, 11);
    out(0x71, 1, 0x42);
    assert_int_equal(walls, 1);
    mmio_out(0, LAPIC_BASE + 0xf0, 0x1ff);
    io_entry(4, 0x55);
    chipset_button(&cs);
    chipset_reset(&cs);
    assert_null(cs.timers.first);
    irq_set(&cs.lines, 4, true);
    assert_int_equal(chipset_ack(&cs, 0), -1);
    assert_int_equal(in(0x600, 2), 0);
    out(0x70, 1, 11);
    assert_int_equal(in(0x71, 1), 0x02);
    assert_int_equal(mmio_in(0, LAPIC_BASE + 0xf0), 0xff);
}

static void foreign_set(void *arg, unsigned line, bool level)
{
    (void)arg;
    foreign_line = line * 2 + level;
    foreign_calls++;
}

static void foreign_msi(void *arg, uint64_t addr, uint32_t data)
{
    (void)arg;
    (void)addr;
    foreign_line = data;
    foreign_calls++;
}

/* Protects an engine with interrupt controllers of its own: lines go there, their ports are free.
 */
static void foreign_controllers(void **state)
{
    static const struct irq_lines lines = {foreign_set, foreign_msi, NULL};
    uint64_t v;
    uint32_t p;

    chipset_fini(&cs);
    (void)state;
    begin(&lines);
    irq_set(&cs.lines, IRQ_COM1, true);
    assert_int_equal(foreign_line, IRQ_COM1 * 2 + 1);
    irq_msi(&cs.lines, 0xfee00000, 0x31);
    assert_int_equal(foreign_line, 0x31);
    out(0x602, 2, 0x100);
    chipset_button(&cs);
    assert_int_equal(foreign_line, IRQ_SCI * 2 + 1);
    assert_int_equal(chipset_port_read(&cs, 0x20, 1, &p), BUS_NONE);
    assert_int_equal(chipset_port_write(&cs, 0x43, 1, 0x34), BUS_NONE);
    assert_int_equal(chipset_mmio_read(&cs, 0, LAPIC_BASE, 4, &v), BUS_NONE);
    assert_int_equal(events[0][LAPIC_EV_INTR], 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(routes),
        T(virtual_wire),
        T(msi),
        T(mmio),
        T(power_off),
        T(power_button),
        T(pm_timer),
        T(panic_port),
        T(keyboard_controller),
        T(wide_accesses),
        T(time_passes),
        T(reset),
        T(foreign_controllers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
