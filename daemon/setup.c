#include "daemon/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/hvd.h"
#include "daemon/log.h"

static void select_strategies(struct core *c);
static void list_from(struct core *c, uint32_t first);

/* A step that must succeed. Lost connections are told elsewhere. */
static bool failed(struct core *c, const struct link_reply *r, const char *what)
{
    char text[256];

    if (r->status == MF_OK)
        return false;
    if (c->state != CORE_SETUP || !link_is_open(&c->link))
        return true;
    snprintf(text, sizeof text, "%s: %.*s", what, (int)sizeof r->err->text - 1, r->err->text);
    core_failed(c, text);
    return true;
}

/* ---- list of VMs */

static void on_list(void *arg, const struct link_reply *r)
{
    struct core *c = arg;
    const struct mf_reply_vm_list *l = r->body;

    if (c->state == CORE_SETUP ? failed(c, r, "the list of VMs") : r->status != MF_OK)
        return;
    const struct mf_vm_info *info = (const struct mf_vm_info *)(l + 1);
    size_t n = (r->len - sizeof *l) / sizeof *info;
    uint32_t next = l->next_id;
    for (size_t i = 0; i < n && i < l->count; i++) {
        struct mf_vm_info one = info[i];
        vms_reconcile(&c->d->vms, &one);
    }
    if (next != 0) {
        list_from(c, next);
        return;
    }
    vms_reconcile_end(&c->d->vms);
    c->relist = false;
    if (c->state == CORE_SETUP)
        core_is_up(c);
}

static void list_from(struct core *c, uint32_t first)
{
    struct mf_args_vm_list a = {.first_id = first};

    link_call(&c->link,
              &(struct link_request){.nr = MF_CALL_VM_LIST, .args = &a, .fn = on_list, .arg = c});
}

void core_relist(struct core *c)
{
    if (c->state != CORE_UP || c->relist)
        return;
    c->relist = true;
    vms_reconcile_begin(&c->d->vms);
    list_from(c, 0);
}

/* ---- selections */

static void on_teardown(void *arg, const struct link_reply *r)
{
    struct core *c = arg;

    if (c->state != CORE_SETUP)
        return;
    if (r->status != MF_OK)
        log_line(LOG_ERROR, "teardown strategy %s cannot be the default: %s", c->cfg.teardown,
                 r->err->text);
    vms_reconcile_begin(&c->d->vms);
    list_from(c, 0);
}

static void on_allocator(void *arg, const struct link_reply *r)
{
    struct core *c = arg;

    if (c->state != CORE_SETUP)
        return;
    if (r->status != MF_OK)
        log_line(LOG_ERROR, "allocator %s cannot be selected: %s", c->cfg.allocator, r->err->text);
}

/* What a core that runs already has selected stays. */
static void on_selected(void *arg, const struct link_reply *r)
{
    struct core *c = arg;
    struct mf_args_strategy a = {.kind = MF_PLUGIN_ALLOCATOR};
    struct mf_args_teardown_select t = {0};
    struct link_reply heap = {0};
    struct link_reply host = {0};
    uint16_t nr;
    size_t at = 0;

    if (failed(c, r, "heap and host"))
        return;
    if (!link_batch_next(r, &at, &nr, &heap) || heap.status != MF_OK ||
        !link_batch_next(r, &at, &nr, &host) || host.status != MF_OK) {
        core_failed(c, "the core does not say what it is");
        return;
    }
    c->memory = ((const struct mf_reply_host_info *)host.body)->memory;
    bool no_allocator = ((const struct mf_reply_heap_info *)heap.body)->allocator[0] == '\0';
    bool no_teardown = ((const struct mf_reply_host_info *)host.body)->teardown_default[0] == '\0';
    if (no_allocator) {
        snprintf(a.name, sizeof a.name, "%s", c->cfg.allocator);
        link_call(&c->link,
                  &(struct link_request){
                      .nr = MF_CALL_ALLOCATOR_SELECT, .args = &a, .fn = on_allocator, .arg = c});
    }
    if (no_teardown) {
        snprintf(t.name, sizeof t.name, "%s", c->cfg.teardown);
        link_call(&c->link,
                  &(struct link_request){
                      .nr = MF_CALL_TEARDOWN_SELECT, .args = &t, .fn = on_teardown, .arg = c});
        return;
    }
    on_teardown(c, &(struct link_reply){.status = MF_OK});
}

