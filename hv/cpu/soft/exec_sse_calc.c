/*
 * SSE and MMX instructions that compute. The kernel (fp_host.h) is in op->imm; size: bytes of a
 * memory source; size2: its alignment or 0; reg: destination; rm: source.
 */
#include <string.h>

#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/fp.h"

static fp_kernel kernel_of(const struct op *op)
{
    return (fp_kernel)(uintptr_t)op->imm;
}

/* The source, in a buffer when it is memory. */
static const union fp_reg *sse_source(struct cpu *c, const struct op *op, union fp_reg *buf)
{
    uint64_t lin;

    if (!(op->flags & OPF_MEM))
        return &c->fp.xmm[op->rm];
    if (op->size < 16)
        memset(buf, 0, sizeof *buf);
    if (!sse_lin(c, op, op->size, op->size2, MMU_R, &lin) || !mem_load_bytes(c, lin, buf, op->size))
        return NULL;
    return buf;
}

enum op_result exec_sse(struct cpu *c, const struct op *op)
{
    const union fp_reg *src;
    union fp_reg buf;

    if (!sse_ready(c) || !(src = sse_source(c, op, &buf)))
        return R_STOP;
    kernel_of(op)(&c->fp.xmm[op->reg], src);
    return R_OK;
}

static bool mmx_source(struct cpu *c, const struct op *op, union fp_reg *v)
{
    uint64_t lin;

    v->q[0] = v->q[1] = 0;
    if (op->flags & OPF_MEM)
        return op_lin(c, op, op->size, MMU_R, &lin) && mem_load(c, lin, op->size, &v->q[0]);
    v->q[0] = mmx_get(c, op->rm);
    return true;
}

enum op_result exec_mmx(struct cpu *c, const struct op *op)
{
    union fp_reg dst = {.q = {mmx_get(c, op->reg), 0}}, src;

    if (!mmx_ready(c) || !mmx_source(c, op, &src))
        return R_STOP;
    kernel_of(op)(&dst, &src);
    mmx_begin(c);
    mmx_set(c, op->reg, dst.q[0]);
    return R_OK;
}

/* Shifts by an immediate: op->disp is the count, sub 1: MMX. */
enum op_result exec_sse_shift(struct cpu *c, const struct op *op)
{
    union fp_reg count = {.q = {(uint8_t)op->disp, 0}}, v = {.q = {0, 0}};

    if (!op->sub) {
        if (!sse_ready(c))
            return R_STOP;
        kernel_of(op)(&c->fp.xmm[op->rm], &count);
        return R_OK;
    }
    if (!mmx_ready(c))
        return R_STOP;
    v.q[0] = mmx_get(c, op->rm);
    kernel_of(op)(&v, &count);
    mmx_begin(c);
    mmx_set(c, op->rm, v.q[0]);
    return R_OK;
}

/* ---- with MXCSR */

struct calc_op {
    fp_kernel fn;
    unsigned n, in, out; /* n results that may not fit their exponent; widths of elements */
    bool sum;
};

static bool is_tiny(const union fp_reg *v, unsigned width)
{
    if (width == 4)
        return (v->d[0] & 0x7fffffff) && !(v->d[0] & 0x7f800000);
    return (v->q[0] << 1) && !(v->q[0] & UINT64_C(0x7ff0000000000000));
}

static union fp_reg spread(const union fp_reg *v, unsigned i, unsigned width)
{
    if (width == 4)
        return (union fp_reg){.d = {v->d[i], v->d[i], v->d[i], v->d[i]}};
    return (union fp_reg){.q = {v->q[i], v->q[i]}};
}

/*
 * An operand with the same digits, far from both ends of the exponents: what is inexact then is so
 * by its digits alone. Sums overflow between operands of like exponents, which go down together.
 */
static uint64_t moved(uint64_t v, unsigned width, bool sum)
{
    unsigned digits = width == 4 ? 23 : 52, exps = width == 4 ? 0xff : 0x7ff, e;
    uint64_t one = UINT64_C(1) << digits, m = v & (one - 1);
    uint64_t sign = v & one << (width == 4 ? 8 : 11);

    e = (unsigned)(v >> digits) & exps;
    if (e == exps || (!e && !m))
        return v;
    if (sum)
        return sign | (uint64_t)(e > 4 ? e - 4 : e) << digits | m;
    while (!e && !(m & one))
        m <<= 1;
    return sign | (uint64_t)(exps / 2) << digits | (m & (one - 1));
}

static union fp_reg moved_spread(const union fp_reg *v, unsigned width, bool sum)
{
    union fp_reg r = {.q = {moved(width == 4 ? v->d[0] : v->q[0], width, sum), 0}};

    return spread(&r, 0, width);
}

/* Flags of element `i` alone, when overflow and underflow in `open` are not masked: a tiny result
 * counts also when it is exact, and what does not fit is inexact only by its digits. */
static uint32_t element_flags(const struct calc_op *k, const union fp_reg *dst,
                              const union fp_reg *src, unsigned i, uint32_t mx, uint32_t open)
{
    union fp_reg a = spread(dst, i, k->in), b = spread(src, i, k->in), r = a;
    uint32_t flags = fp_host_calc(k->fn, &r, &b, mx);

    if ((open & FP_UE) && is_tiny(&r, k->out))
        flags |= FP_UE;
    if (!(flags & open & (FP_OE | FP_UE)))
        return flags;
    r = moved_spread(&a, k->in, k->sum);
    b = moved_spread(&b, k->in, k->sum);
    return (flags & ~FP_PE) | (fp_host_calc(k->fn, &r, &b, mx) & FP_PE);
}

