/* Two vCPUs of a VM on two threads: atomics, code that one writes and the other runs. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/cpu/cpu_testvm.h"

#define CODE2  0x12000u
#define FN     0x40000u /* its own page, written by one vCPU and run by the other */
#define SLICE  300u
#define SLICES 3000000u /* far beyond what a test needs: the other one is lost */
#define ROUNDS 20000u

static struct testvm vm;
static struct vcpu second;

struct side {
    struct vcpu *v;
    struct cpu_state st;
    enum cpu_exit exit;
};

static int setup(void **state)
{
    (void)state;
    tv_init(&vm);
    tv_long(&vm);
    memset(&second, 0, sizeof second);
    second.vm = &vm.evm;
    second.index = 1;
    second.mops = vm.v.mops;
    second.machine = &vm;
    vm.evm.nr_vcpus = 2;
    return vm.evm.ops->vcpu_init(&second) == MF_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    vm.evm.ops->vcpu_fini(&second);
    tv_fini(&vm);
    return 0;
}

static void *run_side(void *arg)
{
    struct side *s = arg;
    unsigned slices = 0;

    do {
        s->exit = vm.evm.ops->run(s->v, SLICE);
        sched_yield(); /* the other one may be what this one waits for */
    } while (s->exit == CPU_EXIT_BUDGET && ++slices < SLICES);
    vm.evm.ops->get_state(s->v, &s->st);
    return NULL;
}

/* Both at once until both halt. */
static void run_both(struct side s[2])
{
    pthread_t t;

    s[0].v = &vm.v;
    s[1].v = &second;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(vm.evm.ops->set_state(s[i].v, &s[i].st), MF_OK);
    assert_int_equal(pthread_create(&t, NULL, run_side, &s[1]), 0);
    run_side(&s[0]);
    pthread_join(t, NULL);
    assert_int_equal(s[0].exit, CPU_EXIT_HALT);
    assert_int_equal(s[1].exit, CPU_EXIT_HALT);
}

static void prepare(struct side s[2])
{
    for (unsigned i = 0; i < 2; i++) {
        s[i].st = vm.st;
        s[i].st.rip = TV_CODE;
        s[i].st.gpr[CPU_RSP] = TV_STACK - i * 0x1000;
        s[i].st.gpr[CPU_RDI] = TV_DATA;
        s[i].st.gpr[CPU_RBX] = 0;
        s[i].st.gpr[CPU_RCX] = ROUNDS;
    }
}

#define HLT 0xf4

static const struct adder {
    const char *name;
    uint8_t code[24];
} adders[] = {
    /* lock inc qword [rdi]; dec rcx; jnz */
    {"inc", {0xf0, 0x48, 0xff, 0x07, 0x48, 0xff, 0xc9, 0x75, 0xf7, HLT}},
    /* mov eax, 1; lock xadd [rdi], rax; dec rcx; jnz */
    {"xadd", {0xb8, 1, 0, 0, 0, 0xf0, 0x48, 0x0f, 0xc1, 0x07, 0x48, 0xff, 0xc9, 0x75, 0xf1, HLT}},
    /* mov rax, [rdi]; lea rbx, [rax + 1]; lock cmpxchg [rdi], rbx; jnz; dec rcx; jnz */
    {"cmpxchg", {0x48, 0x8b, 0x07, 0x48, 0x8d, 0x58, 0x01, 0xf0, 0x48, 0x0f,
                 0xb1, 0x1f, 0x75, 0xf2, 0x48, 0xff, 0xc9, 0x75, 0xed, HLT}},
};

/* Protects locked instructions: no increment is lost, aligned, over a cache line, over two pages.
 */
static void test_atomics(void **state)
{
    static const uint64_t at[] = {TV_DATA, TV_DATA + 60, TV_DATA + 0xffc};
    struct side s[2];

    (void)state;
    for (unsigned k = 0; k < sizeof adders / sizeof adders[0]; k++)
        for (unsigned i = 0; i < 3; i++) {
            tv_write(&vm, TV_CODE, adders[k].code, sizeof adders[k].code);
            tv_put64(&vm, at[i], 0);
            prepare(s);
            s[0].st.gpr[CPU_RDI] = s[1].st.gpr[CPU_RDI] = at[i];
            run_both(s);
            if (tv_get64(&vm, at[i]) != 2 * ROUNDS)
                fail_msg("%s at %#llx: %llu of %u", adders[k].name, (unsigned long long)at[i],
                         (unsigned long long)tv_get64(&vm, at[i]), 2 * ROUNDS);
        }
}

