/*
 * Integer instructions against the host CPU: the same bytes, registers, flags and memory; what the
 * architecture leaves undefined is masked. Argument: how many cases.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cpu/cpu_testvm.h"
#include "tests/unit/cpu/native.h"

#define CF 0x1u
#define PF 0x4u
#define AF 0x10u
#define ZF 0x40u
#define SF 0x80u
#define OF 0x800u

#define MID       (TV_DATA + 0x800)
#define WINDOW    256u /* bytes around MID that are compared */
#define WINDOW_AT (MID - WINDOW / 2)

enum enc {
    E_RM_R,    /* r/m, register */
    E_R_RM,    /* register, r/m */
    E_RM,      /* r/m, opcode extension */
    E_RM_I,    /* ... and an immediate of the operand's size, at most 4 bytes */
    E_RM_I8,   /* ... and one byte, sign extended */
    E_RM_C8,   /* ... and a count byte */
    E_RM_CL,   /* ... and CL */
    E_RM_R_C8, /* r/m, register, count byte */
    E_RM_R_CL,
    E_R_RM_I, /* IMUL */
    E_R_RM_I8,
    E_ACC_I, /* accumulator, immediate */
    E_NONE,
    E_OPREG, /* register in the opcode: BSWAP */
    E_LEA,
};

enum how {
    H_PLAIN,
    H_LOGIC, /* AF undefined */
    H_SHL,
    H_SAR,
    H_ROTATE,
    H_DOUBLE,
    H_MUL,
    H_DIV,
    H_IDIV,
    H_BT,
    H_BSCAN,
    H_PAIR, /* CMPXCHG8B/16B, CMPXCHG: equal half of the time */
};

#define S8      1u
#define S16     2u
#define S32     4u
#define S64     8u
#define SW      (S16 | S32 | S64)
#define SALL    (S8 | SW)
#define F_0F    1u
#define F_W     2u /* bit 0 of the opcode: not bytes */
#define F_REG   4u /* register forms */
#define F_MEM   8u
#define F_RM    (F_REG | F_MEM)
#define F_SRC8  16u /* the r/m is a byte whatever the size */
#define F_SRC16 32u /* a word */
#define F_SRC32 64u
#define F_LOCK  128u /* with LOCK too, when the r/m is memory */

struct form {
    const char *name;
    uint8_t op, ext, enc, how, sizes, flags;
};

#define ALU_HOW(k)  ((k) == 1 || (k) == 4 || (k) == 6 ? H_LOGIC : H_PLAIN)
#define ALU_LOCK(k) ((k) == 7 ? 0 : F_LOCK)
#define ALU(n, k)                                                                                  \
    {n, (k)*8 + 1, 0, E_RM_R, ALU_HOW(k), SALL, F_W | F_RM | ALU_LOCK(k)},                         \
        {n, (k)*8 + 3, 0, E_R_RM, ALU_HOW(k), SALL, F_W | F_RM},                                   \
        {n, (k)*8 + 5, 0, E_ACC_I, ALU_HOW(k), SALL, F_W | F_REG},                                 \
        {n, 0x81, k, E_RM_I, ALU_HOW(k), SALL, F_W | F_RM | ALU_LOCK(k)},                          \
    {                                                                                              \
        n, 0x83, k, E_RM_I8, ALU_HOW(k), SW, F_RM | ALU_LOCK(k)                                    \
    }
#define SHIFT(n, k, h)                                                                             \
    {n, 0xd1, k, E_RM, h, SALL, F_W | F_RM}, {n, 0xc1, k, E_RM_C8, h, SALL, F_W | F_RM},           \
    {                                                                                              \
        n, 0xd3, k, E_RM_CL, h, SALL, F_W | F_RM                                                   \
    }
#define BT(n, k)                                                                                   \
    {n, 0x83 + (k)*8, 0, E_RM_R, H_BT, SW, F_0F | F_RM | ((k) > 4 ? F_LOCK : 0)},                  \
    {                                                                                              \
        n, 0xba, k, E_RM_C8, H_BT, SW, F_0F | F_RM | ((k) > 4 ? F_LOCK : 0)                        \
    }
#define CC(n, k)                                                                                   \
    {"cmov" n, 0x40 + (k), 0, E_R_RM, H_PLAIN, SW, F_0F | F_RM},                                   \
    {                                                                                              \
        "set" n, 0x90 + (k), 0, E_RM, H_PLAIN, S8, F_0F | F_RM                                     \
    }

