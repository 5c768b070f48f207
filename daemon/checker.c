#include "daemon/checker.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/buf.h"
#include "daemon/jsonr.h"
#include "daemon/log.h"
#include "daemon/paths.h"

#define PROGRAM     "mayfly-plugin-check"
#define OPERATIONS  "500" /* a short run: the author's is longer, see docs/plugins.md */
#define SEED        "1"   /* always the same: a verdict must not depend on the day */
#define ANSWER_MAX  65536u
#define CHECK_MS    300000u /* for a checker that is itself stuck; a plugin is given up sooner */
#define SETTLED_NS  INT64_C(100000000)
#define RUNNING_MAX 8u

struct check {
    struct check *next;
    struct checker *c;
    int fd; /* of the plugin, owned */
    struct file_id file;
    checker_fn fn; /* NULL: answered */
    void *arg;
    bool started;
    unsigned handles; /* not closed yet; the check is freed with the last */
    uv_process_t process;
    uv_pipe_t out;
    uv_timer_t timer;
    bool exited, ended; /* the process; its output */
    int64_t status;
    int sig;
    struct buf text;
    char room[4096];
};

static void start_more(struct checker *c);

/* ---- the end of one */

static void remove_from(struct checker *c, struct check *k)
{
    struct check **at = &c->first;

    while (*at != k)
        at = &(*at)->next;
    *at = k->next;
    if (c->last == &k->next)
        c->last = at;
}

static void release(struct check *k)
{
    if (k->fd >= 0)
        close(k->fd);
    buf_fini(&k->text);
    free(k);
}

static void answer(struct check *k, const struct verdict *v, const char *why)
{
    checker_fn fn = k->fn;

    k->fn = NULL;
    if (fn != NULL)
        fn(k->arg, v, why);
}

static void on_closed(uv_handle_t *h)
{
    struct check *k = h->data;

    if (--k->handles == 0)
        release(k);
}

static void close_handle(uv_handle_t *h)
{
    if (!uv_is_closing(h))
        uv_close(h, on_closed);
}

/* Once for many: while there are more to come, those will save. */
static void save_when_idle(struct checker *c)
{
    if (!c->unsaved || c->first != NULL)
        return;
    c->unsaved = false;
    if (!verdicts_save(&c->verdicts))
        log_line(LOG_WARN, "verdicts on plugins cannot be kept: %s", strerror(errno));
}

static void finish(struct check *k, const struct verdict *v, const char *why)
{
    struct checker *c = k->c;

    remove_from(c, k);
    c->running--;
    close_handle((uv_handle_t *)&k->timer);
    close_handle((uv_handle_t *)&k->out);
    close_handle((uv_handle_t *)&k->process);
    answer(k, v, why);
    save_when_idle(c);
    start_more(c);
}

/* ---- what the program says */

static bool take_text(struct json_object *o, const char *key, char *to, size_t size)
{
    struct json_object *m = NULL;

    if (!json_object_object_get_ex(o, key, &m) || !json_object_is_type(m, json_type_string))
        return false;
    snprintf(to, size, "%s", json_object_get_string(m));
    return true;
}

static bool read_verdict(const struct check *k, struct verdict *v)
{
    struct problem p = {0};
    struct json_object *o = NULL, *m = NULL;
    bool good;

    *v = (struct verdict){0};
    if (k->text.failed || k->sig != 0 ||
        json_read_object(k->text.p == NULL ? "" : k->text.p, k->text.len, &o, &p) != MF_OK)
        return false;
    good = json_object_object_get_ex(o, "ok", &m) && json_object_is_type(m, json_type_boolean);
    v->ok = good && json_object_get_boolean(m);
    good =
        good && json_object_object_get_ex(o, "seed", &m) && json_object_is_type(m, json_type_int);
    v->seed = good ? json_object_get_uint64(m) : 0;
    if (good && !v->ok)
        good = take_text(o, "rule", v->rule, sizeof v->rule) &&
               take_text(o, "text", v->text, sizeof v->text) && v->rule[0] != '\0';
    json_object_put(o);
    return good;
}

