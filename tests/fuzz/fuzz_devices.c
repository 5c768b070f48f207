/*
 * Any accesses of a guest to the machine's devices, in any order, with time going on between them:
 * nothing breaks, timers stay in order and bounded, a reset leaves the power-on state.
 */
#include <string.h>

#include "driver.h"
#include "hv/dev/chipset.h"
#include "hv/dev/endports.h"
#include "hv/dev/uart16550.h"

#define CPUS 3u
#define WILD 100u /* random steps after those of the input */

enum {
    OP_IN,
    OP_OUT,
    OP_MMIO_READ,
    OP_MMIO_WRITE,
    OP_MSR_READ,
    OP_MSR_WRITE,
    OP_ACK,
    OP_TIME,
    OPS
};

struct step {
    uint8_t op, cpu, where, size;
    uint32_t value;
};

static struct chipset cs;
static struct lapic lapics[CPUS];
static struct bus bus;
static struct uart16550 uart;
static struct end_ports ends;
static uint64_t clock_now, offset[CPUS];
static uint64_t armed;

/* Where the devices are, and their neighbours; `where` chooses one. */
static const uint16_t ports[] = {0x1f,  0x20,  0x21,  0x22,  0x3f,  0x40,  0x41,  0x42,  0x43,
                                 0x44,  0x60,  0x61,  0x62,  0x64,  0x70,  0x71,  0x72,  0x80,
                                 0xa0,  0xa1,  0xf4,  0x3f7, 0x3f8, 0x3f9, 0x3fa, 0x3fb, 0x3fc,
                                 0x3fd, 0x3fe, 0x3ff, 0x4d0, 0x4d1, 0x505, 0x5fe, 0x600, 0x601,
                                 0x602, 0x603, 0x604, 0x605, 0x608, 0x60a, 0x60b, 0xcf9, 0xffff};

static uint64_t now(void *arg)
{
    (void)arg;
    return clock_now;
}

static uint64_t wall(void *arg)
{
    (void)arg;
    return UINT64_C(1796083198000000000);
}

static void arm(void *arg, uint64_t at)
{
    (void)arg;
    FUZZ_ASSERT(at < armed); /* only ever earlier than before */
    armed = at;
}

static void event(void *arg, unsigned cpu, enum lapic_event e, uint8_t vector)
{
    (void)arg;
    (void)vector;
    FUZZ_ASSERT(cpu < CPUS && e <= LAPIC_EV_SIPI);
}

static uint64_t tsc_offset(void *arg, unsigned cpu)
{
    (void)arg;
    FUZZ_ASSERT(cpu < CPUS);
    return offset[cpu];
}

static void chipset_ends(void *arg, enum chipset_end kind)
{
    (void)arg;
    FUZZ_ASSERT(kind <= CHIPSET_PANIC);
}

static void port_ends(void *arg, enum end_kind kind, uint64_t code)
{
    (void)arg;
    (void)kind;
    (void)code;
}

static void sink(void *arg, uint8_t byte)
{
    (void)arg;
    (void)byte;
}

static void uart_irq(void *arg, bool level)
{
    (void)arg;
    irq_set(&cs.lines, IRQ_COM1, level);
}

static const struct chipset_ops ops = {now, wall, arm, event, tsc_offset, chipset_ends};

static void begin(void)
{
    struct chipset_config c = {.lapics = lapics,
                               .stride = sizeof lapics[0],
                               .cpus = CPUS,
                               .ram_low = UINT64_C(3) << 30,
                               .ram_high = UINT64_C(1) << 40};

    clock_now = 0;
    armed = DEV_TIMER_OFF;
    memset(offset, 0, sizeof offset);
    chipset_init(&cs, &ops, NULL, &c);
    bus_init(&bus);
    uart16550_init(&uart, sink, uart_irq, NULL);
    FUZZ_ASSERT(!bus_claim_ports(&bus, &uart.device, 0x3f8, 0x3ff));
    FUZZ_ASSERT(!end_ports_init(&ends, &bus, port_ends, NULL));
}

static void check_timers(void)
{
    const struct dev_timer *t = cs.timers.first;
    unsigned n = 0;

    FUZZ_ASSERT(!t || armed <= t->at);
    for (; t; t = t->next, n++) {
        FUZZ_ASSERT(t->queued && t->fire);
        FUZZ_ASSERT(!t->next || (t->next->prev == t && t->next->at >= t->at));
    }
    FUZZ_ASSERT(n <= CPUS + 2);
}

