#include "hv/call/core.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "hv/host/log.h"

#define QUIT_WAIT_NS UINT64_C(10000000000)

static void on_state(void *arg, uint32_t vm, enum mf_vm_state from, enum mf_vm_state to,
                     uint32_t moves)
{
    struct mf_event e = {.vm = vm, .moves = moves, .a = from, .b = to};

    event_push_full(&((struct core *)arg)->events, MF_EVENT_VM_STATE, &e);
}

static void on_ended(void *arg, uint32_t vm, enum mf_end_reason reason, uint64_t code)
{
    event_push(&((struct core *)arg)->events, MF_EVENT_VM_ENDED, vm, reason, code, NULL);
}

static void on_console(void *arg, uint32_t vm, uint64_t end)
{
    event_push(&((struct core *)arg)->events, MF_EVENT_CONSOLE, vm, end, 0, NULL);
}

static void on_poke(void *arg)
{
    event_poke(&((struct core *)arg)->events);
}

static void on_log(void *arg, enum log_level level, const char *text)
{
    event_push(&((struct core *)arg)->events, MF_EVENT_LOG, 0, level, 0, text);
}

bool core_init(struct core *c, uint64_t memory, unsigned workers, struct mf_error *e)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    enum mf_status st;

    memset(c, 0, sizeof *c);
    c->cpus = cpus > 0 ? (uint32_t)cpus : 1;
    c->workers = workers;
    c->started_at = host_now_ns();
    if (getrandom(c->instance, sizeof c->instance, 0) != sizeof c->instance)
        memcpy(c->instance, &c->started_at, sizeof c->started_at);
    if (host_arena_init(&c->arena, memory, e))
        return false;
    c->heap = heap_create(&c->arena.env, &c->arena.mm, c->cpus, &st);
    if (!c->heap) {
        error_set(e, st, "memory", "no room for the frame table of %llu bytes",
                  (unsigned long long)memory);
        goto fail_arena;
    }
    strategies_init(&c->strategies);
    if (!event_queue_init(&c->events))
        goto fail_heap;
    if (vmm_init(&c->vmm, c->heap, &c->strategies, workers))
        goto fail_events;
    c->vmm.events = (struct vmm_events){on_state, on_ended, on_console, on_poke, c};
    c->vmm.guest_call = guest_call;
    log_set_hook(on_log, c);
    return true;
fail_events:
    event_queue_fini(&c->events);
fail_heap:
    error_set(e, MF_E_IO, NULL, "the host has no memory or threads for the core");
    strategies_fini(&c->strategies);
    heap_destroy(c->heap);
fail_arena:
    host_arena_fini(&c->arena);
    return false;
}

void core_fini(struct core *c)
{
    struct timespec pause = {.tv_nsec = 1000000};
    uint64_t until = host_now_ns() + QUIT_WAIT_NS;

    core_destroy_all(c);
    while (core_live_vms(c) && host_now_ns() < until) {
        if (c->workers)
            nanosleep(&pause, NULL);
        else
            sched_step(&c->vmm.sched);
    }
    log_set_hook(NULL, NULL);
    if (core_live_vms(c)) {
        log_line(LOG_ERROR, "%u VMs did not end: their memory is left to the host",
                 core_live_vms(c));
        return;
    }
    vmm_fini(&c->vmm);
    event_queue_fini(&c->events);
    heap_destroy(c->heap);
    strategies_fini(&c->strategies);
    host_arena_fini(&c->arena);
}

uint32_t core_live_vms(struct core *c)
{
    return atomic_load(&c->vmm.running);
}

void core_destroy_all(struct core *c)
{
    for (struct vm *vm = c->vmm.first; vm; vm = vm->next) {
        atomic_store(&vm->waited_for, true);
        vm_destroy(vm, NULL);
    }
}

static void told_selected(struct core *c, uint32_t kind, const struct mf_reply_swap *r)
{
    log_line(LOG_INFO, "%s: %s -> %s in %llu ns, standing still for %llu ns",
             kind == MF_PLUGIN_ALLOCATOR ? "allocator" : "default teardown",
             r->from[0] ? r->from : "none", r->to, (unsigned long long)r->total_ns,
             (unsigned long long)r->pause_ns);
    event_push(&c->events, MF_EVENT_STRATEGY, 0, kind, 3, r->to);
}

enum mf_status core_select_allocator(struct core *c, const char *name, struct mf_reply_swap *r,
                                     struct mf_error *e)
{
    struct strategy *s = strategies_get(&c->strategies, MF_PLUGIN_ALLOCATOR, name);
    struct heap_swap_report h;
    const char *why = NULL;
    enum mf_status st;

    memset(r, 0, sizeof *r);
    if (!s)
        return error_set(e, MF_E_NOT_FOUND, "name", "no allocator strategy %.31s is loaded", name);
    if (heap_uses(c->heap, strategy_allocator(s))) {
        strategies_put(&c->strategies, s);
        memcpy(r->from, s->name, sizeof r->from);
        memcpy(r->to, s->name, sizeof r->to);
        return MF_OK;
    }
    memset(&h, 0, sizeof h);
    st = heap_select(c->heap, s->name, strategy_allocator(s), &h, &why);
    if (st) {
        strategies_put(&c->strategies, s);
        return error_set(e, st, "name", "%s cannot take over: %s", name,
                         why ? why : mf_status_text(st));
    }
    strategies_set_allocator(&c->strategies, s);
    r->pause_ns = h.pause_ns;
    r->total_ns = h.total_ns;
    r->free_frames = h.free_frames;
    r->ranges = h.ranges;
    memcpy(r->from, h.from, sizeof r->from);
    memcpy(r->to, h.to, sizeof r->to);
    told_selected(c, MF_PLUGIN_ALLOCATOR, r);
    return MF_OK;
}

enum mf_status core_select_teardown(struct core *c, const char *name, struct mf_reply_swap *r,
                                    struct mf_error *e)
{
    struct strategy *s = strategies_get(&c->strategies, MF_PLUGIN_TEARDOWN, name);
    uint64_t t = host_now_ns();

    memset(r, 0, sizeof *r);
    if (!s)
        return error_set(e, MF_E_NO_TEARDOWN, "name", "no teardown strategy %.31s is loaded", name);
    strategies_default_name(&c->strategies, r->from);
    memcpy(r->to, s->name, sizeof r->to);
    strategies_set_default(&c->strategies, s);
    r->total_ns = host_now_ns() - t;
    told_selected(c, MF_PLUGIN_TEARDOWN, r);
    return MF_OK;
}
