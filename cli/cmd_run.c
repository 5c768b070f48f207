/* hello and run: a VM's whole life in one request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/hvctl.h"

#define RUN_TIMEOUT_MS 60000u
#define RUN_SLACK_MS   60000u /* for the daemon's own work around the guest's time */

/* Sends a run; the answer in *out, to be put. */
static enum cli_exit send_run(struct cli *cli, struct json_object *body, struct json_object **out)
{
    struct http_request q = {.method = "POST", .path = "/v1/run"};
    uint64_t ms;
    if (!args_duration(cli, "timeout", RUN_TIMEOUT_MS, &ms))
        return CLI_USAGE;
    if (args_value(cli, "timeout"))
        json_object_object_add(body, "timeout_ms", json_object_new_uint64(ms));
    q.body = json_object_to_json_string_ext(body, JSON_C_TO_STRING_PLAIN);
    q.size = strlen(q.body);
    q.timeout_ms = (long)(ms + RUN_SLACK_MS);
    return api_send(cli, &q, out);
}

enum cli_exit hello_request(struct cli *cli, struct json_object **out)
{
    const char *form = args_value(cli, "form");
    char path[4096];
    enum cli_exit code;
    if (form && strcmp(form, "pvh") != 0 && strcmp(form, "elf64") != 0)
        return cli_usage(cli, "--form is pvh or elf64, not '%s'", form);
    if (!guest_path(form && form[0] == 'e' ? "hello.elf" : "hello-pvh.elf", path, sizeof path))
        return CLI_INTERNAL;
    code = definition_from_options(cli, path, out);
    return code;
}

/* The guest's own words, on a line of their own. */
static void print_console(struct json_object *result)
{
    struct json_object *text = member(result, "console");
    const char *s = json_object_is_type(text, json_type_string) ? json_object_get_string(text) : "";
    size_t n = (size_t)json_object_get_string_len(text);
    fwrite(s, 1, n, stdout);
    if (n && s[n - 1] != '\n')
        putchar('\n');
    fflush(stdout);
    if (member_bool(result, "console_truncated"))
        cli_error("the console's text is not whole: the guest wrote more than is kept");
}

/* How it ended, in one line on stderr: what scripts read of stdout is the guest's alone. */
static void print_end(struct json_object *result)
{
    struct json_object *end = member(result, "end"), *r = member(result, "report");
    const char *text = member_text(end, "text"), *detail = member_text(r, "detail");
    char run[UNIT_SIZE], unreachable[UNIT_SIZE], returned[UNIT_SIZE], wall[UNIT_SIZE];
    bool more = *detail && !strstr(text, detail);
    cli_note("%s: %s%s%s%s; ran %s, unreachable %s, memory back %s, %s in all",
             member_text(end, "reason"), *text ? text : "ended", more ? " (" : "",
             more ? detail : "", more ? ")" : "", unit_ns(member_u64(r, "run_ns"), run),
             unit_ns(member_u64(r, "unreachable_ns"), unreachable),
             member_u64(r, "returned_ns") ? unit_ns(member_u64(r, "returned_ns"), returned)
                                          : "later",
             unit_ns(member_u64(result, "wall_ns"), wall));
}

static void print_report(struct json_object *r)
{
    static const char *const times[][2] = {
        {"create", "create_ns"},     {"start", "start_ns"},
        {"run", "run_ns"},           {"unreachable", "unreachable_ns"},
        {"returned", "returned_ns"}, {"longest step", "step_max_ns"},
    };
    static const char *const counts[][2] = {
        {"instructions", "instructions"},
        {"loops", "loops"},
        {"entries removed", "entries_removed"},
        {"tables freed", "tables_freed"},
        {"roots freed", "roots_freed"},
        {"frames returned", "frames_returned"},
        {"steps", "steps"},
    };
    char unit[UNIT_SIZE];
    print_field("teardown", "%s", member_text(r, "teardown"));
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        print_field(times[i][0], "%s", unit_ns(member_u64(r, times[i][1]), unit));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        print_field(counts[i][0], "%s", unit_count(member_u64(r, counts[i][1]), unit));
}

static enum cli_exit run_once(struct cli *cli, struct json_object *body)
{
    struct json_object *result = NULL;
    enum cli_exit code = send_run(cli, body, &result);
    if (code)
        return code;
    if (cli->json) {
        api_print_json(cli);
    } else {
        print_console(result);
        if (args_flag(cli, "report"))
            print_report(member(result, "report"));
        if (!args_flag(cli, "quiet"))
            print_end(result);
    }
    code = end_exit_code(member(result, "end"));
    json_object_put(result);
    return code;
}

/* ---- one run with its console attached: the same in several requests */

/* What a run's definition has by default and a VM's has not. */
static void complete(struct json_object *body)
{
    char name[32];
    snprintf(name, sizeof name, "run-%d", (int)getpid());
    if (!member(body, "name"))
        json_object_object_add(body, "name", json_object_new_string(name));
    if (!member(body, "memory"))
        json_object_object_add(body, "memory", json_object_new_string("16M"));
    if (!member(body, "on_reset"))
        json_object_object_add(body, "on_reset", json_object_new_string("end"));
}

