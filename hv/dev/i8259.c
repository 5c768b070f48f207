#include "hv/dev/i8259.h"

#include <string.h>

#define MASTER  0u
#define SLAVE   1u
#define CASCADE 2u

#define ICW1      0x10u
#define ICW1_ICW4 0x01u
#define ICW4_AEOI 0x02u
#define ICW4_SFNM 0x10u
#define OCW3      0x08u

/* Inputs that may be level triggered: not timer, keyboard, cascade, RTC, FPU. */
static const uint8_t elcr_mask[2] = {0xf8, 0xde};

void i8259_reset(struct i8259 *p)
{
    memset(p, 0, sizeof *p);
    for (unsigned i = 0; i < 2; i++) {
        p->chip[i].lowest = 7;
        p->chip[i].imr = 0xff; /* a firmware would have masked all */
    }
}

/* Input of the highest priority in `set`; 8: none. */
static unsigned highest(const struct i8259_chip *c, uint8_t set)
{
    unsigned n;

    for (n = 1; n <= 8; n++)
        if (set >> ((c->lowest + n) & 7) & 1)
            return (c->lowest + n) & 7;
    return 8;
}

/* 0: the highest priority; 8 for "none". */
static unsigned rank(const struct i8259_chip *c, unsigned input)
{
    return input == 8 ? 8 : (input - c->lowest - 1) & 7;
}

/* The request that the chip would give to the processor; 8: none. */
static unsigned request(const struct i8259_chip *c, bool master)
{
    unsigned want = highest(c, (uint8_t)(c->irr & ~c->imr));
    uint8_t blocking = c->special_mask ? (uint8_t)(c->isr & ~c->imr) : c->isr;

    /* Fully nested: the slave's further requests pass while one of its own is in service. */
    if (master && c->fully_nested)
        blocking &= (uint8_t) ~(1u << CASCADE);
    return rank(c, want) < rank(c, highest(c, blocking)) ? want : 8;
}

static void chip_set(struct i8259_chip *c, unsigned input, bool level)
{
    uint8_t bit = (uint8_t)(1u << input);

    if (level && (c->elcr & bit || !(c->level & bit)))
        c->irr |= bit;
    if (!level && (c->elcr & bit))
        c->irr &= (uint8_t)~bit;
    c->level = (uint8_t)(level ? c->level | bit : c->level & ~bit);
}

/* The slave's output is the master's input 2. */
static void cascade(struct i8259 *p)
{
    bool out = request(&p->chip[SLAVE], false) != 8;

    chip_set(&p->chip[MASTER], CASCADE, out);
    if (!out)
        p->chip[MASTER].irr &= (uint8_t) ~(1u << CASCADE);
    else
        p->chip[MASTER].irr |= 1u << CASCADE;
}

void i8259_set(struct i8259 *p, unsigned input, bool level)
{
    if (input > 15 || input == CASCADE)
        return;
    chip_set(&p->chip[input / 8], input % 8, level);
    cascade(p);
}

bool i8259_pending(const struct i8259 *p)
{
    return request(&p->chip[MASTER], true) != 8;
}

static void acknowledge(struct i8259_chip *c, unsigned input)
{
    uint8_t bit = (uint8_t)(1u << input);

    if (!c->auto_eoi)
        c->isr |= bit;
    else if (c->rotate_auto)
        c->lowest = (uint8_t)input;
    if (!(c->elcr & bit))
        c->irr &= (uint8_t)~bit;
}

uint8_t i8259_ack(struct i8259 *p)
{
    struct i8259_chip *m = &p->chip[MASTER], *s = &p->chip[SLAVE];
    unsigned input = request(m, true), second;
    uint8_t vector;

    if (input == 8)
        return (uint8_t)(m->base + 7); /* spurious: nothing goes into service */
    acknowledge(m, input);
    if (input != CASCADE)
        return (uint8_t)(m->base + input);
    second = request(s, false);
    vector = (uint8_t)(s->base + (second == 8 ? 7 : second));
    if (second != 8)
        acknowledge(s, second);
    cascade(p);
    return vector;
}

/* ---- registers */

static void end_of_interrupt(struct i8259_chip *c, uint8_t v)
{
    unsigned input = v & 7, in_service;

    switch (v >> 5) {
    case 0: /* rotate in automatic EOI: clear, set */
    case 4:
        c->rotate_auto = v >> 7;
        break;
    case 1: /* unspecific EOI, without and with rotation */
    case 5:
        in_service = highest(c, c->isr);
        if (in_service == 8)
            break;
        c->isr &= (uint8_t) ~(1u << in_service);
        if (v >> 7)
            c->lowest = (uint8_t)in_service;
        break;
    case 3: /* specific EOI, without and with rotation */
    case 7:
        c->isr &= (uint8_t) ~(1u << input);
        if (v >> 7)
            c->lowest = (uint8_t)input;
        break;
    case 6: /* set priority */
        c->lowest = (uint8_t)input;
        break;
    default:
        break;
    }
}

static void initialise(struct i8259_chip *c, uint8_t v)
{
    uint8_t elcr = c->elcr, level = c->level;

    *c = (struct i8259_chip){.elcr = elcr, .level = level, .lowest = 7, .icw = 2};
    c->want_icw4 = v & ICW1_ICW4;
    c->irr = level & elcr;
}

static void write_command(struct i8259_chip *c, uint8_t v)
{
    if (v & ICW1) {
        initialise(c, v);
    } else if (v & OCW3) {
        c->poll = v & 4;
        if (v & 2)
            c->read_isr = v & 1;
        if (v & 0x40)
            c->special_mask = v & 0x20;
    } else {
        end_of_interrupt(c, v);
    }
}

static void write_data(struct i8259_chip *c, uint8_t v)
{
    switch (c->icw) {
    case 2:
        c->base = v & 0xf8;
        c->icw = 3; /* single mode (no ICW3) is wired nowhere on a PC */
        break;
    case 3:
        c->icw = c->want_icw4 ? 4 : 0;
        break;
    case 4:
        c->auto_eoi = v & ICW4_AEOI;
        c->fully_nested = v & ICW4_SFNM;
        c->icw = 0;
        break;
    default:
        c->imr = v;
        break;
    }
}

static uint8_t poll_word(struct i8259 *p, unsigned n)
{
    struct i8259_chip *c = &p->chip[n];
    unsigned input = request(c, n == MASTER);

    c->poll = false;
    if (input == 8)
        return 0;
    acknowledge(c, input);
    cascade(p);
    return (uint8_t)(0x80 | input);
}

uint8_t i8259_read(struct i8259 *p, uint16_t port)
{
    unsigned n = port & 0x80 ? SLAVE : MASTER;
    struct i8259_chip *c = &p->chip[n];

    if (port >= 0x4d0)
        return p->chip[port & 1].elcr;
    if (c->poll)
        return poll_word(p, n);
    if (port & 1)
        return c->imr;
    return c->read_isr ? c->isr : c->irr;
}

void i8259_write(struct i8259 *p, uint16_t port, uint8_t v)
{
    struct i8259_chip *c = &p->chip[port & 0x80 ? SLAVE : MASTER];

    if (port >= 0x4d0) {
        c = &p->chip[port & 1];
        c->elcr = v & elcr_mask[port & 1];
        c->irr |= c->elcr & c->level;
    } else if (port & 1) {
        write_data(c, v);
    } else {
        write_command(c, v);
    }
    cascade(p);
}
