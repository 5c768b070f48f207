/* Runs one instruction on the host CPU: the oracle of the differential test. */
#ifndef MAYFLY_TEST_CPU_NATIVE_H
#define MAYFLY_TEST_CPU_NATIVE_H

#include <stdbool.h>
#include <stdint.h>

#define NATIVE_FLAGS 0x8d5u /* OF SF ZF AF PF CF */

struct native_regs {
    uint64_t gpr[16]; /* RSP is neither loaded nor stored */
    uint64_t flags;
};

/* With the floating-point units. */
struct native_fp {
    struct native_regs r;
    uint64_t pad;
    _Alignas(16) uint8_t fx[512]; /* FXSAVE64 image */
    uint32_t host_mxcsr, pad2;
};

/* Maps the trampolines, and `bytes` of data at the fixed address `data`. */
bool native_init(uint64_t data, uint64_t bytes);
void native_fini(void);
/* `code`: at most 15 bytes, one instruction that does not use RSP, fault or branch. */
void native_run(const uint8_t *code, unsigned len, struct native_regs *r);
/* The same, and it may fault: the vector, with the state before the instruction; -1: no fault. */
int native_run_fp(const uint8_t *code, unsigned len, struct native_fp *s);

#endif
