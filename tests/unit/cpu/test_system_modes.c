/* Modes and what changes between them; single step, NMI, global pages; what is not offered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cpu/cpu_testvm.h"

#define FL_TF  0x100u
#define TARGET 0x100000u
#define OTHER  0x101000u
#define PGE    0x80u

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

static void real_mode(uint64_t ip)
{
    cpu_state_reset(&vm.st);
    vm.st.seg[CPU_CS].base = vm.st.seg[CPU_CS].selector = 0;
    vm.st.gpr[CPU_RSP] = 0x7000;
    vm.st.rip = ip;
}

/* Protects the way of a started processor: real mode, protected, long, each by its own jump. */
static void test_real_to_long(void **state)
{
    const uint16_t limit = 63;

    (void)state;
    TV_LOAD(&vm, 0x8000, 0xfa, 0x0f, 0x01, 0x16, 0x00, 0x81,                  /* cli; lgdt [8100] */
            0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0,                   /* cr0 |= PE */
            0x66, 0xea, 0x20, 0x80, 0x00, 0x00, 0x08, 0x00);                  /* jmp 8:8020 */
    TV_LOAD(&vm, 0x8020, 0x66, 0xb8, 0x18, 0x00, 0x8e, 0xd8, 0x8e, 0xd0,      /* ds = ss = 18 */
            0x0f, 0x20, 0xe0, 0x83, 0xc8, 0x20, 0x0f, 0x22, 0xe0,             /* cr4 |= PAE */
            0xb8, 0x00, 0x10, 0x00, 0x00, 0x0f, 0x22, 0xd8,                   /* cr3 = PML4 */
            0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32,                         /* rdmsr EFER */
            0x0d, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x30,                         /* |= LME */
            0x0f, 0x20, 0xc0, 0x0d, 0x00, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0, /* cr0 |= PG */
            0xea, 0x80, 0x80, 0x00, 0x00, 0x10, 0x00);                        /* jmp 10:8080 */
    TV_LOAD(&vm, 0x8080, 0x48, 0xb8, 8, 7, 6, 5, 4, 3, 2, 1, 0xf4);
    tv_write(&vm, 0x8100, &limit, 2);
    tv_put64(&vm, 0x8102, TV_GDT);
    real_mode(0x8000);
    assert_int_equal(tv_run(&vm, 100), CPU_EXIT_HALT);
    assert_int_equal(vm.st.rip, 0x808b);
    assert_int_equal(vm.st.gpr[CPU_RAX], 0x0102030405060708);
    assert_int_equal(vm.st.efer & 0x500, 0x500);
    assert_true(vm.st.seg[CPU_CS].attr & CPU_SEG_L);
}

/* Protects interrupts of real mode: the table at zero, six bytes on the stack, IRET. */
static void test_real_interrupt(void **state)
{
    (void)state;
    tv_put64(&vm, 0x20 * 4, 0x00100005);                            /* 0010:0005 */
    TV_LOAD(&vm, 0x105, 0x43, 0xcf);                                /* inc bx; iret */
    TV_LOAD(&vm, 0x8000, 0xf9, 0xcd, 0x20, 0x73, 0x01, 0xf4, 0xf4); /* stc; int 20; jnc; hlt */
    real_mode(0x8000);
    assert_int_equal(tv_run(&vm, 100), CPU_EXIT_HALT);
    assert_int_equal(vm.st.rip, 0x8006);
    assert_int_equal(vm.st.gpr[CPU_RBX], 1);
    assert_int_equal(vm.st.gpr[CPU_RSP], 0x7000);
}

