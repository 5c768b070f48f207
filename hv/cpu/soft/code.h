/*
 * Decoded code, found by guest frame and decode mode. One cache a vCPU.
 *
 * A code page keeps the bytes it was decoded from. It is *checked* when these bytes were compared
 * with memory since anything may have written there; the writes of this vCPU to a frame with code
 * are seen one by one (the TLB does not let them pass directly), those of devices and the loader
 * are told by page_written. Pages outlive their guest in the pool: the next guest's frame is
 * compared before it runs, so a hello VM decodes nothing that its predecessor did not run
 * differently.
 */
#ifndef MAYFLY_CPU_SOFT_CODE_H
#define MAYFLY_CPU_SOFT_CODE_H

#include "hv/cpu/soft/cpu.h"

#define BLOCK_OPS 32u

struct block {
    struct op *ops; /* ends with an op without handler */
    unsigned nr;
};

struct code_cache *code_cache_create(void);
/* Gives back what a big guest left behind; before the vCPU waits for its next one. */
void code_cache_trim(struct code_cache *cc);
void code_cache_destroy(struct code_cache *cc);
/* Every page must be compared with memory before it runs again. */
void code_doubt_all(struct cpu *c);
/* The block at c->rip: cached, or decoded now. NULL: exception or exit queued. */
struct block *code_find(struct cpu *c);
/* The pages of frame `gfn` must be. */
void code_doubt(struct cpu *c, uint64_t gfn);
/* This vCPU wrote `size` bytes at guest-physical `gpa`, inside one page. */
void code_written(struct cpu *c, uint64_t gpa, unsigned size);

#endif
