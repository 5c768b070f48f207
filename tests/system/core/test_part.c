/* Ranges of a live VM's memory: ballooning by control and guest hypercall, the log of writes. */
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
#define BASE     1024u /* first page of the guests' playground: 4 MiB */
#define PAGES    512u
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct core_proc core;
static struct client c, other;

static int setup(void **state)
{
    (void)state;
    return core_open(&core, &c, "256M") || !client_connect(&other, &core) ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    client_close(&other);
    return core_close(&core, &c);
}

static const char *const strategies[] = {"scan", "skip", "present", "single", "tracked"};

/* ---- calls */

static enum mf_status balloon(struct client *cl, uint32_t vm, uint32_t op, uint64_t first,
                              uint64_t frames, struct mf_reply_balloon *out)
{
    struct mf_args_balloon a = {.vm = vm, .op = op, .first = first, .frames = frames};
    enum mf_status st = client_call(cl, MF_CALL_VM_BALLOON, &a, sizeof a, NULL, 0, NULL, 0);

    if (!st && out)
        memcpy(out, client_body(cl), sizeof *out);
    return st;
}

static uint64_t given(uint32_t vm, uint64_t first, uint64_t frames)
{
    struct mf_reply_balloon b;

    assert_int_equal(balloon(&c, vm, MF_BALLOON_GIVE, first, frames, &b), MF_OK);
    return b.frames;
}

static uint64_t taken(uint32_t vm, uint64_t first, uint64_t frames)
{
    struct mf_reply_balloon b;

    assert_int_equal(balloon(&c, vm, MF_BALLOON_TAKE, first, frames, &b), MF_OK);
    return b.frames;
}

static enum mf_status dirty_log(uint32_t vm, uint32_t on)
{
    struct mf_args_dirty_log a = {.vm = vm, .on = on};

    return client_call(&c, MF_CALL_VM_DIRTY_LOG, &a, sizeof a, NULL, 0, NULL, 0);
}

static enum mf_status fetch(uint32_t vm, uint64_t first, uint64_t frames, uint64_t *dirty,
                            uint8_t *pages)
{
    struct mf_args_dirty_fetch a = {.vm = vm, .first = first, .frames = frames};
    enum mf_status st = client_call(&c, MF_CALL_VM_DIRTY_FETCH, &a, sizeof a, NULL, 0, NULL, 0);
    const struct mf_reply_dirty_fetch *r = client_body(&c);
    const uint64_t *bits = (const uint64_t *)(const void *)(r + 1);
    uint64_t set = 0;

    if (st)
        return st;
    assert_int_equal(r->first, first);
    assert_int_equal(r->frames, frames);
    assert_int_equal(r->words, (frames + 63) / 64);
    assert_int_equal(c.reply_len, sizeof *r + r->words * 8);
    for (uint64_t i = 0; i < r->words * 64; i++)
        if (bits[i / 64] >> i % 64 & 1) {
            assert_true(i < frames);
            if (pages)
                pages[i]++;
            set++;
        }
    assert_int_equal(set, r->dirty);
    if (dirty)
        *dirty = set;
    return MF_OK;
}

static void type(uint32_t vm, char what)
{
    struct mf_args_console_write a = {.vm = vm, .count = 1};

    assert_int_equal(client_call(&c, MF_CALL_CONSOLE_WRITE, &a, sizeof a, &what, 1, NULL, 0),
                     MF_OK);
}

static void say_and_wait(uint32_t vm, char what, const char *answer, unsigned round)
{
    char text[32];

    type(vm, what);
    snprintf(text, sizeof text, "%s %u\n", answer, round);
    assert_true(vm_wait_console(&c, vm, text));
}

static uint32_t launch_writer(const char *strategy, const char *cmdline)
{
    uint32_t id;

    assert_int_equal(vm_launch(&c, "writer", 32 * MIB, "writer.elf", cmdline, strategy, 0, &id),
                     MF_OK);
    assert_true(vm_wait_console(&c, id, "ready"));
    return id;
}

