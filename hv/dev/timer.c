#include "hv/dev/timer.h"

#include <string.h>

void dev_timers_init(struct dev_timers *q, uint64_t (*now)(void *arg),
                     void (*arm)(void *arg, uint64_t at), void *arg)
{
    memset(q, 0, sizeof *q);
    q->armed = DEV_TIMER_OFF;
    q->now = now;
    q->arm = arm;
    q->arg = arg;
}

/* Earlier than anything told before: later ones wait until that moment comes. */
static void tell(struct dev_timers *q)
{
    if (!q->first || q->first->at >= q->armed)
        return;
    q->armed = q->first->at;
    q->arm(q->arg, q->armed);
}

static void unlink_timer(struct dev_timers *q, struct dev_timer *t)
{
    *(t->prev ? &t->prev->next : &q->first) = t->next;
    if (t->next)
        t->next->prev = t->prev;
    t->queued = false;
}

void dev_timer_cancel(struct dev_timers *q, struct dev_timer *t)
{
    if (t->queued)
        unlink_timer(q, t);
}

void dev_timer_set(struct dev_timers *q, struct dev_timer *t, uint64_t at)
{
    struct dev_timer *prev = NULL, *next;

    dev_timer_cancel(q, t);
    if (at == DEV_TIMER_OFF)
        return;
    for (next = q->first; next && next->at <= at; next = next->next)
        prev = next;
    t->at = at;
    t->prev = prev;
    t->next = next;
    *(prev ? &prev->next : &q->first) = t;
    if (next)
        next->prev = t;
    t->queued = true;
    tell(q);
}

void dev_timers_run(struct dev_timers *q)
{
    uint64_t now = dev_timers_now(q);

    /* What is set meanwhile is told once, at the end. */
    q->armed = 0;
    while (q->first && q->first->at <= now) {
        struct dev_timer *t = q->first;

        unlink_timer(q, t);
        t->fire(t, now);
        /* A timer that is set in the past again waits for the next run. */
        if (t->queued && t->at <= now)
            break;
    }
    dev_timers_rearm(q);
}

void dev_timers_rearm(struct dev_timers *q)
{
    q->armed = DEV_TIMER_OFF;
    tell(q);
}
