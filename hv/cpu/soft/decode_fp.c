/* Operands of x87, MMX and SSE instructions. */
#include "hv/cpu/soft/decode_impl.h"

static bool is_mem(const ZydisDecodedOperand *o)
{
    return o->type == ZYDIS_OPERAND_TYPE_MEMORY;
}

static bool is_mmx(const ZydisDecodedOperand *o)
{
    return is_reg_class(o, ZYDIS_REGCLASS_MMX);
}

static bool is_xmm(const ZydisDecodedOperand *o)
{
    return is_reg_class(o, ZYDIS_REGCLASS_XMM);
}

static void take_reg(const ZydisDecodedOperand *o, struct op *op)
{
    op->reg = reg_number(o->reg.value);
}

static void take_kernel(fp_kernel k, struct op *op)
{
    op->imm = (uintptr_t)k;
}

/* SSE wants its 16-byte operands aligned. */
static void take_sse(const struct insn *n, const struct rule *r, unsigned kernel, struct op *op)
{
    take_reg(&n->o[0], op);
    take_rm(&n->o[1], op);
    op->size2 = r->size == 16 ? 16 : 0;
    take_kernel(r->kernels[kernel], op);
}

static void sse_both(const struct insn *n, const struct rule *r, struct op *op)
{
    bool mmx = is_mmx(&n->o[0]);

    if (n->o[1].type == ZYDIS_OPERAND_TYPE_IMMEDIATE) {
        op->fn = exec_sse_shift;
        op->sub = mmx;
        take_rm(&n->o[0], op);
        op->disp = (int32_t)(imm_of(&n->o[1]) & 0xff);
        take_kernel(r->kernels[mmx], op);
        return;
    }
    take_sse(n, r, mmx, op);
    if (!mmx)
        return;
    op->fn = exec_mmx;
    op->size = r->sub ? 4 : 8;
    op->size2 = 0;
}

static void sse_move(const struct insn *n, const struct rule *r, struct op *op)
{
    bool store = is_mem(&n->o[0]);

    op->fn = store ? exec_sse_store16 : exec_sse_load16;
    op->size2 = r->sub ? 16 : 0;
    take_reg(&n->o[store ? 1 : 0], op);
    take_rm(&n->o[store ? 0 : 1], op);
}

/* Of a register source MOVSS and MOVSD change their part alone. */
static void sse_part(const struct insn *n, const struct rule *r, struct op *op)
{
    bool store = is_mem(&n->o[0]);

    op->fn = store ? exec_sse_store : exec_sse_load;
    if (store && (r->sub & SSE_TO_HIGH))
        op->sub = SSE_FROM_HIGH;
    if (!store && !is_mem(&n->o[1]))
        op->sub &= (uint8_t)~SSE_ZERO;
    take_reg(&n->o[store ? 1 : 0], op);
    take_rm(&n->o[store ? 0 : 1], op);
}

static void sse_movd(const struct insn *n, struct op *op)
{
    const ZydisDecodedOperand *d = &n->o[0], *s = &n->o[1];

    if (is_mmx(d)) {
        op->fn = exec_mmx_load;
        op->sub = is_mmx(s) || is_mem(s);
        take_reg(d, op);
        take_rm(s, op);
    } else if (is_xmm(d)) {
        op->fn = is_xmm(s) ? exec_sse_load : exec_sse_gpr_load;
        op->sub = SSE_ZERO;
        take_reg(d, op);
        take_rm(s, op);
    } else {
        op->fn = is_mmx(s) ? exec_mmx_store : exec_sse_gpr_store;
        op->sub = 0;
        take_reg(s, op);
        take_rm(d, op);
    }
}

static void sse_word(const struct insn *n, struct op *op)
{
    unsigned count = n->i.operand_count_visible;

    op->imm = imm_of(&n->o[count - 1]) & 0xff;
    if (count == 2) { /* PSLLDQ */
        take_rm(&n->o[0], op);
        return;
    }
    op->sub = is_mmx(&n->o[0]) || is_mmx(&n->o[1]);
    take_reg(&n->o[0], op);
    take_rm(&n->o[1], op);
}

static void x87(const struct insn *n, struct op *op)
{
    uint8_t modrm =
        (uint8_t)(n->i.raw.modrm.mod << 6 | n->i.raw.modrm.reg << 3 | n->i.raw.modrm.rm);

    op->sub = n->i.opcode & 7;
    op->imm = modrm;
    for (unsigned i = 0; modrm < 0xc0 && i < n->i.operand_count; i++) {
        unsigned reg = modrm >> 3 & 7;

        if (!is_mem(&n->o[i]))
            continue;
        take_mem(&n->o[i], op);
        op->size = bytes_of(&n->o[i]);
        if ((op->sub & 1) && (reg == 2 || reg == 3 || reg == 6 || reg == 7))
            op->fn = exec_x87_store;
    }
}

void decode_fp(const struct insn *n, const struct rule *r, struct op *op)
{
    switch (r->how) {
    case HOW_SSE:
        take_sse(n, r, 0, op);
        break;
    case HOW_SSE_BOTH:
        sse_both(n, r, op);
        break;
    case HOW_SSE_CMP:
        take_sse(n, r, imm_of(&n->o[2]) & 7, op);
        break;
    case HOW_SSE_TO_GPR:
        op->sub = bytes_of(&n->o[0]);
        take_sse(n, r, op->sub == 8, op);
        break;
    case HOW_SSE_FROM_GPR:
        op->size = bytes_of(&n->o[1]);
        take_sse(n, r, op->size == 8, op);
        break;
    case HOW_SSE_MOVE:
        sse_move(n, r, op);
        break;
    case HOW_SSE_PART:
        sse_part(n, r, op);
        break;
    case HOW_SSE_MOVD:
        sse_movd(n, op);
        break;
    case HOW_SSE_MASK:
        op->fn = is_mmx(&n->o[1]) ? exec_mmx_mask : exec_sse_mask;
        take_reg(&n->o[0], op);
        take_rm(&n->o[1], op);
        break;
    case HOW_SSE_SHUFFLE:
    case HOW_SSE_WORD:
        if (r->how == HOW_SSE_WORD) {
            sse_word(n, op);
            break;
        }
        op->imm = imm_of(&n->o[2]) & 0xff;
        take_reg(&n->o[0], op);
        take_rm(&n->o[1], op);
        break;
    case HOW_MMX_SSE:
        take_reg(&n->o[0], op);
        take_rm(&n->o[1], op);
        break;
    case HOW_MASKMOV:
        op->seg = CPU_DS;
        for (unsigned i = 0; i < n->i.operand_count; i++)
            if (is_mem(&n->o[i]))
                op->seg = (uint8_t)ZydisRegisterGetId(n->o[i].mem.segment);
        op->reg = reg_number(n->o[n->i.operand_count_visible - 2].reg.value);
        op->rm = reg_number(n->o[n->i.operand_count_visible - 1].reg.value);
        break;
    case HOW_FXSAVE:
        take_rm(&n->o[0], op);
        break;
    case HOW_X87:
        x87(n, op);
        break;
    default: /* HOW_X87_ENV */
        op->size2 = n->i.operand_width == 16 ? 2 : 4;
        take_rm(&n->o[0], op);
        break;
    }
}
