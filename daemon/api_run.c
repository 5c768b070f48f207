/*
 * One-shot runs: define, start, wait for the end, report, leave nothing. Two round trips to the
 * core: one batch that makes and starts the VM, one that takes what it left and deletes it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/hvd.h"
#include "daemon/log.h"
#include "daemon/parse.h"

/* What the core keeps of a run's console: it fits into one answer together with the report. */
#define RUN_CONSOLE 61440u

struct run {
    struct vm_waiter w; /* first: the VM's list points here */
    struct run *prev, *next;
    struct hvd *d;
    struct req *r;
    struct vm *vm; /* NULL until it is made */
    struct vm_def def;
    uint32_t timeout_ms;
    uv_timer_t timer;
    bool started;   /* the core has said so */
    bool collected; /* the end is being fetched */
    bool timed_out;
};

static void free_run(uv_handle_t *h)
{
    struct run *n = h->data;

    def_fini(&n->def);
    free(n);
}

/* After the answer. */
static void run_end(struct run *n)
{
    if (n->vm != NULL) {
        vm_unwait(n->vm, &n->w);
        if (n->vm->listed)
            vms_remove(&n->d->vms, n->vm);
        vm_unref(n->vm);
    }
    *(n->prev != NULL ? &n->prev->next : &n->d->runs) = n->next;
    if (n->next != NULL)
        n->next->prev = n->prev;
    uv_close((uv_handle_t *)&n->timer, free_run);
}

static void run_fail(struct run *n, const struct problem *p)
{
    req_problem(n->r, p);
    run_end(n);
}

static void run_lost(struct run *n, const char *why)
{
    struct problem p = {0};

    problem_set(&p, MF_E_UNAVAILABLE, NULL, "%s", why);
    run_fail(n, &p);
}

void runs_quit(struct hvd *d)
{
    while (d->runs != NULL)
        run_lost(d->runs, "the daemon is going down");
}

/* ---- the end */

static void run_reply(struct run *n, const struct mf_reply_console_read *con,
                      const struct mf_vm_info *info)
{
    struct jsonw w = {.comma = false};
    struct mf_end_report rep = info->end;
    const char *word = n->timed_out ? "timeout" : NULL;
    uint64_t wall = uv_hrtime() - n->r->began;

    rep.detail[sizeof rep.detail - 1] = '\0';
    rep.teardown[sizeof rep.teardown - 1] = '\0';
    buf_reserve(&w.b, con->count + 2048u);
    jsonw_object(&w);
    jsonw_kstr(&w, "name", n->def.name);
    jsonw_key(&w, "console");
    jsonw_strn(&w, (const char *)(con + 1), con->count);
    jsonw_kbool(&w, "console_truncated", con->offset > 0 || con->count < con->end - con->offset);
    jsonw_key(&w, "end");
    end_json(&w, rep.reason, rep.code, word,
             n->timed_out ? "it did not end in time and was destroyed" : rep.detail);
    jsonw_key(&w, "report");
    end_report_json(&w, &rep, word);
    jsonw_ku64(&w, "wall_ns", wall);
    jsonw_object_end(&w);
    metrics_run(n->d, wall);
    req_json(n->r, 200, &w);
}

static void on_collected(void *arg, const struct link_reply *reply)
{
    struct run *n = arg;
    struct link_reply con = {0};
    struct link_reply info = {0};
    struct link_reply del = {0};
    struct problem p = {0};
    uint32_t id;
    uint16_t nr;
    size_t at = 0;

    if (batch_outcome(reply, &id, &p) != MF_OK) {
        run_fail(n, &p);
        return;
    }
    if (!link_batch_next(reply, &at, &nr, &con) || nr != MF_CALL_CONSOLE_READ ||
        !link_batch_next(reply, &at, &nr, &info) || nr != MF_CALL_VM_INFO ||
        !link_batch_next(reply, &at, &nr, &del) ||
        con.len < sizeof(struct mf_reply_console_read) +
                      ((const struct mf_reply_console_read *)con.body)->count) {
        run_lost(n, "the core's report of the run makes no sense");
        return;
    }
    run_reply(n, con.body, info.body);
    run_end(n);
}

static void collect(struct run *n)
{
    struct mf_args_console_read con = {.vm = n->vm->id, .max = RUN_CONSOLE};
    struct mf_args_vm v = {.vm = n->vm->id};
    struct link_batch b;

    b.count = 0;
    b.len = 0;
    b.full = false;
    n->collected = true;
    link_batch_add(&b, MF_CALL_CONSOLE_READ, &con, NULL, 0);
    link_batch_add(&b, MF_CALL_VM_INFO, &v, NULL, 0);
    link_batch_add(&b, MF_CALL_VM_DELETE, &v, NULL, 0);
    link_batch_call(&n->d->core.link, &b, NULL, 0, on_collected, n);
}

static void on_changed(struct vm_waiter *w)
{
    struct run *n = (struct run *)w;

    if (n->collected || !n->started)
        return; /* whoever waits for the core's answer goes on */
    if (n->vm->id == 0 || !n->vm->listed)
        run_lost(n, n->vm->listed ? "the core was lost while the guest ran"
                                  : "the VM was deleted by somebody else while it ran");
    else if (n->vm->ended)
        collect(n);
}

static void give_up(struct run *n)
{
    struct mf_args_vm v = {.vm = n->vm->id};

    if (n->started && !n->collected)
        link_call(&n->d->core.link, &(struct link_request){.nr = MF_CALL_VM_DESTROY, .args = &v});
}

static void on_timeout(uv_timer_t *t)
{
    struct run *n = t->data;

    n->timed_out = true;
    give_up(n);
}

