/* Machine memory as its users steer it: claims, large pages, frames out of use, scrubbing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "client.h"

#define MIB      (UINT64_C(1) << 20)
#define FRAMES   UINT64_C(16384) /* of the core: 64 MiB */
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct core_proc core;
static struct client c;

static int setup(void **state)
{
    (void)state;
    return core_open(&core, &c, "64M");
}

static int teardown(void **state)
{
    (void)state;
    return core_close(&core, &c);
}

static void end(uint32_t id)
{
    struct mf_vm_info info;

    vm_do(&c, MF_CALL_VM_DESTROY, id);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(vm_remove(&c, id), MF_OK);
}

static uint64_t balloon(uint32_t vm, uint32_t op, uint64_t first, uint64_t frames)
{
    struct mf_args_balloon a = {.vm = vm, .op = op, .first = first, .frames = frames};

    assert_int_equal(client_call(&c, MF_CALL_VM_BALLOON, &a, sizeof a, NULL, 0, NULL, 0), MF_OK);
    return ((const struct mf_reply_balloon *)client_body(&c))->frames;
}

static enum mf_status range(unsigned nr, uint64_t first, uint64_t frames,
                            struct mf_reply_heap_range *out)
{
    struct mf_args_heap_range a = {first, frames};
    enum mf_status st = client_call(&c, nr, &a, sizeof a, NULL, 0, NULL, 0);

    if (!st && out)
        memcpy(out, client_body(&c), sizeof *out);
    return st;
}

/* What is left of the VM's claim is what the heap counts, at a moment when the guest takes none. */
static void claim_is_counted(uint32_t id, struct mf_vm_info *info)
{
    struct mf_reply_heap_info heap;

    assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
    assert_true(vm_info(&c, id, info) && heap_info(&c, &heap));
    assert_int_equal(heap.claimed, info->claim_left);
    assert_int_equal(vm_do(&c, MF_CALL_VM_RESUME, id), MF_OK);
}

/* Protects: a claim is kept whatever others do, counted while it is not taken, refused with the
 * numbers when it cannot be kept, and gone with the VM. */
static void claims(void **state)
{
    struct mf_reply_heap_info heap;
    struct mf_vm_info info;
    uint32_t id, greedy, big;

    (void)state;
    assert_int_equal(
        vm_launch(&c, "claims", 16 * MIB, "writer.elf", "pages=2048", NULL, MF_VM_CLAIM, &id),
        MF_OK);
    claim_is_counted(id, &info);
    assert_true(info.claim_left > 3900 && info.claim_left < 4096 + 64);
    assert_int_equal(vm_launch(&c, "greedy", 64 * MIB, "loop.elf", "", NULL, 0, &greedy), MF_OK);
    struct mf_args_balloon all = {.vm = greedy, .op = MF_BALLOON_TAKE, .frames = FRAMES};
    assert_int_equal(client_call(&c, MF_CALL_VM_BALLOON, &all, sizeof all, NULL, 0, NULL, 0),
                     MF_E_NO_MEMORY);
    assert_int_equal(balloon(id, MF_BALLOON_TAKE, 1024, 3072), 3072);
    assert_true(vm_wait_console(&c, id, "ready"));
    claim_is_counted(id, &info);
    assert_true(vm_info(&c, id, &info));
    assert_int_equal(info.state, MF_VM_RUNNING);
    assert_int_equal(vm_launch(&c, "big", 32 * MIB, "loop.elf", "", NULL, MF_VM_CLAIM, &big),
                     MF_E_NO_MEMORY);
    assert_string_equal(c.err.field, "memory");
    assert_non_null(strstr(c.err.text, "8232 frames"));
    assert_non_null(strstr(c.err.text, "are free"));
    assert_int_equal(vm_remove(&c, big), MF_OK);
    end(greedy);
    assert_int_equal(vm_launch(&c, "big", 32 * MIB, "loop.elf", "", NULL, MF_VM_CLAIM, &big),
                     MF_OK);
    end(big);
    end(id);
    assert_true(heap_is_whole(&c));
    assert_true(heap_info(&c, &heap));
    assert_int_equal(heap.claimed, 0);
}

