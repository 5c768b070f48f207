#include "hv/dev/ioapic.h"

#include <string.h>

#define AT_SELECT 0x00u
#define AT_WINDOW 0x10u
#define AT_EOI    0x40u

#define REG_ID      0x00u
#define REG_VERSION 0x01u
#define REG_ARB     0x02u
#define REG_ENTRY   0x10u

#define VERSION (0x20u | (IOAPIC_PINS - 1) << 16)

#define RTE_LOGICAL    0x0800u
#define RTE_REMOTE_IRR 0x4000u
#define RTE_LEVEL      0x8000u
#define RTE_MASKED     0x10000u
#define RTE_WRITABLE   UINT64_C(0xff0000000001afff)

void ioapic_init(struct ioapic *io, struct lapics *bus)
{
    io->bus = bus;
    ioapic_reset(io);
}

void ioapic_reset(struct ioapic *io)
{
    io->select = io->id = 0;
    io->level = 0;
    for (unsigned i = 0; i < IOAPIC_PINS; i++)
        io->entry[i] = RTE_MASKED;
}

static void send(struct ioapic *io, unsigned pin)
{
    uint64_t e = io->entry[pin];
    struct apic_message m = {
        .dest = (uint32_t)(e >> 56),
        .logical = e & RTE_LOGICAL,
        .level = e & RTE_LEVEL,
        .mode = e >> 8 & 7,
        .vector = (uint8_t)e,
    };

    if (lapics_deliver(io->bus, &m) && m.level)
        io->entry[pin] |= RTE_REMOTE_IRR;
}

/* A level triggered input that is high and not being served. */
static void serve_level(struct ioapic *io, unsigned pin)
{
    uint64_t e = io->entry[pin];

    if ((e & RTE_LEVEL) && (io->level >> pin & 1) && !(e & (RTE_MASKED | RTE_REMOTE_IRR)))
        send(io, pin);
}

void ioapic_set(struct ioapic *io, unsigned pin, bool level)
{
    uint32_t bit;
    bool was;

    if (pin >= IOAPIC_PINS)
        return;
    bit = UINT32_C(1) << pin;
    was = io->level & bit;
    io->level = level ? io->level | bit : io->level & ~bit;
    if (io->entry[pin] & RTE_LEVEL)
        serve_level(io, pin);
    else if (level && !was && !(io->entry[pin] & RTE_MASKED))
        send(io, pin); /* an edge on a masked input is lost */
}

void ioapic_eoi(struct ioapic *io, uint8_t vector)
{
    for (unsigned i = 0; i < IOAPIC_PINS; i++) {
        uint64_t e = io->entry[i];

        if ((uint8_t)e != vector || !(e & RTE_LEVEL) || !(e & RTE_REMOTE_IRR))
            continue;
        io->entry[i] &= ~(uint64_t)RTE_REMOTE_IRR;
        serve_level(io, i);
    }
}

static void write_entry(struct ioapic *io, unsigned index, uint32_t v)
{
    unsigned pin = index / 2, shift = index % 2 * 32;
    uint64_t e;

    if (pin >= IOAPIC_PINS)
        return;
    e = (io->entry[pin] & ~(UINT64_C(0xffffffff) << shift)) | (uint64_t)v << shift;
    e = (e & RTE_WRITABLE) | (io->entry[pin] & RTE_REMOTE_IRR);
    /* Going to edge triggered is how drivers clear a remote IRR that got stuck. */
    if (!(e & RTE_LEVEL))
        e &= ~(uint64_t)RTE_REMOTE_IRR;
    io->entry[pin] = e;
    serve_level(io, pin);
}

static uint32_t read_register(const struct ioapic *io)
{
    unsigned index = io->select - REG_ENTRY;

    if (io->select == REG_ID || io->select == REG_ARB)
        return (uint32_t)io->id << 24;
    if (io->select == REG_VERSION)
        return VERSION;
    if (io->select < REG_ENTRY || index / 2 >= IOAPIC_PINS)
        return 0;
    return (uint32_t)(io->entry[index / 2] >> (index % 2 * 32));
}

uint32_t ioapic_read(struct ioapic *io, uint32_t offset)
{
    if (offset == AT_SELECT)
        return io->select;
    return offset == AT_WINDOW ? read_register(io) : 0;
}

void ioapic_write(struct ioapic *io, uint32_t offset, uint32_t v)
{
    if (offset == AT_SELECT)
        io->select = (uint8_t)v;
    else if (offset == AT_EOI)
        ioapic_eoi(io, (uint8_t)v);
    else if (offset != AT_WINDOW)
        return;
    else if (io->select == REG_ID)
        io->id = v >> 24 & 15;
    else if (io->select >= REG_ENTRY)
        write_entry(io, io->select - REG_ENTRY, v);
}
