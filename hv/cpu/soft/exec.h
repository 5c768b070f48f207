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
enum { SHIFT_ROL, SHIFT_ROR, SHIFT_RCL, SHIFT_RCR, SHIFT_SHL, SHIFT_SHR, SHIFT_SAR };
enum { BIT_TEST, BIT_SET, BIT_RESET, BIT_COMPLEMENT };
enum { STR_MOVS, STR_STOS, STR_LODS, STR_CMPS, STR_SCAS, STR_INS, STR_OUTS };

op_fn exec_alu(enum alu kind, enum form form, unsigned size);
op_fn exec_mov(enum form form, unsigned size);

#define EXEC(name) enum op_result exec_##name(struct cpu *c, const struct op *op)

/* exec_alu.c */
EXEC(inc_dec);
EXEC(neg);
EXEC(not );
EXEC(shift);
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
EXEC(cmpxchg_pair);
EXEC(decimal);
EXEC(ascii);
EXEC(aam);
EXEC(aad);

/* exec_mov.c */
EXEC(mov_moffs);
EXEC(movx);
EXEC(lea);
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
EXEC(jcc);
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
EXEC(fpu);
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
EXEC(vmcall);
EXEC(swapgs);

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
