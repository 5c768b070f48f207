/* Requests: with a daemon that is started when there is none, and refusals in words. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <curl/curl.h>

#include "cli/hvctl.h"

#define CONNECT_TRIES    1000u
#define CONNECT_PAUSE_MS 5

struct json_object *member(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    if (json_object_is_type(o, json_type_object))
        json_object_object_get_ex(o, key, &v);
    return v;
}

size_t array_length(struct json_object *a)
{
    return json_object_is_type(a, json_type_array) ? json_object_array_length(a) : 0;
}

const char *member_text(struct json_object *o, const char *key)
{
    struct json_object *v = member(o, key);
    return json_object_is_type(v, json_type_string) ? json_object_get_string(v) : "";
}

uint64_t member_u64(struct json_object *o, const char *key)
{
    return json_object_get_uint64(member(o, key));
}

bool member_bool(struct json_object *o, const char *key)
{
    return json_object_get_boolean(member(o, key));
}

/* ---- what an answer means */

static enum cli_exit status_code(long status)
{
    if (status == 503)
        return CLI_UNAVAILABLE;
    if (status == 504)
        return CLI_TIMEOUT;
    if (status == 501 || (status >= 400 && status < 500))
        return CLI_REJECTED;
    return CLI_INTERNAL;
}

static enum cli_exit refused(struct cli *cli)
{
    struct json_object *problem = json_tokener_parse(cli->reply.body);
    const char *title = member_text(problem, "title"), *detail = member_text(problem, "detail");
    const char *field = member_text(problem, "field"), *code = member_text(problem, "code");
    if (cli->json && problem)
        api_print_json(cli);
    if (!*title && !*detail)
        cli_error("the daemon answered %ld without a word why", cli->reply.status);
    else
        cli_error("%s%s%s%s%s (%s)", *detail ? detail : title, *field ? " [" : "", field,
                  *field ? "]" : "", "", *code ? code : title);
    if (strcmp(code, "core-unavailable") == 0)
        fputs("The hypervisor core does not answer the daemon; its log is hv.log in the runtime "
              "directory.\n",
              stderr);
    else if (strcmp(code, "no-allocator") == 0)
        fputs("`hvctl strategy list` shows what is loaded; `hvctl use allocator NAME` selects.\n",
              stderr);
    json_object_put(problem);
    return status_code(cli->reply.status);
}

enum cli_exit api_failure(struct cli *cli, enum http_result result)
{
    const char *why = cli->http.error[0] ? cli->http.error : "connection broken";
    switch (result) {
    case HTTP_OK:
        return refused(cli);
    case HTTP_NO_DAEMON:
        cli_error("no daemon answers on %s; start one: hvd%s", cli->http.socket,
                  cli->may_start ? "" : " (or leave --no-start, --socket and MAYFLY_NO_START out)");
        return CLI_UNAVAILABLE;
    case HTTP_DENIED:
        cli_error("no permission to use the daemon's socket %s", cli->http.socket);
        return CLI_UNAVAILABLE;
    case HTTP_LOST:
        cli_error("the daemon went away before it had answered: %s", why);
        return CLI_UNAVAILABLE;
    case HTTP_TIMED_OUT:
        cli_error("the daemon does not answer in time on %s", cli->http.socket);
        return CLI_UNAVAILABLE;
    case HTTP_TOO_BIG:
        cli_error("the daemon's answer is larger than %u MiB", HTTP_BODY_MAX >> 20);
        return CLI_INTERNAL;
    case HTTP_STOPPED:
        return CLI_OK;
    case HTTP_NO_MEMORY:
        break;
    }
    cli_error("out of memory");
    return CLI_INTERNAL;
}

/* ---- requests */

static enum cli_exit find_socket(struct cli *cli)
{
    const char *given = args_value(cli, "socket");
    char dir[4096];
    int n;
    if (cli->http.socket[0])
        return CLI_OK;
    if (given) {
        n = snprintf(cli->http.socket, sizeof cli->http.socket, "%s", given);
    } else {
        if (!daemon_runtime_dir(dir, sizeof dir))
            return CLI_UNAVAILABLE;
        n = snprintf(cli->http.socket, sizeof cli->http.socket, "%s/hvd.sock", dir);
    }
    if (n > 0 && (size_t)n < sizeof cli->http.socket)
        return CLI_OK;
    if (given)
        return cli_usage(cli, "--socket takes a path of 1 to %u bytes", HTTP_SOCKET_MAX - 1);
    cli_error("the socket's path is longer than %u bytes; set MAYFLY_RUNTIME_DIR to a short one",
              HTTP_SOCKET_MAX - 1);
    return CLI_UNAVAILABLE;
}

/*
 * Sends it, and again when that had to start the daemon first, or when the daemon's queue of
 * connections was full.
 */
