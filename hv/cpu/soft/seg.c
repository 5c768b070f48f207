#include "hv/cpu/soft/seg.h"

#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"

#define TYPE_LDT       0x2u
#define TYPE_TSS16     0x1u
#define TYPE_TSS       0x9u
#define TYPE_BUSY      0x2u
#define ACCESSED       0x1u
#define ATTR_SYSTEM(a) (((a)&CPU_SEG_S) == 0)

static struct cpu_segment unpack(uint64_t raw, uint16_t sel)
{
    struct cpu_segment s = {.selector = sel};

    s.attr = (uint16_t)((raw >> 40 & 0xff) | (raw >> 44 & 0xf00));
    s.base = (raw >> 16 & 0xffffff) | (raw >> 32 & 0xff000000);
    s.limit = (uint32_t)((raw & 0xffff) | (raw >> 32 & 0xf0000));
    if (s.attr & CPU_SEG_G)
        s.limit = s.limit << 12 | 0xfff;
    return s;
}

bool seg_read(struct cpu *c, uint16_t sel, unsigned vec, struct descriptor *d)
{
    bool local = (sel & 4) != 0;
    uint64_t base = local ? c->ldtr.base : c->gdt_base;
    uint32_t limit = local ? c->ldtr.limit : c->gdt_limit;

    if ((local && !(c->ldtr.attr & CPU_SEG_P)) || (sel | 7u) > limit)
        return cpu_raise(c, vec, ERR_SEL(sel));
    d->lin = base + (sel & 0xfff8u);
    if (!cpu_long(c))
        d->lin = (uint32_t)d->lin;
    if (!mmu_sys_read(c, d->lin, 8, &d->raw))
        return false;
    d->s = unpack(d->raw, sel);
    return true;
}

bool seg_access(struct cpu *c, struct descriptor *d)
{
    if (d->s.attr & ACCESSED)
        return true;
    d->s.attr |= ACCESSED;
    return mmu_sys_write(c, d->lin + 5, 1, d->s.attr & 0xff);
}

void seg_load_real(struct cpu *c, unsigned n, uint16_t sel)
{
    struct cpu_segment *s = &c->seg[n];

    s->selector = sel;
    s->base = (uint64_t)sel << 4;
    if (!(s->attr & CPU_SEG_P) || n == CPU_CS)
        *s = (struct cpu_segment){sel, 0x93, n == CPU_CS ? s->limit : 0xffff, s->base};
    cpu_update_mode(c);
}

bool seg_stack(struct cpu *c, uint16_t sel, unsigned cpl, unsigned vec, struct descriptor *d)
{
    if (SEL_NULL(sel))
        return cpu_raise(c, vec, 0);
    if (!seg_read(c, sel, vec, d))
        return false;
    if (SEL_RPL(sel) != cpl || ATTR_DPL(d->s.attr) != cpl || (d->s.attr & 0x1a) != 0x12)
        return cpu_raise(c, vec, ERR_SEL(sel));
    if (!(d->s.attr & CPU_SEG_P))
        return cpu_raise(c, VEC_SS, ERR_SEL(sel));
    return seg_access(c, d);
}

static bool load_null(struct cpu *c, unsigned n, uint16_t sel)
{
    if (n == CPU_SS && (c->mode != MODE_64 || c->cpl == 3 || SEL_RPL(sel) != c->cpl))
        return cpu_raise(c, VEC_GP, 0);
    c->seg[n] = (struct cpu_segment){.selector = sel};
    if (n == CPU_SS) /* keeps the privilege */
        c->seg[n].attr = (uint16_t)(CPU_SEG_P | CPU_SEG_S | 2 | CPU_SEG_DB | c->cpl << 5);
    cpu_update_mode(c);
    return true;
}

