/*
 * Port and MMIO bus: devices claim ranges, vCPUs' accesses are routed to them. All that a device
 * may include.
 *
 * A device's callbacks run on the thread of the vCPU that made the access; several vCPUs may call
 * at once, so a device has its own lock where it has state.
 */
#ifndef MAYFLY_DEV_BUS_H
#define MAYFLY_DEV_BUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

#define BUS_DEVICES_MAX 32u

/* What became of an access. */
enum bus_result {
    BUS_OK,
    BUS_NONE, /* no device there */
    BUS_STOP, /* the access ends the VM's life (power-off, exit, reset): leave guest mode */
};

struct bus_device;

struct bus_ops {
    const char *name;
    /* `offset` is relative to the claimed range; size 1, 2, 4 or 8. */
    enum bus_result (*read)(struct bus_device *d, uint64_t offset, unsigned size, uint64_t *value);
    enum bus_result (*write)(struct bus_device *d, uint64_t offset, unsigned size, uint64_t value);
    /* Power-on state. May be NULL. */
    void (*reset)(struct bus_device *d);
};

/* Embedded as the first member of a device. */
struct bus_device {
    const struct bus_ops *ops;
};

struct bus_range {
    uint64_t first, last;
    struct bus_device *device;
};

struct bus {
    unsigned nr_ports, nr_mmio, nr_devices;
    struct bus_range ports[BUS_DEVICES_MAX];
    struct bus_range mmio[BUS_DEVICES_MAX];
    struct bus_device *devices[BUS_DEVICES_MAX];
};

void bus_init(struct bus *b);
/* Claims [first, last]. MF_E_RANGE, MF_E_EXISTS (overlap), MF_E_LIMIT. The device must outlive b.
 */
enum mf_status bus_claim_ports(struct bus *b, struct bus_device *d, uint16_t first, uint16_t last);
enum mf_status bus_claim_mmio(struct bus *b, struct bus_device *d, uint64_t first, uint64_t last);
enum bus_result bus_port_read(struct bus *b, uint16_t port, unsigned size, uint32_t *value);
enum bus_result bus_port_write(struct bus *b, uint16_t port, unsigned size, uint32_t value);
enum bus_result bus_mmio_read(struct bus *b, uint64_t addr, unsigned size, uint64_t *value);
enum bus_result bus_mmio_write(struct bus *b, uint64_t addr, unsigned size, uint64_t value);
void bus_reset(struct bus *b);

#endif
