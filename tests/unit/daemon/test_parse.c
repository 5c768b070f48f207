/* Sizes, names, uuids. */
#include "tests/unit/daemon/cm.h"

#include <stdio.h>
#include <string.h>

#include "daemon/parse.h"

static void size(const char *text, enum mf_status st, uint64_t want)
{
    uint64_t got = 7;

    assert_int_equal(parse_size(text, &got), st);
    if (st == MF_OK)
        assert_true(got == want);
}

/* Every unit means what it says, and nothing else is a unit. */
static void test_size(void **state)
{
    (void)state;
    size("0", MF_OK, 0);
    size("4096", MF_OK, 4096);
    size("64K", MF_OK, 65536);
    size("64M", MF_OK, UINT64_C(64) << 20);
    size("64MiB", MF_OK, UINT64_C(64) << 20);
    size("3G", MF_OK, UINT64_C(3) << 30);
    size("2TiB", MF_OK, UINT64_C(2) << 40);
    size("", MF_E_MALFORMED, 0);
    size("M", MF_E_MALFORMED, 0);
    size("-1", MF_E_MALFORMED, 0);
    size("+1", MF_E_MALFORMED, 0);
    size(" 1", MF_E_MALFORMED, 0);
    size("1 M", MF_E_MALFORMED, 0);
    size("1MB", MF_E_MALFORMED, 0);
    size("1Mi", MF_E_MALFORMED, 0);
    size("1m", MF_E_MALFORMED, 0);
    size("1k", MF_E_MALFORMED, 0);
    size("1bytes", MF_E_MALFORMED, 0);
    size("0x10", MF_E_MALFORMED, 0);
    size("1.5G", MF_E_MALFORMED, 0);
    size("1e3", MF_E_MALFORMED, 0);
}

/* No size wraps around, neither in its digits nor in its unit. */
static void test_size_overflow(void **state)
{
    (void)state;
    size("18446744073709551615", MF_OK, UINT64_MAX);
    size("18446744073709551616", MF_E_RANGE, 0);
    size("9223372036854775808MiB", MF_E_RANGE, 0);
    size("18014398509481983K", MF_OK, UINT64_C(18014398509481983) << 10);
    size("18014398509481984K", MF_E_RANGE, 0);
    size("99999999999999999999999999999999", MF_E_RANGE, 0);
    size("99999999999999999999999999999999X", MF_E_MALFORMED, 0);
    uint64_t v;
    assert_int_equal(parse_size_unit("9223372036854775808", "MiB", &v), MF_E_RANGE);
    assert_int_equal(parse_size_unit("1", "MB", &v), MF_E_MALFORMED);
    assert_int_equal(parse_size_unit("2", "k", &v), MF_OK);
    assert_true(v == 2048);
}

/* A name is safe as a file name and cannot be taken for a number. */
static void test_vm_name(void **state)
{
    static const char *const good[] = {"a", "A-b_c.d", "0x", "1a", "a1", "a.b.c"};
    static const char *const bad[] = {"",   ".",   "..", "a..b", "a/b", "/",        "../x", "-a",
                                      "_a", "123", "0",  "a b",  "a\n", "\xc3\xa4", ".a"};
    char text[80];

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_null(parse_vm_name(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_non_null(parse_vm_name(bad[i]));
    memset(text, 'a', sizeof text);
    text[63] = '\0';
    assert_null(parse_vm_name(text));
    text[63] = 'a';
    text[64] = '\0';
    assert_non_null(parse_vm_name(text));
}

/* A strategy's name has small letters, digits and dashes, and fits with its zero. */
static void test_strategy_name(void **state)
{
    (void)state;
    assert_null(parse_strategy_name("buddy-lazy"));
    assert_null(parse_strategy_name("a234567890123456789012345678901"));
    assert_non_null(parse_strategy_name("a2345678901234567890123456789012"));
    assert_non_null(parse_strategy_name(""));
    assert_non_null(parse_strategy_name("Buddy"));
    assert_non_null(parse_strategy_name("-a"));
    assert_non_null(parse_strategy_name("a_b"));
    assert_non_null(parse_strategy_name("../x"));
}

/* A uuid comes back as it was written; nothing shorter, longer or else is one. */
static void test_uuid(void **state)
{
    const char *text = "0c80c3ff-25e3-4312-9557-278613256d56";
    char back[UUID_TEXT];
    uint8_t uuid[16];

    (void)state;
    assert_true(parse_uuid(text, uuid));
    assert_int_equal(uuid[0], 0x0c);
    assert_int_equal(uuid[15], 0x56);
    uuid_format(uuid, back);
    assert_string_equal(back, text);
    assert_true(parse_uuid("0C80C3FF-25E3-4312-9557-278613256D56", uuid));
    assert_false(parse_uuid("", uuid));
    assert_false(parse_uuid("0c80c3ff25e3431295572786-13256d56----", uuid));
    assert_false(parse_uuid("0c80c3ff-25e3-4312-9557-278613256d5", uuid));
    assert_false(parse_uuid("0c80c3ff-25e3-4312-9557-278613256d567", uuid));
    assert_false(parse_uuid("0c80c3ff-25e3-4312-9557-27861325 d56", uuid));
}

/* What is written to XML and to one line of a log can be written there. */
static void test_one_line(void **state)
{
    (void)state;
    assert_null(parse_one_line("console=ttyS0 \xc3\xa4 <&>"));
    assert_null(parse_one_line("\xf0\x9f\x98\x80"));
    assert_non_null(parse_one_line("a\nb"));
    assert_non_null(parse_one_line("a\tb"));
    assert_non_null(parse_one_line("\x7f"));
    assert_non_null(parse_one_line("\xff"));
    assert_non_null(parse_one_line("\xc3"));
    assert_non_null(parse_one_line("\xed\xa0\x80"));
    assert_non_null(parse_one_line("\xef\xbf\xbf"));
    assert_non_null(parse_one_line("\xc0\xaf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_size),    cmocka_unit_test(test_size_overflow),
        cmocka_unit_test(test_vm_name), cmocka_unit_test(test_strategy_name),
        cmocka_unit_test(test_uuid),    cmocka_unit_test(test_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
