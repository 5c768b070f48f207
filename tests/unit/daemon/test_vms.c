/* The table of VMs and what the core's events do to it. No core is connected: calls fail at once.
 */
#include "tests/unit/daemon/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/vms.h"

struct world {
    struct vms v;
    struct link l;
    struct hub h;
    unsigned relists;
    uint32_t moves[VMS_EARLY + 16]; /* by id: what the core has counted */
};

static void relist(void *arg)
{
    ((struct world *)arg)->relists++;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    hub_init(&w->h);
    vms_init(&w->v, &w->l, &w->h);
    w->v.relist = relist;
    w->v.relist_arg = w;
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;

    vms_fini(&w->v);
    hub_fini(&w->h);
    free(w);
    return 0;
}

static struct vm *add(struct world *w, const char *name, bool defined)
{
    struct vm_def d;

    def_init(&d, DEF_DEFINE);
    snprintf(d.name, sizeof d.name, "%s", name);
    uuid_make(d.uuid, false);
    struct vm *vm = vms_add(&w->v, &d);
    vm->defined = defined;
    return vm;
}

static void event(struct world *w, enum mf_event_nr nr, uint32_t id, uint64_t a, uint64_t b)
{
    struct mf_event e = {.vm = id, .a = a, .b = b};

    if (nr == MF_EVENT_VM_STATE)
        e.moves = ++w->moves[id];
    vms_event(&w->v, nr, &e);
}

static struct mf_vm_info info_of(const struct vm *vm, uint32_t id, uint32_t state)
{
    struct mf_vm_info i = {.id = id, .state = state, .memory = 65536, .vcpus = 1, .created_at = 1};

    snprintf(i.name, sizeof i.name, "%s", vm->def.name);
    memcpy(i.uuid, vm->def.uuid, 16);
    return i;
}

/* Name, uuid and number lead to the same VM; a hidden one is found by nobody who asks. */
static void test_find(void **state)
{
    struct world *w = *state;
    struct vm *a = add(w, "a", true);
    char uuid[37];

    for (int i = 0; i < 500; i++) {
        char name[16];
        snprintf(name, sizeof name, "vm-%d", i);
        vms_set_id(&w->v, add(w, name, true), (uint32_t)(i + 4096));
    }
    snprintf(uuid, sizeof uuid,
             "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", a->def.uuid[0],
             a->def.uuid[1], a->def.uuid[2], a->def.uuid[3], a->def.uuid[4], a->def.uuid[5],
             a->def.uuid[6], a->def.uuid[7], a->def.uuid[8], a->def.uuid[9], a->def.uuid[10],
             a->def.uuid[11], a->def.uuid[12], a->def.uuid[13], a->def.uuid[14], a->def.uuid[15]);
    assert_ptr_equal(vms_find(&w->v, "a"), a);
    assert_ptr_equal(vms_find(&w->v, uuid), a);
    vms_set_id(&w->v, a, 7);
    assert_ptr_equal(vms_find_id(&w->v, 7), a);
    assert_string_equal(vms_find_id(&w->v, 4096 + 499)->def.name, "vm-499");
    assert_null(vms_find_id(&w->v, 8));
    a->hidden = true;
    assert_null(vms_find(&w->v, "a"));
    assert_ptr_equal(vms_find_name(&w->v, "a"), a);
    vms_remove(&w->v, a);
    assert_null(vms_find_name(&w->v, "a"));
    assert_null(vms_find_id(&w->v, 7));
    assert_int_equal(w->v.count, 500);
}

struct counter {
    struct vm_waiter w;
    struct vm *vm;
    unsigned n;
    bool leaves;
};

static void count(struct vm_waiter *w)
{
    struct counter *c = (struct counter *)w;

    c->n++;
    if (c->leaves)
        vm_unwait(c->vm, w);
}

