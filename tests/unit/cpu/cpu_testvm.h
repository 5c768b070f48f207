/*
 * A small VM for tests of an engine: machine memory, a second stage with 8 MiB of RAM, one vCPU,
 * and a machine that writes down what the guest asks of it.
 */
#ifndef MAYFLY_TEST_CPU_TESTVM_H
#define MAYFLY_TEST_CPU_TESTVM_H

#include "hv/cpu/engine.h"
#include "tests/unit/mm/mm_testenv.h"

#define TV_RAM_FRAMES 2048u /* guest-physical 0 to 8 MiB */

/* Where things lie. Linear is physical but where a test says otherwise. */
#define TV_PML4     0x1000u
#define TV_PDPT     0x2000u
#define TV_PD       0x3000u
#define TV_GDT      0x4000u
#define TV_IDT      0x5000u
#define TV_TSS      0x6000u
#define TV_HANDLERS 0x7000u /* 64 of 16 bytes: each is a HLT */
#define TV_CODE     0x10000u
#define TV_STACK    0x28000u
#define TV_RSP0     0x30000u
#define TV_IST1     0x38000u
#define TV_DATA     0x200000u

#define TV_CS32    0x08u
#define TV_CS      0x10u
#define TV_DS      0x18u
#define TV_UDS     0x23u
#define TV_UCS     0x2bu
#define TV_TR      0x30u
#define TV_VECTORS 64u

#define TV_BUDGET 100000u

enum tv_what { TV_PORT_IN, TV_PORT_OUT, TV_HYPERCALL, TV_MMIO_READ, TV_MMIO_WRITE };

struct tv_access {
    enum tv_what what;
    uint64_t where; /* port, address or number of the call */
    unsigned size;
    uint64_t value;
    uint64_t arg[4];
};

#define TV_LOG 64u

struct testvm {
    struct mm_testenv mm;
    struct stage2 *s2;
    uint32_t owner;
    struct engine_vm evm;
    struct vcpu v;
    struct cpu_state st; /* entered by tv_run, and what it left */

    struct tv_access log[TV_LOG];
    unsigned nr_log;
    enum machine_result answer; /* of ports and hypercalls */
    uint32_t in_value;          /* what a port gives */
    int64_t call_result;
    bool mmio;  /* 0xf0000000 to 0xf0000fff are a device */
    int vector; /* what the interrupt controller has; -1: nothing */
};

void tv_init(struct testvm *t);
void tv_fini(struct testvm *t);
/* Ends the VM and begins another on the same machine memory, with the same vCPU pool. */
void tv_again(struct testvm *t);

void tv_write(struct testvm *t, uint64_t gpa, const void *p, uint64_t n);
void tv_read(struct testvm *t, uint64_t gpa, void *p, uint64_t n);
void tv_put64(struct testvm *t, uint64_t gpa, uint64_t v);
uint64_t tv_get64(struct testvm *t, uint64_t gpa);
/* The frame of a guest page, populated. For data, not for code: the engine is not told. */
uint8_t *tv_ptr(struct testvm *t, uint64_t gpa);
#define TV_LOAD(t, at, ...)                                                                        \
    do {                                                                                           \
        static const uint8_t tv_bytes[] = {__VA_ARGS__};                                           \
        tv_write(t, at, tv_bytes, sizeof tv_bytes);                                                \
    } while (0)

/* 64-bit mode, CPL 0, 2 MiB identity pages of the first GiB, GDT, TSS, an IDT of HLTs. */
void tv_long(struct testvm *t);
/* The same at CPL 3. */
void tv_user(struct testvm *t);
/* Flat 32-bit protected mode without paging. */
void tv_protected(struct testvm *t);
/* 32-bit with 4 KiB legacy pages, or PAE ones, that map the first 4 MiB to themselves. */
void tv_legacy_paging(struct testvm *t);
void tv_pae_paging(struct testvm *t);
/* 4 KiB pages instead of the first 2 MiB one; entry of page n is at tv_pte(n). */
void tv_small_pages(struct testvm *t);
#define TV_PT 0x8000u
static inline uint64_t tv_pte(unsigned page)
{
    return TV_PT + page * 8u;
}
/* IDT entry of 64-bit mode. */
void tv_gate(struct testvm *t, unsigned vec, uint64_t to, unsigned dpl, unsigned ist, bool trap);

/* Enters t->st, runs, takes the state into t->st. */
enum cpu_exit tv_run(struct testvm *t, uint64_t budget);
/* Runs without entering t->st: where it was left. */
enum cpu_exit tv_resume(struct testvm *t, uint64_t budget);
/* Runs from TV_CODE and expects a HLT. */
void tv_run_to_halt(struct testvm *t);
/* Which handler the guest halted in; -1: none. */
int tv_vector(const struct testvm *t);
/* Runs from TV_CODE and expects handler `vec`; its frame begins with an error code or not. */
void tv_expect_vector(struct testvm *t, unsigned vec);

#endif
