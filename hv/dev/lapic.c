/* A LAPIC's state: priorities, local vectors, timer, what INIT does. Registers: lapic_regs.c. */
#include "hv/dev/lapic.h"

#include <string.h>

#include "hv/dev/lapic_impl.h"

static unsigned highest(const uint32_t set[8])
{
    for (unsigned i = 8; i--;)
        if (set[i])
            return i * 32 + 31u - (unsigned)__builtin_clz(set[i]);
    return 0;
}

static bool vec_test(const uint32_t set[8], unsigned v)
{
    return set[v / 32] >> (v % 32) & 1;
}

static void vec_put(uint32_t set[8], unsigned v, bool on)
{
    uint32_t bit = UINT32_C(1) << (v % 32);

    set[v / 32] = on ? set[v / 32] | bit : set[v / 32] & ~bit;
}

static bool hardware_on(const struct lapic *a)
{
    return a->base & LAPIC_BASE_ON;
}

bool lapic_software_on(const struct lapic *a)
{
    return hardware_on(a) && (a->svr & SVR_ON);
}

/* ---- priorities */

uint8_t lapic_ppr(const struct lapic *a)
{
    unsigned isr = highest(a->isr);

    return (uint8_t)(a->tpr >> 4 >= isr >> 4 ? a->tpr : isr & 0xf0);
}

bool lapic_pending(const struct lapic *a)
{
    /* Class 0 is no vector, so an empty IRR is never above. */
    return lapic_software_on(a) && highest(a->irr) >> 4 > lapic_ppr(a) >> 4;
}

void lapic_update(struct lapic *a)
{
    if (lapic_pending(a))
        a->all->event(a->all->arg, a->id, LAPIC_EV_INTR, 0);
}

int lapic_ack(struct lapic *a)
{
    unsigned v = highest(a->irr);

    if (!lapic_pending(a))
        return -1;
    vec_put(a->irr, v, false);
    vec_put(a->isr, v, true);
    return (int)v;
}

void lapic_eoi(struct lapic *a)
{
    unsigned v = highest(a->isr);

    if (!v)
        return;
    vec_put(a->isr, v, false);
    if (vec_test(a->tmr, v))
        a->all->eoi(a->all->arg, (uint8_t)v);
    lapic_update(a);
}

bool lapic_takes_pic(const struct lapic *a)
{
    if (!hardware_on(a))
        return a->id == 0;
    return !(a->lvt[LVT_LINT0] & LVT_MASKED) && LVT_MODE(a->lvt[LVT_LINT0]) == APIC_EXTINT;
}

uint8_t lapic_get_cr8(const struct lapic *a)
{
    return a->tpr >> 4;
}

void lapic_set_cr8(struct lapic *a, uint8_t v)
{
    a->tpr = (uint8_t)(v << 4);
    lapic_update(a);
}

/* ---- taking messages */

void lapic_error(struct lapic *a, uint32_t bit)
{
    bool first = !(a->esr_next & bit);

    a->esr_next |= bit;
    if (first)
        lapic_local(a, LVT_ERROR);
}

static void take_vector(struct lapic *a, uint8_t vector, bool level)
{
    if (!lapic_software_on(a))
        return;
    if (vector < 16) {
        lapic_error(a, ESR_RECEIVE_ILLEGAL);
        return;
    }
    vec_put(a->irr, vector, true);
    vec_put(a->tmr, vector, level);
    lapic_update(a);
}

void lapic_take(struct lapic *a, const struct apic_message *m)
{
    struct lapics *l = a->all;

    if (!hardware_on(a))
        return;
    switch (m->mode) {
    case APIC_FIXED:
    case APIC_LOWEST:
        take_vector(a, m->vector, m->level);
        break;
    case APIC_NMI:
        l->event(l->arg, a->id, LAPIC_EV_NMI, 0);
        break;
    case APIC_INIT:
        lapic_init_reset(a);
        l->event(l->arg, a->id, LAPIC_EV_INIT, 0);
        break;
    case APIC_SIPI:
        l->event(l->arg, a->id, LAPIC_EV_SIPI, m->vector);
        break;
    default: /* SMI, ExtINT: nobody serves them here */
        break;
    }
}

void lapic_local(struct lapic *a, unsigned n)
{
    uint32_t lvt = a->lvt[n];
    struct apic_message m = {.mode = (uint8_t)LVT_MODE(lvt), .vector = (uint8_t)lvt};

    if (lvt & LVT_MASKED)
        return;
    if (n == LVT_TIMER || n == LVT_ERROR)
        m.mode = APIC_FIXED;
    if (m.mode == APIC_FIXED || m.mode == APIC_NMI)
        lapic_take(a, &m);
}