/* Protects: a start that finds the memory of a VM that just ended on its way back waits for it. */
static void claim_after_claim(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 10; i++) {
        uint32_t first, second;

        assert_int_equal(
            vm_launch(&c, "first", 48 * MIB, "loop.elf", "", NULL, MF_VM_CLAIM, &first), MF_OK);
        balloon(first, MF_BALLOON_TAKE, 1024, 11000);
        assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, first), MF_OK);
        assert_int_equal(
            vm_launch(&c, "second", 48 * MIB, "loop.elf", "", NULL, MF_VM_CLAIM, &second), MF_OK);
        end(second);
        end(first);
    }
    assert_true(heap_is_whole(&c));
}

/* Protects: with large pages a touched page brings 2 MiB in one leaf; ballooning a part splits it,
 * in every strategy, and the guest's data beside the part stays. */
static void large_pages(void **state)
{
    static const char *const strategies[] = {"scan", "skip", "present", "single", "tracked"};

    (void)state;
    for (unsigned i = 0; i < COUNT(strategies); i++) {
        struct mf_vm_info info;
        uint32_t id;

        assert_int_equal(vm_launch(&c, "large", 16 * MIB, "balloon.elf", "", strategies[i],
                                   MF_VM_LARGE_PAGES, &id),
                         MF_OK);
        assert_true(vm_wait_off(&c, id, &info));
        if (info.end.reason != MF_END_GUEST_CALL || info.end.code != 0)
            fail_msg("%s: %s\n%s", strategies[i], info.end.detail, vm_console(&c, id));
        assert_int_equal(vm_remove(&c, id), MF_OK);
        assert_int_equal(vm_launch(&c, "large", 16 * MIB, "writer.elf", "pages=1", strategies[i],
                                   MF_VM_LARGE_PAGES, &id),
                         MF_OK);
        assert_true(vm_wait_console(&c, id, "ready"));
        balloon(id, MF_BALLOON_TAKE, 2048, 2048);
        assert_true(vm_info(&c, id, &info));
        assert_int_equal(info.leaves[1], 4);
        assert_int_equal(balloon(id, MF_BALLOON_GIVE, 2048 + 1, 1024), 1024);
        assert_true(vm_info(&c, id, &info));
        assert_int_equal(info.leaves[1], 1);
        assert_true(info.leaves[0] >= 512);
        end(id);
        assert_true(heap_is_whole(&c));
    }
}

/* Protects: frames out of use are given to nobody and counted; a frame in use goes when its VM
 * ends; all of it comes back; a swap of the allocator keeps them out. */
static void out_of_use(void **state)
{
    static const char *const allocators[] = {"buddy-page", "buddy-chunk", "buddy-lazy", "bitmap"};
    struct mf_reply_heap_range r;
    struct mf_reply_heap_info heap;
    struct mf_reply_heap_audit audit;
    uint32_t id;

    (void)state;
    for (unsigned i = 0; i < COUNT(allocators); i++) {
        assert_int_equal(select_allocator(&c, allocators[i]), MF_OK);
        assert_int_equal(vm_launch(&c, "uses", 16 * MIB, "loop.elf", "", NULL, 0, &id), MF_OK);
        balloon(id, MF_BALLOON_TAKE, 0, 4096);
        assert_int_equal(range(MF_CALL_HEAP_OFFLINE, 0, FRAMES, &r), MF_OK);
        assert_true(r.waiting >= 4096 && r.changed == FRAMES - r.waiting && !r.already);
        assert_int_equal(range(MF_CALL_HEAP_OFFLINE, 5, 100, &r), MF_OK);
        assert_true(!r.changed && r.waiting + r.already == 100);
        assert_true(heap_info(&c, &heap));
        assert_true(heap.free == 0 && heap.offline + heap.offline_waiting == FRAMES);
        assert_int_equal(select_allocator(&c, allocators[(i + 1) % COUNT(allocators)]), MF_OK);
        end(id);
        assert_true(heap_info(&c, &heap));
        assert_true(heap.offline == FRAMES && !heap.offline_waiting && !heap.free);
        assert_true(heap_audit(&c, &audit));
        assert_true(audit.offline == FRAMES && !audit.lost && !audit.bad_records);
        assert_int_equal(vm_launch(&c, "none", 16 * MIB, "loop.elf", "", NULL, 0, &id),
                         MF_E_NO_MEMORY);
        assert_int_equal(vm_remove(&c, id), MF_OK);
        assert_int_equal(range(MF_CALL_HEAP_ONLINE, 0, FRAMES, &r), MF_OK);
        assert_int_equal(r.changed, FRAMES);
        assert_true(heap_is_whole(&c));
    }
}

