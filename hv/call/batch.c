/*
 * Several calls in one message. They run one behind the other, each to its end, also when it takes
 * several rounds; replies gather in the batch's own.
 */
#include <stdlib.h>
#include <string.h>

#include "hv/call/call.h"

#define BATCH_MAX 64u

struct batch {
    struct call sub;
    bool active;       /* sub has begun and has not ended */
    uint32_t pos, end; /* of the next request in the tail */
    uint32_t done;
    uint32_t last_created;
};

static uint32_t align8(uint32_t n)
{
    return (n + 7u) & ~7u;
}

static void batch_abandon(struct call *c)
{
    if (c->u.batch->active)
        call_abandon(&c->u.batch->sub);
    free(c->u.batch);
}

static enum mf_status batch_begin(struct call *c)
{
    const struct mf_args_batch *a = c->req.args;

    if (a->count < 1 || a->count > BATCH_MAX)
        return error_set(&c->err, MF_E_RANGE, "count", "%u calls: possible are 1 to %u", a->count,
                         BATCH_MAX);
    c->u.batch = calloc(1, sizeof *c->u.batch);
    if (!c->u.batch)
        return error_set(&c->err, MF_E_NO_MEMORY, NULL, "no host memory for the batch");
    c->abandon = batch_abandon;
    call_reply(c, sizeof(struct mf_reply_batch));
    return MF_OK;
}

/* Decodes the request at b->pos. What is wrong is an error of that call, not of the batch. */
static enum mf_status sub_decode(struct call *c, struct batch *b)
{
    const uint8_t *at = c->req.tail + b->pos;
    uint32_t left = c->req.tail_len - b->pos;
    struct mf_msg m;
    enum mf_status st;

    if (left < sizeof m)
        return error_set(&b->sub.err, MF_E_MALFORMED, "size", "the batch ends before call %u",
                         b->done);
    memcpy(&m, at, sizeof m);
    if (m.size < sizeof m || m.size > left)
        return error_set(&b->sub.err, MF_E_SIZE, "size", "call %u has %u bytes, %u are left",
                         b->done, m.size, left);
    b->end = b->pos + align8(m.size);
    st = call_check(at, m.size, &b->sub.req, &b->sub.err);
    if (!st && m.nr == MF_CALL_BATCH)
        st = error_set(&b->sub.err, MF_E_RANGE, "nr", "a batch inside a batch");
    if (!st && (m.flags & MF_MSG_NO_CONT))
        st = error_set(&b->sub.err, MF_E_RESERVED, "flags", "MF_MSG_NO_CONT inside a batch");
    return st;
}

/* False: no room for another reply. */
static bool sub_begin(struct call *c, struct batch *b)
{
    uint32_t head = c->reply_len + (uint32_t)sizeof(struct mf_msg);

    memset(&b->sub, 0, sizeof b->sub);
    b->sub.core = c->core;
    b->sub.session = c->session;
    b->sub.fds = c->fds;
    b->sub.nr_fds = c->nr_fds;
    b->sub.next_fd = c->next_fd;
    b->sub.last_created = &b->last_created;
    if (head + sizeof(struct mf_error) > c->reply_cap)
        return false;
    b->sub.reply = c->reply + head;
    b->sub.reply_cap = c->reply_cap - head;
    return true;
}

static void sub_reply(struct call *c, struct batch *b, enum mf_status st)
{
    struct mf_msg m = {.magic = MF_MAGIC,
                       .nr = b->sub.req.msg.nr,
                       .flags = MF_MSG_REPLY,
                       .status = st,
                       .cookie = b->sub.req.msg.cookie};

    if (st) {
        memcpy(b->sub.reply, &b->sub.err, sizeof b->sub.err);
        b->sub.reply_len = sizeof b->sub.err;
    }
    m.size = (uint32_t)sizeof m + b->sub.reply_len;
    memcpy(c->reply + c->reply_len, &m, sizeof m);
    c->reply_len += m.size;
    while (c->reply_len % 8 && c->reply_len < c->reply_cap)
        c->reply[c->reply_len++] = 0;
}

/* One call, as far as it goes. MF_OK: next. Others but MF_AGAIN and MF_BLOCKED: the batch stops. */
static enum mf_status sub_run(struct call *c, struct batch *b)
{
    enum mf_status st = MF_OK;

    if (!b->active) {
        if (!sub_begin(c, b))
            return MF_E_TOO_BIG;
        st = sub_decode(c, b);
        if (!st && b->sub.req.row->reply_size > b->sub.reply_cap)
            return MF_E_TOO_BIG;
        b->active = !st;
    }
    if (!st)
        st = call_run(&b->sub);
    if (st == MF_AGAIN || st == MF_BLOCKED)
        return st;
    b->active = false;
    c->next_fd = b->sub.next_fd;
    sub_reply(c, b, st);
    return st;
}

enum mf_status handle_BATCH(struct call *c)
{
    const struct mf_args_batch *a = c->req.args;
    struct batch *b;

    if (!c->resumed) {
        enum mf_status st = batch_begin(c);

        if (st)
            return st;
    }
    b = c->u.batch;
    while (b->done < a->count) {
        enum mf_status st = sub_run(c, b);

        if (st == MF_AGAIN || st == MF_BLOCKED)
            return st;
        if (st)
            break;
        b->done++;
        b->pos = b->end < c->req.tail_len ? b->end : c->req.tail_len;
    }
    ((struct mf_reply_batch *)c->reply)->done = b->done;
    free(b);
    c->u.batch = NULL;
    return MF_OK;
}
