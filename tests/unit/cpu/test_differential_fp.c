/*
 * x87, MMX, SSE and SSE2 against the host CPU: registers, flags, memory, the whole FXSAVE image,
 * and which fault. Argument: how many cases.
 *
 * Not compared, because the host cannot show it: FIP, FDP, FOP (the host's are those of the
 * trampoline; test_system_fp.c), 16- and 32-bit code, CR0.TS/EM and CR4 (test_system_fp.c),
 * LFENCE/MFENCE/SFENCE (no visible result), PREFETCH (none either).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cpu/cpu_testvm.h"
#include "tests/unit/cpu/fp_forms.h"
#include "tests/unit/cpu/native.h"

#define MID       (TV_DATA + 0x800)
#define WINDOW    1024u /* bytes around MID that are compared */
#define WINDOW_AT (MID - WINDOW / 2)

#define FX_FSW   2u
#define FX_FTW   4u
#define FX_FOP   6u
#define FX_MXCSR 24u
#define FX_ST    32u
#define FX_XMM   160u
#define FX_END   416u
#define CR4_FP   0x600u

struct one {
    const char *name;
    uint8_t code[16];
    unsigned len;
    struct native_fp in;
    uint8_t window[WINDOW];
    uint32_t undefined; /* flags */
    bool pointers;      /* FIP, FDP, FOP are compared too */
};

static uint64_t seed = 0x8765432112345678u;
static struct testvm vm;
static uint8_t *guest_window;
static unsigned long cases_wanted = 130000;
static unsigned faults_seen[32];

static uint64_t rnd(void)
{
    return mm_test_random(&seed);
}

static bool one_in(unsigned n)
{
    return rnd() % n == 0;
}

/* ---- operands */

static uint32_t float32(void)
{
    static const uint32_t edge[] = {0,          0x80000000, 1,          0x80000001, 0x7fffff,
                                    0x800000,   0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff,
                                    0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001,
                                    0xffbfffff, 0x3f000000, 0x4b000000, 0x4f000000, 0xcf000000,
                                    0x5f000000, 0x00800001, 0x34000000, 0x3fffffff};

    if (one_in(2))
        return edge[rnd() % (sizeof edge / sizeof edge[0])];
    if (one_in(3)) /* near one: additions cancel */
        return (uint32_t)(0x3f800000 + (rnd() & 0x8fffffff) % 0x1000000) ^
               (one_in(2) ? 1u << 31 : 0);
    return (uint32_t)rnd();
}

static uint64_t float64(void)
{
    static const uint64_t edge[] = {0,
                                    1ull << 63,
                                    1,
                                    0x000fffffffffffff,
                                    0x0010000000000000,
                                    0x3ff0000000000000,
                                    0xbff0000000000000,
                                    0x7fefffffffffffff,
                                    0x7ff0000000000000,
                                    0xfff0000000000000,
                                    0x7ff8000000000000,
                                    0xfff8000000000123,
                                    0x7ff0000000000001,
                                    0xfff7ffffffffffff,
                                    0x41dfffffffc00000,
                                    0x41e0000000000000,
                                    0xc1e0000000200000,
                                    0x43e0000000000000,
                                    0xc3e0000000000000,
                                    0x36a0000000000000,
                                    0x380fffffffffffff,
                                    0x47efffffffffffff,
                                    0x3fe0000000000000,
                                    0x4340000000000001};

    if (one_in(2))
        return edge[rnd() % (sizeof edge / sizeof edge[0])];
    if (one_in(3))
        return (0x3ff0000000000000 + rnd() % 0x20000000000000) ^ (one_in(2) ? 1ull << 63 : 0);
    return rnd();
}

static uint64_t integer(void)
{
    static const uint64_t edge[] = {0,
                                    1,
                                    0x7f,
                                    0x80,
                                    0xff,
                                    0x7fff,
                                    0x8000,
                                    0xffff,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    INT64_MAX,
                                    1ull << 63,
                                    UINT64_MAX,
                                    0x00ff00ff00ff00ff,
                                    0x8000800080008000,
                                    16,
                                    63,
                                    64,
                                    15};

    return one_in(3) ? edge[rnd() % (sizeof edge / sizeof edge[0])] : rnd();
}

static uint64_t eight(unsigned elem)
{
    if (elem == 4)
        return float32() | (uint64_t)float32() << 32;
    return elem == 8 ? float64() : integer();
}

