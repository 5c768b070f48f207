/* The system side of an engine: paging, exceptions, interrupts, ports, memory, life. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <signal.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/cpu/cpu_testvm.h"

#define TARGET 0x100000u /* the page of the paging tests */
#define FL_IF  0x200u

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

static uint64_t *gpr(unsigned n)
{
    return &vm.st.gpr[n];
}

/* A word of the frame that the handler found. */
static uint64_t frame(unsigned n)
{
    return tv_get64(&vm, vm.st.gpr[CPU_RSP] + n * 8);
}

/* ---- paging */

enum access { A_READ, A_WRITE, A_EXEC };

#define P_P   0x1u
#define P_W   0x2u
#define P_U   0x4u
#define P_NX  0x8u /* bit 63 of the entry */
#define P_ALL 0xfu

/* The error code of #PF; -1: none, as the architecture has it. */
static int paging_model(unsigned bits, enum access a, bool user, bool wp)
{
    bool ok = (bits & P_P) != 0;

    if (user && !(bits & P_U))
        ok = false;
    if (a == A_WRITE && !(bits & P_W) && (user || wp))
        ok = false;
    if (a == A_EXEC && (bits & P_NX))
        ok = false;
    if (ok)
        return -1;
    return (bits & P_P ? 1 : 0) | (a == A_WRITE ? 2 : 0) | (user ? 4 : 0) | (a == A_EXEC ? 16 : 0);
}

static void paging_case(unsigned bits, enum access a, bool user, bool wp)
{
    uint64_t pte = TARGET | (bits & 7) | (bits & P_NX ? 1ull << 63 : 0), want, now;
    int err = paging_model(bits, a, user, wp);

    if (user)
        tv_user(&vm);
    else
        tv_long(&vm);
    tv_small_pages(&vm);
    tv_put64(&vm, tv_pte(TARGET >> 12), pte);
    if (wp)
        vm.st.cr0 |= 0x10000;
    if (a == A_READ)
        TV_LOAD(&vm, TV_CODE, 0x8b, 0x07, 0x0f, 0x0b); /* mov eax, [rdi]; ud2 */
    else if (a == A_WRITE)
        TV_LOAD(&vm, TV_CODE, 0x89, 0x07, 0x0f, 0x0b); /* mov [rdi], eax; ud2 */
    else
        TV_LOAD(&vm, TV_CODE, 0xff, 0xe7); /* jmp rdi */
    TV_LOAD(&vm, TARGET, 0x0f, 0x0b);      /* ud2 */
    *gpr(CPU_RDI) = TARGET;
    tv_expect_vector(&vm, err < 0 ? 6 : 14);
    now = tv_get64(&vm, tv_pte(TARGET >> 12));
    want = pte;
    if (err < 0)
        want |= a == A_WRITE ? 0x60 : 0x20;
    if (now != want)
        fail_msg("bits %x access %d user %d wp %d: entry %#llx", bits, (int)a, user, wp,
                 (unsigned long long)now);
    if (err < 0)
        return;
    if (frame(0) != (uint64_t)err)
        fail_msg("bits %x access %d user %d wp %d: error %#llx, not %#x", bits, (int)a, user, wp,
                 (unsigned long long)frame(0), (unsigned)err);
    assert_int_equal(vm.st.cr2, TARGET);
    assert_int_equal(frame(1), a == A_EXEC ? TARGET : TV_CODE);
    assert_int_equal(frame(2), user ? TV_UCS : TV_CS);
}

/* Protects page protection: who may do what, the exact error code, CR2, accessed and dirty. */
static void test_paging_matrix(void **state)
{
    unsigned n = 0;

    (void)state;
    for (unsigned bits = 0; bits <= P_ALL; bits++)
        for (unsigned a = A_READ; a <= A_EXEC; a++)
            for (unsigned user = 0; user < 2; user++)
                for (unsigned wp = 0; wp < 2; wp++, n++)
                    paging_case(bits, (enum access)a, user != 0, wp != 0);
    assert_int_equal(n, 192);
}

/* Protects the reserved-bit check: NX without EFER.NXE is #PF with RSVD. */
static void test_paging_reserved(void **state)
{
    (void)state;
    tv_small_pages(&vm);
    vm.st.efer &= ~UINT64_C(0x800);
    tv_put64(&vm, tv_pte(TARGET >> 12), TARGET | 7 | 1ull << 63);
    TV_LOAD(&vm, TV_CODE, 0x8b, 0x07, 0xf4);
    *gpr(CPU_RDI) = TARGET;
    tv_expect_vector(&vm, 14);
    assert_int_equal(frame(0), 9);
}

/* Protects accessed and dirty through a cached translation: the first write after a read. */
static void test_dirty_after_read(void **state)
{
    (void)state;
    tv_small_pages(&vm);
    TV_LOAD(&vm, TV_CODE, 0x8b, 0x07, 0x8b, 0x07, 0x89, 0x07, 0xf4);
    *gpr(CPU_RDI) = TARGET;
    tv_run_to_halt(&vm);
    assert_int_equal(tv_vector(&vm), -1);
    assert_int_equal(tv_get64(&vm, tv_pte(TARGET >> 12)), TARGET | 0x67);
}