static enum cli_exit perform(struct cli *cli, const struct http_request *q,
                             enum http_result *result)
{
    enum cli_exit code = find_socket(cli);
    const struct timespec pause = {.tv_nsec = CONNECT_PAUSE_MS * 1000000L};
    bool started = false;
    if (code)
        return code;
    *result = http_perform(&cli->http, q, &cli->reply);
    for (unsigned i = 0; i < CONNECT_TRIES && *result == HTTP_NO_DAEMON; i++) {
        if (i)
            nanosleep(&pause, NULL);
        if (!daemon_answers(cli->http.socket)) {
            if (!cli->may_start || started)
                break;
            started = true;
            code = daemon_start(cli->http.socket);
            if (code)
                return code;
        }
        *result = http_perform(&cli->http, q, &cli->reply);
    }
    return CLI_OK;
}

enum cli_exit api_send(struct cli *cli, const struct http_request *q, struct json_object **out)
{
    enum http_result result;
    enum cli_exit code = perform(cli, q, &result);
    if (code)
        return code;
    if (result != HTTP_OK || cli->reply.status >= 400 || cli->reply.status < 200)
        return api_failure(cli, result);
    if (!out)
        return CLI_OK;
    *out = json_tokener_parse(cli->reply.body);
    if (*out)
        return CLI_OK;
    cli_error("the daemon's answer is no JSON: is %s really hvd's?", cli->http.socket);
    return CLI_INTERNAL;
}

enum cli_exit api_call(struct cli *cli, const char *method, const char *path,
                       struct json_object *body, struct json_object **out)
{
    struct http_request q = {.method = method, .path = path, .timeout_ms = -1};
    if (!path) {
        cli_error("out of memory");
        return CLI_INTERNAL;
    }
    if (body) {
        q.body = json_object_to_json_string_ext(body, JSON_C_TO_STRING_PLAIN);
        q.size = strlen(q.body);
    }
    return api_send(cli, &q, out);
}

enum cli_exit api_stream(struct cli *cli, const char *path, const char *accept, http_sink sink,
                         void *arg)
{
    struct http_request q = {
        .method = "GET", .path = path, .accept = accept, .sink = sink, .sink_arg = arg};
    enum http_result result;
    enum cli_exit code;
    if (!path) {
        cli_error("out of memory");
        return CLI_INTERNAL;
    }
    code = perform(cli, &q, &result);
    if (code)
        return code;
    if (result == HTTP_OK && cli->reply.status < 400)
        return CLI_OK;
    return api_failure(cli, result);
}

/* ---- paths */

static char *encode(const char *text)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    char *out = malloc(3 * strlen(text) + 1), *to = out;
    if (!out)
        return NULL;
    for (; *text; text++) {
        if (strchr(plain, *text))
            *to++ = *text;
        else
            to += sprintf(to, "%%%02X", (unsigned char)*text);
    }
    *to = '\0';
    return out;
}

char *api_vm_path(const char *vm, const char *tail)
{
    char *encoded = encode(vm), *path = NULL;
    if (encoded && asprintf(&path, "/v1/vms/%s%s", encoded, tail) < 0)
        path = NULL;
    free(encoded);
    return path;
}

char *api_path2(const char *prefix, const char *a, const char *b)
{
    char *x = encode(a), *y = encode(b), *path = NULL;
    if (x && y && asprintf(&path, "%s%s/%s", prefix, x, y) < 0)
        path = NULL;
    free(x);
    free(y);
    return path;
}

enum cli_exit api_print_json(struct cli *cli)
{
    struct http_reply *r = &cli->reply;
    if (r->size == 0) {
        fputs("{}\n", stdout);
        return CLI_OK;
    }
    fwrite(r->body, 1, r->size, stdout);
    if (r->body[r->size - 1] != '\n')
        putchar('\n');
    return CLI_OK;
}

enum cli_exit end_exit_code(struct json_object *end)
{
    static const struct {
        const char *reason;
        int code; /* -1: the guest's own */
    } table[] = {
        {"poweroff", CLI_OK},         {"reset", CLI_OK},
        {"debug-exit", -1},           {"guest-call", -1},
        {"destroyed", CLI_DESTROYED}, {"shutdown", CLI_DESTROYED},
        {"timeout", CLI_TIMEOUT},     {"core-lost", CLI_UNAVAILABLE},
    };
    const char *reason = member_text(end, "reason");
    uint64_t code = member_u64(end, "code");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(reason, table[i].reason) != 0)
            continue;
        if (table[i].code >= 0)
            return (enum cli_exit)table[i].code;
        return (enum cli_exit)(code > CLI_GUEST_MAX ? CLI_GUEST_MAX : code);
    }
    return CLI_CRASHED;
}
