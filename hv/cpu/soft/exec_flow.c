/* Branches, calls, far transfers, returns from interrupts, system calls. */
#include "hv/cpu/soft/exc.h"
#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"
#include "hv/cpu/soft/seg.h"

/* ---- near */

/* An instruction pointer of `size` bytes may be gone to. */
static bool target_near(struct cpu *c, uint64_t ip, unsigned size, uint64_t *to)
{
    *to = addr_cut(ip, size);
    if (c->mode == MODE_64 ? !is_canonical(*to) : *to > c->seg[CPU_CS].limit)
        return cpu_raise(c, VEC_GP, 0);
    return true;
}

static enum op_result jump_near(struct cpu *c, uint64_t ip, unsigned size)
{
    uint64_t to;

    return target_near(c, ip, size, &to) ? op_jump(c, to) : R_STOP;
}

enum op_result exec_jmp(struct cpu *c, const struct op *op)
{
    return jump_near(c, c->next + op->imm, op->size);
}

static __attribute__((noinline)) enum op_result jump_slow(struct cpu *c, const struct op *op)
{
    return jump_near(c, c->next + op->imm, op->size);
}

/* One for each condition. */
#define JCC_FN(cc)                                                                                 \
    static enum op_result jcc_##cc(struct cpu *c, const struct op *op)                             \
    {                                                                                              \
        uint64_t to = c->next + op->imm;                                                           \
                                                                                                   \
        if (!fl_cond(c, cc))                                                                       \
            return op_next(c, op);                                                                 \
        if (unlikely(c->mode != MODE_64) || unlikely(op->size != 8) ||                             \
            unlikely(!is_canonical(to)))                                                           \
            return jump_slow(c, op);                                                               \
        return op_jump(c, to);                                                                     \
    }
JCC_FN(0)
JCC_FN(1)
JCC_FN(2)
JCC_FN(3)
JCC_FN(4)
JCC_FN(5)
JCC_FN(6)
JCC_FN(7)
JCC_FN(8)
JCC_FN(9)
JCC_FN(10)
JCC_FN(11)
JCC_FN(12)
JCC_FN(13)
JCC_FN(14)
JCC_FN(15)

op_fn exec_jcc(unsigned cc)
{
    static const op_fn fns[16] = {jcc_0, jcc_1, jcc_2,  jcc_3,  jcc_4,  jcc_5,  jcc_6,  jcc_7,
                                  jcc_8, jcc_9, jcc_10, jcc_11, jcc_12, jcc_13, jcc_14, jcc_15};

    return fns[cc];
}

/* LOOPNE LOOPE LOOP JCXZ: sub 0 to 3 */
enum op_result exec_loop(struct cpu *c, const struct op *op)
{
    uint64_t n = addr_cut(c->r[CPU_RCX] - (op->sub != 3), op->asz), to;
    bool taken = op->sub == 3 ? n == 0 : n != 0;

    if (op->sub < 2)
        taken = taken && fl_zf(c) == (op->sub == 1);
    if (taken && !target_near(c, c->next + op->imm, op->size, &to))
        return R_STOP;
    if (op->sub != 3)
        reg_set(c, CPU_RCX, op->asz, n);
    return taken ? op_jump(c, to) : R_OK;
}

enum op_result exec_jmp_rm(struct cpu *c, const struct op *op)
{
    uint64_t v;

    return rm_get(c, op, op->size, &v) ? jump_near(c, v, op->size) : R_STOP;
}

static __attribute__((noinline)) enum op_result call_near(struct cpu *c, uint64_t ip, unsigned size)
{
    uint64_t to;

    if (!target_near(c, ip, size, &to) || !stack_push(c, size, c->next))
        return R_STOP;
    return op_jump(c, to);
}

enum op_result exec_call(struct cpu *c, const struct op *op)
{
    uint64_t to = c->next + op->imm;
    uint8_t *p = fast_push(c);

    if (likely(p) && likely(op->size == 8) && likely(is_canonical(to))) {
        host_store(p, 8, c->next);
        c->r[CPU_RSP] -= 8;
        return op_jump(c, to);
    }
    return call_near(c, c->next + op->imm, op->size);
}

enum op_result exec_call_rm(struct cpu *c, const struct op *op)
{
    uint64_t v;

    return rm_get(c, op, op->size, &v) ? call_near(c, v, op->size) : R_STOP;
}

