#include "hv/dev/bus.h"

#include <string.h>

void bus_init(struct bus *b)
{
    memset(b, 0, sizeof *b);
}

static enum mf_status add_device(struct bus *b, struct bus_device *d)
{
    for (unsigned i = 0; i < b->nr_devices; i++)
        if (b->devices[i] == d)
            return MF_OK;
    if (b->nr_devices == BUS_DEVICES_MAX)
        return MF_E_LIMIT;
    b->devices[b->nr_devices++] = d;
    return MF_OK;
}

/* Keeps `ranges` ascending, so that an access is found by bisection. */
static enum mf_status claim(struct bus *b, struct bus_range *ranges, unsigned *nr,
                            struct bus_device *d, uint64_t first, uint64_t last)
{
    unsigned at = 0;
    enum mf_status st;

    if (first > last)
        return MF_E_RANGE;
    while (at < *nr && ranges[at].last < first)
        at++;
    if (at < *nr && ranges[at].first <= last)
        return MF_E_EXISTS;
    if (*nr == BUS_DEVICES_MAX)
        return MF_E_LIMIT;
    st = add_device(b, d);
    if (st)
        return st;
    memmove(&ranges[at + 1], &ranges[at], (*nr - at) * sizeof ranges[0]);
    ranges[at] = (struct bus_range){first, last, d};
    ++*nr;
    return MF_OK;
}

enum mf_status bus_claim_ports(struct bus *b, struct bus_device *d, uint16_t first, uint16_t last)
{
    return claim(b, b->ports, &b->nr_ports, d, first, last);
}

enum mf_status bus_claim_mmio(struct bus *b, struct bus_device *d, uint64_t first, uint64_t last)
{
    return claim(b, b->mmio, &b->nr_mmio, d, first, last);
}

/* The range that holds all of [addr, addr + size), NULL when none does. */
static const struct bus_range *find(const struct bus_range *r, unsigned nr, uint64_t addr,
                                    unsigned size)
{
    unsigned lo = 0, hi = nr;

    while (lo < hi) {
        unsigned mid = lo + (hi - lo) / 2;

        if (r[mid].last < addr)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == nr || addr < r[lo].first || r[lo].last - addr < size - 1)
        return NULL;
    return &r[lo];
}

static uint64_t ones(unsigned size)
{
    return size >= 8 ? UINT64_MAX : (UINT64_C(1) << (8 * size)) - 1;
}

static enum bus_result do_read(const struct bus_range *r, uint64_t addr, unsigned size,
                               uint64_t *value)
{
    enum bus_result res = BUS_NONE;

    *value = ones(size);
    if (r && r->device->ops->read)
        res = r->device->ops->read(r->device, addr - r->first, size, value);
    *value = res == BUS_NONE ? ones(size) : *value & ones(size);
    return res;
}

static enum bus_result do_write(const struct bus_range *r, uint64_t addr, unsigned size,
                                uint64_t value)
{
    if (!r || !r->device->ops->write)
        return BUS_NONE;
    return r->device->ops->write(r->device, addr - r->first, size, value & ones(size));
}

enum bus_result bus_port_read(struct bus *b, uint16_t port, unsigned size, uint32_t *value)
{
    uint64_t v;
    enum bus_result res = do_read(find(b->ports, b->nr_ports, port, size), port, size, &v);

    *value = (uint32_t)v;
    return res;
}

enum bus_result bus_port_write(struct bus *b, uint16_t port, unsigned size, uint32_t value)
{
    return do_write(find(b->ports, b->nr_ports, port, size), port, size, value);
}

enum bus_result bus_mmio_read(struct bus *b, uint64_t addr, unsigned size, uint64_t *value)
{
    return do_read(find(b->mmio, b->nr_mmio, addr, size), addr, size, value);
}

enum bus_result bus_mmio_write(struct bus *b, uint64_t addr, unsigned size, uint64_t value)
{
    return do_write(find(b->mmio, b->nr_mmio, addr, size), addr, size, value);
}

void bus_reset(struct bus *b)
{
    for (unsigned i = 0; i < b->nr_devices; i++)
        if (b->devices[i]->ops->reset)
            b->devices[i]->ops->reset(b->devices[i]);
}
