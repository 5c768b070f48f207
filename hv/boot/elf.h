/*
 * Kernel images: what to load where, and how to enter. ELF of both classes, and multiboot 1 images
 * that name their addresses themselves. Only reads and checks; hostile input.
 *
 * How an image is entered, by the first that fits: a note of owner "Linux" and 64-bit code: Linux;
 * Xen's PHYS32_ENTRY note: PVH; a multiboot header: multiboot; 64-bit code: ELF64.
 */
#ifndef MAYFLY_BOOT_ELF_H
#define MAYFLY_BOOT_ELF_H

#include "proto/hypercall.h"

#define BOOT_SEGMENTS_MAX 64u
#define BOOT_NOTES_MAX    65536u /* bytes of one note segment that are looked at */

enum boot_entry_kind {
    BOOT_ENTRY_PVH,       /* 32-bit protected mode, paging off, EBX = start_info */
    BOOT_ENTRY_ELF64,     /* 64-bit mode, identity-mapped, RDI = start_info */
    BOOT_ENTRY_LINUX64,   /* the same, RSI = boot_params */
    BOOT_ENTRY_MULTIBOOT, /* 32-bit protected mode, paging off, EAX = magic, EBX = info */
};

/* Where the bytes of an image come from. `read` gives fewer than n bytes only at the end or on an
 * error (then -1). */
struct boot_source {
    int64_t (*read)(void *arg, uint64_t offset, void *buf, uint64_t n);
    void *arg;
    uint64_t size;
};

struct boot_segment {
    uint64_t paddr, memsz; /* guest-physical; never wraps; memsz > 0 */
    uint64_t offset, filesz;
};

struct boot_elf {
    enum boot_entry_kind kind;
    uint64_t entry;   /* guest-physical, inside a segment */
    uint64_t entry64; /* e_entry of 64-bit code, likewise; 0: there is none */
    unsigned nr_segments;
    uint64_t file_bytes;                             /* sum of filesz */
    struct boot_segment segments[BOOT_SEGMENTS_MAX]; /* ascending, disjoint */
};

/* MF_OK, or MF_E_IMAGE or MF_E_TOO_BIG with *e filled: what is wrong with which part. */
enum mf_status boot_elf_parse(const struct boot_source *src, struct boot_elf *out,
                              struct mf_error *e);

__attribute__((format(printf, 4, 5))) enum mf_status
boot_fail(struct mf_error *e, enum mf_status st, const char *field, const char *fmt, ...);

#endif
