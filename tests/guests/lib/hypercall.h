/* Guest hypercalls: number in RAX, arguments in RBX, RCX, RDX, RSI, result in RAX. */
#ifndef GUEST_HYPERCALL_H
#define GUEST_HYPERCALL_H

#include "lib/guest.h"
#include "proto/hypercall.h"

#define HYPERCALL_ASM(insn)                                                                        \
    static inline long hypercall_##insn(long nr, uintptr_t a, uintptr_t b, uintptr_t c,            \
                                        uintptr_t d)                                               \
    {                                                                                              \
        long result;                                                                               \
        __asm__ volatile(#insn                                                                     \
                         : "=a"(result)                                                            \
                         : "a"(nr), "b"(a), "c"(b), "d"(c), "S"(d)                                 \
                         : "memory");                                                              \
        return result;                                                                             \
    }

HYPERCALL_ASM(vmcall)
HYPERCALL_ASM(vmmcall)

static inline long guest_yield(void)
{
    return hypercall_vmmcall(MF_CALL_GUEST_YIELD, 0, 0, 0, 0);
}

#endif