static const struct form forms[] = {
    ALU("add", 0),
    ALU("or", 1),
    ALU("adc", 2),
    ALU("sbb", 3),
    ALU("and", 4),
    ALU("sub", 5),
    ALU("xor", 6),
    ALU("cmp", 7),
    {"test", 0x85, 0, E_RM_R, H_LOGIC, SALL, F_W | F_RM},
    {"test", 0xa9, 0, E_ACC_I, H_LOGIC, SALL, F_W | F_REG},
    {"test", 0xf7, 0, E_RM_I, H_LOGIC, SALL, F_W | F_RM},
    {"mov", 0x89, 0, E_RM_R, H_PLAIN, SALL, F_W | F_RM},
    {"mov", 0x8b, 0, E_R_RM, H_PLAIN, SALL, F_W | F_RM},
    {"mov", 0xc7, 0, E_RM_I, H_PLAIN, SALL, F_W | F_RM},
    {"inc", 0xff, 0, E_RM, H_PLAIN, SALL, F_W | F_RM | F_LOCK},
    {"dec", 0xff, 1, E_RM, H_PLAIN, SALL, F_W | F_RM | F_LOCK},
    {"not", 0xf7, 2, E_RM, H_PLAIN, SALL, F_W | F_RM | F_LOCK},
    {"neg", 0xf7, 3, E_RM, H_PLAIN, SALL, F_W | F_RM | F_LOCK},
    {"mul", 0xf7, 4, E_RM, H_MUL, SALL, F_W | F_RM},
    {"imul1", 0xf7, 5, E_RM, H_MUL, SALL, F_W | F_RM},
    {"imul2", 0xaf, 0, E_R_RM, H_MUL, SW, F_0F | F_RM},
    {"imul3", 0x69, 0, E_R_RM_I, H_MUL, SW, F_RM},
    {"imul3", 0x6b, 0, E_R_RM_I8, H_MUL, SW, F_RM},
    {"div", 0xf7, 6, E_RM, H_DIV, SALL, F_W | F_RM},
    {"idiv", 0xf7, 7, E_RM, H_IDIV, SALL, F_W | F_RM},
    SHIFT("rol", 0, H_ROTATE),
    SHIFT("ror", 1, H_ROTATE),
    SHIFT("rcl", 2, H_ROTATE),
    SHIFT("rcr", 3, H_ROTATE),
    SHIFT("shl", 4, H_SHL),
    SHIFT("shr", 5, H_SHL),
    SHIFT("sar", 7, H_SAR),
    {"shld", 0xa4, 0, E_RM_R_C8, H_DOUBLE, SW, F_0F | F_RM},
    {"shld", 0xa5, 0, E_RM_R_CL, H_DOUBLE, SW, F_0F | F_RM},
    {"shrd", 0xac, 0, E_RM_R_C8, H_DOUBLE, SW, F_0F | F_RM},
    {"shrd", 0xad, 0, E_RM_R_CL, H_DOUBLE, SW, F_0F | F_RM},
    BT("bt", 4),
    BT("bts", 5),
    BT("btr", 6),
    BT("btc", 7),
    {"bsf", 0xbc, 0, E_R_RM, H_BSCAN, SW, F_0F | F_RM},
    {"bsr", 0xbd, 0, E_R_RM, H_BSCAN, SW, F_0F | F_RM},
    CC("o", 0),
    CC("no", 1),
    CC("b", 2),
    CC("nb", 3),
    CC("z", 4),
    CC("nz", 5),
    CC("be", 6),
    CC("nbe", 7),
    CC("s", 8),
    CC("ns", 9),
    CC("p", 10),
    CC("np", 11),
    CC("l", 12),
    CC("nl", 13),
    CC("le", 14),
    CC("nle", 15),
    {"movzx8", 0xb6, 0, E_R_RM, H_PLAIN, SW, F_0F | F_RM | F_SRC8},
    {"movzx16", 0xb7, 0, E_R_RM, H_PLAIN, S32 | S64, F_0F | F_RM | F_SRC16},
    {"movsx8", 0xbe, 0, E_R_RM, H_PLAIN, SW, F_0F | F_RM | F_SRC8},
    {"movsx16", 0xbf, 0, E_R_RM, H_PLAIN, S32 | S64, F_0F | F_RM | F_SRC16},
    {"movsxd", 0x63, 0, E_R_RM, H_PLAIN, S64, F_RM | F_SRC32},
    {"xchg", 0x87, 0, E_RM_R, H_PLAIN, SALL, F_W | F_RM | F_LOCK},
    {"xadd", 0xc1, 0, E_RM_R, H_PLAIN, SALL, F_0F | F_W | F_RM | F_LOCK},
    {"cmpxchg", 0xb1, 0, E_RM_R, H_PAIR, SALL, F_0F | F_W | F_RM | F_LOCK},
    {"cmpxchg8b/16b", 0xc7, 1, E_RM, H_PAIR, S32 | S64, F_0F | F_MEM | F_LOCK},
    {"bswap", 0xc8, 0, E_OPREG, H_PLAIN, S32 | S64, F_0F | F_REG},
    {"lea", 0x8d, 0, E_LEA, H_PLAIN, SW, F_REG},
    {"cbw", 0x98, 0, E_NONE, H_PLAIN, SW, F_REG},
    {"cwd", 0x99, 0, E_NONE, H_PLAIN, SW, F_REG},
    {"lahf", 0x9f, 0, E_NONE, H_PLAIN, S32, F_REG},
    {"sahf", 0x9e, 0, E_NONE, H_PLAIN, S32, F_REG},
    {"clc", 0xf8, 0, E_NONE, H_PLAIN, S32, F_REG},
    {"stc", 0xf9, 0, E_NONE, H_PLAIN, S32, F_REG},
    {"cmc", 0xf5, 0, E_NONE, H_PLAIN, S32, F_REG},
};
#define FORMS (sizeof forms / sizeof forms[0])

