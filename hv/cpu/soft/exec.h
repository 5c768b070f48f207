/* Handlers of ops, for the table of decode.c, and what they share. */
#ifndef MAYFLY_CPU_SOFT_EXEC_H
#define MAYFLY_CPU_SOFT_EXEC_H

#include "hv/cpu/soft/cpu.h"

enum alu {
    ALU_ADD,
    ALU_OR,
    ALU_ADC,
    ALU_SBB,
    ALU_AND,
    ALU_SUB,
    ALU_XOR,
    ALU_CMP,
    ALU_TEST,
    ALU_KINDS
};
/* Destination and source: register, memory, immediate. */
enum form { FORM_RR, FORM_RI, FORM_RM, FORM_MR, FORM_MI, FORMS };
#define FORM_IS_MEM(form) ((form) >= FORM_RM)
enum { SHIFT_ROL, SHIFT_ROR, SHIFT_RCL, SHIFT_RCR, SHIFT_SHL, SHIFT_SHR, SHIFT_SAR };
enum { BIT_TEST, BIT_SET, BIT_RESET, BIT_COMPLEMENT };
enum { STR_MOVS, STR_STOS, STR_LODS, STR_CMPS, STR_SCAS, STR_INS, STR_OUTS };

enum shuffle { SHUFFLE_D, SHUFFLE_HW, SHUFFLE_LW, SHUFFLE_PS, SHUFFLE_PD };
/* Parts of an XMM register that a move takes and gives. */
#define SSE_TO_HIGH   1u
#define SSE_FROM_HIGH 2u
#define SSE_ZERO      4u

/* op->sub of exec_sse_calc: results that may over- or underflow, bytes of an operand's element and
 * of a result's, whether it is a sum. */
#define CALC_SUB(n, in, out, sum) ((n) | ((in) == 8) << 3 | ((out) == 8) << 4 | (sum) << 5)
#define CALC_N(sub)               ((sub)&7u)
#define CALC_IN(sub)              ((sub)&8u ? 8u : 4u)
#define CALC_OUT(sub)             ((sub)&16u ? 8u : 4u)
#define CALC_SUM                  32u

op_fn exec_alu(enum alu kind, enum form form, unsigned size);
op_fn exec_mov(enum form form, unsigned size);

/* Of an op whose other fields are filled. */
op_fn exec_shift(const struct op *op);
/* `size` and `from` bytes. */
op_fn exec_movx(unsigned size, unsigned from, bool mem, bool sign);
op_fn exec_lea(unsigned size);
op_fn exec_jcc(unsigned cc);

#define EXEC(name) enum op_result exec_##name(struct cpu *c, const struct op *op)

/* exec_alu.c */
EXEC(inc_dec);
EXEC(neg);
EXEC(not );
EXEC(shift_double);
EXEC(mul);
EXEC(imul1);
EXEC(imul);
EXEC(div);
EXEC(idiv);
EXEC(bt);
EXEC(bit_scan);
EXEC(xchg);
EXEC(xadd);
EXEC(cmpxchg);
/* BT and its kin with memory: the address, which a register's bit offset moves. */
bool bt_lin(struct cpu *c, const struct op *op, unsigned acc, uint64_t *lin);
EXEC(decimal);
EXEC(ascii);
EXEC(aam);
EXEC(aad);

/* exec_lock.c: op->size2 says which */
enum locked {
    LOCKED_ALU,
    LOCKED_INC_DEC,
    LOCKED_NEG,
    LOCKED_NOT,
    LOCKED_BT,
    LOCKED_XCHG,
    LOCKED_XADD,
    LOCKED_CMPXCHG,
};
EXEC(locked);
EXEC(cmpxchg_pair);

/* exec_mov.c */
EXEC(mov_moffs);
EXEC(cmov);
EXEC(setcc);
EXEC(bswap);
EXEC(widen);
EXEC(widen_pair);
EXEC(push);
EXEC(pop);
EXEC(pusha);
EXEC(popa);
EXEC(pushf);
EXEC(popf);
EXEC(enter);
EXEC(leave);
EXEC(lahf);
EXEC(sahf);
EXEC(flag);
EXEC(salc);
EXEC(xlat);
EXEC(nop);

/* exec_string.c */
EXEC(string);

/* exec_flow.c */
EXEC(jmp);
EXEC(jmp_rm);
EXEC(loop);
EXEC(call);
EXEC(call_rm);
EXEC(ret);
EXEC(far_imm);
EXEC(far_mem);
EXEC(ret_far);
EXEC(int_n);
EXEC(into);
EXEC(bound);
EXEC(iret);
EXEC(syscall);
EXEC(sysret);
EXEC(sysenter);
EXEC(sysexit);

/* exec_sys.c */
EXEC(ud);
EXEC(gp);
EXEC(in);
EXEC(out);
EXEC(hlt);
EXEC(cli);
EXEC(sti);
EXEC(cpuid);
EXEC(rdmsr);
EXEC(wrmsr);
EXEC(rdtsc);
EXEC(rdpmc);
EXEC(mov_from_cr);
EXEC(mov_to_cr);
EXEC(mov_from_dr);
EXEC(mov_to_dr);
EXEC(clts);
EXEC(lmsw);
EXEC(smsw);
EXEC(invlpg);
EXEC(wbinvd);
EXEC(clflush);
EXEC(vmcall);
EXEC(swapgs);

/* exec_sse_calc.c */
EXEC(sse);
EXEC(mmx);
EXEC(sse_shift);
EXEC(sse_calc);
EXEC(sse_to_gpr);
EXEC(sse_from_gpr);
EXEC(sse_flags);
EXEC(sse_to_mmx);
EXEC(sse_from_mmx);

/* exec_sse_move.c */
EXEC(sse_load);
EXEC(sse_load16);
EXEC(sse_store);
EXEC(sse_store16);
EXEC(sse_gpr_load);
EXEC(sse_gpr_store);
EXEC(mmx_load);
EXEC(mmx_store);
EXEC(mmx_sse);
EXEC(sse_mask);
EXEC(mmx_mask);
EXEC(sse_shuffle);
EXEC(mmx_shuffle);
EXEC(sse_byte_shift);
EXEC(pinsrw);
EXEC(pextrw);
EXEC(maskmov);
EXEC(fence);

/* exec_fp_state.c */
EXEC(ldmxcsr);
EXEC(stmxcsr);
EXEC(emms);
EXEC(fxsave);
EXEC(fxrstor);

/* exec_x87.c */
EXEC(x87);
EXEC(x87_store);
EXEC(fwait);
EXEC(fninit);
EXEC(fnclex);
EXEC(fnstcw);
EXEC(fnstsw);
EXEC(fnstenv);
EXEC(fldenv);
EXEC(fnsave);
EXEC(frstor);

/* seg.c */
EXEC(mov_from_seg);
EXEC(mov_to_seg);
EXEC(push_seg);
EXEC(pop_seg);
EXEC(load_far_ptr);
EXEC(lgdt);
EXEC(sgdt);
EXEC(lldt);
EXEC(sldt);
EXEC(verify);
EXEC(lar);
EXEC(arpl);

/* exec_sys.c: a port may be used at this CPL. False: #GP queued. */
bool port_allowed(struct cpu *c, uint16_t port, unsigned size);
bool port_read(struct cpu *c, uint16_t port, unsigned size, uint64_t *v);
bool port_write(struct cpu *c, uint16_t port, unsigned size, uint64_t v);

#endif
