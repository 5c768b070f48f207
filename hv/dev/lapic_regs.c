/* A LAPIC's registers, and messages to others. */
#include "hv/dev/lapic_impl.h"

#define REG_ID       0x020u
#define REG_VERSION  0x030u
#define REG_TPR      0x080u
#define REG_APR      0x090u
#define REG_PPR      0x0a0u
#define REG_EOI      0x0b0u
#define REG_LDR      0x0d0u
#define REG_DFR      0x0e0u
#define REG_SVR      0x0f0u
#define REG_ISR      0x100u
#define REG_TMR      0x180u
#define REG_IRR      0x200u
#define REG_IRR_END  0x280u
#define REG_ESR      0x280u
#define REG_ICR      0x300u
#define REG_ICR_HIGH 0x310u
#define REG_LVT      0x320u
#define REG_INITIAL  0x380u
#define REG_CURRENT  0x390u
#define REG_DIVIDE   0x3e0u
#define REG_SELF     0x3f0u /* x2APIC only */

#define VERSION       (0x14u | (LVT_COUNT - 1) << 16)
#define ICR_LOGICAL   0x00800u
#define ICR_ASSERT    0x04000u
#define ICR_LEVEL     0x08000u
#define ICR_X2_BITS   UINT64_C(0xffffffff000ccfff)
#define BROADCAST     0xffu
#define BROADCAST_X2  UINT32_MAX
#define DFR_FLAT      0xfu
#define BASE_RESERVED (~(UINT64_C(0xfffffffff000) | LAPIC_BASE_BSP | LAPIC_BASE_X2 | LAPIC_BASE_ON))

#define MSR_BASE     0x1bu
#define MSR_DEADLINE 0x6e0u
#define MSR_X2       0x800u

/* What can be written of each local vector. */
static const uint32_t lvt_mask[LVT_COUNT] = {0x700ff, 0x107ff, 0x107ff, 0x1a7ff, 0x1a7ff, 0x100ff};

static bool is_x2(const struct lapic *a)
{
    return (a->base & (LAPIC_BASE_X2 | LAPIC_BASE_ON)) == (LAPIC_BASE_X2 | LAPIC_BASE_ON);
}

/* ---- destinations */

static bool matches_logical(const struct lapic *a, uint32_t dest)
{
    if (is_x2(a))
        return dest >> 16 == a->ldr >> 16 && (dest & a->ldr & 0xffff);
    if (a->dfr >> 28 == DFR_FLAT)
        return a->ldr >> 24 & dest & 0xff;
    return (a->ldr >> 28 == (dest >> 4 & 15)) && (a->ldr >> 24 & dest & 15);
}

static bool matches(const struct lapic *a, const struct apic_message *m)
{
    if (m->dest == (m->x2 ? BROADCAST_X2 : BROADCAST))
        return true;
    if (!m->logical)
        return m->dest == a->id;
    return matches_logical(a, m->dest);
}

static bool deliver_lowest(struct lapics *l, const struct apic_message *m)
{
    struct lapic *best = NULL;

    for (unsigned i = 0; i < l->count; i++) {
        struct lapic *a = lapic_of(l, (l->turn + i) % l->count);

        if (matches(a, m) && lapic_software_on(a) && (!best || lapic_ppr(a) < lapic_ppr(best)))
            best = a;
    }
    if (!best)
        return false;
    l->turn = (best->id + 1) % l->count;
    lapic_take(best, m);
    return true;
}

bool lapics_deliver(struct lapics *l, const struct apic_message *m)
{
    bool any = false;

    if (m->mode == APIC_LOWEST)
        return deliver_lowest(l, m);
    for (unsigned i = 0; i < l->count; i++) {
        struct lapic *a = lapic_of(l, i);

        if (!matches(a, m))
            continue;
        lapic_take(a, m);
        any = true;
    }
    return any;
}

/* ---- interprocessor interrupts */

static void send_shorthand(struct lapic *a, const struct apic_message *m, unsigned shorthand)
{
    for (unsigned i = 0; i < a->all->count; i++)
        if (shorthand == 1 ? i == a->id : shorthand == 2 || i != a->id)
            lapic_take(lapic_of(a->all, i), m);
}

