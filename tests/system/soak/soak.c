/*
 * Everything at once, for a time: VMs come and go while their memory is given back and taken again,
 * their writes are logged, strategies and scrub policies are swapped and frames leave and enter
 * use. Afterwards every frame is free and every counter of wrong things is zero.
 *
 *   soak [--seconds N] [--seed N]     ends with 0, or says what was wrong
 *
 * The guests watch too: one that sees memory that is neither its own nor zero ends with a panic.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/system/core/client.h"

#define MIB       (UINT64_C(1) << 20)
#define SLOTS     12u
#define BASE      1024u /* first page of a guest's playground */
#define PAGES     2048u
#define NAMES_MAX 16u
#define AUDIT_MS  1000u

struct slot {
    uint32_t vm; /* 0: empty */
    bool touches, logs, ending;
    uint64_t pages; /* of the playground */
};

static struct core_proc core;
static struct client c;
static struct slot slots[SLOTS];
static char allocators[NAMES_MAX][MF_NAME_MAX], teardowns[NAMES_MAX][MF_NAME_MAX];
static unsigned nr_allocators, nr_teardowns;
static uint64_t state, offline_first, offline_frames;
static unsigned long lives, gives, takes, fetches, swaps, guests;

static uint64_t below(uint64_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

__attribute__((format(printf, 1, 2), noreturn)) static void bad(const char *fmt, ...)
{
    va_list ap;

    fputs("soak: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nsoak: the core's log is %s\n", core.log);
    core_stop(&core);
    exit(1);
}

static enum mf_status call(unsigned nr, const void *args, size_t n)
{
    return client_call(&c, nr, args, n, NULL, 0, NULL, 0);
}

/* A VM may have ended by itself before the call came. */
static void expect(enum mf_status st, const char *what)
{
    if (st && st != MF_E_STATE)
        bad("%s: %s (%s: %s)", what, mf_status_text(st), c.err.field, c.err.text);
}

/* ---- strategies */

static void find_strategies(void)
{
    struct mf_args_none none = {0};
    const struct mf_reply_strategy_list *l;
    const struct mf_strategy_info *s;

    expect(call(MF_CALL_STRATEGY_LIST, &none, sizeof none), "strategy list");
    l = client_body(&c);
    s = (const struct mf_strategy_info *)(const void *)(l + 1);
    for (unsigned i = 0; i < l->count; i++, s++) {
        bool a = s->kind == MF_PLUGIN_ALLOCATOR;
        unsigned *n = a ? &nr_allocators : &nr_teardowns;

        if (*n < NAMES_MAX)
            memcpy((a ? allocators : teardowns)[(*n)++], s->name, MF_NAME_MAX);
    }
    if (nr_allocators < 4 || nr_teardowns < 5)
        bad("%u allocators and %u teardowns are loaded", nr_allocators, nr_teardowns);
}

static void swap_something(void)
{
    struct mf_args_heap_scrub scrub = {.policy = (uint32_t)below(3)};

    swaps++;
    switch (below(4)) {
    case 0:
    case 1:
        expect(select_allocator(&c, allocators[below(nr_allocators)]), "allocator");
        break;
    case 2:
        expect(select_teardown(&c, 0, teardowns[below(nr_teardowns)]), "default teardown");
        break;
    default:
        expect(call(MF_CALL_HEAP_SCRUB, &scrub, sizeof scrub), "scrub policy");
        break;
    }
}

static void offline_or_online(void)
{
    struct mf_reply_heap_info h;
    struct mf_args_heap_range a;

    if (!offline_frames) {
        if (!heap_info(&c, &h))
            bad("heap info");
        offline_frames = 1 + below(512);
        offline_first = below(h.frames - offline_frames);
    } else {
        a = (struct mf_args_heap_range){offline_first, offline_frames};
        offline_frames = 0;
        expect(call(MF_CALL_HEAP_ONLINE, &a, sizeof a), "online");
        return;
    }
    a = (struct mf_args_heap_range){offline_first, offline_frames};
    expect(call(MF_CALL_HEAP_OFFLINE, &a, sizeof a), "offline");
}

/* ---- VMs */

static void launch(struct slot *s, unsigned n)
{
    static const char *const hello[] = {"hello.elf", "hello-pvh.elf", "idle.elf"};
    uint32_t flags = (uint32_t)below(4) * MF_VM_CLAIM; /* none, claim, large pages, both */
    char name[24], cmdline[96] = "";
    enum mf_status st;

    *s = (struct slot){.touches = below(3) != 0, .pages = 64 + below(PAGES - 64)};
    snprintf(name, sizeof name, "soak-%u", n);
    if (s->touches)
        snprintf(cmdline, sizeof cmdline, "pages=%" PRIu64 " seed=%lu %s", s->pages,
                 lives % 0xffffff + 1, below(2) ? "give" : "");
    st = vm_launch(&c, name, 16 * MIB, s->touches ? "toucher.elf" : hello[below(3)], cmdline,
                   below(2) ? teardowns[below(nr_teardowns)] : NULL, flags, &s->vm);
    if (st)
        bad("launch of %s: %s (%s)", name, mf_status_text(st), c.err.text);
    lives++;
}

static void check_end(const struct slot *s, const struct mf_vm_info *info)
{
    uint32_t r = info->end.reason;

    if (r != MF_END_POWEROFF && r != MF_END_DESTROYED && r != MF_END_GUEST_CALL &&
        r != MF_END_SHUTDOWN)
        bad("%s ended by %u, code %" PRIu64 ": %s\n%s", info->name, r, info->end.code,
            info->end.detail, vm_console(&c, s->vm));
    guests += r == MF_END_GUEST_CALL;
}

static void balloon(const struct slot *s, uint32_t op)
{
    struct mf_args_balloon a = {.vm = s->vm, .op = op};

    a.first = BASE + below(s->pages);
    a.frames = 1 + below(below(4) ? 64 : BASE + s->pages - a.first);
    if (a.first + a.frames > BASE + s->pages)
        a.frames = BASE + s->pages - a.first;
    expect(call(MF_CALL_VM_BALLOON, &a, sizeof a), "balloon");
    *(op == MF_BALLOON_GIVE ? &gives : &takes) += 1;
}

static void log_something(struct slot *s)
{
    struct mf_args_dirty_log on = {.vm = s->vm, .on = !s->logs};
    struct mf_args_dirty_fetch f = {.vm = s->vm, .first = BASE, .frames = s->pages};

    if (s->logs && below(4)) {
        expect(call(MF_CALL_VM_DIRTY_FETCH, &f, sizeof f), "dirty fetch");
        fetches++;
        return;
    }
    s->logs = !call(MF_CALL_VM_DIRTY_LOG, &on, sizeof on) && on.on;
}

static void disturb(struct slot *s)
{
    struct mf_args_vm_shutdown end = {.vm = s->vm, .grace_ns = MF_GRACE_MAX_NS};

    switch (below(12)) {
    case 0:
        expect(vm_do(&c, MF_CALL_VM_PAUSE, s->vm), "pause");
        balloon(s, MF_BALLOON_GIVE);
        expect(vm_do(&c, MF_CALL_VM_RESUME, s->vm), "resume");
        break;
    case 1:
    case 2:
        swaps++;
        expect(select_teardown(&c, s->vm, teardowns[below(nr_teardowns)]), "teardown");
        break;
    case 3:
        s->ending = true;
        expect(vm_do(&c, MF_CALL_VM_DESTROY, s->vm), "destroy");
        break;
    case 4:
        s->ending = true;
        expect(call(MF_CALL_VM_SHUTDOWN, &end, sizeof end), "shutdown");
        break;
    case 5:
    case 6:
    case 7:
        log_something(s);
        break;
    case 8:
        balloon(s, MF_BALLOON_TAKE);
        break;
    default:
        balloon(s, MF_BALLOON_GIVE);
        break;
    }
}

static void step(unsigned n)
{
    struct slot *s = &slots[n % SLOTS];
    struct mf_vm_info info;

    if (!s->vm) {
        launch(s, n % SLOTS);
        return;
    }
    if (!vm_info(&c, s->vm, &info))
        bad("vm info: %s", c.err.text);
    if (info.state == MF_VM_SHUTOFF || info.state == MF_VM_CRASHED) {
        check_end(s, &info);
        expect(vm_remove(&c, s->vm), "delete");
        s->vm = 0;
    } else if (s->touches && !s->ending) {
        disturb(s);
    } else if (info.state == MF_VM_RUNNING && !s->ending && below(8) == 0) {
        s->ending = true; /* idle */
        expect(vm_do(&c, MF_CALL_VM_DESTROY, s->vm), "destroy");
    }
}

/* ---- what must hold */

static void audit(void)
{
    struct mf_reply_heap_audit a;

    if (!heap_audit(&c, &a))
        bad("audit: %s", c.err.text);
    if (a.overlaps || a.bad_records)
        bad("audit: %" PRIu64 " overlaps, %" PRIu64 " bad records", a.overlaps, a.bad_records);
}

static void end_all(void)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        struct mf_vm_info info;

        if (!slots[i].vm)
            continue;
        vm_do(&c, MF_CALL_VM_DESTROY, slots[i].vm);
        if (!vm_wait_off(&c, slots[i].vm, &info))
            bad("slot %u does not end", i);
        check_end(&slots[i], &info);
        expect(vm_remove(&c, slots[i].vm), "delete");
    }
    if (offline_frames)
        offline_or_online();
}

