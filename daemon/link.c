#include "daemon/link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NO_SLOT      UINT32_MAX
#define READS_A_TURN 64 /* packets taken before the loop's other work gets its turn */
#define SWEEP_MS     500u

struct link_call {
    uint32_t uses; /* upper half of the cookie */
    uint32_t next; /* in the free list */
    uint16_t nr;
    bool busy;
    link_reply_fn fn;
    void *arg;
    uint64_t deadline; /* loop time in ms; 0: has timed out, the slot waits for the late answer */
};

/* A message that did not fit into the socket yet. */
struct out_msg {
    struct out_msg *next;
    int fds[MF_MSG_FDS_MAX]; /* duplicates, owned */
    unsigned nr_fds;
    size_t len;
    uint8_t bytes[];
};

struct link_conn {
    uv_poll_t poll;
    struct link *owner;
    int fd;
    struct out_msg *out, **out_tail;
};

static const struct mf_error err_gone = {.text = "the connection to the core was lost"};
static const struct mf_error err_time = {.text = "the core did not answer in time"};
static const struct mf_error err_nomem = {.text = "the daemon is out of memory"};

/* ---- slots */

static struct link_call *slot_of(struct link *l, uint64_t cookie)
{
    uint32_t i = (uint32_t)cookie;

    if (i >= l->nr_calls || !l->call[i].busy || l->call[i].uses != (uint32_t)(cookie >> 32))
        return NULL;
    return &l->call[i];
}

static bool slots_grow(struct link *l)
{
    uint32_t n = l->nr_calls == 0 ? 32 : l->nr_calls * 2;
    struct link_call *c = n > (1u << 20) ? NULL : realloc(l->call, n * sizeof *c);

    if (c == NULL)
        return false;
    for (uint32_t i = l->nr_calls; i < n; i++)
        c[i] = (struct link_call){.next = i + 1 < n ? i + 1 : NO_SLOT};
    l->free_head = l->nr_calls;
    l->nr_calls = n;
    l->call = c;
    return true;
}

static struct link_call *slot_take(struct link *l, const struct link_request *r)
{
    if (l->free_head == NO_SLOT && !slots_grow(l))
        return NULL;
    struct link_call *c = &l->call[l->free_head];
    l->free_head = c->next;
    c->busy = true;
    c->uses++;
    c->nr = (uint16_t)r->nr;
    c->fn = r->fn;
    c->arg = r->arg;
    c->deadline = uv_now(l->loop) + l->timeout_ms;
    l->pending++;
    return c;
}

static void slot_drop(struct link *l, struct link_call *c)
{
    c->busy = false;
    c->next = l->free_head;
    l->free_head = (uint32_t)(c - l->call);
    l->pending--;
}

static void answer(link_reply_fn fn, void *arg, enum mf_status st, const struct mf_error *err)
{
    struct link_reply r = {.status = st, .err = err};

    if (fn != NULL)
        fn(arg, &r);
}

/* Callbacks may make new calls: those of a closed connection fail at once and take no slot. */
static void answer_all(struct link *l)
{
    for (uint32_t i = 0; i < l->nr_calls; i++) {
        struct link_call c = l->call[i];
        if (!c.busy)
            continue;
        slot_drop(l, &l->call[i]);
        if (c.deadline != 0)
            answer(c.fn, c.arg, MF_E_UNAVAILABLE, &err_gone);
    }
}

static void on_sweep(uv_timer_t *t)
{
    struct link *l = t->data;
    uint64_t now = uv_now(l->loop);

    for (uint32_t i = 0; l->pending > 0 && i < l->nr_calls; i++) {
        struct link_call *c = &l->call[i];
        if (!c->busy || c->deadline == 0 || c->deadline > now)
            continue;
        c->deadline = 0;
        answer(c->fn, c->arg, MF_E_TIMEOUT, &err_time);
    }
}

/* ---- connection */

