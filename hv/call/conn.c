#include "hv/call/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define COALESCE 32u /* newest events that a console event looks through for its like */

struct conn *conn_create(struct server *s, int fd)
{
    struct conn *c = malloc(sizeof *c);

    if (!c) {
        close(fd);
        return NULL;
    }
    /* The two big buffers stay untouched until they are used. */
    memset(c, 0, offsetof(struct conn, request));
    c->server = s;
    c->fd = fd;
    for (unsigned i = 0; i < MF_MSG_FDS_MAX; i++)
        c->fds[i] = -1;
    return c;
}

static void close_fds(struct conn *c)
{
    for (unsigned i = 0; i < MF_MSG_FDS_MAX; i++) {
        if (c->fds[i] >= 0)
            close(c->fds[i]);
        c->fds[i] = -1;
    }
}

void conn_destroy(struct conn *c)
{
    call_abandon(&c->call);
    close_fds(c);
    close(c->fd);
    free(c->events);
    free(c);
}

/* ---- sending */

/* True: sent. False: would block, or the connection is dead. */
static bool send_packet(struct conn *c, const void *head, size_t head_len, const void *body,
                        size_t body_len)
{
    struct iovec iov[2] = {{(void *)(uintptr_t)head, head_len},
                           {(void *)(uintptr_t)body, body_len}};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = body_len ? 2 : 1};
    ssize_t n;

    do
        n = sendmsg(c->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS)
        c->dead = true;
    return n >= 0;
}

static void send_events(struct conn *c)
{
    while (!c->dead && (c->nr_events || c->lost)) {
        struct mf_msg m = {
            .magic = MF_MAGIC, .flags = MF_MSG_EVENT, .size = sizeof m + sizeof(struct mf_event)};
        struct event_item lost = {.nr = MF_EVENT_LOST,
                                  .event = {.at = host_now_ns(), .a = c->lost}};
        /* Losses are told when the queue has room again: after what was queued before. */
        struct event_item *i = c->nr_events ? &c->events[c->first_event] : &lost;

        m.nr = i->nr;
        i->event.seq = c->seq + 1;
        if (!send_packet(c, &m, sizeof m, &i->event, sizeof i->event))
            return;
        c->seq++;
        if (i == &lost) {
            c->lost = 0;
            continue;
        }
        c->first_event = (c->first_event + 1) % SERVER_CONN_EVENTS;
        c->nr_events--;
    }
}

/* Events first: what had happened before the reply was made is told before it. */
void conn_write(struct conn *c)
{
    send_events(c);
    if (c->state != CONN_SENDING || c->nr_events || c->lost)
        return;
    if (send_packet(c, c->reply, c->reply_size, NULL, 0))
        c->state = CONN_READING;
}

static void send_reply(struct conn *c)
{
    c->state = CONN_SENDING;
    server_spread(c->server);
    conn_write(c);
}

static void make_reply(struct conn *c, const struct call_request *r, enum mf_status st)
{
    struct mf_msg m = {.magic = MF_MAGIC,
                       .nr = r->msg.nr,
                       .flags = MF_MSG_REPLY,
                       .status = st,
                       .cookie = r->msg.cookie,
                       .cont = st == MF_AGAIN ? c->token : 0};
    uint32_t body = c->call.reply_len;

    if (st) {
        error_default(&c->call.err, st);
        memcpy(c->reply + sizeof m, &c->call.err, sizeof c->call.err);
        body = sizeof c->call.err;
    }
    m.size = (uint32_t)sizeof m + body;
    memcpy(c->reply, &m, sizeof m);
    c->reply_size = m.size;
}

void conn_refuse(int fd, enum mf_status st, const struct mf_error *e)
{
    struct {
        struct mf_msg m;
        struct mf_error e;
    } r = {.m = {.magic = MF_MAGIC, .flags = MF_MSG_REPLY, .size = sizeof r, .status = st},
           .e = *e};
    char dropped[sizeof r.m];

    /* What the peer sent already is taken: closing over it would take our answer away. */
    while (recv(fd, dropped, sizeof dropped, MSG_DONTWAIT) > 0)
        ;
    if (send(fd, &r, sizeof r, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        /* it will see the connection closed */
    }
}

/* ---- receiving */

static bool collect_fds(struct conn *c, struct msghdr *m, unsigned *n)
{
    *n = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            if (*n < MF_MSG_FDS_MAX)
                c->fds[(*n)++] = fd;
            else
                close(fd);
        }
    }
    return !(m->msg_flags & MSG_CTRUNC);
}

/* Bytes of the next request, 0 when there is none now (or the peer is gone: c->dead). */
static size_t receive(struct conn *c, enum mf_status *st)
{
    union {
        char buf[CMSG_SPACE(sizeof(int) * (MF_MSG_FDS_MAX + 4))];
        struct cmsghdr align;
    } u;
    struct iovec iov = {c->request, sizeof c->request};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof u.buf};
    ssize_t n;
    unsigned nr_fds;

    do
        n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        /* A zero-length packet reads like the end of the connection: it is treated as that. */
        c->dead = c->dead || n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
        return 0;
    }
    *st = MF_OK;
    memset(&c->call, 0, sizeof c->call);
    if (!collect_fds(c, &m, &nr_fds))
        *st = error_set(&c->call.err, MF_E_MALFORMED, "fds", "more than %u fds", MF_MSG_FDS_MAX);
    if (m.msg_flags & MSG_TRUNC)
        *st =
            error_set(&c->call.err, MF_E_SIZE, "size", "a message is at most %u bytes", MF_MSG_MAX);
    c->call.nr_fds = nr_fds;
    return (size_t)n;
}