static void check_all(void)
{
    struct mf_reply_heap_audit a;
    struct mf_reply_heap_info h;

    if (!heap_is_whole(&c) || !heap_info(&c, &h) || !heap_audit(&c, &a))
        bad("frames did not come back");
    if (h.free != h.frames || h.retired || h.used_ram || h.used_table || h.used_core || h.claimed ||
        h.offline || h.offline_waiting)
        bad("of %" PRIu64 " frames %" PRIu64 " are free; retired %" PRIu64 ", RAM %" PRIu64
            ", tables %" PRIu64 ", core %" PRIu64 ", claimed %" PRIu64 ", offline %" PRIu64
            "+%" PRIu64,
            h.frames, h.free, h.retired, h.used_ram, h.used_table, h.used_core, h.claimed,
            h.offline, h.offline_waiting);
    if (h.refused_double || h.refused_order || h.refused_owner || h.refused_plugin)
        bad("refused: %" PRIu64 " double, %" PRIu64 " order, %" PRIu64 " owner, %" PRIu64 " plugin",
            h.refused_double, h.refused_order, h.refused_owner, h.refused_plugin);
    if (a.overlaps || a.bad_records || a.lost || a.listed_in_use || a.listed_free != a.frames)
        bad("audit: overlaps %" PRIu64 ", bad %" PRIu64 ", lost %" PRIu64
            ", listed in use %" PRIu64,
            a.overlaps, a.bad_records, a.lost, a.listed_in_use);
    if (core_log_has(&core, " error ") || core_log_has(&core, "did not come back"))
        bad("the core logged an error");
}

