/*
 * ACPI's fixed hardware: PM1a event and control blocks, PM timer. Always in ACPI mode (no SMI
 * command). After the ACPI specification, chapter 4.8.
 * No lock: used under the chipset's.
 */
#ifndef MAYFLY_DEV_ACPI_PM_H
#define MAYFLY_DEV_ACPI_PM_H

#include "hv/dev/timer.h"

#define ACPI_PM_PORT  0x600u
#define ACPI_PM1_EVT  0x600u /* status, enable: 16 bits each */
#define ACPI_PM1_CNT  0x604u /* 16 bits */
#define ACPI_PM_TMR   0x608u /* 32 bits, read only */
#define ACPI_PM_LAST  0x60bu
#define ACPI_PM_HZ    3579545u
#define ACPI_SLEEP_S5 5u /* SLP_TYP of power-off in our DSDT */

struct acpi_pm {
    uint16_t status, enable, control;
    struct dev_timers *timers;           /* the clock only */
    void (*line)(void *arg, bool level); /* SCI */
    void (*off)(void *arg);              /* the guest switches itself off */
    void *arg;
};

void acpi_pm_init(struct acpi_pm *p, struct dev_timers *clock, void (*line)(void *arg, bool level),
                  void (*off)(void *arg), void *arg);
void acpi_pm_reset(struct acpi_pm *p);
/* Somebody presses the power button. */
void acpi_pm_button(struct acpi_pm *p);
/* The 32 bits from `offset` (from ACPI_PM_PORT: 0, 4, 8) on. */
uint32_t acpi_pm_read(const struct acpi_pm *p, unsigned offset);
/* One byte, at 0 to 11. */
void acpi_pm_write(struct acpi_pm *p, unsigned offset, uint8_t v);

#endif
