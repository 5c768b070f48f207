#include "hv/vm/sched.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CONTAINER(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* What sched_step took out of the queues. */
struct work {
    struct sched_vm *vm;   /* NULL: scrub or reap */
    struct sched_cpu *cpu; /* NULL: a job, or a timer */
    bool scrub, reap, timer;
};

/* ---- heap of entities by pass */

static void heap_put(struct sched *s, struct sched_entity *e, unsigned at)
{
    s->heap[at] = e;
    e->at = (int)at;
}

static void heap_up(struct sched *s, unsigned at)
{
    struct sched_entity *e = s->heap[at];

    while (at && s->heap[(at - 1) / 2]->pass > e->pass) {
        heap_put(s, s->heap[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    heap_put(s, e, at);
}

static void heap_down(struct sched *s, unsigned at)
{
    struct sched_entity *e = s->heap[at];

    for (;;) {
        unsigned kid = 2 * at + 1;

        if (kid + 1 < s->heap_len && s->heap[kid + 1]->pass < s->heap[kid]->pass)
            kid++;
        if (kid >= s->heap_len || s->heap[kid]->pass >= e->pass)
            break;
        heap_put(s, s->heap[kid], at);
        at = kid;
    }
    heap_put(s, e, at);
}

static void entity_remove(struct sched *s, struct sched_entity *e)
{
    unsigned at = (unsigned)e->at;

    if (e->at < 0)
        return;
    e->at = -1;
    if (at == --s->heap_len)
        return;
    heap_put(s, s->heap[s->heap_len], at);
    heap_up(s, at);
    heap_down(s, (unsigned)s->heap[at]->at);
}

static void entity_insert(struct sched *s, struct sched_entity *e)
{
    if (e->at >= 0)
        return;
    if (e->pass < s->vpass)
        e->pass = s->vpass;
    heap_put(s, e, s->heap_len++);
    heap_up(s, (unsigned)e->at);
}

static void entity_charge(struct sched *s, struct sched_entity *e, uint64_t ns)
{
    e->pass += ns * SCHED_WEIGHT / e->weight + 1;
    if (e->at >= 0)
        heap_down(s, (unsigned)e->at);
}

/* ---- timers */

static void timer_put(struct sched *s, struct sched_timer *t, unsigned at)
{
    s->timers[at] = t;
    t->pos = (int)at;
}

static void timer_up(struct sched *s, unsigned at)
{
    struct sched_timer *t = s->timers[at];

    while (at && s->timers[(at - 1) / 2]->at > t->at) {
        timer_put(s, s->timers[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    timer_put(s, t, at);
}

static void timer_down(struct sched *s, unsigned at)
{
    struct sched_timer *t = s->timers[at];

    for (;;) {
        unsigned kid = 2 * at + 1;

        if (kid + 1 < s->timers_len && s->timers[kid + 1]->at < s->timers[kid]->at)
            kid++;
        if (kid >= s->timers_len || s->timers[kid]->at >= t->at)
            break;
        timer_put(s, s->timers[kid], at);
        at = kid;
    }
    timer_put(s, t, at);
}

static void timer_cancel(struct sched *s, struct sched_timer *t)
{
    unsigned at = (unsigned)t->pos;

    if (t->pos < 0)
        return;
    t->pos = -1;
    if (at == --s->timers_len)
        return;
    timer_put(s, s->timers[s->timers_len], at);
    timer_up(s, at);
    timer_down(s, (unsigned)s->timers[at]->pos);
}

static void timer_set(struct sched *s, struct sched_timer *t, uint64_t at)
{
    timer_cancel(s, t);
    t->at = at;
    timer_put(s, t, s->timers_len++);
    timer_up(s, (unsigned)t->pos);
    /* A sleeper may wait for a later one. */
    if (t->pos == 0 && s->sleeping)
        pthread_cond_signal(&s->cond);
}

/* ---- queues; all under the lock */

static void wake_one(struct sched *s)
{
    if (s->sleeping)
        pthread_cond_signal(&s->cond);
}

static void vm_place(struct sched *s, struct sched_vm *v)
{
    if (v->first && !v->blocked && !v->stopping && !v->throttled)
        entity_insert(s, &v->entity);
    else
        entity_remove(s, &v->entity);
}

/* A thread with one vCPU for its own. */
struct sched_thread {
    struct sched *sched;
    pthread_t thread;
    pthread_cond_t cond;
    /* under sched.lock */
    struct sched_cpu *cpu;
    bool quit;
};

static void cpu_queue(struct sched *s, struct sched_cpu *c)
{
    struct sched_vm *v = c->vm;

    c->state = SCHED_CPU_QUEUED;
    c->next = NULL;
    if (c->thread) {
        pthread_cond_signal(&c->thread->cond);
        return;
    }
    if (v->first)
        v->last->next = c;
    else
        v->first = c;
    v->last = c;
    vm_place(s, v);
}

static bool reap_due(const struct sched *s)
{
    return s->reap_wanted && !s->reap_on && s->reap_pause.pos < 0;
}

static void background_place(struct sched *s)
{
    if (s->job_first || (s->scrub_wanted && !s->scrub_on) || reap_due(s))
        entity_insert(s, &s->background);
    else
        entity_remove(s, &s->background);
}

static void job_queue(struct sched *s, struct sched_vm *v)
{
    if (v->job_on) {
        v->job_again = true;
        return;
    }
    if (v->job_queued)
        return;
    v->job_queued = true;
    v->next_job = NULL;
    if (s->job_first)
        s->job_last->next_job = v;
    else
        s->job_first = v;
    s->job_last = v;
    background_place(s);
}

/* The next VM with a job that may be done now. A stopping VM's waits until nothing runs. */
static struct sched_vm *job_take(struct sched *s)
{
    struct sched_vm *v;

    while ((v = s->job_first)) {
        s->job_first = v->next_job;
        v->job_queued = false;
        if (!v->stopping || !v->on_cpu)
            break;
    }
    return v;
}

static void timer_queue(struct sched *s, struct sched_vm *v)
{
    if (v->timer_queued || v->blocked || v->stopping)
        return;
    v->timer_queued = true;
    v->next_timer = NULL;
    if (s->timer_first)
        s->timer_last->next_timer = v;
    else
        s->timer_first = v;
    s->timer_last = v;
}

static void timer_forget(struct sched *s, struct sched_vm *v)
{
    struct sched_vm **p = &s->timer_first, *prev = NULL;

    if (!v->timer_queued)
        return;
    for (; *p != v; p = &(*p)->next_timer)
        prev = *p;
    *p = v->next_timer;
    if (s->timer_last == v)
        s->timer_last = prev;
    v->timer_queued = false;
}

/* One at a time per VM: a second one waits behind the first. */
static bool take_timer(struct sched *s, struct work *w)
{
    struct sched_vm *v = s->timer_first;

    if (!v || v->timer_on)
        return false;
    s->timer_first = v->next_timer;
    v->timer_queued = false;
    /* Blocked or stopped meanwhile. */
    if (v->blocked || v->stopping)
        return take_timer(s, w);
    v->timer_on = w->timer = true;
    v->on_cpu++;
    w->vm = v;
    return true;
}

static void fire_timers(struct sched *s, uint64_t now)
{
    while (s->timers_len && s->timers[0]->at <= now) {
        struct sched_timer *t = s->timers[0];
        struct sched_vm *v = t->vm;

        timer_cancel(s, t);
        t->at = 0;
        if (t == &s->reap_pause) {
            background_place(s);
        } else if (t == &v->throttle) {
            v->throttled = false;
            vm_place(s, v);
        } else if (t == &v->devices) {
            timer_queue(s, v);
        } else {
            s->ops->deadline(v);
            job_queue(s, v);
        }
    }
}

static bool take_background(struct sched *s, struct work *w)
{
    bool due = reap_due(s);

    w->vm = due && s->reap_turn ? NULL : job_take(s);
    w->reap = !w->vm && due;
    w->scrub = !w->vm && !w->reap && s->scrub_wanted && !s->scrub_on;
    s->reap_turn = w->vm;
    if (w->vm) {
        w->vm->job_on = true;
        w->vm->on_cpu++;
    }
    if (w->scrub)
        s->scrub_on = true;
    if (w->reap) {
        s->reap_on = true;
        s->reap_again = false;
    }
    background_place(s);
    return w->vm || w->scrub || w->reap;
}

static void take_cpu(struct sched *s, struct sched_vm *v, struct work *w)
{
    struct sched_cpu *c = v->first;

    v->first = c->next;
    c->state = SCHED_CPU_ON;
    c->woken = false;
    v->on_cpu++;
    s->slices_on++;
    entity_remove(s, &v->entity);
    vm_place(s, v);
    w->vm = v;
    w->cpu = c;
}

static bool take(struct sched *s, struct work *w)
{
    memset(w, 0, sizeof *w);
    if (s->timer_first && take_timer(s, w)) {
        if (s->timer_first || s->heap_len)
            wake_one(s);
        return true;
    }
    while (s->heap_len) {
        struct sched_entity *e = s->heap[0];

        s->vpass = e->pass;
        if (e != &s->background) {
            take_cpu(s, CONTAINER(e, struct sched_vm, entity), w);
            break;
        }
        if (take_background(s, w))
            break;
    }
    /* Whoever takes work and sees more wakes the next: pushes wake one only. */
    if (s->heap_len)
        wake_one(s);
    return w->vm || w->scrub || w->reap;
}

/* What a VM used beyond its share is taken from the next period's. */
static void charge_cap(struct sched *s, struct sched_vm *v, uint64_t ns, uint64_t now)
{
    uint64_t share = SCHED_PERIOD_NS * v->cap / 100 * v->nr_cpus;
    uint64_t periods = (now - v->period_at) / SCHED_PERIOD_NS;

    if (periods) {
        uint64_t forgiven = periods > v->used_ns / share ? v->used_ns : periods * share;

        v->used_ns -= forgiven;
        v->period_at += periods * SCHED_PERIOD_NS;
    }
    v->used_ns += ns;
    if (v->used_ns < share || v->throttled)
        return;
    v->throttled = true;
    timer_set(s, &v->throttle, v->period_at + SCHED_PERIOD_NS * (v->used_ns / share));
    vm_place(s, v);
}

static void leave_cpu(struct sched *s, const struct work *w, enum sched_after after, uint64_t ns,
                      uint64_t now)
{
    struct sched_vm *v = w->vm;

    v->run_ns += ns;
    if (!w->cpu->thread) {
        s->slices_on--;
        entity_charge(s, &v->entity, ns);
    }
    if (after == SCHED_AFTER_OFF || v->stopping)
        w->cpu->state = SCHED_CPU_OFF;
    else if (after == SCHED_AFTER_HALT && !w->cpu->woken)
        w->cpu->state = SCHED_CPU_HALTED;
    else
        cpu_queue(s, w->cpu);
    if (v->cap && !w->cpu->thread)
        charge_cap(s, v, ns, now);
}

/* Does any vCPU run, or wait for a CPU? */
static bool cpus_wanted(const struct sched *s)
{
    return s->slices_on || s->heap_len > (s->background.at >= 0);
}

static void leave_reap(struct sched *s, bool more, uint64_t ns, uint64_t now)
{
    entity_charge(s, &s->background, ns);
    s->reap_on = false;
    s->reap_wanted = more || s->reap_again;
    if (s->reap_wanted && cpus_wanted(s))
        timer_set(s, &s->reap_pause, now + ns * SCHED_REAP_PAUSE);
    background_place(s);
}

static void leave(struct sched *s, const struct work *w, enum sched_after after, bool more,
                  uint64_t ns, uint64_t now)
{
    struct sched_vm *v = w->vm;

    if (w->reap) {
        leave_reap(s, more, ns, now);
        return;
    }
    if (w->scrub) {
        entity_charge(s, &s->background, ns);
        s->scrub_on = false;
        s->scrub_wanted = s->scrub_wanted && more;
        background_place(s);
        return;
    }
    v->on_cpu--;
    if (w->timer) {
        v->timer_on = false;
        v->run_ns += ns;
    } else if (w->cpu) {
        leave_cpu(s, w, after, ns, now);
    } else {
        bool again = more || v->job_again;

        entity_charge(s, &s->background, ns);
        v->job_on = v->job_again = false;
        if (again)
            job_queue(s, v);
    }
    if (v->on_cpu)
        return;
    /* A job that ended while stopping has nothing left to do: only others' end starts it. */
    if (v->stopping && (w->cpu || w->timer))
        job_queue(s, v);
    s->ops->idle(v);
}

static void run(struct sched *s, const struct work *w)
{
    enum sched_after after = SCHED_AFTER_OFF;
    uint64_t t0 = s->ops->now_ns(s->ops->arg), t1;
    bool more = false;

    if (w->timer) {
        s->ops->timer(w->vm);
    } else if (w->cpu) {
        after = s->ops->slice(w->cpu);
        atomic_fetch_add_explicit(&s->slices, 1, memory_order_relaxed);
    } else if (w->reap) {
        more = s->ops->reap(s->ops->arg);
    } else if (w->scrub) {
        more = s->ops->scrub(s->ops->arg);
    } else {
        more = s->ops->job(w->vm);
    }
    t1 = s->ops->now_ns(s->ops->arg);
    pthread_mutex_lock(&s->lock);
    leave(s, w, after, more, t1 - t0, t1);
}

bool sched_step(struct sched *s)
{
    struct work w;

    pthread_mutex_lock(&s->lock);
    if (s->timers_len)
        fire_timers(s, s->ops->now_ns(s->ops->arg));
    bool any = take(s, &w);
    pthread_mutex_unlock(&s->lock);
    if (any) {
        run(s, &w);
        pthread_mutex_unlock(&s->lock);
    }
    return any;
}

static void sleep_until_work(struct sched *s)
{
    s->sleeping++;
    if (s->timers_len) {
        uint64_t at = s->timers[0]->at;
        struct timespec t = {.tv_sec = (time_t)(at / 1000000000u),
                             .tv_nsec = (long)(at % 1000000000u)};

        pthread_cond_timedwait(&s->cond, &s->lock, &t);
    } else {
        pthread_cond_wait(&s->cond, &s->lock);
    }
    s->sleeping--;
}

static void *worker(void *arg)
{
    struct sched *s = arg;
    struct work w;

    pthread_mutex_lock(&s->lock);
    while (!s->quit) {
        if (s->timers_len)
            fire_timers(s, s->ops->now_ns(s->ops->arg));
        if (!take(s, &w)) {
            sleep_until_work(s);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        run(s, &w);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- threads of vCPUs */

static bool own_take(struct sched_thread *t, struct work *w)
{
    struct sched_cpu *c = t->cpu;

    if (!c || c->state != SCHED_CPU_QUEUED || c->vm->blocked || c->vm->stopping)
        return false;
    *w = (struct work){.vm = c->vm, .cpu = c};
    c->state = SCHED_CPU_ON;
    c->woken = false;
    c->vm->on_cpu++;
    return true;
}

static void *own_thread(void *arg)
{
    struct sched_thread *t = arg;
    struct sched *s = t->sched;
    struct work w;

    pthread_mutex_lock(&s->lock);
    while (!t->quit) {
        if (!own_take(t, &w)) {
            pthread_cond_wait(&t->cond, &s->lock);
            continue;
        }
        pthread_mutex_unlock(&s->lock);
        run(s, &w);
        /* What the end of the slice queued is the workers'. */
        wake_one(s);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

struct sched_thread *sched_thread_create(struct sched *s)
{
    struct sched_thread *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    t->sched = s;
    pthread_cond_init(&t->cond, NULL);
    if (!pthread_create(&t->thread, NULL, own_thread, t))
        return t;
    pthread_cond_destroy(&t->cond);
    free(t);
    return NULL;
}

void sched_thread_destroy(struct sched_thread *t)
{
    struct sched *s = t->sched;

    pthread_mutex_lock(&s->lock);
    t->quit = true;
    pthread_cond_signal(&t->cond);
    pthread_mutex_unlock(&s->lock);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->cond);
    free(t);
}

void sched_thread_tie(struct sched_thread *t, struct sched_cpu *c)
{
    struct sched *s = t->sched;

    pthread_mutex_lock(&s->lock);
    t->cpu = c;
    c->thread = t;
    pthread_mutex_unlock(&s->lock);
}

void sched_thread_untie(struct sched_cpu *c)
{
    struct sched_thread *t = c->thread;

    if (!t)
        return;
    pthread_mutex_lock(&t->sched->lock);
    t->cpu = NULL;
    c->thread = NULL;
    pthread_mutex_unlock(&t->sched->lock);
}

/* ---- life of the scheduler */

bool sched_reserve(struct sched *s, unsigned vms)
{
    bool ok = true;

    pthread_mutex_lock(&s->lock);
    if (vms + 1 > s->heap_cap) {
        unsigned cap = s->heap_cap ? s->heap_cap : 64;

        while (cap < vms + 1)
            cap *= 2;
        struct sched_entity **heap = realloc(s->heap, cap * sizeof(struct sched_entity *));
        if (heap)
            s->heap = heap;
        struct sched_timer **timers = realloc(s->timers, 3 * cap * sizeof(struct sched_timer *));
        if (timers)
            s->timers = timers;
        ok = heap && timers;
        if (ok) {
            s->heap_cap = cap;
            s->timers_cap = 3 * cap;
        }
    }
    pthread_mutex_unlock(&s->lock);
    return ok;
}

bool sched_init(struct sched *s, const struct sched_ops *ops, unsigned workers)
{
    pthread_condattr_t attr;

    memset(s, 0, sizeof *s);
    s->ops = ops;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->cond, &attr);
    pthread_condattr_destroy(&attr);
    s->background = (struct sched_entity){.weight = SCHED_WEIGHT, .at = -1};
    s->reap_pause.pos = -1;
    if (!sched_reserve(s, 1))
        return false;
    while (s->nr_workers < workers && s->nr_workers < SCHED_WORKERS_MAX) {
        if (pthread_create(&s->threads[s->nr_workers], NULL, worker, s)) {
            sched_fini(s);
            return false;
        }
        s->nr_workers++;
    }
    return true;
}

void sched_stop(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < s->nr_workers; i++)
        pthread_join(s->threads[i], NULL);
    s->nr_workers = 0;
}

void sched_fini(struct sched *s)
{
    sched_stop(s);
    free(s->heap);
    free(s->timers);
    s->heap = NULL;
    s->timers = NULL;
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->lock);
}

/* ---- VMs */

void sched_vm_init(struct sched_vm *v, uint32_t weight, uint32_t cap)
{
    memset(v, 0, sizeof *v);
    v->entity = (struct sched_entity){.weight = weight ? weight : SCHED_WEIGHT, .at = -1};
    v->cap = cap;
    v->deadline = (struct sched_timer){.pos = -1, .vm = v};
    v->throttle = (struct sched_timer){.pos = -1, .vm = v};
    v->devices = (struct sched_timer){.pos = -1, .vm = v};
}

void sched_cpu_init(struct sched_vm *v, struct sched_cpu *c)
{
    memset(c, 0, sizeof *c);
    c->vm = v;
    v->cpus[v->nr_cpus++] = c;
}

void sched_vm_start(struct sched *s, struct sched_vm *v)
{
    pthread_mutex_lock(&s->lock);
    v->period_at = v->cap ? s->ops->now_ns(s->ops->arg) : 0;
    v->used_ns = 0;
    for (unsigned i = 1; i < v->nr_cpus; i++)
        v->cpus[i]->state = SCHED_CPU_HALTED;
    cpu_queue(s, v->cpus[0]);
    wake_one(s);
    pthread_mutex_unlock(&s->lock);
}

static void kick_all(struct sched *s, struct sched_vm *v)
{
    for (unsigned i = 0; i < v->nr_cpus; i++)
        if (v->cpus[i]->state == SCHED_CPU_ON)
            s->ops->kick(v->cpus[i]);
}

void sched_vm_block(struct sched *s, struct sched_vm *v)
{
    pthread_mutex_lock(&s->lock);
    v->blocked = true;
    timer_cancel(s, &v->devices);
    vm_place(s, v);
    kick_all(s, v);
    pthread_mutex_unlock(&s->lock);
}

void sched_vm_unblock(struct sched *s, struct sched_vm *v)
{
    pthread_mutex_lock(&s->lock);
    v->blocked = false;
    vm_place(s, v);
    for (unsigned i = 0; i < v->nr_cpus; i++)
        if (v->cpus[i]->thread)
            pthread_cond_signal(&v->cpus[i]->thread->cond);
    wake_one(s);
    pthread_mutex_unlock(&s->lock);
}

void sched_vm_stop(struct sched *s, struct sched_vm *v)
{
    pthread_mutex_lock(&s->lock);
    v->stopping = true;
    vm_place(s, v);
    timer_cancel(s, &v->deadline);
    timer_cancel(s, &v->throttle);
    timer_cancel(s, &v->devices);
    kick_all(s, v);
    /* A step of its job that is under way comes back; slices queue it when the last one ends. */
    if (!v->on_cpu || v->job_on) {
        job_queue(s, v);
        wake_one(s);
    }
    pthread_mutex_unlock(&s->lock);
}

void sched_vm_reset(struct sched *s, struct sched_vm *v)
{
    pthread_mutex_lock(&s->lock);
    entity_remove(s, &v->entity);
    timer_cancel(s, &v->deadline);
    timer_cancel(s, &v->throttle);
    timer_cancel(s, &v->devices);
    timer_forget(s, v);
    v->first = v->last = NULL;
    v->blocked = v->stopping = v->throttled = v->job_again = false;
    for (unsigned i = 0; i < v->nr_cpus; i++)
        v->cpus[i]->state = SCHED_CPU_OFF;
    pthread_mutex_unlock(&s->lock);
}

bool sched_vm_idle(struct sched *s, struct sched_vm *v)
{
    bool idle;

    pthread_mutex_lock(&s->lock);
    idle = !v->on_cpu && !v->job_queued;
    pthread_mutex_unlock(&s->lock);
    return idle;
}

unsigned sched_vm_halted(struct sched *s, struct sched_vm *v)
{
    unsigned n = 0;

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < v->nr_cpus; i++)
        n += v->cpus[i]->state == SCHED_CPU_HALTED;
    pthread_mutex_unlock(&s->lock);
    return n;
}

bool sched_vm_quiet(struct sched *s, struct sched_vm *v)
{
    bool quiet = true;

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < v->nr_cpus; i++)
        quiet = quiet && v->cpus[i]->state != SCHED_CPU_ON;
    quiet = quiet && !v->timer_on;
    pthread_mutex_unlock(&s->lock);
    return quiet;
}

void sched_job(struct sched *s, struct sched_vm *v)
{
    pthread_mutex_lock(&s->lock);
    job_queue(s, v);
    wake_one(s);
    pthread_mutex_unlock(&s->lock);
}

void sched_deadline(struct sched *s, struct sched_vm *v, uint64_t at)
{
    pthread_mutex_lock(&s->lock);
    if (v->deadline.pos < 0 || v->deadline.at > at)
        timer_set(s, &v->deadline, at);
    pthread_mutex_unlock(&s->lock);
}

void sched_timer(struct sched *s, struct sched_vm *v, uint64_t at)
{
    pthread_mutex_lock(&s->lock);
    if (!v->blocked && !v->stopping && (v->devices.pos < 0 || v->devices.at > at))
        timer_set(s, &v->devices, at);
    pthread_mutex_unlock(&s->lock);
}

void sched_wake(struct sched *s, struct sched_cpu *c)
{
    pthread_mutex_lock(&s->lock);
    c->woken = true;
    if (c->state == SCHED_CPU_HALTED && !c->vm->stopping) {
        cpu_queue(s, c);
        wake_one(s);
    } else if (c->state == SCHED_CPU_ON && c->thread) {
        /* One with a thread is in a mode that sees nothing until it leaves. */
        s->ops->kick(c);
    }
    pthread_mutex_unlock(&s->lock);
}

void sched_scrub(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->scrub_wanted = true;
    background_place(s);
    pthread_mutex_unlock(&s->lock);
}

void sched_reap(struct sched *s)
{
    pthread_mutex_lock(&s->lock);
    s->reap_wanted = s->reap_again = true;
    background_place(s);
    wake_one(s);
    pthread_mutex_unlock(&s->lock);
}
