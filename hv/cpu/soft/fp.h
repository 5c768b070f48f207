/* x87, MMX and SSE as handlers see them: who may use them, registers, memory operands. */
#ifndef MAYFLY_CPU_SOFT_FP_H
#define MAYFLY_CPU_SOFT_FP_H

#include "hv/cpu/soft/cpu.h"
#include "hv/cpu/soft/mmu.h"

#define FP_MXCSR_MASK  0xffffu /* bits of MXCSR that exist */
#define FP_MXCSR_FLAGS 0x3fu   /* IE DE ZE OE UE PE; the masks stand 7 bits higher */
#define FP_IE          0x01u
#define FP_DE          0x02u
#define FP_ZE          0x04u
#define FP_OE          0x08u
#define FP_UE          0x10u
#define FP_PE          0x20u
#define FP_FTZ         0x8000u

#define FCW_BITS 0x1f3fu
#define FCW_ONE  0x0040u

#define FSW_ES  0x0080u /* an unmasked exception waits for the next x87 instruction */
#define FSW_B   0x8000u
#define FSW_TOP 0x3800u

static inline unsigned fsw_top(const struct cpu *c)
{
    return (c->fp.fsw & FSW_TOP) >> 11;
}

/* SSE may be used. False: #UD or #NM queued. */
static inline bool sse_ready(struct cpu *c)
{
    if (likely(!(c->cr0 & (CR0_EM | CR0_TS)) && (c->cr4 & CR4_FXSR)))
        return true;
    return cpu_raise(c, (c->cr0 & CR0_EM) || !(c->cr4 & CR4_FXSR) ? VEC_UD : VEC_NM, 0);
}

/* Exceptions of FSW that FCW does not mask; FSW.ES says the same. */
static inline bool x87_pending(const struct cpu *c)
{
    return (c->fp.fsw & ~c->fp.fcw & FP_MXCSR_FLAGS) != 0;
}

/* After FCW or FSW came from outside: ES and B follow from them, as on a processor; bits of FCW
 * that do not exist go. */
static inline void x87_settle(struct cpu *c)
{
    c->fp.fcw = (uint16_t)((c->fp.fcw & FCW_BITS) | FCW_ONE);
    c->fp.fsw =
        (uint16_t)(x87_pending(c) ? c->fp.fsw | FSW_ES | FSW_B : c->fp.fsw & ~(FSW_ES | FSW_B));
}

/* No x87 exception waits. False: #MF queued. (Where CR0.NE is 0 a PC would raise IRQ 13; this
 * machine has no such line, and the exception is the nearest thing.) */
static inline bool x87_clear(struct cpu *c)
{
    return likely(!x87_pending(c)) || cpu_raise(c, VEC_MF, 0);
}

/* x87 may be used. False: #NM queued. */
static inline bool x87_ready(struct cpu *c)
{
    return likely(!(c->cr0 & (CR0_EM | CR0_TS))) || cpu_raise(c, VEC_NM, 0);
}

/* MMX may be used. False: #UD, #NM or #MF queued. */
static inline bool mmx_ready(struct cpu *c)
{
    if (unlikely(c->cr0 & CR0_EM))
        return cpu_raise(c, VEC_UD, 0);
    return x87_ready(c) && x87_clear(c);
}

/* TOP becomes `top`; the physical registers keep what they hold. */
void x87_set_top(struct cpu *c, unsigned top);

/* mmx.c: the x87 registers become MMX registers (TOP 0, nothing empty); after all checks. */
void mmx_begin(struct cpu *c);
/* MMX register `n` before mmx_begin. */
uint64_t mmx_get(const struct cpu *c, unsigned n);
/* After mmx_begin. */
void mmx_set(struct cpu *c, unsigned n, uint64_t v);

/* The state's reserved bits are as FXRSTOR demands. */
static inline bool fp_mxcsr_valid(uint32_t v)
{
    return !(v & ~FP_MXCSR_MASK);
}

/* Linear address of an SSE memory operand; `align`: that many bytes or #GP, 0: any address. */
static inline bool sse_lin(struct cpu *c, const struct op *op, unsigned size, unsigned align,
                           unsigned acc, uint64_t *lin)
{
    if (!op_lin(c, op, size, acc, lin))
        return false;
    return likely(!align || !(*lin & (align - 1))) || cpu_raise(c, VEC_GP, 0);
}

#endif
