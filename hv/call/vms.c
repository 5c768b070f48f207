/* Calls about VMs. */
#include "hv/call/call.h"

static enum mf_status done(struct call *c, enum mf_status st)
{
    if (!st)
        call_reply(c, sizeof(struct mf_reply_none));
    return st;
}

/* Most calls name a VM and do one thing with it. */
static enum mf_status simple(struct call *c, enum mf_status (*fn)(struct vm *, struct mf_error *))
{
    const struct mf_args_vm *a = c->req.args;
    struct vm *vm = call_vm(c, a->vm);

    return vm ? done(c, fn(vm, &c->err)) : MF_E_NOT_FOUND;
}

enum mf_status handle_VM_CREATE(struct call *c)
{
    const struct mf_args_vm_create *a = c->req.args;
    struct mf_reply_vm *r;
    struct vm *vm;
    enum mf_status st;

    if (c->core->quit)
        return error_set(&c->err, MF_E_STATE, NULL, "the core is shutting down");
    st = vm_create(&c->core->vmm, a, &vm, &c->err);
    if (st)
        return st;
    r = call_reply(c, sizeof *r);
    r->vm = vm->id;
    if (c->last_created)
        *c->last_created = vm->id;
    return MF_OK;
}

/* ---- life */

enum mf_status handle_VM_START(struct call *c)
{
    const struct mf_args_vm *a = c->req.args;
    struct vm *vm = call_vm(c, a->vm);
    enum mf_status st;

    if (!vm)
        return MF_E_NOT_FOUND;
    if (c->core->quit)
        return error_set(&c->err, MF_E_STATE, NULL, "the core is shutting down");
    /* MF_AGAIN: not started yet. MF_BLOCKED: started, wait for the result. */
    if (!c->u.started) {
        st = vm_start(vm, &c->err);
        if (st == MF_BLOCKED)
            c->u.started = true;
    } else {
        st = vm_start_result(vm, &c->err);
    }
    return done(c, st);
}

enum mf_status handle_VM_PAUSE(struct call *c)
{
    return simple(c, c->resumed ? vm_pause_result : vm_pause);
}

enum mf_status handle_VM_RESUME(struct call *c)
{
    return simple(c, vm_resume);
}

enum mf_status handle_VM_RESET(struct call *c)
{
    return simple(c, vm_reset);
}

enum mf_status handle_VM_SHUTDOWN(struct call *c)
{
    const struct mf_args_vm_shutdown *a = c->req.args;
    struct vm *vm = call_vm(c, a->vm);

    return vm ? done(c, vm_shutdown(vm, a->grace_ns, &c->err)) : MF_E_NOT_FOUND;
}

enum mf_status handle_VM_DESTROY(struct call *c)
{
    return simple(c, vm_destroy);
}

enum mf_status handle_VM_DELETE(struct call *c)
{
    const struct mf_args_vm *a = c->req.args;
    struct vm *vm = call_vm(c, a->vm);
    uint32_t id;
    enum mf_status st;

    if (!vm)
        return MF_E_NOT_FOUND;
    id = vm->id;
    st = vm_delete(vm, &c->err);
    if (!st)
        event_push(&c->core->events, MF_EVENT_VM_DELETED, id, 0, 0, NULL);
    return done(c, st);
}

/* ---- looking */

enum mf_status handle_VM_LIST(struct call *c)
{
    const struct mf_args_vm_list *a = c->req.args;
    struct mf_reply_vm_list *r = call_reply(c, sizeof *r);
    struct mf_vm_info *list = (struct mf_vm_info *)(r + 1);
    unsigned max = (unsigned)((c->reply_cap - sizeof *r) / sizeof *list);
    struct vm *vm = vm_find_from(&c->core->vmm, a->first_id);

    for (; vm && r->count < max; vm = vm->next)
        vm_get_info(vm, &list[r->count++]);
    r->next_id = vm ? vm->id : 0;
    c->reply_len += r->count * (uint32_t)sizeof *list;
    return MF_OK;
}

enum mf_status handle_VM_INFO(struct call *c)
{
    const struct mf_args_vm *a = c->req.args;
    struct vm *vm = call_vm(c, a->vm);

    if (!vm)
        return MF_E_NOT_FOUND;
    vm_get_info(vm, call_reply(c, sizeof(struct mf_vm_info)));
    return MF_OK;
}

enum mf_status handle_CONSOLE_READ(struct call *c)
{
    const struct mf_args_console_read *a = c->req.args;
    struct vm *vm = call_vm(c, a->vm);
    struct mf_reply_console_read *r;
    uint32_t room = c->reply_cap - (uint32_t)sizeof *r;

    if (!vm)
        return MF_E_NOT_FOUND;
    if (a->max > CALL_BODY_MAX - sizeof *r)
        return error_set(&c->err, MF_E_RANGE, "max", "%u bytes, a message holds %zu", a->max,
                         CALL_BODY_MAX - sizeof *r);
    r = call_reply(c, sizeof *r);
    /* The state first: what was written before the end is then seen. */
    r->ended = vm_state_off(vm_get_state(vm));
    r->offset = a->offset;
    r->count = (uint32_t)console_get(&vm->console, &r->offset, (uint8_t *)(r + 1),
                                     a->max < room ? a->max : room, &r->end);
    c->reply_len += r->count;
    return MF_OK;
}

enum mf_status handle_CONSOLE_WRITE(struct call *c)
{
    const struct mf_args_console_write *a = c->req.args;
    struct vm *vm = call_vm(c, a->vm);
    struct mf_reply_console_write *r;
    enum mf_vm_state state;

    if (!vm)
        return MF_E_NOT_FOUND;
    if (a->count != c->req.tail_len)
        return error_set(&c->err, MF_E_SIZE, "count", "%u, but %u bytes follow", a->count,
                         c->req.tail_len);
    state = vm_get_state(vm);
    if (state != MF_VM_RUNNING && state != MF_VM_PAUSED)
        return error_set(&c->err, MF_E_STATE, NULL, "the VM is %s: nobody reads its console",
                         vm_state_word(state));
    r = call_reply(c, sizeof *r);
    r->taken = (uint32_t)vm_console_input(vm, c->req.tail, c->req.tail_len);
    return MF_OK;
}
