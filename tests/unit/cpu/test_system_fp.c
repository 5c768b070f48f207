/* Who may use x87, MMX and SSE, and how their faults and pointers look to a guest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cpu/cpu_testvm.h"

#define CR0_MP  0x2u
#define CR0_EM  0x4u
#define CR0_TS  0x8u
#define CR0_NE  0x20u
#define CR4_FX  0x200u
#define CR4_XMM 0x400u

static struct testvm vm;

static int setup(void **state)
{
    (void)state;
    tv_init(&vm);
    tv_long(&vm);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tv_fini(&vm);
    return 0;
}

static uint64_t frame(unsigned n)
{
    return tv_get64(&vm, vm.st.gpr[CPU_RSP] + n * 8);
}

enum unit { U_X87, U_WAIT, U_MMX, U_SSE, U_FXSAVE, UNITS };

static const struct {
    uint8_t code[4];
    uint8_t len;
} samples[UNITS] = {
    {{0xd9, 0xe8}, 2},       /* fld1 */
    {{0x9b}, 1},             /* fwait */
    {{0x0f, 0xfc, 0xc1}, 3}, /* paddb mm0, mm1 */
    {{0x0f, 0x58, 0xc1}, 3}, /* addps xmm0, xmm1 */
    {{0x0f, 0xae, 0x07}, 3}, /* fxsave [rdi] */
};

/* What the manuals' tables say. */
static int unit_model(enum unit u, uint64_t cr0, uint64_t cr4)
{
    bool em = cr0 & CR0_EM, ts = cr0 & CR0_TS;

    switch (u) {
    case U_X87:
    case U_FXSAVE:
        return em || ts ? 7 : -1;
    case U_WAIT:
        return ts && (cr0 & CR0_MP) ? 7 : -1;
    case U_MMX:
        return em ? 6 : ts ? 7 : -1;
    default:
        return em || !(cr4 & CR4_FX) ? 6 : ts ? 7 : -1;
    }
}

/* Protects lazy switching and emulation: #NM and #UD by CR0.MP, EM, TS and CR4.OSFXSR. */
static void test_units_matrix(void **state)
{
    (void)state;
    for (unsigned u = 0; u < UNITS; u++)
        for (unsigned bits = 0; bits < 16; bits++) {
            uint64_t cr0 = (bits & 7) << 1, cr4 = bits & 8 ? CR4_FX : 0;
            uint8_t code[5] = {0};
            int want = unit_model((enum unit)u, cr0, cr4);

            memcpy(code, samples[u].code, samples[u].len);
            code[samples[u].len] = 0xf4;
            tv_long(&vm);
            tv_write(&vm, TV_CODE, code, samples[u].len + 1);
            vm.st.cr0 |= cr0 | CR0_NE;
            vm.st.cr4 |= cr4;
            vm.st.gpr[CPU_RDI] = TV_DATA;
            tv_run_to_halt(&vm);
            if (tv_vector(&vm) != want)
                fail_msg("unit %u bits %#x: vector %d, not %d", u, bits, tv_vector(&vm), want);
            if (want >= 0)
                assert_int_equal(frame(0), TV_CODE);
        }
}

/* Protects CLTS and MOV CR0: the unit is open at the next instruction. */
static void test_clts(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0x0f, 0x06, 0x0f, 0x57, 0xc0, 0xd9, 0xe8, 0xf4); /* clts; xorps; fld1 */
    vm.st.cr0 |= CR0_TS | CR0_NE;
    vm.st.cr4 |= CR4_FX;
    tv_run_to_halt(&vm);
    assert_int_equal(tv_vector(&vm), -1);
    assert_int_equal(vm.st.fx[5], 0);
    assert_int_equal(vm.st.fx[4], 0x80); /* one register in use */
}