/*
 * A file whose time is that of right now can be changed once more without a trace in its times, and
 * one that changed while it was checked is not the one that was checked.
 */
static bool is_settled(const struct check *k)
{
    struct timespec now = {0};
    struct file_id again;

    clock_gettime(CLOCK_REALTIME, &now);
    return file_id_of(k->fd, &again) && file_id_same(&again, &k->file) &&
           (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - k->file.ctime > SETTLED_NS;
}

static void conclude(struct check *k)
{
    struct checker *c = k->c;
    struct file_id now;
    struct verdict v;
    char why[128];

    if (!read_verdict(k, &v)) {
        if (k->sig != 0)
            snprintf(why, sizeof why, PROGRAM " was killed by signal %d", k->sig);
        else
            snprintf(why, sizeof why, PROGRAM " ended with status %" PRId64 " and no verdict",
                     k->status);
        finish(k, NULL, why);
        return;
    }
    c->made++;
    c->broken += !v.ok;
    if (!file_id_of(k->fd, &now) || !file_id_same(&now, &k->file)) {
        finish(k, NULL, "the file was changed while it was checked");
        return;
    }
    if (is_settled(k)) {
        verdicts_put(&c->verdicts, &k->file, &v);
        c->unsaved = true;
    }
    finish(k, &v, NULL);
}

/* ---- the process */

static void on_exit_process(uv_process_t *p, int64_t status, int sig)
{
    struct check *k = p->data;

    k->exited = true;
    k->status = status;
    k->sig = sig;
    if (k->ended && k->fn != NULL)
        conclude(k);
}

static void on_room(uv_handle_t *h, size_t want, uv_buf_t *b)
{
    struct check *k = h->data;

    (void)want;
    *b = uv_buf_init(k->room, sizeof k->room);
}

static void on_output(uv_stream_t *s, ssize_t n, const uv_buf_t *b)
{
    struct check *k = s->data;

    if (n > 0 && k->text.len < ANSWER_MAX)
        buf_add(&k->text, b->base, (size_t)n);
    if (n >= 0)
        return;
    uv_read_stop(s);
    k->ended = true;
    if (k->exited && k->fn != NULL)
        conclude(k);
}

static void on_late(uv_timer_t *t)
{
    struct check *k = t->data;

    uv_process_kill(&k->process, SIGKILL);
    finish(k, NULL, PROGRAM " did not come to an end");
}

/* 0, or libuv's error. */
static int spawn(struct check *k, char *file)
{
    char *args[] = {file,
                    (char *)(uintptr_t) "--seed",
                    (char *)(uintptr_t)SEED,
                    (char *)(uintptr_t) "--operations",
                    (char *)(uintptr_t)OPERATIONS,
                    (char *)(uintptr_t) "--json",
                    (char *)(uintptr_t) "/proc/self/fd/3",
                    NULL};
    uv_stdio_container_t io[4] = {
        {.flags = UV_IGNORE},
        {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&k->out},
        {.flags = UV_INHERIT_FD, .data.fd = STDERR_FILENO},
        {.flags = UV_INHERIT_FD, .data.fd = k->fd}};
    uv_process_options_t o = {
        .exit_cb = on_exit_process, .file = file, .args = args, .stdio_count = 4, .stdio = io};

    return uv_spawn(k->c->loop, &k->process, &o);
}

static void start(struct check *k, char *file)
{
    struct checker *c = k->c;
    char why[160];

    k->started = true;
    c->running++;
    k->process.data = k->out.data = k->timer.data = k;
    k->handles = 3;
    uv_pipe_init(c->loop, &k->out, 0);
    uv_timer_init(c->loop, &k->timer);
    int r = spawn(k, file);
    if (r != 0) {
        snprintf(why, sizeof why, "%.100s cannot be started: %s", file, uv_strerror(r));
        finish(k, NULL, why);
        return;
    }
    uv_timer_start(&k->timer, on_late, CHECK_MS, 0);
    uv_read_start((uv_stream_t *)&k->out, on_room, on_output);
}

static struct check *first_waiting(const struct checker *c)
{
    struct check *k = c->first;

    while (k != NULL && k->started)
        k = k->next;
    return k;
}

/* A start that fails answers at once, so the list is looked at anew each time. */
static void start_more(struct checker *c)
{
    unsigned most = uv_available_parallelism();
    struct check *k;

    most = most < RUNNING_MAX ? most : RUNNING_MAX;
    while (!c->quitting && c->running < most && (k = first_waiting(c)) != NULL) {
        char *file = path_program(PROGRAM, "MAYFLY_PLUGIN_CHECK", "../conform");
        start(k, file != NULL ? file : (char *)(uintptr_t)PROGRAM);
        free(file);
    }
}

/* ---- from outside */

void checker_init(struct checker *c, uv_loop_t *loop, char *path)
{
    *c = (struct checker){.loop = loop};
    c->last = &c->first;
    verdicts_init(&c->verdicts, path);
}

void checker_quit(struct checker *c)
{
    c->quitting = true;
    while (c->first != NULL) {
        struct check *k = c->first;

        if (k->started) {
            uv_process_kill(&k->process, SIGKILL);
            finish(k, NULL, "the daemon is going down");
            continue;
        }
        remove_from(c, k);
        answer(k, NULL, "the daemon is going down");
        release(k);
    }
}

void checker_fini(struct checker *c)
{
    verdicts_fini(&c->verdicts);
}

/* The program's identity is part of what a verdict means. False: it is not there. */
static bool look_at_program(struct checker *c)
{
    char *file = path_program(PROGRAM, "MAYFLY_PLUGIN_CHECK", "../conform");
    int fd = file == NULL ? -1 : open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct file_id id;
    bool ok = fd >= 0 && file_id_of(fd, &id);

    if (ok)
        verdicts_by(&c->verdicts, &id);
    if (fd >= 0)
        close(fd);
    free(file);
    return ok;
}

static struct check *make(struct checker *c, int fd, const struct file_id *file)
{
    struct check *k = calloc(1, sizeof *k);
    int own = k == NULL ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);

    if (own < 0) {
        free(k);
        return NULL;
    }
    k->c = c;
    k->fd = own;
    k->file = *file;
    return k;
}

