#include "hv/cpu/soft/fp_host.h"

/*
 * No kernel is told to the sanitizers or the optimiser as anything but memory in, memory out: the
 * registers that it uses are named as clobbered.
 */
#define XMM_KERNEL(fn, insn)                                                                       \
    static void fn(void *dst, const void *src)                                                     \
    {                                                                                              \
        __asm__ volatile("movups (%0), %%xmm0\n\tmovups (%1), %%xmm1\n\t" insn                     \
                         "\n\tmovups %%xmm0, (%0)"                                                 \
                         :                                                                         \
                         : "r"(dst), "r"(src)                                                      \
                         : "xmm0", "xmm1", "memory");                                              \
    }
#define MMX_CLOBBERS                                                                               \
    "st", "st(1)", "st(2)", "st(3)", "st(4)", "st(5)", "st(6)", "st(7)", "mm0", "mm1", "mm2",      \
        "mm3", "mm4", "mm5", "mm6", "mm7"
#define MMX_KERNEL(fn, insn)                                                                       \
    static void fn(void *dst, const void *src)                                                     \
    {                                                                                              \
        __asm__ volatile("movq (%0), %%mm0\n\tmovq (%1), %%mm1\n\t" insn                           \
                         "\n\tmovq %%mm0, (%0)\n\temms"                                            \
                         :                                                                         \
                         : "r"(dst), "r"(src)                                                      \
                         : MMX_CLOBBERS, "memory");                                                \
    }
/* xmm0 = dst, the source stays in memory, `out` stores. */
#define MIXED_KERNEL(fn, insn, out, ...)                                                           \
    static void fn(void *dst, const void *src)                                                     \
    {                                                                                              \
        __asm__ volatile("movups (%0), %%xmm0\n\t" insn "\n\t" out                                 \
                         :                                                                         \
                         : "r"(dst), "r"(src)                                                      \
                         : __VA_ARGS__, "xmm0", "memory");                                         \
    }

#define TO_XMM "movups %%xmm0, (%0)"

