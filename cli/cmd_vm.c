/* Definitions, lists and actions on VMs. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/hvctl.h"

#define FILE_MAX ((size_t)4 << 20) /* of a definition; the daemon's own limit is lower */

/* ---- define */

/* The whole file, to be freed; NULL after a message. */
static char *read_file(const char *path, size_t *size)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    char *text = malloc(FILE_MAX + 1);
    if (!f || !text) {
        cli_error("%s: %s", path, strerror(errno));
        goto fail;
    }
    *size = fread(text, 1, FILE_MAX + 1, f);
    if (ferror(f)) {
        cli_error("%s: %s", path, strerror(errno));
        goto fail;
    }
    if (*size > FILE_MAX) {
        cli_error("%s is larger than %zu MiB: no definition", path, FILE_MAX >> 20);
        goto fail;
    }
    if (f != stdin)
        fclose(f);
    text[*size] = '\0';
    return text;
fail:
    if (f && f != stdin)
        fclose(f);
    free(text);
    return NULL;
}

/* The path to define at: POST to the collection, or PUT to the name that is replaced. */
static enum cli_exit define_target(struct cli *cli, const char *name, struct http_request *q,
                                   char **path)
{
    if (!args_flag(cli, "replace")) {
        q->method = "POST";
        q->path = "/v1/vms";
        return CLI_OK;
    }
    if (!name || !*name)
        return cli_usage(cli, "--replace needs the VM's name: --name NAME");
    *path = api_vm_path(name, "");
    q->method = "PUT";
    q->path = *path;
    return *path ? CLI_OK : CLI_INTERNAL;
}

static enum cli_exit define_send(struct cli *cli, struct http_request *q, const char *name)
{
    char *path = NULL;
    struct json_object *vm = NULL;
    enum cli_exit code = define_target(cli, name, q, &path);
    q->timeout_ms = -1;
    if (!code)
        code = api_send(cli, q, &vm);
    if (!code && cli->json)
        code = api_print_json(cli);
    else if (!code)
        printf("%s %s\n", member_text(vm, "name"),
               cli->reply.status == 201 ? "defined" : "replaced");
    json_object_put(vm);
    free(path);
    return code;
}

static bool goes_with_file(const struct cli_option *o)
{
    return !o->arg || strcmp(o->name, "name") == 0 || strcmp(o->name, "output") == 0 ||
           strcmp(o->name, "socket") == 0;
}

static enum cli_exit define_file(struct cli *cli, const char *file)
{
    struct http_request q = {.type = "application/json"};
    struct json_object *parsed = NULL;
    const char *name = args_value(cli, "name");
    enum cli_exit code;
    size_t size, i = 0;
    char *text;
    for (unsigned v = 0; v < cli->nr_values; v++)
        if (!goes_with_file(cli->values[v].option))
            return cli_usage(cli, "--%s and a file do not go together: the file says all",
                             cli->values[v].option->name);
    if (name && !args_flag(cli, "replace"))
        return cli_usage(cli, "--name goes with a file only to --replace");
    text = read_file(file, &size);
    if (!text)
        return CLI_USAGE;
    while (i < size && isspace((unsigned char)text[i]))
        i++;
    if (i == size) {
        free(text);
        cli_error("%s is empty", file);
        return CLI_USAGE;
    }
    if (text[i] == '<')
        q.type = "application/xml";
    else if (!name && args_flag(cli, "replace") && (parsed = json_tokener_parse(text)))
        name = member_text(parsed, "name");
    q.body = text;
    q.size = size;
    code = define_send(cli, &q, name);
    json_object_put(parsed);
    free(text);
    return code;
}

static enum cli_exit define_options_only(struct cli *cli)
{
    static const char *const needed[] = {"name", "memory", "kernel"};
    struct http_request q = {.type = "application/json"};
    struct json_object *o = NULL;
    enum cli_exit code;
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (!args_value(cli, needed[i]))
            return cli_usage(cli,
                             "define needs a file, or --name, --memory and --kernel; --%s is "
                             "missing",
                             needed[i]);
    code = definition_from_options(cli, args_value(cli, "kernel"), &o);
    if (code)
        return code;
    q.body = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
    q.size = strlen(q.body);
    code = define_send(cli, &q, args_value(cli, "name"));
    json_object_put(o);
    return code;
}

enum cli_exit cmd_define(struct cli *cli)
{
    return cli->nr_args ? define_file(cli, cli->args[0]) : define_options_only(cli);
}

/* ---- list, stats */

