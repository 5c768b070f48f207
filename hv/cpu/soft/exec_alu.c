/*
 * Integer arithmetic and logic. The frequent operations are generated for each operand form and
 * width from one inline function (ALU_*), the rest take their width from the op.
 */
#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- flags */

INLINE void flags_carry(struct cpu *c, uint64_t r, uint64_t carries, unsigned size)
{
    c->fl_res = sign_extend(r, size);
    c->fl_cv = carries << (64 - size * 8);
    c->fl_aux = (uint8_t)carries;
}

INLINE void flags_logic(struct cpu *c, uint64_t r, unsigned size)
{
    flags_carry(c, r, 0, size);
}

INLINE uint64_t do_add(struct cpu *c, uint64_t a, uint64_t b, unsigned carry, unsigned size)
{
    uint64_t r = a + b + carry;

    flags_carry(c, r, (a & b) | ((a | b) & ~r), size);
    return r;
}

INLINE uint64_t do_sub(struct cpu *c, uint64_t a, uint64_t b, unsigned borrow, unsigned size)
{
    uint64_t r = a - b - borrow;

    flags_carry(c, r, (~a & b) | ((~a | b) & r), size);
    return r;
}

INLINE uint64_t alu(struct cpu *c, enum alu kind, uint64_t a, uint64_t b, unsigned size)
{
    uint64_t r;

    switch (kind) {
    case ALU_ADD:
        return do_add(c, a, b, 0, size);
    case ALU_ADC:
        return do_add(c, a, b, fl_cf(c), size);
    case ALU_SBB:
        return do_sub(c, a, b, fl_cf(c), size);
    case ALU_SUB:
    case ALU_CMP:
        return do_sub(c, a, b, 0, size);
    case ALU_OR:
        r = a | b;
        break;
    case ALU_XOR:
        r = a ^ b;
        break;
    default:
        r = a & b;
        break;
    }
    flags_logic(c, r, size);
    return r;
}

/* ---- two operands: FORM_RR, RI, RM, MR, MI */

INLINE enum op_result alu_form(struct cpu *c, const struct op *op, enum alu kind, enum form form,
                               unsigned size)
{
    bool writes = kind != ALU_CMP && kind != ALU_TEST;
    uint64_t lin = 0, a, b, r;
    bool mem_dst = form == FORM_MR || form == FORM_MI;
    unsigned dst = form == FORM_RM ? op->reg : op->rm;

    b = form == FORM_RI || form == FORM_MI ? op->imm : 0;
    if (form == FORM_RR || form == FORM_MR)
        b = reg_get(c, op->reg, size);
    if (form == FORM_RM && (!op_lin(c, op, size, MMU_R, &lin) || !mem_load(c, lin, size, &b)))
        return R_STOP;
    if (!mem_dst) {
        a = reg_get(c, dst, size);
    } else if (writes) {
        if (!op_lin(c, op, size, MMU_W, &lin) || !mem_load_w(c, lin, size, &a))
            return R_STOP;
    } else if (!op_lin(c, op, size, MMU_R, &lin) || !mem_load(c, lin, size, &a)) {
        return R_STOP;
    }
    r = alu(c, kind, a, b, size);
    if (!writes)
        return R_OK;
    if (!mem_dst)
        reg_set(c, dst, size, r);
    else if (!mem_store(c, lin, size, r))
        return R_STOP;
    return R_OK;
}

/* The same where the operand is at hand. False: the slow half does it. */
INLINE bool alu_fast(struct cpu *c, const struct op *op, enum alu kind, enum form form,
                     unsigned size)
{
    bool writes = kind != ALU_CMP && kind != ALU_TEST;
    uint64_t b, r;
    uint8_t *p;

    if (!FORM_IS_MEM(form)) {
        alu_form(c, op, kind, form, size);
        return true;
    }
    p = form != FORM_RM && writes ? fast_w(c, op, size) : fast_r(c, op, size);
    if (unlikely(!p))
        return false;
    if (form == FORM_RM) {
        r = alu(c, kind, reg_get(c, op->reg, size), host_load(p, size), size);
        if (writes)
            reg_set(c, op->reg, size, r);
        return true;
    }
    b = form == FORM_MI ? op->imm : reg_get(c, op->reg, size);
    r = alu(c, kind, host_load(p, size), b, size);
    if (writes)
        host_store(p, size, r);
    return true;
}

