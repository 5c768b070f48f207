#include "hv/dev/chipset.h"

#include <string.h>

#define MSI_LOGICAL 0x4u
#define MSI_LEVEL   0x8000u

static bool own(const struct chipset *cs)
{
    return !cs->config.foreign;
}

static struct lapic *lapic(const struct chipset *cs, unsigned cpu)
{
    return lapic_of(&cs->lapics, cpu);
}

/* ---- interrupts; with the lock */

/* Tells the vCPUs that the 8259's line reaches. */
static void update_pic(struct chipset *cs)
{
    if (!i8259_pending(&cs->pic))
        return;
    for (unsigned i = 0; i < cs->config.cpus; i++)
        if (lapic_takes_pic(lapic(cs, i)))
            cs->ops->event(cs->arg, i, LAPIC_EV_INTR, 0);
}

static void set_line(struct chipset *cs, unsigned line, bool level)
{
    if (!own(cs)) {
        irq_set(cs->config.foreign, line, level);
        return;
    }
    if (line == 2 || line >= IRQ_LINES)
        return;
    if (line < 16) {
        i8259_set(&cs->pic, line, level);
        update_pic(cs);
    }
    ioapic_set(&cs->ioapic, line ? line : 2, level);
}

static void lines_set(void *arg, unsigned line, bool level)
{
    struct chipset *cs = arg;

    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    set_line(cs, line, level);
    pthread_mutex_unlock(&cs->lock);
}

static void lines_msi(void *arg, uint64_t addr, uint32_t data)
{
    struct chipset *cs = arg;
    struct apic_message m = {
        .dest = (uint32_t)(addr >> 12 & 0xff),
        .logical = addr & MSI_LOGICAL,
        .level = data & MSI_LEVEL,
        .mode = data >> 8 & 7,
        .vector = (uint8_t)data,
    };

    if (addr >> 20 != LAPIC_BASE >> 20)
        return;
    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    if (own(cs))
        lapics_deliver(&cs->lapics, &m);
    else
        irq_msi(cs->config.foreign, addr, data);
    pthread_mutex_unlock(&cs->lock);
}

static void pit_line(void *arg, bool level)
{
    set_line(arg, IRQ_PIT, level);
}

static void rtc_line(void *arg, bool level)
{
    set_line(arg, IRQ_RTC, level);
}

static void kbd_line(void *arg, bool level)
{
    set_line(arg, IRQ_KBD, level);
}

static void sci_line(void *arg, bool level)
{
    set_line(arg, IRQ_SCI, level);
}

static void ask_end(struct chipset *cs, enum chipset_end kind)
{
    cs->ending = true;
    cs->end = kind;
}

static void pm_off(void *arg)
{
    ask_end(arg, CHIPSET_OFF);
}

static void kbd_reset(void *arg)
{
    ask_end(arg, CHIPSET_RESET);
}

static void lapic_event(void *arg, unsigned cpu, enum lapic_event e, uint8_t vector)
{
    struct chipset *cs = arg;

    cs->ops->event(cs->arg, cpu, e, vector);
}

static void lapic_eoi_seen(void *arg, uint8_t vector)
{
    ioapic_eoi(&((struct chipset *)arg)->ioapic, vector);
}

static uint64_t tsc_offset(void *arg, unsigned cpu)
{
    struct chipset *cs = arg;

    return cs->ops->tsc_offset(cs->arg, cpu);
}

static uint64_t now(void *arg)
{
    struct chipset *cs = arg;

    return cs->ops->now(cs->arg);
}

static void arm(void *arg, uint64_t at)
{
    struct chipset *cs = arg;

    cs->ops->arm(cs->arg, at);
}

/* ---- ports; with the lock */

static struct rtc *rtc(struct chipset *cs)
{
    if (!cs->rtc_runs)
        rtc_reset(&cs->rtc, cs->ops->wall(cs->arg), cs->config.ram_low, cs->config.ram_high);
    cs->rtc_runs = true;
    return &cs->rtc;
}

static bool is_pic(uint16_t port)
{
    return (port & 0xff7e) == 0x20 || port == 0x4d0 || port == 0x4d1;
}

static bool is_pit(uint16_t port)
{
    return (port >= 0x40 && port <= 0x43) || port == 0x61;
}

static bool read_byte(struct chipset *cs, uint16_t port, uint8_t *v)
{
    if (is_pic(port) && own(cs))
        *v = i8259_read(&cs->pic, port);
    else if (is_pit(port) && own(cs))
        *v = i8254_read(&cs->pit, port);
    else if (port == 0x60 || port == 0x64)
        *v = i8042_read(&cs->kbd, port);
    else if (port == 0x70 || port == 0x71)
        *v = rtc_read(rtc(cs), port);
    else if (port == PVPANIC_PORT)
        *v = PVPANIC_PANICKED;
    else
        return false;
    return true;
}

