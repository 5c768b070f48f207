#include <string.h>

#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/fp.h"
#include "hv/cpu/soft/mmu.h"

/* A segment that 32-bit code may use with one addition: read and write, no limit. */
static bool segment_is_flat(const struct cpu *c, unsigned n)
{
    const struct cpu_segment *s = &c->seg[n];

    if (s->limit != 0xffffffffu || !(s->attr & CPU_SEG_P) || !(s->attr & CPU_SEG_S))
        return false;
    if (!cpu_descriptors(c))
        return true;
    return (s->attr & 0xe) == 2; /* data, writable, expand up */
}

static uint8_t mode_of(const struct cpu *c)
{
    const struct cpu_segment *cs = &c->seg[CPU_CS];

    if (!cpu_descriptors(c))
        return MODE_16;
    if (cpu_long(c) && (cs->attr & CPU_SEG_L))
        return MODE_64;
    return cs->attr & CPU_SEG_DB ? MODE_32 : MODE_16;
}

void cpu_update_mode(struct cpu *c)
{
    c->mode = mode_of(c);
    if (!cpu_protected(c))
        c->cpl = 0;
    else if (cpu_vm86(c))
        c->cpl = 3;
    else
        c->cpl = (uint8_t)((c->seg[CPU_SS].attr & CPU_SEG_DPL) >> 5);
    c->tlb = c->tlbs[c->cpl == 3];
    c->checked = 0;
    for (unsigned n = 0; n < CPU_SEGS; n++) {
        bool plain = c->mode == MODE_64 && n != CPU_FS && n != CPU_GS;

        c->seg_base[n] = plain ? 0 : c->seg[n].base;
        if (c->mode != MODE_64 && !segment_is_flat(c, n))
            c->checked |= (uint8_t)(1u << n);
    }
    c->linkable =
        c->mode == MODE_64 || (c->seg[CPU_CS].base == 0 && c->seg[CPU_CS].limit == 0xffffffffu);
    c->stack_size = c->mode == MODE_64 ? 8 : c->seg[CPU_SS].attr & CPU_SEG_DB ? 4 : 2;
}

void cpu_set_rflags(struct cpu *c, uint64_t v, uint32_t mask)
{
    uint32_t now = (fl_get(c) & ~mask) | ((uint32_t)v & mask);

    fl_put_arith(c, now);
    c->fl_sys = (now & ~FL_ARITH) | FL_ONE;
    if (mask & FL_VM)
        cpu_update_mode(c);
}

void cpu_load_state(struct cpu *c, const struct cpu_state *s)
{
    memcpy(c->r, s->gpr, sizeof s->gpr);
    c->r[REG_ZERO] = 0;
    c->rip = s->rip;
    fl_put_arith(c, (uint32_t)s->rflags);
    c->fl_sys = ((uint32_t)s->rflags & ~FL_ARITH) | FL_ONE;
    memcpy(c->seg, s->seg, sizeof c->seg);
    c->ldtr = s->ldtr;
    c->tr = s->tr;
    c->gdt_base = s->gdt_base;
    c->idt_base = s->idt_base;
    c->gdt_limit = s->gdt_limit;
    c->idt_limit = s->idt_limit;
    c->cr0 = s->cr0;
    c->cr2 = s->cr2;
    c->cr3 = s->cr3;
    c->cr4 = s->cr4;
    c->cr8 = s->cr8;
    c->efer = s->efer;
    memcpy(c->dr, s->dr, sizeof c->dr);
    c->star = s->star;
    c->lstar = s->lstar;
    c->cstar = s->cstar;
    c->sfmask = s->sfmask;
    c->kernel_gs_base = s->kernel_gs_base;
    c->sysenter_cs = s->sysenter_cs;
    c->sysenter_esp = s->sysenter_esp;
    c->sysenter_eip = s->sysenter_eip;
    c->apic_base = s->apic_base;
    c->pat = s->pat;
    c->tsc_offset = s->tsc_offset;
    atomic_store(&c->v->tsc_offset, s->tsc_offset);
    c->halted = s->halted != 0;
    c->wait_sipi = s->wait_sipi != 0;
    c->nmi_blocked = s->nmi_blocked != 0;
    c->shadow = s->intr_shadow != 0;
    memcpy(&c->fp, s->fx, sizeof c->fp);
    c->fp.mxcsr_mask = FP_MXCSR_MASK;
    x87_settle(c);
    cpu_update_mode(c);
    mmu_flush(c);
}

void cpu_store_state(const struct cpu *c, struct cpu_state *s)
{
    memset(s, 0, sizeof *s);
    memcpy(s->gpr, c->r, sizeof s->gpr);
    s->rip = c->rip;
    s->rflags = fl_get(c);
    memcpy(s->seg, c->seg, sizeof s->seg);
    s->ldtr = c->ldtr;
    s->tr = c->tr;
    s->gdt_base = c->gdt_base;
    s->idt_base = c->idt_base;
    s->gdt_limit = c->gdt_limit;
    s->idt_limit = c->idt_limit;
    s->cr0 = c->cr0;
    s->cr2 = c->cr2;
    s->cr3 = c->cr3;
    s->cr4 = c->cr4;
    s->cr8 = c->cr8;
    s->efer = c->efer;
    memcpy(s->dr, c->dr, sizeof s->dr);
    s->star = c->star;
    s->lstar = c->lstar;
    s->cstar = c->cstar;
    s->sfmask = c->sfmask;
    s->kernel_gs_base = c->kernel_gs_base;
    s->sysenter_cs = c->sysenter_cs;
    s->sysenter_esp = c->sysenter_esp;
    s->sysenter_eip = c->sysenter_eip;
    s->apic_base = c->apic_base;
    s->pat = c->pat;
    s->tsc_offset = c->tsc_offset;
    s->halted = c->halted;
    s->wait_sipi = c->wait_sipi;
    s->nmi_blocked = c->nmi_blocked;
    s->intr_shadow = c->shadow;
    memcpy(s->fx, &c->fp, sizeof s->fx);
}
