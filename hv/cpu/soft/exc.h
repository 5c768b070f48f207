/* Exceptions and interrupts: through the IDT (or the real-mode vector table). */
#ifndef MAYFLY_CPU_SOFT_EXC_H
#define MAYFLY_CPU_SOFT_EXC_H

#include "hv/cpu/soft/cpu.h"

enum exc_source { EXC_FAULT, EXC_SOFT /* INT n, INT3, INTO */, EXC_EXTERN };

/* Enters the handler of `vec`; `ip` is what it returns to. False: exception or exit queued. */
bool exc_enter(struct cpu *c, unsigned vec, enum exc_source src, bool has_err, uint32_t err,
               uint64_t ip);
/*
 * Delivers c->exc for the instruction at c->rip: double faults, and the triple fault, which leaves
 * with CPU_EXIT_TRIPLE_FAULT. False: the run must end (exit queued).
 */
bool exc_deliver(struct cpu *c);

#endif
