/*
 * VMs whose strategy defers: at the end the second stage goes to the reaper in O(1) and the VM is
 * off, may start again or be deleted; its memory comes back in the background, and then the report
 * of that life is completed, if the VM still is there and no later life has ended.
 *
 *   job of the VM:   vm_defer          -> reaper.take
 *   any thread:      reaper_step       -> told, which only puts the record on a list
 *   background step: vmm_reap_step     -> takes the list and completes the reports
 *
 * An allocation that finds no memory runs reaper steps with locks held; that is why `told` takes
 * none but leaves.
 */
#include "hv/vm/vm.h"

#include <stdlib.h>

#include "hv/host/log.h"

struct vm_dying {
    struct vm_dying *next;     /* in vmm->returned */
    struct strategy *strategy; /* one use held; NULL: none can finish it */
    unsigned tries;            /* strategies that failed */
    uint32_t id, life;         /* of the VM; life: vm->starts then */
    uint64_t unreachable_ns;   /* end of the guest until the hand-over */
    struct reaper_result result;

    /* Under vmm->dying_lock. */
    struct vm *vm; /* NULL: deleted */
    struct vm_dying *older;
};

/* ---- told by the reaper */

static void told_done(void *arg, const struct reaper_result *r)
{
    struct vm_dying *d = r->tag, *head;
    struct vmm *m = arg;

    strategies_put(m->strategies, d->strategy);
    d->result = *r;
    head = atomic_load(&m->returned);
    do
        d->next = head;
    while (!atomic_compare_exchange_weak(&m->returned, &head, d));
}

static const struct mf_teardown_ops *told_failed(void *arg, void *tag, enum mf_status why)
{
    struct vm_dying *d = tag;
    struct strategy *other = NULL;
    struct vmm *m = arg;

    if (d->strategy)
        log_line(LOG_ERROR, "vm %u: deferred teardown by %s failed: %s", d->id, d->strategy->name,
                 mf_status_text(why));
    if (d->tries++ < VM_STRATEGY_TRIES)
        other = strategies_get_other(m->strategies, d->strategy);
    if (d->strategy)
        strategies_put(m->strategies, d->strategy);
    d->strategy = other;
    if (other) {
        log_line(LOG_ERROR, "vm %u: deferred teardown goes on with %s", d->id, other->name);
        return strategy_teardown(other);
    }
    log_line(LOG_ERROR, "vm %u: no strategy can take its memory back: it stays until one is loaded",
             d->id);
    d->tries = 0;
    return NULL;
}

/* ---- handing over */

static void unlink_dying(struct vm_dying *d)
{
    struct vm_dying **p = &d->vm->dying;

    while (*p != d)
        p = &(*p)->older;
    *p = d->older;
}

static struct vm_dying *dying_new(struct vm *vm)
{
    struct vm_dying *d = calloc(1, sizeof *d);

    if (!d)
        return NULL;
    d->strategy = strategies_get(vm->vmm->strategies, MF_PLUGIN_TEARDOWN, vm->teardown->name);
    if (!d->strategy) {
        free(d);
        return NULL;
    }
    d->vm = vm;
    d->id = vm->id;
    pthread_mutex_lock(&vm->vmm->dying_lock);
    d->older = vm->dying;
    vm->dying = d;
    pthread_mutex_unlock(&vm->vmm->dying_lock);
    return d;
}

struct vm_dying *vm_defer_prepare(struct vm *vm)
{
    if (!(strategy_teardown(vm->teardown)->flags & MF_TD_DEFERS))
        return NULL;
    return dying_new(vm);
}

void vm_defer_abandon(struct vm *vm, struct vm_dying *d)
{
    pthread_mutex_lock(&vm->vmm->dying_lock);
    unlink_dying(d);
    pthread_mutex_unlock(&vm->vmm->dying_lock);
    strategies_put(vm->vmm->strategies, d->strategy);
    free(d);
}

enum mf_status vm_defer_locked(struct vm *vm, struct vm_dying *d)
{
    const struct mm_env *env = vm->vmm->env;
    enum mf_status st;

    d->life = vm->starts;
    st = reaper_take(&vm->vmm->reaper, vm->s2, strategy_teardown(d->strategy), d);
    if (st)
        return st;
    vm->s2 = NULL;
    vm->engine.s2 = NULL;
    /* d may be on its way to the list already, but nobody completes it without vm->lock. */
    vm->report.unreachable_ns = d->unreachable_ns = env->now_ns(env->arg) - vm->end_at;
    sched_reap(&vm->vmm->sched);
    return MF_OK;
}

void vm_defer_forget(struct vm *vm)
{
    pthread_mutex_lock(&vm->vmm->dying_lock);
    for (struct vm_dying *d = vm->dying; d; d = d->older)
        d->vm = NULL;
    pthread_mutex_unlock(&vm->vmm->dying_lock);
}

/* ---- completing */

static void complete(const struct vm_dying *d, struct mf_end_report *r)
{
    const struct teardown_report *t = &d->result.report;

    r->returned_ns = d->unreachable_ns + d->result.took_ns;
    r->loops = t->loops;
    for (unsigned i = 0; i < MF_ZAP_PASSES; i++)
        r->loops_per_pass[i] = t->loops_per_pass[i];
    r->entries_removed = t->entries_removed;
    r->tables_freed = t->tables_freed;
    r->roots_freed = d->result.roots;
    r->frames_returned = t->frames_retired + d->result.roots;
    r->steps = t->steps;
    r->step_max_ns = t->step_max_ns;
}

static void complete_life(struct vmm *m, struct vm_dying *d)
{
    pthread_mutex_lock(&m->dying_lock);
    if (d->vm) {
        unlink_dying(d);
        pthread_mutex_lock(&d->vm->lock);
        if (d->vm->end_life == d->life)
            complete(d, &d->vm->end);
        pthread_mutex_unlock(&d->vm->lock);
    }
    pthread_mutex_unlock(&m->dying_lock);
    if (d->result.lost)
        log_line(LOG_ERROR, "vm %u: %llu frames did not come back", d->id,
                 (unsigned long long)d->result.lost);
}

/* True when there was one. */
static bool complete_all(struct vmm *m)
{
    struct vm_dying *d = atomic_exchange(&m->returned, NULL), *next;

    for (struct vm_dying *at = d; at; at = next) {
        next = at->next;
        complete_life(m, at);
        free(at);
    }
    return d;
}

bool vmm_reap_step(void *arg)
{
    struct vmm *m = arg;
    enum mf_status st = reaper_step(&m->reaper, TEARDOWN_BUDGET);

    if (complete_all(m))
        sched_scrub(&m->sched);
    return st != MF_OK;
}

void vmm_reap_retry(struct vmm *m)
{
    reaper_retry(&m->reaper);
    if (atomic_load(&m->reaper.trees))
        sched_reap(&m->sched);
}

/* ---- with the whole */

void vmm_reap_init(struct vmm *m)
{
    m->reaper_ops = (struct reaper_ops){told_done, told_failed, m};
    pthread_mutex_init(&m->dying_lock, NULL);
    reaper_init(&m->reaper, m->heap, &m->reaper_ops);
}

void vmm_reap_fini(struct vmm *m)
{
    while (reaper_step(&m->reaper, TEARDOWN_BUDGET) == MF_AGAIN)
        ;
    complete_all(m);
    heap_set_helper(m->heap, NULL, NULL);
    if (m->reaper.parked)
        log_line(LOG_ERROR, "memory of VMs that are gone stays: no strategy could take it back");
    pthread_mutex_destroy(&m->dying_lock);
}
