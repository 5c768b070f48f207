#include "hv/cpu/soft/decode.h"

#include <Zydis/Zydis.h>
#include <pthread.h>
#include <string.h>

#include "hv/cpu/soft/exec.h"

/* How the operands of a mnemonic become those of an op. */
enum how {
    HOW_NONE, /* not in the table: not offered */
    HOW_PLAIN,
    HOW_ALU,    /* destination, source: all forms */
    HOW_MOV,    /* the same, and segment, control and debug registers */
    HOW_RM,     /* one register or memory operand */
    HOW_RM_REG, /* destination r/m, source register or immediate */
    HOW_REG_RM, /* destination register, source r/m, maybe an immediate */
    HOW_SHIFT,  /* r/m by immediate or CL */
    HOW_SHIFT2, /* r/m, register, by immediate or CL */
    HOW_IMUL,
    HOW_STACK,  /* PUSH, POP */
    HOW_BRANCH, /* relative, near or far */
    HOW_IMM,    /* one immediate, or none */
    HOW_ENTER,
    HOW_PORT,
    HOW_STRING,
    HOW_XLAT,
    HOW_FARPTR,
};

struct rule {
    op_fn fn;
    uint8_t how, sub;
    uint8_t size; /* 0: the instruction's operand width */
    uint8_t end;  /* straight code stops here */
};

