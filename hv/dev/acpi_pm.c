#include "hv/dev/acpi_pm.h"

#include <string.h>

#define NS 1000000000u

#define STS_BUTTON 0x0100u
#define EN_BITS    0x0721u /* timer, global lock, power and sleep button, RTC */
#define CNT_SCI    0x0001u
#define CNT_SLEEP  0x2000u
#define CNT_BITS   0x1c02u

void acpi_pm_init(struct acpi_pm *p, struct dev_timers *clock, void (*line)(void *arg, bool level),
                  void (*off)(void *arg), void *arg)
{
    *p = (struct acpi_pm){.timers = clock, .line = line, .off = off, .arg = arg};
}

void acpi_pm_reset(struct acpi_pm *p)
{
    p->status = p->enable = p->control = 0;
}

static void update(struct acpi_pm *p)
{
    p->line(p->arg, p->status & p->enable & EN_BITS);
}

void acpi_pm_button(struct acpi_pm *p)
{
    p->status |= STS_BUTTON;
    update(p);
}

static uint32_t timer_value(const struct acpi_pm *p)
{
    uint64_t now = dev_timers_now(p->timers);

    return (uint32_t)(now / NS * ACPI_PM_HZ + now % NS * ACPI_PM_HZ / NS);
}

uint32_t acpi_pm_read(const struct acpi_pm *p, unsigned offset)
{
    if (offset < 4)
        return p->status | (uint32_t)p->enable << 16;
    return offset < 8 ? p->control | CNT_SCI : timer_value(p);
}

static uint16_t put_byte(uint16_t word, unsigned high, uint8_t v)
{
    return (uint16_t)(high ? (word & 0x00ff) | v << 8 : (word & 0xff00) | v);
}

void acpi_pm_write(struct acpi_pm *p, unsigned offset, uint8_t v)
{
    switch (offset) {
    case 0: /* status bits are cleared by writing ones */
    case 1:
        p->status &= (uint16_t) ~(v << (8 * offset));
        update(p);
        break;
    case 2:
    case 3:
        p->enable = put_byte(p->enable, offset & 1, v) & EN_BITS;
        update(p);
        break;
    case 4:
    case 5:
        p->control = put_byte(p->control, offset & 1, v) & CNT_BITS;
        /* Every sleep type that a guest enters is its end: it offers S5 only. */
        if (offset == 5 && (v << 8 & CNT_SLEEP))
            p->off(p->arg);
        break;
    default:
        break;
    }
}