static __attribute__((noinline)) enum op_result ret_slow(struct cpu *c, const struct op *op)
{
    uint64_t sp = c->r[CPU_RSP], v, to;

    if (!stack_load(c, sp, op->size, &v) || !target_near(c, v, op->size, &to))
        return R_STOP;
    stack_set(c, sp + op->size + op->imm);
    return op_jump(c, to);
}

enum op_result exec_ret(struct cpu *c, const struct op *op)
{
    const uint8_t *p = fast_pop(c);
    uint64_t to;

    if (unlikely(!p) || unlikely(op->size != 8))
        return ret_slow(c, op);
    to = host_load(p, 8);
    if (unlikely(!is_canonical(to)))
        return ret_slow(c, op);
    c->r[CPU_RSP] += 8 + op->imm;
    return op_jump(c, to);
}

/* ---- far */

/* The target of a far jump or call: a code segment. Gates and task switches are not offered: #GP.
 */
static bool far_target(struct cpu *c, uint16_t sel, uint64_t ip, struct descriptor *d)
{
    bool wide;

    if (!seg_code_ok(c, sel, d, false))
        return false;
    wide = cpu_long(c) && (d->s.attr & CPU_SEG_L);
    if (wide ? !is_canonical(ip) : ip > d->s.limit)
        return cpu_raise(c, VEC_GP, 0);
    return true;
}

static enum op_result go_far(struct cpu *c, uint16_t sel, uint64_t ip, unsigned size, bool call)
{
    uint64_t sp = c->r[CPU_RSP];
    struct descriptor d;

    if (cpu_descriptors(c) && !far_target(c, sel, ip, &d))
        return R_STOP;
    if (call) {
        if (!stack_store(c, sp - size, size, c->seg[CPU_CS].selector) ||
            !stack_store(c, sp - 2 * size, size, c->next))
            return R_STOP;
        stack_set(c, sp - 2 * size);
    }
    if (cpu_descriptors(c))
        seg_set_cs(c, sel, &d, c->cpl);
    else
        seg_load_real(c, CPU_CS, sel);
    return op_look(c, ip);
}

/* imm: offset, disp: selector, sub: call */
enum op_result exec_far_imm(struct cpu *c, const struct op *op)
{
    return go_far(c, (uint16_t)op->disp, op->imm, op->size, op->sub);
}

enum op_result exec_far_mem(struct cpu *c, const struct op *op)
{
    uint64_t lin, ip, sel;

    if (!op_lin(c, op, op->size + 2u, MMU_R, &lin) || !mem_load(c, lin, op->size, &ip) ||
        !mem_load(c, lin + op->size, 2, &sel))
        return R_STOP;
    return go_far(c, (uint16_t)sel, ip, op->size, op->sub);
}

/* ---- returns */

struct far_return {
    uint64_t ip, sp;
    uint16_t cs, ss;
    bool stack; /* sp and ss were on the stack */
};

/* Checks and enters CS:IP (and SS:SP) of a protected return. `sp_after`: when the stack stays. */
static bool return_to(struct cpu *c, const struct far_return *r, uint64_t sp_after)
{
    unsigned rpl = SEL_RPL(r->cs);
    struct descriptor cs, ss = {0};
    bool wide, null_ss;

    if (!seg_code_ok(c, r->cs, &cs, true))
        return false;
    wide = cpu_long(c) && (cs.s.attr & CPU_SEG_L);
    if (wide ? !is_canonical(r->ip) : r->ip > cs.s.limit)
        return cpu_raise(c, VEC_GP, 0);
    null_ss = wide && rpl != 3 && SEL_NULL(r->ss) && SEL_RPL(r->ss) == rpl;
    if (r->stack && null_ss)
        ss.s = (struct cpu_segment){
            r->ss, (uint16_t)(CPU_SEG_P | CPU_SEG_S | 2 | CPU_SEG_DB | rpl << 5), 0, 0};
    else if (r->stack && !seg_stack(c, r->ss, rpl, VEC_GP, &ss))
        return false;
    c->rip = r->ip;
    if (r->stack)
        c->seg[CPU_SS] = ss.s;
    seg_set_cs(c, r->cs, &cs, rpl);
    if (r->stack)
        reg_set(c, CPU_RSP, wide ? 8 : c->stack_size, r->sp);
    else
        stack_set(c, sp_after);
    return true;
}

static bool pop_words(struct cpu *c, uint64_t sp, unsigned size, unsigned n, uint64_t *v)
{
    for (unsigned i = 0; i < n; i++)
        if (!stack_load(c, sp + i * size, size, &v[i]))
            return false;
    return true;
}