/* Events about a VM that is being made are kept until its number is known, in their order. */
static void test_early_events(void **state)
{
    struct world *w = *state;
    struct vm *a = add(w, "a", false);
    struct counter c = {.w = {.changed = count}, .vm = a};

    a->busy = true;
    vm_wait(a, &c.w);
    vms_creating(&w->v);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_SHUTOFF, MF_VM_STARTING);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_STARTING, MF_VM_RUNNING);
    event(w, MF_EVENT_VM_STATE, 8, MF_VM_SHUTOFF, MF_VM_STARTING);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_RUNNING, MF_VM_STOPPING);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_STOPPING, MF_VM_SHUTOFF);
    event(w, MF_EVENT_VM_ENDED, 9, MF_END_POWEROFF, 0);
    assert_int_equal(c.n, 0);
    vms_set_id(&w->v, a, 9);
    assert_int_equal(a->state, MF_VM_SHUTOFF);
    assert_true(a->ended);
    assert_int_equal(c.n, 5);
    assert_int_equal(w->v.nr_early, 1);
    vms_created(&w->v);
    assert_int_equal(w->v.nr_early, 0);
    assert_int_equal(w->relists, 0);
    vm_unwait(a, &c.w);
    a->busy = false;
}

/*
 * An answer made before the last events changes no state; what it says is shown to who asked, and
 * only until the next event. One that is ahead, events being lost, moves the state.
 */
static void test_answers_and_events(void **state)
{
    struct world *w = *state;
    struct vm *a = add(w, "a", true);
    struct counter c = {.w = {.changed = count}, .vm = a};
    struct mf_vm_info old, ahead;

    vms_set_id(&w->v, a, 9);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_SHUTOFF, MF_VM_STARTING);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_STARTING, MF_VM_RUNNING);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_RUNNING, MF_VM_STOPPING);
    old = info_of(a, 9, MF_VM_RUNNING);
    old.moves = 2;
    vm_wait(a, &c.w);
    vm_set_info(&w->v, a, &old);
    assert_int_equal(a->state, MF_VM_STOPPING);
    assert_int_equal(vm_shown_state(a), MF_VM_RUNNING);
    assert_int_equal(c.n, 0);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_STOPPING, MF_VM_SHUTOFF);
    assert_int_equal(a->state, MF_VM_SHUTOFF);
    assert_int_equal(vm_shown_state(a), MF_VM_SHUTOFF);
    assert_int_equal(c.n, 1);
    ahead = info_of(a, 9, MF_VM_PAUSED);
    ahead.moves = 7;
    vm_set_info(&w->v, a, &ahead);
    assert_int_equal(a->state, MF_VM_PAUSED);
    assert_int_equal(c.n, 2);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_SHUTOFF, MF_VM_STARTING); /* the fifth: known already */
    assert_int_equal(a->state, MF_VM_PAUSED);
    vm_unwait(a, &c.w);
}

/* The count of state changes may wrap, and a daemon may come to know a VM at any count. */
static void test_moves_wrap(void **state)
{
    struct world *w = *state;
    struct vm *a = add(w, "a", true);
    struct mf_vm_info i = info_of(a, 9, MF_VM_RUNNING);

    vms_set_id(&w->v, a, 9);
    i.moves = UINT32_MAX;
    vm_set_info(&w->v, a, &i);
    assert_int_equal(a->state, MF_VM_RUNNING);
    event(w, MF_EVENT_VM_STATE, 9, MF_VM_RUNNING, MF_VM_PAUSED); /* counted as 1 */
    assert_int_equal(a->state, MF_VM_PAUSED);
    vm_set_info(&w->v, a, &i);
    assert_int_equal(a->state, MF_VM_PAUSED);
}

/* More early events than fit are not forgotten: the list is asked for. */
static void test_early_overflow(void **state)
{
    struct world *w = *state;

    vms_creating(&w->v);
    for (uint32_t i = 0; i < VMS_EARLY + 10; i++)
        event(w, MF_EVENT_VM_STATE, i + 1, MF_VM_SHUTOFF, MF_VM_STARTING);
    vms_created(&w->v);
    assert_int_equal(w->relists, 1);
}

