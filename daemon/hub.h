/*
 * The events that clients see, and the clients that look. Each has a bounded queue: one that does
 * not read loses events, is told how many, and costs the others nothing. Loop thread only.
 */
#ifndef MAYFLY_DAEMON_HUB_H
#define MAYFLY_DAEMON_HUB_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/jsonw.h"

#define HUB_QUEUE_MAX 262144u /* bytes waiting for one client */

struct req;

struct hub {
    uint64_t seq;
    struct hub_client *clients;
    unsigned nr_clients;
    struct jsonw line; /* the event being written */
};

void hub_init(struct hub *h);
void hub_fini(struct hub *h);

/*
 * Begins an event of this type. The caller writes further members into what it gets and then calls
 * hub_end; NULL when nobody looks: there is nothing to write or to end.
 */
struct jsonw *hub_begin(struct hub *h, const char *type);
void hub_end(struct hub *h);

/* Answers `r` with the stream of events from now on. */
void hub_stream(struct hub *h, struct req *r, bool sse);

#endif
