/*
 * HTTP/1.1 on the listening socket, driven by the loop: requests come in whole and are handed to
 * the handler of their route, which answers at once or later. Loop thread only.
 *
 *      head ──▶ body ──▶ handler ──▶ answered ──▶ sent ──▶ freed
 *                           └──▶ waiting (connection suspended) ──▶ answered …
 *
 * A request stays valid until it is answered; whoever waits for something on its behalf need not
 * care whether the client is still there, but may ask to be told (req_on_gone).
 */
#ifndef MAYFLY_DAEMON_HTTP_H
#define MAYFLY_DAEMON_HTTP_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/buf.h"
#include "daemon/jsonw.h"
#include "daemon/problem.h"

#define HTTP_BODY_MAX (1u << 20)

struct hvd;
struct req;

enum route_body {
    BODY_NONE, /* whatever comes is read and dropped */
    BODY_JSON, /* application/json, or no content type */
    BODY_DEF,  /* the same or application/xml, text/xml */
    BODY_RAW,  /* any */
};

struct route {
    const char *method;
    const char *path; /* {…} stands for one segment, which is then in req->arg */
    void (*handler)(struct hvd *d, struct req *r);
    enum route_body body;
};

/* All routes, in routes.c. */
extern const struct route routes[];
extern const size_t nr_routes;

#define REQ_ARGS    2
#define REQ_HEADERS 2

/* What a stream's body is made of. */
struct stream_ops {
    /* Bytes put into `to`; 0: none now, stream_wake will follow; -1: the end. */
    ssize_t (*read)(void *arg, char *to, size_t max);
    /* The request goes: nothing more will be read. */
    void (*close)(void *arg);
};

struct req {
    struct http *h;
    struct MHD_Connection *conn;
    struct req *prev, *next; /* in h->reqs */
    const struct route *route;
    char *path; /* owned; cut into segments */
    const char *arg[REQ_ARGS];
    bool xml; /* the body's content type */
    struct buf body;
    size_t dropped;         /* bytes of a body that is not wanted */
    struct problem verdict; /* known before the body was read */
    struct {
        char name[32];
        char value[128];
    } header[REQ_HEADERS]; /* of the answer */
    struct MHD_Response *response;
    unsigned status;
    bool seen, dispatched, suspended, queued, cut_off, watched, gone;
    void (*on_gone)(void *arg);
    void *gone_arg;
    const struct stream_ops *stream;
    void *stream_arg;
    uint64_t began; /* uv_hrtime when the request had been read */
};

struct http {
    struct hvd *d;
    uv_loop_t *loop;
    struct MHD_Daemon *mhd;
    uv_poll_t poll;      /* MHD's epoll fd */
    uv_timer_t timer;    /* MHD's next deadline */
    uv_check_t check;    /* runs MHD at the end of a turn in which something was answered */
    uv_poll_t gone_poll; /* gone_fd */
    int gone_fd;         /* epoll fd: clients that hang up while we wait */
    bool kick, quitting;
    struct req *reqs;
    unsigned nr_reqs;
    unsigned nr_conns;
    uint64_t answered[6]; /* by first digit of the status */
};

/* Serves `listen_fd`, which is closed by http_fini. MF_E_INTERNAL. */
enum mf_status http_init(struct http *h, struct hvd *d, uv_loop_t *loop, int listen_fd,
                         struct problem *p);
/* Takes no more connections and ends every stream. */
void http_quit(struct http *h);
/* Only once nobody will answer any more; the loop must run once more. */
void http_fini(struct http *h);

/* ---- for handlers */

/* A query parameter's value, NULL when it is absent, "" when it has none. */
const char *req_query(struct req *r, const char *name);
/*
 * A query parameter as a number from `lo` to `hi`; *out stays as it is when it is absent. False:
 * answered with 400.
 */
bool req_query_u64(struct req *r, const char *name, uint64_t lo, uint64_t hi, uint64_t *out);
/* True when the client prefers `type` to JSON by its Accept header. */
bool req_accepts(struct req *r, const char *type);
void req_header(struct req *r, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Answers; both take what is in the buffer. A failed buffer becomes 503. */
void req_reply(struct req *r, unsigned status, const char *type, struct buf *b);
void req_json(struct req *r, unsigned status, struct jsonw *w);
void req_empty(struct req *r, unsigned status);
void req_problem(struct req *r, const struct problem *p);
/* req_problem in one go. */
void req_fail(struct req *r, enum mf_status st, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void req_stream(struct req *r, const char *type, const struct stream_ops *ops, void *arg);
/* There is something to read again, or the end. */
void stream_wake(struct req *r);
/*
 * `fn` runs once when the client hangs up while the answer is awaited; the request must still be
 * answered. NULL: no more.
 */
void req_on_gone(struct req *r, void (*fn)(void *arg), void *arg);

#endif
