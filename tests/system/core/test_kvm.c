/*
 * VMs on KVM, by raw hypercalls, where this machine has one that works; else the whole test is
 * skipped and says why. Guests here are so plain that any KVM runs them; the full set of guests
 * runs in the nested machine (tests/nested).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "client.h"

#define MIB  (UINT64_C(1) << 20)
#define SKIP 77

static struct core_proc core;
static struct client c;

static int setup(void **state)
{
    (void)state;
    return core_open(&core, &c, "2G");
}

static int teardown(void **state)
{
    (void)state;
    return core_close(&core, &c);
}

/* Like vm_launch, without the teardown's name. */
static uint32_t launch(const char *name, uint64_t memory, const char *guest, const char *cmdline)
{
    uint32_t id;

    assert_int_equal(vm_launch(&c, name, memory, guest, cmdline, NULL, MF_VM_RESET_ENDS, &id),
                     MF_OK);
    return id;
}

static void finish_hello(uint32_t id)
{
    struct mf_vm_info info;

    assert_true(vm_wait_off(&c, id, &info));
    if (info.end.reason != MF_END_POWEROFF)
        fail_msg("reason %u, %s", info.end.reason, info.end.detail);
    assert_int_equal(info.end.engine, MF_ENGINE_KVM);
    assert_string_equal(vm_console(&c, id), "Hello world!\n");
    assert_int_equal(info.end.roots_freed, 2);
    assert_true(info.end.frames_returned > info.memory / MF_PAGE_SIZE);
    assert_int_equal(vm_remove(&c, id), MF_OK);
}

/* Protects: the engine is named, and hello lives and ends on it in both forms and all sizes. */
static void hello(void **state)
{
    static const uint64_t sizes[] = {2 * MIB, 3 * MIB + 4096, 16 * MIB, 500 * MIB, 1500 * MIB};

    (void)state;
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        finish_hello(launch("elf", sizes[i], "hello.elf", ""));
        finish_hello(launch("pvh", sizes[i], "hello-pvh.elf", ""));
    }
    assert_true(heap_is_whole(&c));
}

/* Protects: 500 lives in a row and 100 at once leave no fd, no frame and no memory behind. */
static void many(void **state)
{
    /* Fewer where the machine itself is emulated. */
    const unsigned row = getenv("MAYFLY_TEST_FEW") ? 40 : 500;
    const unsigned beside = getenv("MAYFLY_TEST_FEW") ? 20 : 100;
    uint32_t id[100];
    int fds;

    (void)state;
    for (unsigned i = 0; i < 17; i++)
        finish_hello(launch("warm", 4 * MIB, "hello.elf", ""));
    fds = core_fds(&core);
    for (unsigned i = 0; i < row; i++)
        finish_hello(launch("row", 4 * MIB, "hello.elf", ""));
    for (unsigned i = 0; i < beside; i++) {
        char name[16];

        snprintf(name, sizeof name, "vm-%u", i);
        id[i] = launch(name, 4 * MIB, "hello.elf", "");
    }
    for (unsigned i = 0; i < beside; i++)
        finish_hello(id[i]);
    assert_true(heap_is_whole(&c));
    /* At most the pool's VMs, one vCPU and one thread each, may be there in addition. */
    for (unsigned i = 0; i < 3000 && core_fds(&core) > fds + 2 * 16; i++)
        usleep(10000);
    assert_true(core_fds(&core) <= fds + 2 * 16);
}

/* Protects: a guest that spins with interrupts off is paused, resumed and destroyed in bounded
 * time; destroyed also while paused and while halted. */
static void wedged(void **state)
{
    struct mf_vm_info info;

    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        uint32_t id = launch("w", 4 * MIB, i % 3 == 2 ? "idle.elf" : "loop.elf", "");

        assert_true(vm_wait_console(&c, id, i % 3 == 2 ? "idle" : "looping"));
        assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
        if (i % 3) {
            assert_int_equal(vm_do(&c, MF_CALL_VM_RESUME, id), MF_OK);
            assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
            assert_int_equal(vm_do(&c, MF_CALL_VM_RESUME, id), MF_OK);
        }
        assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
        assert_true(vm_wait_off(&c, id, &info));
        assert_int_equal(info.end.reason, MF_END_DESTROYED);
        assert_int_equal(vm_remove(&c, id), MF_OK);
    }
    assert_true(heap_is_whole(&c));
}

/* Protects: resets and the core's own end with VMs alive on KVM. */
static void resets_and_end(void **state)
{
    struct mf_vm_info info;
    uint32_t id = launch("r", 4 * MIB, "loop.elf", "");

    (void)state;
    for (uint32_t n = 2; n < 12; n++) {
        assert_int_equal(vm_do(&c, MF_CALL_VM_RESET, id), MF_OK);
        do
            assert_true(vm_info(&c, id, &info));
        while (info.starts < n || info.state != MF_VM_RUNNING);
    }
    launch("left", 4 * MIB, "loop.elf", "");
    /* teardown() stops the core and expects an orderly end */
}

/* 0: usable; else the answer for meson, after saying why not. */
static int check_host(void)
{
    const struct mf_reply_host_info *h = client_body(&c);
    struct mf_args_none none = {0};
    int code = 0;

    setup(NULL);
    if (client_call(&c, MF_CALL_HOST_INFO, &none, sizeof none, NULL, 0, NULL, 0) != MF_OK)
        code = 1;
    else if (!h->engine_kvm && getenv("MAYFLY_TEST_NEED_KVM"))
        code = printf("FAIL: KVM is needed here: %s\n", h->engine_kvm_why) ? 1 : 1;
    else if (!h->engine_kvm)
        code = printf("SKIP: no KVM: %s\n", h->engine_kvm_why) ? SKIP : SKIP;
    teardown(NULL);
    return code;
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {T(hello), T(many), T(wedged), T(resets_and_end)};
    int code;

    setenv("MAYFLY_TEST_ENGINE", "kvm", 1);
    code = check_host();
    return code ? code : cmocka_run_group_tests(tests, NULL, NULL);
}
