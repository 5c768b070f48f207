#include "hv/call/call.h"

#include <string.h>

typedef enum mf_status (*handler_fn)(struct call *c);

static handler_fn handler_of(unsigned nr)
{
    switch (nr) {
#define X(sym)                                                                                     \
    case MF_CALL_##sym:                                                                            \
        return handle_##sym;
        CALL_HANDLERS(X)
#undef X
    default:
        return NULL;
    }
}

enum mf_status call_run(struct call *c)
{
    handler_fn fn = handler_of(c->req.msg.nr);
    enum mf_status st;

    if (!fn)
        return error_set(&c->err, MF_E_UNKNOWN_CALL, "nr", "there is no call %u", c->req.msg.nr);
    if (!c->session->hello && c->req.msg.nr != MF_CALL_HELLO)
        return error_set(&c->err, MF_E_STATE, "nr", "%s before hello", c->req.row->name);
    st = fn(c);
    if (st == MF_AGAIN || st == MF_BLOCKED) {
        c->resumed = true;
        return st;
    }
    c->abandon = NULL;
    return st ? error_default(&c->err, st) : MF_OK;
}

void call_abandon(struct call *c)
{
    if (c->abandon)
        c->abandon(c);
    c->abandon = NULL;
}

void *call_reply(struct call *c, uint32_t bytes)
{
    memset(c->reply, 0, bytes);
    c->reply_len = bytes;
    return c->reply;
}

int call_take_fd(struct call *c)
{
    int fd;

    if (c->next_fd >= c->nr_fds)
        return -1;
    fd = c->fds[c->next_fd];
    c->fds[c->next_fd++] = -1;
    return fd;
}

struct vm *call_vm(struct call *c, uint32_t id)
{
    struct vm *vm;

    if (id == MF_VM_LAST_CREATED && c->last_created)
        id = *c->last_created;
    vm = vm_find(&c->core->vmm, id);
    if (!vm)
        error_set(&c->err, MF_E_NOT_FOUND, "vm", "there is no VM %u", id);
    return vm;
}