static void end(uint32_t id)
{
    struct mf_vm_info info;

    vm_do(&c, MF_CALL_VM_DESTROY, id);
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(vm_remove(&c, id), MF_OK);
    assert_true(heap_is_whole(&c));
}

/* ---- ballooning */

/* Protects: a guest gives back and takes by hypercall, under each strategy: zero where it gave,
 * nothing lost beside it, bad ranges refused, code in such a page never stale. */
static void by_the_guest(void **state)
{
    struct mf_vm_info info;
    uint32_t id;

    (void)state;
    for (unsigned i = 0; i < COUNT(strategies); i++) {
        assert_int_equal(
            vm_launch(&c, "balloon", 16 * MIB, "balloon.elf", "code=5", strategies[i], 0, &id),
            MF_OK);
        assert_true(vm_wait_off(&c, id, &info));
        if (info.end.reason != MF_END_GUEST_CALL || info.end.code != 5)
            fail_msg("%s: %s\n%s", strategies[i], info.end.detail, vm_console(&c, id));
        assert_int_equal(vm_remove(&c, id), MF_OK);
        assert_true(heap_is_whole(&c));
    }
}

/* Protects: frames given back are the heap's when the call returns, and counted; taking brings
 * zeroed ones; running and paused VMs alike. */
static void by_control(void **state)
{
    struct mf_reply_heap_info before, after;
    struct mf_vm_info vm[2];

    (void)state;
    for (unsigned i = 0; i < COUNT(strategies); i++) {
        uint32_t id = launch_writer(strategies[i], "pages=512");

        say_and_wait(id, 'w', "round", 1);
        if (i % 2)
            assert_int_equal(vm_do(&c, MF_CALL_VM_PAUSE, id), MF_OK);
        assert_true(heap_info(&c, &before) && vm_info(&c, id, &vm[0]));
        assert_int_equal(given(id, BASE + 10, 300), 300);
        assert_true(heap_info(&c, &after) && vm_info(&c, id, &vm[1]));
        assert_true(before.used_ram == after.used_ram + 300);
        assert_int_equal(after.retired, 0);
        assert_true(vm[0].frames_ram == vm[1].frames_ram + 300);
        assert_int_equal(vm[1].frames_given, 300);
        assert_true(vm[1].leaves[0] == vm[1].frames_ram);
        assert_int_equal(given(id, BASE + 10, 300), 0);
        assert_int_equal(taken(id, BASE, 200), 190);
        assert_int_equal(taken(id, BASE, PAGES), 110);
        assert_int_equal(taken(id, BASE, PAGES), 0);
        assert_true(vm_info(&c, id, &vm[1]));
        assert_int_equal(vm[1].frames_taken, 300);
        assert_true(vm[0].frames_ram == vm[1].frames_ram);
        if (i % 2)
            assert_int_equal(vm_do(&c, MF_CALL_VM_RESUME, id), MF_OK);
        say_and_wait(id, 'w', "round", 2);
        say_and_wait(id, 'c', "checked", 2);
        end(id);
    }
}

/* Protects: ranges that are no RAM, wrap, are empty or too long, unknown VMs, wrong states: each is
 * refused, names its field and changes nothing. */
