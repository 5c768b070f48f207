/* Control and state of the floating-point units: MXCSR, FXSAVE, EMMS, the x87 environment. */
#include <string.h>

#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/fp.h"

enum op_result exec_ldmxcsr(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!sse_ready(c) || !rm_get(c, op, 4, &v))
        return R_STOP;
    if (!fp_mxcsr_valid((uint32_t)v))
        return op_raise(c, VEC_GP, 0);
    c->fp.mxcsr = (uint32_t)v;
    return R_OK;
}

enum op_result exec_stmxcsr(struct cpu *c, const struct op *op)
{
    return sse_ready(c) && rm_put(c, op, 4, c->fp.mxcsr) ? R_OK : R_STOP;
}

enum op_result exec_emms(struct cpu *c, const struct op *op)
{
    (void)op;
    if (!mmx_ready(c))
        return R_STOP;
    x87_set_top(c, 0);
    c->fp.ftw = 0;
    return R_OK;
}

/* ---- FXSAVE */

#define FX_XMM  160u /* offset of XMM0 */
#define FX_FULL 416u /* bytes that are written; the rest is the program's */
#define FX_HALF 288u /* outside 64-bit code: XMM0 to XMM7 */

static bool fx_ready(struct cpu *c)
{
    if (c->cr0 & (CR0_EM | CR0_TS))
        return cpu_raise(c, VEC_NM, 0);
    return true;
}

/* size 8: the form with 64-bit pointers. The selectors of the other form are zero: CPUID says that
 * they are not kept. */
enum op_result exec_fxsave(struct cpu *c, const struct op *op)
{
    unsigned n = c->mode == MODE_64 ? FX_FULL : FX_HALF;
    struct fp_state s;
    uint64_t lin;

    if (!fx_ready(c) || !sse_lin(c, op, sizeof s, 16, MMU_W, &lin))
        return R_STOP;
    memcpy(&s, &c->fp, sizeof s);
    s.reserved = 0;
    s.mxcsr_mask = FP_MXCSR_MASK;
    if (op->size != 8) {
        s.fip &= UINT32_MAX;
        s.fdp &= UINT32_MAX;
    }
    return mmu_probe_write(c, lin, sizeof s) && mem_store_bytes(c, lin, &s, n) ? R_OK : R_STOP;
}

enum op_result exec_fxrstor(struct cpu *c, const struct op *op)
{
    unsigned n = c->mode == MODE_64 ? FX_FULL : FX_HALF;
    struct fp_state s;
    uint64_t lin;

    if (!fx_ready(c) || !sse_lin(c, op, sizeof s, 16, MMU_R, &lin) ||
        !mem_load_bytes(c, lin, &s, sizeof s))
        return R_STOP;
    if (!fp_mxcsr_valid(s.mxcsr))
        return op_raise(c, VEC_GP, 0);
    if (op->size != 8) {
        s.fip &= UINT32_MAX;
        s.fdp &= UINT32_MAX;
    }
    s.mxcsr_mask = FP_MXCSR_MASK;
    s.fop &= 0x7ff;
    memcpy(&c->fp, &s, n);
    x87_settle(c);
    return R_OK;
}
