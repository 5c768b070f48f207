/* The decoder's own: rules of the table, what Zydis said, operands. Only decode*.c include this. */
#ifndef MAYFLY_CPU_SOFT_DECODE_IMPL_H
#define MAYFLY_CPU_SOFT_DECODE_IMPL_H

#include <Zydis/Zydis.h>

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
    HOW_JCC,
    HOW_MOVX,
    HOW_LEA,
    HOW_RM_REG_MOV, /* MOVNTI */
    HOW_FP,         /* from here on: decode_fp.c */
    HOW_SSE = HOW_FP,
    HOW_SSE_BOTH,
    HOW_SSE_CMP,
    HOW_SSE_TO_GPR,
    HOW_SSE_FROM_GPR,
    HOW_SSE_MOVE, /* 16 bytes, either way; sub 1: aligned */
    HOW_SSE_PART, /* 4 or 8 bytes; sub: what of a register */
    HOW_SSE_MOVD, /* MOVD, MOVQ: everything with everything */
    HOW_SSE_MASK, /* sign bits to a general register */
    HOW_SSE_SHUFFLE,
    HOW_SSE_WORD, /* PINSRW, PEXTRW */
    HOW_MMX_SSE,  /* registers of both kinds */
    HOW_MASKMOV,
    HOW_FXSAVE,
    HOW_X87,
    HOW_X87_ENV,
};

struct rule {
    op_fn fn;
    uint8_t how, sub;
    uint8_t size; /* 0: the instruction's operand width */
    uint8_t end;  /* straight code stops here */
    const fp_kernel *kernels;
};

struct insn {
    ZydisDecodedInstruction i;
    ZydisDecodedOperand o[ZYDIS_MAX_OPERAND_COUNT];
};

/* The table: a rule for each mnemonic, HOW_NONE where it is not offered. */
extern const struct rule decode_rules[ZYDIS_MNEMONIC_MAX_VALUE + 1];
/* CMPSD and MOVSD are string instructions and SSE2 ones: the latter. */
extern const struct rule decode_cmpsd, decode_movsd;

uint8_t reg_number(ZydisRegister r);
bool is_reg_class(const ZydisDecodedOperand *o, ZydisRegisterClass class);
void take_mem(const ZydisDecodedOperand *o, struct op *op);
/* A register or memory operand as op->rm. */
void take_rm(const ZydisDecodedOperand *o, struct op *op);
uint64_t imm_of(const ZydisDecodedOperand *o);
uint8_t bytes_of(const ZydisDecodedOperand *o);

/* Operands of HOW_FP and what follows it. */
void decode_fp(const struct insn *n, const struct rule *r, struct op *op);

#endif