/* An x87 register: any encoding there is. */
static void extended(uint8_t *p)
{
    static const uint16_t exps[] = {0,      1,      0x3fff, 0x3ffe, 0x403e,
                                    0x7ffe, 0x7fff, 0x3c01, 0x3f81, 0x43fe};
    static const uint64_t mants[] = {0,          1ull << 63,         3ull << 62,
                                     UINT64_MAX, (1ull << 63) | 1,   1,
                                     1ull << 62, 0x8000000000000400, 0x8000008000000000};
    uint16_t e = one_in(2) ? exps[rnd() % 10] : (uint16_t)(0x3fff - 40 + rnd() % 80);
    uint64_t m = one_in(3) ? mants[rnd() % 9] : rnd() | (one_in(16) ? 0 : 1ull << 63);

    if (one_in(8)) {
        e = 0;
        m = one_in(2) ? 0 : m;
    } else if (one_in(2)) {
        e = (uint16_t)(0x3fff + rnd() % 64 - 4);
        m |= 1ull << 63;
    }
    e = (uint16_t)(e | (one_in(2) ? 0x8000 : 0));
    memcpy(p, &m, 8);
    memcpy(p + 8, &e, 2);
}

static void put16(uint8_t *p, unsigned v)
{
    uint16_t w = (uint16_t)v;

    memcpy(p, &w, 2);
}

static void random_control(uint8_t *fx, bool x87)
{
    uint32_t mxcsr =
        0x1f80 | (uint32_t)(rnd() & 0x603f) | (one_in(4) ? 0x40 : 0) | (one_in(4) ? 0x8000 : 0);
    unsigned fcw = 0x7f | (unsigned)(rnd() & 0x0f00), fsw = (unsigned)rnd() & 0x7f7f;

    if (one_in(3))
        mxcsr &= ~((uint32_t)rnd() & 0x1f80);
    if (one_in(3))
        mxcsr &= ~0x3fu;
    if (one_in(3))
        fcw &= ~((unsigned)rnd() & 0x3f);
    if (!one_in(12))
        fsw &= fcw | ~0x3fu; /* nothing waits */
    if (!x87)
        fsw &= ~0x3fu;
    if (fsw & ~fcw & 0x3f)
        fsw |= 0x8080;
    put16(fx, fcw);
    put16(fx + FX_FSW, fsw);
    memcpy(fx + FX_MXCSR, &mxcsr, 4);
    put16(fx + FX_MXCSR + 4, 0xffff);
}

static void random_state(struct one *o, unsigned elem, bool x87)
{
    uint8_t *fx = o->in.fx;

    memset(&o->in, 0, sizeof o->in);
    for (unsigned i = 0; i < 16; i++)
        o->in.r.gpr[i] = integer();
    o->in.r.gpr[CPU_RDI] = MID;
    o->in.r.flags = rnd() & NATIVE_FLAGS;
    random_control(fx, x87);
    fx[FX_FTW] = (uint8_t)(one_in(2) ? 0xff : one_in(4) ? 0 : rnd());
    for (unsigned i = 0; i < 8; i++)
        extended(fx + FX_ST + i * 16);
    for (unsigned i = 0; i < 32; i++) {
        uint64_t v = eight(elem);

        memcpy(fx + FX_XMM + i * 8, &v, 8);
    }
    for (unsigned i = 0; i < WINDOW; i += 8) {
        uint64_t v = eight(elem);

        memcpy(o->window + i, &v, 8);
    }
}

static void byte(struct one *o, unsigned b)
{
    o->code[o->len++] = (uint8_t)b;
}

/* ---- both sides */

static void dump(const char *what, const uint8_t *a, const uint8_t *b, unsigned from, unsigned n)
{
    for (unsigned i = from; i < from + n; i++)
        if (a[i] != b[i])
            fprintf(stderr, "  %s[%u] host %02x engine %02x\n", what, i, a[i], b[i]);
}

static void print(const struct one *o)
{
    uint32_t mxcsr;
    uint16_t fcw, fsw;

    memcpy(&mxcsr, o->in.fx + FX_MXCSR, 4);
    memcpy(&fcw, o->in.fx, 2);
    memcpy(&fsw, o->in.fx + FX_FSW, 2);
    fprintf(stderr, "%s:", o->name);
    for (unsigned i = 0; i < o->len; i++)
        fprintf(stderr, " %02x", o->code[i]);
    fprintf(stderr, "  mxcsr %#x fcw %#x fsw %#x ftw %#x\n", mxcsr, fcw, fsw, o->in.fx[FX_FTW]);
}

