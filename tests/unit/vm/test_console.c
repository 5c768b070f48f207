#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "hv/vm/console.h"

/* Protects: offsets count all bytes ever written; what was overwritten is skipped, not repeated. */
static void offsets_survive_wrapping(void **state)
{
    struct console c;
    uint8_t buf[16];
    uint64_t offset = 0, end;

    (void)state;
    console_init(&c, 8);
    console_put(&c, (const uint8_t *)"abcdef", 6);
    assert_int_equal(console_get(&c, &offset, buf, sizeof buf, &end), 6);
    assert_int_equal(end, 6);
    console_put(&c, (const uint8_t *)"ghijkl", 6);
    offset = 6;
    assert_int_equal(console_get(&c, &offset, buf, 3, &end), 3);
    assert_memory_equal(buf, "ghi", 3);
    offset = 0;
    assert_int_equal(console_get(&c, &offset, buf, sizeof buf, &end), 8);
    assert_int_equal(offset, 4);
    assert_memory_equal(buf, "efghijkl", 8);
    console_fini(&c);
}

/* Protects: a reader beyond the end, also at the end of 64 bits, gets nothing and is put right. */
static void beyond_the_end(void **state)
{
    struct console c;
    uint8_t buf[4];
    uint64_t offset = UINT64_MAX, end;

    (void)state;
    console_init(&c, 8);
    assert_int_equal(console_get(&c, &offset, buf, sizeof buf, &end), 0);
    assert_int_equal(offset, 0);
    console_put(&c, (const uint8_t *)"xy", 2);
    offset = UINT64_MAX;
    assert_int_equal(console_get(&c, &offset, buf, sizeof buf, &end), 0);
    assert_int_equal(offset, 2);
    console_fini(&c);
}

/* Protects: one write larger than the buffer leaves its end. */
static void larger_than_the_buffer(void **state)
{
    struct console c;
    uint8_t buf[8];
    uint64_t offset = 0, end;

    (void)state;
    console_init(&c, 4);
    console_put(&c, (const uint8_t *)"0123456789", 10);
    assert_int_equal(console_get(&c, &offset, buf, sizeof buf, &end), 4);
    assert_memory_equal(buf, "6789", 4);
    assert_int_equal(offset, 6);
    assert_int_equal(end, 10);
    console_fini(&c);
}

static void say(struct console *c, const char *text)
{
    console_put(c, (const uint8_t *)text, strlen(text));
}

/* Protects: a panic's line is heard wherever the writes are cut, the first one counts, a new life
 * knows nothing of it. */
static void hears_a_panic(void **state)
{
    struct console c;
    char why[CONSOLE_PANIC_MAX], longer[300];

    (void)state;
    console_init(&c, 4096);
    say(&c, "Kernel panic - not sync\nKernel panicKernel panic - not syncing");
    assert_false(console_panic(&c, why));
    assert_string_equal(why, "");
    say(&c, ": ");
    say(&c, "VFS: no\x07");
    say(&c, " root\r\n more\nKernel panic - not syncing: second\n");
    assert_true(console_panic(&c, why));
    assert_string_equal(why, "VFS: no root");
    console_forget(&c);
    assert_false(console_panic(&c, why));
    say(&c, "Kernel panic - not syncing: \n");
    assert_true(console_panic(&c, why));
    assert_string_equal(why, "");
    console_forget(&c);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    say(&c, "Kernel panic - not syncing: ");
    say(&c, longer);
    assert_true(console_panic(&c, why));
    assert_int_equal(strlen(why), CONSOLE_PANIC_MAX - 1);
    console_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offsets_survive_wrapping),
        cmocka_unit_test(beyond_the_end),
        cmocka_unit_test(larger_than_the_buffer),
        cmocka_unit_test(hears_a_panic),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