struct one {
    const struct form *f;
    unsigned size; /* operand bytes */
    bool mem, lock;
    unsigned rm, reg, imm, disp;
    uint8_t code[16];
    unsigned len;
    uint32_t undefined;
    struct native_regs in;
    uint8_t window[WINDOW];
};

static uint64_t seed = 0x1234567887654321u;
static struct testvm vm;
static uint8_t *guest_window;

static uint64_t rnd(void)
{
    return mm_test_random(&seed);
}

static uint64_t value(void)
{
    static const uint64_t edge[] = {
        0,           1,         2,          0x7f,       0x80,          0xff,
        0x7fff,      0x8000,    0xffff,     0x7fffffff, 0x80000000,    0xffffffff,
        0x100000000, INT64_MAX, 1ull << 63, UINT64_MAX, UINT64_MAX - 1};

    switch (rnd() % 4) {
    case 0:
        return edge[rnd() % (sizeof edge / sizeof edge[0])];
    case 1:
        return rnd() >> rnd() % 64;
    default:
        return rnd();
    }
}

static bool needs_no_rex(const struct one *o, unsigned r)
{
    return o->size == 1 && r >= 4 && r < 8;
}

/* Any register but RSP; with a memory operand also not RDI, which addresses it. */
static unsigned pick(const struct one *o)
{
    unsigned r;

    do
        r = (unsigned)rnd() % 16;
    while (r == 4 || (o->mem && (r & 7) == 7) || (o->f->flags & F_SRC8 && r < 8 && r > 3) ||
           (o->size == 1 && r >= 4 && r < 8 && rnd() % 2));
    return r;
}

static void byte(struct one *o, unsigned b)
{
    o->code[o->len++] = (uint8_t)b;
}

static void modrm(struct one *o, unsigned reg)
{
    static const unsigned disp[] = {0, 1, 7, 59, 61, 64};
    unsigned d = disp[rnd() % 6];

    reg = (reg & 7) << 3;
    if (!o->mem) {
        byte(o, 0xc0 | reg | (o->rm & 7));
    } else if (o->f->ext == 1 && o->f->op == 0xc7) {
        byte(o, reg | 7); /* CMPXCHG16B wants it aligned */
    } else if (rnd() % 2) {
        o->disp = d;
        byte(o, 0x40 | reg | 7);
        byte(o, d);
    } else {
        o->disp = d;
        byte(o, 0x80 | reg | 7);
        for (unsigned i = 0; i < 4; i++)
            byte(o, d >> i * 8);
    }
}

static void lea(struct one *o)
{
    unsigned base = o->rm & 7, index = (unsigned)rnd() % 16, n = rnd() % 2 ? 4 : 1;

    if (index == 4)
        index = 5;
    o->code[o->len - 2] |= (uint8_t)((index & 8) >> 2);
    byte(o, (n == 1 ? 0x44 : 0x84) | (o->reg & 7) << 3);
    byte(o, (unsigned)(rnd() % 4) << 6 | (index & 7) << 3 | base);
    while (n--)
        byte(o, (unsigned)rnd() & 0xff);
}

