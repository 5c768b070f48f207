/* VMs: list, show, define, replace, delete. Changes of definitions go to the disk on a thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/hvd.h"
#include "daemon/log.h"
#include "daemon/parse.h"

struct vm *api_vm(struct hvd *d, struct req *r)
{
    struct vm *vm = vms_find(&d->vms, r->arg[0]);

    if (vm == NULL)
        req_fail(r, MF_E_NOT_FOUND, "vm", "there is no VM %.64s", r->arg[0]);
    return vm;
}

void api_vm_reply(struct hvd *d, struct req *r, unsigned status, struct vm *vm)
{
    struct jsonw w = {.comma = false};

    (void)d;
    if (req_accepts(r, "application/xml")) {
        def_to_xml(&vm->def, &w.b);
        req_reply(r, status, "application/xml", &w.b);
        return;
    }
    vm_json(&w, vm);
    req_json(r, status, &w);
}

void api_core_failed(struct req *r, const struct link_reply *reply)
{
    struct problem p = {0};

    core_problem(reply, NULL, &p);
    req_problem(r, &p);
}

/* ---- one, with fresh numbers */

struct fresh {
    struct hvd *d;
    struct req *r;
    struct vm *vm;
    unsigned status;
};

static void on_fresh(void *arg, const struct link_reply *reply)
{
    struct fresh *f = arg;

    if (reply->status == MF_OK && f->vm->id == ((const struct mf_vm_info *)reply->body)->id)
        vm_set_info(&f->d->vms, f->vm, reply->body);
    api_vm_reply(f->d, f->r, f->status, f->vm);
    vm_unref(f->vm);
    free(f);
}

void api_vm_reply_fresh(struct hvd *d, struct req *r, unsigned status, struct vm *vm)
{
    struct mf_args_vm a = {.vm = vm->id};
    struct fresh *f = vm->id == 0 || d->core.state != CORE_UP ? NULL : malloc(sizeof *f);

    if (f == NULL) {
        api_vm_reply(d, r, status, vm);
        return;
    }
    *f = (struct fresh){d, r, vm, status};
    vm_ref(vm);
    link_call(&d->core.link,
              &(struct link_request){.nr = MF_CALL_VM_INFO, .args = &a, .fn = on_fresh, .arg = f});
}

/*
 * A daemon that has just started does not know yet which of its VMs run: a core that it finds may
 * have kept them. What shows VMs waits for the first contact, or for its failure.
 */
struct held {
    struct hvd *d;
    struct req *r;
    void (*next)(struct hvd *d, struct req *r);
};

static void on_contact(void *arg, const struct problem *p)
{
    struct held h = *(struct held *)arg;

    (void)p; /* without a core the definitions are all there is */
    free(arg);
    h.next(h.d, h.r);
}

static void after_contact(struct hvd *d, struct req *r, void (*next)(struct hvd *, struct req *))
{
    const struct core *c = &d->core;
    bool early = c->up_since == 0 && (c->state == CORE_LAUNCHING || c->state == CORE_SETUP);
    struct held *h = early ? malloc(sizeof *h) : NULL;

    if (h == NULL) {
        next(d, r);
        return;
    }
    *h = (struct held){d, r, next};
    core_need(&d->core, on_contact, h);
}

static void show_vm(struct hvd *d, struct req *r)
{
    struct vm *vm = api_vm(d, r);

    if (vm != NULL)
        api_vm_reply_fresh(d, r, 200, vm);
}

void api_vm_get(struct hvd *d, struct req *r)
{
    after_contact(d, r, show_vm);
}

/* ---- all, with fresh numbers */

struct listing {
    struct hvd *d;
    struct req *r;
};

static void list_reply(struct hvd *d, struct req *r)
{
    struct jsonw w = {.comma = false};

    jsonw_object(&w);
    jsonw_key(&w, "vms");
    jsonw_array(&w);
    for (struct vm *vm = d->vms.first; vm != NULL; vm = vm->next)
        if (!vm->hidden)
            vm_json(&w, vm);
    jsonw_array_end(&w);
    jsonw_object_end(&w);
    req_json(r, 200, &w);
}

