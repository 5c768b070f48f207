/*
 * Puts what a VM boots from into its memory, as boot/plan.h lays it out, and makes the vCPU's first
 * state.
 *
 * PVH: 32-bit protected mode, flat segments, paging off, EBX = start_info, as Xen defines it.
 * Multiboot: the same with EAX = 0x2badb002, EBX = the multiboot information.
 * ELF64: 64-bit mode, CS 0x10, data segments 0x18, interrupts off, RDI = RBX = start_info, a zero
 * return address on the stack.
 * Linux: the same with RSI = boot_params, as Documentation/arch/x86/boot.rst has its 64-bit entry.
 * Memory that is not written reads as zero: RAM is fresh at each start, so .bss costs nothing;
 * pages of an image that are zero are left out for the same reason.
 */
#ifndef MAYFLY_BOOT_LOAD_H
#define MAYFLY_BOOT_LOAD_H

#include "hv/boot/plan.h"
#include "hv/mm/stage2.h"

/* How vCPU 0 begins. hv/vm makes an engine's state of it. */
struct boot_entry {
    enum boot_entry_kind kind;
    uint64_t rip;
    uint64_t rax, rbx, rsi, rdi;
    uint64_t gdt;
    uint16_t gdt_limit, code, data, tss; /* selectors in it */
    uint64_t rsp, cr3;                   /* 0: paging is off */
};

struct boot_load {
    const struct boot_set *set; /* the caller keeps it and its images meanwhile */
    struct boot_ram ram;
    struct boot_tables tables;
    struct boot_plan plan;
    unsigned part; /* segments of the kernel, then modules */
    uint64_t done;
};

/* The plan is made anew: errors of boot_plan_make. `tables` may be NULL. */
enum mf_status boot_load_begin(struct boot_load *l, const struct boot_set *set,
                               const struct boot_ram *ram, const struct boot_tables *tables,
                               struct mf_error *e);

/*
 * Writes at most about `budget` bytes. MF_AGAIN: more to do. MF_OK: all is there and *entry is how
 * vCPU 0 begins. MF_E_NO_MEMORY, MF_E_QUOTA and others of stage2_write.
 */
enum mf_status boot_load_step(struct boot_load *l, struct stage2 *s2, uint64_t budget,
                              struct boot_entry *entry);

#endif