static void bad_input(void **state)
{
    static const struct {
        uint64_t first, frames;
        const char *field;
    } bad[] = {
        {0, 0, "frames"},
        {0, MF_PART_FRAMES_MAX + 1, "frames"},
        {0, UINT64_MAX, "frames"},
        {8192, 1, "first"},
        {8191, 2, "first"},
        {0, 8193, "first"},
        {UINT64_MAX, 1, "first"},
        {UINT64_MAX - 1, 2, "first"},
        {UINT64_C(1) << 52, 1, "first"},
        {(UINT64_C(1) << 52) - 1, 2, "first"},
        {UINT64_C(1) << 36, 1, "first"},
    };
    struct mf_args_dirty_fetch reserved = {.reserved = 1, .frames = 1};
    struct mf_vm_info before, after;
    uint32_t id = launch_writer(NULL, ""), off;

    (void)state;
    assert_int_equal(dirty_log(id, 1), MF_OK);
    assert_true(vm_info(&c, id, &before));
    for (unsigned i = 0; i < COUNT(bad); i++) {
        for (uint32_t op = MF_BALLOON_GIVE; op <= MF_BALLOON_TAKE; op++) {
            assert_int_equal(balloon(&c, id, op, bad[i].first, bad[i].frames, NULL), MF_E_RANGE);
            assert_string_equal(c.err.field, bad[i].field);
        }
        assert_int_equal(fetch(id, bad[i].first, bad[i].frames, NULL, NULL), MF_E_RANGE);
        assert_string_equal(c.err.field, bad[i].field);
    }
    assert_int_equal(balloon(&c, id, 0, 0, 1, NULL), MF_E_RANGE);
    assert_string_equal(c.err.field, "op");
    assert_int_equal(balloon(&c, id, 3, 0, 1, NULL), MF_E_RANGE);
    assert_int_equal(balloon(&c, 4711, MF_BALLOON_GIVE, 0, 1, NULL), MF_E_NOT_FOUND);
    assert_string_equal(c.err.field, "vm");
    assert_int_equal(dirty_log(4711, 1), MF_E_NOT_FOUND);
    assert_int_equal(dirty_log(4711, 0), MF_E_NOT_FOUND);
    assert_int_equal(dirty_log(id, 2), MF_E_RANGE);
    assert_string_equal(c.err.field, "on");
    assert_int_equal(fetch(4711, 0, 1, NULL, NULL), MF_E_NOT_FOUND);
    reserved.vm = id;
    assert_int_equal(
        client_call(&c, MF_CALL_VM_DIRTY_FETCH, &reserved, sizeof reserved, NULL, 0, NULL, 0),
        MF_E_RESERVED);
    assert_true(vm_info(&c, id, &after));
    assert_true(before.frames_ram == after.frames_ram && after.frames_given == 0);
    assert_int_equal(dirty_log(id, 1), MF_E_STATE);
    assert_int_equal(dirty_log(id, 0), MF_OK);
    assert_int_equal(dirty_log(id, 0), MF_E_STATE);
    assert_int_equal(fetch(id, 0, 1, NULL, NULL), MF_E_STATE);
    assert_int_equal(vm_new(&c, "off", 16 * MIB, NULL, 0, &off), MF_OK);
    assert_int_equal(balloon(&c, off, MF_BALLOON_GIVE, 0, 1, NULL), MF_E_STATE);
    assert_int_equal(balloon(&c, off, MF_BALLOON_TAKE, 0, 1, NULL), MF_E_STATE);
    assert_int_equal(dirty_log(off, 1), MF_E_STATE);
    assert_int_equal(vm_remove(&c, off), MF_OK);
    end(id);
}

/* Protects: while guests touch what is taken from them nobody ever sees another one's data or data
 * that was given back, whatever strategy is swapped in meanwhile. */
static void under_fire(void **state)
{
    uint32_t id[3];
    uint64_t frames = 0;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        char name[16], cmdline[64];

        snprintf(name, sizeof name, "touch-%u", i);
        snprintf(cmdline, sizeof cmdline, "pages=512 seed=%u %s", i + 1, i ? "give" : "");
        assert_int_equal(
            vm_launch(&c, name, 16 * MIB, "toucher.elf", cmdline, strategies[i], 0, &id[i]), MF_OK);
        assert_true(vm_wait_console(&c, id[i], "touching"));
    }
    for (unsigned i = 0; i < 150; i++) {
        uint64_t at = i * 7919 % PAGES, n = 1 + i * 31 % (PAGES - at);

        frames += given(id[i % 3], BASE + at, n);
        if (i % 4 == 0)
            taken(id[i % 3], BASE + at, n);
        if (i % 3 == 0)
            assert_int_equal(select_teardown(&c, id[i % 3], strategies[i / 3 % COUNT(strategies)]),
                             MF_OK);
    }
    assert_true(frames > 150);
    for (unsigned i = 0; i < 3; i++) {
        struct mf_args_vm_shutdown a = {.vm = id[i], .grace_ns = MF_GRACE_MAX_NS};
        struct mf_vm_info info;

        assert_int_equal(client_call(&c, MF_CALL_VM_SHUTDOWN, &a, sizeof a, NULL, 0, NULL, 0),
                         MF_OK);
        assert_true(vm_wait_off(&c, id[i], &info));
        if (info.end.reason != MF_END_GUEST_CALL)
            fail_msg("guest %u: %s\n%s", i, info.end.detail, vm_console(&c, id[i]));
        assert_int_equal(vm_remove(&c, id[i]), MF_OK);
    }
    assert_true(heap_is_whole(&c));
}

