/* Strategies: list, load, unload, swap. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/hvd.h"
#include "daemon/jsonr.h"
#include "daemon/log.h"
#include "daemon/parse.h"

static const char *kind_word(uint32_t kind)
{
    return kind == MF_PLUGIN_ALLOCATOR ? "allocator" : "teardown";
}

/* ---- list, one */

/* NULL: the core had it before we came. */
static const char *check_word(const struct plugin_file *f)
{
    static const char *const words[] = {NULL, "passed", "broken", "not-checked"};

    return f == NULL ? NULL : words[f->check];
}

static void json_str_or_null(struct jsonw *w, const char *key, const char *s)
{
    jsonw_key(w, key);
    if (s != NULL)
        jsonw_str(w, s);
    else
        jsonw_null(w);
}

static void strategy_json(struct jsonw *w, const struct core *c, const struct mf_strategy_info *s)
{
    char name[MF_NAME_MAX];
    char version[sizeof s->version + 1];
    char summary[sizeof s->summary + 1];

    snprintf(name, sizeof name, "%.*s", MF_NAME_MAX - 1, s->name);
    snprintf(version, sizeof version, "%.*s", (int)sizeof s->version, s->version);
    snprintf(summary, sizeof summary, "%.*s", (int)sizeof s->summary, s->summary);
    const struct plugin_file *f = core_plugin(c, s->kind, name);
    jsonw_object(w);
    jsonw_kstr(w, "kind", kind_word(s->kind));
    jsonw_kstr(w, "name", name);
    jsonw_kstr(w, "version", version);
    jsonw_kstr(w, "summary", summary);
    jsonw_ku64(w, "users", s->users);
    jsonw_kbool(w, "default", s->is_default != 0);
    jsonw_ku64(w, "flags", s->flags);
    json_str_or_null(w, "path", f == NULL ? NULL : f->path);
    json_str_or_null(w, "check", check_word(f));
    jsonw_object_end(w);
}

/* A request that needs the core first. */
struct ask {
    struct hvd *d;
    struct req *r;
    uint32_t kind; /* 0: all */
    char name[MF_NAME_MAX];
    enum mf_call_nr nr;
    int fd;
    char *path; /* owned */
    struct mf_plugin_note note;
    enum plugin_check check;
};

static struct ask *ask_create(struct hvd *d, struct req *r, enum mf_call_nr nr)
{
    struct ask *a = calloc(1, sizeof *a);

    if (a == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return NULL;
    }
    a->d = d;
    a->r = r;
    a->nr = nr;
    a->fd = -1;
    return a;
}

static void ask_free(struct ask *a)
{
    if (a->fd >= 0)
        close(a->fd);
    free(a->path);
    free(a);
}

static void list_json(struct jsonw *w, const struct core *c, const struct mf_strategy_info *s,
                      size_t n)
{
    jsonw_object(w);
    jsonw_key(w, "strategies");
    jsonw_array(w);
    for (size_t i = 0; i < n; i++)
        strategy_json(w, c, &s[i]);
    jsonw_array_end(w);
    jsonw_key(w, "refused");
    jsonw_array(w);
    for (size_t i = 0; i < c->plugins.count; i++) {
        if (c->plugins.file[i].why[0] == '\0')
            continue;
        jsonw_object(w);
        jsonw_kstr(w, "path", c->plugins.file[i].path);
        jsonw_kstr(w, "detail", c->plugins.file[i].why);
        jsonw_object_end(w);
    }
    jsonw_array_end(w);
    jsonw_object_end(w);
}

static void on_list(void *arg, const struct link_reply *reply)
{
    struct ask *a = arg;
    const struct mf_reply_strategy_list *l = reply->body;
    const struct mf_strategy_info *s = (const struct mf_strategy_info *)(l + 1);
    struct jsonw w = {.comma = false};

    if (reply->status != MF_OK) {
        api_core_failed(a->r, reply);
        ask_free(a);
        return;
    }
    size_t n = (reply->len - sizeof *l) / sizeof *s;
    n = n < l->count ? n : l->count;
    if (a->kind == 0) {
        list_json(&w, &a->d->core, s, n);
        req_json(a->r, 200, &w);
        ask_free(a);
        return;
    }
    for (size_t i = 0; i < n && w.b.len == 0; i++)
        if (s[i].kind == a->kind && strncmp(s[i].name, a->name, MF_NAME_MAX) == 0)
            strategy_json(&w, &a->d->core, &s[i]);
    if (w.b.len > 0 || w.b.failed)
        req_json(a->r, 200, &w);
    else
        req_fail(a->r, MF_E_NOT_FOUND, "name", "no %s strategy %s is loaded", kind_word(a->kind),
                 a->name);
    ask_free(a);
}

