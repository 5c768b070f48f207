/* Plugins that must not get in, and strategies that must not get out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "client.h"

static struct core_proc core;
static struct client c;

static int setup(void **state)
{
    (void)state;
    return core_open(&core, &c, "64M");
}

static int teardown(void **state)
{
    (void)state;
    return core_close(&core, &c);
}

static unsigned count(void)
{
    struct mf_args_none a = {0};

    assert_int_equal(client_call(&c, MF_CALL_STRATEGY_LIST, &a, sizeof a, NULL, 0, NULL, 0), MF_OK);
    return ((const struct mf_reply_strategy_list *)client_body(&c))->count;
}

static const char *bad(unsigned n)
{
    static char path[512];

    snprintf(path, sizeof path, "%s/bad_%u.so", getenv("MAYFLY_TEST_BAD"), n);
    return path;
}

static void refused(const char *path, enum mf_status st, const char *field, const char *text)
{
    unsigned before = count();
    int fds = core_fds(&core);

    assert_int_equal(strategy_load(&c, path), st);
    assert_string_equal(c.err.field, field);
    if (!strstr(c.err.text, text))
        fail_msg("'%s' does not say '%s'", c.err.text, text);
    assert_int_equal(count(), before);
    assert_int_equal(core_fds(&core), fds);
}

static const char *copy_of(const char *path, mode_t mode)
{
    static char to[128];
    char buf[65536];
    int in = open(path, O_RDONLY), out;
    ssize_t n;

    snprintf(to, sizeof to, "%s/copy.so", core.dir);
    unlink(to);
    out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(in >= 0 && out >= 0);
    while ((n = read(in, buf, sizeof buf)) > 0)
        assert_int_equal(write(out, buf, (size_t)n), n);
    close(in);
    close(out);
    assert_int_equal(chmod(to, mode), 0);
    return to;
}

/* Protects: each thing that can be wrong with a plugin's content is refused by name. */
static void wrong_content(void **state)
{
    (void)state;
    refused(bad(1), MF_E_ABI, "abi", "ABI 2");
    refused(bad(2), MF_E_PLUGIN, "ops", "incomplete");
    refused(bad(3), MF_E_PLUGIN, "name", "note");
    refused(bad(4), MF_E_PLUGIN, "symbol", "mayfly_plugin");
    refused(bad(5), MF_E_PLUGIN, "flags", "0x80000000");
    refused(bad(6), MF_E_EXISTS, "name", "single");
    refused(bad(7), MF_E_PLUGIN, "kind", "kind");
    refused(bad(8), MF_E_PLUGIN, "size", "8 bytes");
    refused(bad(9), MF_E_PLUGIN, "ops", "incomplete");
}

/* Protects: files that are no plugins at all. */
static void wrong_file(void **state)
{
    (void)state;
    refused("/dev/null", MF_E_PLUGIN, "fd", "regular");
    refused("/", MF_E_PLUGIN, "fd", "regular");
    refused("/proc/self/exe", MF_E_PLUGIN, "note", "note");
    const char *path = copy_of(bad(10), 0600);
    assert_int_equal(truncate(path, 0), 0);
    refused(path, MF_E_PLUGIN, "note", "too short");
    path = copy_of(bad(10), 0600);
    assert_int_equal(truncate(path, 100), 0);
    refused(path, MF_E_PLUGIN, "note", "outside");
    path = copy_of("/bin/sh", 0600);
    int fd = open(path, O_WRONLY);
    assert_int_equal(write(fd, "#!/bin/sh\n", 10), 10);
    close(fd);
    refused(path, MF_E_PLUGIN, "note", "not an ELF");
}

/* Protects: a file that others could have changed, or that belongs to another user. */
static void wrong_owner(void **state)
{
    (void)state;
    refused(copy_of(bad(10), 0620), MF_E_PLUGIN, "fd", "writable");
    refused(copy_of(bad(10), 0602), MF_E_PLUGIN, "fd", "writable");
    if (geteuid() == 0) {
        const char *path = copy_of(bad(10), 0600);

        assert_int_equal(chown(path, 65534, 65534), 0);
        refused(path, MF_E_PLUGIN, "fd", "65534");
    }
    assert_int_equal(strategy_load(&c, copy_of(bad(10), 0644)), MF_OK);
}

static enum mf_status unload(uint32_t kind, const char *name)
{
    struct mf_args_strategy a = {.kind = kind};

    memcpy(a.name, name, strlen(name));
    return client_call(&c, MF_CALL_STRATEGY_UNLOAD, &a, sizeof a, NULL, 0, NULL, 0);
}

/* Protects: what the heap, the default or a VM uses stays; the rest goes and may come again. */
static void unload_in_use(void **state)
{
    uint32_t id;

    (void)state;
    assert_int_equal(unload(MF_PLUGIN_ALLOCATOR, "buddy-lazy"), MF_E_BUSY);
    assert_int_equal(unload(MF_PLUGIN_TEARDOWN, "single"), MF_E_BUSY);
    assert_int_equal(vm_new(&c, "u", 1 << 20, "scan", 0, &id), MF_OK);
    assert_int_equal(unload(MF_PLUGIN_TEARDOWN, "scan"), MF_E_BUSY);
    assert_int_equal(vm_remove(&c, id), MF_OK);
    assert_int_equal(unload(MF_PLUGIN_TEARDOWN, "scan"), MF_OK);
    assert_int_equal(unload(MF_PLUGIN_TEARDOWN, "scan"), MF_E_NOT_FOUND);
    assert_int_equal(vm_new(&c, "u", 1 << 20, "scan", 0, &id), MF_E_NO_TEARDOWN);
    assert_int_equal(unload(MF_PLUGIN_ALLOCATOR, "buddy-page"), MF_OK);
    assert_int_equal(unload(3, "buddy-chunk"), MF_E_RANGE);
    /* Several times: each load has its own name for the dynamic linker. */
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(strategy_load(&c, plugin_path("teardown_scan.so")), MF_OK);
        assert_int_equal(strategy_load(&c, plugin_path("allocator_buddy-page.so")), MF_OK);
        assert_int_equal(unload(MF_PLUGIN_TEARDOWN, "scan"), MF_OK);
        assert_int_equal(unload(MF_PLUGIN_ALLOCATOR, "buddy-page"), MF_OK);
    }
}

/* Protects: a teardown strategy that leaves entries behind or stands still costs the VM nothing:
 * another one finishes, every frame comes back, and the log says so. */
static void failing_teardown(void **state)
{
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    assert_int_equal(strategy_load(&c, bad(10)), MF_OK);
    assert_int_equal(strategy_load(&c, bad(11)), MF_OK);
    assert_int_equal(vm_launch(&c, "f", 4 << 20, "hello.elf", "", "bad-lazy", 0, &id), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_POWEROFF);
    assert_string_not_equal(info.end.teardown, "bad-lazy");
    assert_true(info.end.frames_returned > 2);
    assert_true(core_log_has(&core, "bad-lazy failed"));
    assert_int_equal(vm_remove(&c, id), MF_OK);
    assert_int_equal(vm_launch(&c, "f", 4 << 20, "hello.elf", "", "bad-stuck", 0, &id), MF_OK);
    assert_true(vm_wait_off(&c, id, &info));
    assert_true(core_log_has(&core, "bad-stuck failed"));
    assert_true(heap_is_whole(&c));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(wrong_content), T(wrong_file), T(wrong_owner), T(unload_in_use), T(failing_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
