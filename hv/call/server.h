/*
 * The control door: a SOCK_SEQPACKET socket in one epoll loop, on the control thread.
 *
 * A connection has one call at a time: its next request is read when the reply to the last one has
 * left. Calls that take long give the loop back between steps, so that other connections and all
 * events go on. Nobody can block the core by not reading: replies wait in the connection, events in
 * a bounded queue that drops and counts.
 */
#ifndef MAYFLY_CALL_SERVER_H
#define MAYFLY_CALL_SERVER_H

#include "hv/call/call.h"

#define SERVER_CONNS_MAX   64u
#define SERVER_CONN_EVENTS 1024u

struct conn;

struct server {
    struct core *core;
    int epoll_fd, listen_fd, lock_fd, signal_fd;
    char path[108];
    struct conn *first;
    unsigned nr_conns;
    bool again;       /* a call wants to go on at once */
    uint64_t quit_at; /* host time by which VMs must have ended, 0: not quitting */
};

/*
 * What has happened until now goes into the queues of the connections that asked for it. To be
 * called between the making of a reply and its sending: an answer never overtakes an event.
 */
void server_spread(struct server *s);
/*
 * Takes the lock beside the socket, replaces a stale socket, listens. Another core that holds the
 * lock: MF_E_BUSY, nothing touched. MF_E_IO.
 */
enum mf_status server_init(struct server *s, struct core *core, const char *path,
                           struct mf_error *e);
/* Closes connections, takes the socket away, lets the lock go. */
void server_fini(struct server *s);
/* Serves until the core is told to end and its VMs have ended. `signal_fd`: a signalfd, or -1. */
void server_run(struct server *s, int signal_fd);
/* One round; waits at most `timeout_ms` (-1: for ever). False: the core is to end. For tests too.
 */
bool server_round(struct server *s, int timeout_ms);

#endif