static void select_strategies(struct core *c)
{
    struct link_batch *b = calloc(1, sizeof *b);

    if (b == NULL) {
        core_failed(c, "the daemon is out of memory");
        return;
    }
    link_batch_add(b, MF_CALL_HEAP_INFO, NULL, NULL, 0);
    link_batch_add(b, MF_CALL_HOST_INFO, NULL, NULL, 0);
    link_batch_call(&c->link, b, NULL, 0, on_selected, c);
    free(b);
}

/* ---- plugins */

struct load {
    struct core *c;
    uint32_t kind;
    char name[MF_NAME_MAX];
    char path[512];
};

static void refuse(struct core *c, const char *path, const char *by, const char *why)
{
    for (size_t i = 0; i < c->plugins.count; i++) {
        struct plugin_file *f = &c->plugins.file[i];
        if (strcmp(f->path, path) == 0)
            snprintf(f->why, sizeof f->why, "%s", why);
    }
    log_line(LOG_WARN, "plugin %s refused%s: %s", path, by, why);
}

static void on_loaded(void *arg, const struct link_reply *r)
{
    struct load *l = arg;
    struct core *c = l->c;

    if (r->status != MF_OK && r->status != MF_E_UNAVAILABLE)
        refuse(c, l->path, " by the core", r->err->text);
    free(l);
    c->loading--;
    if (c->loading == 0 && c->state == CORE_SETUP && link_is_open(&c->link))
        select_strategies(c);
}

static void load_file(struct core *c, const struct plugin_file *f, int fd)
{
    struct load *l = malloc(sizeof *l);

    if (l == NULL)
        return;
    *l = (struct load){.c = c, .kind = f->note.kind};
    snprintf(l->name, sizeof l->name, "%s", f->note.name);
    snprintf(l->path, sizeof l->path, "%s", f->path);
    c->loading++;
    link_call(&c->link,
              &(struct link_request){
                  .nr = MF_CALL_STRATEGY_LOAD, .fds = &fd, .nr_fds = 1, .fn = on_loaded, .arg = l});
}

/* ---- checks of what was found; all are loaded when the last is known, in the order of the scan */

struct candidate {
    struct scan *s;
    size_t file; /* index in the core's list */
    int fd;      /* owned; -1: refused */
};

struct scan {
    struct core *c;   /* NULL: another scan has taken its place, or the core is out of reach */
    unsigned pending; /* verdicts to come; one more while they are asked for */
    size_t n;
    struct candidate candidate[];
};

static void scan_free(struct scan *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->candidate[i].fd >= 0)
            close(s->candidate[i].fd);
    free(s);
}

void setup_forget_scan(struct core *c)
{
    if (c->scan == NULL)
        return;
    c->scan->c = NULL;
    c->scan = NULL;
    c->loading--;
}

static void scan_pending_less(struct scan *s)
{
    struct core *c = s->c;

    if (--s->pending > 0)
        return;
    if (c != NULL) {
        c->scan = NULL;
        for (size_t i = 0; i < s->n; i++)
            if (s->candidate[i].fd >= 0)
                load_file(c, &c->plugins.file[s->candidate[i].file], s->candidate[i].fd);
        c->loading--;
        if (c->loading == 0 && c->state == CORE_SETUP && link_is_open(&c->link))
            select_strategies(c);
    }
    scan_free(s);
}

static void on_verdict(void *arg, const struct verdict *v, const char *why)
{
    struct candidate *k = arg;
    struct core *c = k->s->c;

    if (c != NULL && v != NULL && v->ok) {
        c->plugins.file[k->file].check = PLUGIN_PASSED;
    } else if (c != NULL) {
        struct plugin_file *f = &c->plugins.file[k->file];
        struct problem p = {0};
        checker_problem(v, why, &p);
        f->check = v != NULL ? PLUGIN_BROKEN : PLUGIN_NOT_CHECKED;
        if (c->d->check_mode == CHECK_WARN) {
            log_line(LOG_WARN, "plugin %s is loaded all the same: %s", f->path, p.detail);
        } else {
            refuse(c, f->path, "", p.detail);
            close(k->fd);
            k->fd = -1;
        }
    }
    scan_pending_less(k->s);
}

