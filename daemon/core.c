#include "daemon/core.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/hvd.h"
#include "daemon/launch.h"
#include "daemon/log.h"
#include "daemon/setup.h"

#define LAUNCH_MS      20000u
#define LAUNCH_POLL_MS 2u
#define RECONNECT_MS   1000u
#define STEADY_MS      5000u
#define BACKOFF_MS     250u
#define BACKOFF_MAX_MS 10000u
#define RETRIES        3u

struct core_waiting {
    struct core_waiting *next;
    core_need_fn fn;
    void *arg;
};

static void on_timer(uv_timer_t *t);

/* ---- who waits */

static void answer_waiting(struct core *c, const struct problem *p)
{
    struct core_waiting *list = c->waiting;

    c->waiting = NULL;
    c->waiting_tail = &c->waiting;
    while (list != NULL) {
        struct core_waiting *w = list;
        list = w->next;
        w->fn(w->arg, p);
        free(w);
    }
}

static void unavailable(struct core *c, struct problem *p)
{
    uint64_t now = uv_now(c->link.loop);

    if (now < c->not_before)
        problem_set(p, MF_E_UNAVAILABLE, NULL, "%s; next try in %llu ms", c->last_words,
                    (unsigned long long)(c->not_before - now));
    else
        problem_set(p, MF_E_UNAVAILABLE, NULL, "%s", c->last_words);
}

static void say_core(struct core *c, const char *state, const char *text)
{
    struct jsonw *w = hub_begin(&c->d->hub, "core");

    if (w == NULL)
        return;
    jsonw_kstr(w, "state", state);
    jsonw_kstr(w, "text", text);
    hub_end(&c->d->hub);
}

/* ---- down */

static void idle_timer(struct core *c)
{
    uv_timer_start(&c->timer, on_timer, RECONNECT_MS, RECONNECT_MS);
}

void core_failed(struct core *c, const char *why)
{
    struct problem p = {0};
    uint64_t delay = BACKOFF_MS << (c->failures < 6 ? c->failures : 6);

    log_line(LOG_ERROR, "core: %s", why);
    snprintf(c->last_words, sizeof c->last_words, "%s", why);
    link_close(&c->link);
    c->state = CORE_DOWN;
    c->failures++;
    c->not_before = uv_now(c->link.loop) + (delay < BACKOFF_MAX_MS ? delay : BACKOFF_MAX_MS);
    idle_timer(c);
    unavailable(c, &p);
    answer_waiting(c, &p);
}

/* The socket has nobody behind it: whoever was there is dead. */
static bool is_dead(int r)
{
    return r == -ECONNREFUSED || r == -ENOENT;
}

static void core_died(struct core *c, const char *why)
{
    if (c->pid != 0) {
        c->losses++;
        say_core(c, "lost", why);
    }
    c->pid = 0;
    vms_core_lost(&c->d->vms);
    consoles_lost(&c->d->consoles);
}

static void begin_setup(struct core *c)
{
    c->state = CORE_SETUP;
    uv_timer_stop(&c->timer);
    setup_begin(c);
}

static void on_lost(void *arg, const char *why)
{
    struct core *c = arg;
    bool steady = c->state == CORE_UP && uv_now(c->link.loop) - c->up_since >= STEADY_MS;
    char text[sizeof c->last_words];

    if (c->process != NULL && launch_wait(c->process, text, sizeof text))
        why = text;
    if (steady)
        c->failures = 0;
    core_failed(c, why);
    if (steady)
        c->not_before = 0;
    /* Dead, or only out of reach? A living one is taken up again at once, unless that is vain. */
    int r = link_open(&c->link, c->cfg.socket);
    if (is_dead(r))
        core_died(c, why);
    else if (r == 0 && c->failures <= RETRIES)
        begin_setup(c);
    else
        link_close(&c->link);
}

/* ---- up */

void core_is_up(struct core *c)
{
    char text[64];

    c->state = CORE_UP;
    c->up_since = uv_now(c->link.loop);
    idle_timer(c);
    snprintf(text, sizeof text, "process %u", c->pid);
    log_line(LOG_INFO, "core: up, %s, %u VMs known", text, c->d->vms.count);
    say_core(c, "up", text);
    answer_waiting(c, NULL);
}

void core_is_another(struct core *c)
{
    core_died(c, "another core has taken its place");
}

static void launch(struct core *c)
{
    struct problem p = {0};

    c->process = launch_start(c, &p);
    if (c->process == NULL) {
        core_failed(c, p.detail);
        return;
    }
    c->starts++;
    c->state = CORE_LAUNCHING;
    c->launch_until = uv_now(c->link.loop) + LAUNCH_MS;
    uv_timer_start(&c->timer, on_timer, LAUNCH_POLL_MS, LAUNCH_POLL_MS);
}

/* The process that we started ended; its connection may or may not have been up. */
void core_process_ended(struct core *c, const char *how)
{
    c->process = NULL;
    if (c->state == CORE_LAUNCHING)
        core_failed(c, how);
    else
        log_line(LOG_WARN, "core: %s", how);
}

static void poll_launched(struct core *c)
{
    int r = link_open(&c->link, c->cfg.socket);

    if (r == 0)
        begin_setup(c);
    else if (uv_now(c->link.loop) > c->launch_until)
        core_failed(c, "the core was started but does not answer on its socket");
}

/* Connects when somebody is there. */
static int try_connect(struct core *c)
{
    int r = link_open(&c->link, c->cfg.socket);

    if (r == 0)
        begin_setup(c);
    else if (is_dead(r) && c->pid != 0)
        core_died(c, "the core is gone");
    return r;
}