/*
 * Some exception is unmasked. Those that are found before computing (invalid, denormal, zero
 * divide) keep the others from being looked for. FTZ does not count beside unmasked underflow.
 */
static bool calc_unmasked(struct cpu *c, const struct calc_op *k, union fp_reg *dst,
                          const union fp_reg *src)
{
    uint32_t mx = c->fp.mxcsr, open = ~(mx >> 7) & FP_MXCSR_FLAGS, flags = 0;
    union fp_reg old = *dst;

    if (open & FP_UE)
        mx &= ~FP_FTZ;
    flags = fp_host_calc(k->fn, dst, src, mx);
    if (k->n && (open & (FP_OE | FP_UE))) {
        flags = 0;
        for (unsigned i = 0; i < k->n; i++)
            flags |= element_flags(k, &old, src, i, mx, open);
    }
    if (flags & open & (FP_IE | FP_DE | FP_ZE))
        flags &= FP_IE | FP_DE | FP_ZE;
    c->fp.mxcsr |= flags;
    return !(flags & open) || cpu_raise(c, c->cr4 & CR4_XMM ? VEC_XM : VEC_UD, 0);
}

static bool calc(struct cpu *c, const struct calc_op *k, union fp_reg *dst, const union fp_reg *src)
{
    if (unlikely((c->fp.mxcsr >> 7 & FP_MXCSR_FLAGS) != FP_MXCSR_FLAGS))
        return calc_unmasked(c, k, dst, src);
    c->fp.mxcsr |= fp_host_calc(k->fn, dst, src, c->fp.mxcsr);
    return true;
}

/* Kernels whose results fit in any case. */
static bool calc_plain(struct cpu *c, const struct op *op, union fp_reg *dst,
                       const union fp_reg *src)
{
    struct calc_op k = {.fn = kernel_of(op)};

    return calc(c, &k, dst, src);
}

/* sub: CALC_* */
enum op_result exec_sse_calc(struct cpu *c, const struct op *op)
{
    struct calc_op k = {kernel_of(op), CALC_N(op->sub), CALC_IN(op->sub), CALC_OUT(op->sub),
                        (op->sub & CALC_SUM) != 0};
    const union fp_reg *src;
    union fp_reg buf, dst;

    if (!sse_ready(c) || !(src = sse_source(c, op, &buf)))
        return R_STOP;
    dst = c->fp.xmm[op->reg];
    if (!calc(c, &k, &dst, src))
        return R_STOP;
    c->fp.xmm[op->reg] = dst;
    return R_OK;
}

/* sub: bytes of the integer */
enum op_result exec_sse_to_gpr(struct cpu *c, const struct op *op)
{
    const union fp_reg *src;
    union fp_reg buf, dst = {.q = {0, 0}};

    if (!sse_ready(c) || !(src = sse_source(c, op, &buf)))
        return R_STOP;
    if (!calc_plain(c, op, &dst, src))
        return R_STOP;
    reg_set(c, op->reg, op->sub, dst.q[0]);
    return R_OK;
}

enum op_result exec_sse_from_gpr(struct cpu *c, const struct op *op)
{
    union fp_reg src = {.q = {0, 0}}, dst;

    if (!sse_ready(c) || !rm_get(c, op, op->size, &src.q[0]))
        return R_STOP;
    dst = c->fp.xmm[op->reg];
    if (!calc_plain(c, op, &dst, &src))
        return R_STOP;
    c->fp.xmm[op->reg] = dst;
    return R_OK;
}

/* COMISS and its kin: ZF PF CF by the order, the others zero. */
enum op_result exec_sse_flags(struct cpu *c, const struct op *op)
{
    const union fp_reg *src;
    union fp_reg buf, dst;

    if (!sse_ready(c) || !(src = sse_source(c, op, &buf)))
        return R_STOP;
    dst = c->fp.xmm[op->reg];
    if (!calc_plain(c, op, &dst, src))
        return R_STOP;
    fl_put_arith(c, (uint32_t)dst.q[0]);
    return R_OK;
}

enum op_result exec_sse_to_mmx(struct cpu *c, const struct op *op)
{
    const union fp_reg *src;
    union fp_reg buf, dst = {.q = {0, 0}};

    if (!sse_ready(c) || !mmx_ready(c) || !(src = sse_source(c, op, &buf)))
        return R_STOP;
    mmx_begin(c); /* also when the conversion faults */
    if (!calc_plain(c, op, &dst, src))
        return R_STOP;
    mmx_set(c, op->reg, dst.q[0]);
    return R_OK;
}

/* With memory as its source x87 is left alone. */
enum op_result exec_sse_from_mmx(struct cpu *c, const struct op *op)
{
    bool mmx = !(op->flags & OPF_MEM);
    union fp_reg src, dst;

    if (!sse_ready(c) || (mmx && !mmx_ready(c)) || !mmx_source(c, op, &src))
        return R_STOP;
    if (mmx)
        mmx_begin(c);
    dst = c->fp.xmm[op->reg];
    if (!calc_plain(c, op, &dst, &src))
        return R_STOP;
    c->fp.xmm[op->reg] = dst;
    return R_OK;
}
