/* Whole lives of guests, by raw hypercalls: how they end, and what becomes of their memory. */
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "client.h"

#define MIB (UINT64_C(1) << 20)

static struct core_proc core;
static struct client c;

static int setup(void **state)
{
    (void)state;
    return core_open(&core, &c, "256M");
}

static int teardown(void **state)
{
    (void)state;
    return core_close(&core, &c);
}

static void run(const char *guest, const char *cmdline, uint32_t flags, struct mf_vm_info *info,
                char *text, size_t max)
{
    uint32_t id;

    assert_int_equal(vm_launch(&c, "run", 16 * MIB, guest, cmdline, NULL, flags, &id), MF_OK);
    assert_true(vm_wait_off(&c, id, info));
    snprintf(text, max, "%s", vm_console(&c, id));
    assert_int_equal(vm_remove(&c, id), MF_OK);
}

/* Protects: hello in both forms under each teardown strategy: its text, its end, its frames back.
 */
static void hello_everywhere(void **state)
{
    static const char *const guests[] = {"hello.elf", "hello-pvh.elf"};
    static const char *const strategies[] = {"scan",    "skip",     "present", "single",
                                             "tracked", "deferred", "arena"};

    (void)state;
    for (unsigned g = 0; g < 2; g++)
        for (unsigned s = 0; s < sizeof strategies / sizeof strategies[0]; s++) {
            struct mf_vm_info info;
            uint32_t id;

            assert_int_equal(vm_launch(&c, "hello", 16 * MIB, guests[g], "", strategies[s], 0, &id),
                             MF_OK);
            assert_true(vm_wait_off(&c, id, &info));
            assert_true(vm_wait_returned(&c, id, &info));
            assert_int_equal(info.state, MF_VM_SHUTOFF);
            assert_int_equal(info.end.reason, MF_END_POWEROFF);
            assert_string_equal(info.end.teardown, strategies[s]);
            assert_non_null(strstr(vm_console(&c, id), "Hello world!"));
            assert_int_equal(info.end.roots_freed, 2);
            /* KVM's RAM lies in leaves of 2 MiB: a level less. */
            assert_true(info.end.tables_freed >= (test_on_kvm() ? 2 : 3) && info.end.loops > 0);
            assert_int_equal(info.engine, test_on_kvm() ? MF_ENGINE_KVM : MF_ENGINE_SOFT);
            assert_int_equal(info.end.engine, info.engine);
            assert_true(info.end.frames_returned >=
                        info.end.tables_freed + info.end.roots_freed + 1);
            assert_true(info.end.returned_ns >= info.end.unreachable_ns);
            assert_true(test_on_kvm() || info.end.instructions > 0);
            assert_int_equal(info.frames_ram, 0);
            assert_int_equal(info.frames_table, 0);
            assert_int_equal(vm_remove(&c, id), MF_OK);
        }
    assert_true(heap_is_whole(&c));
}

/* Protects: each way in which a guest can end is told apart, with its code. */
static void every_end(void **state)
{
    static const struct {
        const char *guest, *cmdline;
        uint32_t flags, state, reason;
        uint64_t code;
    } rows[] = {
        {"hello.elf", "", 0, MF_VM_SHUTOFF, MF_END_POWEROFF, 0},
        {"debug-exit.elf", "", 0, MF_VM_SHUTOFF, MF_END_DEBUG_EXIT, 7},
        {"debug-exit.elf", "code=0", 0, MF_VM_SHUTOFF, MF_END_DEBUG_EXIT, 0},
        {"debug-exit.elf", "code=255", 0, MF_VM_SHUTOFF, MF_END_DEBUG_EXIT, 255},
        {"triple.elf", "", 0, MF_VM_CRASHED, MF_END_TRIPLE_FAULT, 0},
        {"reset-kbd.elf", "", MF_VM_RESET_ENDS, MF_VM_SHUTOFF, MF_END_RESET, 0},
        {"reset-cf9.elf", "", MF_VM_RESET_ENDS, MF_VM_SHUTOFF, MF_END_RESET, 0},
        {"hypercall.elf", "code=42", 0, MF_VM_SHUTOFF, MF_END_GUEST_CALL, 42},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mf_vm_info info;
        char text[4096];

        /* Not every kernel lets KVM's user have a guest's VMCALL. */
        if (test_on_kvm() && rows[i].reason == MF_END_GUEST_CALL)
            continue;
        run(rows[i].guest, rows[i].cmdline, rows[i].flags, &info, text, sizeof text);
        if (info.end.reason != rows[i].reason)
            fail_msg("%s: reason %u, %s; console: %s", rows[i].guest, info.end.reason,
                     info.end.detail, text);
        assert_int_equal(info.state, rows[i].state);
        assert_int_equal(info.end.code, rows[i].code);
        assert_null(strstr(text, "FAIL"));
    }
    assert_true(core_log_has(&core, "triple fault"));
    assert_true(core_log_has(&core, "cr3 "));
    assert_true(heap_is_whole(&c));
}