static void on_timer(uv_timer_t *t)
{
    struct core *c = t->data;

    if (c->state == CORE_LAUNCHING)
        poll_launched(c);
    else if (c->state == CORE_DOWN && uv_now(c->link.loop) >= c->not_before)
        try_connect(c);
}

void core_need(struct core *c, core_need_fn fn, void *arg)
{
    struct problem p = {0};

    if (c->state == CORE_UP) {
        fn(arg, NULL);
        return;
    }
    if (c->state == CORE_DOWN && uv_now(c->link.loop) < c->not_before) {
        unavailable(c, &p);
        fn(arg, &p);
        return;
    }
    struct core_waiting *w = malloc(sizeof *w);
    if (w == NULL) {
        problem_nomem(&p);
        fn(arg, &p);
        return;
    }
    *w = (struct core_waiting){NULL, fn, arg};
    *c->waiting_tail = w;
    c->waiting_tail = &w->next;
    if (c->state == CORE_DOWN && try_connect(c) != 0)
        launch(c);
}

/* ---- what it tells */

static void strategy_event(struct core *c, const struct mf_event *e)
{
    static const char *const actions[] = {"", "loaded", "unloaded", "selected"};
    struct jsonw *w = hub_begin(&c->d->hub, "strategy");
    struct vm *vm = e->vm == 0 ? NULL : vms_find_id(&c->d->vms, e->vm);

    if (w == NULL)
        return;
    jsonw_kstr(w, "kind", e->a == MF_PLUGIN_ALLOCATOR ? "allocator" : "teardown");
    jsonw_kstr(w, "name", e->text);
    jsonw_kstr(w, "action", actions[e->b < 4 ? e->b : 0]);
    if (vm != NULL)
        jsonw_kstr(w, "vm", vm->def.name);
    hub_end(&c->d->hub);
}

static void log_event(struct core *c, const struct mf_event *e)
{
    struct jsonw *w = hub_begin(&c->d->hub, "log");

    log_line(LOG_WARN, "core says: %s", e->text);
    if (w == NULL)
        return;
    jsonw_kstr(w, "text", e->text);
    hub_end(&c->d->hub);
}

static void lost_event(struct core *c, const struct mf_event *e)
{
    struct jsonw *w = hub_begin(&c->d->hub, "lost");

    if (w != NULL) {
        jsonw_ku64(w, "count", e->a);
        hub_end(&c->d->hub);
    }
    core_relist(c);
}

static void on_event(void *arg, enum mf_event_nr nr, const struct mf_event *e)
{
    struct core *c = arg;

    switch (nr) {
    case MF_EVENT_VM_STATE:
    case MF_EVENT_VM_ENDED:
    case MF_EVENT_VM_DELETED:
        vms_event(&c->d->vms, nr, e);
        consoles_event(&c->d->consoles, e->vm); /* an end ends what is followed */
        break;
    case MF_EVENT_CONSOLE:
        consoles_event(&c->d->consoles, e->vm);
        break;
    case MF_EVENT_STRATEGY:
        strategy_event(c, e);
        break;
    case MF_EVENT_LOST:
        lost_event(c, e);
        break;
    case MF_EVENT_LOG:
        log_event(c, e);
        break;
    }
}

void core_problem(const struct link_reply *r, const char *field, struct problem *p)
{
    char own[64];
    char text[192];

    snprintf(own, sizeof own, "%.*s", (int)sizeof r->err->field - 1, r->err->field);
    snprintf(text, sizeof text, "%.*s", (int)sizeof r->err->text - 1, r->err->text);
    problem_set(p, r->status, field != NULL ? field : own, "%s",
                text[0] != '\0' ? text : mf_status_text(r->status));
}

void core_subscribe(struct core *c, bool consoles)
{
    struct mf_args_subscribe a = {.mask = 1u << MF_EVENT_VM_STATE | 1u << MF_EVENT_VM_ENDED |
                                          1u << MF_EVENT_VM_DELETED | 1u << MF_EVENT_STRATEGY |
                                          1u << MF_EVENT_LOST | 1u << MF_EVENT_LOG};
    struct link_request r = {.nr = MF_CALL_SUBSCRIBE, .args = &a};

    if (consoles)
        a.mask |= 1u << MF_EVENT_CONSOLE;
    link_call(&c->link, &r);
}

const struct plugin_file *core_plugin(const struct core *c, uint32_t kind, const char *name)
{
    for (size_t i = 0; i < c->plugins.count; i++) {
        const struct plugin_file *f = &c->plugins.file[i];
        if (f->why[0] == '\0' && f->note.kind == kind && strcmp(f->note.name, name) == 0)
            return f;
    }
    return NULL;
}

bool core_init(struct core *c, struct hvd *d, const struct core_config *cfg)
{
    struct link_watcher w = {on_event, on_lost, c};

    *c = (struct core){.d = d, .cfg = *cfg};
    c->waiting_tail = &c->waiting;
    snprintf(c->last_words, sizeof c->last_words, "the core does not run");
    if (!link_init(&c->link, &d->loop, &w))
        return false;
    uv_timer_init(&d->loop, &c->timer);
    c->timer.data = c;
    idle_timer(c);
    return true;
}

void core_fini(struct core *c)
{
    struct problem p = {0};

    c->state = CORE_DOWN;
    c->not_before = UINT64_MAX;
    problem_set(&p, MF_E_UNAVAILABLE, NULL, "the daemon is going down");
    link_fini(&c->link);
    answer_waiting(c, &p);
    if (c->process != NULL)
        launch_forget(c->process);
    c->process = NULL;
    setup_forget_scan(c);
    uv_close((uv_handle_t *)&c->timer, NULL);
    plugin_list_fini(&c->plugins);
}
