/* Out of memory at any allocation of ours: an error, never half a result. */
#include "tests/unit/daemon/cm.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/def.h"
#include "daemon/hub.h"
#include "daemon/jsonr.h"
#include "daemon/vms.h"

static int left = -1; /* allocations until one fails; -1: never */

static bool fails(void)
{
    return left >= 0 && left-- == 0;
}

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__real_calloc(size_t n, size_t k);
void *__wrap_calloc(size_t n, size_t k);
void *__wrap_calloc(size_t n, size_t k)
{
    return fails() ? NULL : __real_calloc(n, k);
}

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

char *__real_strdup(const char *s);
char *__wrap_strdup(const char *s);
char *__wrap_strdup(const char *s)
{
    return fails() ? NULL : __real_strdup(s);
}

static const char text[] =
    "{\"name\":\"a\",\"memory\":\"64M\",\"kernel\":\"/k\",\"cmdline\":\"c\"}";

/* Reading a definition fails clean at each allocation, and works with the next. */
static void test_read(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        struct problem p = {0};
        struct vm_def d;
        def_init(&d, DEF_DEFINE);
        left = n;
        enum mf_status st = def_from_json(&d, DEF_DEFINE, text, sizeof text - 1, NULL, &p);
        bool failed = left < 0;
        left = -1;
        def_fini(&d);
        if (!failed) {
            assert_int_equal(st, MF_OK);
            assert_true(n >= 2);
            return;
        }
        assert_int_equal(st, MF_E_NO_MEMORY);
    }
}

/* A copy is whole or owns nothing. */
static void test_copy(void **state)
{
    struct vm_def d;
    struct vm_def copy;

    (void)state;
    def_init(&d, DEF_DEFINE);
    d.kernel = strdup("/k");
    d.cmdline = strdup("c");
    for (int n = 0; n < 2; n++) {
        left = n;
        assert_false(def_copy(&copy, &d));
        left = -1;
        assert_null(copy.kernel);
        assert_null(copy.cmdline);
    }
    assert_true(def_copy(&copy, &d));
    def_fini(&copy);
    def_fini(&d);
}

/* A buffer that could not grow says so and hands out nothing that is cut. */
static void test_buffer(void **state)
{
    struct jsonw w = {.comma = false};

    (void)state;
    left = 1;
    jsonw_array(&w);
    for (int i = 0; i < 1000; i++)
        jsonw_str(&w, "some text");
    jsonw_array_end(&w);
    left = -1;
    assert_true(w.b.failed);
    jsonw_fini(&w);
}

/* A VM that cannot be added leaves its definition with the caller and the name free. */
static void test_vms_add(void **state)
{
    struct vms *v = calloc(1, sizeof *v);
    struct link l = {0};
    struct vm_def d;
    struct hub h;

    (void)state;
    hub_init(&h);
    vms_init(v, &l, &h);
    def_init(&d, DEF_DEFINE);
    strcpy(d.name, "a");
    d.kernel = strdup("/k");
    left = 0;
    assert_null(vms_add(v, &d));
    left = -1;
    assert_non_null(d.kernel);
    assert_null(vms_find_name(v, "a"));
    assert_non_null(vms_add(v, &d));
    assert_null(d.kernel);
    vms_fini(v);
    hub_fini(&h);
    free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_buffer),
        cmocka_unit_test(test_vms_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
