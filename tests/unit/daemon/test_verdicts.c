/* Verdicts on plugins: kept for the very file and the very checker, whole or not at all. */
#include "tests/unit/daemon/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/verdicts.h"

static char dir[] = "/tmp/mayfly-verdicts-XXXXXX";
static char path[64];

static const struct file_id checker = {1, 2, 3, 4, 5};
static const struct file_id other = {1, 2, 3, 4, 6};
static const struct verdict good = {.ok = true, .seed = 7};
static const struct verdict bad = {
    .rule = "totals", .text = "two lines\nof text", .seed = UINT64_MAX};

static struct file_id file(uint64_t n)
{
    return (struct file_id){n, n + 1, n + 2, -(int64_t)n, INT64_MAX};
}

static struct verdicts reopened(struct verdicts *v)
{
    struct verdicts again;

    assert_true(verdicts_save(v));
    verdicts_fini(v);
    verdicts_init(&again, strdup(path));
    return again;
}

static struct verdicts fresh(void)
{
    struct verdicts v;

    unlink(path);
    verdicts_init(&v, strdup(path));
    verdicts_by(&v, &checker);
    return v;
}

/* What is written is read again; a text with a line's end in it stays one line. */
static void test_round(void **state)
{
    struct verdicts v = fresh();
    struct file_id a = file(1), b = file(2);

    (void)state;
    verdicts_put(&v, &a, &good);
    verdicts_put(&v, &b, &good);
    verdicts_put(&v, &b, &bad);
    v = reopened(&v);
    verdicts_by(&v, &checker);
    assert_int_equal(v.count, 2);
    assert_true(verdicts_find(&v, &a)->ok);
    assert_false(verdicts_find(&v, &b)->ok);
    assert_string_equal(verdicts_find(&v, &b)->rule, "totals");
    assert_string_equal(verdicts_find(&v, &b)->text, "two lines of text");
    assert_true(verdicts_find(&v, &b)->seed == UINT64_MAX);
    a.ctime--;
    assert_null(verdicts_find(&v, &a));
    verdicts_by(&v, &other);
    assert_null(verdicts_find(&v, &b));
    verdicts_fini(&v);
}

/* The oldest goes when there are too many. */
static void test_bound(void **state)
{
    struct verdicts v = fresh();
    struct file_id id;

    (void)state;
    for (uint64_t i = 0; i < VERDICTS_MAX + 10; i++) {
        id = file(i);
        verdicts_put(&v, &id, &bad);
    }
    v = reopened(&v);
    assert_int_equal(v.count, VERDICTS_MAX);
    id = file(9);
    assert_null(verdicts_find(&v, &id));
    id = file(10);
    assert_non_null(verdicts_find(&v, &id));
    verdicts_fini(&v);
}

/* Any damage, anywhere: nothing of the file counts, and nothing goes wrong. */
static void test_damage(void **state)
{
    struct verdicts v = fresh();
    char text[1024];
    struct file_id a = file(1), b = file(2);

    (void)state;
    verdicts_put(&v, &a, &bad);
    verdicts_put(&v, &b, &good);
    v = reopened(&v);
    verdicts_fini(&v);
    FILE *f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    for (size_t at = 0; at < n; at++)
        for (int c = 0; c < 3; c++) {
            f = fopen(path, "w");
            fwrite(text, 1, at, f);
            if (c > 0)
                fputc(c == 1 ? 'x' : '\n', f);
            if (c > 0)
                fwrite(text + at + 1, 1, n - at - 1, f);
            fclose(f);
            verdicts_init(&v, strdup(path));
            assert_true(v.count <= 2);
            verdicts_fini(&v);
        }
}

/* A file that others could have written is not read. */
static void test_private(void **state)
{
    struct verdicts v = fresh();
    struct file_id a = file(1);

    (void)state;
    verdicts_put(&v, &a, &good);
    assert_true(verdicts_save(&v));
    verdicts_fini(&v);
    chmod(path, 0620);
    verdicts_init(&v, strdup(path));
    assert_int_equal(v.count, 0);
    verdicts_fini(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_private),
    };

    if (mkdtemp(dir) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/v", dir);
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    rmdir(dir);
    return r;
}