/* ---- unload, load */

static void on_unloaded(void *arg, const struct link_reply *reply)
{
    struct ask *a = arg;

    if (reply->status != MF_OK)
        api_core_failed(a->r, reply);
    else
        req_empty(a->r, 204);
    ask_free(a);
}

static void on_loaded(void *arg, const struct link_reply *reply)
{
    struct ask *a = arg;
    struct problem p = {0};
    struct jsonw w = {.comma = false};

    if (reply->status != MF_OK) {
        core_problem(reply,
                     reply->status == MF_E_PLUGIN || reply->status == MF_E_ABI ? "path" : NULL, &p);
        req_problem(a->r, &p);
    } else {
        plugin_list_add(&a->d->core.plugins, a->path, &a->note, a->check);
        req_header(a->r, "Location", "/v1/strategies/%s/%s", kind_word(a->note.kind), a->note.name);
        strategy_json(&w, &a->d->core, reply->body);
        req_json(a->r, 201, &w);
    }
    ask_free(a);
}

static void on_core(void *arg, const struct problem *why)
{
    struct ask *a = arg;
    struct mf_args_strategy s = {.kind = a->kind};
    struct link_request q = {.nr = a->nr, .arg = a};

    if (why != NULL) {
        req_problem(a->r, why);
        ask_free(a);
        return;
    }
    memcpy(s.name, a->name, sizeof s.name);
    switch (a->nr) {
    case MF_CALL_STRATEGY_UNLOAD:
        q.args = &s;
        q.fn = on_unloaded;
        break;
    case MF_CALL_STRATEGY_LOAD:
        q.fds = &a->fd;
        q.nr_fds = 1;
        q.fn = on_loaded;
        break;
    default:
        q.fn = on_list;
        break;
    }
    link_call(&a->d->core.link, &q);
}

void api_strategies_list(struct hvd *d, struct req *r)
{
    struct ask *a = ask_create(d, r, MF_CALL_STRATEGY_LIST);

    if (a != NULL)
        core_need(&d->core, on_core, a);
}

/* The kind and name of the path; false: answered. */
static bool read_path(struct ask *a)
{
    const char *kind = a->r->arg[0];
    const char *name = a->r->arg[1];

    if (strcmp(kind, "allocator") == 0)
        a->kind = MF_PLUGIN_ALLOCATOR;
    else if (strcmp(kind, "teardown") == 0)
        a->kind = MF_PLUGIN_TEARDOWN;
    if (a->kind != 0 && parse_strategy_name(name) == NULL) {
        memcpy(a->name, name, strlen(name) + 1);
        return true;
    }
    req_fail(a->r, MF_E_NOT_FOUND, a->kind == 0 ? "kind" : "name",
             "there is no strategy %.40s/%.40s", kind, name);
    ask_free(a);
    return false;
}

void api_strategy_get(struct hvd *d, struct req *r)
{
    struct ask *a = ask_create(d, r, MF_CALL_STRATEGY_LIST);

    if (a != NULL && read_path(a))
        core_need(&d->core, on_core, a);
}

void api_strategy_delete(struct hvd *d, struct req *r)
{
    struct ask *a = ask_create(d, r, MF_CALL_STRATEGY_UNLOAD);

    if (a != NULL && read_path(a))
        core_need(&d->core, on_core, a);
}

static void on_verdict(void *arg, const struct verdict *v, const char *why)
{
    struct ask *a = arg;
    struct problem p = {0};

    if (v != NULL && v->ok) {
        a->check = PLUGIN_PASSED;
        core_need(&a->d->core, on_core, a);
        return;
    }
    checker_problem(v, why, &p);
    log_line(LOG_WARN, "plugin %s refused: %s", a->path, p.detail);
    req_problem(a->r, &p);
    ask_free(a);
}

