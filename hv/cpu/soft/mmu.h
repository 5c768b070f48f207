/*
 * Guest memory as instructions see it: linear address -> TLB -> host address.
 *
 * The inline part is one tag comparison. What does not hit goes through mmu.c: the guest's page
 * tables, the second stage below them, MMIO, pages that code was decoded from, accesses that cross
 * a page. A function that answers false has queued an exception or an exit and changed nothing.
 */
#ifndef MAYFLY_CPU_SOFT_MMU_H
#define MAYFLY_CPU_SOFT_MMU_H

#include <string.h>

#include "hv/cpu/soft/cpu.h"
#include "hv/cpu/soft/guest_mem.h"

#define MMU_R 0u
#define MMU_W 1u
#define MMU_X 2u

static inline struct tlb_entry *tlb_slot(struct tlb_entry *tlb, uint64_t lin)
{
    return &tlb[(lin >> FRAME_SHIFT) & (TLB_SIZE - 1)];
}

static inline bool page_fits(uint64_t lin, unsigned size)
{
    return PAGE_OFFS(lin) <= FRAME_SIZE - size;
}

static inline uint8_t *tlb_r(const struct cpu *c, uint64_t lin, unsigned size)
{
    const struct tlb_entry *e = tlb_slot(c->tlb, lin);

    if (unlikely(e->r != ((lin & PAGE_MASK) | c->tlb_gen)) || unlikely(!page_fits(lin, size)))
        return NULL;
    return (uint8_t *)(e->addend + (uintptr_t)lin);
}

static inline uint8_t *tlb_w(const struct cpu *c, uint64_t lin, unsigned size)
{
    const struct tlb_entry *e = tlb_slot(c->tlb, lin);

    if (unlikely(e->w != ((lin & PAGE_MASK) | c->tlb_gen)) || unlikely(!page_fits(lin, size)))
        return NULL;
    return (uint8_t *)(e->addend + (uintptr_t)lin);
}

/* What a page of linear memory is. */
struct mmu_ref {
    uint8_t *host; /* of the byte asked for; NULL: MMIO */
    uint64_t gpa;  /* of that byte */
};

/* Translates one byte's page for an access of kind `acc` with user or supervisor rights and fills
 * the TLB. */
bool mmu_ref(struct cpu *c, uint64_t lin, unsigned acc, bool user, struct mmu_ref *ref);

/* Slow accesses with the rights of the present CPL; size 1, 2, 4, 8 (zero extended). */
bool mmu_read(struct cpu *c, uint64_t lin, unsigned size, uint64_t *out);
bool mmu_write(struct cpu *c, uint64_t lin, unsigned size, uint64_t v);
/* The same with supervisor rights: descriptor tables, TSS, stacks of a more privileged level. */
bool mmu_sys_read(struct cpu *c, uint64_t lin, unsigned size, uint64_t *out);
bool mmu_sys_write(struct cpu *c, uint64_t lin, unsigned size, uint64_t v);
/* A write of `size` bytes would be allowed and its pages are there. */
bool mmu_probe_write(struct cpu *c, uint64_t lin, unsigned size);

/* At most MMU_BYTES_MAX bytes: all of them or nothing, on either side. */
#define MMU_BYTES_MAX 512u
bool mmu_read_bytes(struct cpu *c, uint64_t lin, void *p, unsigned n);
bool mmu_write_bytes(struct cpu *c, uint64_t lin, const void *p, unsigned n);

/* Forget translations: all of the first stage, those that a load of CR3 drops, one page, the second
 * stage too. */
void mmu_flush(struct cpu *c);
void mmu_flush_space(struct cpu *c);
void mmu_flush_page(struct cpu *c, uint64_t lin);
void mmu_flush_all(struct cpu *c);
/* Takes the right to write directly from the entries of one guest frame (it became code), or of
 * every watched one. */
