#include "hv/dev/i8254.h"

#include <string.h>

#define NS 1000000000u

#define CTRL_LATCH 0u
#define CTRL_BACK  3u    /* channel number that means "read back" */
#define NO_COUNT   0x40u /* status: the count is not in the counter yet */

/* The refresh bit of port 0x61 flips about every 15 microseconds. */
#define REFRESH_NS 15085u

static uint64_t muldiv(uint64_t v, uint64_t mul, uint64_t div)
{
    return v / div * mul + v % div * mul / div;
}

static uint64_t ns_of_ticks(uint64_t ticks)
{
    return muldiv(ticks, NS, I8254_HZ) + 1; /* never early */
}

static uint64_t ticks_of(const struct i8254 *p, const struct i8254_channel *c)
{
    if (!c->running)
        return c->stopped;
    return muldiv(dev_timers_now(p->timers) - c->began, I8254_HZ, NS);
}

static bool periodic(const struct i8254_channel *c)
{
    return c->mode == 2 || c->mode == 3;
}

static bool output(const struct i8254 *p, const struct i8254_channel *c)
{
    uint64_t t = ticks_of(p, c);

    if (!c->count || c->armed)
        return c->mode != 0;
    switch (c->mode) {
    case 0:
    case 1:
        return t >= c->count;
    case 2:
        return t % c->count != c->count - 1;
    case 3:
        return t % c->count < (c->count + 1) / 2;
    default:
        return t != c->count;
    }
}

static uint16_t to_bcd(uint32_t v)
{
    return (uint16_t)(v / 1000 % 10 << 12 | v / 100 % 10 << 8 | v / 10 % 10 << 4 | v % 10);
}

static uint32_t from_bcd(uint16_t v)
{
    return (v >> 12) * 1000u + (v >> 8 & 15) * 100u + (v >> 4 & 15) * 10u + (v & 15u);
}

static uint16_t counter(const struct i8254 *p, const struct i8254_channel *c)
{
    uint32_t wrap = c->bcd ? 10000 : 65536, v;
    uint64_t t = ticks_of(p, c);

    if (!c->count)
        return 0;
    if (c->mode == 3)
        v = c->count - (uint32_t)(2 * (t % ((c->count + 1) / 2)));
    else if (c->mode == 2)
        v = c->count - (uint32_t)(t % c->count);
    else
        v = (uint32_t)(c->count + wrap - t % wrap);
    v %= wrap;
    return c->bcd ? to_bcd(v) : (uint16_t)v;
}

/* ---- channel 0's interrupt */

static void schedule(struct i8254 *p)
{
    struct i8254_channel *c = &p->channel[0];
    uint64_t now = dev_timers_now(p->timers), ticks, at;

    dev_timer_cancel(p->timers, &p->timer);
    if (!c->count || c->armed)
        return;
    ticks = ticks_of(p, c);
    if (!periodic(c)) {
        if (ticks < c->count)
            dev_timer_set(p->timers, &p->timer, c->began + ns_of_ticks(c->count));
        return;
    }
    /* Periods that were missed are not made up for: guests that count them have better clocks. */
    at = c->began + ns_of_ticks((ticks / c->count + 1) * c->count);
    if (at < now + I8254_MIN_STEP_NS)
        at = c->began + ns_of_ticks((ticks + (uint64_t)I8254_MIN_STEP_NS * I8254_HZ / NS) /
                                        c->count * c->count +
                                    c->count);
    dev_timer_set(p->timers, &p->timer, at);
}

static void fire(struct dev_timer *t, uint64_t now)
{
    struct i8254 *p = (struct i8254 *)t;

    (void)now;
    if (p->channel[0].mode != 0)
        p->line(p->arg, false);
    p->line(p->arg, true);
    if (periodic(&p->channel[0]))
        schedule(p);
}

static void changed(struct i8254 *p, struct i8254_channel *c)
{
    if (c != &p->channel[0])
        return;
    p->line(p->arg, output(p, c));
    schedule(p);
}

/* ---- loading */

static void start(struct i8254 *p, struct i8254_channel *c)
{
    c->began = dev_timers_now(p->timers);
    c->stopped = 0;
    c->running = c->gate || c->mode == 1 || c->mode == 5;
}

static void load(struct i8254 *p, struct i8254_channel *c, uint16_t raw)
{
    uint32_t v = c->bcd ? from_bcd(raw) : raw;
    bool first = !c->count;

    c->count = v ? v : c->bcd ? 10000 : 65536;
    if (c->mode == 3 && c->count == 1)
        c->count = 2; /* one is not a legal count here */
    if (c->mode == 1 || c->mode == 5) {
        c->armed = c->armed || first;
        return;
    }
    /* A periodic channel takes a new count at once instead of at its period's end. */
    start(p, c);
    changed(p, c);
}

