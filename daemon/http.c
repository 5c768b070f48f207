#include "daemon/http.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/parse.h"
#include "daemon/router.h"

#define CONNECTIONS_MAX 1024u
#define IDLE_SECONDS    60u
#define DROP_MAX        (16u << 20) /* of an unwanted body, before the connection is cut */
#define RUNS_A_TURN     16

static void http_run(struct http *h);

/* ---- the answer */

static void resume(struct req *r)
{
    if (r->watched) {
        epoll_ctl(r->h->gone_fd, EPOLL_CTL_DEL,
                  MHD_get_connection_info(r->conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
                  NULL);
        r->watched = false;
    }
    if (!r->suspended)
        return;
    r->suspended = false;
    MHD_resume_connection(r->conn);
    r->h->kick = true;
}

static void set_response(struct req *r, unsigned status, const char *type,
                         struct MHD_Response *resp)
{
    if (r->response != NULL) { /* answered already: a fault of ours that must not hurt */
        log_line(LOG_ERROR, "a request was answered twice");
        MHD_destroy_response(resp);
        return;
    }
    if (type != NULL)
        MHD_add_response_header(resp, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    for (int i = 0; i < REQ_HEADERS; i++)
        if (r->header[i].name[0] != '\0')
            MHD_add_response_header(resp, r->header[i].name, r->header[i].value);
    r->status = status;
    r->response = resp;
    r->on_gone = NULL;
    if (r->dispatched)
        resume(r);
}

/* What is said when there is no memory to say it: static bytes. */
static struct MHD_Response *nomem_response(void)
{
    static char text[] = "{\"type\":\"about:blank\",\"title\":\"not enough free machine memory\","
                         "\"status\":503,\"code\":\"out-of-memory\","
                         "\"detail\":\"the daemon is out of memory\"}";

    return MHD_create_response_from_buffer(sizeof text - 1, text, MHD_RESPMEM_PERSISTENT);
}

void req_reply(struct req *r, unsigned status, const char *type, struct buf *b)
{
    struct MHD_Response *resp = NULL;
    size_t len;

    if (!b->failed) {
        char *p = buf_take(b, &len);
        resp = MHD_create_response_from_buffer(len, p, MHD_RESPMEM_MUST_FREE);
        if (resp == NULL)
            free(p);
    } else {
        buf_fini(b);
    }
    if (resp == NULL) {
        status = 503;
        type = "application/problem+json";
        resp = nomem_response();
    }
    set_response(r, status, type, resp);
}

void req_json(struct req *r, unsigned status, struct jsonw *w)
{
    buf_char(&w->b, '\n');
    req_reply(r, status, "application/json", &w->b);
}

void req_empty(struct req *r, unsigned status)
{
    struct buf b = {0};

    req_reply(r, status, NULL, &b);
}

void req_problem(struct req *r, const struct problem *p)
{
    struct jsonw w = {.comma = false};

    problem_json(p, &w);
    buf_char(&w.b, '\n');
    if (p->status == MF_E_UNAVAILABLE)
        req_header(r, "Retry-After", "1");
    req_reply(r, (unsigned)mf_status_row(p->status)->http, "application/problem+json", &w.b);
}

void req_fail(struct req *r, enum mf_status st, const char *field, const char *fmt, ...)
{
    struct problem p = {0};
    char detail[sizeof p.detail];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    problem_set(&p, st, field, "%s", detail);
    req_problem(r, &p);
}

void req_header(struct req *r, const char *name, const char *fmt, ...)
{
    va_list ap;

    for (int i = 0; i < REQ_HEADERS; i++) {
        if (r->header[i].name[0] != '\0')
            continue;
        snprintf(r->header[i].name, sizeof r->header[i].name, "%s", name);
        va_start(ap, fmt);
        vsnprintf(r->header[i].value, sizeof r->header[i].value, fmt, ap);
        va_end(ap);
        return;
    }
}

/* ---- clients that hang up */

/* Without any event asked for, epoll still reports a hangup: both directions closed. */
static void watch(struct req *r)
{
    struct epoll_event e = {.events = 0, .data.ptr = r};
    int fd = MHD_get_connection_info(r->conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;

    if (!r->watched && epoll_ctl(r->h->gone_fd, EPOLL_CTL_ADD, fd, &e) == 0)
        r->watched = true;
}

void req_on_gone(struct req *r, void (*fn)(void *arg), void *arg)
{
    r->on_gone = fn;
    r->gone_arg = arg;
    if (fn != NULL && r->suspended)
        watch(r);
}

static void on_gone_poll(uv_poll_t *p, int status, int events)
{
    struct http *h = p->data;
    struct epoll_event e[32];

    (void)status;
    (void)events;
    int n = epoll_wait(h->gone_fd, e, 32, 0);
    for (int i = 0; i < n; i++) {
        struct req *r = e[i].data.ptr;
        if (!r->watched)
            continue;
        void (*fn)(void *) = r->on_gone;
        r->gone = true;
        r->on_gone = NULL;
        if (r->stream != NULL) {
            resume(r);
            continue;
        }
        int fd = MHD_get_connection_info(r->conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        epoll_ctl(h->gone_fd, EPOLL_CTL_DEL, fd, NULL);
        r->watched = false;
        if (fn != NULL)
            fn(r->gone_arg);
    }
}

/* ---- streams */

static ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max)
{
    struct req *r = cls;

    (void)pos;
    if (r->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (r->h->quitting)
        return MHD_CONTENT_READER_END_OF_STREAM;
    ssize_t n = r->stream->read(r->stream_arg, to, max);
    if (n < 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        r->suspended = true;
        MHD_suspend_connection(r->conn);
        watch(r);
    }
    return n;
}

void req_stream(struct req *r, const char *type, const struct stream_ops *ops, void *arg)
{
    struct MHD_Response *resp =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32768, stream_read, r, NULL);

    if (resp == NULL) {
        ops->close(arg);
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    r->stream = ops;
    r->stream_arg = arg;
    set_response(r, 200, type, resp);
}

void stream_wake(struct req *r)
{
    if (r->suspended)
        resume(r);
}

/* ---- the question */

const char *req_query(struct req *r, const char *name)
{
    const char *v = NULL;

    if (MHD_lookup_connection_value_n(r->conn, MHD_GET_ARGUMENT_KIND, name, strlen(name), &v,
                                      NULL) != MHD_YES)
        return NULL;
    return v == NULL ? "" : v;
}

bool req_query_u64(struct req *r, const char *name, uint64_t lo, uint64_t hi, uint64_t *out)
{
    const char *s = req_query(r, name);
    uint64_t v;

    if (s == NULL)
        return true;
    if (parse_u64(s, &v) != MF_OK || v < lo || v > hi) {
        req_fail(r, MF_E_RANGE, name, "\"%.40s\": possible are %llu to %llu", s,
                 (unsigned long long)lo, (unsigned long long)hi);
        return false;
    }
    *out = v;
    return true;
}

static const char *request_header(struct req *r, const char *name)
{
    return MHD_lookup_connection_value(r->conn, MHD_HEADER_KIND, name);
}

bool req_accepts(struct req *r, const char *type)
{
    const char *accept = request_header(r, MHD_HTTP_HEADER_ACCEPT);
    const char *at = accept == NULL ? NULL : strstr(accept, type);
    const char *json = accept == NULL ? NULL : strstr(accept, "application/json");

    return at != NULL && (json == NULL || at < json);
}

/* The media type without parameters, in small letters. */
static void media_type(const char *header, char out[64])
{
    size_t n = strcspn(header, "; \t");

    if (n > 63)
        n = 63;
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(header[i] >= 'A' && header[i] <= 'Z' ? header[i] + 32 : header[i]);
    out[n] = '\0';
}

static void check_media_type(struct req *r)
{
    const char *header = request_header(r, MHD_HTTP_HEADER_CONTENT_TYPE);
    char type[64];

    if (header == NULL || r->route->body == BODY_NONE || r->route->body == BODY_RAW)
        return;
    media_type(header, type);
    if (strcmp(type, "application/json") == 0)
        return;
    r->xml = strcmp(type, "application/xml") == 0 || strcmp(type, "text/xml") == 0;
    if (!r->xml || r->route->body != BODY_DEF)
        problem_set(&r->verdict, MF_E_MEDIA_TYPE, "Content-Type", "\"%.60s\": accepted here %s",
                    type,
                    r->route->body == BODY_DEF ? "are application/json and application/xml"
                                               : "is application/json");
}

/* True when the head says that the body is too long. */
static bool announces_too_much(struct req *r)
{
    const char *header = request_header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t n;

    return header != NULL && (parse_u64(header, &n) != MF_OK || n > HTTP_BODY_MAX);
}

static enum MHD_Result queue(struct req *r)
{
    unsigned digit = r->status / 100;

    r->queued = true;
    r->h->answered[digit < 6 ? digit : 0]++;
    enum MHD_Result ok = MHD_queue_response(r->conn, r->status, r->response);
    return ok;
}

static void find_route(struct req *r, const char *url, const char *method)
{
    char allow[64];

    r->path = strdup(url);
    if (r->path == NULL) {
        problem_nomem(&r->verdict);
        return;
    }
    r->route =
        router_find(routes, nr_routes, method, r->path, r->arg, REQ_ARGS, allow, sizeof allow);
    if (r->route != NULL) {
        check_media_type(r);
    } else if (allow[0] != '\0') {
        req_header(r, MHD_HTTP_HEADER_ALLOW, "%s", allow);
        problem_set(&r->verdict, MF_E_METHOD, NULL, "%.20s is not possible here: %s are", method,
                    allow);
    } else {
        problem_set(&r->verdict, MF_E_NOT_FOUND, NULL, "there is no endpoint %.120s", url);
    }
}

/*
 * The library takes no answer while a body is coming in, and closing at once would take the answer
 * from a client that is still sending. So the answer is written here, and what still comes is
 * dropped up to a limit.
 */
static void cut_off(struct req *r)
{
    static const char body[] =
        "{\"type\":\"about:blank\",\"title\":\"larger than the limit\",\"status\":413,"
        "\"code\":\"too-big\",\"detail\":\"a body has at most 1048576 bytes\"}\n";
    int fd = MHD_get_connection_info(r->conn, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    char text[512];

    _Static_assert(HTTP_BODY_MAX == 1048576, "the text above says so");
    int n = snprintf(text, sizeof text,
                     "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n"
                     "Content-Type: application/problem+json\r\nContent-Length: %zu\r\n\r\n%s",
                     sizeof body - 1, body);
    r->cut_off = true;
    r->h->answered[4]++;
    buf_fini(&r->body);
    if (send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) != n || shutdown(fd, SHUT_WR) != 0)
        r->dropped = DROP_MAX + 1; /* it takes nothing from us: no reason to wait for it */
}

static enum MHD_Result take_head(struct req *r, const char *url, const char *method)
{
    r->seen = true;
    find_route(r, url, method);
    if (!announces_too_much(r))
        return MHD_YES;
    if (request_header(r, MHD_HTTP_HEADER_EXPECT) == NULL) {
        cut_off(r);
        return MHD_YES;
    }
    /* A client that asks before it sends gets the plain answer. */
    r->verdict = (struct problem){0};
    problem_set(&r->verdict, MF_E_TOO_BIG, NULL, "a body has at most %u bytes", HTTP_BODY_MAX);
    req_header(r, MHD_HTTP_HEADER_CONNECTION, "close"); /* it may send the body all the same */
    req_problem(r, &r->verdict);
    return queue(r);
}

static enum MHD_Result take_body(struct req *r, const char *data, size_t n)
{
    if (r->verdict.status != MF_OK || r->cut_off || r->route->body == BODY_NONE)
        r->dropped += n;
    else
        buf_add(&r->body, data, n);
    if (!r->cut_off && r->dropped + r->body.len > HTTP_BODY_MAX)
        cut_off(r);
    return r->dropped > DROP_MAX ? MHD_NO : MHD_YES;
}

static enum MHD_Result dispatch(struct req *r)
{
    if (r->cut_off)
        return MHD_NO;
    r->began = uv_hrtime();
    if (r->body.failed)
        problem_nomem(&r->verdict);
    if (r->h->quitting)
        problem_set(&r->verdict, MF_E_UNAVAILABLE, NULL, "the daemon is going down");
    if (r->verdict.status != MF_OK)
        req_problem(r, &r->verdict);
    else
        r->route->handler(r->h->d, r);
    r->dispatched = true;
    if (r->response != NULL)
        return queue(r);
    r->suspended = true;
    MHD_suspend_connection(r->conn);
    if (r->on_gone != NULL)
        watch(r);
    return MHD_YES;
}

static struct req *req_create(struct http *h, struct MHD_Connection *conn)
{
    struct req *r = calloc(1, sizeof *r);

    if (r == NULL)
        return NULL;
    r->h = h;
    r->conn = conn;
    r->next = h->reqs;
    if (h->reqs != NULL)
        h->reqs->prev = r;
    h->reqs = r;
    h->nr_reqs++;
    return r;
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *conn, const char *url,
                                 const char *method, const char *version, const char *data,
                                 size_t *n, void **req_cls)
{
    struct http *h = cls;
    struct req *r = *req_cls;

    (void)version;
    if (r == NULL) {
        *req_cls = r = req_create(h, conn);
        return r == NULL ? MHD_NO : take_head(r, url, method);
    }
    if (*n > 0) {
        size_t got = *n;
        *n = 0;
        return take_body(r, data, got);
    }
    if (r->queued)
        return MHD_YES;
    if (!r->dispatched)
        return dispatch(r);
    return r->response != NULL ? queue(r) : MHD_YES;
}

static void on_completed(void *cls, struct MHD_Connection *conn, void **req_cls,
                         enum MHD_RequestTerminationCode code)
{
    struct http *h = cls;
    struct req *r = *req_cls;

    (void)conn;
    (void)code;
    if (r == NULL)
        return;
    *req_cls = NULL;
    if (r->watched)
        resume(r);
    if (r->stream != NULL)
        r->stream->close(r->stream_arg);
    if (r->prev != NULL)
        r->prev->next = r->next;
    else
        h->reqs = r->next;
    if (r->next != NULL)
        r->next->prev = r->prev;
    h->nr_reqs--;
    if (r->response != NULL)
        MHD_destroy_response(r->response);
    buf_fini(&r->body);
    free(r->path);
    free(r);
}

static void on_connection(void *cls, struct MHD_Connection *conn, void **ctx,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http *h = cls;

    (void)conn;
    (void)ctx;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        h->nr_conns++;
    else
        h->nr_conns--;
}

/* ---- the library on our loop */

static void on_timer(uv_timer_t *t)
{
    http_run(t->data);
}

static void http_run(struct http *h)
{
    MHD_UNSIGNED_LONG_LONG ms = 0;

    h->kick = false;
    for (int i = 0; i < RUNS_A_TURN; i++) {
        MHD_run(h->mhd);
        if (MHD_get_timeout(h->mhd, &ms) != MHD_YES) {
            uv_timer_stop(&h->timer);
            return;
        }
        if (ms > 0)
            break;
    }
    uv_timer_start(&h->timer, on_timer, ms, 0);
}

static void on_poll(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    http_run(p->data);
}

static void on_check(uv_check_t *c)
{
    struct http *h = c->data;

    if (h->kick)
        http_run(h);
}

static void mhd_log(void *cls, const char *fmt, va_list ap)
{
    char text[256];

    (void)cls;
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    log_line(LOG_DEBUG, "http: %s", text);
}

static bool start_library(struct http *h, int listen_fd)
{
    h->mhd = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL,
                              NULL, on_access, h, MHD_OPTION_EXTERNAL_LOGGER, mhd_log, NULL,
                              MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_NOTIFY_COMPLETED,
                              on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
                              MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
                              MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, MHD_OPTION_END);
    return h->mhd != NULL;
}

enum mf_status http_init(struct http *h, struct hvd *d, uv_loop_t *loop, int listen_fd,
                         struct problem *p)
{
    *h = (struct http){.d = d, .loop = loop};
    h->gone_fd = epoll_create1(EPOLL_CLOEXEC);
    if (h->gone_fd < 0 || !start_library(h, listen_fd)) {
        if (h->gone_fd >= 0)
            close(h->gone_fd);
        return problem_set(p, MF_E_INTERNAL, NULL, "the HTTP server cannot be started");
    }
    uv_poll_init(loop, &h->poll, MHD_get_daemon_info(h->mhd, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd);
    uv_poll_init(loop, &h->gone_poll, h->gone_fd);
    uv_timer_init(loop, &h->timer);
    uv_check_init(loop, &h->check);
    h->poll.data = h->gone_poll.data = h->timer.data = h->check.data = h;
    uv_poll_start(&h->poll, UV_READABLE, on_poll);
    uv_poll_start(&h->gone_poll, UV_READABLE, on_gone_poll);
    uv_check_start(&h->check, on_check);
    return MF_OK;
}

void http_quit(struct http *h)
{
    h->quitting = true;
    MHD_quiesce_daemon(h->mhd);
    for (struct req *r = h->reqs; r != NULL; r = r->next)
        if (r->stream != NULL)
            stream_wake(r);
    h->kick = true;
    http_run(h);
}

void http_fini(struct http *h)
{
    h->quitting = true;
    for (struct req *r = h->reqs; r != NULL; r = r->next)
        if (r->suspended && r->response == NULL)
            req_fail(r, MF_E_UNAVAILABLE, NULL, "the daemon is going down");
        else
            stream_wake(r);
    uv_close((uv_handle_t *)&h->poll, NULL);
    uv_close((uv_handle_t *)&h->gone_poll, NULL);
    uv_close((uv_handle_t *)&h->timer, NULL);
    uv_close((uv_handle_t *)&h->check, NULL);
    MHD_run(h->mhd); /* takes the resumed connections back */
    MHD_stop_daemon(h->mhd);
    close(h->gone_fd);
}
