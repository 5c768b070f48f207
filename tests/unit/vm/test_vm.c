/* VM objects with real memory, real strategies and a scripted engine; the test is the only worker.
 */
#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "fake_engine.h"
#include "hv/host/arena.h"
#include "hv/host/log.h"
#include "hv/vm/vm.h"

#define MIB (UINT64_C(1) << 20)

static struct host_arena arena;
static struct heap *heap;
static struct strategies strategies;
static struct vmm vmm;
static struct mf_error err;
static unsigned ended, states;
static uint64_t fake_now;

static uint64_t now(void *arg)
{
    (void)arg;
    return fake_now += 1000;
}

static void on_state(void *arg, uint32_t vm, enum mf_vm_state from, enum mf_vm_state to,
                     uint32_t moves)
{
    (void)arg;
    (void)vm;
    assert_true(vm_state_legal(from, to));
    assert_true(moves > 0);
    states++;
}

static void on_ended(void *arg, uint32_t vm, enum mf_end_reason reason, uint64_t code)
{
    (void)arg;
    (void)vm;
    (void)reason;
    (void)code;
    ended++;
}

static void load(const char *file)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", getenv("MAYFLY_TEST_PLUGINS"), file);
    if (strategies_load_file(&strategies, path, &err))
        fail_msg("%s: %s", path, err.text);
}

static int setup(void **state)
{
    enum mf_status st;
    struct strategy *a;

    (void)state;
    log_set_level(LOG_ERROR);
    fake_now = 1000000000;
    ended = states = fake_live = fake_fail_at = 0;
    fake_act = FAKE_SPIN;
    if (host_arena_init(&arena, 4 * MIB, NULL))
        return -1;
    arena.env.now_ns = now;
    heap = heap_create(&arena.env, &arena.mm, 1, &st);
    strategies_init(&strategies);
    load("allocator_buddy-lazy.so");
    load("teardown_scan.so");
    load("teardown_single.so");
    load("teardown_tracked.so");
    load("teardown_deferred.so");
    a = strategies_get(&strategies, MF_PLUGIN_ALLOCATOR, "buddy-lazy");
    if (heap_select(heap, a->name, strategy_allocator(a), NULL, NULL))
        return -1;
    strategies_set_allocator(&strategies, a);
    strategies_set_default(&strategies, strategies_get(&strategies, MF_PLUGIN_TEARDOWN, "single"));
    if (vmm_init(&vmm, heap, &strategies, 0))
        return -1;
    vmm.events = (struct vmm_events){.state = on_state, .ended = on_ended};
    return 0;
}

static uint64_t used_frames(void)
{
    struct heap_info i;

    heap_get_info(heap, &i);
    return i.frames - i.free;
}

static int teardown(void **state)
{
    (void)state;
    while (sched_step(&vmm.sched))
        ;
    if (used_frames() || fake_live)
        return -1;
    vmm_fini(&vmm);
    heap_destroy(heap);
    strategies_fini(&strategies);
    host_arena_fini(&arena);
    return 0;
}

static int image_file(uint64_t filler)
{
    struct {
        Elf64_Ehdr eh;
        Elf64_Phdr ph;
    } f = {.eh = {.e_type = ET_EXEC,
                  .e_machine = EM_X86_64,
                  .e_phoff = sizeof f.eh,
                  .e_phnum = 1,
                  .e_phentsize = sizeof f.ph,
                  .e_entry = 0x8000},
           .ph = {.p_type = PT_LOAD,
                  .p_paddr = 0x8000,
                  .p_vaddr = 0x8000,
                  .p_filesz = sizeof f + filler,
                  .p_memsz = sizeof f + filler}};
    int fd = memfd_create("image", MFD_CLOEXEC);

    memcpy(f.eh.e_ident, ELFMAG, SELFMAG);
    f.eh.e_ident[EI_CLASS] = ELFCLASS64;
    f.eh.e_ident[EI_DATA] = ELFDATA2LSB;
    assert_int_equal(write(fd, &f, sizeof f), sizeof f);
    assert_int_equal(ftruncate(fd, (off_t)(sizeof f + filler)), 0);
    return fd;
}

static struct vm *make_sized(const char *name, uint32_t flags, uint32_t vcpus, uint64_t filler)
{
    struct mf_args_vm_create c = {.memory = 2 * MIB, .vcpus = vcpus, .flags = flags};
    struct boot_ram ram = boot_ram_layout(c.memory);
    struct boot_image *img = NULL;
    struct boot_read read;
    struct boot_set *set;
    struct vm *vm = NULL;
    int fd = image_file(filler);
    enum mf_status st;