/* Protects #MF: it comes at the next waiting instruction, and that one has not run. */
static void test_pending_exception(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xdb, 0xe3,      /* fninit */
            0xd9, 0x2f,                    /* fldcw [rdi] */
            0xd9, 0xe8, 0xd9, 0xee,        /* fld1; fldz */
            0xde, 0xf9,                    /* fdivp: by zero, pending */
            0xdf, 0xe0,                    /* fnstsw ax: does not wait */
            0x48, 0xff, 0xc3, 0x9b, 0xf4); /* inc rbx; fwait */
    tv_put64(&vm, TV_DATA, 0x37b);         /* zero divide unmasked */
    vm.st.gpr[CPU_RDI] = TV_DATA;
    vm.st.gpr[CPU_RBX] = 0;
    vm.st.cr0 |= CR0_NE;
    tv_expect_vector(&vm, 16);
    assert_int_equal(frame(0), TV_CODE + 15);
    assert_int_equal(vm.st.gpr[CPU_RBX], 1);
    assert_int_equal(vm.st.gpr[CPU_RAX] & 0x80ff, 0x8084);
}

/* Protects the pointers of the last x87 instruction, which FNINIT clears and FLDCW leaves. */
static void test_pointers(void **state)
{
    uint64_t fip, fdp;
    uint16_t fop;

    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xdb, 0xe3, 0xdd, 0x47, 0x08, /* fninit; fld qword [rdi + 8] */
            0xd9, 0x2f, 0x0f, 0xae, 0x87, 0x00, 0x01, 0x00, 0x00, 0xf4); /* fldcw; fxsave */
    tv_put64(&vm, TV_DATA, 0x37f);
    vm.st.gpr[CPU_RDI] = TV_DATA;
    tv_run_to_halt(&vm);
    memcpy(&fop, vm.st.fx + 6, 2);
    memcpy(&fip, vm.st.fx + 8, 8);
    memcpy(&fdp, vm.st.fx + 16, 8);
    assert_int_equal(fop, 0x547);
    assert_int_equal(fip, TV_CODE + 2);
    assert_int_equal(fdp, TV_DATA + 8);
    assert_int_equal(tv_get64(&vm, TV_DATA + 0x108), TV_CODE + 2);
}

/* Protects #XM: with CR4.OSXMMEXCPT, else #UD; the result is not written, the flag is. */
static void test_simd_exception(void **state)
{
    (void)state;
    for (unsigned open = 0; open < 2; open++) {
        const uint32_t mxcsr = 0x1f80 & ~0x200u;

        tv_long(&vm);
        TV_LOAD(&vm, TV_CODE, 0x0f, 0x5e, 0xc1, 0xf4); /* divps xmm0, xmm1 */
        vm.st.cr4 |= CR4_FX | (open ? CR4_XMM : 0);
        memcpy(vm.st.fx + 24, &mxcsr, 4);
        for (unsigned i = 0; i < 16; i++) {
            vm.st.fx[160 + i] = (uint8_t[]){0, 0, 0x80, 0x3f}[i % 4]; /* ones by zeros */
            vm.st.fx[176 + i] = 0;
        }
        tv_expect_vector(&vm, open ? 19 : 6);
        assert_int_equal(frame(0), TV_CODE);
        assert_int_equal(vm.st.fx[163], 0x3f);
        assert_int_equal(vm.st.fx[24] & 0x3f, 4);
    }
}