enum op_result exec_ret_far(struct cpu *c, const struct op *op)
{
    uint64_t sp = c->r[CPU_RSP], v[2], s[2] = {0, 0};
    unsigned size = op->size, cpl = c->cpl;
    struct far_return r;

    if (!pop_words(c, sp, size, 2, v))
        return R_STOP;
    if (!cpu_descriptors(c)) {
        stack_set(c, sp + 2 * size + op->imm);
        seg_load_real(c, CPU_CS, (uint16_t)v[1]);
        return op_look(c, addr_cut(v[0], size));
    }
    r = (struct far_return){.ip = v[0], .cs = (uint16_t)v[1]};
    r.stack = SEL_RPL(r.cs) > cpl;
    if (r.stack && !pop_words(c, sp + 2 * size + op->imm, size, 2, s))
        return R_STOP;
    r.sp = s[0] + op->imm;
    r.ss = (uint16_t)s[1];
    if (!return_to(c, &r, sp + 2 * size + op->imm))
        return R_STOP;
    if (c->cpl > cpl)
        seg_drop_privileged(c);
    return R_LOOK;
}

static uint32_t iret_mask(const struct cpu *c, unsigned size)
{
    unsigned iopl = (c->fl_sys & FL_IOPL) >> 12;
    uint32_t mask = FL_ARITH | FL_TF | FL_DF | FL_NT;

    if (size > 2)
        mask |= FL_RF | FL_AC | FL_ID;
    if (c->cpl == 0)
        mask |= FL_IOPL;
    if (c->cpl <= iopl)
        mask |= FL_IF;
    return mask;
}

static enum op_result iret_real(struct cpu *c, const struct op *op)
{
    uint64_t sp = c->r[CPU_RSP], v[3];

    if (!pop_words(c, sp, op->size, 3, v))
        return R_STOP;
    stack_set(c, sp + 3 * op->size);
    seg_load_real(c, CPU_CS, (uint16_t)v[1]);
    cpu_set_rflags(c, v[2], iret_mask(c, op->size));
    return op_look(c, addr_cut(v[0], op->size));
}

enum op_result exec_iret(struct cpu *c, const struct op *op)
{
    unsigned size = op->size, cpl = c->cpl;
    uint64_t sp = c->r[CPU_RSP], v[5] = {0};
    struct far_return r;
    uint32_t mask;

    c->nmi_blocked = false;
    if (!cpu_descriptors(c))
        return iret_real(c, op);
    if ((c->fl_sys & FL_NT) && !cpu_long(c))
        return op_raise(c, VEC_GP, 0); /* a task switch: not offered */
    if (!pop_words(c, sp, size, 3, v))
        return R_STOP;
    if (!cpu_long(c) && size == 4 && (v[2] & FL_VM) && c->cpl == 0)
        return op_raise(c, VEC_GP, 0); /* virtual-8086 mode: not offered */
    r = (struct far_return){.ip = v[0], .cs = (uint16_t)v[1]};
    r.stack = c->mode == MODE_64 || SEL_RPL(r.cs) > cpl;
    if (r.stack && !pop_words(c, sp + 3 * size, size, 2, v + 3))
        return R_STOP;
    r.sp = v[3];
    r.ss = (uint16_t)v[4];
    mask = iret_mask(c, size);
    if (!return_to(c, &r, sp + 3 * size))
        return R_STOP;
    cpu_set_rflags(c, v[2], mask);
    if (c->cpl > cpl)
        seg_drop_privileged(c);
    return R_LOOK;
}

/* ---- software interrupts: imm is the vector */

static enum op_result soft_interrupt(struct cpu *c, unsigned vec)
{
    return exc_enter(c, vec, EXC_SOFT, false, 0, c->next) ? R_LOOK : R_STOP;
}

enum op_result exec_int_n(struct cpu *c, const struct op *op)
{
    return soft_interrupt(c, (unsigned)op->imm & 0xff);
}

enum op_result exec_into(struct cpu *c, const struct op *op)
{
    (void)op;
    return fl_of(c) ? soft_interrupt(c, VEC_OF) : R_OK;
}

enum op_result exec_bound(struct cpu *c, const struct op *op)
{
    int64_t i = (int64_t)sign_extend(c->r[op->reg], op->size);
    uint64_t lin, low, high;

    if (!op_lin(c, op, op->size * 2u, MMU_R, &lin) || !mem_load(c, lin, op->size, &low) ||
        !mem_load(c, lin + op->size, op->size, &high))
        return R_STOP;
    if (i < (int64_t)sign_extend(low, op->size) || i > (int64_t)sign_extend(high, op->size))
        return op_raise(c, VEC_BR, 0);
    return R_OK;
}

