/*
 * Instructions whose memory operand changes in one piece for all vCPUs: by compare and exchange on
 * the guest's memory. The new value is computed by the handler of the register form, on REG_MEM; an
 * exchange that fails undoes what it did and goes round again.
 *
 * An operand over a cache line's end would be a split lock of the host, which hosts punish, and one
 * over a page's end is in two places: for these the vCPU is alone for a moment (soft_vm.h).
 */
#include "hv/cpu/soft/code.h"
#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"
#include "hv/cpu/soft/soft_vm.h"

#define LINE 64u

static bool in_line(uint64_t lin, unsigned size)
{
    return (lin & (LINE - 1)) + size <= LINE;
}

/* In assembly because the operand need not be aligned. */
#define SWAP(suffix, type)                                                                         \
    __asm__ volatile("lock cmpxchg" suffix " %3, %1\n\tsete %0"                                    \
                     : "=q"(done), "+m"(*(type *)(void *)p), "+a"(*old)                            \
                     : "r"((type) new)                                                             \
                     : "memory", "cc")

/* *p: *old -> new. False: *old is what is there. Only the low `size` bytes of *old count. */
static bool swap(uint8_t *p, unsigned size, uint64_t *old, uint64_t new)
{
    bool done;

    switch (size) {
    case 1:
        SWAP("b", uint8_t);
        break;
    case 2:
        SWAP("w", uint16_t);
        break;
    case 4:
        SWAP("l", uint32_t);
        break;
    default:
        SWAP("q", uint64_t);
        break;
    }
    return done;
}

/* What a computation may change and a failed exchange takes back. */
struct undo {
    uint64_t rax, reg, fl_res, fl_cv;
    uint32_t fl_aux;
};

/* The general register that a register operand lies in. */
static unsigned whole(unsigned reg)
{
    return reg >= REG_HIGH ? reg - REG_HIGH : reg;
}

static struct undo undo_note(const struct cpu *c, const struct op *op)
{
    return (struct undo){c->r[CPU_RAX], c->r[whole(op->reg)], c->fl_res, c->fl_cv, c->fl_aux};
}

static void undo(struct cpu *c, const struct op *op, const struct undo *u)
{
    c->r[whole(op->reg)] = u->reg;
    c->r[CPU_RAX] = u->rax;
    c->fl_res = u->fl_res;
    c->fl_cv = u->fl_cv;
    c->fl_aux = u->fl_aux;
}

static op_fn register_form(const struct op *op)
{
    static const op_fn fns[] = {
        [LOCKED_INC_DEC] = exec_inc_dec, [LOCKED_NEG] = exec_neg,   [LOCKED_NOT] = exec_not,
        [LOCKED_BT] = exec_bt,           [LOCKED_XCHG] = exec_xchg, [LOCKED_XADD] = exec_xadd,
        [LOCKED_CMPXCHG] = exec_cmpxchg};

    if (op->size2 == LOCKED_ALU)
        return exec_alu((enum alu)op->sub, op->flags & OPF_IMM ? FORM_RI : FORM_RR, op->size);
    return fns[op->size2];
}

/* New value of the operand that is `old`. `reg_op` is followed by the end op. */
static uint64_t compute(struct cpu *c, const struct op *reg_op, uint64_t old)
{
    const struct op *op = c->op;

    c->r[REG_MEM] = old;
    reg_op->fn(c, reg_op);
    c->op = op;
    return c->r[REG_MEM];
}

static enum op_result exchange(struct cpu *c, const struct op *reg_op, uint8_t *p)
{
    struct undo u = undo_note(c, reg_op);
    uint64_t old = host_load(p, reg_op->size), new;

    for (;;) {
        new = compute(c, reg_op, old);
        if (likely(swap(p, reg_op->size, &old, new)))
            return R_OK;
        undo(c, reg_op, &u);
    }
}

/* Two accesses: while nobody else runs, or of a device. */
static enum op_result in_pieces(struct cpu *c, const struct op *reg_op, uint64_t lin)
{
    struct undo u = undo_note(c, reg_op);
    uint64_t old, new;

    if (!mem_load_w(c, lin, reg_op->size, &old))
        return R_STOP;
    new = compute(c, reg_op, old);
    if (mem_store(c, lin, reg_op->size, new))
        return R_OK;
    undo(c, reg_op, &u);
    return R_STOP;
}

