/*
 * One client of the control door.
 */
#ifndef MAYFLY_CALL_CONN_H
#define MAYFLY_CALL_CONN_H

#include "hv/call/server.h"

enum conn_state {
    CONN_READING, /* waits for a request */
    CONN_AGAIN,   /* its call goes on in the next round */
    CONN_BLOCKED, /* its call goes on when something happens */
    CONN_SENDING, /* its reply did not fit into the socket yet */
};

struct conn {
    struct server *server;
    struct conn *next;
    int fd;
    bool dead;
    enum conn_state state;
    uint32_t epoll_events; /* asked for now */
    struct call_session session;

    struct call call;
    int fds[MF_MSG_FDS_MAX];
    uint64_t token; /* of a call parked with MF_MSG_NO_CONT, 0: none */

    struct event_item *events; /* ring of SERVER_CONN_EVENTS, made by the first subscription */
    unsigned first_event, nr_events;
    uint64_t seq, lost;

    uint32_t reply_size; /* of the message in `reply` */
    _Alignas(8) uint8_t request[MF_MSG_MAX];
    _Alignas(8) uint8_t reply[MF_MSG_MAX];
};

/* Takes over `fd`. NULL without memory; the fd is closed then. */
struct conn *conn_create(struct server *s, int fd);
void conn_destroy(struct conn *c);
/* The socket is readable: reads and runs requests while they finish at once. */
void conn_read(struct conn *c);
/* Goes on with the call; `woken`: something happened since the last time. */
void conn_resume(struct conn *c, bool woken);
/* The socket takes data again. */
void conn_write(struct conn *c);
/* Queues an event that the session asked for. */
void conn_event(struct conn *c, const struct event_item *item);
void conn_lost(struct conn *c, uint64_t n);
/* What epoll should wait for. */
uint32_t conn_wants(const struct conn *c);
/* One reply with `st` and *e to a peer that gets no connection. */
void conn_refuse(int fd, enum mf_status st, const struct mf_error *e);

#endif