/* Protects INVLPG and CR3 loads: a changed entry is used after them. */
static void test_invlpg_and_cr3(void **state)
{
    (void)state;
    tv_small_pages(&vm);
    tv_put64(&vm, 0x100000, 0x1111);
    tv_put64(&vm, 0x101000, 0x2222);
    tv_put64(&vm, 0x102000, 0x3333);
    /* mov rax,[rdi]; mov [rsi],rcx; invlpg [rdi]; mov rbx,[rdi]; mov [rsi],rdx; mov rbp,cr3;
     * mov cr3,rbp; mov rdx,[rdi]; hlt */
    TV_LOAD(&vm, TV_CODE, 0x48, 0x8b, 0x07, 0x48, 0x89, 0x0e, 0x0f, 0x01, 0x3f, 0x48, 0x8b, 0x1f,
            0x48, 0x89, 0x16, 0x0f, 0x20, 0xdd, 0x0f, 0x22, 0xdd, 0x48, 0x8b, 0x17, 0xf4);
    *gpr(CPU_RDI) = TARGET;
    *gpr(CPU_RSI) = tv_pte(TARGET >> 12);
    *gpr(CPU_RCX) = 0x101007;
    *gpr(CPU_RDX) = 0x102007;
    tv_run_to_halt(&vm);
    assert_int_equal(*gpr(CPU_RAX), 0x1111);
    assert_int_equal(*gpr(CPU_RBX), 0x2222);
    assert_int_equal(*gpr(CPU_RDX), 0x3333);
}

/* Protects 32-bit modes without paging, with legacy and with PAE tables: store, load and #PF. */
static void test_32bit_modes(void **state)
{
    void (*const mode[])(struct testvm *) = {tv_protected, tv_legacy_paging, tv_pae_paging};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        mode[i](&vm);
        TV_LOAD(&vm, TV_CODE, 0x89, 0x07, 0x8b, 0x1f, 0xf4);
        *gpr(CPU_RAX) = 0x1234567 + i;
        *gpr(CPU_RDI) = TARGET;
        tv_run_to_halt(&vm);
        assert_int_equal(*gpr(CPU_RBX), 0x1234567 + i);
        assert_int_equal(tv_get64(&vm, TARGET) & 0xffffffff, 0x1234567 + i);
        if (!i)
            continue;
        vm.st.halted = 0;
        *gpr(CPU_RDI) = 0x40000000; /* no entry; no 32-bit IDT either: the end */
        vm.st.idt_limit = 0;
        vm.st.rip = TV_CODE;
        assert_int_equal(tv_run(&vm, TV_BUDGET), CPU_EXIT_TRIPLE_FAULT);
        assert_int_equal(vm.st.cr2, 0x40000000);
    }
}

/* ---- exceptions */

/* Protects delivery in 64-bit mode: vector, error code or none, the address pushed. */
static void test_exceptions(void **state)
{
    static const struct {
        uint8_t code[10];
        unsigned vec, ip;
        int err; /* -1: none */
    } cases[] = {
        {{0x31, 0xc9, 0xf7, 0xf1}, 0, 2, -1},             /* xor ecx,ecx; div ecx */
        {{0x0f, 0x0b}, 6, 0, -1},                         /* ud2 */
        {{0xcc}, 3, 1, -1},                               /* int3 */
        {{0xcd, 0x20}, 0x20, 2, -1},                      /* int 0x20 */
        {{0xb8, 0x38, 0, 0, 0, 0x8e, 0xd8}, 13, 5, 0x38}, /* mov ds, 0x38: a null descriptor */
    };

    (void)state;
    for (unsigned i = 0; i < 5; i++) {
        tv_long(&vm);
        tv_write(&vm, TV_CODE, cases[i].code, sizeof cases[i].code);
        vm.st.gpr[CPU_RSP] = TV_STACK - 8; /* aligned by the delivery */
        tv_expect_vector(&vm, cases[i].vec);
        assert_int_equal(*gpr(CPU_RSP), TV_STACK - 16 - 40 - (cases[i].err < 0 ? 0 : 8));
        if (cases[i].err >= 0)
            assert_int_equal(frame(0), cases[i].err);
        assert_int_equal(frame(cases[i].err >= 0), TV_CODE + cases[i].ip);
        assert_int_equal(frame(1 + (cases[i].err >= 0)), TV_CS);
        assert_int_equal(frame(3 + (cases[i].err >= 0)), TV_STACK - 8);
        assert_int_equal(frame(4 + (cases[i].err >= 0)), TV_DS);
    }
}

/* Protects #GP on a non-canonical address. */
static void test_non_canonical(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0x8b, 0x07); /* mov eax,[rdi] */
    *gpr(CPU_RDI) = UINT64_C(1) << 47;
    tv_expect_vector(&vm, 13);
    assert_int_equal(frame(0), 0);
}

/* Protects #SS, not #GP, for a non-canonical address through the stack segment. */
static void test_non_canonical_stack(void **state)
{
    (void)state;
    tv_gate(&vm, 12, TV_HANDLERS + 12 * 16, 0, 1, false);
    TV_LOAD(&vm, TV_CODE, 0x8b, 0x04, 0x24); /* mov eax,[rsp] */
    *gpr(CPU_RSP) = UINT64_C(1) << 47;
    tv_expect_vector(&vm, 12);
    assert_int_equal(frame(0), 0);
}

