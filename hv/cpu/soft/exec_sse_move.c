/*
 * SSE and MMX moves, shuffles, single words and masks.
 *
 * reg is the register of the ModRM byte's reg field, rm (or memory) the other operand, whatever the
 * direction; size: bytes moved; size2: alignment of memory or 0.
 */
#include <stdatomic.h>
#include <string.h>

#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/fp.h"

/* ---- XMM */

/* sub: SSE_TO_HIGH, SSE_FROM_HIGH (register source), SSE_ZERO (the rest of the destination) */
enum op_result exec_sse_load(struct cpu *c, const struct op *op)
{
    union fp_reg v = {.q = {0, 0}}, *dst = &c->fp.xmm[op->reg];
    unsigned at = op->sub & SSE_TO_HIGH ? 8 : 0;
    uint64_t lin;

    if (!sse_ready(c))
        return R_STOP;
    if (!(op->flags & OPF_MEM))
        memcpy(&v, c->fp.xmm[op->rm].b + (op->sub & SSE_FROM_HIGH ? 8 : 0), op->size);
    else if (!sse_lin(c, op, op->size, op->size2, MMU_R, &lin) ||
             !mem_load_bytes(c, lin, &v, op->size))
        return R_STOP;
    if (op->sub & SSE_ZERO)
        *dst = v;
    else
        memcpy(dst->b + at, &v, op->size);
    return R_OK;
}

/* Sixteen bytes, the frequent ones. */
enum op_result exec_sse_load16(struct cpu *c, const struct op *op)
{
    uint64_t lin;

    if (!sse_ready(c))
        return R_STOP;
    if (!(op->flags & OPF_MEM)) {
        c->fp.xmm[op->reg] = c->fp.xmm[op->rm];
        return R_OK;
    }
    if (!sse_lin(c, op, 16, op->size2, MMU_R, &lin) ||
        !mem_load_bytes(c, lin, &c->fp.xmm[op->reg], 16))
        return R_STOP;
    return R_OK;
}

enum op_result exec_sse_store16(struct cpu *c, const struct op *op)
{
    uint64_t lin;

    if (!sse_ready(c))
        return R_STOP;
    if (!(op->flags & OPF_MEM)) {
        c->fp.xmm[op->rm] = c->fp.xmm[op->reg];
        return R_OK;
    }
    if (!sse_lin(c, op, 16, op->size2, MMU_W, &lin) ||
        !mem_store_bytes(c, lin, &c->fp.xmm[op->reg], 16))
        return R_STOP;
    return R_OK;
}

/* 4 or 8 bytes to memory; sub: SSE_FROM_HIGH */
enum op_result exec_sse_store(struct cpu *c, const struct op *op)
{
    const union fp_reg *src = &c->fp.xmm[op->reg];
    uint64_t v = op->sub & SSE_FROM_HIGH ? src->q[1] : src->q[0], lin;

    if (!sse_ready(c) || !op_lin(c, op, op->size, MMU_W, &lin) || !mem_store(c, lin, op->size, v))
        return R_STOP;
    return R_OK;
}

/* MOVD, MOVQ with a general register or memory. */
enum op_result exec_sse_gpr_load(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!sse_ready(c) || !rm_get(c, op, op->size, &v))
        return R_STOP;
    c->fp.xmm[op->reg] = (union fp_reg){.q = {v, 0}};
    return R_OK;
}

enum op_result exec_sse_gpr_store(struct cpu *c, const struct op *op)
{
    if (!sse_ready(c) || !rm_put(c, op, op->size, c->fp.xmm[op->reg].q[0] & size_mask(op->size)))
        return R_STOP;
    return R_OK;
}

/* ---- MMX; sub 1: rm is an MMX register, not a general one */

enum op_result exec_mmx_load(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!mmx_ready(c))
        return R_STOP;
    if (op->sub && !(op->flags & OPF_MEM))
        v = mmx_get(c, op->rm);
    else if (!rm_get(c, op, op->size, &v))
        return R_STOP;
    mmx_begin(c);
    mmx_set(c, op->reg, v);
    return R_OK;
}