/* The list of a core that ran on makes definitions and strangers known, and drops what is gone. */
static void test_reconcile(void **state)
{
    struct world *w = *state;
    struct vm *a = add(w, "a", true);
    struct vm *b = add(w, "b", true);
    struct vm *t = add(w, "gone", false);
    struct vm_def other = {.name = "stranger", .uuid = {9}};
    struct vm model = {.def = other};

    vms_set_id(&w->v, b, 5);
    vms_set_id(&w->v, t, 6);
    b->state = MF_VM_RUNNING;
    vms_reconcile_begin(&w->v);
    struct mf_vm_info i = info_of(a, 3, MF_VM_PAUSED);
    vms_reconcile(&w->v, &i);
    i = info_of(&model, 4, MF_VM_RUNNING);
    vms_reconcile(&w->v, &i);
    vms_reconcile_end(&w->v);
    assert_int_equal(a->id, 3);
    assert_int_equal(a->state, MF_VM_PAUSED);
    assert_int_equal(b->id, 0);
    assert_int_equal(b->state, MF_VM_SHUTOFF);
    assert_null(vms_find(&w->v, "gone"));
    struct vm *s = vms_find(&w->v, "stranger");
    assert_non_null(s);
    assert_false(s->defined);
    assert_int_equal(s->state, MF_VM_RUNNING);
}

/* A VM of the core with a defined name but another uuid is another VM, and does not take its place.
 */
static void test_name_clash(void **state)
{
    struct world *w = *state;
    struct vm *a = add(w, "a", true);
    struct mf_vm_info i = info_of(a, 3, MF_VM_RUNNING);

    i.uuid[0] ^= 1;
    vms_reconcile_begin(&w->v);
    vms_reconcile(&w->v, &i);
    vms_reconcile_end(&w->v);
    assert_int_equal(a->id, 0);
    assert_int_equal(a->state, MF_VM_SHUTOFF);
}

/* A dead core crashes what ran in it; definitions stay, strangers go, what was off stays off. */
static void test_core_lost(void **state)
{
    struct world *w = *state;
    struct vm *run = add(w, "run", true);
    struct vm *off = add(w, "off", true);
    struct vm *never = add(w, "never", true);
    struct vm *t = add(w, "stranger", false);
    struct counter c = {.w = {.changed = count}, .vm = run, .leaves = true};

    vms_set_id(&w->v, run, 1);
    vms_set_id(&w->v, off, 2);
    vms_set_id(&w->v, t, 3);
    run->state = MF_VM_PAUSED;
    t->state = MF_VM_RUNNING;
    vm_wait(run, &c.w);
    vms_core_lost(&w->v);
    assert_int_equal(c.n, 1);
    assert_int_equal(run->state, MF_VM_CRASHED);
    assert_int_equal(run->info.end.reason, MF_END_CORE_LOST);
    assert_int_equal(run->id, 0);
    assert_int_equal(off->state, MF_VM_SHUTOFF);
    assert_int_equal(never->state, MF_VM_SHUTOFF);
    assert_null(vms_find(&w->v, "stranger"));
    assert_int_equal(w->v.count, 3);
}

/* Uuids of runs are told from all others. */
static void test_uuids(void **state)
{
    uint8_t a[16];
    uint8_t b[16];

    (void)state;
    for (int i = 0; i < 1000; i++) {
        uuid_make(a, true);
        uuid_make(b, false);
        assert_true(uuid_is_run(a));
        assert_false(uuid_is_run(b));
        assert_memory_not_equal(a, b, 16);
    }
}

/* Every reason has a word of its own; a number from elsewhere has one, too. */
static void test_words(void **state)
{
    (void)state;
    for (uint32_t i = 0; i <= MF_END_PANIC; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_string_not_equal(end_reason_word(i), end_reason_word(k));
    assert_non_null(end_reason_word(999));
    assert_string_equal(end_reason_word(MF_END_CORE_LOST), "core-lost");
    assert_string_equal(vm_state_text(MF_VM_STOPPING), "stopping");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_find, setup, teardown),
        cmocka_unit_test_setup_teardown(test_early_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answers_and_events, setup, teardown),
        cmocka_unit_test_setup_teardown(test_moves_wrap, setup, teardown),
        cmocka_unit_test_setup_teardown(test_early_overflow, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reconcile, setup, teardown),
        cmocka_unit_test_setup_teardown(test_name_clash, setup, teardown),
        cmocka_unit_test_setup_teardown(test_core_lost, setup, teardown),
        cmocka_unit_test(test_uuids),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