/* Protects ring 3 to 0 by RSP0 or IST, IF by gate type, and IRETQ back. */
static void test_ring_change(void **state)
{
    (void)state;
    for (unsigned ist = 0; ist < 2; ist++) {
        tv_user(&vm);
        tv_gate(&vm, 0x20, 0x9000, 3, ist, false);
        TV_LOAD(&vm, TV_CODE, 0xcd, 0x20, 0x0f, 0x0b);
        TV_LOAD(&vm, 0x9000, 0xf4, 0x48, 0xcf); /* hlt; iretq */
        vm.st.rflags |= FL_IF;
        vm.st.rip = TV_CODE;
        assert_int_equal(tv_run(&vm, TV_BUDGET), CPU_EXIT_HALT);
        assert_int_equal(*gpr(CPU_RSP), (ist ? TV_IST1 : TV_RSP0) - 40);
        assert_int_equal(vm.st.seg[CPU_CS].selector, TV_CS);
        assert_int_equal(vm.st.seg[CPU_SS].selector, 0);
        assert_int_equal(vm.st.rflags & FL_IF, 0);
        assert_int_equal(frame(0), TV_CODE + 2);
        assert_int_equal(frame(1), TV_UCS);
        assert_int_equal(frame(2) & FL_IF, FL_IF);
        assert_int_equal(frame(3), TV_STACK);
        assert_int_equal(frame(4), TV_UDS);
        vm.st.halted = 0;
        assert_int_equal(tv_run(&vm, TV_BUDGET), CPU_EXIT_HALT); /* ud2 in ring 3 */
        assert_int_equal(tv_vector(&vm), 6);
        assert_int_equal(frame(0), TV_CODE + 2);
        assert_int_equal(frame(1), TV_UCS);
    }
}

/* Protects gates of DPL 0 and privileged instructions from ring 3. */
static void test_ring3_refused(void **state)
{
    static const uint8_t code[][4] = {{0xcd, 0x21}, {0xf4},       {0xfa},       {0x0f, 0x22, 0xd8},
                                      {0x0f, 0x32}, {0x0f, 0x30}, {0xe4, 0x60}, {0x0f, 0x01, 0x3f}};

    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        tv_user(&vm);
        tv_write(&vm, TV_CODE, code[i], 4);
        tv_expect_vector(&vm, 13);
        assert_int_equal(frame(0), i ? 0 : 0x21 * 8 + 2);
        assert_int_equal(frame(1), TV_CODE);
    }
}

/* Protects the double fault: #GP while #GP is delivered; error code 0. */
static void test_double_fault(void **state)
{
    (void)state;
    tv_put64(&vm, TV_IDT + 13 * 16, 0); /* no gate: another #GP */
    TV_LOAD(&vm, TV_CODE, 0x8b, 0x07);
    *gpr(CPU_RDI) = UINT64_C(1) << 47;
    tv_expect_vector(&vm, 8);
    assert_int_equal(frame(0), 0);
}

/* Protects the end by triple fault, and that it says something. */
static void test_triple_fault(void **state)
{
    (void)state;
    vm.st.idt_limit = 0;
    TV_LOAD(&vm, TV_CODE, 0x0f, 0x0b);
    assert_int_equal(tv_run(&vm, TV_BUDGET), CPU_EXIT_TRIPLE_FAULT);
    assert_true(vm.v.detail[0]);
    assert_int_equal(vm.st.rip, TV_CODE);
}

/* ---- interrupts */

/* Protects `sti; hlt` and STI's shadow: the interrupt comes behind the next instruction. */
static void test_sti_shadow(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xfb, 0x90, 0x90, 0xf4);
    vm.vector = 0x30;
    vm.v.events = CPU_EVENT_INTR;
    tv_expect_vector(&vm, 0x30);
    assert_int_equal(frame(0), TV_CODE + 2);
    tv_long(&vm);
    TV_LOAD(&vm, TV_CODE, 0xfb, 0xf4, 0x90);
    vm.vector = 0x31;
    vm.v.events = CPU_EVENT_INTR;
    tv_run_to_halt(&vm);
    assert_int_equal(vm.st.rip, TV_CODE + 2);
    assert_int_equal(tv_resume(&vm, TV_BUDGET), CPU_EXIT_HALT);
    assert_int_equal(tv_vector(&vm), 0x31);
    assert_int_equal(frame(0), TV_CODE + 2);
}