static void list_row(struct table *t, struct json_object *vm)
{
    struct json_object *id = member(vm, "id");
    const char *active = member_text(vm, "teardown_active");
    char unit[UNIT_SIZE];
    if (id)
        table_cell(t, "%llu", (unsigned long long)json_object_get_uint64(id));
    else
        table_cell(t, "-");
    table_cell(t, "%s", member_text(vm, "name"));
    table_cell(t, "%s", member_text(vm, "state"));
    table_cell(t, "%s", unit_bytes(member_u64(vm, "memory"), unit));
    table_cell(t, "%llu", (unsigned long long)member_u64(vm, "vcpus"));
    table_cell(t, "%s", member_text(vm, "engine"));
    table_cell(t, "%s",
               *active                        ? active
               : *member_text(vm, "teardown") ? member_text(vm, "teardown")
                                              : "-");
    table_cell(t, "%s", member(vm, "end") ? member_text(member(vm, "end"), "reason") : "-");
}

enum cli_exit cmd_list(struct cli *cli)
{
    static const char *const heads[] = {">ID",    "NAME",   "STATE",    ">MEMORY",
                                        ">VCPUS", "ENGINE", "TEARDOWN", "LAST END"};
    const char *state = args_value(cli, "state");
    struct json_object *answer = NULL, *vms;
    struct table t;
    enum cli_exit code = api_call(cli, "GET", "/v1/vms", NULL, &answer);
    if (code)
        return code;
    vms = member(answer, "vms");
    table_init(&t, heads, 8);
    for (size_t i = 0; i < array_length(vms); i++) {
        struct json_object *vm = json_object_array_get_idx(vms, i);
        if (state && strcmp(member_text(vm, "state"), state) != 0)
            continue;
        if (args_flag(cli, "names"))
            puts(member_text(vm, "name"));
        else
            list_row(&t, vm);
    }
    if (cli->json)
        api_print_json(cli);
    else if (!args_flag(cli, "names"))
        table_print(&t);
    table_fini(&t);
    json_object_put(answer);
    return CLI_OK;
}

static void stats_row(struct table *t, const char *name, struct json_object *s)
{
    static const char *const members[] = {"frames_ram",    "frames_table", "instructions",
                                          "stage2_faults", "exits",        "halted"};
    char unit[UNIT_SIZE];
    table_cell(t, "%s", name);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (s)
            table_cell(t, "%s", unit_count(member_u64(s, members[i]), unit));
        else
            table_cell(t, "-");
    }
}

static enum cli_exit stats_named(struct cli *cli, struct table *t)
{
    enum cli_exit first = CLI_OK;
    for (unsigned i = 0; i < cli->nr_args; i++) {
        struct json_object *s = NULL;
        char *path = api_vm_path(cli->args[i], "/stats");
        enum cli_exit code = api_call(cli, "GET", path, NULL, &s);
        free(path);
        if (!code && cli->json)
            api_print_json(cli);
        else if (!code)
            stats_row(t, cli->args[i], s);
        if (code && !first)
            first = code;
        json_object_put(s);
    }
    return first;
}

static enum cli_exit stats_all(struct cli *cli, struct table *t)
{
    struct json_object *answer = NULL, *vms;
    enum cli_exit code = api_call(cli, "GET", "/v1/vms", NULL, &answer);
    if (code)
        return code;
    vms = member(answer, "vms");
    for (size_t i = 0; i < array_length(vms); i++) {
        struct json_object *vm = json_object_array_get_idx(vms, i);
        stats_row(t, member_text(vm, "name"), member(vm, "stats"));
    }
    if (cli->json)
        api_print_json(cli);
    json_object_put(answer);
    return CLI_OK;
}

enum cli_exit cmd_stats(struct cli *cli)
{
    static const char *const heads[] = {"NAME",          ">RAM FRAMES",     ">TABLE FRAMES",
                                        ">INSTRUCTIONS", ">STAGE-2 FAULTS", ">EXITS",
                                        ">HALTED"};
    struct table t;
    enum cli_exit code;
    table_init(&t, heads, 7);
    code = cli->nr_args ? stats_named(cli, &t) : stats_all(cli, &t);
    if (!cli->json && (!code || t.nr_cells))
        table_print(&t);
    table_fini(&t);
    return code;
}

/* ---- show, dumpxml */

static void show_modules(struct json_object *list)
{
    for (size_t i = 0; i < array_length(list); i++) {
        struct json_object *m = json_object_array_get_idx(list, i);
        const char *text = member_text(m, "cmdline");
        print_field("module", "%s%s%s", member_text(m, "file"), *text ? " " : "", text);
    }
}

