/*
 * What a PC has around its processors: interrupt controllers, timers, clock, ACPI's fixed hardware,
 * keyboard controller, panic port. One object, one lock, one clock.
 *
 *   ports  0x20 0xa0 0x4d0  8259 pair        0x40 0x61  8254        0x60 0x64  8042
 *          0x70  RTC        0x505  pvpanic   0x600  ACPI PM
 *   MMIO   0xfec00000 IOAPIC, 0xfee00000 LAPIC (of the vCPU that asks)
 *
 * Nothing runs and nothing is armed until a guest touches it.
 * Locks: a device's lock may be held, then the chipset's, then what the ops take.
 */
#ifndef MAYFLY_DEV_CHIPSET_H
#define MAYFLY_DEV_CHIPSET_H

#include <pthread.h>

#include "hv/dev/acpi_pm.h"
#include "hv/dev/bus.h"
#include "hv/dev/i8042.h"
#include "hv/dev/i8254.h"
#include "hv/dev/i8259.h"
#include "hv/dev/ioapic.h"
#include "hv/dev/irq.h"
#include "hv/dev/lapic.h"
#include "hv/dev/rtc.h"

#define PVPANIC_PORT     0x505u
#define PVPANIC_PANICKED 1u

enum chipset_end { CHIPSET_OFF, CHIPSET_RESET, CHIPSET_PANIC };

struct chipset_ops {
    /* The guest's clock, ns: stands still while the VM is paused. */
    uint64_t (*now)(void *arg);
    /* UTC in ns since 1970. */
    uint64_t (*wall)(void *arg);
    /* With the lock: chipset_run is to be called when the clock reaches `at`. */
    void (*arm)(void *arg, uint64_t at);
    /* With the lock: tells a vCPU; `vector` is SIPI's. */
    void (*event)(void *arg, unsigned cpu, enum lapic_event e, uint8_t vector);
    /* With the lock: guest TSC minus clock. */
    uint64_t (*tsc_offset)(void *arg, unsigned cpu);
    /* Without the lock, on the thread of the vCPU whose access asked for it. */
    void (*end)(void *arg, enum chipset_end kind);
};

struct chipset_config {
    void *lapics; /* struct lapic for each vCPU, `stride` bytes apart; the caller's memory */
    size_t stride;
    unsigned cpus;
    uint64_t ram_low, ram_high; /* bytes below and above 4 GiB, for the CMOS RAM */
    /*
     * Interrupt controllers elsewhere (in the kernel): lines of the chipset's devices go there, and
     * the chipset has no 8259, 8254, LAPIC and IOAPIC. NULL: its own. Must outlive the chipset.
     */
    const struct irq_lines *foreign;
};

struct chipset {
    const struct chipset_ops *ops;
    void *arg;
    struct chipset_config config;
    struct irq_lines lines; /* for devices outside */

    pthread_mutex_t lock;
    /* under lock */
    bool touched;  /* since the last reset */
    bool rtc_runs; /* the RTC has been set to the host's time */
    bool ending;   /* an access asks for ops->end */
    enum chipset_end end;
    struct dev_timers timers;
    struct lapics lapics;
    struct ioapic ioapic;
    struct i8259 pic;
    struct i8254 pit;
    struct rtc rtc;
    struct acpi_pm pm;
    struct i8042 kbd;
};

void chipset_init(struct chipset *cs, const struct chipset_ops *ops, void *arg,
                  const struct chipset_config *config);
void chipset_fini(struct chipset *cs);
/* Power-on state; costs nothing when nobody touched anything. No vCPU may run. */
void chipset_reset(struct chipset *cs);

/* Sizes 1, 2, 4. BUS_NONE: no port of the chipset. */
enum bus_result chipset_port_read(struct chipset *cs, uint16_t port, unsigned size,
                                  uint32_t *value);
enum bus_result chipset_port_write(struct chipset *cs, uint16_t port, unsigned size,
                                   uint32_t value);
enum bus_result chipset_mmio_read(struct chipset *cs, unsigned cpu, uint64_t addr, unsigned size,
                                  uint64_t *value);
enum bus_result chipset_mmio_write(struct chipset *cs, unsigned cpu, uint64_t addr, unsigned size,
                                   uint64_t value);

/* False: #GP. */
bool chipset_msr_read(struct chipset *cs, unsigned cpu, uint32_t nr, uint64_t *value);
bool chipset_msr_write(struct chipset *cs, unsigned cpu, uint32_t nr, uint64_t value);
void chipset_tsc_moved(struct chipset *cs, unsigned cpu);
uint8_t chipset_get_cr8(struct chipset *cs, unsigned cpu);
void chipset_set_cr8(struct chipset *cs, unsigned cpu, uint8_t v);
/* The vector that the vCPU takes now; -1: none. */
int chipset_ack(struct chipset *cs, unsigned cpu);

/* Fires the timers that are due. Any thread. */
void chipset_run(struct chipset *cs);
/* The clock goes on after a pause: what was armed is armed again. */
void chipset_rearm(struct chipset *cs);
/* Presses the power button. */
void chipset_button(struct chipset *cs);

#endif