/* Protects the shadow behind MOV SS. */
static void test_mov_ss_shadow(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xfb, 0x8e, 0xd0, 0x90, 0x90, 0xf4); /* sti; mov ss,eax; nop; nop */
    *gpr(CPU_RAX) = TV_DS;
    vm.vector = 0x30;
    vm.v.events = CPU_EVENT_INTR;
    tv_expect_vector(&vm, 0x30);
    /* Two shadows in a row: the second one need not hold. */
    assert_in_range(frame(0), TV_CODE + 3, TV_CODE + 4);
    tv_long(&vm);
    TV_LOAD(&vm, TV_CODE, 0x8e, 0xd0, 0x90, 0x90, 0xf4);
    vm.v.events = 0;
    vm.st.rflags |= FL_IF;
    *gpr(CPU_RAX) = TV_DS;
    vm.vector = 0x30;
    vm.st.rip = TV_CODE;
    assert_int_equal(tv_run(&vm, 1), CPU_EXIT_BUDGET);
    assert_int_equal(vm.st.intr_shadow, 1);
    assert_int_equal(vm.st.rip, TV_CODE + 2);
    vm.v.events = CPU_EVENT_INTR;
    assert_int_equal(tv_resume(&vm, TV_BUDGET), CPU_EXIT_HALT);
    assert_int_equal(tv_vector(&vm), 0x30);
    assert_int_equal(frame(0), TV_CODE + 3);
}

/* Protects a masked interrupt: nothing is delivered with IF clear, and HLT stays. */
static void test_masked_interrupt(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0x90, 0xf4);
    vm.vector = 0x30;
    vm.v.events = CPU_EVENT_INTR;
    tv_run_to_halt(&vm);
    assert_int_equal(vm.st.rip, TV_CODE + 2);
    assert_int_equal(vm.vector, 0x30);
    assert_int_equal(vm.st.halted, 1);
    assert_int_equal(tv_resume(&vm, TV_BUDGET), CPU_EXIT_HALT);
}

/* Protects the scheduler's means: budget and kick end `cli; jmp $`. */
static void test_budget_and_kick(void **state)
{
    uint64_t before;

    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xfa, 0xeb, 0xfe);
    vm.st.rip = TV_CODE;
    before = vm.v.instructions;
    assert_int_equal(tv_run(&vm, 1000), CPU_EXIT_BUDGET);
    assert_in_range(vm.v.instructions - before, 1000, 1200);
    vm.evm.ops->kick(&vm.v);
    assert_int_equal(tv_resume(&vm, UINT64_MAX), CPU_EXIT_EVENT);
    assert_int_equal(vm.v.events & CPU_EVENT_KICK, 0);
    assert_int_equal(vm.st.rip, TV_CODE + 1);
}

/* ---- strings */

/* Protects REP under a budget: it stops between elements, with exact registers, and goes on. */
static void test_rep_budget(void **state)
{
    uint64_t n = 3 * FRAME_SIZE, slices = 0;
    uint8_t b;

    (void)state;
    for (unsigned movs = 0; movs < 2; movs++) {
        tv_long(&vm);
        if (movs)
            TV_LOAD(&vm, TV_CODE, 0xf3, 0xa4, 0xf4);
        else
            TV_LOAD(&vm, TV_CODE, 0xf3, 0xaa, 0xf4);
        *gpr(CPU_RAX) = 0x5a;
        *gpr(CPU_RCX) = n;
        *gpr(CPU_RSI) = TV_DATA + 0x10000;
        *gpr(CPU_RDI) = TV_DATA + 5;
        assert_int_equal(stage2_fill(vm.s2, gpa(TV_DATA + 0x10000), 0x77, n), MF_OK);
        vm.st.rip = TV_CODE;
        assert_int_equal(tv_run(&vm, 2), CPU_EXIT_BUDGET);
        do {
            uint64_t done = n - *gpr(CPU_RCX);

            assert_int_equal(vm.st.rip, TV_CODE);
            assert_int_equal(*gpr(CPU_RDI), TV_DATA + 5 + done);
            assert_int_equal(*gpr(CPU_RSI), TV_DATA + 0x10000 + (movs ? done : 0));
            tv_read(&vm, TV_DATA + 5 + done - 1, &b, 1);
            assert_int_equal(b, movs ? 0x77 : 0x5a);
            slices++;
        } while (tv_run(&vm, 1) == CPU_EXIT_BUDGET && *gpr(CPU_RCX));
        if (vm.st.rip != TV_CODE + 3)
            assert_int_equal(tv_run(&vm, 10), CPU_EXIT_HALT);
        assert_int_equal(*gpr(CPU_RDI), TV_DATA + 5 + n);
        tv_read(&vm, TV_DATA + 5 + n, &b, 1);
        assert_int_equal(b, 0);
    }
    assert_true(slices > 2);
}

/* Protects #PF in the middle of REP MOVS: RCX, RSI and RDI stand at the element that failed. */
static void test_rep_fault(void **state)
{
    for (unsigned write = 0; write < 2; write++) {
        (void)state;
        tv_long(&vm);
        tv_small_pages(&vm);
        tv_put64(&vm, tv_pte(0x101), 0);
        TV_LOAD(&vm, TV_CODE, 0xf3, 0x48, 0xa5, 0xf4);
        *gpr(CPU_RCX) = 100;
        *gpr(write ? CPU_RDI : CPU_RSI) = 0x101000 - 40;
        *gpr(write ? CPU_RSI : CPU_RDI) = 0x103000;
        tv_expect_vector(&vm, 14);
        assert_int_equal(frame(0), write ? 2 : 0);
        assert_int_equal(frame(1), TV_CODE);
        assert_int_equal(vm.st.cr2, 0x101000);
        assert_int_equal(*gpr(CPU_RCX), 95);
        assert_int_equal(*gpr(write ? CPU_RDI : CPU_RSI), 0x101000);
        assert_int_equal(*gpr(write ? CPU_RSI : CPU_RDI), 0x103000 + 40);
    }
}

