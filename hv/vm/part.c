/* Ranges of a live VM's memory: asking, the job's steps, giving back and taking again. */
#include "hv/vm/vm.h"

#include <inttypes.h>
#include <string.h>

#include "hv/host/log.h"

static uint64_t now(const struct vm *vm)
{
    return vm->vmm->env->now_ns(vm->vmm->env->arg);
}

/* ---- asking; with vm->lock */

static enum mf_status check_range(struct vm *vm, uint64_t first, uint64_t frames,
                                  struct mf_error *e)
{
    if (!frames || frames > MF_PART_FRAMES_MAX)
        return error_set(e, MF_E_RANGE, "frames", "%" PRIu64 " frames: possible are 1 to %" PRIu64,
                         frames, MF_PART_FRAMES_MAX);
    if (first >= S2_GFN_END ||
        stage2_check(vm->s2, gpa(first << FRAME_SHIFT), frames << FRAME_SHIFT) != MF_OK)
        return error_set(e, MF_E_RANGE, "first",
                         "the %" PRIu64 " frames from 0x%" PRIx64 " on are not all RAM of the VM",
                         frames, first);
    return MF_OK;
}

static enum mf_status check_state(struct vm *vm, struct mf_error *e)
{
    if ((vm->state == MF_VM_RUNNING || vm->state == MF_VM_PAUSED) && vm->s2)
        return MF_OK;
    return error_set(e, MF_E_STATE, NULL, "the VM is %s: only a running or paused one has memory",
                     vm_state_word(vm->state));
}

static void ask(struct vm *vm, struct vm_part_request *r, enum vm_part_op op, uint64_t first,
                uint64_t frames)
{
    *r = (struct vm_part_request){
        .state = VM_PART_ASKED, .op = op, .first = first, .frames = frames, .began = now(vm)};
    vm->part.asked++;
    sched_job(&vm->vmm->sched, &vm->sched);
}

enum mf_status vm_part_ask_locked(struct vm *vm, enum vm_part_op op, uint64_t first,
                                  uint64_t frames, struct mf_error *e)
{
    struct vm_part_request *r = &vm->part.control;
    enum mf_status st = check_state(vm, e);

    if (st)
        return st;
    if (op != VM_PART_LOG_START)
        st = check_range(vm, first, frames, e);
    if (st)
        return st;
    if (r->state != VM_PART_FREE)
        return error_set(e, MF_E_BUSY, NULL, "another call works on this VM's memory");
    if (op == VM_PART_LOG_FETCH && !vm->part.dirty)
        return error_set(e, MF_E_STATE, NULL, "no log of written frames is on: start one");
    ask(vm, r, op, first, frames);
    return MF_BLOCKED;
}

enum mf_status vm_part_ask(struct vm *vm, enum vm_part_op op, uint64_t first, uint64_t frames,
                           struct mf_error *e)
{
    enum mf_status st;

    pthread_mutex_lock(&vm->lock);
    st = vm_part_ask_locked(vm, op, first, frames, e);
    pthread_mutex_unlock(&vm->lock);
    return st;
}

/* Why a request failed, for a person. */
static enum mf_status say(struct vm *vm, enum mf_status st, struct mf_error *e)
{
    struct heap_info i;

    if (!st)
        return MF_OK;
    if (st == MF_E_STATE)
        return error_set(e, st, NULL, "the VM ended meanwhile");
    if (st == MF_E_PLUGIN)
        return error_set(e, st, NULL, "the teardown strategy failed on the range");
    if (st != MF_E_NO_MEMORY && st != MF_E_QUOTA)
        return error_default(e, st);
    heap_get_info(vm->vmm->heap, &i);
    return error_set(e, st, "frames", "%s; %" PRIu64 " frames are free", mf_status_text(st),
                     i.free);
}

enum mf_status vm_part_result(struct vm *vm, struct mf_reply_balloon *out, struct mf_error *e)
{
    struct vm_part_request *r = &vm->part.control;
    enum mf_status st = MF_BLOCKED;

