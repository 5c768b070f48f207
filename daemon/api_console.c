/* Consoles: what was written so far, what comes, and input. */
#include <stdlib.h>
#include <string.h>

#include "daemon/hvd.h"

#define READ_MAX  60000u
#define INPUT_MAX 32768u

/* Somebody who reads a console: up to where it was at first, or on until the VM has ended. */
struct follower {
    struct follower *prev, *next;
    struct hvd *d;
    struct req *r;
    uint32_t id;     /* of the VM in the core */
    uint64_t offset; /* of the next byte to ask for */
    struct buf data;
    size_t at;      /* bytes of `data` that are gone already */
    bool follow;    /* on until the end */
    bool begun;     /* the first read has come */
    bool streaming; /* the answer's head is out */
    bool asking;    /* a read is on its way */
    bool more;      /* there is something to ask for */
    bool ended;     /* nothing more will come */
    bool closed;    /* the client is gone, a read is still on its way */
};

static void ask(struct follower *f);

static void follower_free(struct follower *f)
{
    struct consoles *c = &f->d->consoles;

    *(f->prev != NULL ? &f->prev->next : &c->first) = f->next;
    if (f->next != NULL)
        f->next->prev = f->prev;
    if (f->follow && --c->following == 0 && f->d->core.state == CORE_UP)
        core_subscribe(&f->d->core, false);
    buf_fini(&f->data);
    free(f);
}

/* ---- the stream */

static ssize_t stream_read(void *arg, char *to, size_t max)
{
    struct follower *f = arg;
    size_t n = f->data.len - f->at;

    if (n == 0)
        return f->ended ? -1 : 0;
    if (n > max)
        n = max;
    memcpy(to, f->data.p + f->at, n);
    f->at += n;
    if (f->at == f->data.len) {
        f->at = f->data.len = 0;
        if (f->more && !f->asking)
            ask(f);
    }
    return (ssize_t)n;
}

static void stream_close(void *arg)
{
    struct follower *f = arg;

    f->closed = true;
    if (!f->asking)
        follower_free(f);
}

static const struct stream_ops console_stream = {stream_read, stream_close};

/* ---- reading */

static void finish_plain(struct follower *f)
{
    req_reply(f->r, 200, "text/plain", &f->data);
    follower_free(f);
}

static void begin_stream(struct follower *f, uint64_t offset)
{
    req_header(f->r, "Mayfly-Console-Offset", "%llu", (unsigned long long)offset);
    if (!f->follow)
        return;
    f->streaming = true;
    req_stream(f->r, "text/plain", &console_stream, f);
}

/* A failed read: the answer when it is the first one, else the end of what was begun. */
static void read_failed(struct follower *f, const struct link_reply *reply)
{
    if (f->streaming) {
        f->ended = true;
        stream_wake(f->r);
        return;
    }
    api_core_failed(f->r, reply);
    follower_free(f);
}

static void on_read(void *arg, const struct link_reply *reply)
{
    struct follower *f = arg;
    const struct mf_reply_console_read *c = reply->body;
    bool first = !f->begun;

    f->asking = false;
    f->begun = true;
    if (f->closed) {
        follower_free(f);
        return;
    }
    if (reply->status != MF_OK || c->count > reply->len - sizeof *c) {
        read_failed(f, reply);
        return;
    }
    buf_add(&f->data, c + 1, c->count);
    f->offset = c->offset + c->count;
    f->more = c->count > 0 && f->offset < c->end;
    f->ended = f->data.failed || (!f->more && (c->ended != 0 || !f->follow));
    if (first)
        begin_stream(f, c->offset);
    if (f->streaming)
        stream_wake(f->r);
    else if (f->more && f->data.len < MF_CONSOLE_SIZE_MAX)
        ask(f);
    else
        finish_plain(f);
}

static void ask(struct follower *f)
{
    struct mf_args_console_read a = {.vm = f->id, .max = READ_MAX, .offset = f->offset};

    f->asking = true;
    f->more = false;
    link_call(
        &f->d->core.link,
        &(struct link_request){.nr = MF_CALL_CONSOLE_READ, .args = &a, .fn = on_read, .arg = f});
}

void consoles_event(struct consoles *c, uint32_t id)
{
    for (struct follower *f = c->first, *next; f != NULL; f = next) {
        next = f->next;
        if (f->id != id || !f->streaming || f->closed)
            continue;
        f->more = true;
        if (!f->asking && f->data.len == 0)
            ask(f);
    }
}

void consoles_lost(struct consoles *c)
{
    for (struct follower *f = c->first; f != NULL; f = f->next) {
        f->ended = true;
        if (f->streaming && !f->closed)
            stream_wake(f->r);
    }
}

static void reply_nothing(struct req *r)
{
    struct buf b = {0};

    req_header(r, "Mayfly-Console-Offset", "0");
    req_reply(r, 200, "text/plain", &b);
}

void api_console_get(struct hvd *d, struct req *r)
{
    struct vm *vm = api_vm(d, r);
    const char *follow = req_query(r, "follow");
    uint64_t offset = 0;

    if (vm == NULL || !req_query_u64(r, "offset", 0, UINT64_MAX, &offset))
        return;
    if (follow != NULL && strcmp(follow, "0") != 0 && strcmp(follow, "1") != 0) {
        req_fail(r, MF_E_RANGE, "follow", "\"%.40s\": possible are 0 and 1", follow);
        return;
    }
    if (vm->id == 0) {
        reply_nothing(r);
        return;
    }
    struct follower *f = calloc(1, sizeof *f);
    if (f == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    *f = (struct follower){.d = d, .r = r, .id = vm->id, .offset = offset};
    f->follow = follow != NULL && follow[0] == '1';
    f->next = d->consoles.first;
    if (f->next != NULL)
        f->next->prev = f;
    d->consoles.first = f;
    /* Asked for before the first read: what comes behind it is announced. */
    if (f->follow && d->consoles.following++ == 0)
        core_subscribe(&d->core, true);
    ask(f);
}

/* ---- input */

static void on_written(void *arg, const struct link_reply *reply)
{
    struct req *r = arg;
    struct jsonw w = {.comma = false};

    if (reply->status != MF_OK) {
        api_core_failed(r, reply);
        return;
    }
    jsonw_object(&w);
    jsonw_ku64(&w, "taken", ((const struct mf_reply_console_write *)reply->body)->taken);
    jsonw_object_end(&w);
    req_json(r, 202, &w);
}

void api_console_post(struct hvd *d, struct req *r)
{
    struct vm *vm = api_vm(d, r);
    size_t n = r->body.len < INPUT_MAX ? r->body.len : INPUT_MAX;

    if (vm == NULL)
        return;
    if (vm->id == 0) {
        req_fail(r, MF_E_STATE, NULL, "the VM is %s: nobody reads its console",
                 vm_state_text(vm->state));
        return;
    }
    struct mf_args_console_write a = {.vm = vm->id, .count = (uint32_t)n};
    link_call(&d->core.link, &(struct link_request){.nr = MF_CALL_CONSOLE_WRITE,
                                                    .args = &a,
                                                    .tail = r->body.p,
                                                    .tail_len = n,
                                                    .fn = on_written,
                                                    .arg = r});
}
