/* What is done to a VM that exists, and waiting for what comes of it. */
#include <stdlib.h>
#include <string.h>

#include "daemon/hvd.h"

#define WAIT_MS     30000u
#define WAIT_MS_MAX 86400000u

/* ---- waiting for a state; any end ends the wait too */

enum want { WANT_NONE, WANT_RUNNING, WANT_PAUSED, WANT_END };

struct waiter {
    struct vm_waiter w; /* first: the VM's list points here */
    struct waiter *prev, *next;
    struct hvd *d;
    struct req *r;
    struct vm *vm;
    enum want want;
    uv_timer_t timer;
};

static void free_waiter(uv_handle_t *h)
{
    free(h->data);
}

/* Out of every list; the request is answered by the caller. */
static void wait_end(struct waiter *w)
{
    vm_unwait(w->vm, &w->w);
    *(w->prev != NULL ? &w->prev->next : &w->d->waiters) = w->next;
    if (w->next != NULL)
        w->next->prev = w->prev;
    vm_unref(w->vm);
    uv_close((uv_handle_t *)&w->timer, free_waiter);
}

static void wait_fail(struct waiter *w, enum mf_status st, const char *why)
{
    req_fail(w->r, st, NULL, "%s", why);
    wait_end(w);
}

static void on_changed(struct vm_waiter *vw)
{
    struct waiter *w = (struct waiter *)vw;
    enum mf_vm_state s = w->vm->state;

    if (!w->vm->listed) {
        wait_fail(w, MF_E_NOT_FOUND, "the VM was deleted meanwhile");
        return;
    }
    if (!vm_is_off(w->vm) && !(w->want == WANT_RUNNING && s == MF_VM_RUNNING) &&
        !(w->want == WANT_PAUSED && s == MF_VM_PAUSED))
        return;
    api_vm_reply_fresh(w->d, w->r, 200, w->vm);
    wait_end(w);
}

static void on_timeout(uv_timer_t *t)
{
    wait_fail(t->data, MF_E_TIMEOUT, "the VM has not come to that state in time");
}

/* The client went: nobody is left to wait for. */
static void on_wait_gone(void *arg)
{
    wait_fail(arg, MF_E_TIMEOUT, "the client hung up");
}

void waits_quit(struct hvd *d)
{
    while (d->waiters != NULL)
        wait_fail(d->waiters, MF_E_UNAVAILABLE, "the daemon is going down");
}

static void wait_begin(struct hvd *d, struct req *r, struct vm *vm, enum want want, uint64_t ms)
{
    struct waiter *w = calloc(1, sizeof *w);

    if (w == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    w->w.changed = on_changed;
    w->d = d;
    w->r = r;
    w->vm = vm;
    w->want = want;
    w->next = d->waiters;
    if (w->next != NULL)
        w->next->prev = w;
    d->waiters = w;
    vm_ref(vm);
    uv_timer_init(&d->loop, &w->timer);
    w->timer.data = w;
    uv_timer_start(&w->timer, on_timeout, ms, 0);
    vm_wait(vm, &w->w);
    req_on_gone(r, on_wait_gone, w);
    on_changed(&w->w);
}

/* ---- actions */

struct action {
    struct hvd *d;
    struct req *r;
    struct vm *vm;
    enum mf_call_nr nr;
    enum want want;
    uint64_t wait_ms;
    uint64_t grace_ms;
};

static void action_end(struct action *a)
{
    vm_unref(a->vm);
    free(a);
}

static void action_fail(struct action *a, const struct problem *p)
{
    req_problem(a->r, p);
    action_end(a);
}

/* The call went well, and these are the VM's numbers afterwards. */
static void on_after(void *arg, const struct link_reply *reply)
{
    struct action *a = arg;

    if (reply->status == MF_OK)
        vm_set_info(&a->d->vms, a->vm, reply->body);
    if (a->want != WANT_NONE)
        wait_begin(a->d, a->r, a->vm, a->want, a->wait_ms);
    else
        api_vm_reply(a->d, a->r, 200, a->vm);
    action_end(a);
}

static void look_after(struct action *a)
{
    struct mf_args_vm v = {.vm = a->vm->id};

    link_call(&a->d->core.link,
              &(struct link_request){.nr = MF_CALL_VM_INFO, .args = &v, .fn = on_after, .arg = a});
}

static bool read_wait(struct req *r, struct action *a)
{
    static const struct {
        const char *word;
        enum want want;
    } words[] = {{"running", WANT_RUNNING},
                 {"paused", WANT_PAUSED},
                 {"shutoff", WANT_END},
                 {"crashed", WANT_END},
                 {"ended", WANT_END}};
    const char *wait = req_query(r, "wait");

    a->wait_ms = WAIT_MS;
    if (!req_query_u64(r, "timeout_ms", 1, WAIT_MS_MAX, &a->wait_ms))
        return false;
    if (wait == NULL)
        return true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(wait, words[i].word) == 0)
            a->want = words[i].want;
    if (a->want == WANT_NONE)
        req_fail(r, MF_E_RANGE, "wait",
                 "\"%.40s\": possible are running, paused, shutoff, crashed and ended", wait);
    return a->want != WANT_NONE;
}

