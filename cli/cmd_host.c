/* The host: events, strategies, heap, versions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/hvctl.h"

/* ---- events */

struct events {
    const struct cli *cli;
    const char *vm, *type;
    uint64_t left; /* to show, 0: no limit */
    char *line;
    size_t n, room;
    bool broken;
};

static void print_event(struct json_object *e)
{
    static const char *const hidden[] = {"seq", "time", "type", "vm"};
    struct json_object_iterator it = json_object_iter_begin(e), end = json_object_iter_end(e);
    printf("%s  %-10s %-16s", member_text(e, "time"), member_text(e, "type"), member_text(e, "vm"));
    for (; !json_object_iter_equal(&it, &end); json_object_iter_next(&it)) {
        const char *key = json_object_iter_peek_name(&it);
        bool skip = false;
        for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++)
            skip |= strcmp(key, hidden[i]) == 0;
        if (skip)
            continue;
        printf(" %s=", key);
        print_clean(json_object_get_string(json_object_iter_peek_value(&it)));
    }
    putchar('\n');
}

/* One line of the stream; false when enough was shown. */
static bool event_line(struct events *s)
{
    struct json_object *e = json_tokener_parse(s->line);
    bool good = json_object_is_type(e, json_type_object);
    bool wanted = good && (!s->vm || strcmp(member_text(e, "vm"), s->vm) == 0) &&
                  (!s->type || strcmp(member_text(e, "type"), s->type) == 0);
    if (wanted && s->cli->json)
        puts(s->line);
    else if (wanted)
        print_event(e);
    json_object_put(e);
    if (!wanted)
        return true;
    if (fflush(stdout) != 0)
        return false;
    return s->left == 0 || --s->left > 0;
}

static bool event_bytes(void *arg, const char *bytes, size_t n)
{
    struct events *s = arg;
    for (size_t i = 0; i < n; i++) {
        if (s->n + 1 >= s->room) {
            size_t room = s->room ? 2 * s->room : 1024;
            char *line = room > HTTP_BODY_MAX ? NULL : realloc(s->line, room);
            if (!line) {
                s->broken = true;
                return false;
            }
            s->line = line;
            s->room = room;
        }
        if (bytes[i] != '\n') {
            s->line[s->n++] = bytes[i];
            continue;
        }
        s->line[s->n] = '\0';
        s->n = 0;
        if (s->line[0] && !event_line(s))
            return false;
    }
    return true;
}

enum cli_exit cmd_events(struct cli *cli)
{
    struct events s = {.cli = cli, .vm = args_value(cli, "vm"), .type = args_value(cli, "type")};
    enum cli_exit code;
    if (!args_number(cli, "count", 1, UINT32_MAX, 0, &s.left))
        return CLI_USAGE;
    code = api_stream(cli, "/v1/events", "application/x-ndjson", event_bytes, &s);
    free(s.line);
    if (s.broken) {
        cli_error("out of memory");
        return CLI_INTERNAL;
    }
    if (!code && cli->http.stopped)
        return CLI_OK;
    if (!code) {
        cli_error("the daemon ended the stream of events");
        return CLI_UNAVAILABLE;
    }
    return code;
}

/* ---- strategies */

static void strategy_row(struct table *t, struct json_object *s)
{
    table_cell(t, "%s", member_text(s, "kind"));
    table_cell(t, "%s", member_text(s, "name"));
    table_cell(t, "%s", member_text(s, "version"));
    table_cell(t, "%llu", (unsigned long long)member_u64(s, "users"));
    table_cell(t, "%s", member_bool(s, "default") ? "yes" : "");
    table_cell(t, "%s", member_text(s, "summary"));
}

