/* Traps, page faults, rings. */
#include "kernel/kernel.h"

static bool seen(uint64_t vector, uint64_t error)
{
    bool good = trap_seen.vector == vector && trap_seen.error == error;
    if (!good)
        print("trap %lu error %lx rip %lx cr2 %lx\n", trap_seen.vector, trap_seen.error,
              trap_seen.rip, trap_seen.cr2);
    return good;
}

/* Where the instruction behind TRAPS' own preamble stands, to check the saved RIP. */
static uint64_t insn_at;
#define NOTE_RIP "leaq 772f(%%rip), %%rax\n\tmovq %%rax, insn_at\n772:\t"

static void double_fault(void)
{
    uint64_t stack = double_fault_stack();
    stack_gone(VA_DEMAND + 0x100000); /* nothing is mapped there */
    check(seen(VEC_DF, 0), "double fault on a stack that is gone");
    check(trap_seen.rsp >= stack && trap_seen.rsp < stack + PAGE, "double fault on its own stack");
}

/* QEMU's TCG reads unknown MSRs as zero and has its own error code for a missing gate. */
static bool on_qemu(void)
{
    uint32_t id[4];
    cpuid(0x40000000, id);
    return memcmp(&id[1], "TCGTCGTCGTCG", 12) == 0;
}

void mode_fault(void)
{
    unsigned before = trap_seen.count;
    __asm__ volatile("" : : "m"(insn_at));
    TRAPS("xorl %%edx, %%edx\n\txorl %%ecx, %%ecx\n\t" NOTE_RIP "divl %%ecx");
    check(seen(VEC_DE, 0) && trap_seen.rip == insn_at, "divide by zero");
    TRAPS("movl $1, %%edx\n\tmovl $1, %%ecx\n\t" NOTE_RIP "divl %%ecx");
    check(seen(VEC_DE, 0) && trap_seen.rip == insn_at, "quotient too large");
    TRAPS(NOTE_RIP "ud2");
    check(seen(VEC_UD, 0) && trap_seen.rip == insn_at, "undefined instruction");
    TRAPS(NOTE_RIP "int3");
    check(seen(VEC_BP, 0) && trap_seen.rip == insn_at + 1, "breakpoint");
    TRAPS("movl $0x1000, %%ecx\n\t" NOTE_RIP "movl %%ecx, %%ds");
    check(seen(VEC_GP, 0x1000) && trap_seen.rip == insn_at, "selector outside the GDT");
    TRAPS("movabsq $0x0000800000000000, %%rcx\n\t" NOTE_RIP "movb (%%rcx), %%cl");
    check(seen(VEC_GP, 0) && trap_seen.rip == insn_at, "address that is not canonical");
    TRAPS(NOTE_RIP "int $0x40");
    /* KVM on an SVM that does not save the next RIP has stepped over INT already when it faults. */
    check((seen(VEC_GP, 0x40 * 8 + 2) || on_qemu()) &&
              (trap_seen.rip == insn_at || (cmdline_has("nonrip") && trap_seen.rip == insn_at + 2)),
          "vector without a gate");
    TRAPS("movl $0x12345678, %%ecx\n\t" NOTE_RIP "rdmsr");
    check((seen(VEC_GP, 0) && trap_seen.rip == insn_at) || on_qemu(), "unknown MSR");
    double_fault();
    check(trap_seen.count == before + 9 || on_qemu(), "each trap once");
}

/* ---- page faults */

/* Changed behind the compiler's back, by the fault of a plain access. */
static volatile unsigned demand_faults;
static volatile uint64_t demand_last_error, demand_last_cr2;

static bool demand_hook(struct trap_frame *f, uint64_t cr2)
{
    if (f->vector != VEC_PF || f->error & PTE_P || cr2 - VA_DEMAND >= 64 * PAGE)
        return false;
    demand_faults++;
    demand_last_error = f->error;
    demand_last_cr2 = cr2;
    map(cr2 & ~(uint64_t)(PAGE - 1), page_alloc(), PTE_W);
    return true;
}