static void immediate(struct one *o, unsigned n)
{
    uint64_t v = value();

    if (n == 1)
        o->imm = (unsigned)v & 0xff;
    for (unsigned i = 0; i < n; i++)
        byte(o, (unsigned)(v >> i * 8) & 0xff);
}

static unsigned count_byte(struct one *o)
{
    static const unsigned some[] = {0, 1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 255};
    unsigned n = rnd() % 2 ? some[rnd() % 15] : (unsigned)rnd() & 0xff;

    if (o->f->how == H_DOUBLE && o->size == 2)
        n %= 17;
    return n;
}

static void encode(struct one *o)
{
    const struct form *f = o->f;
    unsigned reg = o->reg, op = f->op, rex;
    bool two = f->enc == E_RM_R || f->enc == E_R_RM || f->enc == E_RM_R_C8 || f->enc == E_RM_R_CL ||
               f->enc == E_R_RM_I || f->enc == E_R_RM_I8 || f->enc == E_LEA;

    o->len = 0;
    if (!two)
        reg = f->ext;
    if (o->lock)
        byte(o, 0xf0);
    if (o->size == 2)
        byte(o, 0x66);
    rex = (o->size == 8 ? 8u : 0) | (two ? (reg & 8) >> 1 : 0) | (o->mem ? 0 : (o->rm & 8) >> 3);
    if (f->enc == E_NONE || f->enc == E_ACC_I)
        rex &= 8;
    if (rex || f->enc == E_LEA)
        byte(o, 0x40 | rex);
    if (f->flags & F_0F)
        byte(o, 0x0f);
    if ((f->flags & F_W) && o->size == 1)
        op &= ~1u;
    byte(o, f->enc == E_OPREG ? op | (o->rm & 7) : op);
    if (f->enc == E_LEA)
        lea(o);
    else if (f->enc != E_NONE && f->enc != E_OPREG && f->enc != E_ACC_I)
        modrm(o, reg);
    if (f->enc == E_RM_I || f->enc == E_ACC_I || f->enc == E_R_RM_I)
        immediate(o, o->size == 8 ? 4 : o->size);
    if (f->enc == E_RM_I8 || f->enc == E_R_RM_I8)
        immediate(o, 1);
    if (f->enc == E_RM_C8 || f->enc == E_RM_R_C8) {
        o->imm = count_byte(o);
        byte(o, o->imm);
    }
}

/* Registers whose byte forms cannot stand beside REX. */
static bool mix_ok(const struct one *o)
{
    bool high = needs_no_rex(o, o->reg) || (!o->mem && needs_no_rex(o, o->rm));
    bool wide = o->reg >= 8 || (!o->mem && o->rm >= 8);

    return !(high && wide);
}

static uint8_t *operand(struct one *o)
{
    return o->window + WINDOW / 2 + o->disp;
}

static void set_sized(uint64_t *r, unsigned size, uint64_t v)
{
    uint64_t mask = size == 8 ? UINT64_MAX : (1ull << size * 8) - 1;

    *r = (*r & ~mask) | (v & mask);
}

/* A dividend whose quotient fits: the high half is small, the divisor is not. */
static void prepare_div(struct one *o)
{
    uint64_t *g = o->in.gpr, divisor, high;
    unsigned bits = o->size * 8;
    bool sign = o->f->how == H_IDIV;

    divisor = (rnd() & (UINT64_MAX >> (64 - bits))) | 1ull << (bits - (sign ? 2 : 1));
    if (sign)
        divisor &= ~(1ull << (bits - 1));
    high = (divisor >> 2) - 1 - (bits > 8 ? rnd() % 16 : 0);
    if (sign) {
        high = rnd() % 16 >> (bits == 8);
        if (rnd() % 2)
            high = ~high;
        if (rnd() % 2)
            divisor = ~divisor + 1;
    }
    if (o->size == 1)
        set_sized(&g[0], 2, (high & 0xff) << 8 | (rnd() & 0xff));
    else
        set_sized(&g[2], o->size, high);
    if (o->mem) {
        for (unsigned i = 0; i < WINDOW / 2; i++) /* wherever the displacement leads */
            o->window[WINDOW / 2 + i] = 0;
        memcpy(operand(o), &divisor, o->size);
    } else {
        set_sized(&g[o->rm], o->size, divisor);
    }
}