static void show_definition(struct json_object *vm)
{
    struct json_object *id = member(vm, "id");
    const char *teardown = member_text(vm, "teardown"),
               *active = member_text(vm, "teardown_active");
    char unit[UNIT_SIZE];
    print_field("name", "%s", member_text(vm, "name"));
    print_field("uuid", "%s", member_text(vm, "uuid"));
    print_field("state", "%s", member_text(vm, "state"));
    if (id)
        print_field("id", "%llu", (unsigned long long)json_object_get_uint64(id));
    print_field("memory", "%s", unit_bytes(member_u64(vm, "memory"), unit));
    print_field("vcpus", "%llu", (unsigned long long)member_u64(vm, "vcpus"));
    print_field("kernel", "%s", member_text(vm, "kernel"));
    print_field("command line", "%s", member_text(vm, "cmdline"));
    if (*member_text(vm, "initrd"))
        print_field("initrd", "%s", member_text(vm, "initrd"));
    show_modules(member(vm, "modules"));
    print_field("engine", "%s", member_text(vm, "engine"));
    print_field("teardown", "%s", *active ? active : *teardown ? teardown : "the host's default");
    print_field("on reset", "%s", member_text(vm, "on_reset"));
    print_field("weight", "%llu", (unsigned long long)member_u64(vm, "weight"));
    if (member_u64(vm, "cap"))
        print_field("cap", "%llu %%", (unsigned long long)member_u64(vm, "cap"));
    if (member_bool(vm, "transient"))
        print_field("transient", "yes: gone when it ends");
}

static void show_life(struct json_object *vm)
{
    struct json_object *s = member(vm, "stats"), *end = member(vm, "end");
    struct json_object *r = member(vm, "report");
    char a[UNIT_SIZE], b[UNIT_SIZE], c[UNIT_SIZE];
    print_field("starts", "%s", unit_count(member_u64(vm, "starts"), a));
    print_field("console", "%s written", unit_bytes(member_u64(vm, "console_end"), a));
    if (s) {
        print_field("memory in use", "%s RAM, %s tables",
                    unit_bytes(member_u64(s, "frames_ram") * 4096, a),
                    unit_bytes(member_u64(s, "frames_table") * 4096, b));
        print_field("instructions", "%s", unit_count(member_u64(s, "instructions"), a));
        print_field("exits", "%s, %s second-stage faults", unit_count(member_u64(s, "exits"), a),
                    unit_count(member_u64(s, "stage2_faults"), b));
    }
    if (end)
        print_field("last end", "%s (%s, code %llu)", member_text(end, "text"),
                    member_text(end, "reason"), (unsigned long long)member_u64(end, "code"));
    if (r && *member_text(r, "detail"))
        print_field("detail", "%s", member_text(r, "detail"));
    if (r)
        print_field("last teardown", "%s: %s loops, %s entries; memory back after %s",
                    member_text(r, "teardown"), unit_count(member_u64(r, "loops"), a),
                    unit_count(member_u64(r, "entries_removed"), b),
                    unit_ns(member_u64(r, "returned_ns"), c));
}

enum cli_exit cmd_show(struct cli *cli)
{
    enum cli_exit first = CLI_OK;
    for (unsigned i = 0; i < cli->nr_args; i++) {
        struct json_object *vm = NULL;
        char *path = api_vm_path(cli->args[i], "");
        enum cli_exit code = api_call(cli, "GET", path, NULL, &vm);
        free(path);
        if (!code && cli->json) {
            api_print_json(cli);
        } else if (!code) {
            if (i)
                putchar('\n');
            show_definition(vm);
            show_life(vm);
        }
        if (code && !first)
            first = code;
        json_object_put(vm);
    }
    return first;
}

enum cli_exit cmd_dumpxml(struct cli *cli)
{
    char *path = api_vm_path(cli->args[0], "");
    struct http_request q = {
        .method = "GET", .path = path, .accept = "application/xml", .timeout_ms = -1};
    struct json_object *whole = json_object_new_object();
    enum cli_exit code = path ? api_send(cli, &q, NULL) : CLI_INTERNAL;
    if (!code && cli->json) {
        json_object_object_add(whole, "xml",
                               json_object_new_string_len(cli->reply.body, (int)cli->reply.size));
        puts(json_object_to_json_string_ext(whole, JSON_C_TO_STRING_PLAIN));
    } else if (!code) {
        api_print_json(cli);
    }
    json_object_put(whole);
    free(path);
    return code;
}