/* NULL: answered. */
static struct action *action_create(struct hvd *d, struct req *r, enum mf_call_nr nr)
{
    struct action a = {.d = d, .r = r, .nr = nr, .vm = api_vm(d, r)};

    if (a.vm == NULL || !read_wait(r, &a))
        return NULL;
    if (nr == MF_CALL_VM_SHUTDOWN &&
        !req_query_u64(r, "grace_ms", 1, MF_GRACE_MAX_NS / 1000000, &a.grace_ms))
        return NULL;
    struct action *p = malloc(sizeof *p);
    if (p == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return NULL;
    }
    *p = a;
    vm_ref(a.vm);
    return p;
}

static void on_acted(void *arg, const struct link_reply *reply)
{
    struct action *a = arg;
    struct problem p = {0};

    if (reply->status == MF_OK) {
        look_after(a);
        return;
    }
    core_problem(reply, NULL, &p);
    action_fail(a, &p);
}

static void act(struct hvd *d, struct req *r, enum mf_call_nr nr, const char *done)
{
    struct action *a = action_create(d, r, nr);
    struct problem p = {0};

    if (a == NULL)
        return;
    if (a->vm->id == 0) {
        problem_set(&p, MF_E_STATE, NULL, "the VM is %s: it cannot be %s",
                    vm_state_text(a->vm->state), done);
        action_fail(a, &p);
        return;
    }
    struct mf_args_vm_shutdown s = {.vm = a->vm->id, .grace_ns = a->grace_ms * 1000000};
    struct mf_args_vm v = {.vm = a->vm->id};
    const void *args = nr == MF_CALL_VM_SHUTDOWN ? (const void *)&s : &v;
    link_call(&d->core.link,
              &(struct link_request){.nr = nr, .args = args, .fn = on_acted, .arg = a});
}

void api_vm_pause(struct hvd *d, struct req *r)
{
    act(d, r, MF_CALL_VM_PAUSE, "paused");
}

void api_vm_resume(struct hvd *d, struct req *r)
{
    act(d, r, MF_CALL_VM_RESUME, "resumed");
}

void api_vm_reset(struct hvd *d, struct req *r)
{
    act(d, r, MF_CALL_VM_RESET, "reset");
}

void api_vm_shutdown(struct hvd *d, struct req *r)
{
    act(d, r, MF_CALL_VM_SHUTDOWN, "shut down");
}

void api_vm_destroy(struct hvd *d, struct req *r)
{
    act(d, r, MF_CALL_VM_DESTROY, "destroyed");
}

/* ---- start: made in the core when it is not there, its image read anew in any case */

static void start_end(struct action *a, const struct problem *p)
{
    a->vm->busy = false;
    action_fail(a, p);
}

struct undo {
    struct action *a;
    struct problem p;
};

static void on_undone(void *arg, const struct link_reply *reply)
{
    struct undo *u = arg;

    (void)reply;
    start_end(u->a, &u->p);
    free(u);
}

/* The VM was made but cannot start: the core forgets it before the client is told. */
static void undo_create(struct action *a, uint32_t id, const struct problem *p)
{
    struct mf_args_vm v = {.vm = id};
    struct undo *u = malloc(sizeof *u);

    if (u == NULL) {
        link_call(&a->d->core.link, &(struct link_request){.nr = MF_CALL_VM_DELETE, .args = &v});
        start_end(a, p);
        return;
    }
    *u = (struct undo){a, *p};
    link_call(
        &a->d->core.link,
        &(struct link_request){.nr = MF_CALL_VM_DELETE, .args = &v, .fn = on_undone, .arg = u});
}

