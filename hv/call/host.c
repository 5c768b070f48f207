/* Calls about the core itself. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hv/call/call.h"
#include "hv/host/log.h"

#define AUDIT_STEP 65536u

enum mf_status handle_HELLO(struct call *c)
{
    const struct mf_args_hello *a = c->req.args;
    struct mf_reply_hello *r;

    if (a->abi != MF_ABI_VERSION)
        return error_set(&c->err, MF_E_ABI, "abi", "ABI version %u, this core speaks %u", a->abi,
                         MF_ABI_VERSION);
    r = call_reply(c, sizeof *r);
    r->abi = MF_ABI_VERSION;
    r->pid = (uint32_t)getpid();
    r->started_at = c->core->started_at;
    memcpy(r->instance, c->core->instance, sizeof r->instance);
    c->session->hello = true;
    return MF_OK;
}

enum mf_status handle_HOST_INFO(struct call *c)
{
    struct mf_reply_host_info *r = call_reply(c, sizeof *r);
    const struct core *core = c->core;
    const char *why = NULL;

    r->memory = core->arena.bytes;
    r->started_at = core->started_at;
    r->now = host_now_ns();
    r->cpus = core->cpus;
    r->workers = core->workers;
    r->vms = core->vmm.nr_vms;
    r->vms_running = atomic_load(&core->vmm.running);
    r->engine_soft = engine_soft()->probe(&why) == MF_OK;
    r->engine_kvm = engine_kvm()->probe(&why) == MF_OK;
    snprintf(r->engine_kvm_why, sizeof r->engine_kvm_why, "%s", why);
    snprintf(r->version, sizeof r->version, "%s", MAYFLY_VERSION);
    strategies_default_name(&c->core->strategies, r->teardown_default);
    r->vms_created = core->vmm.vms_created;
    r->slices = atomic_load(&core->vmm.sched.slices);
    return MF_OK;
}

enum mf_status handle_HEAP_INFO(struct call *c)
{
    struct mf_reply_heap_info *r = call_reply(c, sizeof *r);
    struct heap_info i;

    heap_get_info(c->core->heap, &i);
    r->frames = i.frames;
    r->free = i.free;
    r->cached = i.cached;
    r->dirty = i.dirty;
    r->used_ram = i.used_ram;
    r->used_table = i.used_table;
    r->used_core = i.used_core;
    r->retired = i.retired;
    memcpy(r->free_blocks, i.free_blocks, sizeof r->free_blocks);
    r->refused_double = i.refused_double;
    r->refused_order = i.refused_order;
    r->refused_owner = i.refused_owner;
    r->refused_plugin = i.refused_plugin;
    r->init_ns = i.init_ns;
    r->swaps = i.swaps;
    r->swap_pause_ns = i.swap_pause_ns;
    r->meta_bytes = i.meta_bytes;
    r->largest_free_order = i.largest_free_order;
    r->scrub = i.scrub;
    r->claimed = i.claimed;
    r->offline = i.offline;
    r->offline_waiting = i.offline_waiting;
    r->scrubbed = i.scrubbed;
    r->punched = i.punched;
    memcpy(r->allocator, i.allocator, sizeof r->allocator);
    return MF_OK;
}

_Static_assert(sizeof(((struct heap_info *)0)->free_blocks) ==
                   sizeof(((struct mf_reply_heap_info *)0)->free_blocks),
               "orders");

enum mf_status handle_HEAP_AUDIT(struct call *c)
{
    struct heap_audit *a = &c->u.audit;
    struct mf_reply_heap_audit *r;
    enum mf_status st;

    if (!c->resumed)
        memset(a, 0, sizeof *a);
    st = heap_audit_step(c->core->heap, a, AUDIT_STEP);
    if (st)
        return st;
    r = call_reply(c, sizeof *r);
    r->frames = a->frames;
    r->free = a->free;
    r->used_ram = a->used_ram;
    r->used_table = a->used_table;
    r->used_core = a->used_core;
    r->retired = a->retired;
    r->overlaps = a->overlaps;
    r->bad_records = a->bad_records;
    r->listed_free = a->listed_free;
    r->listed_in_use = a->listed_in_use;
    r->lost = a->lost;
    r->offline = a->offline;
    return MF_OK;
}

_Static_assert((int)MF_SCRUB_BACKGROUND == (int)HEAP_SCRUB_BACKGROUND &&
                   (int)MF_SCRUB_FREE == (int)HEAP_SCRUB_FREE &&
                   (int)MF_SCRUB_ALLOC == (int)HEAP_SCRUB_ALLOC,
               "policies");
_Static_assert(MF_HEAP_RANGE_MAX == HEAP_OFFLINE_MAX, "frames of a call");

enum mf_status handle_HEAP_SCRUB(struct call *c)
{
    const struct mf_args_heap_scrub *a = c->req.args;

    if (a->policy >= HEAP_SCRUB_KINDS)
        return error_set(&c->err, MF_E_RANGE, "policy",
                         "%u: possible are 0, background, 1, at free, and 2, at allocation",
                         a->policy);
    heap_set_scrub(c->core->heap, (enum heap_scrub)a->policy);
    sched_scrub(&c->core->vmm.sched); /* what another policy left dirty */
    call_reply(c, sizeof(struct mf_reply_none));
    return MF_OK;
}