/* Protects 16-bit addresses: they wrap at 64 KiB and leave the upper halves alone. */
static void test_real_addresses(void **state)
{
    (void)state;
    TV_LOAD(&vm, 0x8000, 0x8b, 0x40, 0x10, 0x67, 0x66, 0x8b, 0x1b, 0xf4); /* ax=[bx+si+16]; ebx */
    real_mode(0x8000);
    vm.st.gpr[CPU_RAX] = 0xabcd0000;
    vm.st.gpr[CPU_RBX] = 0xfff8;
    vm.st.gpr[CPU_RSI] = 0x6ff8;
    tv_put64(&vm, 0x7000, 0x1234);
    tv_put64(&vm, 0xfff8, 0x55667788);
    assert_int_equal(tv_run(&vm, 100), CPU_EXIT_HALT);
    assert_int_equal(vm.st.gpr[CPU_RAX], 0xabcd1234);
    assert_int_equal(vm.st.gpr[CPU_RBX], 0x55667788);
}

/* Protects single step: a trap behind each instruction, put off by a load of SS, DR6 says why. */
static void test_single_step(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xff, 0xc3, 0xff, 0xc3, 0xf4); /* inc ebx; inc ebx */
    vm.st.rflags |= FL_TF;
    vm.st.gpr[CPU_RBX] = 0;
    tv_expect_vector(&vm, 1);
    assert_int_equal(frame(0), TV_CODE + 2);
    assert_int_equal(vm.st.gpr[CPU_RBX], 1);
    assert_true(vm.st.dr[6] & 0x4000);
    assert_true(frame(2) & FL_TF);
    assert_false(vm.st.rflags & FL_TF);

    tv_long(&vm);
    TV_LOAD(&vm, TV_CODE, 0x8e, 0xd0, 0xff, 0xc3, 0x90, 0xf4); /* mov ss, eax; inc ebx */
    vm.st.rflags |= FL_TF;
    vm.st.gpr[CPU_RAX] = TV_DS;
    vm.st.gpr[CPU_RBX] = 0;
    tv_expect_vector(&vm, 1);
    assert_int_equal(frame(0), TV_CODE + 4);
    assert_int_equal(vm.st.gpr[CPU_RBX], 1);
}

/* Protects single step of a repeated instruction: one element a trap. */
static void test_single_step_rep(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xf3, 0xa4, 0xf4); /* rep movsb */
    vm.st.rflags |= FL_TF;
    vm.st.gpr[CPU_RCX] = 3;
    vm.st.gpr[CPU_RSI] = TV_DATA;
    vm.st.gpr[CPU_RDI] = TV_DATA + 0x1000;
    tv_expect_vector(&vm, 1);
    assert_int_equal(frame(0), vm.st.gpr[CPU_RCX] ? TV_CODE : TV_CODE + 2);
    assert_int_equal(vm.st.gpr[CPU_RDI] - TV_DATA - 0x1000, 3 - vm.st.gpr[CPU_RCX]);
}

/* Protects NMI: taken with interrupts closed, not inside another one, again after IRET. */
static void test_nmi(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_HANDLERS + 2 * 16, 0x48, 0xff, 0xc3, 0x48, 0xcf); /* inc rbx; iretq */
    TV_LOAD(&vm, TV_CODE, 0x90, 0xf4);
    vm.st.gpr[CPU_RBX] = 0;
    vm.v.events |= CPU_EVENT_NMI;
    tv_run_to_halt(&vm);
    assert_int_equal(vm.st.gpr[CPU_RBX], 1);
    assert_int_equal(vm.st.nmi_blocked, 0);

    tv_long(&vm);
    TV_LOAD(&vm, TV_CODE, 0x90, 0xf4);
    vm.st.gpr[CPU_RBX] = 0;
    vm.st.nmi_blocked = 1;
    vm.v.events |= CPU_EVENT_NMI;
    tv_run_to_halt(&vm);
    assert_int_equal(vm.st.gpr[CPU_RBX], 0);
    assert_true(vm.v.events & CPU_EVENT_NMI);
    vm.v.events = 0;
}

struct sample {
    const char *name;
    uint8_t code[8], len;
};

