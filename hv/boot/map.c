#include "hv/boot/map.h"

#include <string.h>

#define PAGE 4096u

struct boot_ram boot_ram_layout(uint64_t bytes)
{
    struct boot_ram r = {.low = bytes};

    if (bytes > BOOT_LOW_MAX) {
        r.low = BOOT_LOW_MAX;
        r.high = bytes - BOOT_LOW_MAX;
    }
    return r;
}

static void add(struct boot_map *m, uint64_t from, uint64_t to, uint32_t type)
{
    if (from < to)
        m->e[m->n++] = (struct boot_map_entry){.addr = from, .size = to - from, .type = type};
}

/* Gives [from, to) another type where the map has it. Each carving adds two entries at most. */
static void carve(struct boot_map *m, uint64_t from, uint64_t to, uint32_t type)
{
    struct boot_map old = *m;

    memset(m, 0, sizeof *m);
    for (unsigned i = 0; i < old.n; i++) {
        uint64_t a = old.e[i].addr, b = a + old.e[i].size;
        uint64_t cut = from < a ? a : from < b ? from : b, end = to < cut ? cut : to < b ? to : b;

        add(m, a, cut, old.e[i].type);
        add(m, cut, end, type);
        add(m, end, b, old.e[i].type);
    }
}

void boot_map_make(const struct boot_ram *ram, bool hole, uint64_t acpi, uint64_t acpi_bytes,
                   struct boot_map *out)
{
    memset(out, 0, sizeof *out);
    add(out, 0, ram->low, BOOT_MAP_RAM);
    add(out, BOOT_HIGH_BASE, BOOT_HIGH_BASE + ram->high, BOOT_MAP_RAM);
    if (hole)
        carve(out, BOOT_HOLE_FROM, BOOT_HOLE_END, BOOT_MAP_RESERVED);
    if (acpi_bytes)
        carve(out, acpi & ~(uint64_t)(PAGE - 1),
              (acpi + acpi_bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1), BOOT_MAP_ACPI);
}