void mmu_unwrite(struct cpu *c, uint64_t gfn);
void mmu_unwrite_watched(struct cpu *c);
/* This vCPU wrote to RAM other than through tlb_w: where the frame holds code, all are told. The
 * range is in one page. */
void mmu_told(struct cpu *c, uint64_t gpa, unsigned size);

/* Adds base, checks limit and rights outside 64-bit code. False: #GP or #SS queued. */
bool mmu_seg(struct cpu *c, unsigned seg, uint64_t off, unsigned size, unsigned acc, uint64_t *lin);

static inline uint64_t addr_cut(uint64_t a, unsigned asz)
{
    return asz == 8 ? a : asz == 4 ? (uint32_t)a : (uint16_t)a;
}

/* Effective address of an op's memory operand. */
static inline uint64_t op_ea(const struct cpu *c, const struct op *op)
{
    uint64_t a = c->r[op->base] + (c->r[op->index] << op->scale) + (uint64_t)(int64_t)op->disp;

    return addr_cut(a, op->asz);
}

/* Linear address of [seg:off, size bytes) for an access. */
static inline bool lin_of(struct cpu *c, unsigned seg, uint64_t off, unsigned size, unsigned acc,
                          uint64_t *lin)
{
    if (likely(!(c->checked & (1u << seg)))) {
        if (unlikely(seg == CPU_SS && !is_canonical(off)))
            return cpu_raise(c, VEC_SS, 0);
        *lin = c->seg_base[seg] + off;
        if (c->mode != MODE_64)
            *lin = (uint32_t)*lin;
        return true;
    }
    return mmu_seg(c, seg, off, size, acc, lin);
}

static inline uint64_t op_flat(const struct cpu *c, const struct op *op)
{
    return c->r[op->base] + (c->r[op->index] << op->scale) + (uint64_t)(int64_t)op->disp +
           c->seg_base[op->seg];
}

/* Host address of a memory operand when nothing stands in the way, else NULL: the fast half of
 * handlers, whose other half does everything. */
static inline __attribute__((always_inline)) uint8_t *fast_r(const struct cpu *c,
                                                             const struct op *op, unsigned size)
{
    return likely(op->flags & OPF_FLAT) ? tlb_r(c, op_flat(c, op), size) : NULL;
}

static inline __attribute__((always_inline)) uint8_t *fast_w(const struct cpu *c,
                                                             const struct op *op, unsigned size)
{
    return likely(op->flags & OPF_FLAT) ? tlb_w(c, op_flat(c, op), size) : NULL;
}

/* The same for the stack of 64-bit code. */
static inline uint8_t *fast_push(const struct cpu *c)
{
    return likely(c->mode == MODE_64) ? tlb_w(c, c->r[CPU_RSP] - 8, 8) : NULL;
}

static inline uint8_t *fast_pop(const struct cpu *c)
{
    return likely(c->mode == MODE_64) ? tlb_r(c, c->r[CPU_RSP], 8) : NULL;
}

static inline __attribute__((always_inline)) bool op_lin(struct cpu *c, const struct op *op,
                                                         unsigned size, unsigned acc, uint64_t *lin)
{
    if (likely(op->flags & OPF_FLAT)) {
        *lin = op_flat(c, op);
        return true;
    }
    return lin_of(c, op->seg, op_ea(c, op), size, acc, lin);
}

static inline __attribute__((always_inline)) bool mem_load(struct cpu *c, uint64_t lin,
                                                           unsigned size, uint64_t *out)
{
    const uint8_t *p = tlb_r(c, lin, size);

    if (likely(p)) {
        *out = host_load(p, size);
        return true;
    }
    return mmu_read(c, lin, size, out);
}

static inline __attribute__((always_inline)) bool mem_store(struct cpu *c, uint64_t lin,
                                                            unsigned size, uint64_t v)
{
    uint8_t *p = tlb_w(c, lin, size);

    if (likely(p)) {
        host_store(p, size, v);
        return true;
    }
    return mmu_write(c, lin, size, v);
}

