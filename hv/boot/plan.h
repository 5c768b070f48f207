/*
 * Where everything that a guest boots from goes. Made from the set and the RAM alone: the same each
 * time, so that what vm_image has checked is what a start does.
 *
 * Besides the segments of its image the guest gets its modules, each page aligned, as high in low
 * RAM as the entry protocol allows, the first highest; and one *boot area* of whole pages, at the
 * lowest address from 0x1000 on that no segment touches:
 *
 *   0x000  GDT
 *   0x040  start information: hvm_start_info, or multiboot's
 *   0x0c0  memory map in PVH's form; multiboot's stands at 0x280
 *   0x180  list of modules
 *   0x380  strings: command line, the modules' command lines
 *          ACPI tables, 16-byte aligned
 *   and, on pages of their own, for entries in 64-bit mode
 *          stack of the entry (RSP at its end)
 *          PML4, and one PDPT for each 512 GiB: identity map of RAM, of the first 4 GiB at least
 *          (and one directory for each GiB where the vCPU has no pages of 1 GiB)
 *          boot_params (Linux)
 *
 * All that comes from an image is hostile; errors name the field `kernel`, `initrd` or `cmdline`.
 */
#ifndef MAYFLY_BOOT_PLAN_H
#define MAYFLY_BOOT_PLAN_H

#include "hv/boot/map.h"
#include "hv/boot/set.h"

#define BOOT_AT_GDT     0x000u
#define BOOT_AT_INFO    0x040u
#define BOOT_AT_MAP     0x0c0u
#define BOOT_AT_MODULES 0x180u
#define BOOT_AT_MB_MAP  0x280u
#define BOOT_AT_STRINGS 0x380u

struct boot_plan {
    enum boot_entry_kind kind;
    uint64_t entry;
    uint64_t area, area_bytes;
    uint64_t cmdline; /* 0: the command line is empty */
    uint64_t module_cmdline[MF_MODULES_MAX];
    uint64_t tables; /* ACPI tables; 0: none */
    uint32_t tables_bytes;
    uint64_t stack, pml4, params; /* 0 where the entry needs none */
    uint64_t module[MF_MODULES_MAX];
    struct boot_map map;
};

/*
 * What can be said before modules are there: segments in RAM, room for a boot area. MF_E_IMAGE with
 * *e filled.
 */
enum mf_status boot_plan_kernel(const struct boot_image *img, const struct boot_ram *ram,
                                struct mf_error *e);
/* MF_E_IMAGE or MF_E_RANGE with *e filled. `t` may be NULL: no tables. */
enum mf_status boot_plan_make(const struct boot_set *set, const struct boot_ram *ram,
                              const struct boot_tables *t, struct boot_plan *p, struct mf_error *e);

/* PDPTs of the identity map. */
uint64_t boot_plan_pdpts(const struct boot_ram *ram);
/* Page directories below them, behind them: one for each GiB where there are no pages of 1 GiB. */
uint64_t boot_plan_pds(const struct boot_ram *ram);

#endif