enum op_result exec_mmx_store(struct cpu *c, const struct op *op)
{
    uint64_t v = mmx_get(c, op->reg);

    if (!mmx_ready(c))
        return R_STOP;
    if (op->sub && !(op->flags & OPF_MEM)) {
        mmx_begin(c);
        mmx_set(c, op->rm, v);
        return R_OK;
    }
    if (!rm_put(c, op, op->size, v & size_mask(op->size)))
        return R_STOP;
    mmx_begin(c);
    return R_OK;
}

/* MOVQ2DQ (sub 0), MOVDQ2Q (sub 1) */
enum op_result exec_mmx_sse(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!sse_ready(c) || !mmx_ready(c))
        return R_STOP;
    v = op->sub ? c->fp.xmm[op->rm].q[0] : mmx_get(c, op->rm);
    mmx_begin(c);
    if (op->sub)
        mmx_set(c, op->reg, v);
    else
        c->fp.xmm[op->reg] = (union fp_reg){.q = {v, 0}};
    return R_OK;
}

/* ---- masks of sign bits: sub is the width of an element */

static uint64_t sign_mask(const union fp_reg *v, unsigned width, unsigned bytes)
{
    uint64_t m = 0;

    for (unsigned i = 0; i < bytes / width; i++)
        m |= (uint64_t)(v->b[(i + 1) * width - 1] >> 7) << i;
    return m;
}

enum op_result exec_sse_mask(struct cpu *c, const struct op *op)
{
    if (!sse_ready(c))
        return R_STOP;
    reg_set(c, op->reg, 4, sign_mask(&c->fp.xmm[op->rm], op->sub, 16));
    return R_OK;
}

enum op_result exec_mmx_mask(struct cpu *c, const struct op *op)
{
    union fp_reg v = {.q = {mmx_get(c, op->rm), 0}};

    if (!mmx_ready(c))
        return R_STOP;
    mmx_begin(c);
    reg_set(c, op->reg, 4, sign_mask(&v, 1, 8));
    return R_OK;
}

/* ---- shuffles: imm is the control byte */

static void shuffle_words(union fp_reg *dst, const union fp_reg *src, unsigned at, unsigned imm)
{
    for (unsigned i = 0; i < 4; i++)
        dst->w[at + i] = src->w[at + (imm >> i * 2 & 3)];
}

static union fp_reg shuffled(enum shuffle kind, const union fp_reg *d, const union fp_reg *s,
                             unsigned imm)
{
    union fp_reg r = *s;

    switch (kind) {
    case SHUFFLE_D:
        for (unsigned i = 0; i < 4; i++)
            r.d[i] = s->d[imm >> i * 2 & 3];
        break;
    case SHUFFLE_HW:
        shuffle_words(&r, s, 4, imm);
        break;
    case SHUFFLE_LW:
        shuffle_words(&r, s, 0, imm);
        break;
    case SHUFFLE_PS:
        for (unsigned i = 0; i < 4; i++)
            r.d[i] = (i < 2 ? d : s)->d[imm >> i * 2 & 3];
        break;
    default:
        r.q[0] = d->q[imm & 1];
        r.q[1] = s->q[imm >> 1 & 1];
        break;
    }
    return r;
}

enum op_result exec_sse_shuffle(struct cpu *c, const struct op *op)
{
    union fp_reg src = c->fp.xmm[op->rm & 15];
    uint64_t lin;

    if (!sse_ready(c))
        return R_STOP;
    if ((op->flags & OPF_MEM) &&
        (!sse_lin(c, op, 16, 16, MMU_R, &lin) || !mem_load_bytes(c, lin, &src, 16)))
        return R_STOP;
    c->fp.xmm[op->reg] =
        shuffled((enum shuffle)op->sub, &c->fp.xmm[op->reg], &src, (unsigned)op->imm);
    return R_OK;
}