static void read_load(struct ask *a, struct problem *p)
{
    const struct buf *body = &a->r->body;

    if (json_read_one(body->p == NULL ? "" : body->p, body->len, "path", &a->path, p) == MF_OK &&
        a->path[0] != '/')
        problem_set(p, MF_E_RANGE, "path", "the path is not absolute");
    if (p->status == MF_OK && plugin_open(a->path, &a->fd, &a->note, p) == MF_E_NOT_FOUND)
        p->status = MF_E_PLUGIN; /* what is not found is a part of the request, not its target */
}

void api_strategies_load(struct hvd *d, struct req *r)
{
    struct problem p = {0};
    uint64_t force = 0;

    if (!req_query_u64(r, "force", 0, 1, &force))
        return;
    struct ask *a = ask_create(d, r, MF_CALL_STRATEGY_LOAD);
    if (a == NULL)
        return;
    read_load(a, &p);
    if (p.status != MF_OK) {
        req_problem(r, &p);
        ask_free(a);
        return;
    }
    if (force == 0) {
        checker_run(&d->checker, a->fd, on_verdict, a);
        return;
    }
    log_line(LOG_WARN, "plugin %s is loaded unchecked, as asked for", a->path);
    a->check = PLUGIN_NOT_CHECKED;
    core_need(&d->core, on_core, a);
}

/* ---- swaps */

struct swap {
    uv_work_t work;
    struct hvd *d;
    struct req *r;
    bool allocator;
    struct vm *vm;     /* NULL: the host's */
    bool held;         /* the VM is kept busy; a one-shot run is so already */
    struct vm_def def; /* the VM's, to be */
    struct mf_reply_swap done;
    struct problem p;
    char name[MF_NAME_MAX];
};

static void swap_free(struct swap *s)
{
    if (s->vm != NULL) {
        if (s->held)
            s->vm->busy = false;
        vm_unref(s->vm);
        def_fini(&s->def);
    }
    free(s);
}

static void swap_reply(struct swap *s)
{
    struct jsonw w = {.comma = false};

    if (s->p.status != MF_OK) {
        req_problem(s->r, &s->p);
        swap_free(s);
        return;
    }
    jsonw_object(&w);
    s->done.from[MF_NAME_MAX - 1] = '\0';
    s->done.to[MF_NAME_MAX - 1] = '\0';
    jsonw_kstr(&w, "from", s->done.from);
    jsonw_kstr(&w, "to", s->done.to);
    jsonw_ku64(&w, "pause_ns", s->done.pause_ns);
    jsonw_ku64(&w, "total_ns", s->done.total_ns);
    jsonw_ku64(&w, "free_frames", s->done.free_frames);
    jsonw_ku64(&w, "ranges", s->done.ranges);
    jsonw_object_end(&w);
    req_json(s->r, 200, &w);
    swap_free(s);
}

static void swap_call(struct swap *s, const char *name, link_reply_fn fn)
{
    struct mf_args_strategy a = {.kind = MF_PLUGIN_ALLOCATOR};
    struct mf_args_teardown_select t = {.vm = s->vm != NULL ? s->vm->id : 0};

    snprintf(a.name, sizeof a.name, "%s", name);
    snprintf(t.name, sizeof t.name, "%s", name);
    link_call(&s->d->core.link, &(struct link_request){.nr = s->allocator ? MF_CALL_ALLOCATOR_SELECT
                                                                          : MF_CALL_TEARDOWN_SELECT,
                                                       .args = s->allocator ? (const void *)&a : &t,
                                                       .fn = fn,
                                                       .arg = s});
}

static void on_swapped_back(void *arg, const struct link_reply *reply)
{
    struct swap *s = arg;

    if (reply->status != MF_OK)
        log_line(LOG_ERROR, "the teardown strategy of %s could not be set back to %s",
                 s->vm->def.name, s->done.from);
    swap_reply(s);
}

/* The definition follows what is in force; where it cannot, what is in force goes back. */
static void on_saved(uv_work_t *work, int status)
{
    struct swap *s = work->data;

    (void)status;
    s->d->jobs--;
    if (s->p.status == MF_OK) {
        memcpy(s->vm->def.teardown, s->def.teardown, sizeof s->def.teardown);
        swap_reply(s);
    } else if (s->vm->id != 0) {
        s->done.from[MF_NAME_MAX - 1] = '\0';
        swap_call(s, s->done.from, on_swapped_back);
    } else {
        swap_reply(s);
    }
}

static void save_work(uv_work_t *work)
{
    struct swap *s = work->data;

    store_save(&s->d->store, &s->def, &s->p);
}

