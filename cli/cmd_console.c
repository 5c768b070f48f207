/*
 * A VM's console: printed, followed, or attached to this terminal. Attached, two transfers run
 * side by side: the output that is followed, and one POST for each piece of input.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include <curl/curl.h>

#include "cli/hvctl.h"

#define DETACH_KEY 0x1d /* ^] */
#define INPUT_MAX  4096u
#define RETRY_MS   10 /* the guest's receive queue was full */
#define LISTEN_MS  1000

static bool write_all(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t done = write(fd, bytes, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            poll(&p, 1, -1);
            continue;
        }
        if (done < 0)
            return false;
        bytes += done;
        n -= (size_t)done;
    }
    return true;
}

static bool to_stdout(void *arg, const char *bytes, size_t n)
{
    (void)arg;
    return write_all(STDOUT_FILENO, bytes, n);
}

static char *console_path(const char *vm, bool follow, uint64_t offset)
{
    char tail[64];
    snprintf(tail, sizeof tail, "/console?follow=%d&offset=%llu", follow,
             (unsigned long long)offset);
    return api_vm_path(vm, tail);
}

/* ---- the terminal, restored whatever happens */

static struct termios terminal_before;
static volatile sig_atomic_t terminal_raw;
static volatile sig_atomic_t signal_caught;

static void terminal_restore(void)
{
    if (terminal_raw)
        tcsetattr(STDIN_FILENO, TCSAFLUSH, &terminal_before);
    terminal_raw = 0;
}

static void on_signal(int sig)
{
    signal_caught = sig;
}

/* A crash of this program: the terminal first, then what would have happened anyway. */
static void on_crash(int sig)
{
    terminal_restore();
    signal(sig, SIG_DFL);
    raise(sig);
}

static const int leave_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};

static void catch_signals(void)
{
    struct sigaction leave = {.sa_handler = on_signal}, crash = {.sa_handler = on_crash};
    signal_caught = 0;
    for (size_t i = 0; i < sizeof leave_signals / sizeof leave_signals[0]; i++)
        sigaction(leave_signals[i], &leave, NULL);
    for (size_t i = 0; i < sizeof crash_signals / sizeof crash_signals[0]; i++)
        sigaction(crash_signals[i], &crash, NULL);
}

/* Raw but for output: guests end lines by a line feed alone. */
static bool terminal_make_raw(void)
{
    struct termios raw;
    if (tcgetattr(STDIN_FILENO, &terminal_before) != 0)
        return false;
    raw = terminal_before;
    cfmakeraw(&raw);
    raw.c_oflag |= OPOST | ONLCR;
    if (tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw) != 0)
        return false;
    terminal_raw = 1;
    return true;
}

/* ---- attached */

struct attach {
    struct cli *cli;
    CURLM *multi;
    struct http_request out_request, in_request;
    struct http_reply out_reply, in_reply;
    struct http in;
    CURL *out_handle, *in_handle; /* in_handle: while a POST is under way */
    bool out_done, detached, input_ended, stuck;
    int out_code;
    char input[INPUT_MAX]; /* read, not yet taken by the guest */
    size_t nr_input;
    char *out_path, *in_path;
    enum cli_exit failure; /* of an input that was refused */
};

static bool attach_init(struct attach *a, struct cli *cli, const char *vm, uint64_t offset)
{
    memset(a, 0, sizeof *a);
    a->cli = cli;
    http_init(&a->in);
    memcpy(a->in.socket, cli->http.socket, sizeof a->in.socket);
    a->out_path = console_path(vm, true, offset);
    a->in_path = api_vm_path(vm, "/console");
    a->multi = curl_multi_init();
    a->out_request = (struct http_request){
        .method = "GET", .path = a->out_path, .accept = "text/plain", .sink = to_stdout};
    a->in_request = (struct http_request){
        .method = "POST", .path = a->in_path, .type = "application/octet-stream", .body = a->input};
    a->in_request.timeout_ms = -1;
    if (!a->out_path || !a->in_path || !a->multi)
        return false;
    a->out_handle = http_prepare(&cli->http, &a->out_request, &a->out_reply);
    return a->out_handle && curl_multi_add_handle(a->multi, a->out_handle) == CURLM_OK;
}

static void attach_fini(struct attach *a)
{
    if (a->in_handle)
        curl_multi_remove_handle(a->multi, a->in_handle);
    if (a->out_handle)
        curl_multi_remove_handle(a->multi, a->out_handle);
    http_fini(&a->in);
    if (a->multi)
        curl_multi_cleanup(a->multi);
    http_reply_fini(&a->in_reply);
    http_reply_fini(&a->out_reply);
    free(a->out_path);
    free(a->in_path);
}

/*
 * Takes what stdin has behind what still waits. A terminal is read even when nothing more fits,
 * or nobody could leave a guest that does not listen; what does not fit is dropped.
 */
static void read_input(struct attach *a, bool terminal)
{
    char bytes[INPUT_MAX];
    size_t room = INPUT_MAX - a->nr_input, take;
    ssize_t n = read(STDIN_FILENO, bytes, terminal ? sizeof bytes : room);
    char *key;
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n <= 0) {
        a->input_ended = true;
        a->detached = terminal; /* the terminal is gone */
        return;
    }
    key = terminal ? memchr(bytes, DETACH_KEY, (size_t)n) : NULL;
    if (key)
        a->input_ended = a->detached = true;
    take = key ? (size_t)(key - bytes) : (size_t)n;
    if (take > room)
        take = room;
    memcpy(a->input + a->nr_input, bytes, take);
    a->nr_input += take;
}