static bool write_byte(struct chipset *cs, uint16_t port, uint8_t v)
{
    if (is_pic(port) && own(cs))
        i8259_write(&cs->pic, port, v);
    else if (is_pit(port) && own(cs))
        i8254_write(&cs->pit, port, v);
    else if (port == 0x60 || port == 0x64)
        i8042_write(&cs->kbd, port, v);
    else if (port == 0x70 || port == 0x71)
        rtc_write(rtc(cs), port, v);
    else if (port >= ACPI_PM_PORT && port <= ACPI_PM_LAST)
        acpi_pm_write(&cs->pm, port - ACPI_PM_PORT, v);
    else if (port == PVPANIC_PORT && v & PVPANIC_PANICKED)
        ask_end(cs, CHIPSET_PANIC);
    else
        return port == PVPANIC_PORT;
    return true;
}

/* A double word of the PM block at once, so that its timer is read in one piece. */
static bool read_pm(struct chipset *cs, uint16_t port, unsigned size, uint32_t *value)
{
    unsigned offset = port - ACPI_PM_PORT;

    if (port < ACPI_PM_PORT || port > ACPI_PM_LAST || offset % 4 + size > 4)
        return false;
    *value = acpi_pm_read(&cs->pm, offset & ~3u) >> (offset % 4 * 8);
    if (size < 4)
        *value &= (UINT32_C(1) << (8 * size)) - 1;
    return true;
}

enum bus_result chipset_port_read(struct chipset *cs, uint16_t port, unsigned size, uint32_t *value)
{
    bool any;

    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    any = read_pm(cs, port, size, value);
    if (!any) {
        *value = 0;
        for (unsigned i = 0; i < size; i++) {
            uint8_t v = 0xff;

            any |= read_byte(cs, (uint16_t)(port + i), &v);
            *value |= (uint32_t)v << (8 * i);
        }
        if (is_pic(port))
            update_pic(cs); /* a poll acknowledges */
    }
    pthread_mutex_unlock(&cs->lock);
    return any ? BUS_OK : BUS_NONE;
}

enum bus_result chipset_port_write(struct chipset *cs, uint16_t port, unsigned size, uint32_t value)
{
    bool any = false, ending;
    enum chipset_end end;

    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    for (unsigned i = 0; i < size; i++)
        any |= write_byte(cs, (uint16_t)(port + i), (uint8_t)(value >> (8 * i)));
    if (is_pic(port))
        update_pic(cs);
    ending = cs->ending;
    end = cs->end;
    cs->ending = false;
    pthread_mutex_unlock(&cs->lock);
    if (!ending)
        return any ? BUS_OK : BUS_NONE;
    cs->ops->end(cs->arg, end);
    return BUS_STOP;
}

/* ---- MMIO */

/* Which page `addr` lies in: 1 IOAPIC, 2 LAPIC of the vCPU, 3 its place in x2APIC mode, 0 none. */
static unsigned mmio_what(const struct chipset *cs, unsigned cpu, uint64_t addr)
{
    uint64_t base = lapic(cs, cpu)->base;

    if (!own(cs))
        return 0;
    if (addr / IOAPIC_SIZE == IOAPIC_BASE / IOAPIC_SIZE)
        return 1;
    if (addr / LAPIC_SIZE != base / LAPIC_SIZE)
        return addr / LAPIC_SIZE == LAPIC_BASE / LAPIC_SIZE ? 3 : 0;
    return (base & (LAPIC_BASE_ON | LAPIC_BASE_X2)) == LAPIC_BASE_ON ? 2 : 3;
}

enum bus_result chipset_mmio_read(struct chipset *cs, unsigned cpu, uint64_t addr, unsigned size,
                                  uint64_t *value)
{
    uint32_t offset = (uint32_t)addr & (LAPIC_SIZE - 1), v = UINT32_MAX;
    unsigned what;

    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    what = mmio_what(cs, cpu, addr);
    if (what == 1)
        v = ioapic_read(&cs->ioapic, offset & ~15u);
    else if (what == 2)
        v = lapic_read(lapic(cs, cpu), offset);
    pthread_mutex_unlock(&cs->lock);
    if (!what)
        return BUS_NONE;
    /* Registers stand at multiples of 16, 32 bits wide; what lies between reads as zero. */
    v = offset % 16 < 4 ? v >> (offset % 16 * 8) : 0;
    *value = size < 4 ? v & ((UINT32_C(1) << (8 * size)) - 1) : v;
    return BUS_OK;
}

enum bus_result chipset_mmio_write(struct chipset *cs, unsigned cpu, uint64_t addr, unsigned size,
                                   uint64_t value)
{
    uint32_t offset = (uint32_t)addr & (LAPIC_SIZE - 1);
    unsigned what;

    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    what = mmio_what(cs, cpu, addr);
    if (offset % 16 || (what == 2 && size < 4)) {
        /* between the registers, or a part of one: nothing is written */
    } else if (what == 1) {
        ioapic_write(&cs->ioapic, offset, (uint32_t)value);
    } else if (what == 2) {
        lapic_write(lapic(cs, cpu), offset, (uint32_t)value);
        update_pic(cs);
    }
    pthread_mutex_unlock(&cs->lock);
    return what ? BUS_OK : BUS_NONE;
}