static void differ(const struct one *o, const struct native_fp *n, const uint8_t *mem, int vec,
                   int engine_vec)
{
    const struct cpu_state *s = &vm.st;

    print(o);
    fprintf(stderr, "  vector host %d engine %d\n", vec, engine_vec);
    for (unsigned r = 0; r < 16; r++)
        if (r != 4 && s->gpr[r] != n->r.gpr[r])
            fprintf(stderr, "  r%u host %#llx engine %#llx\n", r, (unsigned long long)n->r.gpr[r],
                    (unsigned long long)s->gpr[r]);
    fprintf(stderr, "  flags host %#llx engine %#llx\n", (unsigned long long)n->r.flags,
            (unsigned long long)(s->rflags & NATIVE_FLAGS));
    dump("fx", n->fx, s->fx, 0, FX_END);
    dump("mem", mem, guest_window, 0, WINDOW);
}

/* The host's pointers are those of its own code. */
static void take_pointers(const struct one *o, struct native_fp *n, struct cpu_state *s)
{
    memset(n->fx + 28, 0, 4);
    memset(s->fx + 28, 0, 4);
    n->fx[5] = s->fx[5] = 0;
    if (o->pointers)
        return;
    memset(n->fx + FX_FOP, 0, FX_MXCSR - FX_FOP);
    memset(s->fx + FX_FOP, 0, FX_MXCSR - FX_FOP);
}

static int run_engine(const struct one *o)
{
    uint8_t code[17];
    enum cpu_exit e;

    memcpy(guest_window, o->window, WINDOW);
    memcpy(code, o->code, o->len);
    code[o->len] = 0xf4;
    tv_write(&vm, TV_CODE, code, o->len + 1);
    memcpy(vm.st.gpr, o->in.r.gpr, sizeof vm.st.gpr);
    memcpy(vm.st.fx, o->in.fx, sizeof vm.st.fx);
    vm.st.gpr[CPU_RSP] = TV_STACK;
    vm.st.rip = TV_CODE;
    vm.st.rflags = o->in.r.flags | 2;
    vm.st.halted = 0;
    e = tv_run(&vm, 10);
    if (e != CPU_EXIT_HALT)
        return -2;
    if (vm.st.rip == TV_CODE + o->len + 1)
        return -1;
    return tv_vector(&vm);
}

/* True: both did the same. */
static bool compare(struct one *o)
{
    struct native_fp n = o->in;
    uint64_t at = WINDOW_AT;
    uint8_t *mem;
    int vec, engine_vec;
    bool same;

    memcpy(&mem, &at, sizeof mem);
    memcpy(mem, o->window, WINDOW);
    vec = native_run_fp(o->code, o->len, &n);
    engine_vec = run_engine(o);
    if (vec >= 0) {
        faults_seen[vec & 31]++;
        vm.st.rflags = o->in.r.flags; /* the handler's are others */
        n.r.flags = o->in.r.flags & NATIVE_FLAGS;
    }
    take_pointers(o, &n, &vm.st);
    same = vec == engine_vec && !((vm.st.rflags ^ n.r.flags) & NATIVE_FLAGS & ~o->undefined);
    for (unsigned r = 0; r < 16; r++)
        same = same && (r == 4 || vm.st.gpr[r] == n.r.gpr[r]);
    same = same && !memcmp(n.fx, vm.st.fx, FX_END) && !memcmp(mem, guest_window, WINDOW);
    if (!same)
        differ(o, &n, mem, vec, engine_vec);
    return same;
}

/* ---- MMX and SSE */

static unsigned pick(enum fp_kind k)
{
    unsigned r;

    if (k == K_XMM)
        return (unsigned)rnd() % 16;
    if (k != K_GPR)
        return (unsigned)rnd() % 8;
    do
        r = (unsigned)rnd() % 16;
    while (r == 4 || r == 7);
    return r;
}

static void encode_sse(struct one *o, const struct fp_form *f, bool mem, bool w)
{
    unsigned reg = f->ext == 0xff ? pick((enum fp_kind)f->reg) : f->ext;
    unsigned rm = mem ? 7 : pick((enum fp_kind)f->rm), disp = (unsigned)rnd() % 4 * 16, rex;

    if ((f->flags & FF_ALIGN) ? one_in(16) : one_in(2))
        disp += (unsigned)rnd() % 16;
    rex = (w ? 8u : 0) | (f->ext == 0xff ? (reg & 8) >> 1 : 0) | (mem ? 0 : (rm & 8) >> 3);
    if (f->pfx)
        byte(o, f->pfx);
    if (rex)
        byte(o, 0x40 | rex);
    byte(o, 0x0f);
    byte(o, f->op);
    if (mem) {
        byte(o, 0x47 | (reg & 7) << 3);
        byte(o, disp);
    } else {
        byte(o, 0xc0 | (reg & 7) << 3 | (rm & 7));
    }
    if (f->flags & FF_IMM)
        byte(o, one_in(2) ? (unsigned)rnd() % 17 : (unsigned)rnd() & 0xff);
}

