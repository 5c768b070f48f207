/*
 * x87. What computes runs on the host's unit with the guest's whole state (fp_host_x87), so that
 * rounding, precision, stack faults, pending exceptions and condition codes are a processor's own;
 * this file knows who may, where operands are, the pointers, and the instructions about the state.
 *
 * sub: low three bits of the opcode (0xd8 + sub); imm: the ModRM byte; size: bytes of memory.
 */
#include <string.h>

#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/fp.h"

#define ESC_CONTROL 1u /* 0xd9: FLDCW is /5 */

/* FCMOVcc reads RFLAGS, FCOMI and its kin write them. */
static bool reads_flags(const struct op *op)
{
    return (op->sub == 2 || op->sub == 3) && op->imm >= 0xc0 && op->imm < 0xe0;
}

static bool writes_flags(const struct op *op)
{
    return (op->sub == 3 || op->sub == 7) && op->imm >= 0xe8 && op->imm < 0xf8;
}

static bool is_fldcw(const struct op *op)
{
    return op->sub == ESC_CONTROL && op->imm < 0xc0 && (op->imm & 0x38) == 0x28;
}

/* Last instruction and operand; FLDCW is none. */
static void set_pointers(struct cpu *c, const struct op *op, struct fp_state *s)
{
    s->fop = c->fp.fop;
    s->fip = c->fp.fip;
    s->fdp = c->fp.fdp;
    if (is_fldcw(op))
        return;
    s->fop = (uint16_t)(op->sub << 8 | (unsigned)op->imm);
    s->fip = op_ip(c, op);
    if (op->flags & OPF_MEM)
        s->fdp = op_ea(c, op);
}

static void run(struct cpu *c, const struct op *op, struct fp_state *s, void *mem)
{
    bool flags = reads_flags(op) || writes_flags(op);
    uint64_t f = fp_host_x87(s, op->sub, (unsigned)op->imm, mem, flags ? fl_arith(c) : 0);

    set_pointers(c, op, s);
    if (writes_flags(op))
        fl_put_arith(c, (uint32_t)f);
}

/* Register forms and those that load. */
enum op_result exec_x87(struct cpu *c, const struct op *op)
{
    _Alignas(16) uint8_t mem[16] = {0};
    struct fp_state s;
    uint64_t lin;

    if (!x87_ready(c) || !x87_clear(c))
        return R_STOP;
    if ((op->flags & OPF_MEM) &&
        (!op_lin(c, op, op->size, MMU_R, &lin) || !mem_load_bytes(c, lin, mem, op->size)))
        return R_STOP;
    memcpy(&s, &c->fp, sizeof s);
    run(c, op, &s, mem);
    memcpy(&c->fp, &s, sizeof s);
    return R_OK;
}

/* Stores: nothing reaches memory when an unmasked exception other than precision came up. */
enum op_result exec_x87_store(struct cpu *c, const struct op *op)
{
    _Alignas(16) uint8_t mem[16];
    struct fp_state s;
    uint64_t lin;

    if (!x87_ready(c) || !x87_clear(c) || !op_lin(c, op, op->size, MMU_W, &lin) ||
        !mmu_probe_write(c, lin, op->size))
        return R_STOP;
    memcpy(&s, &c->fp, sizeof s);
    run(c, op, &s, mem);
    if (!(s.fsw & ~s.fcw & (FP_MXCSR_FLAGS & ~FP_PE)) && !mem_store_bytes(c, lin, mem, op->size))
        return R_STOP;
    memcpy(&c->fp, &s, sizeof s);
    return R_OK;
}

/* ---- control */

enum op_result exec_fwait(struct cpu *c, const struct op *op)
{
    (void)op;
    if ((c->cr0 & (CR0_MP | CR0_TS)) == (CR0_MP | CR0_TS))
        return op_raise(c, VEC_NM, 0);
    return x87_clear(c) ? R_OK : R_STOP;
}

static void init(struct cpu *c)
{
    x87_set_top(c, 0);
    c->fp.fcw = 0x37f;
    c->fp.fsw = 0;
    c->fp.ftw = 0;
    c->fp.fop = 0;
    c->fp.fip = c->fp.fdp = 0;
}

enum op_result exec_fninit(struct cpu *c, const struct op *op)
{
    (void)op;
    if (!x87_ready(c))
        return R_STOP;
    init(c);
    return R_OK;
}

enum op_result exec_fnclex(struct cpu *c, const struct op *op)
{
    (void)op;
    if (!x87_ready(c))
        return R_STOP;
    c->fp.fsw &= 0x7f00;
    return R_OK;
}

enum op_result exec_fnstcw(struct cpu *c, const struct op *op)
{
    return x87_ready(c) && rm_put(c, op, 2, c->fp.fcw) ? R_OK : R_STOP;
}

enum op_result exec_fnstsw(struct cpu *c, const struct op *op)
{
    return x87_ready(c) && rm_put(c, op, 2, c->fp.fsw) ? R_OK : R_STOP;
}

/* ---- environment: 14 or 28 bytes, by operand size, other in real mode */

/* Two bits a register: 0 valid, 1 zero, 2 special, 3 empty. */
static uint16_t full_tags(const struct cpu *c)
{
    unsigned top = fsw_top(c);
    uint16_t tags = 0;

    for (unsigned r = 0; r < 8; r++) {
        unsigned i = (r - top) & 7, tag, e = c->fp.st[i].e & 0x7fffu;
        uint64_t m = c->fp.st[i].m;

        if (!(c->fp.ftw >> r & 1))
            tag = 3;
        else if (!e && !m)
            tag = 1;
        else
            tag = e == 0 || e == 0x7fff || !(m >> 63) ? 2 : 0;
        tags = (uint16_t)(tags | tag << r * 2);
    }
    return tags;
}

