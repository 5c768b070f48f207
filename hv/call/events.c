#include "hv/call/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "hv/host/arena.h"

bool event_queue_init(struct event_queue *q)
{
    memset(q, 0, sizeof *q);
    pthread_mutex_init(&q->lock, NULL);
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    q->ring = calloc(EVENT_QUEUE_LEN, sizeof *q->ring);
    if (q->fd >= 0 && q->ring)
        return true;
    event_queue_fini(q);
    return false;
}

void event_queue_fini(struct event_queue *q)
{
    if (q->fd >= 0)
        close(q->fd);
    q->fd = -1;
    free(q->ring);
    q->ring = NULL;
    pthread_mutex_destroy(&q->lock);
}

void event_poke(struct event_queue *q)
{
    uint64_t one = 1;

    if (atomic_exchange(&q->signaled, true))
        return;
    if (write(q->fd, &one, sizeof one) != sizeof one)
        atomic_store(&q->signaled, false);
}

void event_woken(struct event_queue *q)
{
    uint64_t n;

    if (read(q->fd, &n, sizeof n) != sizeof n) {
        /* woken by something else; nothing to reset */
    }
    atomic_store(&q->signaled, false);
}

void event_push_full(struct event_queue *q, enum mf_event_nr nr, const struct mf_event *e)
{
    if (!(atomic_load_explicit(&q->mask, memory_order_relaxed) & (1u << nr)))
        return;
    pthread_mutex_lock(&q->lock);
    if (q->count == EVENT_QUEUE_LEN) {
        q->lost++;
    } else {
        struct event_item *i = &q->ring[(q->first + q->count++) % EVENT_QUEUE_LEN];

        i->nr = (uint16_t)nr;
        i->event = *e;
        i->event.at = host_now_ns();
    }
    pthread_mutex_unlock(&q->lock);
    event_poke(q);
}

void event_push(struct event_queue *q, enum mf_event_nr nr, uint32_t vm, uint64_t a, uint64_t b,
                const char *text)
{
    struct mf_event e = {.vm = vm, .a = a, .b = b};

    snprintf(e.text, sizeof e.text, "%s", text ? text : "");
    event_push_full(q, nr, &e);
}

bool event_pop(struct event_queue *q, struct event_item *out)
{
    bool any;

    pthread_mutex_lock(&q->lock);
    any = q->count;
    if (any) {
        *out = q->ring[q->first];
        q->first = (q->first + 1) % EVENT_QUEUE_LEN;
        q->count--;
    }
    pthread_mutex_unlock(&q->lock);
    return any;
}

uint64_t event_take_lost(struct event_queue *q)
{
    uint64_t n;

    pthread_mutex_lock(&q->lock);
    n = q->lost;
    q->lost = 0;
    pthread_mutex_unlock(&q->lock);
    return n;
}
