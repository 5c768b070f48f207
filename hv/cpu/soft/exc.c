#include "hv/cpu/soft/exc.h"

#include <stdio.h>

#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"
#include "hv/cpu/soft/seg.h"

#define GATE_INT16  0x6u
#define GATE_TRAP16 0x7u
#define GATE_INT    0xeu
#define GATE_TRAP   0xfu
#define ERR_IDT     2u
#define ERR_EXT     1u

struct gate {
    uint64_t offset;
    uint16_t selector;
    uint8_t type, dpl, ist;
    unsigned size; /* bytes of a pushed word */
};

/* Where the frame goes. */
struct stack_frame {
    uint64_t sp;
    struct cpu_segment ss;
    unsigned size;
    bool moved; /* another stack than the present one */
};

static uint32_t gate_err(unsigned vec, enum exc_source src)
{
    return vec * 8 + ERR_IDT + (src == EXC_SOFT ? 0 : ERR_EXT);
}

static bool gate_read(struct cpu *c, unsigned vec, enum exc_source src, struct gate *g)
{
    unsigned bytes = cpu_long(c) ? 16 : 8;
    uint64_t low, high = 0;
    bool present;

    if (vec * bytes + bytes - 1 > c->idt_limit)
        return cpu_raise(c, VEC_GP, gate_err(vec, src));
    if (!mmu_sys_read(c, c->idt_base + vec * bytes, 8, &low))
        return false;
    if (bytes == 16 && !mmu_sys_read(c, c->idt_base + vec * bytes + 8, 8, &high))
        return false;
    g->offset = (low & 0xffff) | (low >> 32 & 0xffff0000) | high << 32;
    g->selector = (uint16_t)(low >> 16);
    g->ist = cpu_long(c) ? low >> 32 & 7 : 0;
    g->type = low >> 40 & 0x1f;
    g->dpl = low >> 45 & 3;
    present = low >> 47 & 1;
    if (g->type != GATE_INT && g->type != GATE_TRAP &&
        (cpu_long(c) || (g->type != GATE_INT16 && g->type != GATE_TRAP16)))
        return cpu_raise(c, VEC_GP, gate_err(vec, src));
    if (src == EXC_SOFT && g->dpl < c->cpl)
        return cpu_raise(c, VEC_GP, gate_err(vec, src));
    if (!present)
        return cpu_raise(c, VEC_NP, gate_err(vec, src));
    g->size = cpu_long(c) ? 8 : g->type & 8 ? 4 : 2;
    if (g->size == 2)
        g->offset &= 0xffff;
    return true;
}

static bool target_ok(struct cpu *c, const struct gate *g, bool ext, struct descriptor *d,
                      unsigned *cpl)
{
    uint32_t err = ERR_SEL(g->selector) | ext;

    if (SEL_NULL(g->selector))
        return cpu_raise(c, VEC_GP, ext);
    if (!seg_read(c, g->selector, VEC_GP, d)) {
        c->exc.err |= c->exc.vec == VEC_GP ? ext : 0u;
        return false;
    }
    if (!ATTR_IS_CODE(d->s.attr) || ATTR_DPL(d->s.attr) > c->cpl ||
        (cpu_long(c) && (d->s.attr & (CPU_SEG_L | CPU_SEG_DB)) != CPU_SEG_L))
        return cpu_raise(c, VEC_GP, err);
    if (!(d->s.attr & CPU_SEG_P))
        return cpu_raise(c, VEC_NP, err);
    *cpl = ATTR_CONFORMING(d->s.attr) ? c->cpl : ATTR_DPL(d->s.attr);
    return seg_access(c, d);
}

/* 64-bit: RSP from the TSS by IST or privilege, or the present one, aligned to 16. */
static bool stack_long(struct cpu *c, const struct gate *g, unsigned cpl, struct stack_frame *f)
{
    unsigned at = g->ist ? 0x24 + (g->ist - 1u) * 8 : 4 + cpl * 8;

    f->ss = c->seg[CPU_SS];
    f->sp = c->r[CPU_RSP];
    f->moved = cpl != c->cpl;
    if (f->moved)
        f->ss = (struct cpu_segment){
            (uint16_t)cpl, (uint16_t)(CPU_SEG_P | CPU_SEG_S | 2 | CPU_SEG_DB | cpl << 5), 0, 0};
    if (g->ist || f->moved) {
        if (at + 7 > c->tr.limit)
            return cpu_raise(c, VEC_TS, ERR_SEL(c->tr.selector));
        if (!mmu_sys_read(c, c->tr.base + at, 8, &f->sp))
            return false;
        if (!is_canonical(f->sp))
            return cpu_raise(c, VEC_SS, 0);
    }
    f->sp &= ~UINT64_C(15);
    f->size = 8;
    return true;
}

static bool stack_legacy(struct cpu *c, unsigned cpl, struct stack_frame *f)
{
    bool tss16 = !(c->tr.attr & 8);
    unsigned bytes = tss16 ? 2 : 4, at = tss16 ? 2 + cpl * 4 : 4 + cpl * 8;
    struct descriptor d;
    uint64_t sp, ss;

    f->moved = cpl != c->cpl;
    f->ss = c->seg[CPU_SS];
    f->sp = c->r[CPU_RSP];
    f->size = c->stack_size;
    if (!f->moved)
        return true;
    if (at + bytes + 1 > c->tr.limit)
        return cpu_raise(c, VEC_TS, ERR_SEL(c->tr.selector));
    if (!mmu_sys_read(c, c->tr.base + at, bytes, &sp) ||
        !mmu_sys_read(c, c->tr.base + at + bytes, 2, &ss) ||
        !seg_stack(c, (uint16_t)ss, cpl, VEC_TS, &d))
        return false;
    f->ss = d.s;
    f->sp = sp;
    f->size = d.s.attr & CPU_SEG_DB ? 4 : 2;
    return true;
}