static struct scan *scan_create(struct core *c)
{
    struct scan *s = calloc(1, sizeof *s + c->plugins.count * sizeof s->candidate[0]);

    if (s == NULL) {
        log_line(LOG_ERROR, "out of memory while looking for plugins");
        return NULL;
    }
    s->c = c;
    s->pending = 1;
    c->scan = s;
    c->loading++;
    return s;
}

static void scan_check(struct scan *s)
{
    for (size_t i = 0; i < s->n && s->c != NULL; i++) {
        struct candidate *k = &s->candidate[i];
        if (s->c->d->check_mode == CHECK_OFF) {
            s->c->plugins.file[k->file].check = PLUGIN_NOT_CHECKED;
            continue;
        }
        s->pending++;
        checker_run(&s->c->d->checker, k->fd, on_verdict, k);
    }
    scan_pending_less(s);
}

static bool is_loaded(const struct link_reply *r, const struct plugin_file *f)
{
    const struct mf_reply_strategy_list *l = r->body;
    const struct mf_strategy_info *s = (const struct mf_strategy_info *)(l + 1);
    size_t n = (r->len - sizeof *l) / sizeof *s;

    for (size_t i = 0; i < n && i < l->count; i++)
        if (s[i].kind == f->note.kind && strncmp(s[i].name, f->note.name, MF_NAME_MAX) == 0)
            return true;
    return false;
}

/* The reply lists what is loaded; the rest of what the directories have follows. */
static void on_strategies(void *arg, const struct link_reply *r)
{
    struct core *c = arg;

    if (c->state == CORE_SETUP ? failed(c, r, "the list of strategies") : r->status != MF_OK)
        return;
    setup_forget_scan(c);
    plugin_list_fini(&c->plugins);
    if (!plugin_scan(&c->plugins))
        log_line(LOG_ERROR, "out of memory while looking for plugins");
    struct scan *s = scan_create(c);
    for (size_t i = 0; i < c->plugins.count; i++) {
        struct plugin_file *f = &c->plugins.file[i];
        if (f->fd < 0)
            log_line(LOG_WARN, "plugin %s refused: %s", f->path, f->why);
        else if (s != NULL && !is_loaded(r, f))
            s->candidate[s->n++] = (struct candidate){.s = s, .file = i, .fd = f->fd};
        else
            close(f->fd);
        f->fd = -1;
    }
    if (s != NULL)
        scan_check(s);
    else if (c->state == CORE_SETUP && c->loading == 0)
        select_strategies(c);
}

void core_rescan(struct core *c)
{
    if (c->state == CORE_UP && c->loading == 0)
        link_call(&c->link, &(struct link_request){
                                .nr = MF_CALL_STRATEGY_LIST, .fn = on_strategies, .arg = c});
}

/* ---- hello */

static void on_hello(void *arg, const struct link_reply *r)
{
    struct core *c = arg;
    static const uint8_t none[16];

    if (failed(c, r, "the core refuses us"))
        return;
    const struct mf_reply_hello *h = r->body;
    if (h->abi != MF_ABI_VERSION) {
        core_failed(c, "the core speaks another ABI version");
        return;
    }
    if (memcmp(c->instance, none, 16) != 0 && memcmp(c->instance, h->instance, 16) != 0)
        core_is_another(c);
    memcpy(c->instance, h->instance, 16);
    c->pid = h->pid;
    c->relist = false;
    core_subscribe(c, c->d->consoles.following > 0);
    link_call(&c->link,
              &(struct link_request){.nr = MF_CALL_STRATEGY_LIST, .fn = on_strategies, .arg = c});
}

void setup_begin(struct core *c)
{
    struct mf_args_hello a = {.abi = MF_ABI_VERSION};

    setup_forget_scan(c);
    c->loading = 0;
    link_call(&c->link,
              &(struct link_request){.nr = MF_CALL_HELLO, .args = &a, .fn = on_hello, .arg = c});
}
