/* What hypercalls do to a VM that lives, and the swap of its teardown strategy. Control thread. */
#include "hv/vm/vm.h"

#include <string.h>

#include "hv/host/log.h"

static uint64_t now(const struct vm *vm)
{
    return vm->vmm->env->now_ns(vm->vmm->env->arg);
}

static enum mf_status wrong_state(struct vm *vm, const char *action, struct mf_error *e)
{
    return error_set(e, MF_E_STATE, NULL, "the VM is %s: it cannot be %s", vm_state_word(vm->state),
                     action);
}

/* ---- pause and resume */

enum mf_status vm_pause(struct vm *vm, struct mf_error *e)
{
    enum mf_status st = MF_OK;

    pthread_mutex_lock(&vm->lock);
    if (vm->state != MF_VM_RUNNING) {
        st = wrong_state(vm, "paused", e);
    } else {
        uint64_t t = vm_clock(vm);

        vm_transition(vm, MF_VM_PAUSED);
        /* Zero means "runs"; a nanosecond more is no harm. */
        atomic_store(&vm->clock_frozen, t ? t : 1);
        atomic_store(&vm->waited_for, true);
        sched_vm_block(&vm->vmm->sched, &vm->sched);
    }
    pthread_mutex_unlock(&vm->lock);
    return st ? st : vm_pause_result(vm, e);
}

enum mf_status vm_pause_result(struct vm *vm, struct mf_error *e)
{
    enum mf_vm_state state = vm_get_state(vm);

    if (state == MF_VM_PAUSED && !sched_vm_quiet(&vm->vmm->sched, &vm->sched))
        return MF_BLOCKED;
    atomic_store(&vm->waited_for, false);
    if (state != MF_VM_PAUSED)
        return error_set(e, MF_E_STATE, NULL, "the VM ended in its last slice: it is %s",
                         vm_state_word(state));
    return MF_OK;
}

enum mf_status vm_resume(struct vm *vm, struct mf_error *e)
{
    enum mf_status st = MF_OK;

    pthread_mutex_lock(&vm->lock);
    if (vm->state != MF_VM_PAUSED) {
        st = wrong_state(vm, "resumed", e);
    } else {
        atomic_store(&vm->clock_base, now(vm) - atomic_load(&vm->clock_frozen));
        atomic_store(&vm->clock_frozen, 0);
        vm_transition(vm, MF_VM_RUNNING);
        sched_vm_unblock(&vm->vmm->sched, &vm->sched);
        chipset_rearm(&vm->chipset);
    }
    pthread_mutex_unlock(&vm->lock);
    return st;
}

/* ---- reset, shutdown, destroy */

enum mf_status vm_reset(struct vm *vm, struct mf_error *e)
{
    enum mf_status st = MF_OK;

    pthread_mutex_lock(&vm->lock);
    if (vm->state != MF_VM_RUNNING && vm->state != MF_VM_PAUSED) {
        st = wrong_state(vm, "reset", e);
    } else {
        vm->restart = true;
        vm_end_locked(vm, MF_END_RESET, 0, NULL);
    }
    pthread_mutex_unlock(&vm->lock);
    return st;
}

enum mf_status vm_shutdown(struct vm *vm, uint64_t grace_ns, struct mf_error *e)
{
    enum mf_status st = MF_OK;

    if (grace_ns > MF_GRACE_MAX_NS)
        return error_set(e, MF_E_RANGE, "grace_ns", "%llu ns, possible are up to %llu",
                         (unsigned long long)grace_ns, (unsigned long long)MF_GRACE_MAX_NS);
    pthread_mutex_lock(&vm->lock);
    if (vm->state == MF_VM_STOPPING) {
        vm->restart = false;
    } else if (vm_state_off(vm->state)) {
        st = wrong_state(vm, "shut down", e);
    } else {
        atomic_fetch_or(&vm->guest_events, MF_GUEST_EVENT_SHUTDOWN);
        chipset_button(&vm->chipset);
        sched_deadline(&vm->vmm->sched, &vm->sched,
                       now(vm) + (grace_ns ? grace_ns : MF_GRACE_DEFAULT_NS));
    }
    pthread_mutex_unlock(&vm->lock);
    return st;
}

enum mf_status vm_destroy(struct vm *vm, struct mf_error *e)
{
    enum mf_status st = MF_OK;

    pthread_mutex_lock(&vm->lock);
    if (vm_state_off(vm->state)) {
        st = wrong_state(vm, "destroyed", e);
    } else if (vm->state == MF_VM_STOPPING && vm->restart) {
        vm->restart = false;
        vm->report.reason = MF_END_DESTROYED;
    } else {
        vm_end_locked(vm, MF_END_DESTROYED, 0, NULL);
    }
    pthread_mutex_unlock(&vm->lock);
    return st;
}

/* ---- teardown strategy */

static bool tracks(const struct strategy *s)
{
    return strategy_teardown(s)->flags & MF_TD_TRACKS;
}

