/* Multiboot 1 kernels: the header in their first 8 KiB. Only reads and checks; hostile input. */
#ifndef MAYFLY_BOOT_MULTIBOOT_H
#define MAYFLY_BOOT_MULTIBOOT_H

#include <stdbool.h>

#include "hv/boot/elf.h"

#define MULTIBOOT_SEARCH 8192u

struct multiboot_header {
    bool found;
    bool addresses;    /* the fields below count, not the ELF headers */
    uint64_t offset;   /* of the header in the file */
    uint32_t required; /* the header's flags 0 to 15 */
    uint32_t header_addr, load_addr, load_end, bss_end, entry;
};

/* Looks for it; one that is not there or cannot be read is not an error: found is false. */
void multiboot_find(const struct boot_source *src, struct multiboot_header *h);

/* What the header wants that is not given here. MF_E_IMAGE with *e filled. */
enum mf_status multiboot_check(const struct multiboot_header *h, struct mf_error *e);

/* Segment and entry by the header's addresses. MF_E_IMAGE with *e filled. */
enum mf_status multiboot_segment(const struct boot_source *src, const struct multiboot_header *h,
                                 struct boot_elf *out, struct mf_error *e);

#endif