/* Sends a call without waiting for its answer. */
static void send_only(struct client *cl, unsigned nr, const void *args, size_t n)
{
    _Alignas(8) uint8_t out[256];
    struct mf_msg m = {.magic = MF_MAGIC,
                       .nr = (uint16_t)nr,
                       .size = (uint32_t)(sizeof m + n),
                       .cookie = ++cl->cookie};

    memcpy(out, &m, sizeof m);
    memcpy(out + sizeof m, args, n);
    assert_true(client_send(cl, out, m.size, NULL, 0));
}

/* Protects: a VM that ends in the middle of a give or take, or a client that goes away in it, loses
 * no frame; whoever waits is told; the next call finds the VM free for it. */
static void cut_short(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 20; i++) {
        struct mf_args_balloon a = {
            .op = i % 2 ? MF_BALLOON_GIVE : MF_BALLOON_TAKE, .first = BASE, .frames = 30000};
        struct mf_vm_info info;
        uint32_t id;

        assert_int_equal(vm_launch(&c, "cut", 128 * MIB, "loop.elf", "",
                                   strategies[i / 2 % COUNT(strategies)], 0, &id),
                         MF_OK);
        a.vm = id;
        if (i % 2)
            assert_int_equal(taken(id, BASE, 30000), 30000);
        send_only(&other, MF_CALL_VM_BALLOON, &a, sizeof a);
        if (i % 3) {
            if (i % 5)
                usleep(i * 100);
            assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
            assert_true(client_recv(&other, WAIT_MS));
            const struct mf_msg *m = (const void *)other.in;
            assert_true(m->status == MF_OK || m->status == MF_E_STATE);
        } else {
            enum mf_status st;

            client_close(&other);
            do
                st = balloon(&c, id, MF_BALLOON_GIVE, BASE, 1, NULL);
            while (st == MF_E_BUSY);
            assert_int_equal(st, MF_OK);
            assert_true(client_connect(&other, &core));
            assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id), MF_OK);
        }
        assert_true(vm_wait_off(&c, id, &info));
        assert_int_equal(info.end.reason, MF_END_DESTROYED);
        assert_int_equal(vm_remove(&c, id), MF_OK);
        assert_true(heap_is_whole(&c));
    }
}

/* Protects: a take for which there is no memory says what is free, and the guest goes on. */
static void too_little(void **state)
{
    uint32_t id[2];

    (void)state;
    id[0] = launch_writer(NULL, "");
    assert_int_equal(vm_launch(&c, "big", 250 * MIB, "loop.elf", "", NULL, 0, &id[1]), MF_OK);
    taken(id[1], BASE, 250 * 256 - BASE);
    assert_int_equal(balloon(&c, id[0], MF_BALLOON_TAKE, BASE, 7168, NULL), MF_E_NO_MEMORY);
    assert_string_equal(c.err.field, "frames");
    assert_non_null(strstr(c.err.text, "are free"));
    assert_true(given(id[0], BASE, 7168) > 0);
    assert_int_equal(given(id[1], BASE, 8192), 8192);
    say_and_wait(id[0], 'w', "round", 1);
    say_and_wait(id[0], 'c', "checked", 1);
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, id[1]), MF_OK);
    vm_do(&c, MF_CALL_VM_DESTROY, id[0]);
    for (unsigned i = 0; i < 2; i++) {
        struct mf_vm_info info;

        assert_true(vm_wait_off(&c, id[i], &info));
        assert_int_equal(vm_remove(&c, id[i]), MF_OK);
    }
    assert_true(heap_is_whole(&c));
}

