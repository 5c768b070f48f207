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

static void add(struct boot_map *m, uint64_t from, uint64_t to, enum boot_map_type type)
{
    if (from < to)
        m->e[m->n++] = (struct boot_map_entry){.addr = from, .size = to - from, .type = type};
}

void boot_map_make(const struct boot_ram *ram, uint64_t acpi, uint64_t acpi_bytes,
                   struct boot_map *out)
{
    uint64_t first = ram->low, end = ram->low;

    memset(out, 0, sizeof *out);
    if (acpi_bytes) {
        first = acpi & ~(uint64_t)(PAGE - 1);
        end = (acpi + acpi_bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    }
    add(out, 0, first, BOOT_MAP_RAM);
    add(out, first, end, BOOT_MAP_ACPI);
    add(out, end, ram->low, BOOT_MAP_RAM);
    add(out, BOOT_HIGH_BASE, BOOT_HIGH_BASE + ram->high, BOOT_MAP_RAM);
}