static enum mf_status heap_range(struct call *c,
                                 enum mf_status (*fn)(struct heap *, mfn_t, uint64_t,
                                                      struct heap_offline_report *))
{
    const struct mf_args_heap_range *a = c->req.args;
    uint64_t frames = heap_arena(c->core->heap)->frames;
    struct heap_offline_report done;
    struct mf_reply_heap_range *r;
    enum mf_status st;

    if (!a->frames || a->frames > MF_HEAP_RANGE_MAX)
        return error_set(&c->err, MF_E_RANGE, "frames", "%llu frames: possible are 1 to %llu",
                         (unsigned long long)a->frames, (unsigned long long)MF_HEAP_RANGE_MAX);
    if (a->first >= frames || a->frames > frames - a->first)
        return error_set(&c->err, MF_E_RANGE, "first",
                         "the %llu frames from %llu on are not all of the core's %llu",
                         (unsigned long long)a->frames, (unsigned long long)a->first,
                         (unsigned long long)frames);
    st = fn(c->core->heap, mfn(a->first), a->frames, &done);
    if (st)
        return st;
    r = call_reply(c, sizeof *r);
    r->changed = done.changed;
    r->waiting = done.waiting;
    r->already = done.already;
    return MF_OK;
}

enum mf_status handle_HEAP_OFFLINE(struct call *c)
{
    return heap_range(c, heap_offline);
}

enum mf_status handle_HEAP_ONLINE(struct call *c)
{
    enum mf_status st = heap_range(c, heap_online);

    sched_scrub(&c->core->vmm.sched); /* they come back dirty */
    return st;
}

enum mf_status handle_SUBSCRIBE(struct call *c)
{
    const struct mf_args_subscribe *a = c->req.args;
    const uint32_t known = (2u << MF_EVENT_LOG) - 2u, console = 1u << MF_EVENT_CONSOLE;

    if (a->mask & ~known)
        return error_set(&c->err, MF_E_RANGE, "mask",
                         "0x%x has bits of unknown events, known are "
                         "0x%x",
                         a->mask, known);
    c->session->mask = a->mask;
    /* At once: what the very next call does must be told already. */
    if (!(atomic_fetch_or(&c->core->events.mask, a->mask) & console) && (a->mask & console))
        for (struct vm *vm = c->core->vmm.first; vm; vm = vm->next)
            vm_console_seen(vm);
    call_reply(c, sizeof(struct mf_reply_none));
    return MF_OK;
}

enum mf_status handle_CORE_SHUTDOWN(struct call *c)
{
    const struct mf_args_core_shutdown *a = c->req.args;
    uint32_t live = core_live_vms(c->core);

    if (a->force > 1)
        return error_set(&c->err, MF_E_RANGE, "force", "%u is neither 0 nor 1", a->force);
    if (!c->resumed) {
        if (live && !a->force)
            return error_set(&c->err, MF_E_STATE, "force", "%u VMs live", live);
        log_line(LOG_INFO, "shutdown asked for, %u VMs live", live);
        core_destroy_all(c->core);
        c->core->quit = true;
    }
    if (core_live_vms(c->core))
        return MF_BLOCKED;
    call_reply(c, sizeof(struct mf_reply_none));
    return MF_OK;
}
