/* Between lapic.c and lapic_regs.c. */
#ifndef MAYFLY_DEV_LAPIC_IMPL_H
#define MAYFLY_DEV_LAPIC_IMPL_H

#include "hv/dev/lapic.h"

#define SVR_ON      0x100u
#define LVT_MASKED  0x10000u
#define LVT_MODE(v) ((v) >> 8 & 7)

#define ESR_SEND_ILLEGAL    0x20u
#define ESR_RECEIVE_ILLEGAL 0x40u
#define ESR_REGISTER        0x80u

enum { TIMER_ONE_SHOT, TIMER_PERIODIC, TIMER_DEADLINE };

bool lapic_software_on(const struct lapic *a);
uint8_t lapic_ppr(const struct lapic *a);
/* Tells the vCPU when something is pending. */
void lapic_update(struct lapic *a);
void lapic_eoi(struct lapic *a);
void lapic_error(struct lapic *a, uint32_t bit);
void lapic_take(struct lapic *a, const struct apic_message *m);
/* An event of a local vector (LVT_*). */
void lapic_local(struct lapic *a, unsigned n);
void lapic_init_reset(struct lapic *a);

unsigned lapic_timer_mode(const struct lapic *a);
uint32_t lapic_timer_count(const struct lapic *a);
void lapic_timer_schedule(struct lapic *a);

static inline uint32_t lapic_x2_ldr(uint32_t id)
{
    return id >> 4 << 16 | UINT32_C(1) << (id & 15);
}

#endif
