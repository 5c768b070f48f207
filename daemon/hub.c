#include "daemon/hub.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/http.h"
#include "daemon/log.h"

struct hub_client {
    struct hub_client *next;
    struct hub *hub;
    struct req *req;
    bool sse;
    struct buf queue;
    size_t at; /* bytes of the queue that are gone already */
    uint64_t lost;
};

void hub_init(struct hub *h)
{
    *h = (struct hub){0};
}

void hub_fini(struct hub *h)
{
    jsonw_fini(&h->line);
}

static void open_line(struct hub *h, const char *type)
{
    char time[LOG_TIME_TEXT];

    h->line.b.len = 0;
    h->line.b.failed = false;
    h->line.comma = false;
    log_time(time);
    jsonw_object(&h->line);
    jsonw_ku64(&h->line, "seq", h->seq);
    jsonw_kstr(&h->line, "time", time);
    jsonw_kstr(&h->line, "type", type);
}

struct jsonw *hub_begin(struct hub *h, const char *type)
{
    h->seq++;
    if (h->clients == NULL)
        return NULL;
    open_line(h, type);
    return &h->line;
}

/* The event that stands in hub->line, framed as the client wants it. */
static void push(struct hub_client *c, uint64_t seq)
{
    const struct buf *line = &c->hub->line.b;

    if (c->sse)
        buf_fmt(&c->queue, "id: %" PRIu64 "\ndata: ", seq);
    buf_add(&c->queue, line->p, line->len);
    buf_str(&c->queue, c->sse ? "\n\n" : "\n");
}

void hub_end(struct hub *h)
{
    jsonw_object_end(&h->line);
    for (struct hub_client *c = h->clients; c != NULL; c = c->next) {
        if (h->line.b.failed || c->lost > 0 ||
            c->queue.len - c->at + h->line.b.len > HUB_QUEUE_MAX) {
            c->lost++;
            continue;
        }
        push(c, h->seq);
        if (c->queue.failed) {
            c->lost++;
            buf_fini(&c->queue);
            c->at = 0;
        }
        stream_wake(c->req);
    }
}

static void tell_lost(struct hub_client *c)
{
    struct hub *h = c->hub;

    open_line(h, "lost");
    jsonw_ku64(&h->line, "count", c->lost);
    jsonw_object_end(&h->line);
    if (h->line.b.failed)
        return;
    push(c, h->seq);
    c->lost = 0;
}

static ssize_t client_read(void *arg, char *to, size_t max)
{
    struct hub_client *c = arg;

    if (c->at == c->queue.len) {
        c->at = c->queue.len = 0;
        if (c->lost > 0)
            tell_lost(c);
    }
    size_t n = c->queue.len - c->at;
    if (n > max)
        n = max;
    if (n > 0)
        memcpy(to, c->queue.p + c->at, n);
    c->at += n;
    return (ssize_t)n;
}

static void client_close(void *arg)
{
    struct hub_client *c = arg;
    struct hub_client **at = &c->hub->clients;

    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->hub->nr_clients--;
    buf_fini(&c->queue);
    free(c);
}

void hub_stream(struct hub *h, struct req *r, bool sse)
{
    static const struct stream_ops ops = {client_read, client_close};
    struct hub_client *c = calloc(1, sizeof *c);

    if (c == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    c->hub = h;
    c->req = r;
    c->sse = sse;
    c->next = h->clients;
    h->clients = c;
    h->nr_clients++;
    req_header(r, "Cache-Control", "no-store");
    req_stream(r, sse ? "text/event-stream" : "application/x-ndjson", &ops, c);
}
