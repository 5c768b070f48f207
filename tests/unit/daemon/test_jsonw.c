/* JSON as it is written. */
#include "tests/unit/daemon/cm.h"

#include <string.h>

#include <json-c/json.h>

#include "daemon/jsonw.h"
#include "daemon/problem.h"

static void check(struct jsonw *w, const char *want)
{
    assert_false(w->b.failed);
    assert_string_equal(w->b.p, want);
    jsonw_fini(w);
}

/* Commas stand between values and nowhere else, at every depth. */
static void test_structure(void **state)
{
    struct jsonw w = {.comma = false};
    const uint64_t n[] = {1, 2, UINT64_MAX};

    (void)state;
    jsonw_object(&w);
    jsonw_key(&w, "e");
    jsonw_object(&w);
    jsonw_object_end(&w);
    jsonw_ku64s(&w, "n", n, 3);
    jsonw_ku64s(&w, "none", n, 0);
    jsonw_key(&w, "i");
    jsonw_i64(&w, INT64_MIN);
    jsonw_kbool(&w, "t", true);
    jsonw_key(&w, "z");
    jsonw_null(&w);
    jsonw_key(&w, "a");
    jsonw_array(&w);
    jsonw_i64(&w, -1);
    jsonw_object(&w);
    jsonw_kstr(&w, "x", "y");
    jsonw_object_end(&w);
    jsonw_array_end(&w);
    jsonw_object_end(&w);
    check(&w, "{\"e\":{},\"n\":[1,2,18446744073709551615],\"none\":[],"
              "\"i\":-9223372036854775808,\"t\":true,\"z\":null,\"a\":[-1,{\"x\":\"y\"}]}");
}

/* A guest may print any bytes: what is written is valid JSON, zeroes and broken UTF-8 included. */
static void test_strings(void **state)
{
    struct jsonw w = {.comma = false};

    (void)state;
    jsonw_strn(&w, "a\"\\\b\f\n\r\t\x01\0z", 11);
    check(&w, "\"a\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u0000z\"");
    /* Valid, then one byte, a lead without its follower, a surrogate's three bytes. */
    jsonw_str(&w, "\xc3\xa4\xff\xc3(\xed\xa0\x80");
    check(&w, "\"\xc3\xa4\xef\xbf\xbd\xef\xbf\xbd("
              "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

/* Every byte pair gives text that a parser takes. */
static void test_all_pairs(void **state)
{
    (void)state;
    for (int i = 0; i < 65536; i++) {
        struct jsonw w = {.comma = false};
        char two[2] = {(char)(i >> 8), (char)i};
        jsonw_array(&w);
        jsonw_strn(&w, two, 2);
        jsonw_array_end(&w);
        struct json_tokener *tok = json_tokener_new();
        json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
        struct json_object *o = json_tokener_parse_ex(tok, w.b.p, (int)w.b.len);
        assert_non_null(o);
        json_object_put(o);
        json_tokener_free(tok);
        jsonw_fini(&w);
    }
}

/* A problem document has its fixed members, and the field only where there is one. */
static void test_problem(void **state)
{
    struct jsonw w = {.comma = false};
    struct problem p = {0};

    (void)state;
    assert_int_equal(problem_set(&p, MF_E_RANGE, "memory", "%d bytes", 512), MF_E_RANGE);
    /* The first problem stays. */
    assert_int_equal(problem_set(&p, MF_E_NAME, "name", "other"), MF_E_RANGE);
    problem_json(&p, &w);
    check(&w, "{\"type\":\"about:blank\",\"title\":\"a value is out of its range\",\"status\":400,"
              "\"code\":\"out-of-range\",\"detail\":\"512 bytes\",\"field\":\"memory\"}");
    p = (struct problem){.status = MF_E_STATE};
    problem_json(&p, &w);
    check(&w, "{\"type\":\"about:blank\",\"title\":\"not possible in the present state\","
              "\"status\":409,\"code\":\"wrong-state\","
              "\"detail\":\"not possible in the present state\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_structure),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_all_pairs),
        cmocka_unit_test(test_problem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