static void make_sse(struct one *o, const struct fp_form *f, bool mem, bool w)
{
    memset(o, 0, sizeof *o);
    o->name = f->name;
    random_state(o, f->elem, f->reg == K_MMX || f->rm == K_MMX);
    encode_sse(o, f, mem, w);
    if (f->op == 0xae && f->ext == 2 && !one_in(4)) /* LDMXCSR: mostly a value that exists */
        for (unsigned i = 0; i + 4 <= WINDOW; i += 4)
            put16(o->window + i + 2, 0);
}

static unsigned run_sse(const struct fp_form *f, bool mem, bool w, unsigned rounds, unsigned *bad)
{
    struct one o;
    unsigned here = 0, i;

    for (i = 0; i < rounds && here < 2; i++) {
        make_sse(&o, f, mem, w);
        here += !compare(&o);
    }
    *bad += here;
    return i;
}

/* Protects every MMX, SSE and SSE2 form: results, MXCSR, flags, memory and faults as on real CPUs.
 */
static void test_sse_against_host(void **state)
{
    unsigned nr = 0, cases = 0, bad = 0;

    (void)state;
    for (unsigned i = 0; i < fp_forms_nr; i++)
        for (unsigned mem = 0; mem < 2; mem++)
            for (unsigned w = 0; w < 2; w++) {
                const struct fp_form *f = &fp_forms[i];

                if (!(f->flags & (mem ? FF_MEM : FF_REG)) || (w && !(f->flags & FF_W)))
                    continue;
                nr++;
                cases += run_sse(f, mem != 0, w != 0, (unsigned)(cases_wanted / 800) + 1, &bad);
            }
    printf("%u forms, %u cases, %u differ; #XM %u, #MF %u, #GP %u\n", nr, cases, bad,
           faults_seen[19], faults_seen[16], faults_seen[13]);
    assert_int_equal(bad, 0);
    assert_true(nr > 330);
    assert_true(faults_seen[19] && faults_seen[16] && faults_seen[13]);
}

/* ---- x87 */

/* Register forms that every processor since the P6 defines the same way. */
static bool x87_reg_form(unsigned esc, unsigned modrm)
{
    unsigned n = modrm - 0xc0;

    switch (esc) {
    case 1:
        return n < 0x11 || n == 0x20 || n == 0x21 || n == 0x24 || n == 0x25 ||
               (n >= 0x28 && n != 0x2f);
    case 2:
        return n < 0x20 || n == 0x29;
    case 3:
        return n < 0x20 || n == 0x22 || n == 0x23 || (n >= 0x28 && n < 0x38);
    case 5:
        return n < 8 || (n >= 0x10 && n < 0x30);
    case 6:
        return n < 0x10 || n == 0x19 || n >= 0x20;
    case 7:
        return n == 0x20 || (n >= 0x28 && n < 0x38);
    case 4:
        return n < 0x10 || n >= 0x20;
    default:
        return true;
    }
}

static bool x87_mem_form(unsigned esc, unsigned reg)
{
    if (reg == 1 && (esc == 1 || esc == 3 || esc == 5 || esc == 7))
        return false; /* nothing, FISTTP */
    return !(esc == 3 && (reg == 4 || reg == 6)) && !(esc == 5 && reg == 5);
}

static void make_x87(struct one *o, unsigned esc, unsigned modrm, unsigned pfx)
{
    memset(o, 0, sizeof *o);
    o->name = "x87";
    random_state(o, one_in(2) ? 4 : one_in(2) ? 8 : 0, true);
    if (pfx)
        byte(o, pfx);
    byte(o, 0xd8 + esc);
    byte(o, modrm);
    if (modrm < 0xc0)
        byte(o, (unsigned)rnd() % 64);
    if (modrm < 0xc0 && one_in(2)) /* extended and decimal operands */
        for (unsigned i = 0; i + 10 <= WINDOW; i += 10)
            extended(o->window + i);
}

/* FNSTENV and FNSAVE leave pointers, FLDENV and FRSTOR take them from memory. */
static bool x87_environment(unsigned esc, unsigned modrm)
{
    unsigned reg = modrm >> 3 & 7;

    return modrm < 0xc0 &&
           ((esc == 1 && (reg == 4 || reg == 6)) || (esc == 5 && (reg == 4 || reg == 6)));
}

