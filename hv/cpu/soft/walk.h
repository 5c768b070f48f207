/* The guest's page tables, and guest-physical memory below them. */
#ifndef MAYFLY_CPU_SOFT_WALK_H
#define MAYFLY_CPU_SOFT_WALK_H

#include "hv/cpu/soft/cpu.h"

struct walk {
    uint64_t gpa;
    bool global; /* outlives a load of CR3 */
};

/* Linear to guest-physical, with rights checked and A/D set. False: #PF or an exit is queued. */
bool walk_linear(struct cpu *c, uint64_t lin, unsigned acc, bool user, struct walk *w);

enum phys { PHYS_RAM, PHYS_MMIO, PHYS_FAIL };
/* Host address of a guest frame, populated on demand. PHYS_FAIL: exit queued. */
enum phys phys_page(struct cpu *c, uint64_t gfn, bool write, uint8_t **host);

#endif