/* ---- the vCPU's side */

bool chipset_msr_read(struct chipset *cs, unsigned cpu, uint32_t nr, uint64_t *value)
{
    bool ok;

    pthread_mutex_lock(&cs->lock);
    ok = lapic_msr_read(lapic(cs, cpu), nr, value);
    pthread_mutex_unlock(&cs->lock);
    return ok;
}

bool chipset_msr_write(struct chipset *cs, unsigned cpu, uint32_t nr, uint64_t value)
{
    bool ok;

    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    ok = lapic_msr_write(lapic(cs, cpu), nr, value);
    update_pic(cs);
    pthread_mutex_unlock(&cs->lock);
    return ok;
}

void chipset_tsc_moved(struct chipset *cs, unsigned cpu)
{
    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    lapic_tsc_moved(lapic(cs, cpu));
    pthread_mutex_unlock(&cs->lock);
}

uint8_t chipset_get_cr8(struct chipset *cs, unsigned cpu)
{
    uint8_t v;

    pthread_mutex_lock(&cs->lock);
    v = lapic_get_cr8(lapic(cs, cpu));
    pthread_mutex_unlock(&cs->lock);
    return v;
}

void chipset_set_cr8(struct chipset *cs, unsigned cpu, uint8_t v)
{
    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    lapic_set_cr8(lapic(cs, cpu), v);
    pthread_mutex_unlock(&cs->lock);
}

int chipset_ack(struct chipset *cs, unsigned cpu)
{
    struct lapic *a = lapic(cs, cpu);
    int vector;

    pthread_mutex_lock(&cs->lock);
    vector = lapic_ack(a);
    if (vector < 0 && lapic_takes_pic(a) && i8259_pending(&cs->pic))
        vector = i8259_ack(&cs->pic);
    pthread_mutex_unlock(&cs->lock);
    return vector;
}

/* ---- time, button */

void chipset_run(struct chipset *cs)
{
    pthread_mutex_lock(&cs->lock);
    dev_timers_run(&cs->timers);
    pthread_mutex_unlock(&cs->lock);
}

void chipset_rearm(struct chipset *cs)
{
    pthread_mutex_lock(&cs->lock);
    dev_timers_rearm(&cs->timers);
    pthread_mutex_unlock(&cs->lock);
}

void chipset_button(struct chipset *cs)
{
    pthread_mutex_lock(&cs->lock);
    cs->touched = true;
    acpi_pm_button(&cs->pm);
    pthread_mutex_unlock(&cs->lock);
}

/* ---- life */

void chipset_init(struct chipset *cs, const struct chipset_ops *ops, void *arg,
                  const struct chipset_config *config)
{
    cs->ops = ops;
    cs->arg = arg;
    cs->config = *config;
    cs->lines = (struct irq_lines){lines_set, lines_msi, cs};
    pthread_mutex_init(&cs->lock, NULL);
    cs->touched = cs->rtc_runs = cs->ending = false;
    dev_timers_init(&cs->timers, now, arm, cs);
    cs->lapics = (struct lapics){.first = config->lapics,
                                 .stride = config->stride,
                                 .count = config->cpus,
                                 .timers = &cs->timers,
                                 .event = lapic_event,
                                 .eoi = lapic_eoi_seen,
                                 .tsc_offset = tsc_offset,
                                 .arg = cs};
    lapics_init(&cs->lapics);
    ioapic_init(&cs->ioapic, &cs->lapics);
    i8259_reset(&cs->pic);
    i8254_init(&cs->pit, &cs->timers, pit_line, cs);
    rtc_init(&cs->rtc, &cs->timers, rtc_line, cs);
    acpi_pm_init(&cs->pm, &cs->timers, sci_line, pm_off, cs);
    i8042_init(&cs->kbd, kbd_line, kbd_reset, cs);
}

void chipset_fini(struct chipset *cs)
{
    pthread_mutex_destroy(&cs->lock);
}

void chipset_reset(struct chipset *cs)
{
    pthread_mutex_lock(&cs->lock);
    if (cs->touched) {
        dev_timer_cancel(&cs->timers, &cs->rtc.timer);
        lapics_reset(&cs->lapics);
        ioapic_reset(&cs->ioapic);
        i8259_reset(&cs->pic);
        i8254_reset(&cs->pit);
        acpi_pm_reset(&cs->pm);
        i8042_reset(&cs->kbd);
    }
    cs->touched = cs->rtc_runs = cs->ending = false;
    cs->timers.armed = DEV_TIMER_OFF;
    pthread_mutex_unlock(&cs->lock);
}