static void on_listed(void *arg, const struct link_reply *reply)
{
    struct listing *l = arg;
    const struct mf_reply_vm_list *list = reply->body;
    struct mf_args_vm_list next = {0};

    if (reply->status == MF_OK) {
        const struct mf_vm_info *info = (const struct mf_vm_info *)(list + 1);
        size_t n = (reply->len - sizeof *list) / sizeof *info;
        next.first_id = list->next_id;
        for (size_t i = 0; i < n && i < list->count; i++) {
            struct vm *vm = vms_find_id(&l->d->vms, info[i].id);
            if (vm != NULL)
                vm_set_info(&l->d->vms, vm, &info[i]);
        }
    }
    if (next.first_id != 0) {
        link_call(&l->d->core.link,
                  &(struct link_request){
                      .nr = MF_CALL_VM_LIST, .args = &next, .fn = on_listed, .arg = l});
        return;
    }
    list_reply(l->d, l->r);
    free(l);
}

static void show_all(struct hvd *d, struct req *r)
{
    struct listing *l = d->core.state == CORE_UP ? malloc(sizeof *l) : NULL;

    if (l == NULL) {
        list_reply(d, r);
        return;
    }
    *l = (struct listing){d, r};
    link_call(&d->core.link,
              &(struct link_request){.nr = MF_CALL_VM_LIST, .fn = on_listed, .arg = l});
}

void api_vms_list(struct hvd *d, struct req *r)
{
    after_contact(d, r, show_all);
}

/* ---- define: read, try the image in the core, write to the disk, show */

struct change {
    uv_work_t work;
    struct hvd *d;
    struct req *r;
    struct vm *vm;     /* hidden while it is new */
    struct vm_def def; /* to be */
    bool fresh;        /* the VM is new */
    bool removing;
    struct problem p;
};

static void change_done(struct change *c)
{
    c->vm->busy = false;
    if (c->p.status != MF_OK && c->fresh)
        vms_remove(&c->d->vms, c->vm);
    if (c->p.status != MF_OK)
        req_problem(c->r, &c->p);
    vm_unref(c->vm);
    def_fini(&c->def);
    free(c);
}

static void say_defined(struct hvd *d, const struct vm *vm)
{
    struct jsonw *w = hub_begin(&d->hub, "vm-defined");

    if (w == NULL)
        return;
    jsonw_kstr(w, "vm", vm->def.name);
    hub_end(&d->hub);
}

/* The core's object was made from the old definition; the next start makes another. */
static void drop_core_object(struct hvd *d, struct vm *vm)
{
    struct mf_args_vm a = {.vm = vm->id};

    if (vm->id == 0)
        return;
    link_call(&d->core.link, &(struct link_request){.nr = MF_CALL_VM_DELETE, .args = &a});
    vms_set_id(&d->vms, vm, 0);
}

static void on_saved(uv_work_t *work, int status)
{
    struct change *c = work->data;
    struct hvd *d = c->d;
    struct vm *vm = c->vm;

    (void)status;
    d->jobs--;
    if (c->p.status == MF_OK) {
        if (!c->fresh && !def_equal(&vm->def, &c->def))
            drop_core_object(d, vm);
        struct vm_def old = vm->def;
        vm->def = c->def;
        c->def = old;
        vm->hidden = false;
        vm->defined = true;
        say_defined(d, vm);
        if (c->fresh)
            req_header(c->r, "Location", "/v1/vms/%s", vm->def.name);
        api_vm_reply(d, c->r, c->fresh ? 201 : 200, vm);
    }
    change_done(c);
}

static void save_work(uv_work_t *work)
{
    struct change *c = work->data;

    store_save(&c->d->store, &c->def, &c->p);
}

static void change_save(struct change *c)
{
    c->work.data = c;
    c->d->jobs++;
    if (uv_queue_work(&c->d->loop, &c->work, save_work, on_saved) != 0) {
        c->d->jobs--;
        problem_nomem(&c->p);
        change_done(c);
    }
}

static void on_probed(void *arg, const struct link_reply *reply)
{
    struct change *c = arg;
    struct problem p = {0};
    uint32_t id;

    batch_outcome(reply, &id, &p);
    vms_created(&c->d->vms);
    if (p.status != MF_OK && id != 0) {
        struct mf_args_vm a = {.vm = id};
        link_call(&c->d->core.link, &(struct link_request){.nr = MF_CALL_VM_DELETE, .args = &a});
    }
    /* Only what is wrong with the image itself: all else may be different at the start. */
    if (p.status == MF_E_IMAGE || (p.status == MF_E_RANGE && id != 0)) {
        c->p = p;
        change_done(c);
        return;
    }
    change_save(c);
}