static unsigned run_x87(unsigned esc, unsigned modrm, unsigned pfx, unsigned rounds, unsigned *bad)
{
    unsigned here = 0, i;
    struct one o;

    for (i = 0; i < rounds && here < 2; i++) {
        make_x87(&o, esc, modrm, pfx);
        o.pointers = x87_environment(esc, modrm);
        here += !compare(&o);
    }
    *bad += here;
    return i;
}

/* Protects every x87 form: registers, stack, status, pending exceptions, memory as on real CPUs. */
static void test_x87_against_host(void **state)
{
    unsigned nr = 0, cases = 0, bad = 0, rounds = (unsigned)(cases_wanted / 1100) + 1;

    (void)state;
    for (unsigned esc = 0; esc < 8; esc++) {
        for (unsigned m = 0xc0; m < 0x100; m++) {
            if (!x87_reg_form(esc, m))
                continue;
            nr++;
            cases += run_x87(esc, m, 0, rounds, &bad);
        }
        for (unsigned reg = 0; reg < 8; reg++) {
            unsigned m = 0x47 | reg << 3;

            if (!x87_mem_form(esc, reg))
                continue;
            nr++;
            cases += run_x87(esc, m, 0, rounds * 4, &bad);
            if (x87_environment(esc, m))
                cases += run_x87(esc, m, 0x66, rounds * 4, &bad);
        }
    }
    printf("%u forms, %u cases, %u differ; #MF %u\n", nr, cases, bad, faults_seen[16]);
    assert_int_equal(bad, 0);
    assert_true(cases > 400 * rounds);
}

/* ---- instructions without operands, FXSAVE and FXRSTOR */

static const struct plain {
    const char *name;
    uint8_t code[5];
    uint8_t len, fxrstor;
} plain[] = {
    {"emms", {0x0f, 0x77}, 2, 0},
    {"fwait", {0x9b}, 1, 0},
    {"fxsave", {0x0f, 0xae, 0x07}, 3, 0},
    {"fxsave64", {0x48, 0x0f, 0xae, 0x07}, 4, 0},
    {"fxrstor", {0x0f, 0xae, 0x0f}, 3, 1},
    {"fxrstor64", {0x48, 0x0f, 0xae, 0x0f}, 4, 1},
    {"fxsave odd", {0x0f, 0xae, 0x47, 0x08}, 4, 0},
    {"fxrstor odd", {0x0f, 0xae, 0x4f, 0x08}, 4, 1},
};

static void make_plain(struct one *o, const struct plain *p)
{
    memset(o, 0, sizeof *o);
    o->name = p->name;
    random_state(o, 8, true);
    memcpy(o->code, p->code, p->len);
    o->len = p->len;
    o->pointers = true;
    for (unsigned i = 0; i < 2; i++) { /* canonical pointers, an opcode of 11 bits */
        uint8_t *fx = i ? o->window + WINDOW / 2 : o->in.fx;
        uint64_t at = rnd() & 0x00007fffffffffff;

        if (i && !p->fxrstor)
            break;
        if (i) {
            memcpy(fx, o->in.fx, sizeof o->in.fx);
            random_control(fx, true);
            fx[FX_FTW] = (uint8_t)rnd();
        }
        put16(fx + FX_FOP, (unsigned)rnd() & 0x7ff);
        memcpy(fx + 8, &at, 8);
        at = rnd() & 0x00007fffffffffff;
        memcpy(fx + 16, &at, 8);
        if (i && one_in(8))
            fx[FX_MXCSR + 2] = 1; /* a bit that does not exist: #GP */
    }
}

/* Protects state instructions: every byte of the image, what stays unwritten, alignment. */
static void test_state_against_host(void **state)
{
    unsigned cases = 0, bad = 0;
    struct one o;

    (void)state;
    for (unsigned i = 0; i < sizeof plain / sizeof plain[0]; i++)
        for (unsigned n = 0, here = 0; n < cases_wanted / 200 && here < 2; n++, cases++) {
            make_plain(&o, &plain[i]);
            here += !compare(&o);
            bad += here;
        }
    printf("%u cases, %u differ\n", cases, bad);
    assert_int_equal(bad, 0);
}

static int setup(void **state)
{
    (void)state;
    if (!native_init(TV_DATA, 4096))
        return -1;
    tv_init(&vm);
    tv_long(&vm);
    vm.st.cr4 |= CR4_FP;
    vm.st.cr0 |= 0x20; /* NE */
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sse_against_host),
        cmocka_unit_test(test_x87_against_host),
        cmocka_unit_test(test_state_against_host),
    };

    if (argc > 1)
        cases_wanted = strtoul(argv[1], NULL, 0) / 2;
    return cmocka_run_group_tests(tests, setup, teardown);
}