static bool frame_push(struct cpu *c, struct stack_frame *f, unsigned size, unsigned cpl,
                       uint64_t v)
{
    uint64_t sp = addr_cut(f->sp - size, f->size);
    uint64_t lin = cpu_long(c) ? sp : (uint32_t)(f->ss.base + sp);

    if (!cpu_long(c) && (f->ss.attr & 4) == 0 && sp + size - 1 > f->ss.limit)
        return cpu_raise(c, VEC_SS, f->moved ? ERR_SEL(f->ss.selector) : 0);
    if (!(cpl == 3 ? mmu_write(c, lin, size, v) : mmu_sys_write(c, lin, size, v)))
        return false;
    f->sp = sp;
    return true;
}

static bool frame_build(struct cpu *c, const struct gate *g, struct stack_frame *f, unsigned cpl,
                        bool has_err, uint32_t err, uint64_t ip)
{
    unsigned n = g->size;

    if (f->moved || cpu_long(c))
        if (!frame_push(c, f, n, cpl, c->seg[CPU_SS].selector) ||
            !frame_push(c, f, n, cpl, c->r[CPU_RSP]))
            return false;
    return frame_push(c, f, n, cpl, fl_get(c)) &&
           frame_push(c, f, n, cpl, c->seg[CPU_CS].selector) && frame_push(c, f, n, cpl, ip) &&
           (!has_err || frame_push(c, f, n, cpl, err));
}

static bool enter_protected(struct cpu *c, unsigned vec, enum exc_source src, bool has_err,
                            uint32_t err, uint64_t ip)
{
    struct descriptor d;
    struct stack_frame f;
    struct gate g;
    unsigned cpl;

    if (!gate_read(c, vec, src, &g) || !target_ok(c, &g, src != EXC_SOFT, &d, &cpl))
        return false;
    if (!(cpu_long(c) ? stack_long(c, &g, cpl, &f) : stack_legacy(c, cpl, &f)))
        return false;
    if (!frame_build(c, &g, &f, cpl, has_err, err, ip))
        return false;
    reg_set(c, CPU_RSP, f.size, f.sp);
    c->seg[CPU_SS] = f.ss;
    c->fl_sys &= ~(FL_TF | FL_NT | FL_RF | FL_VM | (g.type & 1 ? 0 : FL_IF));
    c->rip = g.offset;
    seg_set_cs(c, g.selector, &d, cpl);
    return true;
}

static bool enter_real(struct cpu *c, unsigned vec, uint64_t ip)
{
    uint64_t sp = c->r[CPU_RSP], entry;

    if (vec * 4 + 3 > c->idt_limit)
        return cpu_raise(c, VEC_GP, 0);
    if (!mmu_sys_read(c, c->idt_base + vec * 4, 4, &entry) ||
        !stack_store(c, sp - 2, 2, fl_get(c)) ||
        !stack_store(c, sp - 4, 2, c->seg[CPU_CS].selector) || !stack_store(c, sp - 6, 2, ip))
        return false;
    stack_set(c, sp - 6);
    c->fl_sys &= ~(FL_TF | FL_IF | FL_AC | FL_RF);
    c->rip = (uint16_t)entry;
    seg_load_real(c, CPU_CS, (uint16_t)(entry >> 16));
    return true;
}

bool exc_enter(struct cpu *c, unsigned vec, enum exc_source src, bool has_err, uint32_t err,
               uint64_t ip)
{
    if (!cpu_protected(c))
        return enter_real(c, vec, ip);
    return enter_protected(c, vec, src, has_err, err, ip);
}

static bool has_error_code(unsigned vec)
{
    return vec == VEC_DF || (vec >= VEC_TS && vec <= VEC_PF) || vec == VEC_AC;
}

static bool contributory(unsigned vec)
{
    return vec == VEC_DE || (vec >= VEC_TS && vec <= VEC_GP);
}

static bool makes_double(unsigned first, unsigned second)
{
    return (contributory(first) && contributory(second)) ||
           (first == VEC_PF && (second == VEC_PF || contributory(second)));
}

static bool triple_fault(struct cpu *c, unsigned vec, uint32_t err)
{
    snprintf(c->v->detail, sizeof c->v->detail,
             "vector %u error %#x rip %#llx rsp %#llx cr0 %#llx cr2 %#llx cr3 %#llx", vec, err,
             (unsigned long long)c->rip, (unsigned long long)c->r[CPU_RSP],
             (unsigned long long)c->cr0, (unsigned long long)c->cr2, (unsigned long long)c->cr3);
    return cpu_leave(c, CPU_EXIT_TRIPLE_FAULT);
}

bool exc_deliver(struct cpu *c)
{
    struct cpu_exc e = c->exc, first = e;

    for (;;) {
        c->exc.pending = false;
        if (exc_enter(c, e.vec, e.external ? EXC_EXTERN : EXC_FAULT,
                      !e.external && has_error_code(e.vec), e.err, c->rip))
            return true;
        if (c->exiting) { /* memory ran out in between: again when the run goes on */
            c->exc = e;
            return false;
        }
        if (!e.external && e.vec == VEC_DF)
            return triple_fault(c, first.vec, first.err);
        if (!e.external && makes_double(e.vec, c->exc.vec))
            e = (struct cpu_exc){.vec = VEC_DF, .pending = true};
        else
            e = c->exc;
    }
}
