/* Definitions in JSON. */
#include "tests/unit/daemon/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/def.h"

#define ARENA (UINT64_C(4) << 30)

static enum mf_status read_def(const char *text, enum def_use use, struct vm_def *d,
                               struct problem *p)
{
    uint32_t timeout = 0;

    *p = (struct problem){0};
    def_init(d, use);
    if (def_from_json(d, use, text, strlen(text), &timeout, p) == MF_OK)
        def_check(d, use, ARENA, p);
    return p->status;
}

/* `text` is refused for `field` with `st`. */
static void refused(const char *text, enum def_use use, enum mf_status st, const char *field)
{
    struct problem p;
    struct vm_def d;

    read_def(text, use, &d, &p);
    if (p.status != st || strcmp(p.field, field) != 0)
        fail_msg("%.100s: status %d, field '%s', %s", text, p.status, p.field, p.detail);
    assert_true(p.detail[0] != '\0');
    def_fini(&d);
}

#define REST "\"memory\":\"64M\",\"kernel\":\"/k\""

/* A whole definition is taken as written; what is left out has its default. */
static void test_good(void **state)
{
    struct problem p;
    struct vm_def d;

    (void)state;
    assert_int_equal(
        read_def("{\"name\":\"web-1\",\"uuid\":\"0c80c3ff-25e3-4312-9557-278613256d56\","
                 "\"memory\":\"64M\",\"vcpus\":4,\"kernel\":\"/boot/k\",\"cmdline\":\"a b\","
                 "\"engine\":\"soft\",\"teardown\":\"scan\",\"on_reset\":\"end\",\"weight\":7,"
                 "\"cap\":50}",
                 DEF_DEFINE, &d, &p),
        MF_OK);
    assert_string_equal(d.name, "web-1");
    assert_true(d.memory == UINT64_C(64) << 20);
    assert_int_equal(d.vcpus, 4);
    assert_string_equal(d.kernel, "/boot/k");
    assert_string_equal(d.cmdline, "a b");
    assert_int_equal(d.engine, MF_ENGINE_SOFT);
    assert_string_equal(d.teardown, "scan");
    assert_true(d.reset_ends);
    assert_int_equal(d.weight, 7);
    assert_int_equal(d.cap, 50);
    def_fini(&d);
    assert_int_equal(read_def("{\"name\":\"a\"," REST "}", DEF_DEFINE, &d, &p), MF_OK);
    assert_int_equal(d.vcpus, 1);
    assert_int_equal(d.engine, MF_ENGINE_AUTO);
    assert_false(d.reset_ends);
    assert_int_equal(d.weight, 100);
    def_fini(&d);
    assert_int_equal(read_def(" {\"kernel\":\"/k\"} \n", DEF_RUN, &d, &p), MF_OK);
    assert_true(d.memory == DEF_RUN_MEMORY);
    assert_true(d.reset_ends);
    def_fini(&d);
}

/* Text that is no JSON object is told where it goes wrong, and never half read. */
static void test_syntax(void **state)
{
    static const char *const bad[] = {"",
                                      " \n",
                                      "null",
                                      "[]",
                                      "1",
                                      "\"x\"",
                                      "{",
                                      "{\"name\"",
                                      "{]",
                                      "{\"name\":\"a\"," REST "} x",
                                      "{\"name\":\"a\"," REST "}{}",
                                      "{'name':'a'}",
                                      "{\"name\":\"a\",}",
                                      "{\"name\":\"\xff\"}",
                                      "\xef\xbb\xbf{}",
                                      "nul"};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refused(bad[i], DEF_DEFINE, MF_E_MALFORMED, "");
}

/* Nesting has a limit, also where the member would be refused anyway. */
static void test_depth(void **state)
{
    char text[20100] = "{\"name\":";

    (void)state;
    memset(text + strlen(text), '[', 10000);
    refused(text, DEF_DEFINE, MF_E_MALFORMED, "");
    strcpy(text, "{\"x\":[[[[[[[[[[1]]]]]]]]]]}");
    refused(text, DEF_DEFINE, MF_E_MALFORMED, "");
}