#define BOTH(name, low)                                                                            \
    XMM_KERNEL(sse_##name, #name " %%xmm1, %%xmm0")                                                \
    MMX_KERNEL(mmx_##name, #name " %%mm1, %%mm0")                                                  \
    const fp_kernel fp_##name[2] = {sse_##name, mmx_##name};
#define PURE(name)                                                                                 \
    XMM_KERNEL(sse_##name, #name " %%xmm1, %%xmm0")                                                \
    const fp_kernel fp_##name[1] = {sse_##name};
#define CALC(name, bytes, n, in, out, sum) PURE(name)
#define CMP_KERNEL(name, p)                XMM_KERNEL(sse_##name##_##p, #name " $" #p ", %%xmm1, %%xmm0")
#define CMP(name, bytes)                                                                           \
    CMP_KERNEL(name, 0)                                                                            \
    CMP_KERNEL(name, 1)                                                                            \
    CMP_KERNEL(name, 2)                                                                            \
    CMP_KERNEL(name, 3)                                                                            \
    CMP_KERNEL(name, 4)                                                                            \
    CMP_KERNEL(name, 5)                                                                            \
    CMP_KERNEL(name, 6)                                                                            \
    CMP_KERNEL(name, 7)                                                                            \
    const fp_kernel fp_##name[8] = {                                                               \
        sse_##name##_0, sse_##name##_1, sse_##name##_2, sse_##name##_3,                            \
        sse_##name##_4, sse_##name##_5, sse_##name##_6, sse_##name##_7};
#define TO_GPR(name, bytes)                                                                        \
    MIXED_KERNEL(sse_##name##_32, #name " (%1), %%eax", "mov %%rax, (%0)", "rax")                  \
    MIXED_KERNEL(sse_##name##_64, #name " (%1), %%rax", "mov %%rax, (%0)", "rax")                  \
    const fp_kernel fp_##name[2] = {sse_##name##_32, sse_##name##_64};
#define FROM_GPR(name)                                                                             \
    MIXED_KERNEL(sse_##name##_32, #name "L (%1), %%xmm0", TO_XMM, "cc")                            \
    MIXED_KERNEL(sse_##name##_64, #name "Q (%1), %%xmm0", TO_XMM, "cc")                            \
    const fp_kernel fp_##name[2] = {sse_##name##_32, sse_##name##_64};
/* SETcc and not PUSHF: the red zone below RSP is the caller's. */
#define FLAGS(name, bytes)                                                                         \
    MIXED_KERNEL(sse_##name,                                                                       \
                 #name " (%1), %%xmm0\n\tsetz %%al\n\tsetp %%ah\n\tsetc %%cl\n\t"                  \
                       "shl $6, %%al\n\tshl $2, %%ah\n\tor %%al, %%cl\n\tor %%ah, %%cl\n\t"        \
                       "movzbl %%cl, %%ecx",                                                       \
                 "mov %%rcx, (%0)", "rax", "rcx", "cc")                                            \
    const fp_kernel fp_##name[1] = {sse_##name};
#define TO_MMX(name, bytes)                                                                        \
    MIXED_KERNEL(sse_##name, "movups (%1), %%xmm0\n\t" #name " %%xmm0, %%mm0",                     \
                 "movq %%mm0, (%0)\n\temms", MMX_CLOBBERS)                                         \
    const fp_kernel fp_##name[1] = {sse_##name};
#define FROM_MMX(name)                                                                             \
    MIXED_KERNEL(sse_##name, #name " (%1), %%xmm0", TO_XMM "\n\temms", MMX_CLOBBERS)               \
    const fp_kernel fp_##name[1] = {sse_##name};
#include "hv/cpu/soft/sse_ops.def"

#define MXCSR_MASKS 0x1f80u
#define MXCSR_FLAGS 0x3fu

uint32_t fp_host_calc(fp_kernel k, void *dst, const void *src, uint32_t mxcsr)
{
    uint32_t host, guest = (mxcsr & ~MXCSR_FLAGS) | MXCSR_MASKS, now;

    __asm__ volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(host) : "m"(guest) : "memory");
    k(dst, src);
    __asm__ volatile("stmxcsr %0\n\tldmxcsr %1" : "=m"(now) : "m"(host) : "memory");
    return now & MXCSR_FLAGS;
}

/*
 * x87: one stub for each register form (8 * 64) and each memory form (8 * 8, operand at [RSI]),
 * four bytes each. The state goes in and out by FXRSTOR and FXSAVE, which look at no pending
 * exception; FNINIT leaves the host's unit as a thread begins with it.
 *
 * fp_x87_call(state, mem, stub, flags): RDI, RSI, RDX, RCX; returns RFLAGS behind the stub.
 */
__asm__(".pushsection .text\n"
        ".p2align 4\n"
        "fp_x87_reg_stubs:\n"
        ".set n, 0\n"
        ".rept 512\n"
        ".byte 0xd8 + (n >> 6), 0xc0 + (n & 63), 0xc3, 0xcc\n"
        ".set n, n + 1\n"
        ".endr\n"
        "fp_x87_mem_stubs:\n"
        ".set n, 0\n"
        ".rept 64\n"
        ".byte 0xd8 + (n >> 3), ((n & 7) << 3) + 6, 0xc3, 0xcc\n"
        ".set n, n + 1\n"
        ".endr\n"
        ".p2align 4\n"
        ".type fp_x87_call, @function\n"
        "fp_x87_call:\n"
        "sub $24, %rsp\n"
        "stmxcsr 8(%rsp)\n"
        "fxrstor64 (%rdi)\n"
        "push %rcx\n"
        "popfq\n"
        "call *%rdx\n"
        "pushfq\n"
        "pop %rax\n"
        "fxsave64 (%rdi)\n"
        "fninit\n"
        "ldmxcsr 8(%rsp)\n"
        "cld\n"
        "add $24, %rsp\n"
        "ret\n"
        ".size fp_x87_call, . - fp_x87_call\n"
        ".popsection\n");

extern const uint8_t fp_x87_reg_stubs[] __asm__("fp_x87_reg_stubs")
    __attribute__((visibility("hidden")));
extern const uint8_t fp_x87_mem_stubs[] __asm__("fp_x87_mem_stubs")
    __attribute__((visibility("hidden")));
uint64_t fp_x87_call(struct fp_state *s, void *mem, const uint8_t *stub,
                     uint64_t flags) __asm__("fp_x87_call") __attribute__((visibility("hidden")));

#define RFLAGS_ARITH 0x8d5u
#define RFLAGS_IF    0x202u /* as user code always has it */

uint64_t fp_host_x87(struct fp_state *s, unsigned esc, unsigned modrm, void *mem, uint64_t flags)
{
    const uint8_t *stub = modrm >= 0xc0 ? fp_x87_reg_stubs + (esc * 64 + (modrm & 63)) * 4
                                        : fp_x87_mem_stubs + (esc * 8 + (modrm >> 3 & 7)) * 4;

    return fp_x87_call(s, mem, stub, (flags & RFLAGS_ARITH) | RFLAGS_IF) & RFLAGS_ARITH;
}