/* ---- timer */

static unsigned timer_shift(const struct lapic *a)
{
    return (((a->divide & 3) | (a->divide >> 1 & 4)) + 1) & 7;
}

unsigned lapic_timer_mode(const struct lapic *a)
{
    return a->lvt[LVT_TIMER] >> 17 & 3;
}

static uint64_t period(const struct lapic *a)
{
    return (uint64_t)a->initial << timer_shift(a);
}

uint32_t lapic_timer_count(const struct lapic *a)
{
    uint64_t gone = dev_timers_now(a->all->timers) - a->began;

    if (!a->initial || lapic_timer_mode(a) == TIMER_DEADLINE)
        return 0;
    if (lapic_timer_mode(a) == TIMER_PERIODIC)
        gone %= period(a);
    else if (gone >= period(a))
        return 0;
    return (uint32_t)((period(a) - gone - 1) >> timer_shift(a)) + 1;
}

static void schedule_periodic(struct lapic *a)
{
    uint64_t now = dev_timers_now(a->all->timers), n = period(a);
    uint64_t at = a->began + ((now - a->began) / n + 1) * n;

    /* Periods that were missed, or are shorter than the host can serve, are not made up for. */
    if (at < now + LAPIC_MIN_STEP_NS)
        at += (now + LAPIC_MIN_STEP_NS - at + n - 1) / n * n;
    dev_timer_set(a->all->timers, &a->timer, at);
}

static uint64_t deadline_clock(const struct lapic *a)
{
    uint64_t now = dev_timers_now(a->all->timers);
    int64_t ahead = (int64_t)(a->tsc_deadline - (now + a->all->tsc_offset(a->all->arg, a->id)));

    if (ahead <= 0)
        return now;
    return (uint64_t)ahead > DEV_TIMER_OFF - 1 - now ? DEV_TIMER_OFF - 1 : now + (uint64_t)ahead;
}

void lapic_timer_schedule(struct lapic *a)
{
    struct dev_timers *q = a->all->timers;

    dev_timer_cancel(q, &a->timer);
    if (lapic_timer_mode(a) == TIMER_DEADLINE) {
        if (a->tsc_deadline)
            dev_timer_set(q, &a->timer, deadline_clock(a));
    } else if (a->initial) {
        if (lapic_timer_mode(a) == TIMER_PERIODIC)
            schedule_periodic(a);
        else if (dev_timers_now(q) - a->began < period(a))
            dev_timer_set(q, &a->timer, a->began + period(a));
    }
}

void lapic_tsc_moved(struct lapic *a)
{
    if (lapic_timer_mode(a) == TIMER_DEADLINE)
        lapic_timer_schedule(a);
}

static void fire(struct dev_timer *t, uint64_t now)
{
    struct lapic *a = (struct lapic *)t;

    (void)now;
    a->tsc_deadline = 0;
    lapic_local(a, LVT_TIMER);
    if (lapic_timer_mode(a) == TIMER_PERIODIC)
        schedule_periodic(a);
}

/* ---- life */

/* What INIT does: all but id and base. */
void lapic_init_reset(struct lapic *a)
{
    dev_timer_cancel(a->all->timers, &a->timer);
    a->tpr = 0;
    a->svr = 0xff;
    a->dfr = UINT32_MAX;
    a->ldr = a->base & LAPIC_BASE_X2 ? lapic_x2_ldr(a->id) : 0;
    a->esr = a->esr_next = 0;
    a->icr = 0;
    a->divide = a->initial = 0;
    a->tsc_deadline = 0;
    for (unsigned i = 0; i < LVT_COUNT; i++)
        a->lvt[i] = LVT_MASKED;
    memset(a->irr, 0, sizeof a->irr);
    memset(a->isr, 0, sizeof a->isr);
    memset(a->tmr, 0, sizeof a->tmr);
}

void lapics_init(struct lapics *l)
{
    for (unsigned i = 0; i < l->count; i++) {
        struct lapic *a = lapic_of(l, i);

        memset(a, 0, sizeof *a);
        a->all = l;
        a->id = i;
        a->timer.fire = fire;
    }
    lapics_reset(l);
}

void lapics_reset(struct lapics *l)
{
    l->turn = 0;
    for (unsigned i = 0; i < l->count; i++) {
        struct lapic *a = lapic_of(l, i);

        a->base = LAPIC_BASE | LAPIC_BASE_ON | (i ? 0 : LAPIC_BASE_BSP);
        lapic_init_reset(a);
    }
    /* As a firmware leaves it: the 8259 reaches the first processor (virtual wire). */
    lapic_of(l, 0)->lvt[LVT_LINT0] = APIC_EXTINT << 8;
}