/* Initial RAM disk and modules: read, limited, named when they are wrong. */
static void test_modules(void **state)
{
    struct problem p = {0};
    struct vm_def d;
    char many[1024] = "{\"kernel\":\"/k\",\"modules\":[";

    (void)state;
    assert_int_equal(read_def("{\"kernel\":\"/k\",\"initrd\":\"/i\",\"modules\":[{\"file\":\"/m\","
                              "\"cmdline\":\"a b\"},{\"file\":\"/n\"}]}",
                              DEF_RUN, &d, &p),
                     MF_OK);
    assert_string_equal(d.initrd, "/i");
    assert_int_equal(d.nr_modules, 2);
    assert_string_equal(d.module[0].cmdline, "a b");
    assert_string_equal(d.module[1].file, "/n");
    def_fini(&d);
    refused("{\"kernel\":\"/k\",\"initrd\":\"i\"}", DEF_RUN, MF_E_RANGE, "initrd");
    refused("{\"kernel\":\"/k\",\"modules\":[{\"cmdline\":\"\"}]}", DEF_RUN, MF_E_MALFORMED,
            "modules");
    refused("{\"kernel\":\"/k\",\"modules\":[{\"file\":\"/m\",\"x\":1}]}", DEF_RUN, MF_E_MALFORMED,
            "modules");
    refused("{\"kernel\":\"/k\",\"modules\":[{\"file\":\"m\"}]}", DEF_RUN, MF_E_RANGE, "modules");
    refused("{\"kernel\":\"/k\",\"modules\":[7]}", DEF_RUN, MF_E_MALFORMED, "modules");
    for (unsigned i = 0; i < MF_MODULES_MAX; i++)
        strcat(many, i ? ",{\"file\":\"/m\"}" : "{\"file\":\"/m\"}");
    strcat(many, "],\"initrd\":\"/i\"}");
    refused(many, DEF_RUN, MF_E_RANGE, "modules");
}

/* What must be there is named when it is missing. */
static void test_missing(void **state)
{
    (void)state;
    refused("{}", DEF_DEFINE, MF_E_MALFORMED, "name");
    refused("{\"name\":\"a\"}", DEF_DEFINE, MF_E_MALFORMED, "memory");
    refused("{\"name\":\"a\",\"memory\":65536}", DEF_DEFINE, MF_E_MALFORMED, "kernel");
    refused("{}", DEF_RUN, MF_E_MALFORMED, "kernel");
}

/* A member that nobody knows, or that has the wrong type, is named. */
static void test_unknown_and_types(void **state)
{
    static const char *const members[] = {"name",     "uuid",    "memory", "vcpus",
                                          "kernel",   "cmdline", "engine", "teardown",
                                          "on_reset", "weight",  "cap"};
    static const char *const values[] = {"null", "true", "[]", "{}", "1.5"};
    char text[128];

    (void)state;
    refused("{\"nmae\":\"a\"," REST "}", DEF_DEFINE, MF_E_MALFORMED, "nmae");
    refused("{\"name\":\"a\"," REST ",\"timeout_ms\":5}", DEF_DEFINE, MF_E_MALFORMED, "timeout_ms");
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
            snprintf(text, sizeof text, "{\"%s\":%s}", members[i], values[k]);
            refused(text, DEF_DEFINE, MF_E_MALFORMED, members[i]);
        }
    refused("{\"name\":7}", DEF_DEFINE, MF_E_MALFORMED, "name");
    refused("{\"vcpus\":\"2\"}", DEF_DEFINE, MF_E_MALFORMED, "vcpus");
}

static void test_names(void **state)
{
    static const char *const bad[] = {
        "",   "123",  "a/b",
        "..", "a..b", "\xc3\xa4",
        "-a", " a",   "a123456789012345678901234567890123456789012345678901234567890123"};
    char text[256];

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "{\"name\":\"%s\"," REST "}", bad[i]);
        refused(text, DEF_DEFINE, MF_E_NAME, "name");
    }
    refused("{\"name\":\"a\\u0000b\"," REST "}", DEF_DEFINE, MF_E_RANGE, "name");
}

/* RAM of nothing, of half a page, unaligned, above the machine, and above all numbers. */
static void test_memory(void **state)
{
    (void)state;
#define MEM(v) "{\"name\":\"a\",\"kernel\":\"/k\",\"memory\":" v "}"
    refused(MEM("0"), DEF_DEFINE, MF_E_RANGE, "memory");
    refused(MEM("512"), DEF_DEFINE, MF_E_RANGE, "memory");
    refused(MEM("-1"), DEF_DEFINE, MF_E_RANGE, "memory");
    refused(MEM("65537"), DEF_DEFINE, MF_E_ALIGN, "memory");
    refused(MEM("\"5G\""), DEF_DEFINE, MF_E_RANGE, "memory");
    refused(MEM("\"9223372036854775808MiB\""), DEF_DEFINE, MF_E_RANGE, "memory");
    refused(MEM("\"9223372036854775808M\""), DEF_DEFINE, MF_E_RANGE, "memory");
    refused(MEM("18446744073709551615"), DEF_DEFINE, MF_E_RANGE, "memory");
    refused(MEM("\"\""), DEF_DEFINE, MF_E_MALFORMED, "memory");
    refused(MEM("\"lots\""), DEF_DEFINE, MF_E_MALFORMED, "memory");
    refused(MEM("1e9"), DEF_DEFINE, MF_E_MALFORMED, "memory");
#undef MEM
}

/* A number that JSON can write and 64 bits cannot hold is never taken for another one. */
static void test_huge_number(void **state)
{
    struct problem p;
    struct vm_def d;

    (void)state;
    assert_int_not_equal(
        read_def(
            "{\"name\":\"a\",\"kernel\":\"/k\",\"memory\":340282366920938463463374607431768276992}",
            DEF_DEFINE, &d, &p),
        MF_OK);
    def_fini(&d);
    assert_int_not_equal(
        read_def("{\"name\":\"a\"," REST ",\"vcpus\":18446744073709551617}", DEF_DEFINE, &d, &p),
        MF_OK);
    def_fini(&d);
}