static void swap_save(struct swap *s)
{
    if (s->vm == NULL || !s->vm->defined) {
        swap_reply(s);
        return;
    }
    s->work.data = s;
    s->d->jobs++;
    if (uv_queue_work(&s->d->loop, &s->work, save_work, on_saved) != 0) {
        problem_nomem(&s->p);
        on_saved(&s->work, 0);
    }
}

static void on_swapped(void *arg, const struct link_reply *reply)
{
    struct swap *s = arg;

    if (reply->status != MF_OK) {
        core_problem(reply, NULL, &s->p);
        if (s->p.status == MF_E_NO_TEARDOWN) /* named by the request: not the core's lack */
            s->p.status = MF_E_NOT_FOUND;
        swap_reply(s);
        return;
    }
    s->done = *(const struct mf_reply_swap *)reply->body;
    swap_save(s);
}

/* A VM that is not in the core: the strategy must exist, then it is only written down. */
static void on_known(void *arg, const struct link_reply *reply)
{
    struct swap *s = arg;
    const struct mf_reply_strategy_list *l = reply->body;
    const struct mf_strategy_info *i = (const struct mf_strategy_info *)(l + 1);
    bool known = false;

    if (reply->status != MF_OK) {
        core_problem(reply, NULL, &s->p);
        swap_reply(s);
        return;
    }
    size_t n = (reply->len - sizeof *l) / sizeof *i;
    for (size_t k = 0; k < n && k < l->count; k++)
        if (i[k].kind == MF_PLUGIN_TEARDOWN && strncmp(i[k].name, s->name, MF_NAME_MAX) == 0)
            known = true;
    if (!known) {
        problem_set(&s->p, MF_E_NOT_FOUND, "name", "no teardown strategy %s is loaded", s->name);
        swap_reply(s);
        return;
    }
    snprintf(s->done.from, sizeof s->done.from, "%s", s->vm->def.teardown);
    snprintf(s->done.to, sizeof s->done.to, "%s", s->name);
    swap_save(s);
}

static void on_core_for_swap(void *arg, const struct problem *why)
{
    struct swap *s = arg;

    if (why != NULL) {
        s->p = *why;
        swap_reply(s);
    } else if (s->vm != NULL && s->vm->id == 0) {
        link_call(&s->d->core.link,
                  &(struct link_request){.nr = MF_CALL_STRATEGY_LIST, .fn = on_known, .arg = s});
    } else {
        swap_call(s, s->name, on_swapped);
    }
}

static bool read_name(struct req *r, char name[MF_NAME_MAX])
{
    struct problem p = {0};
    char *text;

    if (json_read_one(r->body.p == NULL ? "" : r->body.p, r->body.len, "name", &text, &p) ==
        MF_OK) {
        const char *why = parse_strategy_name(text);
        if (why != NULL)
            problem_set(&p, MF_E_NAME, "name", "the name %s", why);
        else
            memcpy(name, text, strlen(text) + 1);
        free(text);
    }
    if (p.status != MF_OK)
        req_problem(r, &p);
    return p.status == MF_OK;
}

static void swap_begin(struct hvd *d, struct req *r, bool allocator, struct vm *vm)
{
    char name[MF_NAME_MAX];

    if (!read_name(r, name))
        return;
    struct swap *s = calloc(1, sizeof *s);
    if (s == NULL || (vm != NULL && !def_copy(&s->def, &vm->def))) {
        free(s);
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    s->d = d;
    s->r = r;
    s->allocator = allocator;
    s->vm = vm;
    memcpy(s->name, name, sizeof s->name);
    if (vm != NULL) {
        memcpy(s->def.teardown, name, sizeof s->def.teardown);
        s->held = !vm->busy;
        vm->busy = true;
        vm_ref(vm);
    }
    core_need(&d->core, on_core_for_swap, s);
}

void api_host_allocator(struct hvd *d, struct req *r)
{
    swap_begin(d, r, true, NULL);
}

void api_host_teardown(struct hvd *d, struct req *r)
{
    swap_begin(d, r, false, NULL);
}

void api_vm_teardown(struct hvd *d, struct req *r)
{
    struct vm *vm = api_vm(d, r);

    if (vm == NULL)
        return;
    if (vm->busy && vm->defined) {
        req_fail(r, MF_E_BUSY, NULL, "another request works on this VM");
        return;
    }
    swap_begin(d, r, false, vm);
}
