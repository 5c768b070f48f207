/* Many VMs: swaps of strategies under churn, and what an idle VM costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "client.h"

#define MIB      (UINT64_C(1) << 20)
#define SWAPS    200
#define LIVE     24
#define IDLE     2000
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct core_proc core;
static struct client c;

static int setup(void **state)
{
    (void)state;
    return core_open(&core, &c, "512M");
}

static int teardown(void **state)
{
    (void)state;
    return core_close(&core, &c);
}

static const char *const teardowns[] = {"scan",    "skip",     "present", "single",
                                        "tracked", "deferred", "arena"};
static const char *const allocators[] = {"buddy-page", "buddy-chunk", "buddy-lazy", "bitmap"};

/* One VM slot: whatever is in it goes on to its next stage. */
static void churn(uint32_t *id, unsigned slot, unsigned round)
{
    static const char *const guests[] = {"hello.elf", "loop.elf", "hello-pvh.elf"};
    struct mf_vm_info info;
    char name[24];

    if (*id == 0) {
        snprintf(name, sizeof name, "churn-%u-%u", slot, round);
        assert_int_equal(vm_launch(&c, name, (4 + slot % 8) * MIB, guests[(slot + round) % 3], "",
                                   round % 2 ? teardowns[(slot + round) % COUNT(teardowns)] : NULL,
                                   0, id),
                         MF_OK);
        return;
    }
    assert_true(vm_info(&c, *id, &info));
    if (info.state == MF_VM_SHUTOFF) {
        assert_int_equal(info.end.reason == MF_END_POWEROFF || info.end.reason == MF_END_DESTROYED,
                         true);
        assert_int_equal(vm_remove(&c, *id), MF_OK);
        *id = 0;
    } else if (info.state == MF_VM_RUNNING && (slot + round) % 4 == 0) {
        enum mf_status st = vm_do(&c, MF_CALL_VM_DESTROY, *id);

        assert_true(st == MF_OK || st == MF_E_STATE);
    } else {
        assert_int_not_equal(info.state, MF_VM_CRASHED);
    }
}

/* Protects: 200 swaps of the allocator and 200 of teardowns while VMs come and go: no frame is lost
 * and none is given twice. */
static void swaps_under_churn(void **state)
{
    uint32_t ids[LIVE] = {0};
    struct mf_reply_heap_info heap;
    struct mf_reply_heap_audit audit;

    (void)state;
    for (unsigned i = 0; i < SWAPS; i++) {
        unsigned victim = i % LIVE;

        for (unsigned slot = i % 2; slot < LIVE; slot += 2)
            churn(&ids[slot], slot, i);
        assert_int_equal(select_allocator(&c, allocators[i % COUNT(allocators)]), MF_OK);
        assert_int_equal(select_teardown(&c, 0, teardowns[i % COUNT(teardowns)]), MF_OK);
        if (ids[victim]) {
            enum mf_status st =
                select_teardown(&c, ids[victim], teardowns[(i / 3) % COUNT(teardowns)]);

            assert_true(st == MF_OK || st == MF_E_STATE);
        }
        if (i % 50 == 49) {
            assert_true(heap_audit(&c, &audit));
            assert_int_equal(audit.overlaps, 0);
            assert_int_equal(audit.bad_records, 0);
        }
    }
    for (unsigned slot = 0; slot < LIVE; slot++) {
        struct mf_vm_info info;

        if (!ids[slot])
            continue;
        vm_do(&c, MF_CALL_VM_DESTROY, ids[slot]);
        assert_true(vm_wait_off(&c, ids[slot], &info));
        assert_int_equal(vm_remove(&c, ids[slot]), MF_OK);
    }
    assert_true(heap_is_whole(&c));
    assert_true(heap_info(&c, &heap));
    assert_true(heap.swaps >= SWAPS - 1);
}

/* Protects: 2,000 idle VMs at once cost less than 256 KiB each beyond the pages they touched, no
 * CPU and no thread; all of it comes back. */
static void idle_vms(void **state)
{
    static uint32_t ids[IDLE];
    uint64_t before, after, each;
    struct mf_vm_info info;
    struct mf_reply_host_info h[2];
    struct mf_args_none none = {0};
    uint64_t touched = 0;
    int fds;

    (void)state;
    before = core_rss(&core);
    fds = core_fds(&core);
    for (unsigned i = 0; i < IDLE; i++) {
        char name[16];

        snprintf(name, sizeof name, "idle-%u", i);
        assert_int_equal(vm_launch(&c, name, 16 * MIB, "idle.elf", "", NULL, 0, &ids[i]), MF_OK);
    }
    for (unsigned i = 0; i < IDLE; i++) {
        do
            assert_true(vm_info(&c, ids[i], &info));
        while (!info.halted);
        touched += (info.frames_ram + info.frames_table) * MF_PAGE_SIZE;
    }
    after = core_rss(&core);
    each = (after - before - (after - before > touched ? touched : 0)) / IDLE;
    print_message("an idle VM: %llu bytes of the core beyond %llu of guest pages and tables\n",
                  (unsigned long long)each, (unsigned long long)(touched / IDLE));
    if (!getenv("MAYFLY_TEST_SANITIZED"))
        assert_true(each < 256 * 1024);
    assert_int_equal(core_fds(&core), fds);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(client_call(&c, MF_CALL_HOST_INFO, &none, sizeof none, NULL, 0, NULL, 0),
                         MF_OK);
        memcpy(&h[i], client_body(&c), sizeof h[i]);
        usleep(100000);
    }
    assert_int_equal(h[0].vms_running, IDLE);
    assert_true(h[0].slices == h[1].slices);
    for (unsigned i = 0; i < IDLE; i++)
        assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, ids[i]), MF_OK);
    for (unsigned i = 0; i < IDLE; i++) {
        assert_true(vm_wait_off(&c, ids[i], &info));
        assert_int_equal(vm_remove(&c, ids[i]), MF_OK);
    }
    assert_true(heap_is_whole(&c));
}

/* Protects: 10,000 VMs can be registered; looking one up does not get slower with it. */
static void ten_thousand_registered(void **state)
{
    enum { N = 10000 };
    static uint32_t ids[N];
    struct mf_vm_info info;

    (void)state;
    for (unsigned i = 0; i < N; i++) {
        char name[16];

        snprintf(name, sizeof name, "reg-%u", i);
        assert_int_equal(vm_new(&c, name, 16 * MIB, NULL, 0, &ids[i]), MF_OK);
    }
    for (unsigned i = 0; i < N; i += 97) {
        assert_true(vm_info(&c, ids[i], &info));
        assert_int_equal(info.id, ids[i]);
    }
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(vm_remove(&c, ids[i]), MF_OK);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(swaps_under_churn),
        T(idle_vms),
        T(ten_thousand_registered),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
