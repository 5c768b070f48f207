/*
 * 8254 interval timer of a PC: channel 0 makes line 0, channel 1 is there but wired to nothing,
 * channel 2 is read and gated through port 0x61. Nothing ticks: counts are computed from the clock.
 * After Intel's data sheet 231164.
 * No lock: used under the chipset's.
 */
#ifndef MAYFLY_DEV_I8254_H
#define MAYFLY_DEV_I8254_H

#include "hv/dev/timer.h"

#define I8254_HZ          1193182u
#define I8254_MIN_STEP_NS 100000u /* interrupts do not come more often than this */

struct i8254_channel {
    uint64_t began;       /* clock at which the count was loaded, or would have been without gaps */
    uint64_t stopped;     /* ticks that had gone when the gate stopped it */
    uint32_t count;       /* 1 to 65536; 0: none was written since the control word */
    uint16_t latch;       /* counter latch */
    uint8_t mode, access; /* access: 1 low byte, 2 high byte, 3 both */
    uint8_t write_low, status;
    bool bcd, gate, running, armed; /* armed: modes 1 and 5 wait for the gate's edge */
    bool write_high, read_high, latched, status_latched;
};

struct i8254 {
    struct dev_timer timer; /* of channel 0; first */
    struct dev_timers *timers;
    /* Line 0; a pulse ends with it high. */
    void (*line)(void *arg, bool level);
    void *arg;
    struct i8254_channel channel[3];
    bool speaker; /* bit 1 of port 0x61 */
};

void i8254_init(struct i8254 *p, struct dev_timers *timers, void (*line)(void *arg, bool level),
                void *arg);
void i8254_reset(struct i8254 *p);
/* Ports 0x40 to 0x43 and 0x61. */
uint8_t i8254_read(struct i8254 *p, uint16_t port);
void i8254_write(struct i8254 *p, uint16_t port, uint8_t v);

#endif
