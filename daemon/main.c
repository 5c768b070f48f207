/* hvd: start, signals, end. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/hvd.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/options.h"

#define QUIT_MS 3000u /* for what is under way when we are told to end */

struct program {
    struct hvd d;
    struct options opt;
    uv_signal_t term, intr, hup;
    uv_timer_t idle, quit;
    uint64_t busy_at; /* loop time in ms when there was last something to be here for */
};

/* ---- the end */

static void stop_when_done(uv_timer_t *t)
{
    struct program *p = t->data;

    if ((p->d.http.nr_reqs == 0 && p->d.jobs == 0) || uv_now(&p->d.loop) > p->busy_at + QUIT_MS)
        uv_stop(&p->d.loop);
}

/*
 * Whoever waits is told; what is being written to the disk gets done; VMs and core go on.
 */
static void quit(struct program *p)
{
    if (p->d.quitting)
        return;
    p->d.quitting = true;
    notify("STOPPING=1");
    log_line(LOG_INFO, "going down; VMs go on");
    p->busy_at = uv_now(&p->d.loop);
    core_fini(&p->d.core);
    kernels_quit(&p->d.kernels);
    checker_quit(&p->d.checker);
    runs_quit(&p->d);
    waits_quit(&p->d);
    http_quit(&p->d.http);
    uv_timer_start(&p->quit, stop_when_done, 1, 5);
}

static void on_term(uv_signal_t *s, int nr)
{
    (void)nr;
    quit(s->data);
}

static void on_hup(uv_signal_t *s, int nr)
{
    struct program *p = s->data;

    (void)nr;
    log_line(LOG_INFO, "looking for new plugins");
    core_rescan(&p->d.core);
}

static void on_core_asked(void *arg, const struct link_reply *r)
{
    (void)r; /* a core with VMs refuses: it goes on, as it should */
    quit(arg);
}

/* Nobody connected, no VM in the core: a daemon that was started by need is needed no more. */
static void on_idle(uv_timer_t *t)
{
    struct program *p = t->data;
    bool busy = p->d.http.nr_conns > 0 || p->d.jobs > 0;

    for (const struct vm *vm = p->d.vms.first; vm != NULL && !busy; vm = vm->next)
        busy = !vm_is_off(vm);
    if (busy)
        p->busy_at = uv_now(&p->d.loop);
    if (uv_now(&p->d.loop) - p->busy_at < p->opt.idle_exit * 1000 || p->d.quitting)
        return;
    log_line(LOG_INFO, "nothing to do for %llu s", (unsigned long long)p->opt.idle_exit);
    if (p->d.core.starts > 0 && p->d.core.state == CORE_UP)
        link_call(&p->d.core.link, &(struct link_request){
                                       .nr = MF_CALL_CORE_SHUTDOWN, .fn = on_core_asked, .arg = p});
    else
        quit(p);
}

/* ---- the beginning */

static void take_def(void *arg, struct vm_def *def)
{
    struct hvd *d = arg;
    struct vm *same = vms_find_uuid(&d->vms, def->uuid);
    struct vm *vm = same != NULL ? NULL : vms_add(&d->vms, def);

    if (vm != NULL)
        vm->defined = true;
    else
        log_line(LOG_ERROR, "definition %s is left out: %s", def->name,
                 same != NULL ? "another one has its uuid" : "out of memory");
    def_fini(def);
}

static void skip_def(void *arg, const char *file, const char *why)
{
    (void)arg;
    log_line(LOG_ERROR, "definition %s is left out: %s", file, why);
}