/* ---- system calls */

static struct cpu_segment flat(unsigned sel, unsigned type, unsigned dpl, unsigned width)
{
    return (struct cpu_segment){
        (uint16_t)sel, (uint16_t)(type | CPU_SEG_S | CPU_SEG_P | CPU_SEG_G | dpl << 5 | width),
        0xffffffffu, 0};
}

#define TYPE_CODE 0xbu
#define TYPE_DATA 0x3u

static void set_flat(struct cpu *c, unsigned cs, unsigned ss, unsigned dpl, unsigned width)
{
    c->seg[CPU_CS] = flat(cs | dpl, TYPE_CODE, dpl, width);
    c->seg[CPU_SS] = flat(ss | dpl, TYPE_DATA, dpl, CPU_SEG_DB);
    cpu_update_mode(c);
}

enum op_result exec_syscall(struct cpu *c, const struct op *op)
{
    unsigned cs = (unsigned)(c->star >> 32) & 0xfffc;
    uint64_t flags = fl_get(c) & ~FL_RF;

    (void)op;
    if (!(c->efer & EFER_SCE) || !cpu_descriptors(c))
        return op_raise(c, VEC_UD, 0);
    reg_set(c, CPU_RCX, cpu_long(c) ? 8 : 4, c->next);
    if (cpu_long(c)) {
        bool compat = c->mode != MODE_64;

        c->r[11] = flags;
        cpu_set_rflags(c, flags & ~c->sfmask, ~(FL_RF | FL_VM));
        c->rip = compat ? c->cstar : c->lstar;
        set_flat(c, cs, cs + 8, 0, CPU_SEG_L);
    } else {
        cpu_set_rflags(c, 0, FL_IF);
        c->rip = (uint32_t)c->star;
        set_flat(c, cs, cs + 8, 0, CPU_SEG_DB);
    }
    return R_LOOK;
}

enum op_result exec_sysret(struct cpu *c, const struct op *op)
{
    unsigned base = (unsigned)(c->star >> 48) & 0xfffc;

    if (!(c->efer & EFER_SCE) || !cpu_descriptors(c))
        return op_raise(c, VEC_UD, 0);
    if (c->cpl || (op->size == 8 && !is_canonical(c->r[CPU_RCX])))
        return op_raise(c, VEC_GP, 0);
    if (cpu_long(c))
        cpu_set_rflags(c, c->r[11], ~(FL_RF | FL_VM | FL_ONE));
    else
        cpu_set_rflags(c, FL_IF, FL_IF);
    if (op->size == 8) {
        c->rip = c->r[CPU_RCX];
        set_flat(c, base + 16, base + 8, 3, CPU_SEG_L);
    } else {
        c->rip = (uint32_t)c->r[CPU_RCX];
        set_flat(c, base, base + 8, 3, CPU_SEG_DB);
    }
    return R_LOOK;
}

enum op_result exec_sysenter(struct cpu *c, const struct op *op)
{
    unsigned cs = (unsigned)c->sysenter_cs & 0xfffc;

    (void)op;
    if (!cpu_protected(c) || !cs)
        return op_raise(c, VEC_GP, 0);
    cpu_set_rflags(c, 0, FL_IF | FL_VM);
    c->r[CPU_RSP] = cpu_long(c) ? c->sysenter_esp : (uint32_t)c->sysenter_esp;
    c->rip = cpu_long(c) ? c->sysenter_eip : (uint32_t)c->sysenter_eip;
    set_flat(c, cs, cs + 8, 0, cpu_long(c) ? CPU_SEG_L : CPU_SEG_DB);
    return R_LOOK;
}

enum op_result exec_sysexit(struct cpu *c, const struct op *op)
{
    unsigned cs = (unsigned)c->sysenter_cs & 0xfffc;
    bool wide = op->size == 8;

    if (!cpu_protected(c) || c->cpl || !cs)
        return op_raise(c, VEC_GP, 0);
    if (wide && (!is_canonical(c->r[CPU_RCX]) || !is_canonical(c->r[CPU_RDX])))
        return op_raise(c, VEC_GP, 0);
    c->rip = wide ? c->r[CPU_RDX] : (uint32_t)c->r[CPU_RDX];
    c->r[CPU_RSP] = wide ? c->r[CPU_RCX] : (uint32_t)c->r[CPU_RCX];
    set_flat(c, cs + (wide ? 32 : 16), cs + (wide ? 40 : 24), 3, wide ? CPU_SEG_L : CPU_SEG_DB);
    return R_LOOK;
}