static unsigned fds_allowed(unsigned nr)
{
    switch (nr) {
    case MF_CALL_BATCH:
        return MF_MSG_FDS_MAX;
    case MF_CALL_VM_IMAGE:
        return 1 + MF_MODULES_MAX;
    case MF_CALL_STRATEGY_LOAD:
        return 1;
    default:
        return 0;
    }
}

static void finish(struct conn *c, enum mf_status st)
{
    close_fds(c);
    if (!st && (c->session.mask && !c->events)) {
        c->events = malloc(SERVER_CONN_EVENTS * sizeof *c->events);
        if (!c->events) {
            c->session.mask = 0;
            st = error_set(&c->call.err, MF_E_NO_MEMORY, "mask", "no host memory for events");
        }
    }
    make_reply(c, &c->call.req, st);
    send_reply(c);
}

/* The call has not finished: it waits here, or, if the client wants that, is parked. */
static void wait_on(struct conn *c, enum mf_status st)
{
    static uint64_t last_token;

    if (!(c->call.req.msg.flags & MF_MSG_NO_CONT)) {
        c->state = st == MF_AGAIN ? CONN_AGAIN : CONN_BLOCKED;
        c->server->again = c->server->again || st == MF_AGAIN;
        return;
    }
    c->token = ++last_token;
    memset(&c->call.err, 0, sizeof c->call.err);
    make_reply(c, &c->call.req, MF_AGAIN);
    send_reply(c);
}

static void run(struct conn *c)
{
    enum mf_status st = call_run(&c->call);

    if (st == MF_AGAIN || st == MF_BLOCKED)
        wait_on(c, st);
    else
        finish(c, st);
}

/*
 * A request with a continuation: the parked call goes on. Its arguments are those of its first
 * request, which lie in c->request: the new message must be the same, so nothing is lost.
 */
static enum mf_status unpark(struct conn *c, struct call *parked, const struct call_request *r)
{
    bool same = c->token && r->msg.cont == c->token && r->msg.nr == parked->req.msg.nr;

    if (!same && c->token)
        call_abandon(parked);
    c->token = 0;
    if (!same)
        return error_set(&c->call.err, MF_E_RANGE, "cont", "no call waits with this continuation");
    c->call = *parked;
    c->call.req = *r;
    return MF_OK;
}

static void handle(struct conn *c, size_t n, enum mf_status st, struct call *parked)
{
    struct call_request *r = &c->call.req;

    if (!st)
        st = call_check(c->request, n, r, &c->call.err);
    else if (n >= sizeof r->msg)
        memcpy(&r->msg, c->request, sizeof r->msg); /* for the reply's header */
    if (!st && c->call.nr_fds > fds_allowed(r->msg.nr))
        st = error_set(&c->call.err, MF_E_MALFORMED, "fds", "%s takes %u fds, %u came",
                       r->row->name, fds_allowed(r->msg.nr), c->call.nr_fds);
    if (!st && r->msg.cont) {
        struct call_request again = *r;

        st = unpark(c, parked, &again);
    } else if (c->token) {
        call_abandon(parked); /* the client went on to something else */
        c->token = 0;
    }
    if (st) {
        finish(c, st);
        return;
    }
    c->call.core = c->server->core;
    c->call.session = &c->session;
    c->call.fds = c->fds;
    c->call.reply = c->reply + sizeof(struct mf_msg);
    c->call.reply_cap = CALL_BODY_MAX;
    run(c);
}

void conn_read(struct conn *c)
{
    /* A client that sends without end gets its turn with the others. */
    for (unsigned i = 0; i < 16 && c->state == CONN_READING && !c->dead; i++) {
        struct call parked = c->call;
        enum mf_status st;
        size_t n = receive(c, &st);

        if (!n)
            return;
        handle(c, n, st, &parked);
    }
}

void conn_resume(struct conn *c, bool woken)
{
    if (c->state == CONN_AGAIN || (c->state == CONN_BLOCKED && woken))
        run(c);
}

/* ---- events */

void conn_lost(struct conn *c, uint64_t n)
{
    if (c->session.mask)
        c->lost += n;
}

void conn_event(struct conn *c, const struct event_item *item)
{
    unsigned last = c->first_event + c->nr_events;

    if (!(c->session.mask & (1u << item->nr)) || !c->events)
        return;
    if (item->nr == MF_EVENT_CONSOLE) {
        for (unsigned i = 1; i <= c->nr_events && i <= COALESCE; i++) {
            struct event_item *old = &c->events[(last - i) % SERVER_CONN_EVENTS];

            if (old->nr == MF_EVENT_CONSOLE && old->event.vm == item->event.vm) {
                old->event.a = item->event.a;
                return;
            }
        }
    }
    if (c->nr_events == SERVER_CONN_EVENTS) {
        c->lost++;
        return;
    }
    c->events[last % SERVER_CONN_EVENTS] = *item;
    c->nr_events++;
}

uint32_t conn_wants(const struct conn *c)
{
    uint32_t in = c->state == CONN_READING ? EPOLLIN : 0;
    uint32_t out = c->state == CONN_SENDING || c->nr_events || c->lost ? EPOLLOUT : 0;

    return in | out;
}
