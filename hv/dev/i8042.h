/*
 * 8042 keyboard controller without a keyboard and mouse: enough that a driver finds that out at
 * once instead of waiting. Ports 0x60 and 0x64, line 1.
 * No lock: used under the chipset's.
 */
#ifndef MAYFLY_DEV_I8042_H
#define MAYFLY_DEV_I8042_H

#include <stdbool.h>
#include <stdint.h>

struct i8042 {
    uint8_t mode;    /* the command byte */
    uint8_t output;  /* byte to be read */
    uint8_t port;    /* output port: A20, reset line */
    uint8_t pending; /* command that waits for its byte; 0: none */
    bool full, timeout;
    void (*line)(void *arg, bool level);
    void (*reset)(void *arg); /* the CPU's reset line is pulled */
    void *arg;
};

void i8042_init(struct i8042 *k, void (*line)(void *arg, bool level), void (*reset)(void *arg),
                void *arg);
void i8042_reset(struct i8042 *k);
/* Port 0x60 or 0x64. */
uint8_t i8042_read(struct i8042 *k, uint16_t port);
void i8042_write(struct i8042 *k, uint16_t port, uint8_t v);

#endif