#define M(name) [ZYDIS_MNEMONIC_##name]
#define CC(suffix, cc)                                                                             \
    M(J##suffix) = {exec_jcc, HOW_BRANCH, cc, 0, 0},                                               \
    M(SET##suffix) = {exec_setcc, HOW_RM, cc, 1, 0},                                               \
    M(CMOV##suffix) = {exec_cmov, HOW_REG_RM, cc, 0, 0}

static const struct rule rules[ZYDIS_MNEMONIC_MAX_VALUE + 1] = {
    M(ADD) = {NULL, HOW_ALU, ALU_ADD, 0, 0},
    M(OR) = {NULL, HOW_ALU, ALU_OR, 0, 0},
    M(ADC) = {NULL, HOW_ALU, ALU_ADC, 0, 0},
    M(SBB) = {NULL, HOW_ALU, ALU_SBB, 0, 0},
    M(AND) = {NULL, HOW_ALU, ALU_AND, 0, 0},
    M(SUB) = {NULL, HOW_ALU, ALU_SUB, 0, 0},
    M(XOR) = {NULL, HOW_ALU, ALU_XOR, 0, 0},
    M(CMP) = {NULL, HOW_ALU, ALU_CMP, 0, 0},
    M(TEST) = {NULL, HOW_ALU, ALU_TEST, 0, 0},
    M(MOV) = {NULL, HOW_MOV, 0, 0, 0},
    M(INC) = {exec_inc_dec, HOW_RM, 0, 0, 0},
    M(DEC) = {exec_inc_dec, HOW_RM, 1, 0, 0},
    M(NEG) = {exec_neg, HOW_RM, 0, 0, 0},
    M(NOT) = {exec_not, HOW_RM, 0, 0, 0},
    M(MUL) = {exec_mul, HOW_RM, 0, 0, 0},
    M(IMUL) = {exec_imul, HOW_IMUL, 0, 0, 0},
    M(DIV) = {exec_div, HOW_RM, 0, 0, 0},
    M(IDIV) = {exec_idiv, HOW_RM, 0, 0, 0},
    M(ROL) = {exec_shift, HOW_SHIFT, SHIFT_ROL, 0, 0},
    M(ROR) = {exec_shift, HOW_SHIFT, SHIFT_ROR, 0, 0},
    M(RCL) = {exec_shift, HOW_SHIFT, SHIFT_RCL, 0, 0},
    M(RCR) = {exec_shift, HOW_SHIFT, SHIFT_RCR, 0, 0},
    M(SHL) = {exec_shift, HOW_SHIFT, SHIFT_SHL, 0, 0},
    M(SHR) = {exec_shift, HOW_SHIFT, SHIFT_SHR, 0, 0},
    M(SAR) = {exec_shift, HOW_SHIFT, SHIFT_SAR, 0, 0},
    M(SHLD) = {exec_shift_double, HOW_SHIFT2, SHIFT_SHL, 0, 0},
    M(SHRD) = {exec_shift_double, HOW_SHIFT2, SHIFT_SHR, 0, 0},
    M(BT) = {exec_bt, HOW_RM_REG, BIT_TEST, 0, 0},
    M(BTS) = {exec_bt, HOW_RM_REG, BIT_SET, 0, 0},
    M(BTR) = {exec_bt, HOW_RM_REG, BIT_RESET, 0, 0},
    M(BTC) = {exec_bt, HOW_RM_REG, BIT_COMPLEMENT, 0, 0},
    M(BSF) = {exec_bit_scan, HOW_REG_RM, 0, 0, 0},
    M(BSR) = {exec_bit_scan, HOW_REG_RM, 1, 0, 0},
    M(XCHG) = {exec_xchg, HOW_RM_REG, 0, 0, 0},
    M(XADD) = {exec_xadd, HOW_RM_REG, 0, 0, 0},
    M(CMPXCHG) = {exec_cmpxchg, HOW_RM_REG, 0, 0, 0},
    M(CMPXCHG8B) = {exec_cmpxchg_pair, HOW_RM, 0, 4, 0},
    M(CMPXCHG16B) = {exec_cmpxchg_pair, HOW_RM, 0, 8, 0},
    M(DAA) = {exec_decimal, HOW_PLAIN, 0, 0, 0},
    M(DAS) = {exec_decimal, HOW_PLAIN, 1, 0, 0},
    M(AAA) = {exec_ascii, HOW_PLAIN, 0, 0, 0},
    M(AAS) = {exec_ascii, HOW_PLAIN, 1, 0, 0},
    M(AAM) = {exec_aam, HOW_IMM, 0, 0, 0},
    M(AAD) = {exec_aad, HOW_IMM, 0, 0, 0},

    M(MOVZX) = {exec_movx, HOW_REG_RM, 0, 0, 0},
    M(MOVSX) = {exec_movx, HOW_REG_RM, 1, 0, 0},
    M(MOVSXD) = {exec_movx, HOW_REG_RM, 1, 0, 0},
    M(LEA) = {exec_lea, HOW_REG_RM, 0, 0, 0},
    M(BSWAP) = {exec_bswap, HOW_RM, 0, 0, 0},
    M(CBW) = {exec_widen, HOW_PLAIN, 0, 2, 0},
    M(CWDE) = {exec_widen, HOW_PLAIN, 0, 4, 0},
    M(CDQE) = {exec_widen, HOW_PLAIN, 0, 8, 0},
    M(CWD) = {exec_widen_pair, HOW_PLAIN, 0, 2, 0},
    M(CDQ) = {exec_widen_pair, HOW_PLAIN, 0, 4, 0},
    M(CQO) = {exec_widen_pair, HOW_PLAIN, 0, 8, 0},
    M(PUSH) = {exec_push, HOW_STACK, 0, 0, 0},
    M(POP) = {exec_pop, HOW_STACK, 1, 0, 0},
    M(PUSHA) = {exec_pusha, HOW_PLAIN, 0, 2, 0},
    M(PUSHAD) = {exec_pusha, HOW_PLAIN, 0, 4, 0},
    M(POPA) = {exec_popa, HOW_PLAIN, 0, 2, 0},
    M(POPAD) = {exec_popa, HOW_PLAIN, 0, 4, 0},
    M(PUSHF) = {exec_pushf, HOW_PLAIN, 0, 2, 0},
    M(PUSHFD) = {exec_pushf, HOW_PLAIN, 0, 4, 0},
    M(PUSHFQ) = {exec_pushf, HOW_PLAIN, 0, 8, 0},
    M(POPF) = {exec_popf, HOW_PLAIN, 0, 2, 0},
    M(POPFD) = {exec_popf, HOW_PLAIN, 0, 4, 0},
    M(POPFQ) = {exec_popf, HOW_PLAIN, 0, 8, 0},
    M(ENTER) = {exec_enter, HOW_ENTER, 0, 0, 0},
    M(LEAVE) = {exec_leave, HOW_PLAIN, 0, 0, 0},
    M(LAHF) = {exec_lahf, HOW_PLAIN, 0, 0, 0},
    M(SAHF) = {exec_sahf, HOW_PLAIN, 0, 0, 0},
    M(CLC) = {exec_flag, HOW_PLAIN, 0, 0, 0},
    M(STC) = {exec_flag, HOW_PLAIN, 1, 0, 0},
    M(CMC) = {exec_flag, HOW_PLAIN, 2, 0, 0},
    M(CLD) = {exec_flag, HOW_PLAIN, 3, 0, 0},
    M(STD) = {exec_flag, HOW_PLAIN, 4, 0, 0},
    M(SALC) = {exec_salc, HOW_PLAIN, 0, 0, 0},
    M(XLAT) = {exec_xlat, HOW_XLAT, 0, 0, 0},
    M(NOP) = {exec_nop, HOW_PLAIN, 0, 0, 0},
    M(PAUSE) = {exec_nop, HOW_PLAIN, 0, 0, 0},
    M(ENDBR32) = {exec_nop, HOW_PLAIN, 0, 0, 0},
    M(ENDBR64) = {exec_nop, HOW_PLAIN, 0, 0, 0},

    M(MOVSB) = {exec_string, HOW_STRING, STR_MOVS, 1, 0},
    M(MOVSW) = {exec_string, HOW_STRING, STR_MOVS, 2, 0},
    M(MOVSD) = {exec_string, HOW_STRING, STR_MOVS, 4, 0},
    M(MOVSQ) = {exec_string, HOW_STRING, STR_MOVS, 8, 0},
    M(STOSB) = {exec_string, HOW_STRING, STR_STOS, 1, 0},
    M(STOSW) = {exec_string, HOW_STRING, STR_STOS, 2, 0},
    M(STOSD) = {exec_string, HOW_STRING, STR_STOS, 4, 0},
    M(STOSQ) = {exec_string, HOW_STRING, STR_STOS, 8, 0},
    M(LODSB) = {exec_string, HOW_STRING, STR_LODS, 1, 0},
    M(LODSW) = {exec_string, HOW_STRING, STR_LODS, 2, 0},
    M(LODSD) = {exec_string, HOW_STRING, STR_LODS, 4, 0},
    M(LODSQ) = {exec_string, HOW_STRING, STR_LODS, 8, 0},
    M(CMPSB) = {exec_string, HOW_STRING, STR_CMPS, 1, 0},
    M(CMPSW) = {exec_string, HOW_STRING, STR_CMPS, 2, 0},
    M(CMPSD) = {exec_string, HOW_STRING, STR_CMPS, 4, 0},
    M(CMPSQ) = {exec_string, HOW_STRING, STR_CMPS, 8, 0},
    M(SCASB) = {exec_string, HOW_STRING, STR_SCAS, 1, 0},
    M(SCASW) = {exec_string, HOW_STRING, STR_SCAS, 2, 0},
    M(SCASD) = {exec_string, HOW_STRING, STR_SCAS, 4, 0},
    M(SCASQ) = {exec_string, HOW_STRING, STR_SCAS, 8, 0},
    M(INSB) = {exec_string, HOW_STRING, STR_INS, 1, 0},
    M(INSW) = {exec_string, HOW_STRING, STR_INS, 2, 0},
    M(INSD) = {exec_string, HOW_STRING, STR_INS, 4, 0},
    M(OUTSB) = {exec_string, HOW_STRING, STR_OUTS, 1, 0},
    M(OUTSW) = {exec_string, HOW_STRING, STR_OUTS, 2, 0},
    M(OUTSD) = {exec_string, HOW_STRING, STR_OUTS, 4, 0},

    M(JMP) = {exec_jmp, HOW_BRANCH, 0, 0, 1},
    M(CALL) = {exec_call, HOW_BRANCH, 1, 0, 1},
    M(RET) = {exec_ret, HOW_IMM, 0, 0, 1},
    M(LOOPNE) = {exec_loop, HOW_BRANCH, 0, 0, 0},
    M(LOOPE) = {exec_loop, HOW_BRANCH, 1, 0, 0},
    M(LOOP) = {exec_loop, HOW_BRANCH, 2, 0, 0},
    M(JCXZ) = {exec_loop, HOW_BRANCH, 3, 0, 0},
    M(JECXZ) = {exec_loop, HOW_BRANCH, 3, 0, 0},
    M(JRCXZ) = {exec_loop, HOW_BRANCH, 3, 0, 0},
    M(INT) = {exec_int_n, HOW_IMM, 0, 0, 1},
    M(INT3) = {exec_int_n, HOW_PLAIN, 3, 0, 1},
    M(INT1) = {exec_int_n, HOW_PLAIN, 1, 0, 1},
    M(INTO) = {exec_into, HOW_PLAIN, 0, 0, 0},
    M(BOUND) = {exec_bound, HOW_REG_RM, 0, 0, 0},
    M(IRET) = {exec_iret, HOW_PLAIN, 0, 2, 1},
    M(IRETD) = {exec_iret, HOW_PLAIN, 0, 4, 1},
    M(IRETQ) = {exec_iret, HOW_PLAIN, 0, 8, 1},
    M(SYSCALL) = {exec_syscall, HOW_PLAIN, 0, 0, 1},
    M(SYSRET) = {exec_sysret, HOW_PLAIN, 0, 0, 1},
    M(SYSENTER) = {exec_sysenter, HOW_PLAIN, 0, 0, 1},
    M(SYSEXIT) = {exec_sysexit, HOW_PLAIN, 0, 0, 1},

    M(IN) = {exec_in, HOW_PORT, 0, 0, 0},
    M(OUT) = {exec_out, HOW_PORT, 1, 0, 0},
    M(HLT) = {exec_hlt, HOW_PLAIN, 0, 0, 1},
    M(CLI) = {exec_cli, HOW_PLAIN, 0, 0, 0},
    M(STI) = {exec_sti, HOW_PLAIN, 0, 0, 0},
    M(CPUID) = {exec_cpuid, HOW_PLAIN, 0, 0, 0},
    M(RDMSR) = {exec_rdmsr, HOW_PLAIN, 0, 0, 0},
    M(WRMSR) = {exec_wrmsr, HOW_PLAIN, 0, 0, 0},
    M(RDTSC) = {exec_rdtsc, HOW_PLAIN, 0, 0, 0},
    M(RDTSCP) = {exec_rdtsc, HOW_PLAIN, 1, 0, 0},
    M(RDPMC) = {exec_rdpmc, HOW_PLAIN, 0, 0, 0},
    M(CLTS) = {exec_clts, HOW_PLAIN, 0, 0, 0},
    M(LMSW) = {exec_lmsw, HOW_RM, 0, 2, 0},
    M(SMSW) = {exec_smsw, HOW_RM, 0, 0, 0},
    M(INVLPG) = {exec_invlpg, HOW_RM, 0, 1, 0},
    M(WBINVD) = {exec_wbinvd, HOW_PLAIN, 0, 0, 0},
    M(INVD) = {exec_wbinvd, HOW_PLAIN, 0, 0, 0},
    M(VMCALL) = {exec_vmcall, HOW_PLAIN, 0, 0, 0},
    M(VMMCALL) = {exec_vmcall, HOW_PLAIN, 0, 0, 0},
    M(SWAPGS) = {exec_swapgs, HOW_PLAIN, 0, 0, 0},
    M(FWAIT) = {exec_fpu, HOW_PLAIN, 1, 0, 0},
    M(LGDT) = {exec_lgdt, HOW_RM, 0, 0, 0},
    M(LIDT) = {exec_lgdt, HOW_RM, 1, 0, 0},
    M(SGDT) = {exec_sgdt, HOW_RM, 0, 0, 0},
    M(SIDT) = {exec_sgdt, HOW_RM, 1, 0, 0},
    M(LLDT) = {exec_lldt, HOW_RM, 0, 2, 0},
    M(LTR) = {exec_lldt, HOW_RM, 1, 2, 0},
    M(SLDT) = {exec_sldt, HOW_RM, 0, 0, 0},
    M(STR) = {exec_sldt, HOW_RM, 1, 0, 0},
    M(VERR) = {exec_verify, HOW_RM, 0, 2, 0},
    M(VERW) = {exec_verify, HOW_RM, 1, 2, 0},
    M(LAR) = {exec_lar, HOW_REG_RM, 0, 0, 0},
    M(LSL) = {exec_lar, HOW_REG_RM, 1, 0, 0},
    M(ARPL) = {exec_arpl, HOW_RM_REG, 0, 2, 0},
    M(LDS) = {exec_load_far_ptr, HOW_FARPTR, CPU_DS, 0, 0},
    M(LES) = {exec_load_far_ptr, HOW_FARPTR, CPU_ES, 0, 0},
    M(LFS) = {exec_load_far_ptr, HOW_FARPTR, CPU_FS, 0, 0},
    M(LGS) = {exec_load_far_ptr, HOW_FARPTR, CPU_GS, 0, 0},
    M(LSS) = {exec_load_far_ptr, HOW_FARPTR, CPU_SS, 0, 0},

    CC(O, 0),
    CC(NO, 1),
    CC(B, 2),
    CC(NB, 3),
    CC(Z, 4),
    CC(NZ, 5),
    CC(BE, 6),
    CC(NBE, 7),
    CC(S, 8),
    CC(NS, 9),
    CC(P, 10),
    CC(NP, 11),
    CC(L, 12),
    CC(NL, 13),
    CC(LE, 14),
    CC(NLE, 15),
};

struct insn {
    ZydisDecodedInstruction i;
    ZydisDecodedOperand o[ZYDIS_MAX_OPERAND_COUNT];
};

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

static uint8_t reg_number(ZydisRegister r)
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

static bool is_reg_class(const ZydisDecodedOperand *o, ZydisRegisterClass class)
{
    return o->type == ZYDIS_OPERAND_TYPE_REGISTER && ZydisRegisterGetClass(o->reg.value) == class;
}

static void take_mem(const ZydisDecodedOperand *o, struct op *op)
{
    op->flags |= OPF_MEM;
    op->seg = seg_number(o->mem.segment);
    op->base = op->index = REG_ZERO;
    if (o->mem.base == ZYDIS_REGISTER_RIP || o->mem.base == ZYDIS_REGISTER_EIP)
        op->flags |= OPF_RIP;
    else if (o->mem.base != ZYDIS_REGISTER_NONE)
        op->base = reg_number(o->mem.base);
    if (o->mem.index != ZYDIS_REGISTER_NONE) {
        op->index = reg_number(o->mem.index);
        op->scale = o->mem.scale ? (uint8_t)__builtin_ctz(o->mem.scale) : 0;
    }
    op->disp = (int32_t)o->mem.disp.value;
}

static void take_rm(const ZydisDecodedOperand *o, struct op *op)
{
    if (o->type == ZYDIS_OPERAND_TYPE_MEMORY)
        take_mem(o, op);
    else if (o->type == ZYDIS_OPERAND_TYPE_REGISTER)
        op->rm = reg_number(o->reg.value);
}

static uint64_t imm_of(const ZydisDecodedOperand *o)
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

static uint8_t bytes_of(const ZydisDecodedOperand *o)
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
    case HOW_SHIFT:
        op->size = bytes_of(&n->o[0]);
        take_rm(&n->o[0], op);
        take_count(&n->o[1], op);
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

static enum decoded translate(const struct insn *n, struct op *op)
{
    const struct rule *r = &rules[n->i.mnemonic];

    op->len = n->i.length;
    op->asz = (uint8_t)(n->i.address_width / 8);
    op->size = r->size ? r->size : (uint8_t)(n->i.operand_width / 8);
    op->sub = r->sub;
    op->fn = r->fn;
    op->base = op->index = REG_ZERO;
    if (r->how == HOW_NONE) {
        bool x87 = n->i.meta.isa_ext == ZYDIS_ISA_EXT_X87;

        op->fn = is_hint(n) ? exec_nop : x87 ? exec_fpu : exec_ud;
        return is_hint(n) ? DECODED : DECODED_END;
    }
    take_operands(n, r, op);
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