/* Protects that what CPUID does not offer is refused. */
static void test_not_offered(void **state)
{
    static const struct sample none[] = {
        {"monitor", {0x0f, 0x01, 0xc8}, 3},
        {"mwait", {0x0f, 0x01, 0xc9}, 3},
        {"xgetbv", {0x0f, 0x01, 0xd0}, 3},
        {"clac", {0x0f, 0x01, 0xca}, 3},
        {"xsave", {0x0f, 0xae, 0x27}, 3},
        {"rdfsbase", {0xf3, 0x0f, 0xae, 0xc0}, 4},
        {"rdrand", {0x0f, 0xc7, 0xf0}, 3},
        {"popcnt", {0xf3, 0x0f, 0xb8, 0xc1}, 4},
        {"movbe", {0x0f, 0x38, 0xf0, 0x07}, 4},
        {"crc32", {0xf2, 0x0f, 0x38, 0xf0, 0xc1}, 5},
        {"fisttp", {0xdb, 0x0f}, 2},
        {"haddps", {0xf2, 0x0f, 0x7c, 0xc1}, 4},
        {"lddqu", {0xf2, 0x0f, 0xf0, 0x07}, 4},
        {"pshufb", {0x66, 0x0f, 0x38, 0x00, 0xc1}, 5},
        {"pextrw of SSE4.1", {0x66, 0x0f, 0x3a, 0x15, 0xc0, 0x00}, 6},
        {"vaddps", {0xc5, 0xf8, 0x58, 0xc1}, 4},
        {"pfadd", {0x0f, 0x0f, 0xc1, 0x9e}, 4},
        {"rsm", {0x0f, 0xaa}, 2},
        {"ud2", {0x0f, 0x0b}, 2},
        {"lock nop", {0xf0, 0x90}, 2},
        {"lock add of registers", {0xf0, 0x01, 0xc0}, 3},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof none / sizeof none[0]; i++) {
        tv_long(&vm);
        vm.st.cr4 |= 0x600;
        vm.st.gpr[CPU_RDI] = TV_DATA;
        tv_write(&vm, TV_CODE, none[i].code, none[i].len);
        tv_run_to_halt(&vm);
        if (tv_vector(&vm) != 6)
            fail_msg("%s: vector %d", none[i].name, tv_vector(&vm));
        assert_int_equal(frame(0), TV_CODE);
    }
}

/* Protects hints and fences: they do nothing, whatever their operand is. */
static void test_hints(void **state)
{
    static const struct sample hints[] = {
        {"prefetcht0", {0x0f, 0x18, 0x0f, 0xf4}, 4},
        {"prefetchnta", {0x0f, 0x18, 0x07, 0xf4}, 4},
        {"prefetchw", {0x0f, 0x0d, 0x0f, 0xf4}, 4},
        {"long nop", {0x0f, 0x1f, 0x07, 0xf4}, 4},
        {"pause", {0xf3, 0x90, 0xf4}, 3},
        {"endbr64", {0xf3, 0x0f, 0x1e, 0xfa, 0xf4}, 5},
        {"lfence", {0x0f, 0xae, 0xe8, 0xf4}, 4},
        {"mfence", {0x0f, 0xae, 0xf0, 0xf4}, 4},
        {"sfence", {0x0f, 0xae, 0xf8, 0xf4}, 4},
        {"wbinvd", {0x0f, 0x09, 0xf4}, 3},
        {"invd", {0x0f, 0x08, 0xf4}, 3},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        struct cpu_state before;

        tv_long(&vm);
        vm.st.gpr[CPU_RDI] = UINT64_C(0x400000000000); /* mapped nowhere */
        before = vm.st;
        tv_write(&vm, TV_CODE, hints[i].code, hints[i].len);
        tv_run_to_halt(&vm);
        if (vm.st.rip != TV_CODE + hints[i].len || memcmp(before.gpr, vm.st.gpr, sizeof before.gpr))
            fail_msg("%s did something", hints[i].name);
    }
}

