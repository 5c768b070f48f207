/*
 * What happened, on its way from any thread to the control thread: a bounded queue and an eventfd.
 * A full queue drops and counts, it never blocks.
 */
#ifndef MAYFLY_CALL_EVENTS_H
#define MAYFLY_CALL_EVENTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "proto/hypercall.h"

#define EVENT_QUEUE_LEN 4096u

struct event_item {
    uint16_t nr; /* enum mf_event_nr */
    struct mf_event event;
};

struct event_queue {
    int fd;                /* readable when there is something to look at */
    _Atomic bool signaled; /* it is, or is about to be */
    _Atomic uint32_t mask; /* which events anybody wants */

    pthread_mutex_t lock;
    /* under lock */
    struct event_item *ring; /* EVENT_QUEUE_LEN */
    unsigned first, count;
    uint64_t lost;
};

bool event_queue_init(struct event_queue *q);
void event_queue_fini(struct event_queue *q);
/* Any thread. `text` may be NULL. Dropped at once when nobody wants it. */
void event_push(struct event_queue *q, enum mf_event_nr nr, uint32_t vm, uint64_t a, uint64_t b,
                const char *text);
/* The same for an event that says more; seq and at are filled in here. */
void event_push_full(struct event_queue *q, enum mf_event_nr nr, const struct mf_event *e);
/* Wakes the control thread. Any thread. */
void event_poke(struct event_queue *q);
/* Control thread: resets the wake-up. */
void event_woken(struct event_queue *q);
/* Control thread: takes the oldest; false when empty. */
bool event_pop(struct event_queue *q, struct event_item *out);
/* Control thread: how many were dropped since it was last asked. */
uint64_t event_take_lost(struct event_queue *q);

#endif