bool seg_load(struct cpu *c, unsigned n, uint16_t sel)
{
    struct descriptor d;
    uint16_t a;

    if (!cpu_descriptors(c)) {
        seg_load_real(c, n, sel);
        return true;
    }
    if (SEL_NULL(sel))
        return load_null(c, n, sel);
    if (n == CPU_SS) {
        if (!seg_stack(c, sel, c->cpl, VEC_GP, &d))
            return false;
    } else {
        if (!seg_read(c, sel, VEC_GP, &d))
            return false;
        a = d.s.attr;
        if (ATTR_SYSTEM(a) || (ATTR_IS_CODE(a) && !(a & 2)))
            return cpu_raise(c, VEC_GP, ERR_SEL(sel));
        if (!ATTR_CONFORMING(a) && (ATTR_DPL(a) < c->cpl || ATTR_DPL(a) < SEL_RPL(sel)))
            return cpu_raise(c, VEC_GP, ERR_SEL(sel));
        if (!(a & CPU_SEG_P))
            return cpu_raise(c, VEC_NP, ERR_SEL(sel));
        if (!seg_access(c, &d))
            return false;
    }
    c->seg[n] = d.s;
    cpu_update_mode(c);
    return true;
}

bool seg_code_ok(struct cpu *c, uint16_t sel, struct descriptor *d, bool ret)
{
    unsigned rpl = SEL_RPL(sel);
    uint16_t a;

    if (SEL_NULL(sel))
        return cpu_raise(c, VEC_GP, 0);
    if (!seg_read(c, sel, VEC_GP, d))
        return false;
    a = d->s.attr;
    if (!ATTR_IS_CODE(a) || (cpu_long(c) && (a & CPU_SEG_L) && (a & CPU_SEG_DB)))
        return cpu_raise(c, VEC_GP, ERR_SEL(sel));
    if (ret) {
        if (rpl < c->cpl || (ATTR_CONFORMING(a) ? ATTR_DPL(a) > rpl : ATTR_DPL(a) != rpl))
            return cpu_raise(c, VEC_GP, ERR_SEL(sel));
    } else if (ATTR_CONFORMING(a) ? ATTR_DPL(a) > c->cpl : rpl > c->cpl || ATTR_DPL(a) != c->cpl) {
        return cpu_raise(c, VEC_GP, ERR_SEL(sel));
    }
    if (!(a & CPU_SEG_P))
        return cpu_raise(c, VEC_NP, ERR_SEL(sel));
    return seg_access(c, d);
}

void seg_set_cs(struct cpu *c, uint16_t sel, const struct descriptor *d, unsigned cpl)
{
    c->seg[CPU_CS] = d->s;
    c->seg[CPU_CS].selector = (uint16_t)((sel & ~3u) | cpl);
    cpu_update_mode(c);
}

void seg_drop_privileged(struct cpu *c)
{
    static const unsigned data[] = {CPU_ES, CPU_DS, CPU_FS, CPU_GS};

    for (unsigned i = 0; i < 4; i++) {
        struct cpu_segment *s = &c->seg[data[i]];

        if ((s->attr & CPU_SEG_P) && !ATTR_CONFORMING(s->attr) && ATTR_DPL(s->attr) < c->cpl)
            *s = (struct cpu_segment){0};
    }
    cpu_update_mode(c);
}

/* ---- instructions */

enum op_result exec_mov_from_seg(struct cpu *c, const struct op *op)
{
    unsigned size = op->flags & OPF_MEM ? 2 : op->size;

    return rm_put(c, op, size, c->seg[op->sub].selector) ? R_OK : R_STOP;
}

static enum op_result seg_loaded(struct cpu *c, unsigned n)
{
    c->shadow_next = c->shadow_stack = n == CPU_SS;
    return op_look(c, c->next); /* addresses may mean something else now */
}

enum op_result exec_mov_to_seg(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (op->sub == CPU_CS)
        return op_raise(c, VEC_UD, 0);
    if (!rm_get(c, op, 2, &v) || !seg_load(c, op->sub, (uint16_t)v))
        return R_STOP;
    return seg_loaded(c, op->sub);
}

enum op_result exec_push_seg(struct cpu *c, const struct op *op)
{
    return stack_push(c, op->size, c->seg[op->sub].selector) ? R_OK : R_STOP;
}