/* Protects: a guest that rewrites its code and its page tables, takes faults, uses its RAM. */
static void kernel_modes(void **state)
{
    static const char *const guests[] = {"kernel.elf", "kernel64.elf", "kernel32.elf"};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct mf_vm_info info;
        char text[16384];

        /* The emulated machine of tests/nested saves no next RIP. */
        run(guests[i], getenv("MAYFLY_TEST_FEW") ? "nonrip" : "", 0, &info, text, sizeof text);
        if (info.end.reason != MF_END_POWEROFF)
            fail_msg("%s: reason %u code %llu, %s; console: %s", guests[i], info.end.reason,
                     (unsigned long long)info.end.code, info.end.detail, text);
        assert_null(strstr(text, "FAIL"));
    }
    assert_true(heap_is_whole(&c));
}

/* Protects: an access outside RAM ends this guest as crashed, with the address, and nobody else. */
static void outside_ram(void **state)
{
    struct mf_vm_info info, other;
    char text[16384];
    uint32_t id;

    (void)state;
    assert_int_equal(vm_launch(&c, "other", 4 * MIB, "loop.elf", "", NULL, 0, &id), MF_OK);
    run("kernel.elf", "mode=outside", 0, &info, text, sizeof text);
    assert_int_equal(info.state, MF_VM_CRASHED);
    assert_int_equal(info.end.reason, MF_END_BAD_ACCESS);
    assert_true(info.end.code >= 16 * MIB);
    assert_non_null(strstr(info.end.detail, "outside RAM"));
    assert_true(vm_info(&c, id, &other));
    assert_int_equal(other.state, MF_VM_RUNNING);
}

/* Protects: an endless loop with interrupts off is destroyed at once, from running and paused. */
static void endless_loop(void **state)
{
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    assert_int_equal(vm_launch(&c, "loop", 4 * MIB, "loop.elf", "", NULL, 0, &id), MF_OK);
    assert_true(vm_wait_console(&c, id, "looping"));
    assert_int_equal(vm_remove(&c, id), MF_E_STATE);
    assert_int_equal(vm_do(&c, MF_CALL_VM_START, id), MF_E_STATE);
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_DESTROYED);
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_E_STATE);
    /* the same VM again */
    assert_int_equal(vm_do(&c, MF_CALL_VM_START, id), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.starts, 2);
    assert_int_equal(vm_remove(&c, id), MF_OK);
    assert_true(heap_is_whole(&c));
}

/* Protects: a paused guest runs no instruction; resumed it goes on; wrong orders are refused. */
static void pause_and_resume(void **state)
{
    struct mf_vm_info a, b;
    uint32_t id;

    (void)state;
    assert_int_equal(vm_launch(&c, "p", 4 * MIB, "loop.elf", "", NULL, 0, &id), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_RESUME, id), MF_E_STATE);
    assert_true(vm_wait_console(&c, id, "looping"));
    assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_E_STATE);
    assert_true(vm_info(&c, id, &a));
    assert_int_equal(a.state, MF_VM_PAUSED);
    usleep(50000);
    assert_true(vm_info(&c, id, &b));
    assert_true(a.instructions == b.instructions);
    assert_int_equal(vm_do(&c, MF_CALL_VM_RESUME, id), MF_OK);
    do
        assert_true(vm_info(&c, id, &b));
    while (b.instructions == a.instructions && !test_on_kvm()); /* KVM does not count them */
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
}

