/* Running a vCPU. */
#ifndef MAYFLY_CPU_SOFT_RUN_H
#define MAYFLY_CPU_SOFT_RUN_H

#include "hv/cpu/soft/cpu.h"

/* Until c->exiting. */
void run_cpu(struct cpu *c);
/* Everything that was translated or decoded may be something else now. */
void run_forget(struct cpu *c);

#endif
