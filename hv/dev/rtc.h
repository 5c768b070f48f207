/*
 * MC146818 real-time clock and CMOS RAM, ports 0x70 and 0x71, line 8. Its time is the host's wall
 * clock at the VM's start plus the guest's clock, plus what the guest set. Time zone: UTC.
 * No lock: used under the chipset's.
 */
#ifndef MAYFLY_DEV_RTC_H
#define MAYFLY_DEV_RTC_H

#include "hv/dev/timer.h"

#define RTC_BYTES 128u

struct rtc {
    struct dev_timer timer; /* first: the next interrupt of any kind */
    struct dev_timers *timers;
    void (*line)(void *arg, bool level);
    void *arg;
    int64_t base_ns;     /* seconds since 1970 at clock zero, in ns */
    uint64_t seen;       /* clock up to which interrupt flags have been raised */
    uint64_t stopped_at; /* wall time in ns while register B's SET bit stops the clock */
    uint8_t index;
    uint8_t ram[RTC_BYTES]; /* time registers: alarm only; A, B, C; the rest is memory */
    uint8_t set[10];        /* time registers as written while SET */
};

void rtc_init(struct rtc *r, struct dev_timers *timers, void (*line)(void *arg, bool level),
              void *arg);
/* `wall_ns`: UTC since 1970, now. `ram_bytes`: told in the CMOS RAM as a PC's firmware does. */
void rtc_reset(struct rtc *r, uint64_t wall_ns, uint64_t ram_below_4g, uint64_t ram_above_4g);
uint8_t rtc_read(struct rtc *r, uint16_t port);
void rtc_write(struct rtc *r, uint16_t port, uint8_t v);

#endif
