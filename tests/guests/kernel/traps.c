/* GDT, TSS and IDT of our own, and what happens when one of its vectors is taken. */
#include "kernel/kernel.h"

struct tss {
    uint32_t reserved0;
    uint64_t rsp[3];
    uint64_t reserved1;
    uint64_t ist[7];
    uint64_t reserved2;
    uint16_t reserved3, iomap;
} __attribute__((packed));

struct gate {
    uint16_t offset0, selector;
    uint8_t ist, type;
    uint16_t offset1;
    uint32_t offset2, reserved;
};

struct table_pointer {
    uint16_t limit;
    uint64_t base;
} __attribute__((packed));

struct table_pointer idt_pointer;
struct trap_seen trap_seen;
uint64_t trap_resume, trap_resume_rsp;
bool (*trap_hook)(struct trap_frame *f, uint64_t cr2);

static uint64_t gdt[7];
static struct gate idt[256];
static struct tss tss;
static char stack_rsp0[8192] __attribute__((aligned(16)));
static char stack_ist1[4096] __attribute__((aligned(16)));

uint64_t double_fault_stack(void)
{
    return (uint64_t)stack_ist1;
}

static void set_gate(unsigned vector, const char *stub, uint8_t type, uint8_t ist)
{
    uint64_t at = (uint64_t)stub;
    idt[vector] = (struct gate){
        .offset0 = (uint16_t)at,
        .selector = SEL_KCODE,
        .ist = ist,
        .type = type,
        .offset1 = (uint16_t)(at >> 16),
        .offset2 = (uint32_t)(at >> 32),
    };
}

static void load_gdt(void)
{
    uint64_t base = (uint64_t)&tss, limit = sizeof tss - 1;
    struct table_pointer p = {sizeof gdt - 1, (uint64_t)gdt};
    gdt[SEL_KCODE / 8] = 0x00af9b000000ffff;
    gdt[SEL_KDATA / 8] = 0x00cf93000000ffff;
    gdt[SEL_UDATA / 8] = 0x00cff3000000ffff;
    gdt[SEL_UCODE / 8] = 0x00affb000000ffff;
    gdt[SEL_TSS / 8] =
        limit | (base & 0xffffff) << 16 | UINT64_C(0x89) << 40 | (base >> 24 & 0xff) << 56;
    gdt[SEL_TSS / 8 + 1] = base >> 32;
    tss.rsp[0] = (uint64_t)(stack_rsp0 + sizeof stack_rsp0);
    tss.ist[0] = (uint64_t)(stack_ist1 + sizeof stack_ist1);
    tss.iomap = sizeof tss;
    __asm__ volatile("lgdt %0\n\t"
                     "pushq %1\n\t"
                     "leaq 1f(%%rip), %%rax\n\t"
                     "pushq %%rax\n\t"
                     "lretq\n"
                     "1:\n\t"
                     "movl %2, %%ds\n\t"
                     "movl %2, %%es\n\t"
                     "movl %2, %%ss\n\t"
                     "ltr %w3"
                     :
                     : "m"(p), "i"(SEL_KCODE), "r"(SEL_KDATA), "r"(SEL_TSS)
                     : "rax", "memory");
}

void traps_init(void)
{
    struct table_pointer p = {sizeof idt - 1, (uint64_t)idt};
    load_gdt();
    for (unsigned v = 0; v < 32; v++)
        set_gate(v, vector_stubs + 16 * v, 0x8e, v == VEC_DF ? 1 : 0);
    set_gate(VEC_BP, vector_stubs + 16 * VEC_BP, 0xee, 0);
    set_gate(VEC_USER, vector_stub_user, 0xee, 0);
    for (unsigned i = 0; i < 16; i++)
        set_gate(0x30 + i, vector_stubs_irq + 16 * i, 0x8e, 0);
    idt_pointer = p;
    __asm__ volatile("lidt %0" : : "m"(p));
}

/* Of the blob's copy at `page`: this CPU's tables, mode and a stack. */
void ap_prepare(uint8_t *page, uint64_t rsp)
{
    struct {
        uint32_t rsp, cr3, cr4, efer;
        uint16_t gdt_limit;
        uint32_t gdt;
    } __attribute__((packed))
    d = {(uint32_t)rsp,        (uint32_t)read_cr3(),
         (uint32_t)read_cr4(), (uint32_t)rdmsr(MSR_EFER) & ~0x400u, /* LMA comes by itself */
         sizeof gdt - 1,       (uint32_t)(uint64_t)gdt};
    memcpy(page + (ap_blob_data - ap_blob), &d, sizeof d);
}

static void unexpected(const struct trap_frame *f, uint64_t cr2)
{
    print("unexpected trap %lu error %lx rip %016lx rsp %016lx cr2 %016lx\n", f->vector, f->error,
          f->rip, f->rsp, cr2);
    print("rax %016lx rbx %016lx rcx %016lx rdx %016lx\n", f->rax, f->rbx, f->rcx, f->rdx);
    guest_panic("unexpected trap");
}

void trap_entry(struct trap_frame *f)
{
    uint64_t cr2;
    __asm__ volatile("movq %%cr2, %0" : "=r"(cr2));
    if (trap_hook && trap_hook(f, cr2))
        return;
    if (!trap_resume)
        unexpected(f, cr2);
    trap_seen = (struct trap_seen){trap_seen.count + 1, f->vector, f->error, f->rip, cr2, f->cs,
                                   (uint64_t)f};
    f->rip = trap_resume;
    if (trap_resume_rsp)
        f->rsp = trap_resume_rsp;
    trap_resume = trap_resume_rsp = 0;
}
