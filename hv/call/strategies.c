/* Calls about strategies. */
#include <string.h>
#include <unistd.h>

#include "hv/call/call.h"

static enum mf_status check_kind(struct call *c, uint32_t kind)
{
    if (kind != MF_PLUGIN_ALLOCATOR && kind != MF_PLUGIN_TEARDOWN)
        return error_set(&c->err, MF_E_RANGE, "kind", "%u is no kind of strategy", kind);
    return MF_OK;
}

enum mf_status handle_STRATEGY_LOAD(struct call *c)
{
    int fd = call_take_fd(c);
    struct mf_strategy_info info;
    enum mf_status st;

    if (fd < 0)
        return error_set(&c->err, MF_E_MALFORMED, "fd", "the plugin's file did not come along");
    st = strategies_load(&c->core->strategies, fd, &info, &c->err);
    if (st) {
        close(fd);
        return st;
    }
    vmm_reap_retry(&c->core->vmm);
    memcpy(call_reply(c, sizeof info), &info, sizeof info);
    event_push(&c->core->events, MF_EVENT_STRATEGY, 0, info.kind, 1, info.name);
    return MF_OK;
}

enum mf_status handle_STRATEGY_UNLOAD(struct call *c)
{
    const struct mf_args_strategy *a = c->req.args;
    enum mf_status st = check_kind(c, a->kind);

    if (!st)
        st = strategies_unload(&c->core->strategies, a->kind, a->name, &c->err);
    if (st)
        return st;
    event_push(&c->core->events, MF_EVENT_STRATEGY, 0, a->kind, 2, a->name);
    call_reply(c, sizeof(struct mf_reply_none));
    return MF_OK;
}

enum mf_status handle_STRATEGY_LIST(struct call *c)
{
    struct mf_reply_strategy_list *r = call_reply(c, sizeof *r);
    unsigned max = (unsigned)((c->reply_cap - sizeof *r) / sizeof(struct mf_strategy_info));
    struct mf_strategy_info *list = (struct mf_strategy_info *)(r + 1);
    unsigned n = strategies_list(&c->core->strategies, list, max);

    r->count = n < max ? n : max;
    c->reply_len += r->count * (uint32_t)sizeof *list;
    return MF_OK;
}

enum mf_status handle_ALLOCATOR_SELECT(struct call *c)
{
    const struct mf_args_strategy *a = c->req.args;
    struct mf_reply_swap r;
    enum mf_status st;

    if (a->kind != MF_PLUGIN_ALLOCATOR)
        return error_set(&c->err, MF_E_RANGE, "kind", "%u is not the kind of allocators", a->kind);
    st = core_select_allocator(c->core, a->name, &r, &c->err);
    if (!st)
        memcpy(call_reply(c, sizeof r), &r, sizeof r);
    return st;
}

static enum mf_status select_for_vm(struct call *c, struct vm *vm, const char *name,
                                    struct mf_reply_swap *r)
{
    struct strategies *s = &c->core->strategies;
    struct strategy *to;
    enum mf_status st;

    if (c->resumed)
        return vm_teardown_result(vm, r, &c->err);
    to = strategies_get(s, MF_PLUGIN_TEARDOWN, name);
    if (!to)
        return error_set(&c->err, MF_E_NO_TEARDOWN, "name", "no teardown strategy %.31s is loaded",
                         name);
    st = vm_set_teardown(vm, to, r, &c->err);
    if (st != MF_OK && st != MF_BLOCKED)
        strategies_put(s, to);
    return st;
}

enum mf_status handle_TEARDOWN_SELECT(struct call *c)
{
    const struct mf_args_teardown_select *a = c->req.args;
    struct mf_reply_swap r;
    enum mf_status st;

    if (a->vm == 0) {
        st = core_select_teardown(c->core, a->name, &r, &c->err);
    } else {
        struct vm *vm = call_vm(c, a->vm);

        if (!vm)
            return MF_E_NOT_FOUND;
        st = select_for_vm(c, vm, a->name, &r);
        if (!st)
            event_push(&c->core->events, MF_EVENT_STRATEGY, vm->id, MF_PLUGIN_TEARDOWN, 3, r.to);
    }
    if (!st)
        memcpy(call_reply(c, sizeof r), &r, sizeof r);
    return st;
}