/* Protects memory operands over a page border: all or nothing, the fault at the second page. */
static void test_operand_over_pages(void **state)
{
    (void)state;
    for (unsigned store = 0; store < 2; store++) {
        uint8_t code[] = {0x0f, store ? 0x11 : 0x10, 0x07, 0xf4}; /* movups */

        for (unsigned there = 0; there < 2; there++) {
            tv_long(&vm);
            tv_small_pages(&vm);
            tv_put64(&vm, tv_pte(0x101), there ? 0x101007 : 0);
            tv_put64(&vm, 0x100ff8, 0x1122334455667788);
            tv_put64(&vm, 0x101000, 0x99aabbccddeeff00);
            tv_write(&vm, TV_CODE, code, sizeof code);
            vm.st.cr4 |= CR4_FX;
            memset(vm.st.fx + 160, 0x77, 16);
            vm.st.gpr[CPU_RDI] = 0x100ff8;
            tv_run_to_halt(&vm);
            assert_int_equal(tv_vector(&vm), there ? -1 : 14);
            if (!there)
                assert_int_equal(vm.st.cr2, 0x101000);
            assert_int_equal(tv_get64(&vm, 0x100ff8),
                             store && there ? 0x7777777777777777 : 0x1122334455667788);
            assert_int_equal(vm.st.fx[160], !store && there ? 0x88 : 0x77);
            assert_int_equal(vm.st.fx[168], !store && there ? 0x00 : 0x77);
        }
    }
}

/* Protects 32-bit code: FNSAVE and FRSTOR with 28 bytes of environment, XMM8 and up untouched by
 * FXSAVE. */
static void test_32bit_state(void **state)
{
    uint8_t image[108], fx[512];

    (void)state;
    tv_protected(&vm);
    TV_LOAD(&vm, TV_CODE, 0xdb, 0xe3, 0xd9, 0xe8, 0xd9, 0xeb, /* fninit; fld1; fldpi */
            0xdd, 0x37, 0xdd, 0x27,                           /* fnsave [edi]; frstor [edi] */
            0x0f, 0xae, 0x87, 0x00, 0x01, 0x00, 0x00, 0xf4);  /* fxsave [edi + 256] */
    vm.st.gpr[CPU_RDI] = TV_DATA;
    assert_int_equal(stage2_fill(vm.s2, gpa(TV_DATA), 0xee, FRAME_SIZE), MF_OK);
    tv_run_to_halt(&vm);
    tv_read(&vm, TV_DATA, image, sizeof image);
    assert_int_equal(image[0], 0x7f);
    assert_int_equal(image[5], 0x30);                   /* TOP 6 */
    assert_int_equal(image[8] | image[9] << 8, 0x0fff); /* two registers valid */
    assert_int_equal(image[12] | image[13] << 8,
                     (TV_CODE + 4) & 0xffff);                     /* the last one's address */
    assert_int_equal(image[28 + 8] | image[28 + 9] << 8, 0x4000); /* pi */
    assert_int_equal(image[38 + 8] | image[38 + 9] << 8, 0x3fff); /* one */
    tv_read(&vm, TV_DATA + 256, fx, sizeof fx);
    assert_int_equal(fx[4], 0xc0);
    assert_int_equal(fx[3], 0x30);
    assert_int_equal(fx[287], 0);
    assert_int_equal(fx[288], 0xee);
}

/* Protects real mode, whose environment holds linear addresses in pieces. */
static void test_real_mode_environment(void **state)
{
    uint8_t env[14];

    (void)state;
    cpu_state_reset(&vm.st);
    vm.st.seg[CPU_CS].base = vm.st.seg[CPU_CS].selector = 0;
    vm.st.gpr[CPU_RSP] = 0x7000;
    vm.st.rip = 0x8000;
    TV_LOAD(&vm, 0x8000, 0xdb, 0xe3, 0xd9, 0xe8, 0xd9, 0x36, 0x00, 0x60, 0xf4); /* fnstenv [6000] */
    assert_int_equal(tv_run(&vm, 100), CPU_EXIT_HALT);
    assert_int_equal(vm.st.rip, 0x8009);
    tv_read(&vm, 0x6000, env, sizeof env);
    assert_int_equal(env[6] | env[7] << 8, 0x8002);
    assert_int_equal(env[8] | env[9] << 8, 0x1e8); /* FOP: 11 bits of d9 e8 */
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_units_matrix),      T(test_clts),
        T(test_pending_exception), T(test_pointers),
        T(test_simd_exception),    T(test_operand_over_pages),
        T(test_32bit_state),       T(test_real_mode_environment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
