/* Moves, stack, flags as data. */
#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"

#define INLINE static inline __attribute__((always_inline))

INLINE enum op_result mov_form(struct cpu *c, const struct op *op, enum form form, unsigned size)
{
    uint64_t lin, v;

    switch (form) {
    case FORM_RR:
        reg_set(c, op->rm, size, reg_get(c, op->reg, size));
        return R_OK;
    case FORM_RI:
        reg_set(c, op->rm, size, op->imm);
        return R_OK;
    case FORM_RM:
        if (!op_lin(c, op, size, MMU_R, &lin) || !mem_load(c, lin, size, &v))
            return R_STOP;
        reg_set(c, op->reg, size, v);
        return R_OK;
    default:
        v = form == FORM_MI ? op->imm : reg_get(c, op->reg, size);
        if (!op_lin(c, op, size, MMU_W, &lin) || !mem_store(c, lin, size, v))
            return R_STOP;
        return R_OK;
    }
}

INLINE bool mov_fast(struct cpu *c, const struct op *op, enum form form, unsigned size)
{
    uint8_t *p;

    switch (form) {
    case FORM_RR:
    case FORM_RI:
        mov_form(c, op, form, size);
        return true;
    case FORM_RM:
        p = fast_r(c, op, size);
        if (likely(p))
            reg_set(c, op->reg, size, host_load(p, size));
        return p;
    default:
        p = fast_w(c, op, size);
        if (likely(p))
            host_store(p, size, form == FORM_MI ? op->imm : reg_get(c, op->reg, size));
        return p;
    }
}

