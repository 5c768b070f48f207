/*
 * IOAPIC with 24 inputs, after Intel's 82093AA data sheet, and the EOI register of its successors
 * (version 0x20).
 * No lock: used under the chipset's.
 */
#ifndef MAYFLY_DEV_IOAPIC_H
#define MAYFLY_DEV_IOAPIC_H

#include "hv/dev/lapic.h"

#define IOAPIC_BASE 0xfec00000u
#define IOAPIC_SIZE 0x1000u
#define IOAPIC_PINS 24u

struct ioapic {
    struct lapics *bus;
    uint8_t select, id;
    uint32_t level; /* inputs as they are now */
    uint64_t entry[IOAPIC_PINS];
};

void ioapic_init(struct ioapic *io, struct lapics *bus);
void ioapic_reset(struct ioapic *io);
void ioapic_set(struct ioapic *io, unsigned pin, bool level);
/* A LAPIC ended a level triggered vector: inputs that are still high send again. */
void ioapic_eoi(struct ioapic *io, uint8_t vector);
/* 32-bit registers by offset in the MMIO page. */
uint32_t ioapic_read(struct ioapic *io, uint32_t offset);
void ioapic_write(struct ioapic *io, uint32_t offset, uint32_t v);

#endif