/* ---- code */

/* Protects self-modifying code: a store into the next instruction, also through an alias. */
static void test_self_modifying(void **state)
{
    for (unsigned alias = 0; alias < 2; alias++) {
        (void)state;
        tv_long(&vm);
        tv_small_pages(&vm);
        tv_put64(&vm, tv_pte(0x120), TV_CODE | 7);
        /* again: mov [rdi],dl; mov eax,1 (its immediate is the target); dec ecx; jnz again; hlt */
        TV_LOAD(&vm, TV_CODE, 0x88, 0x17, 0xb8, 0x01, 0, 0, 0, 0x01, 0xc3, 0xfe, 0xc2, 0xff, 0xc9,
                0x75, 0xf1, 0xf4);
        *gpr(CPU_RDI) = (alias ? 0x120000 : TV_CODE) + 3;
        *gpr(CPU_RDX) = 10;
        *gpr(CPU_RCX) = 5;
        *gpr(CPU_RBX) = 0;
        tv_run_to_halt(&vm);
        assert_int_equal(tv_vector(&vm), -1);
        assert_int_equal(*gpr(CPU_RAX), 14);
        assert_int_equal(*gpr(CPU_RBX), 10 + 11 + 12 + 13 + 14);
    }
}

/* Protects code changed from outside (device, boot): page_written is enough. */
static void test_code_from_outside(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xb8, 1, 0, 0, 0, 0xf4);
    tv_run_to_halt(&vm);
    assert_int_equal(*gpr(CPU_RAX), 1);
    vm.st.halted = 0;
    TV_LOAD(&vm, TV_CODE, 0xb8, 2, 0, 0, 0, 0xf4);
    tv_run_to_halt(&vm);
    assert_int_equal(*gpr(CPU_RAX), 2);
}

/* Protects an instruction over a page's end: from two frames, changed in either, #PF in the second.
 */
static void test_page_crossing(void **state)
{
    uint8_t one = 0x11, two = 0x22;

    (void)state;
    tv_small_pages(&vm);
    tv_put64(&vm, tv_pte(0x101), 0x105007); /* not the next frame */
    TV_LOAD(&vm, TV_CODE, 0xff, 0xe7);
    TV_LOAD(&vm, 0x100ffd, 0xb8, 0x01, 0x02);
    TV_LOAD(&vm, 0x105000, 0x03, 0x04, 0xf4);
    *gpr(CPU_RDI) = 0x100ffd;
    tv_run_to_halt(&vm);
    assert_int_equal(*gpr(CPU_RAX), 0x04030201);
    vm.st.halted = 0;
    tv_write(&vm, 0x100ffe, &one, 1);
    tv_write(&vm, 0x105001, &two, 1);
    tv_run_to_halt(&vm);
    assert_int_equal(*gpr(CPU_RAX), 0x22030211);
    vm.st.halted = 0;
    tv_put64(&vm, tv_pte(0x101), 0);
    tv_expect_vector(&vm, 14);
    assert_int_equal(frame(0), 0x10);
    assert_int_equal(frame(1), 0x100ffd);
    assert_int_equal(vm.st.cr2, 0x101000);
}

/* ---- machine */

/* Protects port I/O of all sizes, by immediate and DX, and the string forms. */
static void test_ports(void **state)
{
    static const unsigned size[] = {1, 2, 4, 1, 2, 4, 1, 4};

    (void)state;
    vm.in_value = 0xa1b2c3d4;
    /* out dx,al; ax; eax; in al,0x60; in ax,dx; in eax,dx; outsb; insd; hlt */
    TV_LOAD(&vm, TV_CODE, 0xee, 0x66, 0xef, 0xef, 0xe4, 0x60, 0x66, 0xed, 0xed, 0x6e, 0x6d, 0xf4);
    *gpr(CPU_RAX) = 0x11223344;
    *gpr(CPU_RDX) = 0x3f8;
    *gpr(CPU_RSI) = TV_DATA;
    *gpr(CPU_RDI) = TV_DATA + 16;
    tv_put64(&vm, TV_DATA, 0x99);
    tv_run_to_halt(&vm);
    assert_int_equal(vm.nr_log, 8);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(vm.log[i].size, size[i]);
        assert_int_equal(vm.log[i].where, i == 3 ? 0x60 : 0x3f8);
        assert_int_equal(vm.log[i].what, i < 3 || i == 6 ? TV_PORT_OUT : TV_PORT_IN);
    }
    assert_int_equal(vm.log[0].value, 0x44);
    assert_int_equal(vm.log[1].value, 0x3344);
    assert_int_equal(vm.log[2].value, 0x11223344);
    assert_int_equal(vm.log[6].value, 0x99);
    assert_int_equal(*gpr(CPU_RAX), 0xa1b2c3d4);
    assert_int_equal(tv_get64(&vm, TV_DATA + 16), 0xa1b2c3d4);
    assert_int_equal(*gpr(CPU_RSI), TV_DATA + 1);
    assert_int_equal(*gpr(CPU_RDI), TV_DATA + 20);
}

