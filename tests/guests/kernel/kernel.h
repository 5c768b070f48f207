/*
 * A small kernel that exercises a CPU: its own tables, traps, rings and memory. Each mode is one
 * function that checks one subject and prints "ok ..." or "FAIL ..." lines.
 */
#ifndef KERNEL_H
#define KERNEL_H

#include "lib/guest.h"

#define PAGE        4096u
#define LARGE       0x200000u
#define PTE_P       0x001u
#define PTE_W       0x002u
#define PTE_U       0x004u
#define PTE_A       0x020u
#define PTE_D       0x040u
#define PTE_PS      0x080u
#define PTE_G       0x100u
#define PTE_NX      (UINT64_C(1) << 63)
#define PTE_ADDR    UINT64_C(0x000ffffffffff000)
#define CR0_WP      0x10000u
#define CR4_PGE     0x80u
#define MSR_EFER    0xc0000080u
#define EFER_NXE    0x800u
#define SEL_KCODE   0x08u
#define SEL_KDATA   0x10u
#define SEL_UDATA   0x1bu
#define SEL_UCODE   0x23u
#define SEL_TSS     0x28u
#define VEC_DE      0u
#define VEC_BP      3u
#define VEC_UD      6u
#define VEC_DF      8u
#define VEC_GP      13u
#define VEC_PF      14u
#define VEC_USER    0x80u
#define REGIONS_MAX 32u

/* Windows of virtual addresses, one for each subject. */
#define VA_DEMAND  UINT64_C(0xffff900000000000)
#define VA_ALIAS   UINT64_C(0xffffa00000000000)
#define VA_PT      UINT64_C(0xffffb00000000000)
#define VA_OUTSIDE UINT64_C(0xffffc00000000000)
#define VA_USER    UINT64_C(0x0000700000000000)

struct trap_frame {
    uint64_t r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax;
    uint64_t vector, error, rip, cs, rflags, rsp, ss;
};

/* What the last trap was that trap_hook did not take. */
struct trap_seen {
    unsigned count;
    uint64_t vector, error, rip, cr2, cs, rsp;
};

/* ---- main.c */
struct region {
    uint64_t first, end; /* whole pages */
};
extern struct region ram[REGIONS_MAX];
extern unsigned nr_ram;
/* Pages that the loader gave us something in. */
bool boot_data_at(uint64_t page);
void check(bool good, const char *what);
uint64_t boot_rsdp(void);

/* ---- traps.c */
extern struct trap_seen trap_seen;
/* Non-zero: where the next trap goes on, once. */
extern uint64_t trap_resume, trap_resume_rsp;
/* Sees a trap first; true when it was dealt with and the instruction may run again. */
extern bool (*trap_hook)(struct trap_frame *f, uint64_t cr2);
void traps_init(void);
void trap_entry(struct trap_frame *f);
uint64_t double_fault_stack(void);
void ap_prepare(uint8_t *page, uint64_t rsp);
void ap_main(void);

/* Runs `insn`, which traps, and goes on behind it. */
#define TRAPS(insn, ...)                                                                           \
    __asm__ volatile("leaq 771f(%%rip), %%rax\n\tmovq %%rax, trap_resume\n\t"                      \
                     "movq $0, trap_resume_rsp\n\t" insn "\n771:"                                  \
                     :                                                                             \
                     : __VA_ARGS__                                                                 \
                     : "rax", "rcx", "rdx", "memory", "cc")

/* ---- vectors.S */
extern char vector_stubs[], vector_stubs_irq[], vector_stub_user[], user_code[], user_code_end[];
extern char ap_blob[], ap_blob_data[], ap_blob_end[];
void user_enter(uint64_t rip, uint64_t rsp);
void user_leave(void);
void stack_gone(uint64_t bad_rsp);

/* ---- paging.c */
extern bool have_nx;
void paging_init(void);
uint64_t page_alloc(void); /* zeroed; panics when RAM is used up */
uint64_t page_alloc_end(void);
/* The entry that maps `va` by a 4 KiB page, its tables made when they are not there. */
uint64_t *pte_of(uint64_t va);
uint64_t *pde_of(uint64_t va);
void map(uint64_t va, uint64_t pa, uint64_t flags);

static inline void invlpg(uint64_t va)
{
    __asm__ volatile("invlpg (%0)" : : "r"(va) : "memory");
}

static inline uint64_t read_cr0(void)
{
    uint64_t v;
    __asm__ volatile("movq %%cr0, %0" : "=r"(v));
    return v;
}

static inline void write_cr0(uint64_t v)
{
    __asm__ volatile("movq %0, %%cr0" : : "r"(v) : "memory");
}

static inline uint64_t read_cr3(void)
{
    uint64_t v;
    __asm__ volatile("movq %%cr3, %0" : "=r"(v));
    return v;
}

static inline void write_cr3(uint64_t v)
{
    __asm__ volatile("movq %0, %%cr3" : : "r"(v) : "memory");
}

static inline uint64_t read_cr4(void)
{
    uint64_t v;
    __asm__ volatile("movq %%cr4, %0" : "=r"(v));
    return v;
}

static inline void write_cr4(uint64_t v)
{
    __asm__ volatile("movq %0, %%cr4" : : "r"(v) : "memory");
}

static inline void cpuid(uint32_t leaf, uint32_t out[4])
{
    __asm__ volatile("cpuid"
                     : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3])
                     : "a"(leaf), "c"(0)
                     : "memory");
}

static inline uint64_t rdmsr(uint32_t msr)
{
    uint32_t lo, hi;
    __asm__ volatile("rdmsr" : "=a"(lo), "=d"(hi) : "c"(msr));
    return (uint64_t)hi << 32 | lo;
}

static inline void wrmsr(uint32_t msr, uint64_t v)
{
    __asm__ volatile("wrmsr" : : "a"((uint32_t)v), "d"((uint32_t)(v >> 32)), "c"(msr) : "memory");
}

/* ---- modes */
void mode_fault(void);
void mode_pf(void);
void mode_pt(void);
void mode_user(void);
void mode_smc(void);
void mode_compute(void);
void mode_cpuid(void);
void mode_touch(void);
void mode_zero(void);
void mode_outside(void);
void mode_panic(void);
void mode_spin(void);
void mode_halt(void);
void mode_pit(void);
void mode_apic(void);
void mode_uart(void);
void mode_uartrx(void);
void mode_smp(void);
void mode_clock(void);
void mode_acpi(void);

#endif