    memcpy(c.name, name, strlen(name));
    assert_int_equal(vm_create(&vmm, &c, &vm, &err), MF_OK);
    st = boot_read_begin(&read, &vmm.images, fd, BOOT_FILE_KERNEL, &ram, &img, &err);
    while (st == MF_AGAIN)
        st = boot_read_step(&read, &vmm.images, &img, &err);
    assert_int_equal(st, MF_OK);
    set = boot_set_create("", 0, 0, NULL);
    assert_non_null(set);
    set->kernel = img;
    assert_int_equal(vm_set_boot(vm, set, 1, &err), MF_OK);
    close(fd);
    return vm;
}

static struct vm *make(const char *name, uint32_t flags)
{
    return make_sized(name, flags, 1, 0);
}

static void settle(struct vm *vm)
{
    for (unsigned i = 0; i < 100000 && !vm_state_off(vm_get_state(vm)); i++)
        assert_true(sched_step(&vmm.sched));
    assert_true(vm_state_off(vm_get_state(vm)));
}

/* Protects: each order in each state: which are taken, and that a refused one changes nothing. */
static void every_order_in_every_state(void **state)
{
    enum { START, PAUSE, RESUME, RESET, SHUTDOWN, DESTROY, DELETE, ORDERS };
    static const char allowed[VM_STATES][ORDERS + 1] = {
        /*                 start pause resume reset shutdown destroy delete */
        [MF_VM_SHUTOFF] = "x.....x", [MF_VM_STARTING] = "....xx.", [MF_VM_RUNNING] = ".x.xxx.",
        [MF_VM_PAUSED] = "..xxxx.",  [MF_VM_STOPPING] = "....xx.", [MF_VM_CRASHED] = "x.....x",
    };

    (void)state;
    for (unsigned s = 0; s < VM_STATES; s++)
        for (unsigned o = 0; o < ORDERS; o++) {
            struct vm *vm = make_sized("v", 0, 1, s == MF_VM_STARTING ? MIB : 0);
            enum mf_status st = MF_OK;

            fake_act = s == MF_VM_CRASHED ? FAKE_TRIPLE : FAKE_SPIN;
            if (s != MF_VM_SHUTOFF)
                st = vm_start(vm, &err);
            assert_true(st == (s == MF_VM_STARTING ? MF_BLOCKED : MF_OK));
            if (s == MF_VM_CRASHED)
                settle(vm);
            if (s == MF_VM_PAUSED)
                assert_int_equal(vm_pause(vm, &err), MF_OK);
            if (s == MF_VM_STOPPING)
                assert_int_equal(vm_destroy(vm, &err), MF_OK);
            assert_int_equal(vm_get_state(vm), s);
            st = o == START      ? vm_start(vm, &err)
                 : o == PAUSE    ? vm_pause(vm, &err)
                 : o == RESUME   ? vm_resume(vm, &err)
                 : o == RESET    ? vm_reset(vm, &err)
                 : o == SHUTDOWN ? vm_shutdown(vm, 1000, &err)
                 : o == DESTROY  ? vm_destroy(vm, &err)
                                 : vm_delete(vm, &err);
            assert_int_equal(st, allowed[s][o] == 'x' ? MF_OK : MF_E_STATE);
            if (st)
                assert_int_equal(vm_get_state(vm), s);
            if (o == DELETE && !st)
                continue;
            fake_act = FAKE_SPIN;
            vm_destroy(vm, NULL);
            settle(vm);
            assert_int_equal(vm_delete(vm, &err), MF_OK);
        }
}