static enum mf_status shutdown_in(uint32_t id, uint64_t ns)
{
    struct mf_args_vm_shutdown a = {.vm = id, .grace_ns = ns};

    return client_call(&c, MF_CALL_VM_SHUTDOWN, &a, sizeof a, NULL, 0, NULL, 0);
}

/* Protects: shutdown: a guest that listens ends itself; one that does not, or is paused, is ended
 * when the grace period is over; calls in between and afterwards are answered. */
static void shutdowns(void **state)
{
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    if (!test_on_kvm()) { /* it asks by hypercall */
        assert_int_equal(
            vm_launch(&c, "aware", 4 * MIB, "shutdown-aware.elf", "code=5", NULL, 0, &id), MF_OK);
        assert_true(vm_wait_console(&c, id, "waiting"));
        assert_int_equal(shutdown_in(id, MF_GRACE_MAX_NS), MF_OK);
        assert_true(vm_wait_off(&c, id, &info));
        assert_int_equal(info.end.reason, MF_END_GUEST_CALL);
        assert_int_equal(info.end.code, 5);
        assert_int_equal(shutdown_in(id, 1), MF_E_STATE);
    }

    assert_int_equal(vm_launch(&c, "deaf", 4 * MIB, "loop.elf", "", NULL, 0, &id), MF_OK);
    assert_int_equal(shutdown_in(id, MF_GRACE_MAX_NS + 1), MF_E_RANGE);
    assert_string_equal(c.err.field, "grace_ns");
    assert_int_equal(shutdown_in(id, 20000000), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_SHUTDOWN);

    assert_int_equal(vm_launch(&c, "held", 4 * MIB, "loop.elf", "", NULL, 0, &id), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
    assert_int_equal(shutdown_in(id, 20000000), MF_OK);
    assert_true(vm_info(&c, id, &info));
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_SHUTDOWN);

    assert_int_equal(vm_launch(&c, "halted", 4 * MIB, "idle.elf", "", NULL, 0, &id), MF_OK);
    assert_true(vm_wait_console(&c, id, "idle"));
    assert_int_equal(shutdown_in(id, 20000000), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_SHUTDOWN);
    assert_true(heap_is_whole(&c));
}

/*
 * Protects: a vCPU halted with interrupts off never drains: destroyed, also when paused, with each
 * kind of teardown, it ends and gives all back.
 */
static void vcpu_halted_with_interrupts_off(void **state)
{
    static const char *const names[] = {"single", "tracked", "deferred", "arena"};
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    for (unsigned i = 0; i < 2 * sizeof names / sizeof names[0]; i++) {
        assert_int_equal(vm_launch(&c, "h", 4 * MIB, "idle.elf", "", names[i / 2], 0, &id), MF_OK);
        assert_true(vm_wait_console(&c, id, "idle"));
        do
            assert_true(vm_info(&c, id, &info));
        while (!info.halted);
        if (i % 2)
            assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
        assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
        assert_true(vm_wait_off(&c, id, &info));
        assert_int_equal(info.end.reason, MF_END_DESTROYED);
        assert_int_equal(vm_remove(&c, id), MF_OK);
    }
    assert_true(heap_is_whole(&c));
}

/* Protects: a guest's reset starts it over in fresh memory, also many times; reset by order too. */
static void resets(void **state)
{
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    assert_int_equal(vm_launch(&c, "r", 4 * MIB, "reset-kbd.elf", "", NULL, 0, &id), MF_OK);
    do
        assert_true(vm_info(&c, id, &info));
    while (info.starts < 20);
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_DESTROYED);
    assert_int_equal(vm_remove(&c, id), MF_OK);

    assert_int_equal(vm_launch(&c, "r", 4 * MIB, "loop.elf", "", NULL, MF_VM_RESET_ENDS, &id),
                     MF_OK);
    for (uint32_t n = 2; n < 6; n++) {
        assert_int_equal(vm_do(&c, MF_CALL_VM_RESET, id), MF_OK);
        do
            assert_true(vm_info(&c, id, &info));
        while (info.starts < n || info.state != MF_VM_RUNNING);
    }
    /* shutdown of a guest that only ever resets is bounded all the same */
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(vm_remove(&c, id), MF_OK);
    assert_int_equal(vm_launch(&c, "r", 4 * MIB, "reset-cf9.elf", "", NULL, 0, &id), MF_OK);
    do {
        enum mf_status st = shutdown_in(id, 20000000);

        assert_true(st == MF_OK || st == MF_E_STATE);
        assert_true(vm_info(&c, id, &info));
    } while (info.state != MF_VM_SHUTOFF);
    assert_true(heap_is_whole(&c));
}