static enum cli_exit strategy_list(struct cli *cli)
{
    static const char *const heads[] = {"KIND", "NAME", "VERSION", ">USERS", "IN USE", "SUMMARY"};
    struct json_object *answer = NULL, *list, *refused;
    struct table t;
    enum cli_exit code = api_call(cli, "GET", "/v1/strategies", NULL, &answer);
    if (code)
        return code;
    if (cli->json) {
        json_object_put(answer);
        return api_print_json(cli);
    }
    list = member(answer, "strategies");
    table_init(&t, heads, 6);
    for (size_t i = 0; i < array_length(list); i++)
        strategy_row(&t, json_object_array_get_idx(list, i));
    table_print(&t);
    table_fini(&t);
    refused = member(answer, "refused");
    for (size_t i = 0; i < array_length(refused); i++) {
        struct json_object *r = json_object_array_get_idx(refused, i);
        fputs("not loaded: ", stdout);
        print_clean(member_text(r, "path"));
        fputs(": ", stdout);
        print_clean(member_text(r, "detail"));
        putchar('\n');
    }
    json_object_put(answer);
    return CLI_OK;
}

static enum cli_exit strategy_show(struct cli *cli, const char *path)
{
    struct json_object *s = NULL;
    enum cli_exit code = api_call(cli, "GET", path, NULL, &s);
    if (!code && cli->json) {
        api_print_json(cli);
    } else if (!code) {
        print_field("kind", "%s", member_text(s, "kind"));
        print_field("name", "%s", member_text(s, "name"));
        print_field("version", "%s", member_text(s, "version"));
        print_field("summary", "%s", member_text(s, "summary"));
        print_field("users", "%llu", (unsigned long long)member_u64(s, "users"));
        print_field("in use", "%s", member_bool(s, "default") ? "yes" : "no");
        print_field("file", "%s", member_text(s, "path"));
        print_field("check", "%s",
                    *member_text(s, "check") ? member_text(s, "check") : "not known");
    }
    json_object_put(s);
    return code;
}

static enum cli_exit strategy_load(struct cli *cli, const char *file)
{
    struct json_object *body = json_object_new_object(), *s = NULL;
    char *path = absolute_path(file);
    enum cli_exit code = CLI_INTERNAL;
    if (path) {
        json_object_object_add(body, "path", json_object_new_string(path));
        code = api_call(cli, "POST",
                        args_flag(cli, "force") ? "/v1/strategies?force=1" : "/v1/strategies", body,
                        &s);
    }
    if (!code && cli->json)
        api_print_json(cli);
    else if (!code)
        printf("%s %s loaded: %s\n", member_text(s, "kind"), member_text(s, "name"),
               member_text(s, "summary"));
    json_object_put(s);
    json_object_put(body);
    free(path);
    return code;
}

static enum cli_exit strategy_unload(struct cli *cli, const char *path)
{
    enum cli_exit code = api_call(cli, "DELETE", path, NULL, NULL);
    if (!code && cli->json)
        api_print_json(cli);
    else if (!code)
        printf("%s %s unloaded\n", cli->args[1], cli->args[2]);
    return code;
}

enum cli_exit cmd_strategy(struct cli *cli)
{
    const char *what = cli->args[0];
    bool named = strcmp(what, "show") == 0 || strcmp(what, "unload") == 0;
    enum cli_exit code;
    char *path;
    if (args_flag(cli, "force") && strcmp(what, "load") != 0)
        return cli_usage(cli, "--force belongs to strategy load");
    if (strcmp(what, "list") == 0 && cli->nr_args == 1)
        return strategy_list(cli);
    if (strcmp(what, "load") == 0 && cli->nr_args == 2)
        return strategy_load(cli, cli->args[1]);
    if (!named || cli->nr_args != 3)
        return cli_usage(cli, "strategy: not understood");
    if (strcmp(cli->args[1], "allocator") != 0 && strcmp(cli->args[1], "teardown") != 0)
        return cli_usage(cli, "a strategy's kind is allocator or teardown, not '%s'", cli->args[1]);
    path = api_path2("/v1/strategies/", cli->args[1], cli->args[2]);
    code = what[0] == 's' ? strategy_show(cli, path) : strategy_unload(cli, path);
    free(path);
    return code;
}

