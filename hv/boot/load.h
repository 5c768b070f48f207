/*
 * Puts a checked image into a guest's memory and makes the vCPU's first state.
 *
 * Besides the segments the guest gets one *boot area* of whole pages, at the lowest address from
 * 0x1000 on that no segment touches:
 *
 *   page 0   0x000 GDT   0x040 hvm_start_info   0x080 memory map   0x100 command line
 *   page 1   stack of the entry (ELF64 only; RSP at its end)
 *   page 2   PML4 (ELF64 only), and behind it one PDPT for each 512 GiB: identity map in 1 GiB
 *            pages of the RAM, and of the first 4 GiB at least
 *
 * PVH: 32-bit protected mode, flat segments, paging off, EBX = start_info, as Xen defines it.
 * ELF64: 64-bit mode, CS 0x10, data segments 0x18, interrupts off, RDI = RBX = start_info, a zero
 * return address on the stack.
 * Memory that is not written reads as zero: RAM is fresh at each start, so .bss costs nothing.
 */
#ifndef MAYFLY_BOOT_LOAD_H
#define MAYFLY_BOOT_LOAD_H

#include "hv/boot/image.h"
#include "hv/mm/stage2.h"

/* Everything that depends on the RAM: segments inside it, room for the boot area. */
enum mf_status boot_image_check(const struct boot_image *img, const struct boot_ram *ram,
                                uint64_t cmdline_len, struct mf_error *e);

/* How vCPU 0 begins. hv/vm makes an engine's state of it. */
struct boot_entry {
    enum boot_entry_kind kind;
    uint64_t rip, info; /* start_info */
    uint64_t gdt;
    uint16_t gdt_limit, code, data, tss; /* selectors in it */
    uint64_t rsp, cr3;                   /* ELF64 only */
};

struct boot_load {
    const struct boot_image *image; /* referenced by the caller meanwhile */
    struct boot_ram ram;
    const char *cmdline; /* likewise; zero terminated */
    unsigned segment;
    uint64_t done;
};

/*
 * Writes at most about `budget` bytes. MF_AGAIN: more to do. MF_OK: all is there and *entry is how
 * vCPU 0 begins. MF_E_NO_MEMORY, MF_E_QUOTA and others of stage2_write.
 */
enum mf_status boot_load_step(struct boot_load *l, struct stage2 *s2, uint64_t budget,
                              struct boot_entry *entry);

#endif