static void on_gone(void *arg)
{
    give_up(arg);
}

/* ---- the beginning */

struct undo {
    struct run *n;
    struct problem p;
};

static void on_undone(void *arg, const struct link_reply *reply)
{
    struct undo *u = arg;

    (void)reply;
    run_fail(u->n, &u->p);
    free(u);
}

static void start_failed(struct run *n, uint32_t id, const struct problem *p)
{
    struct mf_args_vm v = {.vm = id};
    struct undo *u = id == 0 ? NULL : malloc(sizeof *u);

    if (u == NULL) {
        if (id != 0)
            link_call(&n->d->core.link,
                      &(struct link_request){.nr = MF_CALL_VM_DELETE, .args = &v});
        run_fail(n, p);
        return;
    }
    *u = (struct undo){n, *p};
    link_call(
        &n->d->core.link,
        &(struct link_request){.nr = MF_CALL_VM_DELETE, .args = &v, .fn = on_undone, .arg = u});
}

static void on_started(void *arg, const struct link_reply *reply)
{
    struct run *n = arg;
    struct hvd *d = n->d;
    struct problem p = {0};
    uint32_t id;

    batch_outcome(reply, &id, &p);
    if (p.status != MF_OK) {
        vms_created(&d->vms);
        start_failed(n, id, &p);
        return;
    }
    n->started = true;
    if (n->r->gone || n->timed_out) {
        vms_set_id(&d->vms, n->vm, id);
        give_up(n);
    } else {
        vms_set_id(&d->vms, n->vm, id); /* may answer and free the run */
    }
    vms_created(&d->vms);
}

static void start(struct run *n, struct problem *p)
{
    struct mf_args_vm v = {.vm = MF_VM_LAST_CREATED};
    struct mf_args_vm_create create;
    struct kernel_set set;
    struct link_batch b;

    b.count = 0;
    b.len = 0;
    b.full = false;
    def_to_create(&n->def, &create);
    create.console_size = RUN_CONSOLE;
    link_batch_add(&b, MF_CALL_VM_CREATE, &create, NULL, 0);
    if (add_image(n->d, &b, &n->def, MF_VM_LAST_CREATED, &set, p) != MF_OK)
        return;
    link_batch_add(&b, MF_CALL_VM_START, &v, NULL, 0);
    uv_timer_start(&n->timer, on_timeout, n->timeout_ms, 0);
    req_on_gone(n->r, on_gone, n);
    vms_creating(&n->d->vms);
    link_batch_call(&n->d->core.link, &b, set.fd, set.n, on_started, n);
}

/* The VM that holds the run's name. */
static void claim(struct run *n, struct problem *p)
{
    struct hvd *d = n->d;
    struct vm_def copy;

    if (uuid_is_zero(n->def.uuid))
        uuid_make(n->def.uuid, true);
    else if (vms_find_uuid(&d->vms, n->def.uuid) != NULL)
        problem_set(p, MF_E_EXISTS, "uuid", "a VM of this uuid exists");
    if (n->def.name[0] == '\0')
        snprintf(n->def.name, sizeof n->def.name, "run-%02x%02x%02x%02x%02x%02x%02x",
                 n->def.uuid[7], n->def.uuid[10], n->def.uuid[11], n->def.uuid[12], n->def.uuid[13],
                 n->def.uuid[14], n->def.uuid[15]);
    if (vms_find_name(&d->vms, n->def.name) != NULL)
        problem_set(p, MF_E_EXISTS, "name", "a VM named %s exists", n->def.name);
    if (p->status != MF_OK)
        return;
    if (!def_copy(&copy, &n->def)) {
        problem_nomem(p);
        return;
    }
    n->vm = vms_add(&d->vms, &copy);
    def_fini(&copy);
    if (n->vm == NULL) {
        problem_nomem(p);
        return;
    }
    n->vm->busy = true;
    vm_ref(n->vm);
    n->w.changed = on_changed;
    vm_wait(n->vm, &n->w);
}

static void on_kernel(void *arg, const struct problem *why)
{
    struct run *n = arg;
    struct problem p = {0};

    if (why != NULL)
        p = *why;
    if (p.status == MF_OK)
        claim(n, &p);
    if (p.status == MF_OK)
        start(n, &p);
    if (p.status != MF_OK)
        run_fail(n, &p);
}

static void on_core(void *arg, const struct problem *why)
{
    struct run *n = arg;
    struct problem p = {0};

    if (why != NULL)
        p = *why;
    else if (n->def.memory > n->d->core.memory)
        def_check(&n->def, DEF_RUN, n->d->core.memory, &p);
    if (p.status == MF_OK)
        kernels_need(&n->d->kernels, n->def.kernel, n->def.memory, on_kernel, n);
    else
        run_fail(n, &p);
}

void api_run(struct hvd *d, struct req *r)
{
    struct run *n = calloc(1, sizeof *n);
    struct problem p = {0};

    if (n == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    def_init(&n->def, DEF_RUN);
    if (def_from_json(&n->def, DEF_RUN, r->body.p == NULL ? "" : r->body.p, r->body.len,
                      &n->timeout_ms, &p) != MF_OK ||
        def_check(&n->def, DEF_RUN, d->core.memory != 0 ? d->core.memory : d->core.cfg.memory,
                  &p) != MF_OK) {
        def_fini(&n->def);
        free(n);
        req_problem(r, &p);
        return;
    }
    n->d = d;
    n->r = r;
    n->next = d->runs;
    if (n->next != NULL)
        n->next->prev = n;
    d->runs = n;
    d->nr_runs++;
    uv_timer_init(&d->loop, &n->timer);
    n->timer.data = n;
    core_need(&d->core, on_core, n);
}