static void port_access(const struct step *s, bool write)
{
    uint16_t port = ports[s->where % (sizeof ports / sizeof ports[0])];
    unsigned size = 1u << s->size % 3;
    uint32_t v = s->value;

    if (write) {
        if (bus_port_write(&bus, port, size, v) == BUS_NONE)
            chipset_port_write(&cs, port, size, v);
        return;
    }
    if (bus_port_read(&bus, port, size, &v) == BUS_NONE &&
        chipset_port_read(&cs, port, size, &v) == BUS_NONE)
        return;
    FUZZ_ASSERT(size == 4 || v >> (8 * size) == 0);
}

static void mmio_access(const struct step *s, bool write)
{
    uint64_t at = (s->size & 0x80 ? IOAPIC_BASE : LAPIC_BASE) + s->where * 16u;
    unsigned size = 1u << s->size % 4;
    uint64_t v = s->value;

    at += s->size & 0x40 ? s->size >> 2 & 15 : 0;
    if (s->size & 0x80)
        at = IOAPIC_BASE + (s->where & 1 ? 0x10 : s->where & 2 ? 0x40 : 0);
    if (write)
        chipset_mmio_write(&cs, s->cpu % CPUS, at, size, v);
    else if (chipset_mmio_read(&cs, s->cpu % CPUS, at, size, &v) == BUS_OK)
        FUZZ_ASSERT(size >= 4 || v >> (8 * size) == 0);
}

static void msr_access(const struct step *s, bool write)
{
    static const uint32_t numbers[] = {0x1b, 0x6e0, 0x7ff, 0x900};
    uint32_t nr = s->size & 1 ? 0x800u + s->where : numbers[s->where % 4];
    uint64_t v = (uint64_t)s->value << (s->size >> 2 & 31) | (s->size & 2 ? s->value : 0);

    if (nr == 0x1b && s->size & 0x80)
        v = 0xfee00000 | (s->value & 0xd00);
    if (write)
        chipset_msr_write(&cs, s->cpu % CPUS, nr, v);
    else
        chipset_msr_read(&cs, s->cpu % CPUS, nr, &v);
}

static void time_step(const struct step *s)
{
    if (s->size & 1) {
        offset[s->cpu % CPUS] = (uint64_t)s->value << (s->where % 33);
        chipset_tsc_moved(&cs, s->cpu % CPUS);
        return;
    }
    clock_now += s->size & 2 ? (uint64_t)s->value << (s->where % 16) : s->value % 1000000;
    armed = DEV_TIMER_OFF; /* the host's timer has fired, or it comes late */
    chipset_run(&cs);
    if (s->size & 4) {
        armed = DEV_TIMER_OFF;
        chipset_rearm(&cs);
    }
    FUZZ_ASSERT(!cs.timers.first || armed <= cs.timers.first->at);
}

static void run(const struct step *s)
{
    switch (s->op % OPS) {
    case OP_IN:
    case OP_OUT:
        port_access(s, s->op % OPS == OP_OUT);
        break;
    case OP_MMIO_READ:
    case OP_MMIO_WRITE:
        mmio_access(s, s->op % OPS == OP_MMIO_WRITE);
        break;
    case OP_MSR_READ:
    case OP_MSR_WRITE:
        msr_access(s, s->op % OPS == OP_MSR_WRITE);
        break;
    case OP_ACK:
        FUZZ_ASSERT(chipset_ack(&cs, s->cpu % CPUS) < 256);
        chipset_set_cr8(&cs, s->cpu % CPUS, s->where & 15);
        FUZZ_ASSERT(chipset_get_cr8(&cs, s->cpu % CPUS) == (s->where & 15));
        irq_set(&cs.lines, s->value & 31, s->size & 1);
        irq_msi(&cs.lines, LAPIC_BASE | (s->value & 0xff00c), s->value >> 16);
        uart16550_input(&uart, &s->where, 1);
        break;
    default:
        time_step(s);
        break;
    }
}

