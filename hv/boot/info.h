/*
 * What the entry protocols tell a kernel about its machine, each in its own form. The functions
 * write guest memory as the plan says; errors are those of stage2_write.
 */
#ifndef MAYFLY_BOOT_INFO_H
#define MAYFLY_BOOT_INFO_H

#include "hv/boot/load.h"

/* Xen's public start structure (hvm_start_info, version 1), with map and modules. */
enum mf_status boot_info_pvh(const struct boot_load *l, struct stage2 *s2);
/* Multiboot 1 information: memory, command line, modules. */
enum mf_status boot_info_multiboot(const struct boot_load *l, struct stage2 *s2);
/* Linux's boot_params ("zero page"), protocol 2.15 or what the setup header says. */
enum mf_status boot_info_linux(const struct boot_load *l, struct stage2 *s2);

#endif