static void put(uint8_t *env, unsigned n, unsigned width, uint64_t v)
{
    /* The upper halves of 32-bit words that hold 16 bits come out as ones. */
    uint32_t word = (uint32_t)v;

    memcpy(env + n * width, &word, width);
}

#define HIGH_ONES 0xffff0000u

static unsigned env_build(const struct cpu *c, unsigned width, uint8_t env[28])
{
    bool wide = width == 4, real = !cpu_descriptors(c);
    uint32_t ones = wide ? HIGH_ONES : 0;

    put(env, 0, width, c->fp.fcw | ones);
    put(env, 1, width, c->fp.fsw | ones);
    put(env, 2, width, full_tags(c) | ones);
    if (real) { /* linear addresses in pieces */
        put(env, 3, width, (c->fp.fip & 0xffff) | ones);
        put(env, 4, width, (c->fp.fip >> 16 << 12 & 0xffff000) | c->fp.fop);
        put(env, 5, width, (c->fp.fdp & 0xffff) | ones);
        put(env, 6, width, c->fp.fdp >> 16 << 12 & 0xffff000);
    } else {
        put(env, 3, width, c->fp.fip);
        put(env, 4, width, wide ? (uint32_t)c->fp.fop << 16 : 0); /* selectors are not kept */
        put(env, 5, width, c->fp.fdp);
        put(env, 6, width, ones);
    }
    return width * 7;
}

static uint32_t get(const uint8_t *env, unsigned n, unsigned width)
{
    uint32_t v = 0;

    memcpy(&v, env + n * width, width);
    return v;
}

static void env_take(struct cpu *c, unsigned width, const uint8_t *env)
{
    uint32_t tags = get(env, 2, width), w4 = get(env, 4, width), w6 = get(env, 6, width);
    uint16_t fsw = (uint16_t)get(env, 1, width);
    uint8_t ftw = 0;

    for (unsigned r = 0; r < 8; r++)
        ftw = (uint8_t)(ftw | ((tags >> r * 2 & 3) != 3) << r);
    x87_set_top(c, (fsw & FSW_TOP) >> 11);
    c->fp.fcw = (uint16_t)get(env, 0, width);
    c->fp.fsw = fsw;
    c->fp.ftw = ftw;
    c->fp.fip = get(env, 3, width);
    c->fp.fdp = get(env, 5, width);
    if (!cpu_descriptors(c)) {
        c->fp.fop = w4 & 0x7ff;
        c->fp.fip = (c->fp.fip & 0xffff) | (w4 & 0xffff000u) << 4;
        c->fp.fdp = (c->fp.fdp & 0xffff) | (w6 & 0xffff000u) << 4;
    } else {
        c->fp.fop = width == 4 ? w4 >> 16 & 0x7ff : 0;
    }
    x87_settle(c);
}

static unsigned env_width(const struct op *op)
{
    return op->size2;
}

enum op_result exec_fnstenv(struct cpu *c, const struct op *op)
{
    uint8_t env[28];
    unsigned n;
    uint64_t lin;

    if (!x87_ready(c))
        return R_STOP;
    n = env_build(c, env_width(op), env);
    if (!op_lin(c, op, n, MMU_W, &lin) || !mem_store_bytes(c, lin, env, n))
        return R_STOP;
    c->fp.fcw |= FP_MXCSR_FLAGS;
    x87_settle(c);
    return R_OK;
}

enum op_result exec_fldenv(struct cpu *c, const struct op *op)
{
    unsigned n = env_width(op) * 7;
    uint8_t env[28];
    uint64_t lin;

    if (!x87_ready(c) || !x87_clear(c) || !op_lin(c, op, n, MMU_R, &lin) ||
        !mem_load_bytes(c, lin, env, n))
        return R_STOP;
    env_take(c, env_width(op), env);
    return R_OK;
}

#define REG_BYTES 10u

enum op_result exec_fnsave(struct cpu *c, const struct op *op)
{
    uint8_t image[28 + 8 * REG_BYTES];
    uint64_t lin;
    unsigned n;

    if (!x87_ready(c))
        return R_STOP;
    n = env_build(c, env_width(op), image);
    for (unsigned i = 0; i < 8; i++)
        memcpy(image + n + i * REG_BYTES, &c->fp.st[i], REG_BYTES);
    if (!op_lin(c, op, n + 8 * REG_BYTES, MMU_W, &lin) ||
        !mem_store_bytes(c, lin, image, n + 8 * REG_BYTES))
        return R_STOP;
    init(c);
    return R_OK;
}

enum op_result exec_frstor(struct cpu *c, const struct op *op)
{
    uint8_t image[28 + 8 * REG_BYTES];
    unsigned n = env_width(op) * 7;
    uint64_t lin;

    if (!x87_ready(c) || !x87_clear(c) || !op_lin(c, op, n + 8 * REG_BYTES, MMU_R, &lin) ||
        !mem_load_bytes(c, lin, image, n + 8 * REG_BYTES))
        return R_STOP;
    env_take(c, env_width(op), image);
    for (unsigned i = 0; i < 8; i++)
        memcpy(&c->fp.st[i], image + n + i * REG_BYTES, REG_BYTES);
    return R_OK;
}