static inline bool mem_load_bytes(struct cpu *c, uint64_t lin, void *to, unsigned n)
{
    const uint8_t *p = tlb_r(c, lin, n);

    if (unlikely(!p))
        return mmu_read_bytes(c, lin, to, n);
    guest_copy(to, p, n);
    return true;
}

static inline bool mem_store_bytes(struct cpu *c, uint64_t lin, const void *from, unsigned n)
{
    uint8_t *p = tlb_w(c, lin, n);

    if (unlikely(!p))
        return mmu_write_bytes(c, lin, from, n);
    guest_copy(p, from, n);
    return true;
}

/* First half of a read-modify-write: checks that the second, mem_store, cannot fault. */
static inline __attribute__((always_inline)) bool mem_load_w(struct cpu *c, uint64_t lin,
                                                             unsigned size, uint64_t *out)
{
    const uint8_t *p = tlb_w(c, lin, size);

    if (likely(p)) {
        *out = host_load(p, size);
        return true;
    }
    return mmu_probe_write(c, lin, size) && mmu_read(c, lin, size, out);
}

/* ---- operands of ops */

/* The r/m operand's value. */
static inline bool rm_get(struct cpu *c, const struct op *op, unsigned size, uint64_t *v)
{
    uint64_t lin;

    if (!(op->flags & OPF_MEM)) {
        *v = reg_get(c, op->rm, size);
        return true;
    }
    return op_lin(c, op, size, MMU_R, &lin) && mem_load(c, lin, size, v);
}

static inline bool rm_put(struct cpu *c, const struct op *op, unsigned size, uint64_t v)
{
    uint64_t lin;

    if (!(op->flags & OPF_MEM)) {
        reg_set(c, op->rm, size, v);
        return true;
    }
    return op_lin(c, op, size, MMU_W, &lin) && mem_store(c, lin, size, v);
}

/* Read-modify-write of the r/m operand: get, change, put. `lin` carries the address between them.
 */
static inline bool rm_get_w(struct cpu *c, const struct op *op, unsigned size, uint64_t *v,
                            uint64_t *lin)
{
    if (!(op->flags & OPF_MEM)) {
        *v = reg_get(c, op->rm, size);
        *lin = 0;
        return true;
    }
    return op_lin(c, op, size, MMU_W, lin) && mem_load_w(c, *lin, size, v);
}

static inline bool rm_put_w(struct cpu *c, const struct op *op, unsigned size, uint64_t v,
                            uint64_t lin)
{
    if (!(op->flags & OPF_MEM)) {
        reg_set(c, op->rm, size, v);
        return true;
    }
    return mem_store(c, lin, size, v);
}

/* ---- stack: SS, the width of the stack pointer, nothing moved before the access is done */

static inline uint64_t stack_cut(const struct cpu *c, uint64_t sp)
{
    return addr_cut(sp, c->stack_size);
}

static inline void stack_set(struct cpu *c, uint64_t sp)
{
    reg_set(c, CPU_RSP, c->stack_size, sp);
}

static inline bool stack_store(struct cpu *c, uint64_t sp, unsigned size, uint64_t v)
{
    uint64_t lin;

    return lin_of(c, CPU_SS, stack_cut(c, sp), size, MMU_W, &lin) && mem_store(c, lin, size, v);
}

static inline bool stack_load(struct cpu *c, uint64_t sp, unsigned size, uint64_t *v)
{
    uint64_t lin;

    return lin_of(c, CPU_SS, stack_cut(c, sp), size, MMU_R, &lin) && mem_load(c, lin, size, v);
}

static inline bool stack_push(struct cpu *c, unsigned size, uint64_t v)
{
    uint64_t sp = c->r[CPU_RSP] - size;

    if (!stack_store(c, sp, size, v))
        return false;
    stack_set(c, sp);
    return true;
}

#endif