/* Protects ports without a device, and MACHINE_STOP: the state is past the instruction. */
static void test_port_answers(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xed, 0xf4);
    vm.answer = MACHINE_NONE;
    tv_run_to_halt(&vm);
    assert_int_equal(*gpr(CPU_RAX), 0xffffffff);
    for (unsigned yield = 0; yield < 2; yield++) {
        tv_long(&vm);
        vm.answer = yield ? MACHINE_YIELD : MACHINE_STOP;
        vm.st.rip = TV_CODE;
        assert_int_equal(tv_run(&vm, 10), yield ? CPU_EXIT_YIELD : CPU_EXIT_STOP);
        assert_int_equal(vm.st.rip, TV_CODE + 1);
    }
}

/* Protects guest calls by both instructions, and that ring 3 has none. */
static void test_hypercalls(void **state)
{
    (void)state;
    for (unsigned amd = 0; amd < 2; amd++) {
        uint8_t code[] = {0x0f, 0x01, amd ? 0xd9 : 0xc1, 0xf4};

        tv_long(&vm);
        tv_write(&vm, TV_CODE, code, sizeof code);
        vm.nr_log = 0;
        vm.call_result = -5;
        for (unsigned i = 0; i < 8; i++)
            if (i != CPU_RSP)
                *gpr(i) = 0x100 + i;
        tv_run_to_halt(&vm);
        assert_int_equal(vm.nr_log, 1);
        assert_int_equal(vm.log[0].where, 0x100);
        assert_int_equal(vm.log[0].arg[0], 0x100 + CPU_RBX);
        assert_int_equal(vm.log[0].arg[1], 0x100 + CPU_RCX);
        assert_int_equal(vm.log[0].arg[2], 0x100 + CPU_RDX);
        assert_int_equal(vm.log[0].arg[3], 0x100 + CPU_RSI);
        assert_int_equal(*gpr(CPU_RAX), (uint64_t)-5);
        tv_user(&vm);
        tv_run_to_halt(&vm);
        assert_true(tv_vector(&vm) == 13 || tv_vector(&vm) == 6);
        assert_int_equal(vm.nr_log, 1);
    }
}

/* Protects #GP for MSRs that are not there, read or written, and those that are. */
static void test_msrs(void **state)
{
    (void)state;
    for (unsigned write = 0; write < 2; write++) {
        uint8_t code[] = {0x0f, write ? 0x30 : 0x32, 0xf4};

        tv_long(&vm);
        tv_write(&vm, TV_CODE, code, sizeof code);
        *gpr(CPU_RCX) = 0x12345;
        tv_expect_vector(&vm, 13);
        assert_int_equal(frame(0), 0);
        assert_int_equal(frame(1), TV_CODE);
    }
    tv_long(&vm);
    TV_LOAD(&vm, TV_CODE, 0x0f, 0x30, 0x31, 0xc0, 0x31, 0xd2, 0x0f, 0x32, 0xf4);
    *gpr(CPU_RCX) = 0xc0000082; /* LSTAR */
    *gpr(CPU_RAX) = 0x1234;
    *gpr(CPU_RDX) = 0x56;
    tv_run_to_halt(&vm);
    assert_int_equal(vm.st.lstar, 0x5600001234);
    assert_int_equal(*gpr(CPU_RAX), 0x1234);
    assert_int_equal(*gpr(CPU_RDX), 0x56);
}

/* Protects the start of a further vCPU: INIT resets, nothing but SIPI wakes, SIPI begins in real
 * mode at its page; a second SIPI is nothing. */
static void test_init_sipi(void **state)
{
    (void)state;
    vm.v.index = 1;
    TV_LOAD(&vm, 0x12000, 0x8c, 0xc8, 0xf4, 0xf4); /* mov ax,cs; hlt; hlt */
    TV_LOAD(&vm, TV_CODE, 0xf4);
    tv_run_to_halt(&vm);
    vm.vector = 0x40;
    atomic_store(&vm.v.events, CPU_EVENT_INIT | CPU_EVENT_INTR | CPU_EVENT_NMI);
    assert_int_equal(tv_resume(&vm, 100), CPU_EXIT_HALT);
    assert_true(vm.v.halt_masked);
    assert_int_equal(vm.st.wait_sipi, 1);
    assert_int_equal(vm.st.halted, 0);
    assert_int_equal(vm.st.cr0 & 1, 0);
    assert_int_equal(vm.vector, 0x40);
    atomic_store(&vm.v.events, CPU_EVENT_SIPI);
    atomic_store(&vm.v.sipi_vector, 0x12);
    assert_int_equal(tv_resume(&vm, 100), CPU_EXIT_HALT);
    assert_int_equal(vm.st.wait_sipi, 0);
    assert_int_equal(vm.st.halted, 1);
    assert_int_equal(*gpr(CPU_RAX) & 0xffff, 0x1200);
    assert_int_equal(vm.st.rip, 3);
    atomic_store(&vm.v.events, CPU_EVENT_SIPI);
    assert_int_equal(tv_resume(&vm, 100), CPU_EXIT_HALT);
    assert_int_equal(vm.st.rip, 3);
    vm.v.index = 0;
}