static uint64_t number(int argc, char **argv, const char *name, uint64_t otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return strtoull(argv[i + 1], NULL, 0);
    return otherwise;
}

int main(int argc, char **argv)
{
    uint64_t seconds = number(argc, argv, "--seconds", 600), t0, next_audit;
    uint64_t seed = number(argc, argv, "--seed", (uint64_t)time(NULL));
    int code;

    state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    if (!core_start_full(&core, "512M", "2") || !client_connect(&c, &core))
        bad("the core does not start");
    find_strategies();
    t0 = now_ms();
    next_audit = t0 + AUDIT_MS;
    for (unsigned n = 0; now_ms() - t0 < seconds * 1000; n++) {
        step(n);
        if (n % 16 == 0)
            swap_something();
        if (n % 64 == 0)
            offline_or_online();
        if (now_ms() >= next_audit) {
            audit();
            next_audit = now_ms() + AUDIT_MS;
        }
    }
    end_all();
    check_all();
    client_close(&c);
    code = core_stop(&core);
    if (code)
        bad("the core ended with %d", code);
    core_remove_dir(&core);
    printf("soak: %" PRIu64 " s, seed %" PRIu64
           ": %lu lives, %lu gives, %lu takes, %lu fetches, %lu "
           "swaps, %lu guests said that all was theirs\n",
           seconds, seed, lives, gives, takes, fetches, swaps, guests);
    return lives && gives && takes && fetches && swaps ? 0 : 1;
}