enum op_result exec_pop_seg(struct cpu *c, const struct op *op)
{
    uint64_t sp = c->r[CPU_RSP], v;
    unsigned width = c->stack_size;

    if (!stack_load(c, sp, op->size, &v) || !seg_load(c, op->sub, (uint16_t)v))
        return R_STOP;
    reg_set(c, CPU_RSP, width, sp + op->size);
    return seg_loaded(c, op->sub);
}

/* LDS LES LFS LGS LSS */
enum op_result exec_load_far_ptr(struct cpu *c, const struct op *op)
{
    uint64_t lin, off, sel;

    if (!op_lin(c, op, op->size + 2u, MMU_R, &lin) || !mem_load(c, lin, op->size, &off) ||
        !mem_load(c, lin + op->size, 2, &sel) || !seg_load(c, op->sub, (uint16_t)sel))
        return R_STOP;
    reg_set(c, op->reg, op->size, off);
    return op_look(c, c->next);
}

/* sub 0: GDT, 1: IDT */
enum op_result exec_lgdt(struct cpu *c, const struct op *op)
{
    unsigned bytes = c->mode == MODE_64 ? 8 : 4;
    uint64_t lin, limit, base;

    if (c->cpl)
        return op_raise(c, VEC_GP, 0);
    if (!op_lin(c, op, bytes + 2, MMU_R, &lin) || !mem_load(c, lin, 2, &limit) ||
        !mem_load(c, lin + 2, bytes, &base))
        return R_STOP;
    if (bytes == 8 && !is_canonical(base))
        return op_raise(c, VEC_GP, 0);
    if (op->size == 2 && bytes == 4)
        base &= 0xffffff;
    if (op->sub) {
        c->idt_base = base;
        c->idt_limit = (uint32_t)limit;
    } else {
        c->gdt_base = base;
        c->gdt_limit = (uint32_t)limit;
    }
    return R_OK;
}

enum op_result exec_sgdt(struct cpu *c, const struct op *op)
{
    unsigned bytes = c->mode == MODE_64 ? 8 : 4;
    uint64_t lin;

    if (!op_lin(c, op, bytes + 2, MMU_W, &lin) || !mmu_probe_write(c, lin, bytes + 2) ||
        !mem_store(c, lin, 2, op->sub ? c->idt_limit : c->gdt_limit) ||
        !mem_store(c, lin + 2, bytes, op->sub ? c->idt_base : c->gdt_base))
        return R_STOP;
    return R_OK;
}

static bool system_base_high(struct cpu *c, struct descriptor *d)
{
    uint64_t high;

    if (!cpu_long(c))
        return true;
    if (!mmu_sys_read(c, d->lin + 8, 8, &high))
        return false;
    d->s.base |= high << 32;
    return true;
}

static bool load_ldt(struct cpu *c, uint16_t sel)
{
    struct descriptor d;

    if (SEL_NULL(sel)) {
        c->ldtr = (struct cpu_segment){.selector = sel};
        return true;
    }
    if (sel & 4)
        return cpu_raise(c, VEC_GP, ERR_SEL(sel));
    if (!seg_read(c, sel, VEC_GP, &d))
        return false;
    if ((d.s.attr & 0x1f) != TYPE_LDT)
        return cpu_raise(c, VEC_GP, ERR_SEL(sel));
    if (!(d.s.attr & CPU_SEG_P))
        return cpu_raise(c, VEC_NP, ERR_SEL(sel));
    if (!system_base_high(c, &d))
        return false;
    c->ldtr = d.s;
    return true;
}

static bool load_tr(struct cpu *c, uint16_t sel)
{
    struct descriptor d;
    unsigned type;

    if (SEL_NULL(sel) || (sel & 4))
        return cpu_raise(c, VEC_GP, ERR_SEL(sel));
    if (!seg_read(c, sel, VEC_GP, &d))
        return false;
    type = d.s.attr & 0x1f;
    if (type != TYPE_TSS && (cpu_long(c) || type != TYPE_TSS16))
        return cpu_raise(c, VEC_GP, ERR_SEL(sel));
    if (!(d.s.attr & CPU_SEG_P))
        return cpu_raise(c, VEC_NP, ERR_SEL(sel));
    if (!system_base_high(c, &d))
        return false;
    d.s.attr |= TYPE_BUSY;
    if (!mmu_sys_write(c, d.lin + 5, 1, d.s.attr & 0xff))
        return false;
    c->tr = d.s;
    return true;
}