/* The slow half is a function of its own, so that the fast one saves no registers. */
#define MOV_FN(form, size)                                                                         \
    static __attribute__((noinline)) enum op_result mov_slow_##form##_##size(struct cpu *c,        \
                                                                             const struct op *op)  \
    {                                                                                              \
        return mov_form(c, op, FORM_##form, size);                                                 \
    }                                                                                              \
    static enum op_result mov_##form##_##size(struct cpu *c, const struct op *op)                  \
    {                                                                                              \
        if (likely(mov_fast(c, op, FORM_##form, size)))                                            \
            return op_next(c, op);                                                                 \
        return mov_slow_##form##_##size(c, op);                                                    \
    }
#define MOV_SIZES(form) MOV_FN(form, 1) MOV_FN(form, 2) MOV_FN(form, 4) MOV_FN(form, 8)
MOV_SIZES(RR)
MOV_SIZES(RI)
MOV_SIZES(RM)
MOV_SIZES(MR)
MOV_SIZES(MI)

#define MOV_ROW(form)                                                                              \
    [FORM_##form] = {mov_##form##_1, mov_##form##_2, mov_##form##_4, mov_##form##_8}

op_fn exec_mov(enum form form, unsigned size)
{
    static const op_fn fns[FORMS][4] = {MOV_ROW(RR), MOV_ROW(RI), MOV_ROW(RM), MOV_ROW(MR),
                                        MOV_ROW(MI)};

    return fns[form][__builtin_ctz(size)];
}

/* MOV between the accumulator and an address that is the immediate; sub: store */
enum op_result exec_mov_moffs(struct cpu *c, const struct op *op)
{
    uint64_t lin, v = c->r[CPU_RAX];

    if (!lin_of(c, op->seg, addr_cut(op->imm, op->asz), op->size, op->sub ? MMU_W : MMU_R, &lin))
        return R_STOP;
    if (op->sub)
        return mem_store(c, lin, op->size, v) ? R_OK : R_STOP;
    if (!mem_load(c, lin, op->size, &v))
        return R_STOP;
    reg_set(c, CPU_RAX, op->size, v);
    return R_OK;
}

/* MOVZX, MOVSX and MOVSXD: `from` bytes become `size`. */
INLINE enum op_result movx_slow(struct cpu *c, const struct op *op, unsigned size, unsigned from,
                                bool sign)
{
    uint64_t v;

    if (!rm_get(c, op, from, &v))
        return R_STOP;
    reg_set(c, op->reg, size, sign ? sign_extend(v, from) : v);
    return R_OK;
}

#define MOVX_FN(size, from, sign)                                                                  \
    static __attribute__((noinline)) enum op_result movx_slow_##size##_##from##_##sign(            \
        struct cpu *c, const struct op *op)                                                        \
    {                                                                                              \
        return movx_slow(c, op, size, from, sign);                                                 \
    }                                                                                              \
    static enum op_result movx_##size##_##from##_##sign(struct cpu *c, const struct op *op)        \
    {                                                                                              \
        const uint8_t *p = fast_r(c, op, from);                                                    \
        uint64_t v;                                                                                \
                                                                                                   \
        if (unlikely(!p))                                                                          \
            return movx_slow_##size##_##from##_##sign(c, op);                                      \
        v = host_load(p, from);                                                                    \
        reg_set(c, op->reg, size, sign ? sign_extend(v, from) : v);                                \
        return op_next(c, op);                                                                     \
    }                                                                                              \
    static enum op_result movx_r_##size##_##from##_##sign(struct cpu *c, const struct op *op)      \
    {                                                                                              \
        uint64_t v = reg_get(c, op->rm, from);                                                     \
                                                                                                   \
        reg_set(c, op->reg, size, sign ? sign_extend(v, from) : v);                                \
        return op_next(c, op);                                                                     \
    }
#define MOVX_SIGNS(size, from) MOVX_FN(size, from, 0) MOVX_FN(size, from, 1)
#define MOVX_FROM(size)        MOVX_SIGNS(size, 1) MOVX_SIGNS(size, 2) MOVX_SIGNS(size, 4)
MOVX_FROM(2)
MOVX_FROM(4)
MOVX_FROM(8)
#define MOVX_ROW(size, from)                                                                       \
    {                                                                                              \
        {movx_r_##size##_##from##_0, movx_r_##size##_##from##_1},                                  \
        {                                                                                          \
            movx_##size##_##from##_0, movx_##size##_##from##_1                                     \
        }                                                                                          \
    }
#define MOVX_ROWS(size)                                                                            \
    {                                                                                              \
        MOVX_ROW(size, 1), MOVX_ROW(size, 2), MOVX_ROW(size, 4)                                    \
    }

op_fn exec_movx(unsigned size, unsigned from, bool mem, bool sign)
{
    static const op_fn fns[3][3][2][2] = {MOVX_ROWS(2), MOVX_ROWS(4), MOVX_ROWS(8)};

    return fns[__builtin_ctz(size) - 1][__builtin_ctz(from)][mem][sign];
}

static enum op_result lea_4(struct cpu *c, const struct op *op)
{
    reg_set(c, op->reg, 4, op_ea(c, op));
    return op_next(c, op);
}

static enum op_result lea_8(struct cpu *c, const struct op *op)
{
    reg_set(c, op->reg, 8, op_ea(c, op));
    return op_next(c, op);
}

static enum op_result lea_2(struct cpu *c, const struct op *op)
{
    reg_set(c, op->reg, 2, op_ea(c, op));
    return op_next(c, op);
}

op_fn exec_lea(unsigned size)
{
    return size == 8 ? lea_8 : size == 4 ? lea_4 : lea_2;
}

enum op_result exec_cmov(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!rm_get(c, op, op->size, &v)) /* read whatever the condition */
        return R_STOP;
    if (!fl_cond(c, op->sub))
        v = c->r[op->reg];
    reg_set(c, op->reg, op->size, v);
    return R_OK;
}

enum op_result exec_setcc(struct cpu *c, const struct op *op)
{
    return rm_put(c, op, 1, fl_cond(c, op->sub)) ? R_OK : R_STOP;
}

enum op_result exec_bswap(struct cpu *c, const struct op *op)
{
    uint64_t v = c->r[op->rm];

    if (op->size == 8)
        reg_set(c, op->rm, 8, __builtin_bswap64(v));
    else if (op->size == 4)
        reg_set(c, op->rm, 4, __builtin_bswap32((uint32_t)v));
    else
        reg_set(c, op->rm, 2, 0); /* undefined; what processors do */
    return R_OK;
}

/* CBW, CWDE, CDQE: size is the result's. */
enum op_result exec_widen(struct cpu *c, const struct op *op)
{
    reg_set(c, CPU_RAX, op->size, sign_extend(c->r[CPU_RAX], op->size / 2));
    return R_OK;
}

/* CWD, CDQ, CQO */
enum op_result exec_widen_pair(struct cpu *c, const struct op *op)
{
    uint64_t sign = sign_extend(c->r[CPU_RAX], op->size) >> 63;

    reg_set(c, CPU_RDX, op->size, sign ? UINT64_MAX : 0);
    return R_OK;
}

/* ---- stack */

static __attribute__((noinline)) enum op_result push_slow(struct cpu *c, const struct op *op)
{
    uint64_t v = op->imm;

    if (!(op->flags & OPF_IMM) && !rm_get(c, op, op->size, &v))
        return R_STOP;
    return stack_push(c, op->size, v) ? R_OK : R_STOP;
}

enum op_result exec_push(struct cpu *c, const struct op *op)
{
    uint8_t *p = fast_push(c);

    if (unlikely(!p) || unlikely((op->flags & (OPF_MEM | OPF_IMM)) != 0) || op->size != 8)
        return push_slow(c, op);
    host_store(p, 8, c->r[op->rm]);
    c->r[CPU_RSP] -= 8;
    return op_next(c, op);
}

static __attribute__((noinline)) enum op_result pop_slow(struct cpu *c, const struct op *op)
{
    uint64_t sp = c->r[CPU_RSP], v;

    if (!stack_load(c, sp, op->size, &v))
        return R_STOP;
    stack_set(c, sp + op->size); /* before the operand: its address may use RSP */
    if (rm_put(c, op, op->size, v))
        return R_OK;
    c->r[CPU_RSP] = sp;
    return R_STOP;
}

enum op_result exec_pop(struct cpu *c, const struct op *op)
{
    const uint8_t *p = fast_pop(c);

    if (unlikely(!p) || unlikely((op->flags & OPF_MEM) != 0) || op->size != 8)
        return pop_slow(c, op);
    c->r[CPU_RSP] += 8;
    c->r[op->rm] = host_load(p, 8);
    return op_next(c, op);
}

enum op_result exec_pusha(struct cpu *c, const struct op *op)
{
    uint64_t sp = c->r[CPU_RSP], lin;
    unsigned size = op->size;

    /* All or nothing: the lowest slot first checked, then the rest in the same or the next page. */
    if (!lin_of(c, CPU_SS, stack_cut(c, sp - 8 * size), size, MMU_W, &lin) ||
        !mmu_probe_write(c, lin, size))
        return R_STOP;
    for (unsigned i = 0; i < 8; i++)
        if (!stack_store(c, sp - (i + 1) * size, size, i == CPU_RSP ? sp : c->r[i]))
            return R_STOP;
    stack_set(c, sp - 8 * size);
    return R_OK;
}

enum op_result exec_popa(struct cpu *c, const struct op *op)
{
    uint64_t sp = c->r[CPU_RSP], v[8];

    for (unsigned i = 0; i < 8; i++)
        if (!stack_load(c, sp + (7 - i) * op->size, op->size, &v[i]))
            return R_STOP;
    for (unsigned i = 0; i < 8; i++)
        if (i != CPU_RSP)
            reg_set(c, i, op->size, v[i]);
    stack_set(c, sp + 8 * op->size);
    return R_OK;
}

enum op_result exec_pushf(struct cpu *c, const struct op *op)
{
    if (cpu_vm86(c) && (c->fl_sys & FL_IOPL) != FL_IOPL)
        return op_raise(c, VEC_GP, 0);
    return stack_push(c, op->size, fl_get(c) & ~(FL_VM | FL_RF)) ? R_OK : R_STOP;
}

enum op_result exec_popf(struct cpu *c, const struct op *op)
{
    uint32_t mask = FL_ARITH | FL_TF | FL_DF | FL_NT;
    unsigned iopl = (c->fl_sys & FL_IOPL) >> 12;
    uint64_t sp = c->r[CPU_RSP], v;

    if (cpu_vm86(c) && iopl != 3)
        return op_raise(c, VEC_GP, 0);
    if (!stack_load(c, sp, op->size, &v))
        return R_STOP;
    stack_set(c, sp + op->size);
    if (op->size > 2)
        mask |= FL_AC | FL_ID;
    if (c->cpl == 0)
        mask |= FL_IOPL;
    if (c->cpl <= iopl)
        mask |= FL_IF;
    cpu_set_rflags(c, v, mask);
    return op_look(c, c->next); /* interrupts may be open now */
}

/* imm: bytes of locals; sub: nesting level */
enum op_result exec_enter(struct cpu *c, const struct op *op)
{
    unsigned size = op->size, level = op->sub & 31;
    uint64_t sp = c->r[CPU_RSP] - size, bp = c->r[CPU_RBP], frame = sp, v;

    if (!stack_store(c, sp, size, bp))
        return R_STOP;
    for (unsigned i = 1; i < level; i++) {
        bp -= size;
        sp -= size;
        if (!stack_load(c, bp, size, &v) || !stack_store(c, sp, size, v))
            return R_STOP;
    }
    if (level) {
        sp -= size;
        if (!stack_store(c, sp, size, frame))
            return R_STOP;
    }
    reg_set(c, CPU_RBP, size, frame);
    stack_set(c, sp - op->imm);
    return R_OK;
}

enum op_result exec_leave(struct cpu *c, const struct op *op)
{
    uint64_t bp = stack_cut(c, c->r[CPU_RBP]), v;

    if (!stack_load(c, bp, op->size, &v))
        return R_STOP;
    stack_set(c, bp + op->size);
    reg_set(c, CPU_RBP, op->size, v);
    return R_OK;
}

/* ---- flags */

enum op_result exec_lahf(struct cpu *c, const struct op *op)
{
    (void)op;
    reg_set(c, REG_HIGH, 1, (fl_arith(c) & 0xd5) | FL_ONE);
    return R_OK;
}

enum op_result exec_sahf(struct cpu *c, const struct op *op)
{
    uint32_t keep = fl_arith(c) & FL_OF;

    (void)op;
    fl_put_arith(c, keep | ((uint32_t)reg_get(c, REG_HIGH, 1) & 0xd5));
    return R_OK;
}

/* CLC STC CMC CLD STD: sub 0 to 4 */
enum op_result exec_flag(struct cpu *c, const struct op *op)
{
    switch (op->sub) {
    case 0:
        fl_set_cf(c, false);
        break;
    case 1:
        fl_set_cf(c, true);
        break;
    case 2:
        fl_set_cf(c, !fl_cf(c));
        break;
    case 3:
        c->fl_sys &= ~FL_DF;
        break;
    default:
        c->fl_sys |= FL_DF;
        break;
    }
    return R_OK;
}

enum op_result exec_salc(struct cpu *c, const struct op *op)
{
    (void)op;
    reg_set(c, CPU_RAX, 1, fl_cf(c) ? 0xff : 0);
    return R_OK;
}

enum op_result exec_xlat(struct cpu *c, const struct op *op)
{
    uint64_t a = addr_cut(c->r[CPU_RBX] + (uint8_t)c->r[CPU_RAX], op->asz), lin, v;

    if (!lin_of(c, op->seg, a, 1, MMU_R, &lin) || !mem_load(c, lin, 1, &v))
        return R_STOP;
    reg_set(c, CPU_RAX, 1, v);
    return R_OK;
}

enum op_result exec_nop(struct cpu *c, const struct op *op)
{
    return op_next(c, op);
}
