/*
 * Interrupt lines, as a device sees them.
 *
 * A line is a number of the PC's convention: 0 to 15 are the ISA interrupts, 16 to 23 the further
 * inputs of the IOAPIC. Whoever implements the lines routes
 *
 *   line 0                  to PIC input 0 and IOAPIC pin 2 (the MADT says so)
 *   line 1, 3 ... 15        to that PIC input and that IOAPIC pin
 *   line 2                  nowhere: the slave PIC hangs there
 *   line 16 ... 23          to that IOAPIC pin
 *
 * The chipset (dev/chipset.h) implements them for engines without interrupt controllers of their
 * own; the KVM engine by KVM_IRQ_LINE and KVM_SIGNAL_MSI with the same routes.
 */
#ifndef MAYFLY_DEV_IRQ_H
#define MAYFLY_DEV_IRQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IRQ_LINES 24u

#define IRQ_PIT  0u
#define IRQ_KBD  1u
#define IRQ_COM1 4u
#define IRQ_RTC  8u
#define IRQ_SCI  9u /* ACPI; level, active high */

/*
 * Both may be called from any thread, also with a device's lock held; they take the chipset's lock
 * and the scheduler's, and never call back into a device that is not part of the chipset.
 */
struct irq_lines {
    /* The line's level. An edge is a change; the same level again is nothing. */
    void (*set)(void *arg, unsigned line, bool level);
    /* A message-signalled interrupt: what a device would write to 0xfeexxxxx. */
    void (*msi)(void *arg, uint64_t addr, uint32_t data);
    void *arg;
};

static inline void irq_set(const struct irq_lines *l, unsigned line, bool level)
{
    l->set(l->arg, line, level);
}

static inline void irq_msi(const struct irq_lines *l, uint64_t addr, uint32_t data)
{
    l->msi(l->arg, addr, data);
}

#endif