static void prepare_pair(struct one *o)
{
    uint64_t *g = o->in.gpr;

    if (rnd() % 2)
        return;
    if (o->f->op == 0xc7) {
        memcpy(o->window + WINDOW / 2, &g[0], o->size);
        memcpy(o->window + WINDOW / 2 + o->size, &g[2], o->size);
    } else if (o->mem) {
        memcpy(operand(o), &g[0], o->size);
    } else if (!needs_no_rex(o, o->rm)) {
        set_sized(&g[o->rm], o->size, g[0]);
    }
}

static unsigned shift_count(const struct one *o)
{
    unsigned mask = o->size == 8 ? 63 : 31;

    switch (o->f->enc) {
    case E_RM:
        return 1;
    case E_RM_CL:
    case E_RM_R_CL:
        return (unsigned)o->in.gpr[CPU_RCX] & mask;
    default:
        return o->imm & mask;
    }
}

static uint32_t undefined(const struct one *o)
{
    unsigned n;

    switch (o->f->how) {
    case H_LOGIC:
        return AF;
    case H_MUL:
        return SF | ZF | AF | PF;
    case H_DIV:
    case H_IDIV:
        return NATIVE_FLAGS;
    case H_BT:
        return OF | SF | AF | PF;
    case H_BSCAN:
        return OF | SF | AF | PF | CF;
    case H_SHL:
    case H_SAR:
        n = shift_count(o);
        return !n ? 0 : AF | (n > 1 ? OF : 0) | (o->f->how == H_SHL && n >= o->size * 8 ? CF : 0);
    case H_ROTATE:
        return shift_count(o) > 1 ? OF : 0;
    case H_DOUBLE:
        n = shift_count(o);
        return !n ? 0 : AF | (n > 1 ? OF : 0);
    default:
        return 0;
    }
}

/* True: the operands are such that the result is defined and nothing faults. */
static bool prepare(struct one *o)
{
    for (unsigned r = 0; r < 16; r++)
        o->in.gpr[r] = value();
    o->in.flags = rnd() & NATIVE_FLAGS;
    for (unsigned i = 0; i < WINDOW; i += 8) {
        uint64_t v = value();

        memcpy(o->window + i, &v, 8);
    }
    if (o->mem)
        o->in.gpr[CPU_RDI] = MID;
    if (o->f->enc == E_RM_CL || o->f->enc == E_RM_R_CL)
        set_sized(&o->in.gpr[CPU_RCX], 1, count_byte(o));
    if (o->f->how == H_BT && o->mem && o->f->enc == E_RM_R)
        o->in.gpr[o->reg] = rnd() % 500 - 500; /* 62 bytes below at most */
    if (o->f->how == H_DIV || o->f->how == H_IDIV) {
        if (!o->mem && (o->rm == 0 || o->rm == 2 || needs_no_rex(o, o->rm)))
            return false;
        prepare_div(o);
    }
    if (o->f->how == H_PAIR)
        prepare_pair(o);
    if (o->f->how == H_BSCAN) {
        if (o->mem)
            operand(o)[0] |= 4;
        else
            o->in.gpr[o->rm] |= 4;
    }
    o->undefined = undefined(o);
    return true;
}

static bool make(struct one *o, const struct form *f, unsigned size, bool mem, bool lock)
{
    memset(o, 0, sizeof *o);
    o->f = f;
    o->size = size;
    o->mem = mem;
    o->lock = lock;
    do {
        o->rm = pick(o);
        o->reg = pick(o);
    } while (!mix_ok(o));
    if (f->op == 0xc7 && f->ext == 1)
        o->rm = o->reg = 0;
    encode(o);
    return prepare(o);
}

static void print(const struct one *o, const char *what)
{
    fprintf(stderr, "%s: %s size %u %s:", what, o->f->name, o->size, o->mem ? "mem" : "reg");
    for (unsigned i = 0; i < o->len; i++)
        fprintf(stderr, " %02x", o->code[i]);
    fprintf(stderr, "\n");
}