/* ---- the log */

/* Protects: with a guest at rest the log tells exactly what it wrote, once; a guest's writes before
 * the start are not told; ranges are independent; a give counts as a write. */
static void log_is_exact(void **state)
{
    uint32_t id = launch_writer(NULL, "pages=512");
    uint8_t pages[PAGES] = {0};
    struct mf_vm_info info;
    uint64_t n;

    (void)state;
    say_and_wait(id, 'w', "round", 1);
    assert_int_equal(dirty_log(id, 1), MF_OK);
    assert_true(vm_info(&c, id, &info));
    assert_int_equal(info.dirty_log, 1);
    assert_int_equal(fetch(id, BASE, PAGES, &n, NULL), MF_OK);
    assert_int_equal(n, 0);
    say_and_wait(id, 'w', "round", 2);
    assert_int_equal(fetch(id, BASE + 5, 300, &n, pages + 5), MF_OK);
    assert_int_equal(n, 300);
    assert_int_equal(fetch(id, BASE, PAGES, &n, pages), MF_OK);
    assert_int_equal(n, PAGES - 300);
    for (unsigned i = 0; i < PAGES; i++)
        assert_int_equal(pages[i], 1);
    assert_int_equal(fetch(id, BASE, PAGES, &n, NULL), MF_OK);
    assert_int_equal(n, 0);
    given(id, BASE + 63, 66);
    assert_int_equal(fetch(id, BASE, PAGES, &n, NULL), MF_OK);
    assert_int_equal(n, 66);
    say_and_wait(id, 'w', "round", 3);
    assert_int_equal(dirty_log(id, 0), MF_OK);
    assert_int_equal(dirty_log(id, 1), MF_OK);
    assert_int_equal(fetch(id, BASE, PAGES, &n, NULL), MF_OK);
    assert_int_equal(n, 0);
    say_and_wait(id, 'w', "round", 4);
    assert_int_equal(vm_do(&c, MF_CALL_VM_RESET, id), MF_OK);
    do
        assert_true(vm_info(&c, id, &info));
    while (info.starts != 2 || info.state != MF_VM_RUNNING);
    assert_int_equal(fetch(id, BASE, PAGES, &n, NULL), MF_E_STATE); /* a new life, no log */
    end(id);
}

/* Protects: no page that is written while the log is fetched without a pause is lost: each round
 * writes every page once, and every page is told at least once between its rounds. */
static void no_write_is_lost(void **state)
{
    uint32_t id = launch_writer("tracked", "pages=512 pause=40");
    unsigned fetches = 0;

    (void)state;
    say_and_wait(id, 'w', "round", 1);
    assert_int_equal(dirty_log(id, 1), MF_OK);
    for (unsigned round = 2; round < 30; round++) {
        uint8_t pages[PAGES] = {0};
        char text[32];
        bool over = false;

        snprintf(text, sizeof text, "round %u\n", round);
        type(id, 'w');
        while (!over) {
            over = strstr(vm_console(&c, id), text) != NULL; /* before the fetch */
            for (unsigned part = 0; part < PAGES; part += 128)
                assert_int_equal(fetch(id, BASE + part, 128, NULL, pages + part), MF_OK);
            fetches += 4;
        }
        for (unsigned i = 0; i < PAGES; i++)
            if (!pages[i])
                fail_msg("round %u: page %u was written and not told", round, i);
    }
    print_message("%u fetches\n", fetches);
    say_and_wait(id, 'c', "checked", 29);
    end(id);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(by_the_guest), T(by_control), T(bad_input),    T(under_fire),
        T(cut_short),    T(too_little), T(log_is_exact), T(no_write_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