static void on_started(void *arg, const struct link_reply *reply)
{
    struct action *a = arg;
    struct problem p = {0};
    uint32_t id;

    batch_outcome(reply, &id, &p);
    if (p.status == MF_OK) {
        if (id != 0)
            vms_set_id(&a->d->vms, a->vm, id);
        vms_created(&a->d->vms);
        a->vm->busy = false;
        look_after(a);
        return;
    }
    vms_created(&a->d->vms);
    if (id != 0)
        undo_create(a, id, &p);
    else
        start_end(a, &p);
}

static void start_batch(struct action *a, struct link_batch *b, struct problem *p)
{
    struct vm *vm = a->vm;
    uint32_t id = vm->id != 0 ? vm->id : MF_VM_LAST_CREATED;
    struct mf_args_vm v = {.vm = id};
    struct mf_args_vm_create create;
    struct kernel_set set;

    def_to_create(&vm->def, &create);
    if (vm->id == 0)
        link_batch_add(b, MF_CALL_VM_CREATE, &create, NULL, 0);
    if (add_image(a->d, b, &vm->def, id, &set, p) != MF_OK)
        return;
    link_batch_add(b, MF_CALL_VM_START, &v, NULL, 0);
    vm->busy = true;
    vms_creating(&a->d->vms);
    link_batch_call(&a->d->core.link, b, set.fd, set.n, on_started, a);
}

/* The core is there and the kernel is prepared. */
static void on_kernel_for_start(void *arg, const struct problem *why)
{
    struct action *a = arg;
    struct problem p = {0};

    if (why != NULL)
        p = *why;
    else if (!a->vm->listed)
        problem_set(&p, MF_E_NOT_FOUND, "vm", "the VM was deleted meanwhile");
    else if (a->vm->busy)
        problem_set(&p, MF_E_BUSY, NULL, "another request works on this VM");
    else if (a->vm->id != 0 && !vm_is_off(a->vm))
        problem_set(&p, MF_E_STATE, NULL, "the VM is %s: it cannot be started",
                    vm_state_text(a->vm->state));
    else if (!a->vm->defined)
        problem_set(&p, MF_E_STATE, NULL, "the VM has no definition to start it from");
    struct link_batch *b = p.status == MF_OK ? calloc(1, sizeof *b) : NULL;
    if (b == NULL)
        problem_nomem(&p);
    else
        start_batch(a, b, &p);
    free(b);
    if (p.status != MF_OK)
        action_fail(a, &p);
}

static void on_core_for_start(void *arg, const struct problem *why)
{
    struct action *a = arg;

    if (why != NULL || a->vm->def.kernel == NULL)
        on_kernel_for_start(a, why);
    else
        kernels_need(&a->d->kernels, a->vm->def.kernel, a->vm->def.memory, on_kernel_for_start, a);
}

void api_vm_start(struct hvd *d, struct req *r)
{
    struct action *a = action_create(d, r, MF_CALL_VM_START);

    if (a != NULL)
        core_need(&d->core, on_core_for_start, a);
}

/* ---- counters, teardown strategy */

static void on_stats(void *arg, const struct link_reply *reply)
{
    struct req *r = arg;
    struct jsonw w = {.comma = false};

    if (reply->status != MF_OK) {
        api_core_failed(r, reply);
        return;
    }
    vm_stats_json(&w, reply->body);
    req_json(r, 200, &w);
}

void api_vm_stats(struct hvd *d, struct req *r)
{
    static const struct mf_vm_info none;
    struct vm *vm = api_vm(d, r);

    if (vm == NULL)
        return;
    if (vm->id == 0) {
        on_stats(r, &(struct link_reply){.status = MF_OK, .body = &none});
        return;
    }
    struct mf_args_vm a = {.vm = vm->id};
    link_call(&d->core.link,
              &(struct link_request){.nr = MF_CALL_VM_INFO, .args = &a, .fn = on_stats, .arg = r});
}
