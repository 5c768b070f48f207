/*
 * 16550A serial port. Output leaves at once (the transmitter is never busy), input waits in a
 * 16-byte queue until the guest takes it. No timing: the divisor is stored and not looked at.
 */
#ifndef MAYFLY_DEV_UART16550_H
#define MAYFLY_DEV_UART16550_H

#include <stdatomic.h>

#include "hv/dev/bus.h"

#define UART_PORTS 8u
#define UART_FIFO  16u

struct uart16550 {
    struct bus_device device; /* first */
    /* One byte that the guest sent. Called with the device's lock held: must not call back. */
    void (*sink)(void *arg, uint8_t byte);
    /* The interrupt line changed. May be NULL. Same rule. */
    void (*irq)(void *arg, bool level);
    void *arg;

    atomic_flag lock;
    /* under lock */
    uint8_t ier, fcr, lcr, mcr, msr_delta, scr, dll, dlm;
    uint8_t lsr_errors; /* overrun */
    bool thre_pending;  /* the transmitter became empty and nobody has read that in IIR */
    bool level;
    uint8_t rx[UART_FIFO];
    unsigned rx_first, rx_count;
};

void uart16550_init(struct uart16550 *u, void (*sink)(void *arg, uint8_t byte),
                    void (*irq)(void *arg, bool level), void *arg);
/* Puts input into the receive queue; returns how many of the `n` bytes fitted. Any thread. */
size_t uart16550_input(struct uart16550 *u, const uint8_t *bytes, size_t n);

#endif