#define ALU_FN(kind, form, size)                                                                   \
    static __attribute__((noinline)) enum op_result alu_slow_##kind##_##form##_##size(             \
        struct cpu *c, const struct op *op)                                                        \
    {                                                                                              \
        return alu_form(c, op, ALU_##kind, FORM_##form, size);                                     \
    }                                                                                              \
    static enum op_result alu_##kind##_##form##_##size(struct cpu *c, const struct op *op)         \
    {                                                                                              \
        if (likely(alu_fast(c, op, ALU_##kind, FORM_##form, size)))                                \
            return op_next(c, op);                                                                 \
        return alu_slow_##kind##_##form##_##size(c, op);                                           \
    }
#define ALU_SIZES(kind, form)                                                                      \
    ALU_FN(kind, form, 1) ALU_FN(kind, form, 2) ALU_FN(kind, form, 4) ALU_FN(kind, form, 8)
#define ALU_FORMS(kind)                                                                            \
    ALU_SIZES(kind, RR)                                                                            \
    ALU_SIZES(kind, RI) ALU_SIZES(kind, RM) ALU_SIZES(kind, MR) ALU_SIZES(kind, MI)
ALU_FORMS(ADD)
ALU_FORMS(OR)
ALU_FORMS(ADC)
ALU_FORMS(SBB)
ALU_FORMS(AND)
ALU_FORMS(SUB)
ALU_FORMS(XOR)
ALU_FORMS(CMP)
ALU_FORMS(TEST)

#define ALU_ROW(kind, form)                                                                        \
    [ALU_##kind][FORM_##form] = {alu_##kind##_##form##_1, alu_##kind##_##form##_2,                 \
                                 alu_##kind##_##form##_4, alu_##kind##_##form##_8}
#define ALU_ROWS(kind)                                                                             \
    ALU_ROW(kind, RR), ALU_ROW(kind, RI), ALU_ROW(kind, RM), ALU_ROW(kind, MR), ALU_ROW(kind, MI)

static const op_fn alu_fns[ALU_KINDS][FORMS][4] = {
    ALU_ROWS(ADD), ALU_ROWS(OR),  ALU_ROWS(ADC), ALU_ROWS(SBB),  ALU_ROWS(AND),
    ALU_ROWS(SUB), ALU_ROWS(XOR), ALU_ROWS(CMP), ALU_ROWS(TEST),
};

op_fn exec_alu(enum alu kind, enum form form, unsigned size)
{
    return alu_fns[kind][form][__builtin_ctz(size)];
}

/* ---- one operand */

enum op_result exec_inc_dec(struct cpu *c, const struct op *op)
{
    unsigned size = op->size;
    bool cf = fl_cf(c);
    uint64_t v, lin;

    if (!rm_get_w(c, op, size, &v, &lin))
        return R_STOP;
    v = op->sub ? do_sub(c, v, 1, 0, size) : do_add(c, v, 1, 0, size);
    fl_set_cf(c, cf);
    return rm_put_w(c, op, size, v, lin) ? R_OK : R_STOP;
}

enum op_result exec_neg(struct cpu *c, const struct op *op)
{
    uint64_t v, lin;

    if (!rm_get_w(c, op, op->size, &v, &lin))
        return R_STOP;
    v = do_sub(c, 0, v, 0, op->size);
    return rm_put_w(c, op, op->size, v, lin) ? R_OK : R_STOP;
}

enum op_result exec_not(struct cpu *c, const struct op *op)
{
    uint64_t v, lin;

    if (!rm_get_w(c, op, op->size, &v, &lin))
        return R_STOP;
    return rm_put_w(c, op, op->size, ~v, lin) ? R_OK : R_STOP;
}

/* ---- shifts */

INLINE bool top_bit(uint64_t v, unsigned size)
{
    return v >> (size * 8 - 1) & 1;
}

INLINE void shift_flags(struct cpu *c, uint64_t r, bool cf, bool of, unsigned size)
{
    c->fl_res = sign_extend(r, size);
    c->fl_aux = 0;
    fl_set_co(c, cf, of);
}

INLINE uint64_t shift_left(struct cpu *c, uint64_t v, unsigned n, unsigned size)
{
    unsigned bits = size * 8;
    uint64_t r = n < 64 ? v << n : 0;
    bool cf = n <= bits && (v >> (bits - n) & 1);

    shift_flags(c, r, cf, top_bit(r, size) ^ cf, size);
    return r;
}

INLINE uint64_t shift_right(struct cpu *c, uint64_t v, unsigned n, unsigned size)
{
    uint64_t r = v >> n;

    shift_flags(c, r, v >> (n - 1) & 1, top_bit(v, size), size);
    return r;
}

INLINE uint64_t shift_arith(struct cpu *c, uint64_t v, unsigned n, unsigned size)
{
    int64_t s = (int64_t)sign_extend(v, size);
    uint64_t r = (uint64_t)(s >> n);

    shift_flags(c, r, s >> (n - 1) & 1, false, size);
    return r;
}

INLINE uint64_t rotate(struct cpu *c, uint64_t v, unsigned n, unsigned size, bool left)
{
    unsigned bits = size * 8, k = n % bits;
    uint64_t r = v;
    bool cf, of;

    if (k) {
        unsigned up = left ? k : bits - k;

        r = ((v << up) | (v >> (bits - up))) & size_mask(size);
    }
    cf = left ? r & 1 : top_bit(r, size);
    of = left ? top_bit(r, size) ^ cf : top_bit(r, size) ^ (r >> (bits - 2) & 1);
    fl_set_co(c, cf, of);
    return r;
}

static uint64_t rotate_carry(struct cpu *c, uint64_t v, unsigned n, unsigned size, bool left)
{
    unsigned bits = size * 8;
    bool cf = fl_cf(c), of;

    n %= bits + 1;
    for (unsigned i = 0; i < n; i++) {
        bool out = left ? top_bit(v, size) : v & 1;

        v = left ? (v << 1 | cf) & size_mask(size) : v >> 1 | (uint64_t)cf << (bits - 1);
        cf = out;
    }
    of = left ? top_bit(v, size) ^ cf : top_bit(v, size) ^ (v >> (bits - 2) & 1);
    if (n)
        fl_set_co(c, cf, of);
    return v;
}

INLINE uint64_t shift(struct cpu *c, unsigned kind, uint64_t v, unsigned n, unsigned size)
{
    switch (kind) {
    case SHIFT_ROL:
    case SHIFT_ROR:
        return rotate(c, v, n, size, kind == SHIFT_ROL);
    case SHIFT_RCL:
    case SHIFT_RCR:
        return rotate_carry(c, v, n, size, kind == SHIFT_RCL);
    case SHIFT_SHL:
        return shift_left(c, v, n, size);
    case SHIFT_SHR:
        return shift_right(c, v, n, size);
    default:
        return shift_arith(c, v, n, size);
    }
}

static unsigned shift_count(const struct cpu *c, const struct op *op)
{
    unsigned n = (unsigned)(op->flags & OPF_IMM ? op->imm : c->r[CPU_RCX]);

    return n & (op->size == 8 ? 63 : 31);
}

static enum op_result shift_any(struct cpu *c, const struct op *op)
{
    unsigned n = shift_count(c, op);
    uint64_t v, lin;

    if (!rm_get_w(c, op, op->size, &v, &lin))
        return R_STOP;
    if (n) /* a count of zero keeps the flags; a 32-bit register is written all the same */
        v = shift(c, op->sub, v, n, op->size);
    return rm_put_w(c, op, op->size, v, lin) ? R_OK : R_STOP;
}

/* The frequent ones: a register of 4 or 8 bytes by an immediate that is not zero. */
#define SHIFT_FN(kind, size)                                                                       \
    static enum op_result shift_##kind##_##size(struct cpu *c, const struct op *op)                \
    {                                                                                              \
        uint64_t v = shift(c, SHIFT_##kind, reg_get(c, op->rm, size),                              \
                           (unsigned)op->imm & (size == 8 ? 63 : 31), size);                       \
                                                                                                   \
        reg_set(c, op->rm, size, v);                                                               \
        return op_next(c, op);                                                                     \
    }
#define SHIFT_KIND(kind) SHIFT_FN(kind, 4) SHIFT_FN(kind, 8)
SHIFT_KIND(ROL)
SHIFT_KIND(ROR)
SHIFT_KIND(SHL)
SHIFT_KIND(SHR)
SHIFT_KIND(SAR)
#define SHIFT_ROW(kind) [SHIFT_##kind] = {shift_##kind##_4, shift_##kind##_8}

op_fn exec_shift(const struct op *op)
{
    static const op_fn fns[SHIFT_SAR + 1][2] = {SHIFT_ROW(ROL), SHIFT_ROW(ROR), SHIFT_ROW(SHL),
                                                SHIFT_ROW(SHR), SHIFT_ROW(SAR)};
    bool plain = !(op->flags & OPF_MEM) && (op->flags & OPF_IMM) && op->size >= 4 &&
                 (op->imm & (op->size == 8 ? 63 : 31));

    return plain && fns[op->sub][op->size == 8] ? fns[op->sub][op->size == 8] : shift_any;
}

enum op_result exec_shift_double(struct cpu *c, const struct op *op)
{
    unsigned size = op->size, bits = size * 8;
    unsigned n = (unsigned)(op->flags & OPF_IMM ? op->imm : c->r[CPU_RCX]);
    uint64_t b = reg_get(c, op->reg, size), v, lin, r;
    bool left = op->sub == SHIFT_SHL, cf;

    n &= size == 8 ? 63 : 31;
    if (!rm_get_w(c, op, size, &v, &lin))
        return R_STOP;
    if (!n || n > bits) /* beyond the width: undefined, the operand stays */
        return rm_put_w(c, op, size, v, lin) ? R_OK : R_STOP;
    if (n == bits) {
        r = b;
        cf = left ? v & 1 : top_bit(v, size);
    } else {
        r = left ? v << n | b >> (bits - n) : v >> n | b << (bits - n);
        cf = left ? v >> (bits - n) & 1 : v >> (n - 1) & 1;
    }
    r &= size_mask(size);
    shift_flags(c, r, cf, top_bit(r, size) ^ top_bit(v, size), size);
    return rm_put_w(c, op, size, r, lin) ? R_OK : R_STOP;
}

/* ---- multiply and divide */

static void mul_flags(struct cpu *c, uint64_t low, bool high, unsigned size)
{
    c->fl_res = sign_extend(low, size);
    c->fl_aux = 0;
    fl_set_co(c, high, high);
}

/* High and low half of an accumulator pair: AH:AL, DX:AX, EDX:EAX, RDX:RAX. */
static void pair_set(struct cpu *c, unsigned size, uint64_t low, uint64_t high)
{
    if (size == 1) {
        reg_set(c, CPU_RAX, 2, (low & 0xff) | (high & 0xff) << 8);
        return;
    }
    reg_set(c, CPU_RAX, size, low);
    reg_set(c, CPU_RDX, size, high);
}

static unsigned __int128 pair_get(const struct cpu *c, unsigned size)
{
    if (size == 1)
        return reg_get(c, CPU_RAX, 2);
    return (unsigned __int128)reg_get(c, CPU_RDX, size) << (size * 8) | reg_get(c, CPU_RAX, size);
}

enum op_result exec_mul(struct cpu *c, const struct op *op)
{
    unsigned size = op->size;
    unsigned __int128 r;
    uint64_t v, high;

    if (!rm_get(c, op, size, &v))
        return R_STOP;
    r = (unsigned __int128)reg_get(c, CPU_RAX, size) * v;
    high = (uint64_t)(r >> (size * 8)) & size_mask(size);
    pair_set(c, size, (uint64_t)r, high);
    mul_flags(c, (uint64_t)r, high != 0, size);
    return R_OK;
}

static __int128 mul_signed(uint64_t a, uint64_t b, unsigned size, bool *over)
{
    __int128 r = (__int128)(int64_t)sign_extend(a, size) * (int64_t)sign_extend(b, size);

    *over = r != (__int128)(int64_t)sign_extend((uint64_t)r, size);
    return r;
}

enum op_result exec_imul1(struct cpu *c, const struct op *op)
{
    unsigned size = op->size;
    __int128 r;
    uint64_t v;
    bool over;

    if (!rm_get(c, op, size, &v))
        return R_STOP;
    r = mul_signed(reg_get(c, CPU_RAX, size), v, size, &over);
    pair_set(c, size, (uint64_t)r, (uint64_t)(r >> (size * 8)));
    mul_flags(c, (uint64_t)r, over, size);
    return R_OK;
}

/* reg = rm * (imm or reg) */
enum op_result exec_imul(struct cpu *c, const struct op *op)
{
    unsigned size = op->size;
    uint64_t v, by;
    __int128 r;
    bool over;

    if (!rm_get(c, op, size, &v))
        return R_STOP;
    by = op->flags & OPF_IMM ? op->imm : reg_get(c, op->reg, size);
    r = mul_signed(v, by, size, &over);
    reg_set(c, op->reg, size, (uint64_t)r);
    mul_flags(c, (uint64_t)r, over, size);
    return R_OK;
}

enum op_result exec_div(struct cpu *c, const struct op *op)
{
    unsigned size = op->size;
    unsigned __int128 n = pair_get(c, size), q;
    uint64_t d;

    if (!rm_get(c, op, size, &d))
        return R_STOP;
    if (!d || (q = n / d) > size_mask(size))
        return op_raise(c, VEC_DE, 0);
    pair_set(c, size, (uint64_t)q, (uint64_t)(n % d));
    return R_OK;
}

static __int128 pair_signed(const struct cpu *c, unsigned size)
{
    unsigned s = 128 - size * 16;

    return (__int128)(pair_get(c, size) << s) >> s;
}

enum op_result exec_idiv(struct cpu *c, const struct op *op)
{
    unsigned size = op->size;
    __int128 n = pair_signed(c, size), q, min = (__int128)((unsigned __int128)1 << 127);
    uint64_t v;
    int64_t d;

    if (!rm_get(c, op, size, &v))
        return R_STOP;
    d = (int64_t)sign_extend(v, size);
    if (!d || (d == -1 && n == min))
        return op_raise(c, VEC_DE, 0);
    q = n / d;
    if (q != (__int128)(int64_t)sign_extend((uint64_t)q, size))
        return op_raise(c, VEC_DE, 0);
    pair_set(c, size, (uint64_t)q, (uint64_t)(n % d));
    return R_OK;
}

/* ---- bits */

bool bt_lin(struct cpu *c, const struct op *op, unsigned acc, uint64_t *lin)
{
    unsigned size = op->size, shift = size == 8 ? 6 : size == 4 ? 5 : 4;
    uint64_t ea = op_ea(c, op);

    if (!(op->flags & OPF_IMM)) /* the bit string reaches beyond the operand */
        ea += (uint64_t)((int64_t)sign_extend(c->r[op->reg], size) >> shift) * size;
    return lin_of(c, op->seg, addr_cut(ea, op->asz), size, acc, lin);
}

enum op_result exec_bt(struct cpu *c, const struct op *op)
{
    unsigned size = op->size, bits = size * 8;
    uint64_t off = op->flags & OPF_IMM ? op->imm : reg_get(c, op->reg, size), v, lin = 0;
    unsigned bit = (unsigned)off & (bits - 1);
    bool writes = op->sub != BIT_TEST;

    if (op->flags & OPF_MEM) {
        if (!bt_lin(c, op, writes ? MMU_W : MMU_R, &lin))
            return R_STOP;
        if (!(writes ? mem_load_w(c, lin, size, &v) : mem_load(c, lin, size, &v)))
            return R_STOP;
    } else {
        v = reg_get(c, op->rm, size);
    }
    fl_set_cf(c, v >> bit & 1);
    if (!writes)
        return R_OK;
    if (op->sub == BIT_SET)
        v |= UINT64_C(1) << bit;
    else if (op->sub == BIT_RESET)
        v &= ~(UINT64_C(1) << bit);
    else
        v ^= UINT64_C(1) << bit;
    return rm_put_w(c, op, size, v, lin) ? R_OK : R_STOP;
}

enum op_result exec_bit_scan(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!rm_get(c, op, op->size, &v))
        return R_STOP;
    flags_logic(c, v, op->size);
    if (v)
        reg_set(c, op->reg, op->size,
                op->sub ? 63 - (unsigned)__builtin_clzll(v) : (unsigned)__builtin_ctzll(v));
    return R_OK; /* of zero: the destination stays, all 64 bits of it */
}

/* ---- compare and exchange */

enum op_result exec_xchg(struct cpu *c, const struct op *op)
{
    uint64_t v, lin, r = reg_get(c, op->reg, op->size);

    if (!rm_get_w(c, op, op->size, &v, &lin) || !rm_put_w(c, op, op->size, r, lin))
        return R_STOP;
    reg_set(c, op->reg, op->size, v);
    return R_OK;
}

enum op_result exec_xadd(struct cpu *c, const struct op *op)
{
    uint64_t v, lin, r = reg_get(c, op->reg, op->size), sum;

    if (!rm_get_w(c, op, op->size, &v, &lin))
        return R_STOP;
    sum = do_add(c, v, r, 0, op->size);
    if (op->flags & OPF_MEM) {
        if (!rm_put_w(c, op, op->size, sum, lin))
            return R_STOP;
        reg_set(c, op->reg, op->size, v);
    } else {
        reg_set(c, op->reg, op->size, v);
        reg_set(c, op->rm, op->size, sum);
    }
    return R_OK;
}

enum op_result exec_cmpxchg(struct cpu *c, const struct op *op)
{
    unsigned size = op->size;
    uint64_t v, lin, a = reg_get(c, CPU_RAX, size);

    if (!rm_get_w(c, op, size, &v, &lin))
        return R_STOP;
    do_sub(c, a, v, 0, size);
    if (a == v)
        return rm_put_w(c, op, size, reg_get(c, op->reg, size), lin) ? R_OK : R_STOP;
    if ((op->flags & OPF_MEM) && !rm_put_w(c, op, size, v, lin))
        return R_STOP;
    reg_set(c, CPU_RAX, size, v);
    return R_OK;
}

/* ---- decimal adjust, 32-bit code only */

enum op_result exec_decimal(struct cpu *c, const struct op *op)
{
    uint8_t al = (uint8_t)c->r[CPU_RAX], old = al;
    bool cf = fl_cf(c), af = fl_af(c), sub = op->sub != 0, new_cf = false;

    if ((al & 15) > 9 || af) {
        new_cf = cf || (sub ? old < 6 : old > 0xf9);
        al = (uint8_t)(sub ? al - 6 : al + 6);
        af = true;
    } else {
        af = false;
    }
    if (old > 0x99 || cf) {
        al = (uint8_t)(sub ? al - 0x60 : al + 0x60);
        new_cf = true;
    }
    reg_set(c, CPU_RAX, 1, al);
    flags_logic(c, al, 1);
    c->fl_aux = af ? 8 : 0;
    fl_set_co(c, new_cf, false);
    return R_OK;
}

enum op_result exec_ascii(struct cpu *c, const struct op *op)
{
    uint16_t ax = (uint16_t)c->r[CPU_RAX];
    bool adjust = (ax & 15) > 9 || fl_af(c);

    if (adjust)
        ax = op->sub ? (uint16_t)(ax - 0x106) : (uint16_t)(ax + 0x106);
    ax &= 0xff0f;
    reg_set(c, CPU_RAX, 2, ax);
    flags_logic(c, ax & 0xff, 1);
    c->fl_aux = adjust ? 8 : 0;
    fl_set_co(c, adjust, false);
    return R_OK;
}

enum op_result exec_aam(struct cpu *c, const struct op *op)
{
    uint8_t al = (uint8_t)c->r[CPU_RAX], base = (uint8_t)op->imm;

    if (!base)
        return op_raise(c, VEC_DE, 0);
    reg_set(c, CPU_RAX, 2, (uint64_t)(al / base) << 8 | al % base);
    flags_logic(c, al % base, 1);
    return R_OK;
}

enum op_result exec_aad(struct cpu *c, const struct op *op)
{
    uint16_t ax = (uint16_t)c->r[CPU_RAX];
    uint8_t al = (uint8_t)((ax & 0xff) + (ax >> 8) * (uint8_t)op->imm);

    reg_set(c, CPU_RAX, 2, al);
    flags_logic(c, al, 1);
    return R_OK;
}