/* Protects: bad ranges and policies are refused by name and change nothing. */
static void bad_input(void **state)
{
    static const uint64_t bad[][2] = {{0, 0},          {0, FRAMES + 1},       {FRAMES, 1},
                                      {FRAMES - 1, 2}, {UINT64_MAX, 1},       {UINT64_MAX, 2},
                                      {1, UINT64_MAX}, {0, UINT64_C(1) << 63}};
    struct mf_args_heap_scrub a = {.policy = 3};
    struct mf_reply_heap_info heap;

    (void)state;
    for (unsigned i = 0; i < COUNT(bad); i++)
        for (unsigned nr = MF_CALL_HEAP_OFFLINE; nr <= MF_CALL_HEAP_ONLINE; nr++) {
            assert_int_equal(range(nr, bad[i][0], bad[i][1], NULL), MF_E_RANGE);
            assert_true(c.err.field[0] == 'f' && c.err.text[0]);
        }
    assert_int_equal(client_call(&c, MF_CALL_HEAP_SCRUB, &a, sizeof a, NULL, 0, NULL, 0),
                     MF_E_RANGE);
    assert_string_equal(c.err.field, "policy");
    a = (struct mf_args_heap_scrub){.policy = 1, .reserved = 1};
    assert_int_equal(client_call(&c, MF_CALL_HEAP_SCRUB, &a, sizeof a, NULL, 0, NULL, 0),
                     MF_E_RESERVED);
    assert_true(heap_info(&c, &heap));
    assert_int_equal(heap.scrub, MF_SCRUB_BACKGROUND);
    assert_int_equal(heap.offline, 0);
}

/* Protects: under each policy a VM's memory comes back without its data reaching the next one, and
 * "free" leaves nothing dirty behind. */
static void scrub_policies(void **state)
{
    (void)state;
    for (uint32_t p = MF_SCRUB_BACKGROUND; p <= MF_SCRUB_ALLOC; p++) {
        struct mf_args_heap_scrub a = {.policy = p};
        struct mf_reply_heap_info heap;

        assert_int_equal(client_call(&c, MF_CALL_HEAP_SCRUB, &a, sizeof a, NULL, 0, NULL, 0),
                         MF_OK);
        assert_true(heap_info(&c, &heap));
        assert_int_equal(heap.scrub, p);
        for (unsigned i = 0; i < 6; i++) {
            char cmdline[64];
            struct mf_vm_info info;
            uint32_t id;

            snprintf(cmdline, sizeof cmdline, "pages=2048 seed=%u", i + 1);
            assert_int_equal(vm_launch(&c, "touch", 16 * MIB, "toucher.elf", cmdline, NULL, 0, &id),
                             MF_OK);
            do
                assert_true(vm_info(&c, id, &info));
            while (info.state == MF_VM_RUNNING && info.frames_ram < 1500);
            assert_int_equal(info.state, MF_VM_RUNNING);
            end(id);
        }
        assert_true(heap_info(&c, &heap));
        assert_true(p != MF_SCRUB_FREE || heap.dirty == 0);
        assert_true(heap_is_whole(&c));
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(claims),     T(claim_after_claim), T(large_pages),
        T(out_of_use), T(bad_input),         T(scrub_policies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