/* A VM that never starts: makes the core look at the image. */
static void probe(struct change *c)
{
    struct link_batch *b = calloc(1, sizeof *b);
    struct mf_args_vm del = {.vm = MF_VM_LAST_CREATED};
    struct mf_args_vm_create a;
    char uuid[UUID_TEXT];
    struct kernel_set set;

    if (b == NULL) {
        problem_nomem(&c->p);
        change_done(c);
        return;
    }
    def_to_create(&c->def, &a);
    uuid_make(a.uuid, true);
    uuid_format(a.uuid, uuid);
    snprintf(a.name, sizeof a.name, "probe-%s", uuid + 14);
    a.teardown[0] = '\0';
    link_batch_add(b, MF_CALL_VM_CREATE, &a, NULL, 0);
    if (add_image(c->d, b, &c->def, MF_VM_LAST_CREATED, &set, &c->p) != MF_OK) {
        change_done(c);
    } else {
        link_batch_add(b, MF_CALL_VM_DELETE, &del, NULL, 0);
        vms_creating(&c->d->vms);
        link_batch_call(&c->d->core.link, b, set.fd, set.n, on_probed, c);
    }
    free(b);
}

/* The kernel is prepared, or is no good. */
static void on_prepared(void *arg, const struct problem *why)
{
    struct change *c = arg;
    struct kernel_set set;

    if (why != NULL) {
        c->p = *why;
        change_done(c);
    } else if (c->d->core.state == CORE_UP) {
        probe(c);
    } else if (kernels_open(&c->d->kernels, &c->def, &set, &c->p) != MF_OK) {
        change_done(c);
    } else {
        change_save(c);
    }
}

static bool read_def(struct hvd *d, struct req *r, struct vm_def *def, struct problem *p)
{
    uint64_t arena = d->core.memory != 0 ? d->core.memory : d->core.cfg.memory;

    def_init(def, DEF_DEFINE);
    if (r->xml)
        def_from_xml(def, r->body.p == NULL ? "" : r->body.p, r->body.len, p);
    else
        def_from_json(def, DEF_DEFINE, r->body.p == NULL ? "" : r->body.p, r->body.len, NULL, p);
    return p->status == MF_OK && def_check(def, DEF_DEFINE, arena, p) == MF_OK;
}

/* Nobody else may have the name or the uuid; `self` may. */
static bool is_unique(struct hvd *d, const struct vm_def *def, const struct vm *self,
                      struct problem *p)
{
    struct vm *other = vms_find_name(&d->vms, def->name);

    if (other != NULL && other != self)
        problem_set(p, MF_E_EXISTS, "name", "a VM named %s exists", def->name);
    other = uuid_is_zero(def->uuid) ? NULL : vms_find_uuid(&d->vms, def->uuid);
    if (other != NULL && other != self)
        problem_set(p, MF_E_EXISTS, "uuid", "the VM %s has this uuid", other->def.name);
    return p->status == MF_OK;
}

/* May `vm` get another definition now? */
static bool may_change(const struct vm *vm, struct problem *p)
{
    if (vm->busy)
        problem_set(p, MF_E_BUSY, NULL, "another request works on this VM");
    else if (!vm_is_off(vm))
        problem_set(p, MF_E_STATE, NULL, "the VM is %s: possible are shutoff and crashed",
                    vm_state_text(vm->state));
    return p->status == MF_OK;
}

/* The VM that holds the name from here on. */
static struct vm *hold_name(struct hvd *d, const struct vm_def *def)
{
    struct vm_def copy;

    if (!def_copy(&copy, def))
        return NULL;
    struct vm *vm = vms_add(&d->vms, &copy);
    def_fini(&copy);
    if (vm != NULL)
        vm->hidden = true;
    return vm;
}