static void set_gate(struct i8254 *p, struct i8254_channel *c, bool gate)
{
    bool rise = gate && !c->gate;

    if (gate == c->gate)
        return;
    if (!gate && c->mode != 1 && c->mode != 5) {
        c->stopped = ticks_of(p, c);
        c->running = false;
    }
    c->gate = gate;
    if (!rise || !c->count)
        return;
    c->armed = false;
    if (c->mode == 0 || c->mode == 4) {
        c->began = dev_timers_now(p->timers) - ns_of_ticks(c->stopped);
        c->running = true;
    } else {
        start(p, c);
    }
}

/* ---- registers */

static void latch_status(const struct i8254 *p, struct i8254_channel *c)
{
    if (c->status_latched)
        return;
    c->status = (uint8_t)((output(p, c) ? 0x80 : 0) | (c->count ? 0 : NO_COUNT) | c->access << 4 |
                          c->mode << 1 | c->bcd);
    c->status_latched = true;
}

static void latch_count(const struct i8254 *p, struct i8254_channel *c)
{
    if (c->latched)
        return;
    c->latch = counter(p, c);
    c->latched = true;
    c->read_high = c->access == 2;
}

static void write_control(struct i8254 *p, uint8_t v)
{
    unsigned n = v >> 6;
    struct i8254_channel *c;

    if (n == CTRL_BACK) {
        for (unsigned i = 0; i < 3; i++) {
            if (!(v >> (i + 1) & 1))
                continue;
            if (!(v & 0x20))
                latch_count(p, &p->channel[i]);
            if (!(v & 0x10))
                latch_status(p, &p->channel[i]);
        }
        return;
    }
    c = &p->channel[n];
    if ((v >> 4 & 3) == CTRL_LATCH) {
        latch_count(p, c);
        return;
    }
    *c = (struct i8254_channel){.gate = c->gate};
    c->access = v >> 4 & 3;
    c->mode = v >> 1 & 7;
    if (c->mode > 5)
        c->mode &= 3;
    c->bcd = v & 1;
    changed(p, c);
}

static void write_count(struct i8254 *p, struct i8254_channel *c, uint8_t v)
{
    if (c->access == 1) {
        load(p, c, v);
    } else if (c->access == 2) {
        load(p, c, (uint16_t)(v << 8));
    } else if (!c->write_high) {
        c->write_low = v;
        c->write_high = true;
    } else {
        c->write_high = false;
        load(p, c, (uint16_t)(c->write_low | v << 8));
    }
}

static uint8_t read_count(struct i8254 *p, struct i8254_channel *c)
{
    uint16_t v = c->latched ? c->latch : counter(p, c);
    bool high = c->access == 2 || (c->access == 3 && c->read_high);

    if (c->status_latched) {
        c->status_latched = false;
        return c->status;
    }
    if (c->access == 3)
        c->read_high = !c->read_high;
    if (c->access != 3 || high)
        c->latched = false;
    return (uint8_t)(high ? v >> 8 : v);
}

static uint8_t read_61(const struct i8254 *p)
{
    const struct i8254_channel *c = &p->channel[2];
    unsigned v = c->gate | p->speaker << 1;

    v |= dev_timers_now(p->timers) / REFRESH_NS % 2 << 4;
    v |= output(p, c) ? 0x20 : 0;
    return (uint8_t)v;
}

uint8_t i8254_read(struct i8254 *p, uint16_t port)
{
    if (port == 0x61)
        return read_61(p);
    return port == 0x43 ? 0xff : read_count(p, &p->channel[port & 3]);
}

void i8254_write(struct i8254 *p, uint16_t port, uint8_t v)
{
    if (port == 0x61) {
        set_gate(p, &p->channel[2], v & 1);
        p->speaker = v & 2;
    } else if (port == 0x43) {
        write_control(p, v);
    } else {
        write_count(p, &p->channel[port & 3], v);
    }
}

void i8254_init(struct i8254 *p, struct dev_timers *timers, void (*line)(void *arg, bool level),
                void *arg)
{
    memset(p, 0, sizeof *p);
    p->timers = timers;
    p->line = line;
    p->arg = arg;
    p->timer.fire = fire;
    i8254_reset(p);
}

void i8254_reset(struct i8254 *p)
{
    dev_timer_cancel(p->timers, &p->timer);
    memset(p->channel, 0, sizeof p->channel);
    p->channel[0].gate = p->channel[1].gate = true;
    p->speaker = false;
    for (unsigned i = 0; i < 3; i++)
        p->channel[i].access = 3;
}
