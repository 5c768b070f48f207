/* CPUID and model-specific registers: what the soft processor says it is. */
#ifndef MAYFLY_CPU_SOFT_MSR_H
#define MAYFLY_CPU_SOFT_MSR_H

#include "hv/cpu/soft/cpu.h"

void cpuid_read(const struct cpu *c, uint32_t leaf, uint32_t sub, uint32_t r[4]);
/* False: no such register, or a value that it does not take: #GP. */
bool msr_read(struct cpu *c, uint32_t nr, uint64_t *v);
bool msr_write(struct cpu *c, uint32_t nr, uint64_t v);
uint64_t tsc_read(struct cpu *c);

/* exec_sys.c */
bool cpu_set_cr0(struct cpu *c, uint64_t v);

#endif