static void raise_limits(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static void ready(void *arg, const struct problem *why)
{
    (void)arg;
    if (why != NULL)
        log_line(LOG_ERROR, "no core yet: %s", why->detail);
}

static void start_handles(struct program *p)
{
    uv_loop_t *loop = &p->d.loop;

    uv_signal_init(loop, &p->term);
    uv_signal_init(loop, &p->intr);
    uv_signal_init(loop, &p->hup);
    uv_timer_init(loop, &p->idle);
    uv_timer_init(loop, &p->quit);
    p->term.data = p->intr.data = p->hup.data = p->idle.data = p->quit.data = p;
    uv_signal_start(&p->term, on_term, SIGTERM);
    uv_signal_start(&p->intr, on_term, SIGINT);
    uv_signal_start(&p->hup, on_hup, SIGHUP);
    p->busy_at = uv_now(loop);
    if (p->opt.idle_exit > 0)
        uv_timer_start(&p->idle, on_idle, 500, 500);
}

static void close_handles(struct program *p)
{
    uv_close((uv_handle_t *)&p->term, NULL);
    uv_close((uv_handle_t *)&p->intr, NULL);
    uv_close((uv_handle_t *)&p->hup, NULL);
    uv_close((uv_handle_t *)&p->idle, NULL);
    uv_close((uv_handle_t *)&p->quit, NULL);
}

static void relist(void *core)
{
    core_relist(core);
}

static enum mf_status init_parts(struct program *p, struct problem *why)
{
    struct hvd *d = &p->d;
    struct core_config cfg = {.socket = p->opt.hv_socket,
                              .log_file = p->opt.hv_log,
                              .memory = p->opt.memory,
                              .allocator = p->opt.allocator,
                              .teardown = p->opt.teardown,
                              .engine = p->opt.engine};

    d->consoles.d = d;
    hub_init(&d->hub);
    kernels_init(&d->kernels, &d->loop, &d->jobs);
    checker_init(&d->checker, &d->loop, p->opt.verdicts);
    p->opt.verdicts = NULL;
    d->check_mode = p->opt.plugin_check;
    if (!core_init(&d->core, d, &cfg))
        return problem_nomem(why);
    vms_init(&d->vms, &d->core.link, &d->hub);
    d->vms.relist = relist;
    d->vms.relist_arg = &d->core;
    return store_load(&d->store, take_def, skip_def, d, why);
}

static void fini_parts(struct hvd *d)
{
    vms_fini(&d->vms);
    hub_fini(&d->hub);
    kernels_fini(&d->kernels);
    checker_fini(&d->checker);
}

/* Runs until told to end; 0 or 1. */
static int serve(struct program *p, struct problem *why)
{
    struct hvd *d = &p->d;

    uv_loop_init(&d->loop);
    if (init_parts(p, why) != MF_OK ||
        http_init(&d->http, d, &d->loop, d->listener.fd, why) != MF_OK)
        return 1;
    start_handles(p);
    log_line(LOG_INFO, "listening on %s, %u definitions", d->listener.path, d->vms.count);
    core_need(&d->core, ready, NULL);
    notify("READY=1");
    uv_run(&d->loop, UV_RUN_DEFAULT);
    http_fini(&d->http);
    close_handles(p);
    /* What is still on the thread pool has the last word: it must not find us gone. */
    uv_run(&d->loop, UV_RUN_DEFAULT);
    fini_parts(d);
    uv_loop_close(&d->loop);
    return 0;
}

static int fail(const struct problem *why)
{
    fprintf(stderr, "hvd: %s\n", why->detail);
    return 1;
}

int main(int argc, char **argv)
{
    static struct program p;
    struct problem why = {0};

    signal(SIGPIPE, SIG_IGN);
    umask(077);
    if (options_init(&p.opt, argc, argv, &why) != MF_OK)
        return fail(&why);
    if (p.opt.help || p.opt.version) {
        printf("%s", p.opt.help ? options_usage : "hvd " MAYFLY_VERSION "\n");
        options_fini(&p.opt);
        return 0;
    }
    log_level(p.opt.verbose ? LOG_DEBUG : LOG_INFO);
    raise_limits();
    if (!def_xml_init())
        problem_set(&why, MF_E_INTERNAL, NULL, "the schema of domain XML cannot be used");
    int status = 1;
    if (why.status == MF_OK && listener_init(&p.d.listener, p.opt.socket, &why) == MF_OK) {
        if (store_init(&p.d.store, p.opt.vms_dir, &why) == MF_OK) {
            status = serve(&p, &why);
            store_fini(&p.d.store);
        }
        listener_fini(&p.d.listener, status == 0);
    }
    def_xml_fini();
    options_fini(&p.opt);
    return why.status == MF_OK ? status : fail(&why);
}
