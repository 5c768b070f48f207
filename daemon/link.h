/*
 * The hypercall connection to the core: requests with replies by cookie, events. Loop thread only.
 *
 *      closed --link_open--> open --link_close, core gone, core talks nonsense--> closed
 *
 * Every call gets exactly one callback, also when the connection is lost (MF_E_UNAVAILABLE) or the
 * core does not answer in time (MF_E_TIMEOUT; a late answer is then dropped).
 */
#ifndef MAYFLY_DAEMON_LINK_H
#define MAYFLY_DAEMON_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "proto/hypercall.h"

#define LINK_TIMEOUT_MS 30000u

/* Valid during the callback only. */
struct link_reply {
    enum mf_status status;
    const struct mf_error *err; /* on failure; never NULL then */
    const void *body;           /* on MF_OK: at least the call's reply structure, 8-byte aligned */
    size_t len;                 /* with the tail */
};

typedef void (*link_reply_fn)(void *arg, const struct link_reply *r);

struct link_request {
    enum mf_call_nr nr;
    const void *args; /* of the call's size; NULL: zeroes */
    const void *tail;
    size_t tail_len;
    const int *fds; /* stay the caller's; sent before link_call returns, or duplicated */
    unsigned nr_fds;
    link_reply_fn fn; /* NULL: nobody wants to know */
    void *arg;
};

struct link_watcher {
    void (*event)(void *arg, enum mf_event_nr nr, const struct mf_event *e);
    /* The connection was lost; every pending call has been answered. `why` for the log. */
    void (*lost)(void *arg, const char *why);
    void *arg;
};

struct link {
    uv_loop_t *loop;
    struct link_watcher watcher;
    struct link_conn *conn; /* NULL: closed */
    uv_timer_t *sweep;      /* owned; looks for calls without an answer */
    struct link_call *call; /* nr_calls slots; a cookie is a slot and how often it was used */
    uint32_t nr_calls;
    uint32_t free_head; /* list through call[].next; nr_calls: none */
    uint32_t pending;
    uint32_t timeout_ms;
    uint8_t *packet; /* MF_MSG_MAX bytes: what is received */
};

/* False when out of memory. `loop` stays the caller's. */
bool link_init(struct link *l, uv_loop_t *loop, const struct link_watcher *w);
/* Closes; the loop must run once more before it is closed itself. */
void link_fini(struct link *l);

/* Connects to the socket at `path`; 0, or minus an errno of the host. */
int link_open(struct link *l, const char *path);
/* Answers every pending call with MF_E_UNAVAILABLE; the watcher is not told. */
void link_close(struct link *l);
bool link_is_open(const struct link *l);

/* Sends; on failure the callback has run before it returns. */
void link_call(struct link *l, const struct link_request *r);

/* ---- batches */

#define LINK_BATCH_MAX 8192

struct link_batch {
    uint32_t count;
    size_t len;
    bool full; /* a call did not fit: the batch must not be sent */
    _Alignas(8) uint8_t tail[LINK_BATCH_MAX];
};

/* Appends a call. `args` NULL: zeroes. */
void link_batch_add(struct link_batch *b, enum mf_call_nr nr, const void *args, const void *tail,
                    size_t tail_len);
void link_batch_call(struct link *l, const struct link_batch *b, const int *fds, unsigned nr_fds,
                     link_reply_fn fn, void *arg);

/*
 * Walks the replies of a batch: fills `sub` (and *nr) with the one at *at and moves *at on. False
 * at the end, or where the reply is malformed.
 */
bool link_batch_next(const struct link_reply *r, size_t *at, uint16_t *nr, struct link_reply *sub);

#endif
