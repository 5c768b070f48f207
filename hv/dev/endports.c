#include "hv/dev/endports.h"

#include <string.h>

#define RESET_CPU 0x04u /* 0 to 1 resets; bit 1 chooses a hard reset */

static enum bus_result end(struct bus_device *d, enum end_kind kind, uint64_t code)
{
    struct end_ports *p = ((struct end_port *)d)->group;

    p->end(p->arg, kind, code);
    return BUS_STOP;
}

static enum bus_result zero_read(struct bus_device *d, uint64_t offset, unsigned size,
                                 uint64_t *value)
{
    (void)d;
    (void)offset;
    (void)size;
    *value = 0;
    return BUS_OK;
}

static enum bus_result debug_exit_write(struct bus_device *d, uint64_t offset, unsigned size,
                                        uint64_t value)
{
    (void)offset;
    (void)size;
    return end(d, END_KIND_DEBUG_EXIT, value);
}

static enum bus_result reset_write(struct bus_device *d, uint64_t offset, unsigned size,
                                   uint64_t value)
{
    (void)offset;
    (void)size;
    return value & RESET_CPU ? end(d, END_KIND_RESET, 0) : BUS_OK;
}

static enum bus_result ignore_write(struct bus_device *d, uint64_t offset, unsigned size,
                                    uint64_t value)
{
    (void)d;
    (void)offset;
    (void)size;
    (void)value;
    return BUS_OK;
}

static const struct bus_ops debug_exit_ops = {"debug-exit", zero_read, debug_exit_write, NULL};
static const struct bus_ops reset_ops = {"reset-control", zero_read, reset_write, NULL};
static const struct bus_ops delay_ops = {"delay", NULL, ignore_write, NULL};

enum mf_status end_ports_init(struct end_ports *p, struct bus *b,
                              void (*end_fn)(void *arg, enum end_kind kind, uint64_t code),
                              void *arg)
{
    const struct {
        struct end_port *port;
        const struct bus_ops *ops;
        uint16_t first, last;
    } rows[] = {
        {&p->debug_exit, &debug_exit_ops, PORT_DEBUG_EXIT, PORT_DEBUG_EXIT + 3},
        {&p->reset, &reset_ops, PORT_RESET, PORT_RESET},
        {&p->delay, &delay_ops, PORT_DELAY, PORT_DELAY},
    };

    memset(p, 0, sizeof *p);
    p->end = end_fn;
    p->arg = arg;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum mf_status st;

        rows[i].port->device.ops = rows[i].ops;
        rows[i].port->group = p;
        st = bus_claim_ports(b, &rows[i].port->device, rows[i].first, rows[i].last);
        if (st)
            return st;
    }
    return MF_OK;
}
