/*
 * ACPI tables of the machine in hv/dev: RSDP, XSDT, FADT, MADT, FACS, DSDT. After the ACPI
 * specification 6.4, chapter 5; the FADT is that of ACPI 2.0.
 *
 * DSDT: \_S5, the serial port COM1 (PNP0501), the panic port (QEMU0001).
 */
#ifndef MAYFLY_BOOT_ACPI_H
#define MAYFLY_BOOT_ACPI_H

#include <stdint.h>

#define ACPI_CPUS_MAX 64u

/*
 * The tables as they must stand at guest-physical `base` (16-byte aligned, below 4 GiB), RSDP
 * first. Returns their size, which depends on `cpus` (1 to ACPI_CPUS_MAX) alone; writes nothing
 * when that is more than `cap`. Thread safe.
 */
uint32_t acpi_tables_make(unsigned cpus, uint64_t base, void *buf, uint32_t cap);

#endif