/* Protects: each exit of the engine and each device ends the life with its reason and state. */
static void every_end(void **state)
{
    static const struct {
        enum fake_act act;
        enum mf_end_reason reason;
        enum mf_vm_state state;
        uint64_t code;
    } rows[] = {
        {FAKE_POWEROFF, MF_END_POWEROFF, MF_VM_SHUTOFF, 0},
        {FAKE_DEBUG_EXIT, MF_END_DEBUG_EXIT, MF_VM_SHUTOFF, 3},
        {FAKE_RESET, MF_END_RESET, MF_VM_SHUTOFF, 0},
        {FAKE_TRIPLE, MF_END_TRIPLE_FAULT, MF_VM_CRASHED, 0},
        {FAKE_BAD_ACCESS, MF_END_BAD_ACCESS, MF_VM_CRASHED, 0x123456789000},
        {FAKE_NO_MEMORY, MF_END_NO_MEMORY, MF_VM_CRASHED, 0},
        {FAKE_FAIL, MF_END_ENGINE, MF_VM_CRASHED, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct vm *vm = make("v", MF_VM_RESET_ENDS);
        struct mf_vm_info info;
        unsigned before = ended;

        fake_act = rows[i].act;
        assert_int_equal(vm_start(vm, &err), MF_OK);
        settle(vm);
        vm_get_info(vm, &info);
        assert_int_equal(info.state, rows[i].state);
        assert_int_equal(info.end.reason, rows[i].reason);
        assert_true(info.end.code == rows[i].code);
        assert_int_equal(info.end.roots_freed, 2);
        assert_string_equal(info.end.teardown, "single");
        assert_int_equal(ended, before + 1);
        assert_int_equal(used_frames(), 0);
        assert_int_equal(vm_delete(vm, &err), MF_OK);
    }
}

/* Protects: a guest that resets starts over with fresh counters, until it does something else. */
static void guest_reset_starts_over(void **state)
{
    struct vm *vm = make("v", 0);
    struct mf_vm_info info;

    (void)state;
    fake_act = FAKE_RESET;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    do {
        assert_true(sched_step(&vmm.sched));
        vm_get_info(vm, &info);
    } while (info.starts < 5);
    assert_int_equal(ended, 0);
    assert_int_equal(info.end.reason, MF_END_RESET);
    fake_act = FAKE_POWEROFF;
    settle(vm);
    assert_int_equal(ended, 1);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

/* Protects: a guest asked to end that resets instead, over and over, is over at its first reset. */
static void reset_does_not_escape_shutdown(void **state)
{
    struct vm *vm = make("v", 0);
    struct mf_vm_info info;

    (void)state;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    assert_int_equal(vm_shutdown(vm, UINT64_C(1000000000), &err), MF_OK);
    fake_act = FAKE_RESET;
    settle(vm);
    vm_get_info(vm, &info);
    assert_int_equal(info.end.reason, MF_END_RESET);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

/* Protects: destroy while a reset is under way ends the VM instead of letting it start again. */
static void destroy_beats_reset(void **state)
{
    struct vm *vm = make("v", 0);
    struct mf_vm_info info;

    (void)state;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    assert_int_equal(vm_reset(vm, &err), MF_OK);
    assert_int_equal(vm_destroy(vm, &err), MF_OK);
    settle(vm);
    vm_get_info(vm, &info);
    assert_int_equal(info.end.reason, MF_END_DESTROYED);
    assert_int_equal(info.starts, 1);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

/* Protects: the grace period ends a guest that halts, spins or is paused, and not before. */
static void grace_period(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        struct vm *vm = make("v", 0);
        struct mf_vm_info info;

        fake_act = i == 0 ? FAKE_HALT : FAKE_SPIN;
        assert_int_equal(vm_start(vm, &err), MF_OK);
        sched_step(&vmm.sched);
        if (i == 2)
            assert_int_equal(vm_pause(vm, &err), MF_OK);
        assert_int_equal(vm_shutdown(vm, 50000000, &err), MF_OK);
        uint64_t until = fake_now + 49000000;
        while (fake_now < until && i == 1)
            sched_step(&vmm.sched);
        fake_now = until;
        sched_step(&vmm.sched);
        vm_get_info(vm, &info);
        assert_false(vm_state_off(info.state));
        fake_now += 2000000;
        settle(vm);
        vm_get_info(vm, &info);
        assert_int_equal(info.end.reason, MF_END_SHUTDOWN);
        assert_int_equal(vm_delete(vm, &err), MF_OK);
    }
}

/* Protects: the guest's clock stands still while it is paused. */
static void clock_stops(void **state)
{
    struct vm *vm = make("v", 0);
    uint64_t a, b;

    (void)state;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    fake_now += 5000000;
    a = vm_clock(vm);
    assert_in_range(a, 5000000, 5100000);
    assert_int_equal(vm_pause(vm, &err), MF_OK);
    a = vm_clock(vm);
    fake_now += UINT64_C(3600000000000);
    assert_true(vm_clock(vm) == a);
    assert_int_equal(vm_resume(vm, &err), MF_OK);
    b = vm_clock(vm);
    assert_in_range(b - a, 0, 100000);
    vm_destroy(vm, NULL);
    settle(vm);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

/* Protects: memory that runs out while a guest touches pages ends it; its pages serve the next. */
static void memory_runs_out(void **state)
{
    struct vm *a = make("a", 0), *b = make("b", 0), *c = make("c", 0);
    struct mf_vm_info info;

    (void)state;
    fake_act = FAKE_TOUCH;
    assert_int_equal(vm_start(a, &err), MF_OK);
    assert_int_equal(vm_start(b, &err), MF_OK);
    assert_int_equal(vm_start(c, &err), MF_OK);
    /* 3 times 2 MiB do not fit into 4: some end; the last one left gets to its RAM's end. */
    for (unsigned i = 0; i < 5000; i++)
        sched_step(&vmm.sched);
    unsigned crashed = 0;
    struct vm *all[] = {a, b, c};
    for (unsigned i = 0; i < 3; i++) {
        vm_get_info(all[i], &info);
        crashed += info.state == MF_VM_CRASHED && info.end.reason == MF_END_NO_MEMORY;
        vm_destroy(all[i], NULL);
        settle(all[i]);
        assert_int_equal(vm_delete(all[i], &err), MF_OK);
    }
    assert_in_range(crashed, 1, 3);
    assert_int_equal(used_frames(), 0);
}

/* Protects: a start that fails part of the way leaves nothing and the VM startable. */
static void failed_start(void **state)
{
    struct vm *vm = make_sized("v", 0, 4, 0);

    (void)state;
    for (unsigned i = 1; i <= 4; i++) {
        fake_fail_at = i;
        assert_int_equal(vm_start(vm, &err), MF_E_NO_MEMORY);
        assert_string_equal(err.field, "engine");
        assert_int_equal(vm_get_state(vm), MF_VM_SHUTOFF);
        assert_int_equal(used_frames(), 0);
        assert_int_equal(fake_live, 0);
    }
    fake_fail_at = 0;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    vm_destroy(vm, NULL);
    settle(vm);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

static struct strategy *teardown_of(const char *name)
{
    return strategies_get(&strategies, MF_PLUGIN_TEARDOWN, name);
}

/* Protects: a swap to a tracking strategy counts as done only when the entries are tracked; an end
 * in between cancels it and gives the strategy back. */
static void swap_to_tracking(void **state)
{
    struct mf_reply_swap r;
    struct vm *vm = make("v", 0);
    struct mf_vm_info info;

    (void)state;
    fake_act = FAKE_TOUCH;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    for (unsigned i = 0; i < 100; i++)
        sched_step(&vmm.sched);
    fake_act = FAKE_SPIN;
    assert_int_equal(vm_set_teardown(vm, teardown_of("tracked"), &r, &err), MF_BLOCKED);
    struct strategy *again = teardown_of("scan");
    assert_int_equal(vm_set_teardown(vm, again, &r, &err), MF_E_BUSY);
    strategies_put(&strategies, again);
    vm_get_info(vm, &info);
    assert_string_equal(info.teardown, "single");
    while (vm_teardown_result(vm, &r, &err) == MF_BLOCKED)
        sched_step(&vmm.sched);
    assert_string_equal(r.from, "single");
    assert_string_equal(r.to, "tracked");
    assert_int_equal(vm_set_teardown(vm, teardown_of("scan"), &r, &err), MF_OK);
    assert_int_equal(vm_set_teardown(vm, teardown_of("tracked"), &r, &err), MF_BLOCKED);
    vm_destroy(vm, NULL);
    assert_int_equal(vm_teardown_result(vm, &r, &err), MF_E_STATE);
    settle(vm);
    vm_get_info(vm, &info);
    assert_string_equal(info.end.teardown, "scan");
    assert_int_equal(vm_delete(vm, &err), MF_OK);
    assert_int_equal(strategies_unload(&strategies, MF_PLUGIN_TEARDOWN, "tracked", &err), MF_OK);
}

/* Protects: the entry state: 64-bit mode with a stack and start_info, registers otherwise zero. */
static void entry(void **state)
{
    struct vm *vm = make("v", 0);

    (void)state;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    assert_int_equal(fake_state.rip, 0x8000);
    assert_int_equal(fake_state.cr0 & 0x80000001u, 0x80000001u);
    assert_int_equal(fake_state.efer, 0x500);
    assert_int_equal(fake_state.seg[CPU_CS].selector, 0x10);
    assert_int_equal(fake_state.seg[CPU_CS].attr & CPU_SEG_L, CPU_SEG_L);
    assert_int_equal(fake_state.gpr[CPU_RSP] % 16, 8);
    uint32_t magic = 0;
    assert_int_equal(stage2_read(vm->s2, gpa(fake_state.gpr[CPU_RDI]), &magic, 4), MF_OK);
    assert_int_equal(magic, 0x336ec578);
    uint64_t pml4e = 0, pdpte = 0;
    assert_int_equal(stage2_read(vm->s2, gpa(fake_state.cr3), &pml4e, 8), MF_OK);
    assert_int_equal(stage2_read(vm->s2, gpa((pml4e & MF_PTE_ADDR) + 24), &pdpte, 8), MF_OK);
    assert_true(pdpte == (UINT64_C(3) << 30 | 0x83)); /* the fourth GiB */
    vm_destroy(vm, NULL);
    settle(vm);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

/* Protects: a halted VM makes the core idle; input on its console wakes it. */
static void halted_is_idle(void **state)
{
    struct vm *vm = make("v", 0);

    (void)state;
    fake_act = FAKE_HALT;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    assert_true(sched_step(&vmm.sched));
    assert_false(sched_step(&vmm.sched));
    assert_int_equal(vm_console_input(vm, (const uint8_t *)"x", 1), 1);
    assert_true(sched_step(&vmm.sched));
    assert_false(sched_step(&vmm.sched));
    vm_destroy(vm, NULL);
    settle(vm);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

/* A VM with the deferred strategy that has touched `pages` of its RAM and spins. */
static struct vm *start_deferred(const char *name, unsigned pages)
{
    struct vm *vm = make(name, 0);
    struct mf_reply_swap r;

    assert_int_equal(vm_set_teardown(vm, teardown_of("deferred"), &r, &err), MF_OK);
    fake_act = FAKE_TOUCH;
    assert_int_equal(vm_start(vm, &err), MF_OK);
    for (unsigned i = 0; i < pages; i++)
        sched_step(&vmm.sched);
    fake_act = FAKE_SPIN;
    return vm;
}

static void reap_all(void)
{
    while (atomic_load(&vmm.reaper.trees) || atomic_load(&vmm.returned))
        assert_true(sched_step(&vmm.sched));
    assert_int_equal(used_frames(), 0);
}

/* Protects: a deferred VM is off while its memory still is out; the report is completed later. */
static void deferred_is_off_at_once(void **state)
{
    struct vm *vm = start_deferred("v", 200);
    struct mf_vm_info info;

    (void)state;
    assert_int_equal(vm_destroy(vm, &err), MF_OK);
    settle(vm);
    assert_int_equal(atomic_load(&vmm.reaper.trees), 1);
    assert_true(used_frames() > 200);
    vm_get_info(vm, &info); /* a query on a dying VM */
    assert_int_equal(info.state, MF_VM_SHUTOFF);
    assert_int_equal(info.frames_ram, 0);
    assert_true(info.end.unreachable_ns > 0);
    assert_int_equal(info.end.returned_ns, 0);
    reap_all();
    vm_get_info(vm, &info);
    assert_string_equal(info.end.teardown, "deferred");
    assert_true(info.end.returned_ns > info.end.unreachable_ns);
    assert_true(info.end.entries_removed > 200);
    assert_int_equal(info.end.frames_returned, info.end.entries_removed + 2);
    assert_int_equal(info.end.roots_freed, 2);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

/* Protects: lives that begin while the last one's memory is out; the report stays the last life's.
 */
static void deferred_lives_follow_each_other(void **state)
{
    struct vm *vm = start_deferred("v", 50);
    struct mf_vm_info info;

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(vm_destroy(vm, &err), MF_OK);
        settle(vm);
        assert_int_equal(vm_start(vm, &err), MF_OK);
    }
    assert_true(atomic_load(&vmm.reaper.trees) >= 1);
    vm_get_info(vm, &info);
    assert_int_equal(info.end.returned_ns, 0); /* that of the fourth, the last in the queue */
    assert_int_equal(vm_destroy(vm, &err), MF_OK);
    settle(vm);
    reap_all();
    vm_get_info(vm, &info);
    assert_true(info.end.returned_ns > 0);
    assert_int_equal(info.starts, 5);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
}

/* Protects: metadata of a dying VM freed while it is needed: the VM is deleted, its memory comes.
 */
static void metadata_of_a_dying_vm_freed_while_needed(void **state)
{
    struct vm *vm = start_deferred("v", 100), *other;

    (void)state;
    assert_int_equal(vm_destroy(vm, &err), MF_OK);
    settle(vm);
    assert_int_equal(vm_delete(vm, &err), MF_OK);
    assert_int_equal(strategies_unload(&strategies, MF_PLUGIN_TEARDOWN, "deferred", &err),
                     MF_E_BUSY);
    other = make("v", 0); /* the name is free again */
    reap_all();
    assert_int_equal(strategies_unload(&strategies, MF_PLUGIN_TEARDOWN, "deferred", &err), MF_OK);
    assert_int_equal(vm_delete(other, &err), MF_OK);
}

/* Protects: metadata of a dying VM freed while a query reads it: asked at every step of the end. */
static void metadata_of_a_dying_vm_read_by_a_query(void **state)
{
    static const char *const names[] = {"single", "tracked", "deferred", "arena"};

    (void)state;
    load("teardown_arena.so");
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct vm *vm = make("v", 0);
        struct mf_reply_swap r;
        struct mf_vm_info info;

        assert_int_equal(vm_set_teardown(vm, teardown_of(names[i]), &r, &err), MF_OK);
        fake_act = FAKE_TOUCH;
        assert_int_equal(vm_start(vm, &err), MF_OK);
        for (unsigned n = 0; n < 200; n++)
            sched_step(&vmm.sched);
        fake_act = FAKE_SPIN;
        assert_int_equal(vm_destroy(vm, &err), MF_OK);
        for (unsigned n = 0; n < 100000 && !vm_state_off(vm_get_state(vm)); n++) {
            vm_get_info(vm, &info);
            assert_true(info.frames_ram <= 4096 && info.frames_table <= 4096);
            assert_int_equal(info.state, MF_VM_STOPPING);
            assert_true(sched_step(&vmm.sched));
        }
        vm_get_info(vm, &info);
        assert_int_equal(info.state, MF_VM_SHUTOFF);
        assert_int_equal(info.frames_ram + info.frames_table, 0);
        reap_all();
        vm_get_info(vm, &info);
        assert_int_equal(info.end.frames_returned > 200, 1);
        assert_int_equal(vm_delete(vm, &err), MF_OK);
    }
}

/* Protects: a start and a guest's faults that find the heap empty wait for memory on its way. */
static void starts_while_memory_is_out(void **state)
{
    struct vm *a = start_deferred("a", 490), *b = start_deferred("b", 490), *c;
    struct mf_vm_info info;

    (void)state;
    vm_destroy(a, NULL);
    vm_destroy(b, NULL);
    settle(a);
    settle(b);
    assert_true(used_frames() > 500 && atomic_load(&vmm.reaper.trees) >= 1);
    c = start_deferred("c", 490);
    vm_get_info(c, &info);
    assert_int_equal(info.state, MF_VM_RUNNING);
    vm_destroy(c, NULL);
    settle(c);
    reap_all();
    assert_int_equal(vm_delete(a, &err), MF_OK);
    assert_int_equal(vm_delete(b, &err), MF_OK);
    assert_int_equal(vm_delete(c, &err), MF_OK);
}

/* Protects: the core's end with memory of VMs still out. */
static void core_ends_while_memory_is_out(void **state)
{
    struct vm *vm = start_deferred("v", 100);

    (void)state;
    assert_int_equal(vm_destroy(vm, &err), MF_OK);
    settle(vm);
    assert_int_equal(atomic_load(&vmm.reaper.trees), 1);
    vmm_fini(&vmm);
    assert_int_equal(used_frames(), 0);
    assert_int_equal(vmm_init(&vmm, heap, &strategies, 0), MF_OK);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(every_order_in_every_state),
        T(every_end),
        T(guest_reset_starts_over),
        T(reset_does_not_escape_shutdown),
        T(destroy_beats_reset),
        T(grace_period),
        T(clock_stops),
        T(memory_runs_out),
        T(failed_start),
        T(swap_to_tracking),
        T(entry),
        T(halted_is_idle),
        T(deferred_is_off_at_once),
        T(deferred_lives_follow_each_other),
        T(metadata_of_a_dying_vm_freed_while_needed),
        T(metadata_of_a_dying_vm_read_by_a_query),
        T(starts_while_memory_is_out),
        T(core_ends_while_memory_is_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