void checker_run(struct checker *c, int fd, checker_fn fn, void *arg)
{
    const struct verdict *known;
    struct file_id file;
    struct check *k;

    if (c->quitting) {
        fn(arg, NULL, "the daemon is going down");
        return;
    }
    if (!file_id_of(fd, &file) || !look_at_program(c)) {
        fn(arg, NULL, "the program " PROGRAM " is not found");
        return;
    }
    known = verdicts_find(&c->verdicts, &file);
    if (known != NULL) {
        struct verdict v = *known;
        fn(arg, &v, NULL);
        return;
    }
    k = make(c, fd, &file);
    if (k == NULL) {
        fn(arg, NULL, "the daemon is out of memory or descriptors");
        return;
    }
    k->fn = fn;
    k->arg = arg;
    *c->last = k;
    c->last = &k->next;
    start_more(c);
}

enum mf_status checker_problem(const struct verdict *v, const char *why, struct problem *p)
{
    if (v == NULL)
        return problem_set(p, MF_E_IO, "path", "it cannot be checked for conformance: %s", why);
    problem_set(p, MF_E_PLUGIN, "path", "it breaks the rule %s: %.180s (seed %" PRIu64 ")", v->rule,
                v->text, v->seed);
    snprintf(p->rule, sizeof p->rule, "%s", v->rule);
    return p->status;
}