static void test_ranges(void **state)
{
    (void)state;
#define MORE(m) "{\"name\":\"a\"," REST "," m "}"
    refused(MORE("\"vcpus\":0"), DEF_DEFINE, MF_E_RANGE, "vcpus");
    refused(MORE("\"vcpus\":9999"), DEF_DEFINE, MF_E_RANGE, "vcpus");
    refused(MORE("\"vcpus\":4294967297"), DEF_DEFINE, MF_E_RANGE, "vcpus");
    refused(MORE("\"vcpus\":-1"), DEF_DEFINE, MF_E_RANGE, "vcpus");
    refused(MORE("\"weight\":0"), DEF_DEFINE, MF_E_RANGE, "weight");
    refused(MORE("\"weight\":10001"), DEF_DEFINE, MF_E_RANGE, "weight");
    refused(MORE("\"cap\":101"), DEF_DEFINE, MF_E_RANGE, "cap");
    refused(MORE("\"engine\":\"xen\""), DEF_DEFINE, MF_E_RANGE, "engine");
    refused(MORE("\"on_reset\":\"maybe\""), DEF_DEFINE, MF_E_RANGE, "on_reset");
    refused(MORE("\"teardown\":\"../x\""), DEF_DEFINE, MF_E_NAME, "teardown");
    refused(MORE("\"teardown\":\"\""), DEF_DEFINE, MF_E_NAME, "teardown");
    refused(MORE("\"uuid\":\"zz\""), DEF_DEFINE, MF_E_RANGE, "uuid");
    refused(MORE("\"uuid\":\"00000000-0000-0000-0000-000000000000\""), DEF_DEFINE, MF_E_RANGE,
            "uuid");
    refused(MORE("\"cmdline\":\"a\\nb\""), DEF_DEFINE, MF_E_RANGE, "cmdline");
#undef MORE
    refused("{\"kernel\":\"/k\",\"timeout_ms\":0}", DEF_RUN, MF_E_RANGE, "timeout_ms");
    refused("{\"kernel\":\"/k\",\"timeout_ms\":86400001}", DEF_RUN, MF_E_RANGE, "timeout_ms");
    refused("{\"kernel\":\"k\"}", DEF_RUN, MF_E_RANGE, "kernel");
    refused("{\"kernel\":\"\"}", DEF_RUN, MF_E_RANGE, "kernel");
    refused("{\"kernel\":\"/a\\u0000b\"}", DEF_RUN, MF_E_RANGE, "kernel");
}

/* Texts that are too long for what takes them are refused, not cut. */
static void test_long_texts(void **state)
{
    static char text[8192];

    (void)state;
    strcpy(text, "{\"kernel\":\"/k\",\"cmdline\":\"");
    memset(text + strlen(text), 'c', 2048);
    strcat(text, "\"}");
    refused(text, DEF_RUN, MF_E_RANGE, "cmdline");
    memset(text, 0, sizeof text);
    strcpy(text, "{\"kernel\":\"/");
    memset(text + 12, 'k', 4096);
    strcat(text, "\"}");
    refused(text, DEF_RUN, MF_E_RANGE, "kernel");
}

/* A definition written as JSON has all its members. */
static void test_write(void **state)
{
    struct jsonw w = {.comma = false};
    struct problem p;
    struct vm_def d;

    (void)state;
    assert_int_equal(
        read_def("{\"name\":\"a\",\"uuid\":\"0c80c3ff-25e3-4312-9557-278613256d56\"," REST "}",
                 DEF_DEFINE, &d, &p),
        MF_OK);
    jsonw_object(&w);
    def_to_json(&d, &w);
    jsonw_object_end(&w);
    assert_string_equal(w.b.p, "{\"name\":\"a\",\"uuid\":\"0c80c3ff-25e3-4312-9557-278613256d56\","
                               "\"memory\":67108864,\"vcpus\":1,\"kernel\":\"/k\",\"cmdline\":\"\","
                               "\"initrd\":null,\"modules\":[],"
                               "\"engine\":\"auto\",\"teardown\":null,\"on_reset\":\"restart\","
                               "\"weight\":100,\"cap\":0,\"claim\":false,\"pages\":\"4K\"}");
    jsonw_fini(&w);
    def_fini(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),        cmocka_unit_test(test_syntax),
        cmocka_unit_test(test_depth),       cmocka_unit_test(test_missing),
        cmocka_unit_test(test_modules),     cmocka_unit_test(test_unknown_and_types),
        cmocka_unit_test(test_names),       cmocka_unit_test(test_memory),
        cmocka_unit_test(test_huge_number), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_long_texts),  cmocka_unit_test(test_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