bool link_init(struct link *l, uv_loop_t *loop, const struct link_watcher *w)
{
    *l = (struct link){
        .loop = loop, .watcher = *w, .free_head = NO_SLOT, .timeout_ms = LINK_TIMEOUT_MS};
    l->packet = aligned_alloc(8, MF_MSG_MAX);
    l->sweep = malloc(sizeof *l->sweep);
    if (l->packet == NULL || l->sweep == NULL) {
        free(l->packet);
        free(l->sweep);
        return false;
    }
    uv_timer_init(loop, l->sweep);
    l->sweep->data = l;
    uv_timer_start(l->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    uv_unref((uv_handle_t *)l->sweep);
    return true;
}

static void free_handle(uv_handle_t *h)
{
    free(h);
}

void link_fini(struct link *l)
{
    link_close(l);
    uv_close((uv_handle_t *)l->sweep, free_handle);
    free(l->call);
    free(l->packet);
    *l = (struct link){0};
}

bool link_is_open(const struct link *l)
{
    return l->conn != NULL;
}

static void out_free(struct out_msg *m)
{
    for (unsigned i = 0; i < m->nr_fds; i++)
        close(m->fds[i]);
    free(m);
}

static void on_poll_closed(uv_handle_t *h)
{
    struct link_conn *c = h->data;

    close(c->fd);
    free(c);
}

void link_close(struct link *l)
{
    struct link_conn *c = l->conn;

    if (c == NULL)
        return;
    l->conn = NULL;
    while (c->out != NULL) {
        struct out_msg *m = c->out;
        c->out = m->next;
        out_free(m);
    }
    uv_poll_stop(&c->poll);
    shutdown(c->fd, SHUT_RDWR); /* the peer sees it now, not when the loop comes round */
    uv_close((uv_handle_t *)&c->poll, on_poll_closed);
    answer_all(l);
}

static void lose(struct link *l, const char *why)
{
    if (l->conn == NULL)
        return;
    link_close(l);
    l->watcher.lost(l->watcher.arg, why);
}

static int connect_to(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof a.sun_path)
        return -ENAMETOOLONG;
    memcpy(a.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        int e = errno;
        close(fd);
        return -e;
    }
    return fd;
}

static void on_poll(uv_poll_t *h, int status, int events);

int link_open(struct link *l, const char *path)
{
    int fd = connect_to(path);

    if (fd < 0)
        return fd;
    struct link_conn *c = calloc(1, sizeof *c);
    int r = c == NULL ? -ENOMEM : uv_poll_init(l->loop, &c->poll, fd);
    if (r != 0) {
        free(c);
        close(fd);
        return r;
    }
    c->fd = fd;
    c->owner = l;
    c->out_tail = &c->out;
    c->poll.data = c;
    l->conn = c;
    uv_poll_start(&c->poll, UV_READABLE, on_poll);
    return 0;
}

/* ---- sending */