static void demand_pages(void)
{
    volatile uint64_t *at;
    bool good = true;
    demand_faults = 0;
    trap_hook = demand_hook;
    for (unsigned i = 0; i < 8; i++) {
        at = (volatile uint64_t *)(VA_DEMAND + i * PAGE + 8 * i);
        if (i & 1)
            *at = i * 0x0101010101010101;
        else
            good &= *at == 0;
        good &= demand_last_error == (i & 1 ? 2u : 0u) && demand_last_cr2 == (uint64_t)at;
    }
    for (unsigned i = 1; i < 8; i += 2)
        good &= *(volatile uint64_t *)(VA_DEMAND + i * PAGE + 8 * i) == i * 0x0101010101010101;
    check(good, "pages mapped on demand, error code and CR2");
    check(demand_faults == 8, "one fault for each page");

    at = (volatile uint64_t *)(VA_DEMAND + 11 * PAGE - 3);
    *at = 0x1122334455667788;
    check(demand_faults == 10 && *at == 0x1122334455667788, "write across two missing pages");

    for (unsigned i = 0; i < 3 * PAGE; i++)
        ((uint8_t *)(VA_DEMAND + 20 * PAGE))[i] = (uint8_t)(i * 7);
    memcpy((void *)(VA_DEMAND + 30 * PAGE + 100), (void *)(VA_DEMAND + 20 * PAGE), 3 * PAGE);
    check(demand_faults == 17 && memcmp((void *)(VA_DEMAND + 30 * PAGE + 100),
                                        (void *)(VA_DEMAND + 20 * PAGE), 3 * PAGE) == 0,
          "string copy goes on behind a fault");
    trap_hook = NULL;
}

static void protection(void)
{
    uint64_t page = page_alloc(), va = VA_DEMAND + 50 * PAGE;
    volatile uint64_t *at = (volatile uint64_t *)va;
    map(va, page, 0);
    check(*at == 0 && (*pte_of(va) & (PTE_A | PTE_D)) == PTE_A, "a read sets accessed only");
    TRAPS("movq %0, %%rdx\n\tmovb $1, (%%rdx)", "r"(va));
    check(seen(VEC_PF, 3) && trap_seen.cr2 == va, "write to a read-only page");
    map(va, page, PTE_W);
    *at = 5;
    check((*pte_of(va) & (PTE_A | PTE_D)) == (PTE_A | PTE_D), "a write sets dirty");
    map(va, page, have_nx ? PTE_NX : 0);
    if (have_nx) {
        TRAPS("movq %0, %%rdx\n\tjmp *%%rdx", "r"(va));
        check(seen(VEC_PF, 0x11) && trap_seen.cr2 == va && trap_seen.rip == va,
              "execution of a no-execute page");
    }
    TRAPS("movq %0, %%rdx\n\tjmp *%%rdx", "r"(va + PAGE));
    check(seen(VEC_PF, have_nx ? 0x10 : 0) && trap_seen.cr2 == va + PAGE, "fetch from no page");
}

void mode_pf(void)
{
    demand_pages();
    protection();
}

/* ---- ring 3 */

static unsigned user_calls, user_faults;
static bool user_good;

static bool user_hook(struct trap_frame *f, uint64_t cr2)
{
    if (f->cs != SEL_UCODE)
        return false;
    if (f->vector == VEC_USER) {
        user_calls++;
        if (f->rax == 1) {
            user_good &= f->rdi == 0x1234 && f->ss == SEL_UDATA;
            f->rax = 0xabcdef0123456789;
        } else if (f->rax == 2) {
            user_good &= f->rdx == 0xabcdef0123456789 && f->rdi == VA_USER + 2 * PAGE;
        } else {
            f->rip = (uint64_t)user_leave;
            f->cs = SEL_KCODE;
            f->ss = SEL_KDATA;
        }
        return true;
    }
    user_faults++;
    if (f->vector == VEC_PF && f->error == 5 && cr2 == 0x100000)
        f->rip += 2;
    else if (f->vector == VEC_GP && f->error == 0)
        f->rip += 1;
    else
        return false;
    return true;
}

void mode_user(void)
{
    uint64_t code = page_alloc();
    user_calls = user_faults = 0;
    user_good = true;
    memcpy((void *)code, user_code, (size_t)(user_code_end - user_code));
    map(VA_USER, code, PTE_U);
    map(VA_USER + PAGE, page_alloc(), PTE_U | PTE_W);
    trap_hook = user_hook;
    user_enter(VA_USER, VA_USER + 2 * PAGE);
    trap_hook = NULL;
    check(user_calls == 3 && user_good, "calls from ring 3");
    check(user_faults == 2, "faults in ring 3");
}

void mode_panic(void)
{
    __asm__ volatile("ud2");
}
