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

/*
 * Where a block led to the last times. A link inside a page holds while the decoded bytes do, one
 * to another page while the address space does, too. Blocks of user and of kernel mode are never
 * the same, so that a link needs no check of rights.
 */
struct link {
    uint64_t rip;
    uint64_t stamp; /* generation of either kind */
    struct block *to;
    bool far; /* another page */
};

#define LINKS 2u

struct block {
    struct op *ops; /* ends with code_end_op */
    unsigned nr;
    unsigned turn; /* the link to be replaced next */
    struct link link[LINKS];
};

/* R_END */
extern const struct op code_end_op;

struct code_cache *code_cache_create(void);
/* Gives back what a big guest left behind; before the vCPU waits for its next one. */
void code_cache_trim(struct code_cache *cc);
void code_cache_destroy(struct code_cache *cc);
/* Every page must be compared with memory before it runs again. */
void code_doubt_all(struct cpu *c);
/* The block at c->rip: cached, or decoded now. NULL: exception or exit queued. */
struct block *code_find(struct cpu *c);
/* The same, coming from the end of `b`, which was entered at `from`. */
struct block *code_follow(struct cpu *c, struct block *b, uint64_t from);
/* The pages of frame `gfn` must be. */
void code_doubt(struct cpu *c, uint64_t gfn);
/* This vCPU wrote `size` bytes at guest-physical `gpa`, inside one page. */
void code_written(struct cpu *c, uint64_t gpa, unsigned size);

#endif