/* Protects call gates and task switches, which are not offered: #GP with the selector. */
static void test_gates_refused(void **state)
{
    (void)state;
    tv_protected(&vm);
    tv_put64(&vm, TV_GDT + 56, UINT64_C(0x00008c0000080000) | 0x1000); /* a call gate at 0x38 */
    TV_LOAD(&vm, TV_CODE, 0x9a, 0, 0, 0, 0, 0x38, 0x00);               /* call 38:0 */
    vm.st.rip = TV_CODE;
    vm.st.idt_limit = 0; /* the test's gates are of 64-bit mode: any exception ends it */
    assert_int_equal(tv_run(&vm, 10), CPU_EXIT_TRIPLE_FAULT);
    assert_non_null(strstr(vm.v.detail, "vector 13 error 0x38"));
}

/* Protects global pages: CR3 alone may leave them, INVLPG and a change of CR4.PGE may not. */
static void test_global_pages(void **state)
{
    static const uint8_t by_invlpg[] = {0x8b, 0x07, 0x48, 0x89, 0x16, 0x0f, 0x01, 0x3f, /* invlpg */
                                        0x8b, 0x1f, 0xf4};
    static const uint8_t by_cr4[] = {0x8b, 0x07, 0x48, 0x89, 0x16, 0x0f, 0x20, 0xe0, 0x34,
                                     PGE,  0x0f, 0x22, 0xe0, 0x8b, 0x1f, 0xf4}; /* xor al, PGE */
    static const uint8_t by_cr3[] = {0x8b, 0x07, 0x48, 0x89, 0x16, 0x0f, 0x20,
                                     0xd8, 0x0f, 0x22, 0xd8, 0x8b, 0x1f, 0xf4};

    (void)state;
    for (unsigned kind = 0; kind < 3; kind++)
        for (unsigned global = 0; global < 2; global++) {
            uint64_t g = global ? 0x100 : 0;

            tv_long(&vm);
            tv_small_pages(&vm);
            vm.st.cr4 |= PGE;
            tv_put64(&vm, TARGET, 1);
            tv_put64(&vm, OTHER, 2);
            tv_put64(&vm, tv_pte(TARGET >> 12), TARGET | 7 | g);
            if (kind == 0)
                tv_write(&vm, TV_CODE, by_invlpg, sizeof by_invlpg);
            else if (kind == 1)
                tv_write(&vm, TV_CODE, by_cr4, sizeof by_cr4);
            else
                tv_write(&vm, TV_CODE, by_cr3, sizeof by_cr3);
            vm.st.gpr[CPU_RDI] = TARGET;
            vm.st.gpr[CPU_RSI] = tv_pte(TARGET >> 12);
            vm.st.gpr[CPU_RDX] = OTHER | 7 | g;
            tv_run_to_halt(&vm);
            assert_int_equal(tv_vector(&vm), -1);
            if (kind < 2 || !global)
                assert_int_equal(vm.st.gpr[CPU_RBX], 2);
        }
}

/* Protects rights across a load of CR3: a renewed entry gives no more than the old one did, and
 * the first write still sets dirty. */
static void test_global_rights(void **state)
{
    (void)state;
    tv_small_pages(&vm);
    vm.st.cr4 |= PGE;
    tv_put64(&vm, tv_pte(TARGET >> 12), TARGET | 7 | 0x100);
    TV_LOAD(&vm, TV_CODE, 0x8b, 0x07, 0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8, /* read; cr3 = cr3 */
            0x89, 0x07, 0x8b, 0x1f, 0xf4);                                /* write; read */
    vm.st.gpr[CPU_RDI] = TARGET;
    tv_run_to_halt(&vm);
    assert_int_equal(tv_get64(&vm, tv_pte(TARGET >> 12)), TARGET | 0x167);
    assert_int_equal((uint32_t)vm.st.gpr[CPU_RBX], TV_PML4);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_real_to_long), T(test_real_interrupt),  T(test_real_addresses),
        T(test_single_step),  T(test_single_step_rep), T(test_nmi),
        T(test_not_offered),  T(test_hints),           T(test_gates_refused),
        T(test_global_pages), T(test_global_rights),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