/* ---- actions */

struct action {
    const char *name, *done;
};

static const struct action actions[] = {
    {"start", "started"}, {"pause", "paused"},          {"resume", "resumed"},
    {"reset", "reset"},   {"shutdown", "asked to end"}, {"destroy", "destroyed"},
};

static const char *done_word(const char *name)
{
    for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++)
        if (strcmp(actions[i].name, name) == 0)
            return actions[i].done;
    return name;
}

/* "/ACTION?..." from the options, to be freed; NULL after a message. */
static char *action_tail(struct cli *cli)
{
    uint64_t grace, ms;
    /* Destroying takes bounded time, so it always waits. */
    bool wait = args_flag(cli, "wait") || strcmp(cli->command->name, "destroy") == 0;
    char *tail = NULL;
    char extra[96] = "";
    if (!args_duration(cli, "timeout", 30000, &ms) || !args_duration(cli, "grace", 0, &grace))
        return NULL;
    if (grace > 600000) {
        cli_usage(cli, "--grace is at most 10m");
        return NULL;
    }
    if (grace)
        snprintf(extra, sizeof extra, "&grace_ms=%llu", (unsigned long long)grace);
    if (asprintf(&tail, "/%s?timeout_ms=%llu%s%s", cli->command->name, (unsigned long long)ms,
                 wait ? "&wait=ended" : "", extra) < 0)
        return NULL;
    return tail;
}

static void print_done(struct cli *cli, const char *name, struct json_object *vm)
{
    struct json_object *end = member(vm, "end");
    if (args_flag(cli, "wait") && end)
        printf("%s ended: %s\n", name, member_text(end, "text"));
    else
        printf("%s %s\n", name, done_word(cli->command->name));
}

static enum cli_exit act_on(struct cli *cli, const char *name, const char *tail)
{
    struct json_object *vm = NULL;
    char *path = api_vm_path(name, tail);
    struct http_request q = {.method = "POST", .path = path};
    enum cli_exit code;
    uint64_t ms = 30000;
    if (!path)
        return CLI_INTERNAL;
    args_duration(cli, "timeout", 30000, &ms);
    q.timeout_ms = (long)ms + HTTP_TIMEOUT_MS;
    code = api_send(cli, &q, &vm);
    if (!code && cli->json)
        api_print_json(cli);
    else if (!code)
        print_done(cli, name, vm);
    if (!code && args_flag(cli, "wait") && member(vm, "end"))
        code = end_exit_code(member(vm, "end"));
    json_object_put(vm);
    free(path);
    return code;
}

enum cli_exit cmd_action(struct cli *cli)
{
    enum cli_exit first = CLI_OK;
    char *tail;
    if (args_flag(cli, "console") && (cli->nr_args > 1 || args_flag(cli, "wait") || cli->json))
        return cli_usage(cli, "--console is for one VM, without --wait and -o json");
    tail = action_tail(cli);
    if (!tail)
        return CLI_USAGE;
    for (unsigned i = 0; i < cli->nr_args; i++) {
        enum cli_exit code = act_on(cli, cli->args[i], tail);
        if (code && !first)
            first = code;
    }
    free(tail);
    if (!first && args_flag(cli, "console"))
        return console_attach(cli, cli->args[0], 0);
    return first;
}

static enum cli_exit delete_one(struct cli *cli, const char *name)
{
    struct json_object *vm = NULL;
    char *path = api_vm_path(name, ""), *destroy = api_vm_path(name, "/destroy?wait=ended");
    enum cli_exit code = CLI_OK;
    if (args_flag(cli, "force")) {
        code = api_call(cli, "GET", path, NULL, &vm);
        if (!code && strcmp(member_text(vm, "state"), "shutoff") != 0 &&
            strcmp(member_text(vm, "state"), "crashed") != 0)
            code = api_call(cli, "POST", destroy, NULL, NULL);
    }
    /* A transient one is gone with its end. */
    if (!code && !member_bool(vm, "transient"))
        code = api_call(cli, "DELETE", path, NULL, NULL);
    if (!code && cli->json)
        puts("{}");
    else if (!code)
        printf("%s deleted\n", name);
    json_object_put(vm);
    free(path);
    free(destroy);
    return code;
}

enum cli_exit cmd_delete(struct cli *cli)
{
    enum cli_exit first = CLI_OK;
    for (unsigned i = 0; i < cli->nr_args; i++) {
        enum cli_exit code = delete_one(cli, cli->args[i]);
        if (code && !first)
            first = code;
    }
    return first;
}