/* Protects: input reaches the guest in order, however little of it fits at a time. */
static void console_input(void **state)
{
    static const char text[] = "the brown fox jumps over the lazy dog\nq";
    struct mf_vm_info info;
    uint32_t id, done = 0;

    (void)state;
    assert_int_equal(
        vm_launch(&c, "echo", 4 * MIB, "echo.elf", test_on_kvm() ? "noyield" : "", NULL, 0, &id),
        MF_OK);
    assert_true(vm_wait_console(&c, id, "ready"));
    while (done < sizeof text - 1) {
        struct mf_args_console_write a = {.vm = id, .count = (uint32_t)sizeof text - 1 - done};

        assert_int_equal(
            client_call(&c, MF_CALL_CONSOLE_WRITE, &a, sizeof a, text + done, a.count, NULL, 0),
            MF_OK);
        done += ((const struct mf_reply_console_write *)client_body(&c))->taken;
    }
    assert_true(vm_wait_off(&c, id, &info));
    assert_non_null(strstr(vm_console(&c, id), "lazy dog"));
    struct mf_args_console_write a = {.vm = id, .count = 1};
    assert_int_equal(client_call(&c, MF_CALL_CONSOLE_WRITE, &a, sizeof a, "x", 1, NULL, 0),
                     MF_E_STATE);
    a.count = 2;
    assert_int_equal(client_call(&c, MF_CALL_CONSOLE_WRITE, &a, sizeof a, "x", 1, NULL, 0),
                     MF_E_SIZE);
}

/* Protects: the teardown strategy of a VM changes while it runs and while it is paused; the report
 * names the new one. */
static void swap_teardown(void **state)
{
    static const char *const order[] = {"scan", "tracked", "skip", "tracked", "single", "tracked"};
    const struct mf_reply_swap *r = client_body(&c);
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    assert_int_equal(vm_launch(&c, "s", 16 * MIB, "kernel.elf", "mode=touch,spin", NULL, 0, &id),
                     MF_OK);
    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(select_teardown(&c, id, order[i % 6]), MF_OK);
        assert_string_equal(r->to, order[i % 6]);
        assert_true(r->total_ns >= r->pause_ns);
        if (i == 5)
            assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
    }
    assert_int_equal(select_teardown(&c, id, "nonesuch"), MF_E_NO_TEARDOWN);
    assert_string_equal(c.err.field, "name");
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_string_equal(info.end.teardown, "tracked");
    assert_int_equal(select_teardown(&c, id, "scan"), MF_OK);
    assert_true(heap_is_whole(&c));
}

/* Protects: machine memory that runs out ends the guest that wanted more, the core lives on. */
static void out_of_memory(void **state)
{
    struct core_proc small;
    struct client s;
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    memset(&small, 0, sizeof small);
    assert_true(core_start_full(&small, "4M", "2"));
    assert_true(client_connect(&s, &small));
    /* Each may have the whole arena as RAM, and each holds what it touched. */
    uint32_t ids[40], n = 0, crashed = 0;
    enum mf_status st = MF_OK;
    for (; n < 40 && !st && !crashed; n++) {
        char name[8];

        snprintf(name, sizeof name, "m-%u", n);
        st = vm_launch(&s, name, 4 * MIB, "kernel.elf", "mode=touch,spin", NULL, 0, &ids[n]);
        for (unsigned i = 0; i < 300 && !st && vm_info(&s, ids[n], &info); i++) {
            if (info.state == MF_VM_CRASHED || strstr(vm_console(&s, ids[n]), "spin"))
                break;
            usleep(1000);
        }
        for (uint32_t i = 0; i <= n; i++)
            if (vm_info(&s, ids[i], &info) && info.state == MF_VM_CRASHED) {
                assert_int_equal(info.end.reason, MF_END_NO_MEMORY);
                crashed++;
            }
    }
    assert_true(crashed || st == MF_E_NO_MEMORY);
    for (uint32_t i = 0; i < n; i++) {
        vm_do(&s, MF_CALL_VM_DESTROY, ids[i]);
        assert_true(vm_wait_off(&s, ids[i], &info));
        assert_int_equal(vm_remove(&s, ids[i]), MF_OK);
    }
    assert_true(heap_is_whole(&s));
    assert_int_equal(vm_launch(&s, "after", 2 * MIB, "hello.elf", "", NULL, 0, &id), MF_OK);
    assert_true(vm_wait_off(&s, id, &info));
    assert_int_equal(info.end.reason, MF_END_POWEROFF);
    client_close(&s);
    assert_int_equal(core_stop(&small), 0);
    core_remove_dir(&small);
}