static void differ(const struct one *o, const struct native_regs *n, const uint8_t *native_mem)
{
    const struct cpu_state *s = &vm.st;

    print(o, "differs");
    for (unsigned r = 0; r < 16; r++)
        if (r != 4 && s->gpr[r] != n->gpr[r])
            fprintf(stderr, "  r%u in %#llx host %#llx engine %#llx\n", r,
                    (unsigned long long)o->in.gpr[r], (unsigned long long)n->gpr[r],
                    (unsigned long long)s->gpr[r]);
    fprintf(stderr, "  flags in %#llx host %#llx engine %#llx undefined %#x; rcx %#llx\n",
            (unsigned long long)(o->in.flags & NATIVE_FLAGS), (unsigned long long)n->flags,
            (unsigned long long)(s->rflags & NATIVE_FLAGS), o->undefined,
            (unsigned long long)o->in.gpr[CPU_RCX]);
    for (unsigned i = 0; i < WINDOW; i++)
        if (native_mem[i] != guest_window[i])
            fprintf(stderr, "  mem[%d] host %#x engine %#x\n", (int)i - (int)WINDOW / 2,
                    native_mem[i], guest_window[i]);
}

/* True: both did the same. */
static bool compare(const struct one *o)
{
    uint64_t at = WINDOW_AT;
    struct native_regs n = o->in;
    uint8_t code[16], *mem;
    enum cpu_exit e;
    bool same;

    memcpy(&mem, &at, sizeof mem);
    memcpy(mem, o->window, WINDOW);
    memcpy(guest_window, o->window, WINDOW);
    native_run(o->code, o->len, &n);
    memcpy(code, o->code, o->len);
    code[o->len] = 0xf4;
    tv_write(&vm, TV_CODE, code, o->len + 1);
    memcpy(vm.st.gpr, o->in.gpr, sizeof vm.st.gpr);
    vm.st.gpr[CPU_RSP] = TV_STACK;
    vm.st.rip = TV_CODE;
    vm.st.rflags = o->in.flags | 2;
    vm.st.halted = 0;
    e = tv_run(&vm, 10);
    if (e != CPU_EXIT_HALT || vm.st.rip != TV_CODE + o->len + 1) {
        fprintf(stderr, "exit %d rip %#llx\n", (int)e, (unsigned long long)vm.st.rip);
        print(o, "did not run");
        return false;
    }
    same = !((vm.st.rflags ^ n.flags) & NATIVE_FLAGS & ~o->undefined);
    for (unsigned r = 0; r < 16; r++)
        same = same && (r == 4 || vm.st.gpr[r] == n.gpr[r]);
    same = same && !memcmp(mem, guest_window, WINDOW);
    if (!same)
        differ(o, &n, mem);
    return same;
}

static unsigned long rounds = 350;

static unsigned run_form(const struct form *f, unsigned size, bool mem, bool lock, unsigned *bad)
{
    unsigned done = 0, here = 0;
    struct one o;

    for (unsigned long i = 0; i < rounds && here < 2; i++) {
        if (!make(&o, f, size, mem, lock))
            continue;
        done++;
        here += !compare(&o);
    }
    *bad += here;
    return done;
}

/* Protects the meaning of every integer instruction: results, flags and memory as on real CPUs. */
static void test_against_host(void **state)
{
    unsigned nr_forms = 0, cases = 0, bad = 0;

    (void)state;
    for (unsigned i = 0; i < FORMS; i++)
        for (unsigned size = 1; size <= 8; size *= 2)
            for (unsigned mem = 0; mem < 2; mem++) {
                if (!(forms[i].sizes & size) || !(forms[i].flags & (mem ? F_MEM : F_REG)))
                    continue;
                nr_forms++;
                cases += run_form(&forms[i], size, mem != 0, false, &bad);
                if (!mem || !(forms[i].flags & F_LOCK))
                    continue;
                nr_forms++;
                cases += run_form(&forms[i], size, true, true, &bad);
            }
    printf("%u forms, %u cases, %u differ\n", nr_forms, cases, bad);
    assert_true(nr_forms > 400);
    assert_true(cases > nr_forms * (unsigned)rounds / 2);
    assert_int_equal(bad, 0);
}

static int setup(void **state)
{
    (void)state;
    if (!native_init(TV_DATA, 4096))
        return -1;
    tv_init(&vm);
    tv_long(&vm);
    guest_window = tv_ptr(&vm, WINDOW_AT);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tv_fini(&vm);
    native_fini();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_host)};

    if (argc > 1)
        rounds = strtoul(argv[1], NULL, 0) / 500 + 1;
    return cmocka_run_group_tests(tests, setup, teardown);
}