static void send(struct lapic *a)
{
    unsigned shorthand = a->icr >> 18 & 3;
    struct apic_message m = {
        .dest = (uint32_t)(is_x2(a) ? a->icr >> 32 : a->icr >> 56),
        .logical = a->icr & ICR_LOGICAL,
        .x2 = is_x2(a),
        .mode = a->icr >> 8 & 7,
        .vector = (uint8_t)a->icr,
    };

    /* INIT level de-assert sets arbitration ids only, which nothing here has. */
    if (m.mode == APIC_INIT && (a->icr & ICR_LEVEL) && !(a->icr & ICR_ASSERT))
        return;
    if ((m.mode == APIC_FIXED || m.mode == APIC_LOWEST) && m.vector < 16) {
        lapic_error(a, ESR_SEND_ILLEGAL);
        return;
    }
    if (shorthand)
        send_shorthand(a, &m, shorthand);
    else
        lapics_deliver(a->all, &m);
}

/* ---- registers */

static uint32_t read_lvt(const struct lapic *a, uint32_t offset)
{
    return a->lvt[(offset - REG_LVT) >> 4];
}

uint32_t lapic_read(struct lapic *a, uint32_t offset)
{
    offset &= 0xff0;
    if (offset >= REG_ISR && offset < REG_IRR_END) {
        const uint32_t *set = offset < REG_TMR ? a->isr : offset < REG_IRR ? a->tmr : a->irr;

        return set[offset >> 4 & 7];
    }
    if (offset >= REG_LVT && offset < REG_LVT + LVT_COUNT * 16)
        return read_lvt(a, offset);
    switch (offset) {
    case REG_ID:
        return is_x2(a) ? a->id : a->id << 24;
    case REG_VERSION:
        return VERSION;
    case REG_TPR:
        return a->tpr;
    case REG_APR:
        return 0;
    case REG_PPR:
        return lapic_ppr(a);
    case REG_LDR:
        return a->ldr;
    case REG_DFR:
        return a->dfr;
    case REG_SVR:
        return a->svr;
    case REG_ESR:
        return a->esr;
    case REG_ICR:
        return (uint32_t)a->icr;
    case REG_ICR_HIGH:
        return (uint32_t)(a->icr >> 32);
    case REG_INITIAL:
        return a->initial;
    case REG_CURRENT:
        return lapic_timer_count(a);
    case REG_DIVIDE:
        return a->divide;
    default:
        return 0;
    }
}

static void write_lvt(struct lapic *a, unsigned n, uint32_t v)
{
    unsigned mode = lapic_timer_mode(a);

    a->lvt[n] = v & lvt_mask[n];
    if (!lapic_software_on(a))
        a->lvt[n] |= LVT_MASKED;
    if (n != LVT_TIMER || lapic_timer_mode(a) == mode)
        return;
    /* To and from deadline mode the timer is disarmed. */
    if (mode == TIMER_DEADLINE || lapic_timer_mode(a) == TIMER_DEADLINE) {
        a->initial = 0;
        a->tsc_deadline = 0;
    }
    lapic_timer_schedule(a);
}

static void write_svr(struct lapic *a, uint32_t v)
{
    a->svr = v & 0x1ff;
    if (!(v & SVR_ON))
        for (unsigned i = 0; i < LVT_COUNT; i++)
            a->lvt[i] |= LVT_MASKED;
    lapic_update(a);
}

static void write_timer(struct lapic *a, uint32_t offset, uint32_t v)
{
    if (offset == REG_DIVIDE) {
        uint32_t left = lapic_timer_count(a);

        if (a->divide == (v & 0xb))
            return;
        /* What is left of the count goes on at the new rate. */
        a->divide = v & 0xb;
        if (left && lapic_timer_mode(a) == TIMER_ONE_SHOT)
            a->initial = left;
    } else {
        if (lapic_timer_mode(a) == TIMER_DEADLINE)
            return;
        a->initial = v;
    }
    a->began = dev_timers_now(a->all->timers);
    lapic_timer_schedule(a);
}