enum cli_exit cmd_use(struct cli *cli)
{
    const char *kind = cli->args[0], *vm = args_value(cli, "vm");
    bool allocator = strcmp(kind, "allocator") == 0;
    struct json_object *body, *swap = NULL;
    char pause[UNIT_SIZE], total[UNIT_SIZE], frames[UNIT_SIZE];
    enum cli_exit code;
    char *path;
    if (!allocator && strcmp(kind, "teardown") != 0)
        return cli_usage(cli, "use an allocator or a teardown, not '%s'", kind);
    if (allocator && vm)
        return cli_usage(cli, "the allocator is the whole host's: leave --vm out");
    if (vm && !*vm)
        return cli_usage(cli, "--vm is empty");
    path = vm ? api_vm_path(vm, "/teardown")
              : strdup(allocator ? "/v1/host/allocator" : "/v1/host/teardown");
    body = json_object_new_object();
    json_object_object_add(body, "name", json_object_new_string(cli->args[1]));
    code = api_call(cli, "PUT", path, body, &swap);
    if (!code && cli->json)
        api_print_json(cli);
    else if (!code)
        printf("%s: %s -> %s in %s, stood still for %s", kind,
               *member_text(swap, "from") ? member_text(swap, "from") : "none",
               member_text(swap, "to"), unit_ns(member_u64(swap, "total_ns"), total),
               unit_ns(member_u64(swap, "pause_ns"), pause));
    if (!code && !cli->json && allocator)
        printf("; %s free frames handed over", unit_count(member_u64(swap, "free_frames"), frames));
    if (!code && !cli->json)
        putchar('\n');
    json_object_put(swap);
    json_object_put(body);
    free(path);
    return code;
}

/* ---- heap */

static void frames_field(const char *name, struct json_object *o, const char *member)
{
    char count[UNIT_SIZE], bytes[UNIT_SIZE];
    uint64_t n = member_u64(o, member);
    print_field(name, "%s frames, %s", unit_count(n, count), unit_bytes(n * 4096, bytes));
}

static void count_field(const char *name, struct json_object *o, const char *member)
{
    char count[UNIT_SIZE];
    print_field(name, "%s", unit_count(member_u64(o, member), count));
}

static void print_heap(struct json_object *h)
{
    struct json_object *blocks = member(h, "free_blocks");
    int order = json_object_get_int(member(h, "largest_free_order"));
    const char *allocator = member_text(h, "allocator");
    char a[UNIT_SIZE], b[UNIT_SIZE];
    print_field("allocator", "%s", *allocator ? allocator : "none");
    frames_field("frames", h, "frames");
    frames_field("free", h, "free");
    frames_field("of them cached", h, "cached");
    frames_field("of them dirty", h, "dirty");
    frames_field("guest RAM", h, "used_ram");
    frames_field("tables", h, "used_table");
    frames_field("core", h, "used_core");
    frames_field("retired", h, "retired");
    frames_field("claimed", h, "claimed");
    frames_field("out of use", h, "offline");
    frames_field("soon out of use", h, "offline_waiting");
    print_field("scrub", "%s; %s frames zeroed so far, %s by the host", member_text(h, "scrub"),
                unit_count(member_u64(h, "scrubbed"), a), unit_count(member_u64(h, "punched"), b));
    if (order >= 0 && order < 52)
        print_field("largest free", "%s", unit_bytes(UINT64_C(4096) << order, a));
    print_field("refused frees", "%llu double, %llu order, %llu owner, %llu by the plugin",
                (unsigned long long)member_u64(h, "refused_double"),
                (unsigned long long)member_u64(h, "refused_order"),
                (unsigned long long)member_u64(h, "refused_owner"),
                (unsigned long long)member_u64(h, "refused_plugin"));
    print_field("initialised in", "%s", unit_ns(member_u64(h, "init_ns"), a));
    print_field("swaps", "%s, the last stood still for %s", unit_count(member_u64(h, "swaps"), a),
                unit_ns(member_u64(h, "swap_pause_ns"), b));
    print_field("its own memory", "%s", unit_bytes(member_u64(h, "meta_bytes"), a));
    fputs("\nfree blocks\n", stdout);
    for (size_t i = 0; i < array_length(blocks) && i < 52; i++) {
        uint64_t n = json_object_get_uint64(json_object_array_get_idx(blocks, i));
        if (n)
            printf("%10s  %s\n", unit_bytes(UINT64_C(4096) << i, a), unit_count(n, b));
    }
}