enum op_result exec_mmx_shuffle(struct cpu *c, const struct op *op)
{
    union fp_reg src = {.q = {mmx_get(c, op->rm), 0}}, r = src;
    uint64_t lin;

    if (!mmx_ready(c))
        return R_STOP;
    if ((op->flags & OPF_MEM) &&
        (!op_lin(c, op, 8, MMU_R, &lin) || !mem_load(c, lin, 8, &src.q[0])))
        return R_STOP;
    shuffle_words(&r, &src, 0, (unsigned)op->imm);
    mmx_begin(c);
    mmx_set(c, op->reg, r.q[0]);
    return R_OK;
}

/* PSLLDQ (sub 0), PSRLDQ (sub 1): imm bytes */
enum op_result exec_sse_byte_shift(struct cpu *c, const struct op *op)
{
    unsigned n = op->imm < 16 ? (unsigned)op->imm : 16;
    union fp_reg *v = &c->fp.xmm[op->rm], r = {.q = {0, 0}};

    if (!sse_ready(c))
        return R_STOP;
    if (op->sub)
        memcpy(r.b, v->b + n, 16 - n);
    else
        memcpy(r.b + n, v->b, 16 - n);
    *v = r;
    return R_OK;
}

/* ---- single words: imm selects; sub 1: MMX */

enum op_result exec_pinsrw(struct cpu *c, const struct op *op)
{
    uint64_t v, q;
    unsigned at = (op->imm & 3) * 16;

    if (!(op->sub ? mmx_ready(c) : sse_ready(c)) || !rm_get(c, op, 2, &v))
        return R_STOP;
    if (!op->sub) {
        c->fp.xmm[op->reg].w[op->imm & 7] = (uint16_t)v;
        return R_OK;
    }
    q = mmx_get(c, op->reg) & ~(UINT64_C(0xffff) << at);
    mmx_begin(c);
    mmx_set(c, op->reg, q | v << at);
    return R_OK;
}

enum op_result exec_pextrw(struct cpu *c, const struct op *op)
{
    uint64_t q = mmx_get(c, op->rm & 7);

    if (!(op->sub ? mmx_ready(c) : sse_ready(c)))
        return R_STOP;
    if (op->sub)
        mmx_begin(c);
    reg_set(c, op->reg, 4,
            op->sub ? (uint16_t)(q >> (op->imm & 3) * 16) : c->fp.xmm[op->rm].w[op->imm & 7]);
    return R_OK;
}

/* MASKMOVDQU (sub 0), MASKMOVQ (sub 1): bytes of reg whose mask in rm has its top bit, to
 * [seg:RDI]. */
enum op_result exec_maskmov(struct cpu *c, const struct op *op)
{
    union fp_reg v = {.q = {0, 0}}, mask = {.q = {0, 0}};
    unsigned n = op->sub ? 8 : 16;
    uint64_t lin;

    if (!(op->sub ? mmx_ready(c) : sse_ready(c)))
        return R_STOP;
    if (op->sub) {
        v.q[0] = mmx_get(c, op->reg);
        mask.q[0] = mmx_get(c, op->rm);
    } else {
        v = c->fp.xmm[op->reg];
        mask = c->fp.xmm[op->rm];
    }
    if (!lin_of(c, op->seg, addr_cut(c->r[CPU_RDI], op->asz), n, MMU_W, &lin))
        return R_STOP;
    if (sign_mask(&mask, 1, n) && !mmu_probe_write(c, lin, n))
        return R_STOP;
    for (unsigned i = 0; i < n; i++)
        if ((mask.b[i] & 0x80) && !mem_store(c, lin + i, 1, v.b[i]))
            return R_STOP;
    if (op->sub)
        mmx_begin(c);
    return R_OK;
}

/* LFENCE, SFENCE, MFENCE */
enum op_result exec_fence(struct cpu *c, const struct op *op)
{
    (void)c;
    (void)op;
    atomic_thread_fence(memory_order_seq_cst);
    return R_OK;
}
