#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "hv/vm/state.h"

/* Protects: of all pairs of states exactly these are transitions. */
static void every_pair(void **state)
{
    static const char legal[VM_STATES][VM_STATES + 1] = {
        /*           off  starting running paused stopping crashed */
        [MF_VM_SHUTOFF] = ".x....", [MF_VM_STARTING] = "..x.x.", [MF_VM_RUNNING] = "...xx.",
        [MF_VM_PAUSED] = "..x.x.",  [MF_VM_STOPPING] = "xx...x", [MF_VM_CRASHED] = ".x....",
    };

    (void)state;
    for (unsigned from = 0; from < VM_STATES; from++)
        for (unsigned to = 0; to < VM_STATES; to++)
            assert_int_equal(vm_state_legal(from, to), legal[from][to] == 'x');
    for (unsigned s = 0; s < VM_STATES; s++) {
        assert_false(vm_state_legal(s, VM_STATES));
        assert_false(vm_state_legal(VM_STATES, s));
        assert_false(vm_state_legal((enum mf_vm_state)UINT32_MAX, s));
    }
}

/* Protects: from every state that is not off, stopping and then off can be reached. */
static void stopping_is_always_possible(void **state)
{
    (void)state;
    for (unsigned s = 0; s < VM_STATES; s++)
        if (!vm_state_off(s) && s != MF_VM_STOPPING)
            assert_true(vm_state_legal(s, MF_VM_STOPPING));
    assert_true(vm_state_legal(MF_VM_STOPPING, MF_VM_SHUTOFF));
    assert_true(vm_state_legal(MF_VM_STOPPING, MF_VM_CRASHED));
}

/* Protects: the words that logs and messages use, and that no number makes them fail. */
static void words(void **state)
{
    (void)state;
    assert_string_equal(vm_state_word(MF_VM_SHUTOFF), "shutoff");
    assert_string_equal(vm_state_word(MF_VM_CRASHED), "crashed");
    assert_string_equal(vm_state_word(99), "?");
}

/* Protects: which ends are crashes. */
static void crashes(void **state)
{
    (void)state;
    assert_true(vm_reason_crashed(MF_END_TRIPLE_FAULT));
    assert_true(vm_reason_crashed(MF_END_BAD_ACCESS));
    assert_true(vm_reason_crashed(MF_END_ENGINE));
    assert_true(vm_reason_crashed(MF_END_NO_MEMORY));
    assert_false(vm_reason_crashed(MF_END_POWEROFF));
    assert_false(vm_reason_crashed(MF_END_DESTROYED));
    assert_false(vm_reason_crashed(MF_END_DEBUG_EXIT));
    assert_false(vm_reason_crashed(MF_END_SHUTDOWN));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair),
        cmocka_unit_test(stopping_is_always_possible),
        cmocka_unit_test(words),
        cmocka_unit_test(crashes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
