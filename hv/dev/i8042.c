#include "hv/dev/i8042.h"

#define PORT_COMMAND 0x64u

#define STATUS_OUTPUT  0x01u
#define STATUS_SYSTEM  0x04u
#define STATUS_TIMEOUT 0x40u

#define MODE_IRQ1       0x01u
#define MODE_AUX_OFF    0x20u
#define PORT_RESET_LINE 0x01u
#define PORT_A20        0x02u
#define RESEND          0xfeu /* what the controller says for a device that is silent */

void i8042_init(struct i8042 *k, void (*line)(void *arg, bool level), void (*reset)(void *arg),
                void *arg)
{
    *k = (struct i8042){.line = line, .reset = reset, .arg = arg};
    i8042_reset(k);
}

void i8042_reset(struct i8042 *k)
{
    k->mode = STATUS_SYSTEM | MODE_AUX_OFF;
    k->port = PORT_RESET_LINE | PORT_A20;
    k->output = k->pending = 0;
    k->full = k->timeout = false;
}

static void answer(struct i8042 *k, uint8_t v, bool timeout)
{
    k->output = v;
    k->full = true;
    k->timeout = timeout;
    k->line(k->arg, k->mode & MODE_IRQ1);
}

static uint8_t read_data(struct i8042 *k)
{
    if (k->full)
        k->line(k->arg, false);
    k->full = k->timeout = false;
    return k->output;
}

uint8_t i8042_read(struct i8042 *k, uint16_t port)
{
    if (port != PORT_COMMAND)
        return read_data(k);
    return (uint8_t)(STATUS_SYSTEM | (k->full ? STATUS_OUTPUT : 0) |
                     (k->timeout ? STATUS_TIMEOUT : 0));
}

static void write_port(struct i8042 *k, uint8_t v)
{
    bool falls = (k->port & PORT_RESET_LINE) && !(v & PORT_RESET_LINE);

    k->port = v;
    if (falls)
        k->reset(k->arg);
}

static void command(struct i8042 *k, uint8_t v)
{
    switch (v) {
    case 0x20:
        answer(k, k->mode, false);
        break;
    case 0x60: /* mode */
    case 0xd1: /* output port */
    case 0xd2: /* keyboard's and mouse's output buffer */
    case 0xd3:
    case 0xd4: /* to the mouse */
        k->pending = v;
        break;
    case 0xaa:
        answer(k, 0x55, false);
        break;
    case 0xa9: /* mouse and keyboard lines: clock stuck low, nobody there */
    case 0xab:
        answer(k, 0x01, false);
        break;
    case 0xa7:
    case 0xa8:
        k->mode = (uint8_t)(v == 0xa7 ? k->mode | MODE_AUX_OFF : k->mode & ~MODE_AUX_OFF);
        break;
    case 0xc0:
        answer(k, 0x80, false); /* input port: not locked */
        break;
    case 0xd0:
        answer(k, k->port, false);
        break;
    default:
        /* Pulses: a zero bit pulls its line of the output port, bit 0 is reset. */
        if (v >= 0xf0 && !(v & PORT_RESET_LINE))
            k->reset(k->arg);
        break;
    }
}

static void data(struct i8042 *k, uint8_t v)
{
    uint8_t what = k->pending;

    k->pending = 0;
    switch (what) {
    case 0x60:
        k->mode = v;
        break;
    case 0xd1:
        write_port(k, v);
        break;
    case 0xd2:
    case 0xd3:
        answer(k, v, false);
        break;
    default:
        answer(k, RESEND, true);
        break;
    }
}

void i8042_write(struct i8042 *k, uint16_t port, uint8_t v)
{
    if (port == PORT_COMMAND)
        command(k, v);
    else
        data(k, v);
}
