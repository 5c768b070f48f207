/*
 * hvctl: a command line client of the REST API. One process does one command; what it holds lives
 * until it ends, unless said otherwise.
 */
#ifndef MAYFLY_CLI_HVCTL_H
#define MAYFLY_CLI_HVCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <json-c/json.h>

#include "cli/http.h"

/* How the process ends; 1 to 63 are a guest's own exit codes. */
enum cli_exit {
    CLI_OK = 0,
    CLI_GUEST_MAX = 63,
    CLI_USAGE = 64,
    CLI_REJECTED = 65,    /* the daemon refused the request */
    CLI_UNAVAILABLE = 69, /* no daemon, or it has no core */
    CLI_INTERNAL = 70,
    CLI_CRASHED = 71,   /* the guest crashed */
    CLI_DESTROYED = 72, /* the guest was ended by force */
    CLI_TIMEOUT = 73,
};

#define CLI_OPTIONS_MAX 32u
#define CLI_ARGS_MAX    256u

struct cli_option {
    const char *name; /* without the dashes */
    char letter;      /* 0: none */
    const char *arg;  /* name of its value, NULL for a flag */
    const char *text;
};

struct cli;

struct cli_command {
    const char *name;
    const char *args; /* as shown in the synopsis */
    const char *text;
    const struct cli_option *options; /* ends with a NULL name; may be NULL */
    unsigned args_min, args_max;
    bool takes_rest; /* words behind "--" */
    enum cli_exit (*run)(struct cli *cli);
};

struct cli {
    const struct cli_command *command;
    unsigned nr_values, nr_args;
    struct cli_value {
        const struct cli_option *option;
        const char *value; /* NULL for a flag */
    } values[CLI_OPTIONS_MAX];
    const char *args[CLI_ARGS_MAX];
    const char *const *rest; /* words behind "--", NULL-terminated; NULL when there was none */
    bool json;
    bool may_start;
    struct http http;
    struct http_reply reply; /* of the last api_* call */
};

/* ---- args.c */

/* Fills `cli` from the command line. A message on stderr and CLI_USAGE when it is wrong. */
enum cli_exit args_parse(struct cli *cli, int argc, char *const argv[]);
/* The last value of option `name`, NULL when it was not given. */
const char *args_value(const struct cli *cli, const char *name);
bool args_flag(const struct cli *cli, const char *name);
/* An unsigned number given to option `name` in [min, max], or `otherwise`. False after a message.
 */
bool args_number(const struct cli *cli, const char *name, uint64_t min, uint64_t max,
                 uint64_t otherwise, uint64_t *v);
