/* Routes: found by method and path, and the same as in the schema. */
#include "tests/unit/daemon/cm.h"

#include <ctype.h>
#include <json-c/json.h>
#include <stdio.h>
#include <string.h>

#include "daemon/embed.h"
#include "daemon/router.h"

static char allow[64];
static const char *arg[REQ_ARGS];

static const struct route *find(const char *method, const char *path)
{
    static char copy[256];

    snprintf(copy, sizeof copy, "%s", path);
    return router_find(routes, nr_routes, method, copy, arg, REQ_ARGS, allow, sizeof allow);
}

/* Segments that stand for something are handed over; HEAD goes where GET goes. */
static void test_found(void **state)
{
    (void)state;
    assert_string_equal(find("GET", "/v1/vms/web-1")->path, "/v1/vms/{vm}");
    assert_string_equal(arg[0], "web-1");
    assert_string_equal(find("HEAD", "/v1/vms/web-1")->method, "GET");
    assert_string_equal(find("DELETE", "/v1/strategies/teardown/scan")->method, "DELETE");
    assert_string_equal(arg[0], "teardown");
    assert_string_equal(arg[1], "scan");
    assert_string_equal(find("POST", "/v1/vms/start/start")->path, "/v1/vms/{vm}/start");
}

/* An unknown path is no path; a known one says what it takes. */
static void test_not_found(void **state)
{
    static const char *const none[] = {"/",
                                       "",
                                       "/v1",
                                       "/v1/",
                                       "/v1/vms/",
                                       "/v1/vmsx",
                                       "/v1/vms/a/b",
                                       "/v1/vms//start",
                                       "/V1/vms",
                                       "v1/vms",
                                       "//v1/vms",
                                       "/v1/vms/a/start/",
                                       "/v1/vms/a/b/c/d/e/f/g/h/i"};

    (void)state;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_null(find("GET", none[i]));
        assert_string_equal(allow, "");
    }
    assert_null(find("PATCH", "/v1/vms"));
    assert_string_equal(allow, "GET, HEAD, POST");
    assert_null(find("GET", "/v1/vms/a/start"));
    assert_string_equal(allow, "POST");
    assert_null(find("POST", "/v1/vms/a"));
    assert_string_equal(allow, "GET, HEAD, PUT, DELETE");
    assert_null(find("get", "/v1/vms"));
}

static bool in_routes(const char *method, const char *path)
{
    for (size_t i = 0; i < nr_routes; i++)
        if (strcasecmp(routes[i].method, method) == 0 && strcmp(routes[i].path, path) == 0)
            return true;
    return false;
}

/* Every route is in the schema, and every operation of the schema is a route. */
static void test_schema(void **state)
{
    struct json_object *doc = json_tokener_parse(embed_openapi_json);
    struct json_object *paths;
    size_t n = 0;

    (void)state;
    assert_non_null(doc);
    assert_true(json_object_object_get_ex(doc, "paths", &paths));
    json_object_object_foreach(paths, path, item)
    {
        json_object_object_foreach(item, method, op)
        {
            (void)op;
            if (strcmp(method, "parameters") == 0)
                continue;
            if (!in_routes(method, path))
                fail_msg("%s %s is in the schema only", method, path);
            n++;
        }
    }
    assert_int_equal(n, nr_routes);
    json_object_put(doc);
}

/* A body is wanted exactly where the schema has one. */
static void test_bodies(void **state)
{
    struct json_object *doc = json_tokener_parse(embed_openapi_json);
    struct json_object *paths;

    (void)state;
    assert_true(json_object_object_get_ex(doc, "paths", &paths));
    for (size_t i = 0; i < nr_routes; i++) {
        struct json_object *item;
        struct json_object *op;
        char method[16];
        size_t k = 0;
        for (; routes[i].method[k] != '\0'; k++)
            method[k] = (char)tolower(routes[i].method[k]);
        method[k] = '\0';
        assert_true(json_object_object_get_ex(paths, routes[i].path, &item));
        assert_true(json_object_object_get_ex(item, method, &op));
        assert_int_equal(json_object_object_get_ex(op, "requestBody", NULL),
                         routes[i].body != BODY_NONE);
    }
    json_object_put(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_not_found),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
