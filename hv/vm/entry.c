/* From how an image wants to be entered to the state of a vCPU. */
#include <string.h>

#include "hv/vm/vm.h"

#define CR0_PE   0x00000001u
#define CR0_ET   0x00000010u
#define CR0_NE   0x00000020u
#define CR0_PG   0x80000000u
#define CR4_PAE  0x00000020u
#define EFER_LME 0x00000100u
#define EFER_LMA 0x00000400u

#define TYPE_DATA 0x3u /* read, write, accessed */
#define TYPE_CODE 0xbu /* execute, read, accessed */
#define TYPE_LDT  0x2u
#define TYPE_TSS  0xbu /* busy */

static void flat_segments(const struct boot_entry *b, struct cpu_state *s)
{
    const unsigned flat = CPU_SEG_S | CPU_SEG_P | CPU_SEG_G;
    const unsigned mode = b->cr3 ? CPU_SEG_L : CPU_SEG_DB;

    for (unsigned i = 0; i < CPU_SEGS; i++)
        s->seg[i] = (struct cpu_segment){.selector = b->data,
                                         .attr = (uint16_t)(TYPE_DATA | flat | CPU_SEG_DB),
                                         .limit = UINT32_MAX};
    s->seg[CPU_CS].selector = b->code;
    s->seg[CPU_CS].attr = (uint16_t)(TYPE_CODE | flat | mode);
    s->ldtr = (struct cpu_segment){.attr = TYPE_LDT | CPU_SEG_P};
    s->tr = (struct cpu_segment){.selector = b->tss, .attr = TYPE_TSS | CPU_SEG_P, .limit = 0x67};
}

void vm_entry_state(const struct boot_entry *b, struct cpu_state *s)
{
    cpu_state_reset(s);
    flat_segments(b, s);
    memset(s->gpr, 0, sizeof s->gpr);
    s->gpr[CPU_RAX] = b->rax;
    s->gpr[CPU_RBX] = b->rbx;
    s->gpr[CPU_RSI] = b->rsi;
    s->gpr[CPU_RDI] = b->rdi;
    s->gpr[CPU_RSP] = b->rsp;
    s->rip = b->rip;
    s->rflags = 2;
    s->gdt_base = b->gdt;
    s->gdt_limit = b->gdt_limit;
    s->idt_base = 0;
    s->idt_limit = 0;
    s->cr0 = CR0_PE | CR0_ET | CR0_NE;
    if (!b->cr3)
        return;
    s->cr0 |= CR0_PG;
    s->cr3 = b->cr3;
    s->cr4 = CR4_PAE;
    s->efer = EFER_LME | EFER_LMA;
}
