#include "hv/dev/uart16550.h"

#include <string.h>

/* Register offsets. */
enum { REG_DATA, REG_IER, REG_IIR_FCR, REG_LCR, REG_MCR, REG_LSR, REG_MSR, REG_SCR };

#define IER_RX   0x01u
#define IER_THRE 0x02u
#define IER_LINE 0x04u
#define IER_MSR  0x08u

#define IIR_NONE    0x01u
#define IIR_THRE    0x02u
#define IIR_RX      0x04u
#define IIR_LINE    0x06u
#define IIR_TIMEOUT 0x0cu
#define IIR_FIFO    0xc0u

#define FCR_ENABLE   0x01u
#define FCR_CLEAR_RX 0x02u

#define LCR_DLAB 0x80u

#define MCR_DTR  0x01u
#define MCR_RTS  0x02u
#define MCR_OUT1 0x04u
#define MCR_OUT2 0x08u
#define MCR_LOOP 0x10u

#define LSR_DATA    0x01u
#define LSR_OVERRUN 0x02u
#define LSR_THRE    0x20u
#define LSR_IDLE    0x40u

#define MSR_CTS 0x10u
#define MSR_DSR 0x20u
#define MSR_RI  0x40u
#define MSR_DCD 0x80u

static void lock(struct uart16550 *u)
{
    while (atomic_flag_test_and_set_explicit(&u->lock, memory_order_acquire))
        ;
}

static void unlock(struct uart16550 *u)
{
    atomic_flag_clear_explicit(&u->lock, memory_order_release);
}

static unsigned rx_trigger(const struct uart16550 *u)
{
    static const uint8_t levels[4] = {1, 4, 8, 14};

    return u->fcr & FCR_ENABLE ? levels[u->fcr >> 6] : 1;
}

/* The modem lines: those of a peer that is always there, or MCR's own in loopback. */
static uint8_t msr_lines(const struct uart16550 *u)
{
    unsigned v = 0;

    if (!(u->mcr & MCR_LOOP))
        return MSR_CTS | MSR_DSR | MSR_DCD;
    v |= u->mcr & MCR_RTS ? MSR_CTS : 0;
    v |= u->mcr & MCR_DTR ? MSR_DSR : 0;
    v |= u->mcr & MCR_OUT1 ? MSR_RI : 0;
    v |= u->mcr & MCR_OUT2 ? MSR_DCD : 0;
    return (uint8_t)v;
}

/* What IIR says, by priority: line status, received data, timeout, transmitter, modem lines. */
static uint8_t iir(const struct uart16550 *u)
{
    if ((u->ier & IER_LINE) && u->lsr_errors)
        return IIR_LINE;
    if ((u->ier & IER_RX) && u->rx_count)
        return u->rx_count >= rx_trigger(u) ? IIR_RX : IIR_TIMEOUT;
    if ((u->ier & IER_THRE) && u->thre_pending)
        return IIR_THRE;
    if ((u->ier & IER_MSR) && u->msr_delta)
        return 0;
    return IIR_NONE;
}

static void update_irq(struct uart16550 *u)
{
    bool level = iir(u) != IIR_NONE;

    /* OUT2 gates the line on a PC's serial port. */
    if (!(u->mcr & MCR_OUT2) || (u->mcr & MCR_LOOP))
        level = false;
    if (level == u->level)
        return;
    u->level = level;
    if (u->irq)
        u->irq(u->arg, level);
}

static bool rx_push(struct uart16550 *u, uint8_t byte)
{
    unsigned room = u->fcr & FCR_ENABLE ? UART_FIFO : 1;

    if (u->rx_count >= room)
        return false;
    u->rx[(u->rx_first + u->rx_count++) % UART_FIFO] = byte;
    return true;
}

static uint8_t rx_pop(struct uart16550 *u)
{
    uint8_t byte = 0;

    if (u->rx_count) {
        byte = u->rx[u->rx_first];
        u->rx_first = (u->rx_first + 1) % UART_FIFO;
        u->rx_count--;
    }
    return byte;
}

static uint8_t read_reg(struct uart16550 *u, unsigned reg)
{
    uint8_t v;

    switch (reg) {
    case REG_DATA:
        return u->lcr & LCR_DLAB ? u->dll : rx_pop(u);
    case REG_IER:
        return u->lcr & LCR_DLAB ? u->dlm : u->ier;
    case REG_IIR_FCR:
        v = iir(u);
        if (v == IIR_THRE)
            u->thre_pending = false;
        return (uint8_t)(v | (u->fcr & FCR_ENABLE ? IIR_FIFO : 0));
    case REG_LCR:
        return u->lcr;
    case REG_MCR:
        return u->mcr;
    case REG_LSR:
        v = (uint8_t)(LSR_THRE | LSR_IDLE | u->lsr_errors | (u->rx_count ? LSR_DATA : 0));
        u->lsr_errors = 0;
        return v;
    case REG_MSR:
        v = (uint8_t)(msr_lines(u) | u->msr_delta);
        u->msr_delta = 0;
        return v;
    default:
        return u->scr;
    }
}