    pthread_mutex_lock(&vm->lock);
    if (r->state == VM_PART_DONE) {
        st = r->status;
        *out = r->result;
        r->state = VM_PART_FREE;
    } else if (r->state == VM_PART_FREE) {
        st = MF_E_STATE;
    }
    pthread_mutex_unlock(&vm->lock);
    return st == MF_BLOCKED ? st : say(vm, st, e);
}

void vm_part_orphan(struct vm *vm)
{
    struct vm_part_request *r = &vm->part.control;

    pthread_mutex_lock(&vm->lock);
    if (r->state == VM_PART_DONE)
        r->state = VM_PART_FREE;
    else if (r->state != VM_PART_FREE)
        r->orphan = true;
    pthread_mutex_unlock(&vm->lock);
}

static enum mf_status ask_guest(struct vm *vm, struct vm_part_request *r, enum vm_part_op op,
                                uint64_t first, uint64_t frames)
{
    enum mf_status st = check_state(vm, NULL);

    if (!st)
        st = check_range(vm, first, frames, NULL);
    if (st)
        return st;
    ask(vm, r, op, first, frames);
    return MF_AGAIN;
}

enum mf_status vm_part_guest(struct vm *vm, unsigned vcpu, enum vm_part_op op, uint64_t first,
                             uint64_t frames, uint64_t *frames_done)
{
    struct vm_part_request *r = &vm->cpus[vcpu].part;
    enum mf_status st = MF_AGAIN;

    pthread_mutex_lock(&vm->lock);
    if (r->state == VM_PART_DONE) {
        r->state = VM_PART_FREE;
        st = r->status;
        *frames_done = r->result.frames;
        if (r->op != op || r->first != first || r->frames != frames)
            st = ask_guest(vm, r, op, first, frames);
    } else if (r->state == VM_PART_FREE) {
        st = ask_guest(vm, r, op, first, frames);
    }
    pthread_mutex_unlock(&vm->lock);
    return st;
}

/* ---- the job: which request */

static struct vm_part_request *request_of(struct vm *vm, unsigned turn)
{
    return turn ? &vm->cpus[turn - 1].part : &vm->part.control;
}

/* The next request in turn becomes the one under work. */
static void take_next(struct vm *vm)
{
    struct vm_part *p = &vm->part;
    unsigned n = vm->config.vcpus + 1;

    pthread_mutex_lock(&vm->lock);
    for (unsigned i = 0; p->asked && !p->on && i < n; i++) {
        struct vm_part_request *r = request_of(vm, (p->turn + i) % n);

        if (r->state != VM_PART_ASKED)
            continue;
        r->state = VM_PART_ON;
        p->asked--;
        p->turn = (p->turn + i + 1) % n;
        p->on = r;
        p->phase = VM_PART_EDGES;
        p->root = p->tries = 0;
        p->failed = MF_OK;
        p->at = r->op == VM_PART_LOG_FETCH ? vm_ram_index(vm, r->first) : r->first;
        p->epoch = 0;
    }
    pthread_mutex_unlock(&vm->lock);
}

static void put_other(struct vm *vm)
{
    strategies_put(vm->vmm->strategies, vm->part.other);
    vm->part.other = NULL;
}

/* With vm->lock. */
static void request_over(struct vm *vm, struct vm_part_request *r, enum mf_status st)
{
    r->status = st;
    r->result.total_ns = now(vm) - r->began;
    memcpy(r->result.teardown, vm->teardown->name, sizeof r->result.teardown);
    r->state = r->orphan ? VM_PART_FREE : VM_PART_DONE;
}

static void done(struct vm *vm, enum mf_status st)
{
    struct vm_part *p = &vm->part;
    struct vm_part_request *r = p->on;

    put_other(vm);
    pthread_mutex_lock(&vm->lock);
    request_over(vm, r, st);
    if (r->op == VM_PART_GIVE)
        p->given += r->result.frames;
    else if (r->op == VM_PART_TAKE)
        p->taken += r->result.frames;
    p->on = NULL;
    pthread_mutex_unlock(&vm->lock);
    if (r == &p->control && vm->vmm->events.poke)
        vm->vmm->events.poke(vm->vmm->events.arg);
}