/* sub 0: LLDT, 1: LTR */
enum op_result exec_lldt(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!cpu_descriptors(c))
        return op_raise(c, VEC_UD, 0);
    if (c->cpl)
        return op_raise(c, VEC_GP, 0);
    if (!rm_get(c, op, 2, &v))
        return R_STOP;
    return (op->sub ? load_tr(c, (uint16_t)v) : load_ldt(c, (uint16_t)v)) ? R_OK : R_STOP;
}

enum op_result exec_sldt(struct cpu *c, const struct op *op)
{
    unsigned size = op->flags & OPF_MEM ? 2 : op->size;

    if (!cpu_descriptors(c))
        return op_raise(c, VEC_UD, 0);
    return rm_put(c, op, size, op->sub ? c->tr.selector : c->ldtr.selector) ? R_OK : R_STOP;
}

/* Reads a descriptor for LAR, LSL, VERR, VERW: what it may not see is no fault. */
static bool peek(struct cpu *c, uint16_t sel, struct descriptor *d, bool *seen)
{
    *seen = false;
    if (SEL_NULL(sel))
        return true;
    if (!seg_read(c, sel, VEC_GP, d)) {
        if (!c->exc.pending || c->exc.vec != VEC_GP)
            return false;
        c->exc.pending = false;
        return true;
    }
    *seen = ATTR_CONFORMING(d->s.attr) ||
            (ATTR_DPL(d->s.attr) >= c->cpl && ATTR_DPL(d->s.attr) >= SEL_RPL(sel));
    return true;
}

/* sub 0: VERR, 1: VERW */
enum op_result exec_verify(struct cpu *c, const struct op *op)
{
    struct descriptor d;
    uint64_t v;
    bool ok;

    if (!cpu_descriptors(c))
        return op_raise(c, VEC_UD, 0);
    if (!rm_get(c, op, 2, &v) || !peek(c, (uint16_t)v, &d, &ok))
        return R_STOP;
    if (ok && ATTR_SYSTEM(d.s.attr))
        ok = false;
    if (ok)
        ok = op->sub ? (d.s.attr & 0xa) == 2 : !ATTR_IS_CODE(d.s.attr) || (d.s.attr & 2);
    fl_set_zf(c, ok);
    return R_OK;
}

/* sub 0: LAR, 1: LSL */
enum op_result exec_lar(struct cpu *c, const struct op *op)
{
    struct descriptor d;
    uint64_t v;
    bool ok;

    if (!cpu_descriptors(c))
        return op_raise(c, VEC_UD, 0);
    if (!rm_get(c, op, 2, &v) || !peek(c, (uint16_t)v, &d, &ok))
        return R_STOP;
    if (ok && ATTR_SYSTEM(d.s.attr)) {
        unsigned type = d.s.attr & 0xf;

        ok = type == 2 || type == 9 || type == 11 ||
             (!cpu_long(c) && (type == 1 || type == 3 || (!op->sub && (type == 4 || type == 5))));
    }
    fl_set_zf(c, ok);
    if (ok)
        reg_set(c, op->reg, op->size, op->sub ? d.s.limit : d.raw >> 32 & 0xf0ff00);
    return R_OK;
}

enum op_result exec_arpl(struct cpu *c, const struct op *op)
{
    uint64_t v, lin, want = SEL_RPL(c->r[op->reg]);
    bool less;

    if (!cpu_descriptors(c))
        return op_raise(c, VEC_UD, 0);
    if (!rm_get_w(c, op, 2, &v, &lin))
        return R_STOP;
    less = SEL_RPL(v) < want;
    if (less && !rm_put_w(c, op, 2, (v & ~UINT64_C(3)) | want, lin))
        return R_STOP;
    fl_set_zf(c, less);
    return R_OK;
}
