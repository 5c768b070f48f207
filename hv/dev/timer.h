/*
 * Deadlines of one VM's devices, all on the guest's clock: nanoseconds since the VM began, which
 * stand still while it is paused. The queue itself keeps no time: it tells by `arm` when somebody
 * must call dev_timers_run.
 *
 * Not thread safe: used under the lock of the chipset that the timers belong to.
 */
#ifndef MAYFLY_DEV_TIMER_H
#define MAYFLY_DEV_TIMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DEV_TIMER_OFF UINT64_MAX

/* Embedded in a device. All zero is not armed. */
struct dev_timer {
    uint64_t at; /* while queued */
    bool queued;
    struct dev_timer *next, *prev;
    /* The deadline has come; `now` >= at. It is not queued any more and may be set again. */
    void (*fire)(struct dev_timer *t, uint64_t now);
};

struct dev_timers {
    struct dev_timer *first; /* earliest */
    uint64_t armed;          /* what `arm` was told last, DEV_TIMER_OFF: nothing */
    /* The guest's clock, ns. Never goes back. */
    uint64_t (*now)(void *arg);
    /*
     * Call dev_timers_run at `at` or soon after. Only ever told an earlier moment than before;
     * being called too early does no harm.
     */
    void (*arm)(void *arg, uint64_t at);
    void *arg;
};

void dev_timers_init(struct dev_timers *q, uint64_t (*now)(void *arg),
                     void (*arm)(void *arg, uint64_t at), void *arg);
static inline uint64_t dev_timers_now(const struct dev_timers *q)
{
    return q->now(q->arg);
}
/* Sets or moves the deadline. One in the past fires at the next dev_timers_run, never in here. */
void dev_timer_set(struct dev_timers *q, struct dev_timer *t, uint64_t at);
void dev_timer_cancel(struct dev_timers *q, struct dev_timer *t);
/* Fires what is due, then arms for the earliest that is left. */
void dev_timers_run(struct dev_timers *q);
/* What was armed is forgotten (the VM was paused): arms for the earliest again. */
void dev_timers_rearm(struct dev_timers *q);

#endif