/* A duration of 1 ms to 24 h, like 500ms, 1.5s, 2m or a bare number of seconds. */
bool args_duration(const struct cli *cli, const char *name, uint64_t otherwise_ms, uint64_t *ms);
bool parse_number(const char *text, uint64_t max, uint64_t *v);
bool parse_duration_ms(const char *text, uint64_t *ms);
/* Prints "hvctl: ..." on stderr, and for usage errors where to read on; returns CLI_USAGE. */
enum cli_exit cli_usage(const struct cli *cli, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void cli_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A line on stderr that is no error. */
void cli_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- commands.c */

extern const struct cli_command cli_commands[]; /* ends with a NULL name */
extern const struct cli_option cli_global_options[];
const struct cli_command *command_find(const char *name);
enum cli_exit cmd_help(struct cli *cli);
enum cli_exit cmd_completion(struct cli *cli);

/* ---- daemon.c */

/* Directory of the sockets, by environment and user. False after a message. */
bool daemon_runtime_dir(char *path, size_t size);
/* Starts hvd and waits until its socket answers, for a bounded time. */
enum cli_exit daemon_start(const char *socket_path);
/* Whether somebody listens there; waits while the queue of connections is full. */
bool daemon_answers(const char *socket_path);
/*
 * Path of the program `name`: as the variable `env` says, beside this one, in `near` relative to
 * it, or its bare name for a search in PATH.
 */
void program_path(const char *name, const char *env, const char *near, char *path, size_t size);
/* Path of one of our guests. False after a message when it is nowhere. */
bool guest_path(const char *file, char *path, size_t size);

/* ---- api.c: requests with everything around them */

/*
 * Sends `body` (may be NULL; not taken over) and reads the answer into cli->reply; *out (may be
 * NULL) gets it parsed, to be put by the caller. A refusal is reported and becomes the exit code.
 */
enum cli_exit api_call(struct cli *cli, const char *method, const char *path,
                       struct json_object *body, struct json_object **out);
/* The same with a body that is sent as it is. */
enum cli_exit api_send(struct cli *cli, const struct http_request *request,
                       struct json_object **out);
/* A stream: `sink` gets the bytes of a good answer as they come. */
enum cli_exit api_stream(struct cli *cli, const char *path, const char *accept, http_sink sink,
                         void *arg);
/* Reports an answer of 400 or more, or the lack of one. */
enum cli_exit api_failure(struct cli *cli, enum http_result result);
/* "/v1/vms/NAME" + tail, percent-encoded, to be freed; NULL without memory. */
char *api_vm_path(const char *vm, const char *tail);
/* A path of two encoded parts: prefix + a + "/" + b. */
char *api_path2(const char *prefix, const char *a, const char *b);
/* Prints the last answer as it came. */
enum cli_exit api_print_json(struct cli *cli);
/* The exit code that an "end" object stands for. */
enum cli_exit end_exit_code(struct json_object *end);

/* Members of an object, with something harmless where they are missing. */
const char *member_text(struct json_object *o, const char *key);
uint64_t member_u64(struct json_object *o, const char *key);
bool member_bool(struct json_object *o, const char *key);
struct json_object *member(struct json_object *o, const char *key);
/* Length of an array, 0 for anything else. */
size_t array_length(struct json_object *a);

/* ---- print.c */

#define TABLE_COLUMNS_MAX 12u

struct table {
    unsigned columns, nr_cells, room;
    const char *heads[TABLE_COLUMNS_MAX];
    bool right[TABLE_COLUMNS_MAX];
    char **cells; /* row by row, owned */
};

/* `heads` of static storage; the cells below one that begins with '>' are aligned to the right. */
void table_init(struct table *t, const char *const *heads, unsigned columns);
void table_fini(struct table *t);
/* The next cell, row by row; control characters are replaced. */
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_print(struct table *t);

#define UNIT_SIZE 32u
/* "1.23 µs", "16 MiB", "1,234"; each writes into `out` of UNIT_SIZE bytes and returns it. */
const char *unit_ns(uint64_t ns, char *out);
const char *unit_bytes(uint64_t bytes, char *out);
const char *unit_count(uint64_t n, char *out);
/* Replaces control characters: a text from elsewhere must not steer the terminal. */
void clean_text(char *text);
/* A text that came from elsewhere on one line of the terminal. */
void print_clean(const char *text);
/* "  name   value" lines of show-like commands. */
void print_field(const char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- definition.c */

/* A definition from options; CLI_USAGE when a value is no number. *out to be put. */
enum cli_exit definition_from_options(struct cli *cli, const char *kernel,
                                      struct json_object **out);
/* `path` made absolute, to be freed. */
char *absolute_path(const char *path);

/* ---- cmd_run.c */
enum cli_exit cmd_hello(struct cli *cli);
enum cli_exit cmd_run(struct cli *cli);
/* The request that runs a hello guest by the options form, memory, engine and teardown. */
enum cli_exit hello_request(struct cli *cli, struct json_object **out);

/* ---- cmd_vm.c */
enum cli_exit cmd_define(struct cli *cli);
enum cli_exit cmd_list(struct cli *cli);
enum cli_exit cmd_show(struct cli *cli);
enum cli_exit cmd_action(struct cli *cli); /* start, pause, resume, reset, shutdown, destroy */
enum cli_exit cmd_delete(struct cli *cli);
enum cli_exit cmd_stats(struct cli *cli);
enum cli_exit cmd_dumpxml(struct cli *cli);

/* ---- cmd_memory.c */
enum cli_exit cmd_balloon(struct cli *cli);
enum cli_exit cmd_dirty(struct cli *cli);
/* heap scrub, offline, online */
enum cli_exit cmd_heap_change(struct cli *cli);

/* ---- cmd_console.c */
enum cli_exit cmd_console(struct cli *cli);
/* Attaches this terminal to the VM's console until ^] or the VM's end. */
enum cli_exit console_attach(struct cli *cli, const char *vm, uint64_t offset);

/* ---- cmd_host.c */
enum cli_exit cmd_events(struct cli *cli);
enum cli_exit cmd_strategy(struct cli *cli);
enum cli_exit cmd_use(struct cli *cli);
enum cli_exit cmd_heap(struct cli *cli);
enum cli_exit cmd_host(struct cli *cli);
enum cli_exit cmd_version(struct cli *cli);

/* ---- cmd_plugin.c */
enum cli_exit cmd_plugin(struct cli *cli);

/* ---- cmd_bench.c */
enum cli_exit cmd_bench(struct cli *cli);

#endif