/* Starts it, attaches, ends it if it still runs. The exit code is the guest's, if it ended. */
static enum cli_exit attached_life(struct cli *cli, const char *name)
{
    struct json_object *vm = NULL;
    char *path = api_vm_path(name, ""), *start = api_vm_path(name, "/start"),
         *destroy = api_vm_path(name, "/destroy?wait=ended");
    enum cli_exit code = api_call(cli, "POST", start, NULL, NULL);
    if (!code)
        code = console_attach(cli, name, 0);
    if (api_call(cli, "GET", path, NULL, &vm) == CLI_OK) {
        const char *state = member_text(vm, "state");
        if (strcmp(state, "shutoff") != 0 && strcmp(state, "crashed") != 0)
            api_call(cli, "POST", destroy, NULL, NULL);
        else if (!code)
            code = end_exit_code(member(vm, "end"));
    }
    json_object_put(vm);
    free(path);
    free(start);
    free(destroy);
    return code;
}

static enum cli_exit run_attached(struct cli *cli, struct json_object *body)
{
    struct http_request q = {.method = "POST", .path = "/v1/vms"};
    const char *name;
    char *path;
    enum cli_exit code;
    complete(body);
    name = member_text(body, "name");
    q.body = json_object_to_json_string_ext(body, JSON_C_TO_STRING_PLAIN);
    q.size = strlen(q.body);
    code = api_send(cli, &q, NULL);
    if (code)
        return code;
    code = attached_life(cli, name);
    path = api_vm_path(name, "");
    if (api_call(cli, "DELETE", path, NULL, NULL) != CLI_OK)
        cli_error("%s is left behind: hvctl delete --force %s", name, name);
    free(path);
    return code;
}

enum cli_exit cmd_run(struct cli *cli)
{
    bool attached = args_flag(cli, "console");
    struct json_object *body = NULL;
    enum cli_exit code;
    if (attached && (cli->json || args_flag(cli, "report") || args_value(cli, "timeout")))
        return cli_usage(cli, "--console goes without --report, --timeout and -o json");
    code = definition_from_options(cli, cli->args[0], &body);
    if (!code)
        code = attached ? run_attached(cli, body) : run_once(cli, body);
    json_object_put(body);
    return code;
}

/* ---- one run with each teardown strategy */

static void compare_row(struct table *t, const char *strategy, struct json_object *result)
{
    struct json_object *r = member(result, "report");
    char unit[UNIT_SIZE];
    table_cell(t, "%s", strategy);
    table_cell(t, "%s", unit_count(member_u64(r, "loops"), unit));
    table_cell(t, "%s", unit_count(member_u64(r, "entries_removed"), unit));
    table_cell(t, "%s", unit_count(member_u64(r, "tables_freed"), unit));
    table_cell(t, "%s", unit_ns(member_u64(r, "unreachable_ns"), unit));
    /* Deferred: the VM was gone before its memory was back. */
    table_cell(t, "%s",
               member_u64(r, "returned_ns") ? unit_ns(member_u64(r, "returned_ns"), unit)
                                            : "later");
}

/* Runs it with every strategy of the list; results go into `runs` and the table. */
static enum cli_exit compare_all(struct cli *cli, struct json_object *body,
                                 struct json_object *list, struct json_object *runs,
                                 struct table *t)
{
    enum cli_exit worst = CLI_OK;
    for (size_t i = 0; i < array_length(list); i++) {
        struct json_object *s = json_object_array_get_idx(list, i), *result = NULL;
        const char *name = member_text(s, "name");
        enum cli_exit code;
        if (strcmp(member_text(s, "kind"), "teardown") != 0)
            continue;
        json_object_object_add(body, "teardown", json_object_new_string(name));
        code = send_run(cli, body, &result);
        if (code)
            return code;
        compare_row(t, name, result);
        code = end_exit_code(member(result, "end"));
        if (code && !worst) {
            cli_error("with %s the guest did not end well: %s", name,
                      member_text(member(result, "end"), "text"));
            worst = code;
        }
        json_object_array_add(runs, result);
    }
    return worst;
}

static enum cli_exit compare(struct cli *cli, struct json_object *body)
{
    static const char *const heads[] = {"STRATEGY",      ">LOOPS",       ">ENTRIES REMOVED",
                                        ">TABLES FREED", ">UNREACHABLE", ">RETURNED"};
    struct json_object *list = NULL, *runs = json_object_new_object(),
                       *all = json_object_new_array();
    struct table t;
    enum cli_exit code = api_call(cli, "GET", "/v1/strategies", NULL, &list);
    json_object_object_add(runs, "runs", all);
    table_init(&t, heads, 6);
    if (!code)
        code = compare_all(cli, body, member(list, "strategies"), all, &t);
    if (!code && array_length(all) == 0) {
        cli_error("no teardown strategy is loaded; see `hvctl strategy list`");
        code = CLI_UNAVAILABLE;
    }
    if (array_length(all) > 0) {
        if (cli->json)
            puts(json_object_to_json_string_ext(runs, JSON_C_TO_STRING_PLAIN));
        else
            table_print(&t);
    }
    table_fini(&t);
    json_object_put(list);
    json_object_put(runs);
    return code;
}

enum cli_exit cmd_hello(struct cli *cli)
{
    struct json_object *body = NULL;
    enum cli_exit code;
    if (args_flag(cli, "compare") && args_value(cli, "teardown"))
        return cli_usage(cli, "--compare runs every teardown strategy: leave --teardown out");
    code = hello_request(cli, &body);
    if (!code)
        code = args_flag(cli, "compare") ? compare(cli, body) : run_once(cli, body);
    json_object_put(body);
    return code;
}