static void write_data(struct uart16550 *u, uint8_t v)
{
    if (u->mcr & MCR_LOOP) {
        if (!rx_push(u, v))
            u->lsr_errors |= LSR_OVERRUN;
    } else {
        u->sink(u->arg, v);
    }
    u->thre_pending = true;
}

static void write_mcr(struct uart16550 *u, uint8_t v)
{
    uint8_t before = msr_lines(u), after;

    u->mcr = v & 0x1f;
    after = msr_lines(u);
    /* Delta bits: CTS, DSR and DCD on any change, RI on its falling edge only. */
    u->msr_delta |= (uint8_t)(((before ^ after) >> 4) & 0x0b);
    if ((before & MSR_RI) && !(after & MSR_RI))
        u->msr_delta |= 0x04;
}

static void write_fcr(struct uart16550 *u, uint8_t v)
{
    if ((v & FCR_CLEAR_RX) || ((v ^ u->fcr) & FCR_ENABLE))
        u->rx_count = 0;
    u->fcr = v & FCR_ENABLE ? v & 0xc9 : 0;
}

static void write_reg(struct uart16550 *u, unsigned reg, uint8_t v)
{
    switch (reg) {
    case REG_DATA:
        if (u->lcr & LCR_DLAB)
            u->dll = v;
        else
            write_data(u, v);
        break;
    case REG_IER:
        if (u->lcr & LCR_DLAB) {
            u->dlm = v;
            break;
        }
        /* Enabling it with an empty transmitter raises the interrupt again: drivers rely on it. */
        if (!(u->ier & IER_THRE) && (v & IER_THRE))
            u->thre_pending = true;
        u->ier = v & 0x0f;
        break;
    case REG_IIR_FCR:
        write_fcr(u, v);
        break;
    case REG_LCR:
        u->lcr = v;
        break;
    case REG_MCR:
        write_mcr(u, v);
        break;
    case REG_SCR:
        u->scr = v;
        break;
    default: /* LSR and MSR are read only */
        break;
    }
}

/* Wider accesses touch the following registers, a byte each, as on the ISA bus. */
static enum bus_result uart_read(struct bus_device *d, uint64_t offset, unsigned size,
                                 uint64_t *value)
{
    struct uart16550 *u = (struct uart16550 *)d;

    lock(u);
    *value = 0;
    for (unsigned i = 0; i < size; i++)
        *value |= (uint64_t)read_reg(u, (unsigned)offset + i) << (8 * i);
    update_irq(u);
    unlock(u);
    return BUS_OK;
}

static enum bus_result uart_write(struct bus_device *d, uint64_t offset, unsigned size,
                                  uint64_t value)
{
    struct uart16550 *u = (struct uart16550 *)d;

    lock(u);
    for (unsigned i = 0; i < size; i++)
        write_reg(u, (unsigned)offset + i, (uint8_t)(value >> (8 * i)));
    update_irq(u);
    unlock(u);
    return BUS_OK;
}

static void uart_reset(struct bus_device *d)
{
    struct uart16550 *u = (struct uart16550 *)d;

    lock(u);
    u->ier = u->fcr = u->lcr = u->mcr = u->msr_delta = u->scr = u->dlm = u->lsr_errors = 0;
    u->dll = 12; /* 9600 baud */
    u->thre_pending = false;
    u->rx_first = u->rx_count = 0;
    update_irq(u);
    unlock(u);
}

static const struct bus_ops uart_ops = {"uart16550", uart_read, uart_write, uart_reset};

void uart16550_init(struct uart16550 *u, void (*sink)(void *arg, uint8_t byte),
                    void (*irq)(void *arg, bool level), void *arg)
{
    memset(u, 0, sizeof *u);
    u->device.ops = &uart_ops;
    u->sink = sink;
    u->irq = irq;
    u->arg = arg;
    atomic_flag_clear(&u->lock);
    uart_reset(&u->device);
}

size_t uart16550_input(struct uart16550 *u, const uint8_t *bytes, size_t n)
{
    size_t taken = 0;

    lock(u);
    /* In loopback the line is cut. */
    while (taken < n && !(u->mcr & MCR_LOOP) && rx_push(u, bytes[taken]))
        taken++;
    update_irq(u);
    unlock(u);
    return taken;
}