/* ---- images */

static const char *write_file(const void *bytes, size_t n)
{
    static char path[128];
    int fd;

    snprintf(path, sizeof path, "%s/image", core.dir);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n), (ssize_t)n);
    close(fd);
    return path;
}

struct image {
    Elf64_Ehdr eh;
    Elf64_Phdr ph[2];
    uint8_t code[64];
};

static struct image image(void)
{
    struct image f;

    memset(&f, 0, sizeof f);
    memcpy(f.eh.e_ident, ELFMAG, SELFMAG);
    f.eh.e_ident[EI_CLASS] = ELFCLASS64;
    f.eh.e_ident[EI_DATA] = ELFDATA2LSB;
    f.eh.e_type = ET_EXEC;
    f.eh.e_machine = EM_X86_64;
    f.eh.e_phoff = offsetof(struct image, ph);
    f.eh.e_phnum = 2;
    f.eh.e_phentsize = sizeof(Elf64_Phdr);
    f.eh.e_entry = 0x10000;
    for (unsigned i = 0; i < 2; i++)
        f.ph[i] = (Elf64_Phdr){.p_type = PT_LOAD,
                               .p_offset = offsetof(struct image, code),
                               .p_vaddr = 0x10000 + i * 0x10000u,
                               .p_paddr = 0x10000 + i * 0x10000u,
                               .p_filesz = 64,
                               .p_memsz = 4096};
    /* mov dx,0x604; mov ax,0x2000; out dx,ax; hlt */
    memcpy(f.code, "\x66\xba\x04\x06\x66\xb8\x00\x20\x66\xef\xf4", 11);
    return f;
}

static uint32_t image_vm;

static void bad_image(const struct image *f, size_t n, const char *text)
{
    struct mf_vm_info info;

    assert_int_equal(vm_kernel(&c, image_vm, write_file(f, n), ""), MF_E_IMAGE);
    assert_string_equal(c.err.field, "kernel");
    if (!strstr(c.err.text, text))
        fail_msg("'%s' does not say '%s'", c.err.text, text);
    assert_true(vm_info(&c, image_vm, &info));
    assert_int_equal(info.state, MF_VM_SHUTOFF);
}

/* Protects: a bad image is refused for what is wrong with it, the VM stays usable, a retry works.
 */
