/*
 * bench hello: the lives of many VMs, one behind the other, each a POST /v1/run on one kept-alive
 * connection. The object has the shape of hvbench's lifecycle; its phases come from the core's
 * reports.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/hvctl.h"

/* What is kept of each run. CORE is the sum of the parts that the core works for. */
enum { WHOLE, CORE, CREATE, START, RUN, UNREACHABLE, RETURNED, NR_PARTS };

static const char *const part_names[NR_PARTS] = {"whole", "core",        "create",  "start",
                                                 "run",   "unreachable", "returned"};

struct samples {
    uint64_t n, done;
    uint64_t total_ns;
    uint64_t *ns[NR_PARTS];
};

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static bool samples_init(struct samples *s, uint64_t n)
{
    memset(s, 0, sizeof *s);
    s->n = n;
    for (unsigned p = 0; p < NR_PARTS; p++)
        s->ns[p] = calloc(n, sizeof *s->ns[p]);
    for (unsigned p = 0; p < NR_PARTS; p++)
        if (!s->ns[p])
            return false;
    return true;
}

static void samples_fini(struct samples *s)
{
    for (unsigned p = 0; p < NR_PARTS; p++)
        free(s->ns[p]);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The value that `percent` of the sorted samples do not exceed (nearest rank). */
static uint64_t percentile(const uint64_t *sorted, uint64_t n, unsigned percent)
{
    uint64_t rank = (n * percent + 99) / 100;
    return sorted[rank ? rank - 1 : 0];
}

static void note_report(struct samples *s, struct json_object *r)
{
    uint64_t i = s->done;
    s->ns[CREATE][i] = member_u64(r, "create_ns");
    s->ns[START][i] = member_u64(r, "start_ns");
    s->ns[RUN][i] = member_u64(r, "run_ns");
    s->ns[UNREACHABLE][i] = member_u64(r, "unreachable_ns");
    s->ns[RETURNED][i] = member_u64(r, "returned_ns");
    s->ns[CORE][i] = s->ns[CREATE][i] + s->ns[START][i] + s->ns[RUN][i] + s->ns[RETURNED][i];
}

/* Runs all; the last answer in *last, to be put. */
static enum cli_exit run_all(struct cli *cli, struct json_object *body, struct samples *s,
                             struct json_object **last)
{
    uint64_t first = now_ns();
    for (; s->done < s->n; s->done++) {
        uint64_t before = now_ns();
        enum cli_exit code;
        json_object_put(*last);
        *last = NULL;
        code = api_call(cli, "POST", "/v1/run", body, last);
        s->ns[WHOLE][s->done] = now_ns() - before;
        if (code)
            return code;
        code = end_exit_code(member(*last, "end"));
        if (code) {
            cli_error("VM %llu did not end well: %s", (unsigned long long)s->done + 1,
                      member_text(member(*last, "end"), "text"));
            return code;
        }
        note_report(s, member(*last, "report"));
    }
    s->total_ns = now_ns() - first;
    return CLI_OK;
}

static void add_u64(struct json_object *o, const char *key, uint64_t v)
{
    json_object_object_add(o, key, json_object_new_uint64(v));
}

/* Median, 99th percentile and the longest of one part. */
static void add_part(struct json_object *to, struct samples *s, unsigned part)
{
    qsort(s->ns[part], s->n, sizeof *s->ns[part], by_size);
    add_u64(to, "p50_ns", percentile(s->ns[part], s->n, 50));
    add_u64(to, "p99_ns", percentile(s->ns[part], s->n, 99));
    add_u64(to, "max_ns", percentile(s->ns[part], s->n, 100));
}

static struct json_object *phases_of(struct samples *s)
{
    struct json_object *phases = json_object_new_object();
    for (unsigned p = WHOLE + 1; p < NR_PARTS; p++) {
        struct json_object *phase = json_object_new_object();
        add_part(phase, s, p);
        json_object_object_add(phases, part_names[p], phase);
    }
    return phases;
}

/* One row of the result, NULL with *code when a run failed. */
static struct json_object *bench_row(struct cli *cli, struct json_object *body, uint64_t n,
                                     enum cli_exit *code)
{
    static const char *const counts[] = {"loops", "entries_removed", "tables_freed",
                                         "frames_returned", "instructions"};
    struct json_object *row = NULL, *last = NULL, *report;
    struct samples s;
    *code = CLI_INTERNAL;
    if (!samples_init(&s, n)) {
        cli_error("out of memory for %llu samples", (unsigned long long)n);
        goto out;
    }
    *code = run_all(cli, body, &s, &last);
    if (*code)
        goto out;
    report = member(last, "report");
    row = json_object_new_object();
    json_object_object_add(row, "strategy",
                           json_object_new_string(member_text(report, "teardown")));
    add_u64(row, "n", n);
    add_u64(row, "total_ns", s.total_ns);
    add_part(row, &s, WHOLE);
    json_object_object_add(row, "phases", phases_of(&s));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        add_u64(row, counts[i], member_u64(report, counts[i]));
    json_object_object_add(row, "loops_per_pass",
                           json_object_get(member(report, "loops_per_pass")));
out:
    json_object_put(last);
    samples_fini(&s);
    return row;
}

/* The rows: one, or one for each loaded teardown strategy. */
static enum cli_exit bench_rows(struct cli *cli, struct json_object *body, uint64_t n,
                                struct json_object *rows)
{
    struct json_object *answer = NULL, *list;
    enum cli_exit code;
    struct json_object *row;
    if (!args_flag(cli, "each")) {
        row = bench_row(cli, body, n, &code);
        if (row)
            json_object_array_add(rows, row);
        return code;
    }
    code = api_call(cli, "GET", "/v1/strategies", NULL, &answer);
    list = member(answer, "strategies");
    for (size_t i = 0; !code && i < array_length(list); i++) {
        struct json_object *s = json_object_array_get_idx(list, i);
        if (strcmp(member_text(s, "kind"), "teardown") != 0)
            continue;
        json_object_object_add(body, "teardown", json_object_new_string(member_text(s, "name")));
        row = bench_row(cli, body, n, &code);
        if (row)
            json_object_array_add(rows, row);
    }
    json_object_put(answer);
    return code;
}

static struct json_object *conditions(struct cli *cli, struct json_object *body,
                                      enum cli_exit *code)
{
    struct json_object *host = NULL, *c;
    const char *engine = args_value(cli, "engine"), *memory = args_value(cli, "memory");
    *code = api_call(cli, "GET", "/v1/host", NULL, &host);
    if (*code)
        return NULL;
    c = json_object_new_object();
    json_object_object_add(c, "version", json_object_new_string(member_text(host, "version")));
    json_object_object_add(c, "guest", json_object_new_string(member_text(body, "kernel")));
    json_object_object_add(c, "memory", json_object_new_string(memory ? memory : "16M"));
    json_object_object_add(c, "engine", json_object_new_string(engine ? engine : "auto"));
    json_object_object_add(c, "allocator", json_object_new_string(member_text(host, "allocator")));
    json_object_object_add(c, "path", json_object_new_string("REST, one kept-alive connection"));
    add_u64(c, "cpus", member_u64(host, "cpus"));
    add_u64(c, "workers", member_u64(host, "workers"));
    json_object_put(host);
    return c;
}

static void print_rows(struct json_object *rows)
{
    static const char *const heads[] = {"STRATEGY",  ">VMS",   ">P50",     ">P99",
                                        ">MAX",      ">TOTAL", ">IN CORE", ">IN CORE P99",
                                        ">RETURNED", ">LOOPS"};
    static const char *const times[] = {"p50_ns", "p99_ns", "max_ns", "total_ns"};
    struct table t;
    char unit[UNIT_SIZE];
    table_init(&t, heads, 10);
    for (size_t i = 0; i < array_length(rows); i++) {
        struct json_object *row = json_object_array_get_idx(rows, i);
        struct json_object *phases = member(row, "phases");
        table_cell(&t, "%s", member_text(row, "strategy"));
        table_cell(&t, "%s", unit_count(member_u64(row, "n"), unit));
        for (size_t k = 0; k < sizeof times / sizeof times[0]; k++)
            table_cell(&t, "%s", unit_ns(member_u64(row, times[k]), unit));
        table_cell(&t, "%s", unit_ns(member_u64(member(phases, "core"), "p50_ns"), unit));
        table_cell(&t, "%s", unit_ns(member_u64(member(phases, "core"), "p99_ns"), unit));
        table_cell(&t, "%s", unit_ns(member_u64(member(phases, "returned"), "p50_ns"), unit));
        table_cell(&t, "%s", unit_count(member_u64(row, "loops"), unit));
    }
    table_print(&t);
    table_fini(&t);
}

enum cli_exit cmd_bench(struct cli *cli)
{
    struct json_object *body = NULL, *result, *rows;
    enum cli_exit code;
    uint64_t n;
    if (strcmp(cli->args[0], "hello") != 0)
        return cli_usage(cli, "there is no benchmark '%s', only hello", cli->args[0]);
    if (args_flag(cli, "each") && args_value(cli, "teardown"))
        return cli_usage(cli, "--each runs every teardown strategy: leave --teardown out");
    if (!args_number(cli, "number", 1, 10000000, 1000, &n))
        return CLI_USAGE;
    code = hello_request(cli, &body);
    if (code)
        return code;
    result = json_object_new_object();
    rows = json_object_new_array();
    json_object_object_add(result, "bench", json_object_new_string("hello"));
    json_object_object_add(result, "conditions", conditions(cli, body, &code));
    json_object_object_add(result, "rows", rows);
    if (!code)
        code = bench_rows(cli, body, n, rows);
    if (!code && (cli->json || args_flag(cli, "json")))
        puts(json_object_to_json_string_ext(result, JSON_C_TO_STRING_PLAIN));
    else if (!code)
        print_rows(rows);
    json_object_put(result);
    json_object_put(body);
    return code;
}