/* Protects a 16-byte exchange: two halves that always agree. */
static void test_cmpxchg16b(void **state)
{
    struct side s[2];

    (void)state;
    TV_LOAD(&vm, TV_CODE, 0x48, 0x8b, 0x07, 0x48, 0x8b, 0x57, 0x08, /* mov rax/rdx, [rdi] [rdi+8] */
            0x48, 0x8d, 0x58, 0x01,                                 /* lea rbx, [rax + 1] */
            0x49, 0x89, 0xc8, 0x48, 0x89, 0xd1, 0x48, 0xff, 0xc1,   /* r8 = rcx; rcx = rdx + 1 */
            0xf0, 0x48, 0x0f, 0xc7, 0x0f,                           /* lock cmpxchg16b [rdi] */
            0x4c, 0x89, 0xc1, 0x75, 0xe2,                           /* rcx = r8; jnz */
            0x48, 0xff, 0xc9, 0x75, 0xdd, HLT);                     /* dec rcx; jnz */
    tv_put64(&vm, TV_DATA, 0);
    tv_put64(&vm, TV_DATA + 8, 1000);
    prepare(s);
    run_both(s);
    assert_int_equal(tv_get64(&vm, TV_DATA), 2 * ROUNDS);
    assert_int_equal(tv_get64(&vm, TV_DATA + 8), 1000 + 2 * ROUNDS);
}

/* Protects cross-modifying code: what one vCPU wrote is what the other one runs after it was told
 * and has serialized. */
static void test_cross_modifying(void **state)
{
    struct side s[2];

    (void)state;
    /* w: inc ebx; [fn + 1] = ebx; [flag] = ebx; wait until [ack] == ebx; until ebx == ecx */
    TV_LOAD(&vm, TV_CODE, 0xff, 0xc3, 0x89, 0x5e, 0x01, 0x89, 0x1f, 0x39, 0x5f, 0x40, 0x75, 0xfb,
            0x39, 0xcb, 0x75, 0xf0, HLT);
    /* r: inc ebx; wait until [flag] == ebx; invlpg; call fn; eax != ebx: out; [ack] = ebx; ... */
    TV_LOAD(&vm, CODE2, 0xff, 0xc3, 0x39, 0x1f, 0x75, 0xfc, 0x0f, 0x01, 0x3f, 0xff, 0xd6, 0x39,
            0xd8, 0x75, 0x08, 0x89, 0x5f, 0x40, 0x39, 0xcb, 0x75, 0xea, HLT, HLT);
    TV_LOAD(&vm, FN, 0xb8, 0, 0, 0, 0, 0xc3); /* mov eax, 0; ret */
    tv_put64(&vm, TV_DATA, 0);
    tv_put64(&vm, TV_DATA + 64, 0);
    prepare(s);
    s[1].st.rip = CODE2;
    for (unsigned i = 0; i < 2; i++) {
        s[i].st.gpr[CPU_RSI] = FN;
        s[i].st.gpr[CPU_RCX] = 2000;
    }
    run_both(s);
    if (s[1].st.rip != CODE2 + 23)
        fail_msg("round %llu ran %llu", (unsigned long long)s[1].st.gpr[CPU_RBX],
                 (unsigned long long)s[1].st.gpr[CPU_RAX]);
    assert_int_equal(s[1].st.gpr[CPU_RBX], 2000);
}

struct prodder {
    _Atomic bool stop;
};

static void *prod(void *arg)
{
    struct prodder *p = arg;

    while (!p->stop) {
        vm.evm.ops->page_written(&vm.evm, gfn(TV_CODE >> 12));
        vm.evm.ops->page_written(&vm.evm, gfn(TV_DATA >> 12));
        sched_yield();
    }
    return NULL;
}

/* Protects notices of devices while both vCPUs run: nothing is lost and nothing hangs. */
static void test_notices(void **state)
{
    struct prodder p = {false};
    struct side s[2];
    pthread_t t;

    (void)state;
    tv_write(&vm, TV_CODE, adders[0].code, sizeof adders[0].code);
    tv_put64(&vm, TV_DATA, 0);
    prepare(s);
    assert_int_equal(pthread_create(&t, NULL, prod, &p), 0);
    run_both(s);
    p.stop = true;
    pthread_join(t, NULL);
    assert_int_equal(tv_get64(&vm, TV_DATA), 2 * ROUNDS);
}

/* Protects the order of x86: a store is seen after the stores before it. */
static void test_store_order(void **state)
{
    struct side s[2];

    (void)state;
    /* w: inc ebx; [rdi] = ebx; [rdi + 64] = ebx; cmp ebx, ecx; jne; hlt */
    TV_LOAD(&vm, TV_CODE, 0xff, 0xc3, 0x89, 0x1f, 0x89, 0x5f, 0x40, 0x39, 0xcb, 0x75, 0xf5, HLT);
    /* r: eax = [rdi + 64]; ebx = [rdi]; cmp ebx, eax; jb out; cmp eax, ecx; jne r; hlt; out: hlt */
    TV_LOAD(&vm, CODE2, 0x8b, 0x47, 0x40, 0x8b, 0x1f, 0x39, 0xc3, 0x72, 0x05, 0x39, 0xc8, 0x75,
            0xf3, HLT, HLT);
    tv_put64(&vm, TV_DATA, 0);
    tv_put64(&vm, TV_DATA + 64, 0);
    prepare(s);
    s[1].st.rip = CODE2;
    run_both(s);
    assert_int_equal(s[1].st.rip, CODE2 + 14);
    assert_int_equal(s[1].st.gpr[CPU_RAX], ROUNDS);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_atomics), T(test_cmpxchg16b),  T(test_cross_modifying),
        T(test_notices), T(test_store_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