static void bad_images(void **state)
{
    struct mf_vm_info info;
    struct image f = image();
    char name[] = "img";

    (void)state;
    assert_int_equal(vm_new(&c, name, MIB, NULL, 0, &image_vm), MF_OK);
    bad_image(&f, 0, "empty");
    bad_image(&f, 40, "truncated");
    bad_image(&f, sizeof f - 10, "truncated");
    f.eh.e_machine = EM_ARM;
    bad_image(&f, sizeof f, "machine 40");
    f = image();
    f.eh.e_ident[0] = 'M';
    bad_image(&f, sizeof f, "not an ELF");
    f = image();
    f.eh.e_entry = MIB + 4096;
    bad_image(&f, sizeof f, "entry");
    f = image();
    f.ph[1].p_paddr = 2 * MIB;
    bad_image(&f, sizeof f, "outside the guest's 1048576 bytes");
    f = image();
    f.ph[1].p_paddr = MIB - 4095;
    bad_image(&f, sizeof f, "outside the guest's");
    f = image();
    f.ph[1].p_paddr = 0x10800;
    bad_image(&f, sizeof f, "overlap");
    f = image();
    f.ph[1].p_memsz = UINT64_MAX - 0x1000;
    bad_image(&f, sizeof f, "wraps");
    f = image();
    f.ph[1].p_memsz = UINT64_MAX >> 1;
    bad_image(&f, sizeof f, "outside the guest's");
    f = image();
    f.ph[1].p_filesz = 8192;
    bad_image(&f, sizeof f, "in the file");
    f = image();
    f.ph[0].p_paddr = f.ph[0].p_vaddr = 0x1000;
    f.eh.e_entry = 0x1000;
    f.ph[0].p_memsz = MIB - 0x1000;
    f.eh.e_phnum = 1;
    bad_image(&f, sizeof f, "no room");

    int dir = open("/", O_RDONLY);
    struct mf_args_vm_image a = {.vm = image_vm};
    assert_int_equal(client_call(&c, MF_CALL_VM_IMAGE, &a, sizeof a, NULL, 0, &dir, 1), MF_E_IMAGE);
    assert_int_equal(client_call(&c, MF_CALL_VM_IMAGE, &a, sizeof a, NULL, 0, NULL, 0),
                     MF_E_MALFORMED);
    close(dir);

    f = image();
    assert_int_equal(vm_kernel(&c, image_vm, write_file(&f, sizeof f), ""), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_START, image_vm), MF_OK);
    assert_true(vm_wait_off(&c, image_vm, &info));
    assert_int_equal(info.end.reason, MF_END_POWEROFF);
    assert_true(heap_is_whole(&c));
}

/* Protects: a file that was replaced in place is read again, not taken from the cache. */
static void changed_image(void **state)
{
    struct image f = image();
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    assert_int_equal(vm_new(&c, "ch", MIB, NULL, 0, &id), MF_OK);
    assert_int_equal(vm_kernel(&c, id, write_file(&f, sizeof f), ""), MF_OK);
    /* mov al,9; out 0xf4,al; hlt */
    memcpy(f.code, "\xb0\x09\xe6\xf4\xf4", 5);
    assert_int_equal(vm_kernel(&c, id, write_file(&f, sizeof f), ""), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_START, id), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_DEBUG_EXIT);
    assert_int_equal(info.end.code, 9);
}

/* Protects: names are unique, ids are not used again, the list is complete across messages. */
static void names_and_list(void **state)
{
    enum { N = 300 };
    struct mf_args_vm_list a = {0};
    const struct mf_reply_vm_list *r = client_body(&c);
    uint32_t first = 0, id, seen = 0, last = 0;
    char name[16];

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        snprintf(name, sizeof name, "vm-%u", i);
        assert_int_equal(vm_new(&c, name, MIB, NULL, 0, &id), MF_OK);
        first = first ? first : id;
    }
    assert_int_equal(vm_new(&c, "vm-7", MIB, NULL, 0, &id), MF_E_EXISTS);
    assert_string_equal(c.err.field, "name");
    do {
        assert_int_equal(client_call(&c, MF_CALL_VM_LIST, &a, sizeof a, NULL, 0, NULL, 0), MF_OK);
        const struct mf_vm_info *v = (const struct mf_vm_info *)(r + 1);

        for (unsigned i = 0; i < r->count; i++, seen++) {
            assert_true(v[i].id > last);
            last = v[i].id;
        }
        a.first_id = r->next_id;
    } while (a.first_id);
    assert_int_equal(seen, N);
    assert_int_equal(vm_remove(&c, last), MF_OK);
    assert_int_equal(vm_new(&c, "new", MIB, NULL, 0, &id), MF_OK);
    assert_true(id > last);
    for (uint32_t i = first; i <= id; i++)
        if (i != last)
            assert_int_equal(vm_remove(&c, i), MF_OK);
}

#define T(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(hello_everywhere), T(every_end),
        T(kernel_modes),     T(outside_ram),
        T(endless_loop),     T(bad_images),
        T(pause_and_resume), T(changed_image),
        T(shutdowns),        T(vcpu_halted_with_interrupts_off),
        T(resets),           T(console_input),
        T(swap_teardown),    T(out_of_memory),
        T(names_and_list),
    };
    struct CMUnitTest all[sizeof tests / sizeof tests[0]];

    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        all[i] = tests[i];
        all[i].setup_func = setup;
        all[i].teardown_func = teardown;
    }
    return cmocka_run_group_tests(all, NULL, NULL);
}