/* Takes over `def`. `vm` NULL: a new one. */
static void begin_change(struct hvd *d, struct req *r, struct vm_def *def, struct vm *vm)
{
    struct change *c = calloc(1, sizeof *c);
    bool fresh = vm == NULL;

    if (uuid_is_zero(def->uuid) && fresh)
        uuid_make(def->uuid, false);
    else if (uuid_is_zero(def->uuid))
        memcpy(def->uuid, vm->def.uuid, 16);
    if (c != NULL && fresh)
        vm = hold_name(d, def);
    if (c == NULL || vm == NULL) {
        free(c);
        def_fini(def);
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    *c = (struct change){.d = d, .r = r, .vm = vm, .def = *def, .fresh = fresh};
    vm->busy = true;
    vm_ref(vm);
    kernels_need(&d->kernels, c->def.kernel, c->def.memory, on_prepared, c);
}

void api_vms_post(struct hvd *d, struct req *r)
{
    struct problem p = {0};
    struct vm_def def;

    if (read_def(d, r, &def, &p) && is_unique(d, &def, NULL, &p)) {
        begin_change(d, r, &def, NULL);
        return;
    }
    def_fini(&def);
    req_problem(r, &p);
}

void api_vm_put(struct hvd *d, struct req *r)
{
    struct problem p = {0};
    struct vm_def def;
    struct vm *vm = vms_find(&d->vms, r->arg[0]);

    read_def(d, r, &def, &p);
    if (p.status == MF_OK && strcmp(def.name, vm != NULL ? vm->def.name : r->arg[0]) != 0)
        problem_set(&p, MF_E_RANGE, "name", "the name is %s, the path says %.64s", def.name,
                    r->arg[0]);
    if (p.status == MF_OK && vm != NULL && !uuid_is_zero(def.uuid) &&
        memcmp(def.uuid, vm->def.uuid, 16) != 0)
        problem_set(&p, MF_E_EXISTS, "uuid", "the VM has another uuid, which cannot change");
    if (p.status == MF_OK && is_unique(d, &def, vm, &p) && (vm == NULL || may_change(vm, &p))) {
        begin_change(d, r, &def, vm);
        return;
    }
    def_fini(&def);
    req_problem(r, &p);
}

/* ---- delete: out of the core, which may refuse; then off the disk */

static void deleted(struct change *c)
{
    if (c->p.status == MF_OK) {
        c->vm->defined = false;
        if (c->vm->listed)
            vms_remove(&c->d->vms, c->vm);
        req_empty(c->r, 204);
    }
    change_done(c);
}

static void on_removed(uv_work_t *work, int status)
{
    struct change *c = work->data;

    (void)status;
    c->d->jobs--;
    if (c->p.status == MF_E_NOT_FOUND) /* somebody removed the file: as asked for */
        c->p = (struct problem){0};
    deleted(c);
}

static void remove_work(uv_work_t *work)
{
    struct change *c = work->data;

    store_remove(&c->d->store, c->vm->def.name, &c->p);
}

static void delete_on_disk(struct change *c)
{
    if (!c->vm->defined) {
        deleted(c);
        return;
    }
    c->work.data = c;
    c->d->jobs++;
    if (uv_queue_work(&c->d->loop, &c->work, remove_work, on_removed) != 0) {
        c->d->jobs--;
        problem_nomem(&c->p);
        change_done(c);
    }
}

static void on_core_deleted(void *arg, const struct link_reply *reply)
{
    struct change *c = arg;

    /* A VM that the core no longer has, or a core that is gone: nothing is left to delete there. */
    if (reply->status != MF_OK && reply->status != MF_E_NOT_FOUND &&
        reply->status != MF_E_UNAVAILABLE) {
        core_problem(reply, NULL, &c->p);
        change_done(c);
        return;
    }
    vms_set_id(&c->d->vms, c->vm, 0);
    delete_on_disk(c);
}

void api_vm_delete(struct hvd *d, struct req *r)
{
    struct vm *vm = api_vm(d, r);

    if (vm == NULL)
        return;
    struct change *c = vm->busy ? NULL : calloc(1, sizeof *c);
    if (c == NULL) {
        req_fail(r, vm->busy ? MF_E_BUSY : MF_E_NO_MEMORY, NULL, "%s",
                 vm->busy ? "another request works on this VM" : "the daemon is out of memory");
        return;
    }
    *c = (struct change){.d = d, .r = r, .vm = vm};
    vm->busy = true;
    vm_ref(vm);
    if (vm->id == 0) {
        delete_on_disk(c);
        return;
    }
    struct mf_args_vm a = {.vm = vm->id};
    link_call(&d->core.link,
              &(struct link_request){
                  .nr = MF_CALL_VM_DELETE, .args = &a, .fn = on_core_deleted, .arg = c});
}
