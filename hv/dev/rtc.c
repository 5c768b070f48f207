#include "hv/dev/rtc.h"

#include <string.h>

enum {
    SECONDS,
    SECONDS_ALARM,
    MINUTES,
    MINUTES_ALARM,
    HOURS,
    HOURS_ALARM,
    WEEKDAY,
    DAY,
    MONTH,
    YEAR,
    REG_A,
    REG_B,
    REG_C,
    REG_D,
    CENTURY = 0x32,
};

#define A_UIP 0x80u
#define A_ON  0x20u /* divider chain runs, 32768 Hz */

#define B_SET    0x80u
#define B_PIE    0x40u
#define B_AIE    0x20u
#define B_UIE    0x10u
#define B_BINARY 0x04u
#define B_24H    0x02u

#define C_IRQ 0x80u
#define C_PF  0x40u
#define C_AF  0x20u
#define C_UF  0x10u

#define D_VALID     0x80u
#define YEAR_MIN    1900
#define YEAR_MAX    2250
#define PM          0x80u
#define NS          INT64_C(1000000000)
#define UIP_NS      244000 /* the update-in-progress bit comes this long before the change */
#define MIN_STEP_NS 100000u

struct date {
    int64_t year;
    unsigned month, day, hour, minute, second, weekday; /* weekday 1: Sunday */
};

/* ---- calendar: days since 1970 of the Gregorian one, by eras of 400 years from March on */