static int send_packet(int fd, struct iovec *iov, int nr_iov, const int *fds, unsigned nr_fds)
{
    union {
        struct cmsghdr h;
        char space[CMSG_SPACE(sizeof(int) * MF_MSG_FDS_MAX)];
    } control;
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)nr_iov};

    if (nr_fds > 0) {
        memset(&control, 0, sizeof control);
        m.msg_control = control.space;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * nr_fds);
        control.h.cmsg_level = SOL_SOCKET;
        control.h.cmsg_type = SCM_RIGHTS;
        control.h.cmsg_len = CMSG_LEN(sizeof(int) * nr_fds);
        memcpy(CMSG_DATA(&control.h), fds, sizeof(int) * nr_fds);
    }
    while (sendmsg(fd, &m, MSG_NOSIGNAL) < 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

static bool queue_packet(struct link_conn *c, const struct iovec *iov, int nr_iov, const int *fds,
                         unsigned nr_fds)
{
    size_t len = 0;

    for (int i = 0; i < nr_iov; i++)
        len += iov[i].iov_len;
    struct out_msg *m = calloc(1, sizeof *m + len);
    if (m == NULL)
        return false;
    for (int i = 0; i < nr_iov; i++) {
        if (iov[i].iov_len > 0)
            memcpy(m->bytes + m->len, iov[i].iov_base, iov[i].iov_len);
        m->len += iov[i].iov_len;
    }
    for (; m->nr_fds < nr_fds; m->nr_fds++) {
        int fd = fcntl(fds[m->nr_fds], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            out_free(m);
            return false;
        }
        m->fds[m->nr_fds] = fd;
    }
    *c->out_tail = m;
    c->out_tail = &m->next;
    uv_poll_start(&c->poll, UV_READABLE | UV_WRITABLE, on_poll);
    return true;
}

static bool would_block(int r)
{
    return r == -EAGAIN || r == -EWOULDBLOCK || r == -ENOBUFS;
}

void link_call(struct link *l, const struct link_request *r)
{
    static const uint8_t zeroes[512];
    const struct mf_call_row *row = mf_call_row((unsigned)r->nr);
    size_t args_size = row == NULL ? 0 : row->args_size; /* every call has a row */
    struct link_call *slot = l->conn == NULL ? NULL : slot_take(l, r);

    if (slot == NULL) {
        answer(r->fn, r->arg, l->conn == NULL ? MF_E_UNAVAILABLE : MF_E_NO_MEMORY,
               l->conn == NULL ? &err_gone : &err_nomem);
        return;
    }
    struct mf_msg m = {.magic = MF_MAGIC, .nr = (uint16_t)r->nr};
    m.size = (uint32_t)(sizeof m + args_size + r->tail_len);
    m.cookie = (uint64_t)slot->uses << 32 | (uint32_t)(slot - l->call);
    const void *args = r->args == NULL ? zeroes : r->args;
    struct iovec iov[] = {{&m, sizeof m},
                          {(void *)(uintptr_t)args, args_size},
                          {(void *)(uintptr_t)r->tail, r->tail_len}};
    int e = -EAGAIN;
    if (l->conn->out == NULL)
        e = send_packet(l->conn->fd, iov, 3, r->fds, r->nr_fds);
    if (e == 0 || (would_block(e) && queue_packet(l->conn, iov, 3, r->fds, r->nr_fds)))
        return;
    /* A dead peer is noticed by the reading side too: here only this call fails. */
    slot_drop(l, slot);
    answer(r->fn, r->arg, would_block(e) ? MF_E_NO_MEMORY : MF_E_UNAVAILABLE,
           would_block(e) ? &err_nomem : &err_gone);
}

static void flush(struct link_conn *c)
{
    while (c->out != NULL) {
        struct out_msg *m = c->out;
        struct iovec iov = {m->bytes, m->len};
        if (would_block(send_packet(c->fd, &iov, 1, m->fds, m->nr_fds)))
            return;
        c->out = m->next;
        out_free(m);
    }
    c->out_tail = &c->out;
    uv_poll_start(&c->poll, UV_READABLE, on_poll);
}

/* ---- receiving */

static const char *take_event(struct link *l, const struct mf_msg *m, const uint8_t *body)
{
    struct mf_event e;

    if (m->size != sizeof *m + sizeof e)
        return "an event of the wrong size";
    memcpy(&e, body, sizeof e);
    e.text[sizeof e.text - 1] = '\0';
    l->watcher.event(l->watcher.arg, (enum mf_event_nr)m->nr, &e);
    return NULL;
}

static const char *take_reply(struct link *l, const struct mf_msg *m, const uint8_t *body)
{
    struct link_call *slot = slot_of(l, m->cookie);
    size_t len = m->size - sizeof *m;

    const struct mf_call_row *row = mf_call_row(m->nr);
    if (slot == NULL || row == NULL)
        return "a reply that nobody waits for";
    if (slot->nr != m->nr)
        return "a reply to another call";
    if (m->status >= MF_STATUS_END_ || m->status == MF_AGAIN || m->status == MF_BLOCKED)
        return "a reply with an unknown status";
    if (m->status == MF_OK ? len < row->reply_size : len != sizeof(struct mf_error))
        return "a reply of the wrong size";
    struct link_call c = *slot;
    slot_drop(l, slot);
    if (c.deadline == 0 || c.fn == NULL)
        return NULL;
    struct mf_error err;
    struct link_reply r = {.status = (enum mf_status)m->status, .body = body, .len = len};
    if (m->status != MF_OK) {
        memcpy(&err, body, sizeof err);
        err.field[sizeof err.field - 1] = '\0';
        err.text[sizeof err.text - 1] = '\0';
        r = (struct link_reply){.status = (enum mf_status)m->status, .err = &err};
    }
    c.fn(c.arg, &r);
    return NULL;
}

static const char *take_packet(struct link *l, size_t n)
{
    struct mf_msg m;

    if (n < sizeof m)
        return "a message shorter than its header";
    memcpy(&m, l->packet, sizeof m);
    if (m.magic != MF_MAGIC || m.size != n)
        return "a message with a bad header";
    if (m.flags == MF_MSG_EVENT)
        return take_event(l, &m, l->packet + sizeof m);
    if (m.flags == MF_MSG_REPLY)
        return take_reply(l, &m, l->packet + sizeof m);
    return "a message that is neither reply nor event";
}

static void read_packets(struct link *l, struct link_conn *c)
{
    char why[128];

    for (int i = 0; i < READS_A_TURN && l->conn == c; i++) {
        struct iovec iov = {l->packet, MF_MSG_MAX};
        struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1}; /* fds are not for us: dropped */
        ssize_t n = recvmsg(c->fd, &h, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            lose(l, n == 0 ? "the core closed the connection" : strerror(errno));
            return;
        }
        const char *bad = take_packet(l, (size_t)n);
        if (bad != NULL) {
            snprintf(why, sizeof why, "the core sent %s", bad);
            if (l->conn == c)
                lose(l, why);
            return;
        }
    }
}