/* What a guest could tell apart. */
static void check_power_on(void)
{
    uint32_t v;

    FUZZ_ASSERT(!cs.timers.first);
    for (unsigned i = 0; i < CPUS; i++) {
        FUZZ_ASSERT(chipset_ack(&cs, i) == -1);
        FUZZ_ASSERT(lapics[i].svr == 0xff && lapics[i].tpr == 0 && !lapics[i].initial);
        FUZZ_ASSERT(lapics[i].base == (0xfee00800u | (i ? 0 : 0x100u)));
    }
    for (unsigned i = 0; i < IOAPIC_PINS; i++)
        FUZZ_ASSERT(cs.ioapic.entry[i] == 0x10000);
    chipset_port_read(&cs, 0x600, 4, &v);
    FUZZ_ASSERT(v == 0);
}

/* Steps that follow from the input: it says how a driver begins, these are what nobody expects. */
static void run_wild(uint64_t x)
{
    struct step s;

    for (unsigned i = 0; i < WILD; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(&s, &x, sizeof s);
        run(&s);
        check_timers();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t hash = 1469598103934665603u;
    struct step s;

    begin();
    for (size_t at = 0; at + sizeof s <= size; at += sizeof s) {
        memcpy(&s, data + at, sizeof s);
        run(&s);
        check_timers();
    }
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 1099511628211u;
    run_wild(hash);
    bus_reset(&bus);
    chipset_reset(&cs);
    check_power_on();
    chipset_fini(&cs);
    return 0;
}

/* Devices as drivers begin with them, each followed by time and acknowledges. */
size_t fuzz_seed(unsigned i, uint8_t *buf)
{
    static const struct step seeds[][12] = {
        /* 8259 open, 8254 periodic */
        {{OP_OUT, 0, 1, 0, 0x11},
         {OP_OUT, 0, 2, 0, 0x20},
         {OP_OUT, 0, 2, 0, 4},
         {OP_OUT, 0, 2, 0, 1},
         {OP_OUT, 0, 2, 0, 0},
         {OP_OUT, 0, 8, 0, 0x34},
         {OP_OUT, 0, 5, 0, 0x10},
         {OP_OUT, 0, 5, 0, 0x00},
         {OP_TIME, 0, 0, 0, 999999},
         {OP_ACK, 0, 0, 1, 4},
         {OP_IN, 0, 11, 0, 0},
         {OP_TIME, 0, 0, 2, 100000}},
        /* LAPIC timers and an IPI */
        {{OP_MMIO_WRITE, 1, 0x0f, 2, 0x1ff},
         {OP_MMIO_WRITE, 1, 0x32, 2, 0x20040},
         {OP_MMIO_WRITE, 1, 0x38, 2, 1000},
         {OP_TIME, 1, 0, 0, 500000},
         {OP_ACK, 1, 0, 0, 0},
         {OP_MMIO_WRITE, 1, 0x0b, 2, 0},
         {OP_MMIO_WRITE, 0, 0x31, 2, 1u << 24},
         {OP_MMIO_WRITE, 0, 0x30, 2, 0x51},
         {OP_MMIO_WRITE, 1, 0x32, 2, 0x40041},
         {OP_MSR_WRITE, 1, 1, 2, 700000},
         {OP_TIME, 1, 3, 1, 12345},
         {OP_TIME, 1, 0, 6, 900000}},
        /* IOAPIC, x2APIC, RTC, ACPI */
        {{OP_MMIO_WRITE, 0, 0, 0x82, 0x18},
         {OP_MMIO_WRITE, 0, 1, 0x82, 0x8044},
         {OP_MSR_WRITE, 2, 0, 0x80, 0xc00},
         {OP_MSR_WRITE, 2, 0x0f, 1, 0x1ff},
         {OP_MSR_WRITE, 2, 0x3f, 1, 0x77},
         {OP_OUT, 0, 14, 0, 11},
         {OP_OUT, 0, 15, 0, 0x72},
         {OP_OUT, 0, 36, 1, 0x100},
         {OP_OUT, 0, 26, 0, 0x0b},
         {OP_OUT, 0, 23, 0, 0x0f},
         {OP_TIME, 0, 4, 2, 4000000000u},
         {OP_IN, 0, 15, 0, 0}},
    };

    if (i >= sizeof seeds / sizeof seeds[0])
        return 0;
    memcpy(buf, seeds[i], sizeof seeds[i]);
    return sizeof seeds[i];
}