static int64_t days_of(int64_t y, unsigned m, unsigned d)
{
    int64_t era, doe;
    unsigned yoe, doy;

    y -= m <= 2;
    era = (y >= 0 ? y : y - 399) / 400;
    yoe = (unsigned)(y - era * 400);
    doy = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    doe = (int64_t)yoe * 365 + yoe / 4 - yoe / 100 + doy;
    return era * 146097 + doe - 719468;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static void date_of(int64_t seconds, struct date *t)
{
    int64_t days = floor_div(seconds, 86400), z = days + 719468;
    unsigned rest = (unsigned)(seconds - days * 86400), doe, yoe, doy, mp;
    int64_t era = floor_div(z, 146097);

    doe = (unsigned)(z - era * 146097);
    yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    mp = (5 * doy + 2) / 153;
    t->day = doy - (153 * mp + 2) / 5 + 1;
    t->month = mp < 10 ? mp + 3 : mp - 9;
    t->year = yoe + era * 400 + (t->month <= 2);
    t->hour = rest / 3600;
    t->minute = rest / 60 % 60;
    t->second = rest % 60;
    t->weekday = (unsigned)(((days + 4) % 7 + 7) % 7) + 1;
}

/* ---- time */

static int64_t wall_ns(const struct rtc *r)
{
    if (r->ram[REG_B] & B_SET)
        return (int64_t)r->stopped_at;
    return r->base_ns + (int64_t)dev_timers_now(r->timers);
}

static uint8_t encode(const struct rtc *r, unsigned v)
{
    return (uint8_t)(r->ram[REG_B] & B_BINARY ? v : v / 10 % 10 << 4 | v % 10);
}

static unsigned decode(const struct rtc *r, uint8_t v)
{
    return r->ram[REG_B] & B_BINARY ? v : (v >> 4) * 10u + (v & 15u);
}

static uint8_t encode_hour(const struct rtc *r, unsigned h)
{
    if (r->ram[REG_B] & B_24H)
        return encode(r, h);
    return (uint8_t)(encode(r, h % 12 ? h % 12 : 12) | (h >= 12 ? PM : 0));
}

static unsigned decode_hour(const struct rtc *r, uint8_t v)
{
    unsigned h;

    if (r->ram[REG_B] & B_24H)
        return decode(r, v);
    h = decode(r, v & (uint8_t)~PM) % 12;
    return v & PM ? h + 12 : h;
}

static uint8_t time_register(const struct rtc *r, unsigned n)
{
    struct date t;

    date_of(floor_div(wall_ns(r), NS), &t);
    switch (n) {
    case SECONDS:
        return encode(r, t.second);
    case MINUTES:
        return encode(r, t.minute);
    case HOURS:
        return encode_hour(r, t.hour);
    case WEEKDAY:
        return encode(r, t.weekday);
    case DAY:
        return encode(r, t.day);
    case MONTH:
        return encode(r, t.month);
    case CENTURY:
        return encode(r, (unsigned)(t.year / 100 % 100));
    default:
        return encode(r, (unsigned)(t.year % 100));
    }
}

static bool is_time(unsigned n)
{
    return n == SECONDS || n == MINUTES || n == HOURS || (n >= WEEKDAY && n <= YEAR) ||
           n == CENTURY;
}

static uint8_t *written(struct rtc *r, unsigned n)
{
    return &r->set[n == CENTURY ? SECONDS_ALARM : n]; /* the alarm's place in `set` is free */
}

/* The time registers as one wall time. Values out of range carry over, as counters do. */
static int64_t written_ns(struct rtc *r)
{
    unsigned month = decode(r, *written(r, MONTH)), day = decode(r, *written(r, DAY));
    int64_t year = decode(r, *written(r, CENTURY)) * 100 + decode(r, *written(r, YEAR));
    int64_t days;

    /* Nanoseconds in 64 bits reach from 1678 to 2262. */
    year = year < YEAR_MIN ? YEAR_MIN : year > YEAR_MAX ? YEAR_MAX : year;
    days = days_of(year, month >= 1 && month <= 12 ? month : 1, day ? day : 1);

    return (days * 86400 + decode_hour(r, *written(r, HOURS)) * 3600 +
            decode(r, *written(r, MINUTES)) * 60 + decode(r, *written(r, SECONDS))) *
           NS;
}

static void write_time(struct rtc *r, unsigned n, uint8_t v)
{
    int64_t part = wall_ns(r) - floor_div(wall_ns(r), NS) * NS;

    if (!(r->ram[REG_B] & B_SET))
        for (unsigned i = 0; i <= CENTURY; i++)
            if (is_time(i))
                *written(r, i) = time_register(r, i);
    *written(r, n) = v;
    if (!(r->ram[REG_B] & B_SET))
        r->base_ns = written_ns(r) + part - (int64_t)dev_timers_now(r->timers);
}

/* ---- interrupts */

static uint64_t period_ns(const struct rtc *r)
{
    unsigned rate = r->ram[REG_A] & 15;

    if (!rate)
        return 0;
    if (rate < 3)
        rate += 7;
    return (UINT64_C(1) << (rate - 1)) * NS / 32768;
}

static bool alarm_matches(const struct rtc *r, int64_t second)
{
    static const uint8_t at[3] = {SECONDS_ALARM, MINUTES_ALARM, HOURS_ALARM};
    struct date t;

    date_of(second, &t);
    for (unsigned i = 0; i < 3; i++) {
        uint8_t want = r->ram[at[i]];
        unsigned is = i == 0 ? t.second : i == 1 ? t.minute : t.hour;

        if ((want & 0xc0) != 0xc0 && (i == 2 ? decode_hour(r, want) : decode(r, want)) != is)
            return false;
    }
    return true;
}

static void update_line(struct rtc *r)
{
    bool on = r->ram[REG_C] & r->ram[REG_B] & (C_PF | C_AF | C_UF);

    r->ram[REG_C] = (uint8_t)((r->ram[REG_C] & ~C_IRQ) | (on ? C_IRQ : 0));
    r->line(r->arg, on);
}

/* Raises the flags of everything that happened since the last time. */
static void catch_up(struct rtc *r)
{
    uint64_t now = dev_timers_now(r->timers), n = period_ns(r);
    int64_t from = floor_div(r->base_ns + (int64_t)r->seen, NS);
    int64_t to = floor_div(r->base_ns + (int64_t)now, NS);

    if (n && now / n != r->seen / n)
        r->ram[REG_C] |= C_PF;
    if (to > from && !(r->ram[REG_B] & B_SET)) {
        r->ram[REG_C] |= C_UF;
        /* A day is all the alarm can tell apart. */
        if (to - from > 86400)
            from = to - 86400;
        while (from < to && !(r->ram[REG_C] & C_AF))
            if (alarm_matches(r, ++from))
                r->ram[REG_C] |= C_AF;
    }
    r->seen = now;
    update_line(r);
}

/* Seconds are looked at one by one while the alarm is on: an alarm costs a timer a second. */
static void schedule(struct rtc *r)
{
    uint64_t now = r->seen, at = DEV_TIMER_OFF, n = period_ns(r);
    uint8_t want = r->ram[REG_B];

    if ((want & B_PIE) && n)
        at = (now / n + 1) * n;
    if ((want & (B_AIE | B_UIE)) && !(want & B_SET)) {
        int64_t wall = r->base_ns + (int64_t)now;
        uint64_t second = now + (uint64_t)((floor_div(wall, NS) + 1) * NS - wall);

        at = second < at ? second : at;
    }
    if (at != DEV_TIMER_OFF && at < now + MIN_STEP_NS)
        at = now + MIN_STEP_NS;
    dev_timer_set(r->timers, &r->timer, at);
}

static void fire(struct dev_timer *t, uint64_t now)
{
    struct rtc *r = (struct rtc *)t;

    (void)now;
    catch_up(r);
    schedule(r);
}

/* ---- registers */

static uint8_t read_a(const struct rtc *r)
{
    int64_t wall = wall_ns(r), part = wall - floor_div(wall, NS) * NS;
    bool updating = !(r->ram[REG_B] & B_SET) && part >= NS - UIP_NS;

    return (uint8_t)(r->ram[REG_A] | (updating ? A_UIP : 0));
}

static uint8_t read_c(struct rtc *r)
{
    uint8_t v;

    catch_up(r);
    v = r->ram[REG_C];
    r->ram[REG_C] = 0;
    update_line(r);
    return v;
}

uint8_t rtc_read(struct rtc *r, uint16_t port)
{
    if (!(port & 1))
        return 0xff; /* the index is write only */
    if (is_time(r->index))
        return r->ram[REG_B] & B_SET ? *written(r, r->index) : time_register(r, r->index);
    switch (r->index) {
    case REG_A:
        return read_a(r);
    case REG_C:
        return read_c(r);
    case REG_D:
        return D_VALID;
    default:
        return r->ram[r->index];
    }
}

static void write_b(struct rtc *r, uint8_t v)
{
    uint8_t was = r->ram[REG_B];

    if (!(was & B_SET) && (v & B_SET)) {
        for (unsigned i = 0; i <= CENTURY; i++)
            if (is_time(i))
                *written(r, i) = time_register(r, i);
        r->stopped_at = (uint64_t)wall_ns(r);
    } else if ((was & B_SET) && !(v & B_SET)) {
        /* The format is the one that the values were written in. */
        r->ram[REG_B] = (uint8_t)(v | B_SET);
        r->base_ns = written_ns(r) - (int64_t)dev_timers_now(r->timers);
    }
    r->ram[REG_B] = v;
}

void rtc_write(struct rtc *r, uint16_t port, uint8_t v)
{
    if (!(port & 1)) {
        r->index = v & 0x7f; /* bit 7 masks NMI, of which there is none */
        return;
    }
    catch_up(r);
    if (is_time(r->index))
        write_time(r, r->index, v);
    else if (r->index == REG_A)
        r->ram[REG_A] = v & 0x7f;
    else if (r->index == REG_B)
        write_b(r, v);
    else if (r->index != REG_C && r->index != REG_D)
        r->ram[r->index] = v;
    update_line(r);
    schedule(r);
}

/* ---- life */

void rtc_init(struct rtc *r, struct dev_timers *timers, void (*line)(void *arg, bool level),
              void *arg)
{
    memset(r, 0, sizeof *r);
    r->timers = timers;
    r->line = line;
    r->arg = arg;
    r->timer.fire = fire;
}

static void put16(struct rtc *r, unsigned at, uint64_t v)
{
    v = v > 0xffff ? 0xffff : v;
    r->ram[at] = (uint8_t)v;
    r->ram[at + 1] = (uint8_t)(v >> 8);
}

void rtc_reset(struct rtc *r, uint64_t wall, uint64_t low, uint64_t high)
{
    dev_timer_cancel(r->timers, &r->timer);
    memset(r->ram, 0, sizeof r->ram);
    memset(r->set, 0, sizeof r->set);
    r->index = 0;
    r->seen = dev_timers_now(r->timers);
    r->base_ns = (int64_t)(wall - r->seen);
    r->ram[REG_A] = A_ON | 6;
    r->ram[REG_B] = B_24H;
    put16(r, 0x15, 640);
    put16(r, 0x17, low > 0x100000 ? (low - 0x100000) >> 10 : 0);
    put16(r, 0x30, low > 0x100000 ? (low - 0x100000) >> 10 : 0);
    put16(r, 0x34, low > 0x1000000 ? (low - 0x1000000) >> 16 : 0);
    put16(r, 0x5b, high >> 16 & 0xffff);
    r->ram[0x5d] = (uint8_t)(high >> 32);
}