/* Protects that INIT of vCPU 0 starts it at the reset vector, with the clock going on. */
static void test_init_first(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xf4);
    vm.st.tsc_offset = 77;
    tv_run_to_halt(&vm);
    atomic_store(&vm.v.events, CPU_EVENT_INIT);
    assert_int_equal(tv_resume(&vm, 100), CPU_EXIT_BAD_ACCESS); /* no ROM there */
    assert_int_equal(vm.st.rip, 0xfff0);
    assert_int_equal(vm.st.seg[CPU_CS].base, 0xffff0000);
    assert_int_equal(vm.st.tsc_offset, 77);
}

/* Protects what the machine is told of a halt: whether an interrupt would end it. */
static void test_halt_masked(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0xfa, 0xf4, 0xfb, 0xf4); /* cli; hlt; sti; hlt */
    tv_run_to_halt(&vm);
    assert_true(vm.v.halt_masked);
    vm.st.halted = 0;
    assert_int_equal(tv_run(&vm, 100), CPU_EXIT_HALT);
    assert_false(vm.v.halt_masked);
}

/* Protects the signature by which a guest knows where it runs. */
static void test_cpuid(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0x0f, 0xa2, 0xf4);
    *gpr(CPU_RAX) = 0x40000000;
    tv_run_to_halt(&vm);
    assert_memory_equal(gpr(CPU_RBX), "Mayf", 4);
    assert_memory_equal(gpr(CPU_RCX), "lyMa", 4);
    assert_memory_equal(gpr(CPU_RDX), "yfly", 4);
}

/* Protects that SSE stays closed until the guest opens it. */
static void test_sse_refused(void **state)
{
    (void)state;
    TV_LOAD(&vm, TV_CODE, 0x0f, 0x58, 0xc1); /* addps xmm0,xmm1 */
    tv_expect_vector(&vm, 6);
    assert_int_equal(frame(0), TV_CODE);
}

/* ---- memory and life */

/* Protects the end of RAM: an access behind it ends the VM and says where. */
static void test_bad_access(void **state)
{
    static const uint8_t code[][2] = {{0x8b, 0x07}, {0x89, 0x07}, {0xff, 0xe7}};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        tv_long(&vm);
        tv_write(&vm, TV_CODE, code[i], 2);
        *gpr(CPU_RDI) = TV_RAM_FRAMES * FRAME_SIZE + 0x234;
        assert_int_equal(tv_run(&vm, 10), CPU_EXIT_BAD_ACCESS);
        assert_int_equal(vm.v.bad_gpa.v & ~UINT64_C(0xfff), TV_RAM_FRAMES * FRAME_SIZE);
        assert_int_equal(vm.st.rip, i == 2 ? *gpr(CPU_RDI) : TV_CODE);
    }
}

/* Protects MMIO: address, size and value of each access outside RAM reach the machine. */
static void test_mmio(void **state)
{
    (void)state;
    tv_put64(&vm, TV_PDPT + 3 * 8, 0xc0000087);
    vm.mmio = true;
    /* mov [rdi],al; mov [rdi+4],eax; mov bx,[rdi+8]; mov rcx,[rdi+16]; hlt */
    TV_LOAD(&vm, TV_CODE, 0x88, 0x07, 0x89, 0x47, 0x04, 0x66, 0x8b, 0x5f, 0x08, 0x48, 0x8b, 0x4f,
            0x10, 0xf4);
    *gpr(CPU_RAX) = 0xdeadbeef;
    *gpr(CPU_RDI) = 0xf0000000;
    tv_run_to_halt(&vm);
    assert_int_equal(vm.nr_log, 4);
    for (unsigned i = 0; i < 4; i++) {
        static const unsigned size[] = {1, 4, 2, 8}, at[] = {0, 4, 8, 16};

        assert_int_equal(vm.log[i].what, i < 2 ? TV_MMIO_WRITE : TV_MMIO_READ);
        assert_int_equal(vm.log[i].size, size[i]);
        assert_int_equal(vm.log[i].where, 0xf0000000 + at[i]);
    }
    assert_int_equal(vm.log[0].value, 0xef);
    assert_int_equal(vm.log[1].value, 0xdeadbeef);
    assert_int_equal(*gpr(CPU_RBX), 0x2211);
    assert_int_equal(*gpr(CPU_RCX), 0x8877665544332211);
}

/* Protects demand population: a touched page costs one frame, reads as zero, keeps what is stored.
 */
static void test_demand(void **state)
{
    struct s2_info a, b;

    (void)state;
    TV_LOAD(&vm, TV_CODE, 0x48, 0x8b, 0x1f, 0x48, 0x89, 0x07, 0x48, 0x8b, 0x0f, 0xf4);
    tv_put64(&vm, TV_STACK, 0);
    *gpr(CPU_RDI) = TV_DATA + 0x100000;
    *gpr(CPU_RAX) = 77;
    *gpr(CPU_RBX) = 1;
    stage2_get_info(vm.s2, &a);
    tv_run_to_halt(&vm);
    stage2_get_info(vm.s2, &b);
    assert_int_equal(b.frames_ram - a.frames_ram, 1);
    assert_int_equal(*gpr(CPU_RBX), 0);
    assert_int_equal(*gpr(CPU_RCX), 77);
    assert_int_equal(tv_get64(&vm, TV_DATA + 0x100000), 77);
}

