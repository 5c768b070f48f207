/*
 * The pair of 8259A interrupt controllers of a PC, master and slave, with the ELCR ports of the
 * PIIX that make inputs level triggered. After Intel's data sheet 231468.
 * No lock: used under the chipset's.
 */
#ifndef MAYFLY_DEV_I8259_H
#define MAYFLY_DEV_I8259_H

#include <stdbool.h>
#include <stdint.h>

struct i8259_chip {
    uint8_t irr, isr, imr;
    uint8_t level;  /* inputs as they are now */
    uint8_t elcr;   /* level triggered inputs */
    uint8_t base;   /* vector of input 0 */
    uint8_t lowest; /* input of the lowest priority; 7 after reset */
    uint8_t icw;    /* which initialisation word comes next: 2, 3, 4; 0: none */
    bool want_icw4, auto_eoi, rotate_auto, special_mask, fully_nested, read_isr, poll;
};

struct i8259 {
    struct i8259_chip chip[2]; /* master, slave on its input 2 */
};

void i8259_reset(struct i8259 *p);
/* Input 0 to 15, without 2. */
void i8259_set(struct i8259 *p, unsigned input, bool level);
/* The INTR line of the master. */
bool i8259_pending(const struct i8259 *p);
/* The processor's acknowledge cycle: the vector; a spurious one when nothing is pending. */
uint8_t i8259_ack(struct i8259 *p);
/* Ports 0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1. */
uint8_t i8259_read(struct i8259 *p, uint16_t port);
void i8259_write(struct i8259 *p, uint16_t port, uint8_t v);

#endif