enum mf_status vm_part_flush(struct vm *vm, uint64_t epoch)
{
    if (stage2_flushed(vm->s2, epoch))
        return MF_OK;
    for (unsigned i = 0; i < vm->config.vcpus; i++) {
        struct vcpu *v = &vm->cpus[i].cpu;

        if (atomic_load(&v->viewer.inside) && s2_viewer_stale(&v->viewer))
            vm->engine.ops->kick(v);
    }
    return MF_AGAIN;
}

/*
 * Others' memory is on its way back, or was when this began: worth another try. To be asked before,
 * because it may all be back by the time of the failure.
 */
static bool hope(const struct vm *vm)
{
    return vmm_memory_coming(vm->vmm) && now(vm) - vm->part.on->began < VM_START_WAIT_NS;
}

static enum mf_status or_wait(bool hope, enum mf_status st)
{
    return st == MF_E_NO_MEMORY && hope ? MF_AGAIN : st;
}

/* ---- give back */

/* True: nobody changes the VM's strategy until the chunk is through. */
static bool zap_claim(struct vm *vm)
{
    bool ok;

    pthread_mutex_lock(&vm->lock);
    ok = !vm->swap_to;
    vm->part.zapping = ok;
    pthread_mutex_unlock(&vm->lock);
    return ok;
}

static void zap_release(struct vm *vm)
{
    pthread_mutex_lock(&vm->lock);
    vm->part.zapping = false;
    pthread_mutex_unlock(&vm->lock);
}

static enum mf_status give_edges(struct vm *vm, struct vm_part_request *r)
{
    struct vm_part *p = &vm->part;
    uint64_t left = r->first + r->frames - p->at;
    bool wait = hope(vm);
    const struct strategy *s;
    enum mf_status st;
    unsigned splits;

    p->chunk = p->at + (left < VM_PART_CHUNK ? left : VM_PART_CHUNK);
    st = stage2_split_edges(vm->s2, gfn(p->at), p->chunk - p->at, &splits);
    r->result.splits += splits;
    if (st)
        return or_wait(wait, st);
    if (!zap_claim(vm))
        return MF_AGAIN;
    s = p->other ? p->other : vm->teardown;
    st = teardown_begin_range(&vm->zap, vm->s2, strategy_teardown(s), 0, stage2_roots(vm->s2),
                              gfn(p->at), gfn(p->chunk - 1));
    if (st) {
        zap_release(vm);
        return st == MF_E_ALIGN ? MF_AGAIN : st;
    }
    p->phase = VM_PART_ZAP;
    return MF_AGAIN;
}

static void give_count(struct vm *vm, struct vm_part_request *r)
{
    const struct teardown_report *t = &vm->zap.report;
    struct mf_reply_balloon *b = &r->result;

    b->frames += t->frames_retired - t->tables_freed;
    b->tables += t->tables_freed;
    b->loops += t->loops;
    b->steps += t->steps;
    if (t->step_max_ns > b->step_max_ns)
        b->step_max_ns = t->step_max_ns;
}

/* The strategy failed: another one does this chunk. */
static void give_replace(struct vm *vm, enum mf_status why)
{
    struct vm_part *p = &vm->part;
    struct strategy *was = p->other ? p->other : vm->teardown, *other = NULL;

    log_line(LOG_ERROR, "vm %u: teardown strategy %s failed on a range: %s", vm->id, was->name,
             mf_status_text(why));
    if (p->tries++ < VM_PART_TRIES)
        other = strategies_get_other(vm->vmm->strategies, was);
    put_other(vm);
    p->other = other;
    if (!other)
        p->failed = why;
}

static enum mf_status give_zap(struct vm *vm, struct vm_part_request *r)
{
    struct vm_part *p = &vm->part;
    enum mf_status st = teardown_step(&vm->zap, TEARDOWN_BUDGET);

