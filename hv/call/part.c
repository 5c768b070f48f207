/* Calls that work on a range of a live VM's memory. */
#include <string.h>

#include "hv/call/call.h"

/* The client went: the work goes on, its result is dropped. */
static void abandon(struct call *c)
{
    struct vm *vm = vm_find(&c->core->vmm, c->u.part.vm);

    if (vm)
        vm_part_orphan(vm);
}

/*
 * First asks, later looks for the result. The VM may be gone by then: another connection destroyed
 * and deleted it.
 */
static enum mf_status work(struct call *c, uint32_t id, enum vm_part_op op, uint64_t first,
                           uint64_t frames, struct mf_reply_balloon *out)
{
    struct vm *vm = call_vm(c, c->u.part.asked ? c->u.part.vm : id);
    enum mf_status st;

    if (!vm)
        return MF_E_NOT_FOUND;
    if (c->u.part.asked)
        return vm_part_result(vm, out, &c->err);
    st = op == VM_PART_LOG_START ? vm_dirty_start(vm, &c->err)
                                 : vm_part_ask(vm, op, first, frames, &c->err);
    if (st != MF_BLOCKED)
        return st;
    c->u.part.asked = true;
    c->u.part.vm = vm->id;
    c->abandon = abandon;
    return st;
}

enum mf_status handle_VM_BALLOON(struct call *c)
{
    const struct mf_args_balloon *a = c->req.args;
    struct mf_reply_balloon r;
    enum mf_status st;

    if (a->op != MF_BALLOON_GIVE && a->op != MF_BALLOON_TAKE)
        return error_set(&c->err, MF_E_RANGE, "op", "%u is neither give (%u) nor take (%u)", a->op,
                         MF_BALLOON_GIVE, MF_BALLOON_TAKE);
    st = work(c, a->vm, a->op == MF_BALLOON_GIVE ? VM_PART_GIVE : VM_PART_TAKE, a->first, a->frames,
              &r);
    if (!st)
        memcpy(call_reply(c, sizeof r), &r, sizeof r);
    return st;
}

enum mf_status handle_VM_DIRTY_LOG(struct call *c)
{
    const struct mf_args_dirty_log *a = c->req.args;
    struct mf_reply_balloon unused;
    enum mf_status st;

    if (a->on > 1)
        return error_set(&c->err, MF_E_RANGE, "on", "%u is neither 0 nor 1", a->on);
    if (a->on) {
        st = work(c, a->vm, VM_PART_LOG_START, 0, 0, &unused);
    } else {
        struct vm *vm = call_vm(c, a->vm);

        st = vm ? vm_dirty_stop(vm, &c->err) : MF_E_NOT_FOUND;
    }
    if (!st)
        call_reply(c, sizeof(struct mf_reply_none));
    return st;
}

_Static_assert(sizeof(struct mf_reply_dirty_fetch) + MF_PART_FRAMES_MAX / 8 <= CALL_BODY_MAX,
               "the bitmap of the longest range fits in a message");

enum mf_status handle_VM_DIRTY_FETCH(struct call *c)
{
    const struct mf_args_dirty_fetch *a = c->req.args;
    uint32_t words = (uint32_t)((a->frames + 63) / 64);
    struct mf_reply_dirty_fetch *r;
    struct mf_reply_balloon unused;
    enum mf_status st;

    /* Before the marks are taken: in a batch the room may be less than a message. */
    if (a->frames <= MF_PART_FRAMES_MAX && sizeof *r + words * sizeof(uint64_t) > c->reply_cap)
        return error_set(&c->err, MF_E_TOO_BIG, "frames",
                         "the bitmap of %llu frames does not fit in the rest of the reply",
                         (unsigned long long)a->frames);
    st = work(c, a->vm, VM_PART_LOG_FETCH, a->first, a->frames, &unused);
    if (st)
        return st;
    r = call_reply(c, sizeof *r);
    r->first = a->first;
    r->frames = a->frames;
    r->words = words;
    r->dirty = vm_dirty_take(vm_find(&c->core->vmm, c->u.part.vm), a->first, a->frames,
                             (uint64_t *)(void *)(r + 1));
    c->reply_len += words * (uint32_t)sizeof(uint64_t);
    return MF_OK;
}
