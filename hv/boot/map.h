/*
 * The guest-physical memory map: one table, from which the entry protocols' own forms (e820, PVH,
 * multiboot) are written. What it does not name is no memory.
 */
#ifndef MAYFLY_BOOT_MAP_H
#define MAYFLY_BOOT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#define BOOT_LOW_MAX   (UINT64_C(3) << 30)
#define BOOT_HIGH_BASE (UINT64_C(4) << 30)
#define BOOT_MAP_MAX   8u

/* A guest's RAM: [0, low) and [4 GiB, 4 GiB + high). */
struct boot_ram {
    uint64_t low, high;
    bool no_1g; /* the vCPU has no pages of 1 GiB; false as boot_ram_layout leaves it */
};
struct boot_ram boot_ram_layout(uint64_t bytes);

/* Numbers of ACPI's address range types, which e820, PVH and multiboot share. */
enum boot_map_type {
    BOOT_MAP_RAM = 1,
    BOOT_MAP_RESERVED = 2,
    BOOT_MAP_ACPI = 3, /* RAM that holds ACPI tables: free once they have been read */
};

/* Also the layout of PVH's hvm_memmap_table_entry. */
struct boot_map_entry {
    uint64_t addr, size;
    uint32_t type; /* enum boot_map_type */
    uint32_t reserved;
};

struct boot_map {
    unsigned n;
    struct boot_map_entry e[BOOT_MAP_MAX]; /* ascending, disjoint, none empty */
};

/* What the machine wants in guest memory before the guest runs: ACPI tables, the RSDP first. */
struct boot_tables {
    /*
     * Writes the tables as they must stand at guest-physical `base` (16-byte aligned), nothing when
     * they are more than `cap` bytes. Returns their size; 0: there are none. NULL: the same. Must
     * answer the same size for the same VM, whatever `base` is.
     */
    uint32_t (*make)(void *arg, uint64_t base, void *buf, uint32_t cap);
    void *arg;
};
#define BOOT_TABLES_MAX 8192u

#define BOOT_HOLE_FROM 0xa0000u /* where a PC has no RAM: kernels from that world expect it */
#define BOOT_HOLE_END  0x100000u

/*
 * The map of a guest with `ram`, with the PC's hole reserved if `hole`, whose ACPI tables lie in
 * [acpi, acpi + acpi_bytes), inside low RAM; whole pages of it are named ACPI. acpi_bytes 0: there
 * are none.
 */
void boot_map_make(const struct boot_ram *ram, bool hole, uint64_t acpi, uint64_t acpi_bytes,
                   struct boot_map *out);

#endif