static void swap_report(struct vm *vm, const struct strategy *from, const struct strategy *to,
                        uint64_t began, uint64_t paused_at)
{
    struct mf_reply_swap *r = &vm->swap_done;
    uint64_t t = now(vm);

    memset(r, 0, sizeof *r);
    r->pause_ns = t - paused_at;
    r->total_ns = t - began;
    memcpy(r->from, from->name, sizeof r->from);
    memcpy(r->to, to->name, sizeof r->to);
}

/* With vm->lock: the moment of the switch. */
static void swap_now(struct vm *vm, struct strategy *to, uint64_t began)
{
    struct strategy *from = vm->teardown;
    uint64_t t = now(vm);

    vm->teardown = to;
    if (vm->s2 && tracks(from) && !tracks(to))
        stage2_untrack(vm->s2);
    if (vm->s2)
        stage2_set_arena(vm->s2, strategy_teardown(to)->flags & MF_TD_ARENA);
    swap_report(vm, from, to, began, t);
    vm->swap_status = MF_OK;
    strategies_put(vm->vmm->strategies, from);
}

void vm_swap_cancel(struct vm *vm)
{
    if (!vm->swap_to)
        return;
    strategies_put(vm->vmm->strategies, vm->swap_to);
    vm->swap_to = NULL;
    vm->swap_status = MF_E_STATE;
    if (vm->vmm->events.poke)
        vm->vmm->events.poke(vm->vmm->events.arg); /* the call that waits for it */
}

static enum mf_status set_locked(struct vm *vm, struct strategy *to, struct mf_error *e)
{
    uint64_t t = now(vm);

    if (vm->swap_to)
        return error_set(e, MF_E_BUSY, "name", "a swap to %s is under way", vm->swap_to->name);
    if (vm->state == MF_VM_STOPPING && vm->stuck) {
        swap_now(vm, to, t);
        vm->stuck = false;
        vm->tries = 0;
        vm->phase = VM_PHASE_BEGIN;
        sched_job(&vm->vmm->sched, &vm->sched);
        return MF_OK;
    }
    if (vm->state == MF_VM_STARTING || vm->state == MF_VM_STOPPING)
        return error_set(e, MF_E_STATE, NULL, "the VM is %s: its strategy cannot change now",
                         vm_state_word(vm->state));
    if (vm->s2 && (vm->part.zapping || (tracks(to) && !tracks(vm->teardown)))) {
        vm->swap_to = to;
        vm->swap_began = t;
        vm->swap_status = MF_BLOCKED;
        sched_job(&vm->vmm->sched, &vm->sched);
        return MF_BLOCKED;
    }
    swap_now(vm, to, t);
    return MF_OK;
}

enum mf_status vm_set_teardown(struct vm *vm, struct strategy *to, struct mf_reply_swap *report,
                               struct mf_error *e)
{
    enum mf_status st;

    pthread_mutex_lock(&vm->lock);
    st = set_locked(vm, to, e);
    if (!st)
        *report = vm->swap_done;
    pthread_mutex_unlock(&vm->lock);
    return st;
}

enum mf_status vm_teardown_result(struct vm *vm, struct mf_reply_swap *report, struct mf_error *e)
{
    enum mf_status st;

    pthread_mutex_lock(&vm->lock);
    st = vm->swap_to ? MF_BLOCKED : vm->swap_status;
    if (!st)
        *report = vm->swap_done;
    pthread_mutex_unlock(&vm->lock);
    if (st == MF_E_STATE)
        return error_set(e, st, NULL, "the VM ended before the swap was done");
    return st == MF_BLOCKED ? st : error_default(e, st);
}

/* A step of the job: the used-entry bitmaps are built while the guest runs, then the switch. */
bool vm_track_step(struct vm *vm)
{
    bool pending, build;
    enum mf_status st;

    pthread_mutex_lock(&vm->lock);
    pending = vm->swap_to && vm->s2;
    build = pending && tracks(vm->swap_to);
    pthread_mutex_unlock(&vm->lock);
    if (!pending)
        return false;
    /* The second stage stays: only this job takes it away. */
    st = build ? stage2_track_step(vm->s2, VM_TRACK_STEP) : MF_OK;
    if (st == MF_AGAIN)
        return true;
    pthread_mutex_lock(&vm->lock);
    if (vm->swap_to && st) {
        log_line(LOG_WARNING, "vm %u: entries cannot be tracked: %s", vm->id, mf_status_text(st));
        vm_swap_cancel(vm);
        vm->swap_status = st;
        stage2_untrack(vm->s2);
    } else if (vm->swap_to) {
        swap_now(vm, vm->swap_to, vm->swap_began);
        vm->swap_to = NULL;
    }
    pthread_mutex_unlock(&vm->lock);
    if (vm->vmm->events.poke)
        vm->vmm->events.poke(vm->vmm->events.arg);
    return false;
}