/* The members that must be zero, judged. */
static enum cli_exit print_audit(struct json_object *a)
{
    static const char *const members[] = {"overlaps", "bad_records", "listed_in_use", "lost"};
    static const char *const names[] = {"claimed twice", "bad records", "listed but in use",
                                        "lost"};
    bool good = true;
    frames_field("frames", a, "frames");
    frames_field("free", a, "free");
    frames_field("guest RAM", a, "used_ram");
    frames_field("tables", a, "used_table");
    frames_field("core", a, "used_core");
    frames_field("retired", a, "retired");
    frames_field("out of use", a, "offline");
    frames_field("allocator lists", a, "listed_free");
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        count_field(names[i], a, members[i]);
        good &= member_u64(a, members[i]) == 0;
    }
    puts(good ? "every frame is accounted for" : "THE FRAME TABLE AND THE ALLOCATOR DISAGREE");
    return good ? CLI_OK : CLI_INTERNAL;
}

enum cli_exit cmd_heap(struct cli *cli)
{
    bool audit = cli->nr_args == 1 && strcmp(cli->args[0], "audit") == 0;
    struct json_object *o = NULL;
    enum cli_exit code;
    if (cli->nr_args && !audit)
        return cmd_heap_change(cli);
    code = api_call(cli, "GET", audit ? "/v1/host/heap/audit" : "/v1/host/heap", NULL, &o);
    if (!code && cli->json)
        api_print_json(cli);
    else if (!code && audit)
        code = print_audit(o);
    else if (!code)
        print_heap(o);
    json_object_put(o);
    return code;
}

/* ---- host, version */

static void engine_field(const char *name, struct json_object *engine)
{
    const char *why = member_text(engine, "why");
    bool usable = member_bool(engine, "usable");
    print_field(name, "%s%s%s", usable ? "usable" : "not usable", *why ? ": " : "", why);
}

enum cli_exit cmd_host(struct cli *cli)
{
    struct json_object *h = NULL, *engines, *core;
    enum cli_exit code = api_call(cli, "GET", "/v1/host", NULL, &h);
    char unit[UNIT_SIZE];
    if (code)
        return code;
    if (cli->json) {
        json_object_put(h);
        return api_print_json(cli);
    }
    engines = member(h, "engines");
    core = member(h, "core");
    print_field("version", "%s, ABI %llu", member_text(h, "version"),
                (unsigned long long)member_u64(h, "abi"));
    print_field("memory", "%s", unit_bytes(member_u64(h, "memory"), unit));
    print_field("cpus", "%llu, %llu workers", (unsigned long long)member_u64(h, "cpus"),
                (unsigned long long)member_u64(h, "workers"));
    print_field("up", "%s", unit_ns(member_u64(h, "uptime_ns"), unit));
    print_field("vms", "%llu, %llu of them running", (unsigned long long)member_u64(h, "vms"),
                (unsigned long long)member_u64(h, "vms_running"));
    count_field("vms ever", h, "vms_created");
    count_field("slices run", h, "slices");
    engine_field("engine soft", member(engines, "soft"));
    engine_field("engine kvm", member(engines, "kvm"));
    print_field("allocator", "%s",
                *member_text(h, "allocator") ? member_text(h, "allocator") : "none");
    print_field("teardown", "%s",
                *member_text(h, "teardown_default") ? member_text(h, "teardown_default") : "none");
    print_field("core", "pid %llu, instance %s", (unsigned long long)member_u64(core, "pid"),
                member_text(core, "instance"));
    json_object_put(h);
    return CLI_OK;
}

enum cli_exit cmd_version(struct cli *cli)
{
    struct json_object *v = NULL;
    enum cli_exit code;
    if (!cli->json)
        print_field("hvctl", "%s", MAYFLY_VERSION);
    code = api_call(cli, "GET", "/v1/version", NULL, &v);
    if (!code && cli->json)
        api_print_json(cli);
    else if (!code)
        print_field("hvd", "%s, API %s, hypercall ABI %llu, plugin ABI %llu",
                    member_text(v, "version"), member_text(v, "api"),
                    (unsigned long long)member_u64(v, "abi"),
                    (unsigned long long)member_u64(v, "plugin_abi"));
    json_object_put(v);
    return code;
}