static void on_poll(uv_poll_t *h, int status, int events)
{
    struct link_conn *c = h->data;
    struct link *l = c->owner;

    if (status < 0) {
        read_packets(l,
                     c); /* what came before the end still counts, and it says what the end was */
        if (l->conn == c)
            lose(l, uv_strerror(status));
        return;
    }
    if (events & UV_WRITABLE)
        flush(c);
    if (events & UV_READABLE)
        read_packets(l, c);
}

/* ---- batches */

void link_batch_add(struct link_batch *b, enum mf_call_nr nr, const void *args, const void *tail,
                    size_t tail_len)
{
    const struct mf_call_row *row = mf_call_row((unsigned)nr);
    size_t args_size = row == NULL ? 0 : row->args_size; /* every call has a row */
    size_t size = sizeof(struct mf_msg) + args_size + tail_len;
    struct mf_msg m = {.magic = MF_MAGIC, .nr = (uint16_t)nr, .size = (uint32_t)size};

    if (b->full || size > sizeof b->tail - 8 - b->len) {
        b->full = true;
        return;
    }
    uint8_t *at = b->tail + b->len;
    memcpy(at, &m, sizeof m);
    at += sizeof m;
    if (args != NULL)
        memcpy(at, args, args_size);
    else
        memset(at, 0, args_size);
    if (tail_len > 0)
        memcpy(at + args_size, tail, tail_len);
    size_t padded = (size + 7) & ~(size_t)7;
    memset(b->tail + b->len + size, 0, padded - size);
    b->len += padded;
    b->count++;
}

void link_batch_call(struct link *l, const struct link_batch *b, const int *fds, unsigned nr_fds,
                     link_reply_fn fn, void *arg)
{
    struct mf_args_batch a = {.count = b->count};
    struct link_request r = {.nr = MF_CALL_BATCH,
                             .args = &a,
                             .tail = b->tail,
                             .tail_len = b->len,
                             .fds = fds,
                             .nr_fds = nr_fds,
                             .fn = fn,
                             .arg = arg};

    if (b->full)
        answer(fn, arg, MF_E_TOO_BIG, &err_nomem);
    else
        link_call(l, &r);
}

bool link_batch_next(const struct link_reply *r, size_t *at, uint16_t *nr, struct link_reply *sub)
{
    const uint8_t *body = r->body;
    struct mf_msg m;

    if (*at == 0)
        *at = sizeof(struct mf_reply_batch);
    if (*at > r->len || r->len - *at < sizeof m)
        return false;
    memcpy(&m, body + *at, sizeof m);
    if (m.magic != MF_MAGIC || m.size < sizeof m || m.size > r->len - *at)
        return false;
    const struct mf_call_row *row = mf_call_row(m.nr);
    size_t len = m.size - sizeof m;
    if (row == NULL || m.status >= MF_STATUS_END_ ||
        len < (m.status == MF_OK ? row->reply_size : sizeof(struct mf_error)))
        return false;
    *nr = m.nr;
    *sub = (struct link_reply){.status = (enum mf_status)m.status, .len = len};
    if (m.status == MF_OK)
        sub->body = body + *at + sizeof m;
    else
        sub->err = (const struct mf_error *)(const void *)(body + *at + sizeof m);
    *at += (m.size + 7u) & ~(size_t)7;
    return true;
}