    if (st == MF_AGAIN)
        return st;
    if (st == MF_BLOCKED) {
        stage2_reap(vm->s2, VM_REAP_STEP);
        vm_part_flush(vm, UINT64_MAX);
        return MF_AGAIN;
    }
    give_count(vm, r);
    teardown_end(&vm->zap);
    if (st)
        give_replace(vm, st);
    zap_release(vm);
    if (vm->engine.ops->unmapped)
        vm->engine.ops->unmapped(&vm->engine, gfn(p->at), p->chunk - p->at);
    p->phase = st && !p->failed ? VM_PART_EDGES : VM_PART_FLUSH;
    return MF_AGAIN;
}

static enum mf_status give_flush(struct vm *vm, struct vm_part_request *r)
{
    struct vm_part *p = &vm->part;
    enum mf_status st = stage2_reap(vm->s2, VM_REAP_STEP);

    if (st == MF_BLOCKED)
        vm_part_flush(vm, UINT64_MAX);
    if (st)
        return MF_AGAIN;
    sched_scrub(&vm->vmm->sched);
    vm_dirty_mark(vm, p->at, p->chunk - p->at);
    put_other(vm);
    p->at = p->chunk;
    p->phase = VM_PART_EDGES;
    if (p->failed)
        return p->failed;
    return p->at == r->first + r->frames ? MF_OK : MF_AGAIN;
}

static enum mf_status give_step(struct vm *vm, struct vm_part_request *r)
{
    switch (vm->part.phase) {
    case VM_PART_EDGES:
        return give_edges(vm, r);
    case VM_PART_ZAP:
        return give_zap(vm, r);
    default:
        return give_flush(vm, r);
    }
}

/* ---- take again */

static enum mf_status take_step(struct vm *vm, struct vm_part_request *r)
{
    uint64_t *at = &vm->part.at, end = r->first + r->frames;
    bool wait = hope(vm);
    struct s2_leaf leaf;

    for (unsigned i = 0; i < VM_PART_TAKE_STEP && *at < end; i++) {
        enum mf_status st = stage2_lookup(vm->s2, 0, gfn(*at), S2_READ, &leaf);

        if (st == MF_E_NOT_FOUND) {
            st = stage2_fault(vm->s2, 0, gfn(*at), S2_READ, &leaf);
            if (st)
                return or_wait(wait, st);
            r->result.frames += UINT64_C(1) << leaf.order;
        } else if (st) {
            return st;
        }
        *at = (*at | ((UINT64_C(1) << leaf.order) - 1)) + 1;
    }
    r->result.steps++;
    return *at < end ? MF_AGAIN : MF_OK;
}

/* ---- the job's step */

bool vm_part_step(struct vm *vm)
{
    struct vm_part *p = &vm->part;
    enum mf_status st;

    if (!p->on)
        take_next(vm);
    if (!p->on)
        return false;
    switch (p->on->op) {
    case VM_PART_GIVE:
        st = give_step(vm, p->on);
        break;
    case VM_PART_TAKE:
        st = take_step(vm, p->on);
        break;
    default:
        st = vm_dirty_step(vm, p->on);
        break;
    }
    if (st != MF_AGAIN)
        done(vm, st);
    return true; /* there may be another request */
}

void vm_part_abort(struct vm *vm)
{
    struct vm_part *p = &vm->part;
    bool told = false;

    if (p->zapping)
        teardown_end(&vm->zap);
    put_other(vm);
    pthread_mutex_lock(&vm->lock);
    for (unsigned i = 0; i <= vm->config.vcpus; i++) {
        struct vm_part_request *r = request_of(vm, i);

        if (r->state == VM_PART_ASKED || r->state == VM_PART_ON) {
            request_over(vm, r, MF_E_STATE);
            told = true;
        }
        if (i)
            r->state = VM_PART_FREE; /* the vCPU is gone */
    }
    vm_part_fini(p);
    p->dirty = NULL;
    p->on = NULL;
    p->asked = 0;
    p->zapping = false;
    p->given = p->taken = 0;
    pthread_mutex_unlock(&vm->lock);
    if (told && vm->vmm->events.poke)
        vm->vmm->events.poke(vm->vmm->events.arg);
}