static enum op_result alone(struct cpu *c, const struct op *reg_op, uint64_t lin)
{
    enum op_result r;

    soft_vm_alone(c);
    r = in_pieces(c, reg_op, lin);
    soft_vm_together(c);
    return r;
}

enum op_result exec_locked(struct cpu *c, const struct op *op)
{
    struct op reg_op[2] = {*op, code_end_op};
    struct mmu_ref ref;
    enum op_result r;
    uint64_t lin;
    uint8_t *p;

    if (!(op->size2 == LOCKED_BT ? bt_lin(c, op, MMU_W, &lin)
                                 : op_lin(c, op, op->size, MMU_W, &lin)))
        return R_STOP;
    reg_op->fn = register_form(op);
    reg_op->flags = (uint8_t)(op->flags & ~OPF_MEM);
    reg_op->rm = REG_MEM;
    if (unlikely(!in_line(lin, op->size)))
        return alone(c, reg_op, lin);
    p = tlb_w(c, lin, op->size);
    if (likely(p))
        return exchange(c, reg_op, p);
    if (!mmu_ref(c, lin, MMU_W, c->cpl == 3, &ref))
        return R_STOP;
    if (!ref.host)
        return in_pieces(c, reg_op, lin);
    r = exchange(c, reg_op, ref.host);
    mmu_told(c, ref.gpa, op->size);
    return r;
}

/* ---- CMPXCHG8B and 16B: size is that of a half; locked with and without the prefix */

struct pair {
    uint64_t low, high;
};

static bool swap_pair(uint8_t *p, unsigned half, struct pair *old, const struct pair *new)
{
    uint64_t v;
    bool done;

    if (half == 8) {
        __asm__ volatile("lock cmpxchg16b %1\n\tsete %0"
                         : "=q"(done), "+m"(*(struct pair *)(void *)p), "+a"(old->low),
                           "+d"(old->high)
                         : "b"(new->low), "c"(new->high)
                         : "memory", "cc");
        return done;
    }
    v = (uint32_t)old->low | old->high << 32;
    done = swap(p, 8, &v, (uint32_t) new->low | new->high << 32);
    *old = (struct pair){(uint32_t)v, v >> 32};
    return done;
}

/* The operand was `old`, and has been exchanged or not. */
static void pair_done(struct cpu *c, unsigned half, const struct pair *old, bool equal)
{
    if (!equal) {
        reg_set(c, CPU_RAX, half, old->low);
        reg_set(c, CPU_RDX, half, old->high);
    }
    fl_set_zf(c, equal);
}

static enum op_result pair_in_pieces(struct cpu *c, unsigned half, uint64_t lin,
                                     const struct pair *want, const struct pair *new)
{
    struct pair now;
    bool equal;

    if (!mem_load_w(c, lin, half, &now.low) || !mem_load_w(c, lin + half, half, &now.high))
        return R_STOP;
    equal = now.low == want->low && now.high == want->high;
    if (!mem_store(c, lin, half, equal ? new->low : now.low) ||
        !mem_store(c, lin + half, half, equal ? new->high : now.high))
        return R_STOP;
    pair_done(c, half, &now, equal);
    return R_OK;
}

enum op_result exec_cmpxchg_pair(struct cpu *c, const struct op *op)
{
    unsigned half = op->size;
    struct pair old = {reg_get(c, CPU_RAX, half), reg_get(c, CPU_RDX, half)};
    struct pair new = {reg_get(c, CPU_RBX, half), reg_get(c, CPU_RCX, half)}, want = old;
    enum op_result r;
    uint64_t lin;
    uint8_t *p;

    if (!op_lin(c, op, half * 2, MMU_W, &lin))
        return R_STOP;
    if (half == 8 && (lin & 15))
        return op_raise(c, VEC_GP, 0);
    p = in_line(lin, half * 2) ? tlb_w(c, lin, half * 2) : NULL;
    if (likely(p)) {
        pair_done(c, half, &old, swap_pair(p, half, &old, &new));
        return R_OK;
    }
    soft_vm_alone(c); /* splits, devices, and the rare first touch of a page */
    r = pair_in_pieces(c, half, lin, &want, &new);
    soft_vm_together(c);
    return r;
}