void lapic_write(struct lapic *a, uint32_t offset, uint32_t v)
{
    offset &= 0xff0;
    if (offset >= REG_LVT && offset < REG_LVT + LVT_COUNT * 16) {
        write_lvt(a, (offset - REG_LVT) >> 4, v);
        return;
    }
    switch (offset) {
    case REG_TPR:
        a->tpr = (uint8_t)v;
        lapic_update(a);
        break;
    case REG_EOI:
        lapic_eoi(a);
        break;
    case REG_LDR:
        a->ldr = v & 0xff000000;
        break;
    case REG_DFR:
        a->dfr = v | 0x0fffffff;
        break;
    case REG_SVR:
        write_svr(a, v);
        break;
    case REG_ESR:
        a->esr = a->esr_next;
        a->esr_next = 0;
        break;
    case REG_ICR:
        a->icr = (a->icr & ~UINT64_C(0xffffffff)) | (v & 0xccfff);
        send(a);
        break;
    case REG_ICR_HIGH:
        a->icr = (uint32_t)a->icr | (uint64_t)(v & 0xff000000) << 32;
        break;
    case REG_INITIAL:
    case REG_DIVIDE:
        write_timer(a, offset, v);
        break;
    default: /* read only or not there */
        break;
    }
}

/* ---- MSRs */

/* Which registers x2APIC mode has. */
static bool x2_has(uint32_t offset, bool write)
{
    if (offset >= REG_ISR && offset < REG_IRR_END)
        return !write;
    if (offset >= REG_LVT && offset < REG_LVT + LVT_COUNT * 16)
        return true;
    switch (offset) {
    case REG_ID:
    case REG_VERSION:
    case REG_PPR:
    case REG_LDR:
    case REG_CURRENT:
        return !write;
    case REG_EOI:
    case REG_SELF:
        return write;
    case REG_TPR:
    case REG_SVR:
    case REG_ESR:
    case REG_ICR:
    case REG_INITIAL:
    case REG_DIVIDE:
        return true;
    default:
        return false;
    }
}

static bool base_write(struct lapic *a, uint64_t v)
{
    uint64_t was = a->base & (LAPIC_BASE_X2 | LAPIC_BASE_ON);
    uint64_t is = v & (LAPIC_BASE_X2 | LAPIC_BASE_ON);

    /* Into x2APIC mode from xAPIC mode only, out of it by switching off only. */
    if ((v & BASE_RESERVED) || is == LAPIC_BASE_X2 || (!was && is & LAPIC_BASE_X2) ||
        (was & LAPIC_BASE_X2 && is == LAPIC_BASE_ON))
        return false;
    a->base = (v & ~(uint64_t)LAPIC_BASE_BSP) | (a->base & LAPIC_BASE_BSP);
    if (is == was)
        return true;
    if (!is)
        lapic_init_reset(a);
    if (is & LAPIC_BASE_X2)
        a->ldr = lapic_x2_ldr(a->id);
    return true;
}

static bool x2_write(struct lapic *a, uint32_t offset, uint64_t v)
{
    if (!is_x2(a) || !x2_has(offset, true))
        return false;
    if (offset == REG_ICR) {
        if (v & ~ICR_X2_BITS)
            return false;
        a->icr = v;
        send(a);
        return true;
    }
    if (v >> 32 || ((offset == REG_EOI || offset == REG_ESR) && v))
        return false;
    if (offset == REG_SELF) {
        struct apic_message m = {.vector = (uint8_t)v};

        if (v > 0xff)
            return false;
        lapic_take(a, &m);
        return true;
    }
    lapic_write(a, offset, (uint32_t)v);
    return true;
}

bool lapic_msr_read(struct lapic *a, uint32_t nr, uint64_t *v)
{
    uint32_t offset = (nr - MSR_X2) << 4;

    *v = nr == MSR_BASE ? a->base : a->tsc_deadline;
    if (nr == MSR_BASE || nr == MSR_DEADLINE)
        return true;
    if (nr < MSR_X2 || nr > MSR_X2 + 0xff || !is_x2(a) || !x2_has(offset, false))
        return false;
    *v = offset == REG_ICR ? a->icr : lapic_read(a, offset);
    return true;
}

bool lapic_msr_write(struct lapic *a, uint32_t nr, uint64_t v)
{
    if (nr == MSR_BASE)
        return base_write(a, v);
    if (nr == MSR_DEADLINE) {
        if (lapic_timer_mode(a) == TIMER_DEADLINE) {
            a->tsc_deadline = v;
            lapic_timer_schedule(a);
        }
        return true;
    }
    return nr >= MSR_X2 && nr <= MSR_X2 + 0xff && x2_write(a, (nr - MSR_X2) << 4, v);
}
