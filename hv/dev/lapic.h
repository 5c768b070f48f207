/*
 * Local APICs of a VM and the bus between them, xAPIC and x2APIC, after Intel's SDM volume 3,
 * chapter "Advanced Programmable Interrupt Controller". APIC ids are vCPU numbers.
 * The timer counts nanoseconds: its bus runs at 1 GHz, before the divider.
 * No lock: used under the chipset's.
 */
#ifndef MAYFLY_DEV_LAPIC_H
#define MAYFLY_DEV_LAPIC_H

#include "hv/dev/timer.h"

#define LAPIC_BASE        0xfee00000u
#define LAPIC_SIZE        0x1000u
#define LAPIC_BUS_KHZ     1000000u
#define LAPIC_BASE_BSP    0x100u
#define LAPIC_BASE_X2     0x400u
#define LAPIC_BASE_ON     0x800u
#define LAPIC_MIN_STEP_NS 50000u /* periodic interrupts do not come more often than this */

/* Delivery modes. */
enum { APIC_FIXED, APIC_LOWEST, APIC_SMI, APIC_NMI = 4, APIC_INIT, APIC_SIPI, APIC_EXTINT };

enum { LVT_TIMER, LVT_THERMAL, LVT_PERF, LVT_LINT0, LVT_LINT1, LVT_ERROR, LVT_COUNT };

struct lapics;

struct lapic {
    struct dev_timer timer; /* first */
    struct lapics *all;
    uint32_t id;
    uint64_t base; /* MSR 0x1b */
    uint8_t tpr;
    uint32_t svr, ldr, dfr, esr, esr_next;
    uint64_t icr;
    uint32_t lvt[LVT_COUNT];
    uint32_t divide, initial;
    uint64_t began;        /* clock at which the current count began */
    uint64_t tsc_deadline; /* as written; 0: off */
    uint32_t irr[8], isr[8], tmr[8];
};

/* What one vCPU is to be told. */
enum lapic_event { LAPIC_EV_INTR, LAPIC_EV_NMI, LAPIC_EV_INIT, LAPIC_EV_SIPI };

struct lapics {
    void *first; /* struct lapic of vCPU 0; the others follow every `stride` bytes */
    size_t stride;
    unsigned count, turn; /* turn: where the search for the lowest priority begins */
    struct dev_timers *timers;
    /* `vector` is SIPI's. INTR: there may be something to acknowledge. */
    void (*event)(void *arg, unsigned cpu, enum lapic_event e, uint8_t vector);
    /* A level triggered vector ended: IOAPICs want to know. */
    void (*eoi)(void *arg, uint8_t vector);
    /* Guest TSC minus clock of that vCPU, for the deadline timer. */
    uint64_t (*tsc_offset)(void *arg, unsigned cpu);
    void *arg;
};

/* A message on the APIC bus. */
struct apic_message {
    uint32_t dest; /* 0xff (xAPIC form) or 0xffffffff: all */
    bool logical, level, x2;
    uint8_t mode, vector;
};

static inline struct lapic *lapic_of(const struct lapics *l, unsigned cpu)
{
    return (struct lapic *)(void *)((char *)l->first + cpu * l->stride);
}

/* The other fields of *l are set. */
void lapics_init(struct lapics *l);
void lapics_reset(struct lapics *l);
/* True when some LAPIC took it. */
bool lapics_deliver(struct lapics *l, const struct apic_message *m);

/* A vector waits that the priorities let through. */
bool lapic_pending(const struct lapic *a);
/* Acknowledges it; -1: none. */
int lapic_ack(struct lapic *a);
/* Whether the 8259's line reaches this vCPU: LINT0 in ExtINT mode, or no LAPIC at all. */
bool lapic_takes_pic(const struct lapic *a);

/* Registers by their xAPIC offset; 32 bits wide. */
uint32_t lapic_read(struct lapic *a, uint32_t offset);
void lapic_write(struct lapic *a, uint32_t offset, uint32_t v);
/* MSRs 0x1b, 0x6e0 and 0x800 to 0x8ff. False: no such register, value or mode. */
bool lapic_msr_read(struct lapic *a, uint32_t nr, uint64_t *v);
bool lapic_msr_write(struct lapic *a, uint32_t nr, uint64_t v);
/* CR8. */
uint8_t lapic_get_cr8(const struct lapic *a);
void lapic_set_cr8(struct lapic *a, uint8_t v);
/* The vCPU's TSC was written: a TSC deadline is somewhere else now. */
void lapic_tsc_moved(struct lapic *a);

#endif
