#include "hv/cpu/soft/decode.h"

#include <pthread.h>
#include <string.h>

#include "hv/cpu/soft/decode_impl.h"

/* ---- decoders, one a mode; read only once made */

static ZydisDecoder decoders[3];

static void decoders_init(void)
{
    static const ZydisDecoderMode off[] = {ZYDIS_DECODER_MODE_TZCNT, ZYDIS_DECODER_MODE_LZCNT,
                                           ZYDIS_DECODER_MODE_MPX, ZYDIS_DECODER_MODE_CET,
                                           ZYDIS_DECODER_MODE_CLDEMOTE};

    ZydisDecoderInit(&decoders[MODE_16], ZYDIS_MACHINE_MODE_LEGACY_16, ZYDIS_STACK_WIDTH_16);
    ZydisDecoderInit(&decoders[MODE_32], ZYDIS_MACHINE_MODE_LEGACY_32, ZYDIS_STACK_WIDTH_32);
    ZydisDecoderInit(&decoders[MODE_64], ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
    for (unsigned m = 0; m < 3; m++)
        for (unsigned k = 0; k < sizeof off / sizeof off[0]; k++)
            ZydisDecoderEnableMode(&decoders[m], off[k], ZYAN_FALSE);
}

/* ---- operands */

uint8_t reg_number(ZydisRegister r)
{
    int id = ZydisRegisterGetId(r);

    if (ZydisRegisterGetClass(r) != ZYDIS_REGCLASS_GPR8)
        return (uint8_t)id;
    if (id < 4)
        return (uint8_t)id;
    return (uint8_t)(id < 8 ? id - 4 + (int)REG_HIGH : id - 4); /* AH ... BH, then SPL ... */
}

static uint8_t seg_number(ZydisRegister r)
{
    return r == ZYDIS_REGISTER_NONE ? CPU_DS : (uint8_t)ZydisRegisterGetId(r);
}

bool is_reg_class(const ZydisDecodedOperand *o, ZydisRegisterClass class)
{
    return o->type == ZYDIS_OPERAND_TYPE_REGISTER && ZydisRegisterGetClass(o->reg.value) == class;
}

void take_mem(const ZydisDecodedOperand *o, struct op *op)
{
    op->flags |= OPF_MEM;
    op->seg = seg_number(o->mem.segment);
    op->base = op->index = REG_ZERO;
    if (o->mem.base == ZYDIS_REGISTER_RIP || o->mem.base == ZYDIS_REGISTER_EIP)
        op->base = REG_NEXT;
    else if (o->mem.base != ZYDIS_REGISTER_NONE)
        op->base = reg_number(o->mem.base);
    if (o->mem.index != ZYDIS_REGISTER_NONE) {
        op->index = reg_number(o->mem.index);
        op->scale = o->mem.scale ? (uint8_t)__builtin_ctz(o->mem.scale) : 0;
    }
    op->disp = (int32_t)o->mem.disp.value;
    if (op->asz == 8)
        op->flags |= OPF_FLAT;
}

void take_rm(const ZydisDecodedOperand *o, struct op *op)
{
    if (o->type == ZYDIS_OPERAND_TYPE_MEMORY)
        take_mem(o, op);
    else if (o->type == ZYDIS_OPERAND_TYPE_REGISTER)
        op->rm = reg_number(o->reg.value);
}

uint64_t imm_of(const ZydisDecodedOperand *o)
{
    return o->imm.is_signed ? (uint64_t)o->imm.value.s : o->imm.value.u;
}

/* A register or an immediate as source. */
static void take_source(const ZydisDecodedOperand *o, struct op *op)
{
    if (o->type == ZYDIS_OPERAND_TYPE_IMMEDIATE) {
        op->flags |= OPF_IMM;
        op->imm = imm_of(o);
    } else if (o->type == ZYDIS_OPERAND_TYPE_REGISTER) {
        op->reg = reg_number(o->reg.value);
    }
}

uint8_t bytes_of(const ZydisDecodedOperand *o)
{
    return (uint8_t)(o->size / 8);
}

static unsigned explicit_count(const struct insn *n)
{
    unsigned k = 0;

    for (unsigned i = 0; i < n->i.operand_count_visible; i++)
        k += n->o[i].visibility == ZYDIS_OPERAND_VISIBILITY_EXPLICIT;
    return k;
}

/* ---- one function per how */

static enum form two_operands(const struct insn *n, struct op *op)
{
    const ZydisDecodedOperand *d = &n->o[0], *s = &n->o[1];

    op->size = bytes_of(d);
    if (s->type == ZYDIS_OPERAND_TYPE_MEMORY) {
        op->reg = reg_number(d->reg.value);
        take_mem(s, op);
        return FORM_RM;
    }
    take_rm(d, op);
    take_source(s, op);
    if (d->type == ZYDIS_OPERAND_TYPE_MEMORY)
        return s->type == ZYDIS_OPERAND_TYPE_IMMEDIATE ? FORM_MI : FORM_MR;
    return s->type == ZYDIS_OPERAND_TYPE_IMMEDIATE ? FORM_RI : FORM_RR;
}

static void how_mov(const struct insn *n, struct op *op)
{
    const ZydisDecodedOperand *d = &n->o[0], *s = &n->o[1];
    bool to = is_reg_class(d, ZYDIS_REGCLASS_SEGMENT);

    if (to || is_reg_class(s, ZYDIS_REGCLASS_SEGMENT)) {
        op->sub = seg_number(to ? d->reg.value : s->reg.value);
        op->size = to ? 2 : bytes_of(d);
        take_rm(to ? s : d, op);
        op->fn = to ? exec_mov_to_seg : exec_mov_from_seg;
    } else if (is_reg_class(d, ZYDIS_REGCLASS_CONTROL) || is_reg_class(d, ZYDIS_REGCLASS_DEBUG)) {
        op->sub = (uint8_t)ZydisRegisterGetId(d->reg.value);
        op->rm = reg_number(s->reg.value);
        op->fn = is_reg_class(d, ZYDIS_REGCLASS_CONTROL) ? exec_mov_to_cr : exec_mov_to_dr;
    } else if (is_reg_class(s, ZYDIS_REGCLASS_CONTROL) || is_reg_class(s, ZYDIS_REGCLASS_DEBUG)) {
        op->sub = (uint8_t)ZydisRegisterGetId(s->reg.value);
        op->rm = reg_number(d->reg.value);
        op->fn = is_reg_class(s, ZYDIS_REGCLASS_CONTROL) ? exec_mov_from_cr : exec_mov_from_dr;
    } else {
        enum form form = two_operands(n, op);
        bool store = d->type == ZYDIS_OPERAND_TYPE_MEMORY;
        const ZydisDecodedOperand *m = store ? d : s;

        op->fn = exec_mov(form, op->size);
        if (n->i.opcode_map == ZYDIS_OPCODE_MAP_DEFAULT && (n->i.opcode & 0xfc) == 0xa0) {
            op->imm = (uint64_t)m->mem.disp.value;
            op->sub = store;
            op->fn = exec_mov_moffs;
        }
    }
}

static void how_stack(const struct insn *n, struct op *op, bool pop)
{
    const ZydisDecodedOperand *o = &n->o[0];

    if (is_reg_class(o, ZYDIS_REGCLASS_SEGMENT)) {
        op->sub = seg_number(o->reg.value);
        op->fn = pop ? exec_pop_seg : exec_push_seg;
        return;
    }
    if (o->type == ZYDIS_OPERAND_TYPE_IMMEDIATE)
        take_source(o, op);
    else
        take_rm(o, op);
}

static void how_branch(const struct insn *n, struct op *op)
{
    const ZydisDecodedOperand *o = &n->o[0];
    bool call = n->i.mnemonic == ZYDIS_MNEMONIC_CALL;
    bool far = n->i.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR;

    if (o->type == ZYDIS_OPERAND_TYPE_POINTER) {
        op->imm = o->ptr.offset;
        op->disp = o->ptr.segment;
        op->fn = exec_far_imm;
    } else if (o->type == ZYDIS_OPERAND_TYPE_IMMEDIATE) {
        op->imm = imm_of(o);
    } else {
        take_rm(o, op);
        op->fn = far ? exec_far_mem : call ? exec_call_rm : exec_jmp_rm;
    }
}

static void how_port(const struct insn *n, struct op *op, bool out)
{
    const ZydisDecodedOperand *port = &n->o[out ? 0 : 1], *data = &n->o[out ? 1 : 0];

    op->size = bytes_of(data);
    if (port->type == ZYDIS_OPERAND_TYPE_IMMEDIATE) {
        op->flags |= OPF_IMM;
        op->imm = imm_of(port) & 0xff;
    }
}

/* The segment of a string source or of XLAT: DS, or what a prefix says. The last REP prefix counts.
 */
static void how_string(const struct insn *n, struct op *op)
{
    op->seg = CPU_DS;
    for (unsigned i = 0; i < n->i.raw.prefix_count; i++) {
        switch (n->i.raw.prefixes[i].value) {
        case 0xf3:
            op->flags = OPF_REP;
            break;
        case 0xf2:
            op->flags = OPF_REPNE;
            break;
        default:
            break;
        }
    }
    for (unsigned i = 0; i < n->i.operand_count; i++) {
        const ZydisDecodedOperand *o = &n->o[i];

        if (o->type != ZYDIS_OPERAND_TYPE_MEMORY || o->mem.base == ZYDIS_REGISTER_NONE)
            continue;
        if (reg_number(o->mem.base) == CPU_RSI || reg_number(o->mem.base) == CPU_RBX)
            op->seg = seg_number(o->mem.segment);
    }
}

static void how_imul(const struct insn *n, struct op *op)
{
    unsigned k = explicit_count(n);

    op->size = bytes_of(&n->o[0]);
    if (k == 1) {
        take_rm(&n->o[0], op);
        op->fn = exec_imul1;
        return;
    }
    op->reg = reg_number(n->o[0].reg.value);
    take_rm(&n->o[1], op);
    if (k == 3) {
        op->flags |= OPF_IMM;
        op->imm = imm_of(&n->o[2]);
    }
}

static void take_count(const ZydisDecodedOperand *o, struct op *op)
{
    if (o->type == ZYDIS_OPERAND_TYPE_IMMEDIATE) {
        op->flags |= OPF_IMM;
        op->imm = imm_of(o);
    }
}

static void take_operands(const struct insn *n, const struct rule *r, struct op *op)
{
    switch (r->how) {
    case HOW_ALU:
        op->fn = exec_alu((enum alu)r->sub, two_operands(n, op), op->size);
        break;
    case HOW_MOV:
        how_mov(n, op);
        break;
    case HOW_RM:
        if (!r->size && n->o[0].size && n->o[0].size <= 64 && n->o[0].size != 48)
            op->size = bytes_of(&n->o[0]);
        take_rm(&n->o[0], op);
        break;
    case HOW_RM_REG:
        op->size = bytes_of(&n->o[0]);
        take_rm(&n->o[0], op);
        take_source(&n->o[1], op);
        break;
    case HOW_REG_RM:
    case HOW_FARPTR:
        op->size = bytes_of(&n->o[0]);
        op->size2 = bytes_of(&n->o[1]);
        op->reg = reg_number(n->o[0].reg.value);
        take_rm(&n->o[1], op);
        break;
    case HOW_MOVX:
    case HOW_LEA:
        op->size = bytes_of(&n->o[0]);
        op->reg = reg_number(n->o[0].reg.value);
        take_rm(&n->o[1], op);
        op->fn = r->how == HOW_LEA ? exec_lea(op->size)
                                   : exec_movx(op->size, bytes_of(&n->o[1]),
                                               (op->flags & OPF_MEM) != 0, r->sub != 0);
        break;
    case HOW_JCC:
        op->imm = imm_of(&n->o[0]);
        op->fn = exec_jcc(r->sub);
        break;
    case HOW_RM_REG_MOV:
        op->fn = exec_mov(two_operands(n, op), op->size);
        break;
    case HOW_SHIFT:
        op->size = bytes_of(&n->o[0]);
        take_rm(&n->o[0], op);
        take_count(&n->o[1], op);
        op->fn = exec_shift(op);
        break;
    case HOW_SHIFT2:
        op->size = bytes_of(&n->o[0]);
        take_rm(&n->o[0], op);
        op->reg = reg_number(n->o[1].reg.value);
        take_count(&n->o[2], op);
        break;
    case HOW_IMUL:
        how_imul(n, op);
        break;
    case HOW_STACK:
        how_stack(n, op, r->sub != 0);
        break;
    case HOW_BRANCH:
        how_branch(n, op);
        break;
    case HOW_IMM:
        if (n->i.operand_count_visible && n->o[0].type == ZYDIS_OPERAND_TYPE_IMMEDIATE)
            op->imm = imm_of(&n->o[0]);
        break;
    case HOW_ENTER:
        op->imm = imm_of(&n->o[0]) & 0xffff;
        op->sub = (uint8_t)imm_of(&n->o[1]);
        break;
    case HOW_PORT:
        how_port(n, op, r->sub != 0);
        break;
    case HOW_STRING:
    case HOW_XLAT:
        how_string(n, op);
        break;
    default:
        if (op->fn == exec_int_n) /* INT3, INT1 */
            op->imm = r->sub;
        break;
    }
}

/* An instruction whose memory operand changes in one piece: LOCK, and XCHG without it. */
static void take_lock(const struct insn *n, struct op *op)
{
    static const struct {
        op_fn fn;
        uint8_t kind;
    } kinds[] = {{exec_inc_dec, LOCKED_INC_DEC}, {exec_neg, LOCKED_NEG},   {exec_not, LOCKED_NOT},
                 {exec_bt, LOCKED_BT},           {exec_xchg, LOCKED_XCHG}, {exec_xadd, LOCKED_XADD},
                 {exec_cmpxchg, LOCKED_CMPXCHG}};
    bool lock = (n->i.attributes & ZYDIS_ATTRIB_HAS_LOCK) != 0;

    if (!(op->flags & OPF_MEM) || !(lock || op->fn == exec_xchg) || op->fn == exec_cmpxchg_pair)
        return;
    op->size2 = LOCKED_ALU;
    for (unsigned i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (op->fn == kinds[i].fn)
            op->size2 = kinds[i].kind;
    op->fn = exec_locked;
}

static bool is_far_return(const struct insn *n)
{
    return n->i.mnemonic == ZYDIS_MNEMONIC_RET && n->i.meta.branch_type == ZYDIS_BRANCH_TYPE_FAR;
}

/* Hints that every processor takes as no operation. */
static bool is_hint(const struct insn *n)
{
    return n->i.meta.category == ZYDIS_CATEGORY_PREFETCH ||
           n->i.meta.category == ZYDIS_CATEGORY_NOP || n->i.meta.category == ZYDIS_CATEGORY_WIDENOP;
}

static const struct rule *rule_of(const struct insn *n)
{
    const struct rule *r = &decode_rules[n->i.mnemonic];

    if (n->i.operand_count &&
        (is_reg_class(&n->o[0], ZYDIS_REGCLASS_XMM) ||
         (n->i.operand_count > 1 && is_reg_class(&n->o[1], ZYDIS_REGCLASS_XMM)))) {
        if (n->i.mnemonic == ZYDIS_MNEMONIC_CMPSD)
            return &decode_cmpsd;
        if (n->i.mnemonic == ZYDIS_MNEMONIC_MOVSD)
            return &decode_movsd;
    }
    if (r->how >= HOW_FP && r->how < HOW_FXSAVE && n->i.opcode_map != ZYDIS_OPCODE_MAP_0F)
        return &decode_rules[ZYDIS_MNEMONIC_INVALID]; /* PEXTRW of SSE4.1 */
    return r;
}

static enum decoded translate(const struct insn *n, struct op *op)
{
    const struct rule *r = rule_of(n);

    op->len = n->i.length;
    op->asz = (uint8_t)(n->i.address_width / 8);
    op->size = r->size ? r->size : (uint8_t)(n->i.operand_width / 8);
    op->sub = r->sub;
    op->fn = r->fn;
    op->base = op->index = REG_ZERO;
    if (r->how == HOW_NONE) {
        op->fn = is_hint(n) ? exec_nop : exec_ud;
        return is_hint(n) ? DECODED : DECODED_END;
    }
    if (r->how >= HOW_FP)
        decode_fp(n, r, op);
    else
        take_operands(n, r, op);
    take_lock(n, op);
    if (is_far_return(n))
        op->fn = exec_ret_far;
    return r->end ? DECODED_END : DECODED;
}

enum decoded decode_op(enum cpu_mode mode, const uint8_t *bytes, unsigned len, struct op *op)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    ZydisDecoderContext ctx;
    struct insn n;
    ZyanStatus st;

    pthread_once(&once, decoders_init);
    memset(op, 0, sizeof *op);
    st = ZydisDecoderDecodeInstruction(&decoders[mode], &ctx, bytes, len, &n.i);
    if (ZYAN_SUCCESS(st))
        st = ZydisDecoderDecodeOperands(&decoders[mode], &ctx, &n.i, n.o, n.i.operand_count);
    if (ZYAN_SUCCESS(st))
        return translate(&n, op);
    if (st == ZYDIS_STATUS_NO_MORE_DATA && len < ZYDIS_MAX_INSTRUCTION_LENGTH)
        return DECODED_SHORT;
    op->len = 1;
    op->fn = st == ZYDIS_STATUS_INSTRUCTION_TOO_LONG || st == ZYDIS_STATUS_NO_MORE_DATA ? exec_gp
                                                                                        : exec_ud;
    return DECODED_END;
}
