#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "hv/call/check.h"

static struct call_request req;
static struct mf_error err;

static struct {
    struct mf_msg m;
    union {
        uint8_t bytes[1024];
        struct mf_args_vm_create create;
        struct mf_args_vm vm;
        struct mf_args_strategy strategy;
        struct mf_args_hello hello;
    } u;
} msg;

static void make(unsigned nr, size_t args)
{
    memset(&msg, 0, sizeof msg);
    memset(&err, 0, sizeof err);
    msg.m = (struct mf_msg){.magic = MF_MAGIC,
                            .nr = (uint16_t)nr,
                            .size = (uint32_t)(sizeof msg.m + args),
                            .cookie = 7};
}

static enum mf_status check(void)
{
    return call_check((const uint8_t *)&msg, msg.m.size, &req, &err);
}

/* Protects: each call of the control door passes with zeroed, right-sized arguments and a name. */
static void every_call_passes(void **state)
{
    (void)state;
#define MF_CALL(sym, nr, name_, args, reply, door, text)                                           \
    make(nr, sizeof(struct args));                                                                 \
    if (nr == MF_CALL_VM_CREATE)                                                                   \
        strcpy(msg.u.create.name, "x");                                                            \
    if (nr == MF_CALL_STRATEGY_UNLOAD || nr == MF_CALL_ALLOCATOR_SELECT)                           \
        strcpy(msg.u.strategy.name, "x");                                                          \
    if (nr == MF_CALL_TEARDOWN_SELECT)                                                             \
        msg.u.bytes[offsetof(struct mf_args_teardown_select, name)] = 'x';                         \
    assert_int_equal(check(), #door[0] == 'C' ? MF_OK : MF_E_PERM);                                \
    assert_int_equal(req.msg.cookie, 7);
#include "proto/hypercall.def"
#undef MF_CALL
}

/* Protects: arguments one byte short or long are refused for each call without a tail. */
static void every_wrong_size(void **state)
{
    (void)state;
#define MF_CALL(sym, nr, name_, args, reply, door, text)                                           \
    if (#door[0] == 'C') {                                                                         \
        make(nr, sizeof(struct args) - 1);                                                         \
        assert_int_equal(check(), MF_E_SIZE);                                                      \
        assert_string_equal(err.field, "size");                                                    \
        make(nr, sizeof(struct args) + 1);                                                         \
        if (nr != MF_CALL_VM_IMAGE && nr != MF_CALL_CONSOLE_WRITE && nr != MF_CALL_BATCH)          \
            assert_int_equal(check(), MF_E_SIZE);                                                  \
    }
#include "proto/hypercall.def"
#undef MF_CALL
}

/* Protects: a header that is cut, has the wrong magic, size, flags, status or continuation. */
static void bad_headers(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof(struct mf_msg); n++) {
        make(MF_CALL_HOST_INFO, 8);
        assert_int_equal(call_check((const uint8_t *)&msg, n, &req, &err), MF_E_MALFORMED);
    }
    make(MF_CALL_HOST_INFO, 8);
    msg.m.magic++;
    assert_int_equal(check(), MF_E_MALFORMED);
    assert_string_equal(err.field, "magic");
    make(MF_CALL_HOST_INFO, 8);
    assert_int_equal(call_check((const uint8_t *)&msg, msg.m.size - 1, &req, &err), MF_E_SIZE);
    msg.m.flags = MF_MSG_REPLY;
    assert_int_equal(check(), MF_E_RESERVED);
    assert_string_equal(err.field, "flags");
    make(MF_CALL_HOST_INFO, 8);
    msg.m.status = 1;
    assert_int_equal(check(), MF_E_RESERVED);
    make(MF_CALL_HOST_INFO, 8);
    msg.m.cont = 1;
    assert_int_equal(check(), MF_E_RESERVED);
    msg.m.flags = MF_MSG_NO_CONT;
    assert_int_equal(check(), MF_OK);
}

/* Protects: unknown numbers, in the gaps and beyond the end. */
static void unknown_numbers(void **state)
{
    static const uint16_t numbers[] = {7, 29, 31, 35, 255, 262, 65535};

    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        make(numbers[i], 8);
        assert_int_equal(check(), MF_E_UNKNOWN_CALL);
        assert_string_equal(err.field, "nr");
    }
}

/* Protects: every reserved byte of the arguments must be zero. */
static void reserved_fields(void **state)
{
    (void)state;
    for (unsigned i = 4; i < 8; i++) {
        make(MF_CALL_VM_START, sizeof(struct mf_args_vm));
        msg.u.bytes[i] = 1;
        assert_int_equal(check(), MF_E_RESERVED);
        assert_string_equal(err.field, "reserved");
    }
    make(MF_CALL_HELLO, sizeof(struct mf_args_hello));
    msg.u.hello.reserved = 0x80000000;
    assert_int_equal(check(), MF_E_RESERVED);
}

/* Protects: names that are not terminated, not padded or of the wrong alphabet, by field. */
static void strings(void **state)
{
    (void)state;
    make(MF_CALL_VM_CREATE, sizeof msg.u.create);
    memset(msg.u.create.name, 'a', sizeof msg.u.create.name);
    assert_int_equal(check(), MF_E_NAME);
    assert_string_equal(err.field, "name");
    make(MF_CALL_VM_CREATE, sizeof msg.u.create);
    strcpy(msg.u.create.name, "ok");
    msg.u.create.name[40] = 'x';
    assert_int_equal(check(), MF_E_RESERVED);
    msg.u.create.name[40] = 0;
    strcpy(msg.u.create.teardown, "No");
    assert_int_equal(check(), MF_E_NAME);
    assert_string_equal(err.field, "teardown");
    strcpy(msg.u.create.teardown, "no");
    assert_int_equal(check(), MF_OK);
    make(MF_CALL_ALLOCATOR_SELECT, sizeof msg.u.strategy);
    assert_int_equal(check(), MF_E_NAME);
}

/* Protects: the rules for VM names. */
static void vm_names(void **state)
{
    static const char *const good[] = {"a", "A9", "web-1", "1a", "a.b_c-d", "x."};
    static const char *const bad[] = {"",   "1",   "123",  "-a",  ".a",       "_a",
                                      "a/", "a b", "a..b", "a\n", "\xc3\xa4", "a%"};
    char longest[MF_VM_NAME_MAX] = {0};

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(call_vm_name_ok(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(call_vm_name_ok(bad[i]));
    memset(longest, 'a', sizeof longest - 1);
    assert_true(call_vm_name_ok(longest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_passes), cmocka_unit_test(every_wrong_size),
        cmocka_unit_test(bad_headers),       cmocka_unit_test(unknown_numbers),
        cmocka_unit_test(reserved_fields),   cmocka_unit_test(strings),
        cmocka_unit_test(vm_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