static void send_input(struct attach *a)
{
    a->in_request.size = a->nr_input;
    a->in_handle = http_prepare(&a->in, &a->in_request, &a->in_reply);
    if (!a->in_handle || curl_multi_add_handle(a->multi, a->in_handle) != CURLM_OK) {
        a->in_handle = NULL;
        a->failure = CLI_INTERNAL;
    }
}

static void input_sent(struct attach *a, int code)
{
    enum http_result result = http_finish(&a->in, code);
    struct json_object *answer;
    uint64_t taken;
    curl_multi_remove_handle(a->multi, a->in_handle);
    a->in_handle = NULL;
    if (result != HTTP_OK || a->in_reply.status >= 400) {
        /* A VM that has ended takes no input; its stream ends as well, and says so. */
        a->nr_input = 0;
        a->input_ended = true;
        if (a->in_reply.status != 409 && a->in_reply.status != 404)
            a->failure = CLI_UNAVAILABLE;
        return;
    }
    answer = json_tokener_parse(a->in_reply.body);
    taken = member_u64(answer, "taken");
    json_object_put(answer);
    if (taken > a->nr_input)
        taken = a->nr_input;
    a->stuck = taken == 0;
    memmove(a->input, a->input + taken, a->nr_input - taken);
    a->nr_input -= taken;
}

static void collect(struct attach *a)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(a->multi, &left))) {
        CURL *handle = m->easy_handle;
        int code = (int)m->data.result;
        if (m->msg != CURLMSG_DONE)
            continue;
        if (handle == a->in_handle) {
            input_sent(a, code);
        } else {
            a->out_done = true;
            a->out_code = code;
        }
    }
}

/* What was typed before ^] still goes out, if the guest takes it; then it is over. */
static bool attach_over(const struct attach *a)
{
    if (a->out_done || a->failure || signal_caught)
        return true;
    return a->detached && (a->nr_input == 0 || a->stuck) && !a->in_handle;
}

static void attach_loop(struct attach *a, bool terminal)
{
    for (;;) {
        struct curl_waitfd in = {.fd = STDIN_FILENO, .events = CURL_WAIT_POLLIN};
        bool wants = !a->input_ended && (terminal || a->nr_input < INPUT_MAX);
        int running;
        if (curl_multi_perform(a->multi, &running) != CURLM_OK)
            return;
        collect(a);
        if (attach_over(a))
            return;
        if (a->nr_input && !a->in_handle && !a->stuck) {
            send_input(a);
            continue;
        }
        if (curl_multi_poll(a->multi, &in, wants, a->stuck ? RETRY_MS : LISTEN_MS, NULL) !=
            CURLM_OK)
            return;
        if (!a->detached)
            a->stuck = false;
        if (wants && in.revents)
            read_input(a, terminal);
    }
}

/* What is left to say, with the terminal as it was. */
static enum cli_exit attach_end(struct attach *a, const char *vm)
{
    struct cli *cli = a->cli;
    enum http_result result;
    enum cli_exit code;
    if (!a->out_done) {
        if (signal_caught)
            return (enum cli_exit)(128 + signal_caught);
        if (a->failure)
            cli_error("%s: the daemon takes no more input", vm);
        return a->failure;
    }
    result = http_finish(&cli->http, a->out_code);
    http_reply_fini(&cli->reply);
    cli->reply = a->out_reply;
    memset(&a->out_reply, 0, sizeof a->out_reply);
    if (result != HTTP_OK || cli->reply.status >= 400)
        return api_failure(cli, result);
    {
        struct json_object *o = NULL;
        char *path = api_vm_path(vm, "");
        curl_multi_remove_handle(a->multi, a->out_handle);
        a->out_handle = NULL;
        code = api_call(cli, "GET", path, NULL, &o);
        free(path);
        if (!code) {
            struct json_object *end = member(o, "end");
            cli_note("%s is %s%s%s", vm, member_text(o, "state"), end ? ": " : "",
                     end ? member_text(end, "text") : "");
        }
        json_object_put(o);
    }
    return code;
}

enum cli_exit console_attach(struct cli *cli, const char *vm, uint64_t offset)
{
    bool terminal = isatty(STDIN_FILENO) == 1;
    struct json_object *o = NULL;
    struct attach a;
    enum cli_exit code;
    char *path = api_vm_path(vm, "");
    /* First a plain request: it finds or starts the daemon, and says what is wrong with the name.
     */
    code = api_call(cli, "GET", path, NULL, &o);
    free(path);
    json_object_put(o);
    if (code)
        return code;
    fflush(stdout);
    if (!attach_init(&a, cli, vm, offset)) {
        cli_error("out of memory");
        code = CLI_INTERNAL;
        goto out;
    }
    catch_signals();
    if (terminal) {
        cli_note("Attached to %s; ^] leaves.", vm);
        if (!terminal_make_raw()) {
            cli_error("cannot set the terminal up: %s", strerror(errno));
            code = CLI_INTERNAL;
            goto out;
        }
    }
    attach_loop(&a, terminal);
    terminal_restore();
    if (terminal)
        fputc('\n', stderr);
    code = attach_end(&a, vm);
out:
    attach_fini(&a);
    return code;
}

enum cli_exit cmd_console(struct cli *cli)
{
    bool log = args_flag(cli, "log"), follow = args_flag(cli, "follow");
    enum cli_exit code;
    uint64_t offset;
    char *path;
    if (!args_number(cli, "offset", 0, UINT64_MAX, 0, &offset))
        return CLI_USAGE;
    if (log && follow)
        return cli_usage(cli, "--log leaves, --follow stays: give one of them");
    if (!log && !follow)
        return console_attach(cli, cli->args[0], offset);
    path = console_path(cli->args[0], follow, offset);
    code = api_stream(cli, path, "text/plain", to_stdout, NULL);
    free(path);
    return code;
}