/* Protects get and set: all of the state comes back; what cannot be entered is refused. */
static void test_state_round_trip(void **state)
{
    const uint16_t control[] = {0x37f, 0x3c3c};
    const uint32_t mxcsr[] = {0x1fbf, 0xffff};
    struct cpu_state s = vm.st, back;

    (void)state;
    for (unsigned i = 0; i < 16; i++)
        s.gpr[i] = 0x1111111111111111u * i;
    s.rflags = 0xad7 | FL_IF;
    s.cr2 = 1;
    s.cr8 = 5;
    s.star = 2;
    s.lstar = 3;
    s.cstar = 4;
    s.sfmask = 5;
    s.kernel_gs_base = 6;
    s.sysenter_cs = 7;
    s.sysenter_esp = 8;
    s.sysenter_eip = 9;
    s.tsc_offset = 10;
    s.seg[CPU_FS].base = 0x123456789a;
    s.nmi_blocked = s.intr_shadow = s.halted = 1;
    memset(s.fx, 0x3c, sizeof s.fx);
    memcpy(s.fx, &control, sizeof control);
    memcpy(s.fx + 24, &mxcsr, sizeof mxcsr);
    assert_int_equal(vm.evm.ops->set_state(&vm.v, &s), MF_OK);
    vm.evm.ops->get_state(&vm.v, &back);
    assert_memory_equal(&s, &back, sizeof s);
    s.fx[26] = 1; /* MXCSR has no such bit */
    assert_int_equal(vm.evm.ops->set_state(&vm.v, &s), MF_E_RANGE);
    s.fx[26] = 0;
    s.cr0 &= ~UINT64_C(1); /* paging without protection */
    assert_int_equal(vm.evm.ops->set_state(&vm.v, &s), MF_E_RANGE);
    vm.evm.ops->get_state(&vm.v, &s);
    assert_memory_equal(&s, &back, sizeof s);
}

/* Protects one guest from the next on the same vCPU: registers, memory, decoded code. */
static void test_nothing_left(void **state)
{
    struct cpu_state reset;

    (void)state;
    cpu_state_reset(&reset);
    for (unsigned i = 0; i < 4; i++) {
        uint8_t code[] = {0xb8, (uint8_t)(i + 1), 0, 0, 0, 0x48, 0x8b, 0x1f, 0x48, 0x89, 0x07,
                          0xf4};

        tv_long(&vm);
        tv_write(&vm, TV_CODE, code, sizeof code);
        *gpr(CPU_RDI) = TV_DATA;
        *gpr(CPU_RBX) = 99;
        tv_run_to_halt(&vm);
        assert_int_equal(*gpr(CPU_RAX), i + 1);
        assert_int_equal(*gpr(CPU_RBX), 0); /* what the one before stored is not there */
        tv_again(&vm);
        assert_memory_equal(&vm.st, &reset, sizeof reset);
    }
}

static void kick_vm(int sig)
{
    (void)sig;
    vm.evm.ops->kick(&vm.v);
}

/* Protects the worker from a guest whose handler faults at once, for ever: the budget still ends
 * the slice. Without that the alarm's kick does, and the test fails. */
static void test_budget_fault_loop(void **state)
{
    (void)state;
    tv_small_pages(&vm);
    tv_put64(&vm, tv_pte(TARGET >> 12), 0);
    tv_gate(&vm, 14, TARGET, 0, 1, false); /* on IST 1: the stack never runs out */
    TV_LOAD(&vm, TV_CODE, 0xff, 0xe7);
    *gpr(CPU_RDI) = TARGET;
    vm.st.rip = TV_CODE;
    signal(SIGALRM, kick_vm);
    alarm(20);
    assert_int_equal(tv_run(&vm, 1000), CPU_EXIT_BUDGET);
    alarm(0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_paging_matrix),
        T(test_paging_reserved),
        T(test_dirty_after_read),
        T(test_invlpg_and_cr3),
        T(test_32bit_modes),
        T(test_exceptions),
        T(test_non_canonical),
        T(test_non_canonical_stack),
        T(test_ring_change),
        T(test_ring3_refused),
        T(test_double_fault),
        T(test_triple_fault),
        T(test_sti_shadow),
        T(test_mov_ss_shadow),
        T(test_masked_interrupt),
        T(test_budget_and_kick),
        T(test_rep_budget),
        T(test_rep_fault),
        T(test_self_modifying),
        T(test_code_from_outside),
        T(test_page_crossing),
        T(test_ports),
        T(test_port_answers),
        T(test_hypercalls),
        T(test_msrs),
        T(test_init_sipi),
        T(test_init_first),
        T(test_halt_masked),
        T(test_cpuid),
        T(test_sse_refused),
        T(test_bad_access),
        T(test_mmio),
        T(test_demand),
        T(test_state_round_trip),
        T(test_nothing_left),
        T(test_budget_fault_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
