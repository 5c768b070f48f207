/*
 * What the engine takes from the floating-point units of the host: kernels that compute one
 * instruction on operands in memory. Exact because the host is an x86-64 processor itself: the
 * guest's rounding, precision and masks are loaded around the instruction. A host of another kind
 * would put soft-float behind this header; nothing else in hv/cpu/soft knows of the host's units.
 *
 * No function here faults, whatever the operands: exceptions are masked or stay pending inside the
 * stored state. The host's own control words are what they were afterwards.
 */
#ifndef MAYFLY_CPU_SOFT_FP_HOST_H
#define MAYFLY_CPU_SOFT_FP_HOST_H

#include <stdint.h>

/* An XMM register; MMX values use q[0]. */
union fp_reg {
    uint8_t b[16];
    uint16_t w[8];
    uint32_t d[4];
    uint64_t q[2];
};

/* Image of FXSAVE64, the form that every snapshot and engine agrees on (cpu_state.fx). */
struct fp_state {
    uint16_t fcw, fsw;
    uint8_t ftw; /* bit a physical register: not empty */
    uint8_t reserved;
    uint16_t fop;
    uint64_t fip, fdp;
    uint32_t mxcsr, mxcsr_mask;
    struct {
        uint64_t m;
        uint16_t e; /* sign and exponent */
        uint16_t pad[3];
    } st[8]; /* ST(0) first */
    union fp_reg xmm[16];
    uint8_t rest[96];
} __attribute__((aligned(16)));
_Static_assert(sizeof(struct fp_state) == 512, "an FXSAVE image is 512 bytes");

/* dst = dst op src. Both are at least 16 bytes, any alignment; `src` may be `dst`. */
typedef void (*fp_kernel)(void *dst, const void *src);

/*
 * Kernels of sse_ops.def, an array for each line:
 *   BOTH {SSE, MMX}; TO_GPR, FROM_GPR {32 bits, 64 bits}; CMP by predicate; others {the one}.
 * TO_GPR leaves the integer in dst; FLAGS leaves RFLAGS in dst (which was the first operand);
 * FROM_* merge into dst.
 */
#define BOTH(name, low)                    extern const fp_kernel fp_##name[2];
#define PURE(name)                         extern const fp_kernel fp_##name[1];
#define CALC(name, bytes, n, in, out, sum) extern const fp_kernel fp_##name[1];
#define CMP(name, bytes)                   extern const fp_kernel fp_##name[8];
#define TO_GPR(name, bytes)                extern const fp_kernel fp_##name[2];
#define FROM_GPR(name)                     extern const fp_kernel fp_##name[2];
#define FLAGS(name, bytes)                 extern const fp_kernel fp_##name[1];
#define TO_MMX(name, bytes)                extern const fp_kernel fp_##name[1];
#define FROM_MMX(name)                     extern const fp_kernel fp_##name[1];
#include "hv/cpu/soft/sse_ops.def"

/* Runs a kernel under the rounding, DAZ and FTZ of `mxcsr`, all exceptions masked. Returns the
 * exception flags that it raised (bits 0 to 5). */
uint32_t fp_host_calc(fp_kernel k, void *dst, const void *src, uint32_t mxcsr);

/*
 * Runs the x87 instruction 0xd8 + `esc` with `modrm` on the state; nothing may be pending in it.
 * Register forms: flags are what FCMOV sees; what FCOMI leaves comes back. Memory forms (mod not
 * 3): `mem` is the operand, 10 bytes at least. FOP, FIP and FDP come out meaningless. Not for
 * FLDENV, FNSTENV, FRSTOR, FNSAVE, FNINIT, FNSTSW AX.
 */
uint64_t fp_host_x87(struct fp_state *s, unsigned esc, unsigned modrm, void *mem, uint64_t flags);

#endif
