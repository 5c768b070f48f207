#include "daemon/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/def.h"
#include "daemon/parse.h"
#include "daemon/paths.h"

#define MEMORY_ALIGN 4096u
#define MEMORY_UNIT  (UINT64_C(1) << 21) /* the default is a multiple of this */

const char options_usage[] =
    "usage: hvd [options]\n"
    "The control daemon of the Mayfly hypervisor: a REST API on a Unix socket.\n\n"
    "  --socket PATH       where to listen (default: hvd.sock in the runtime directory)\n"
    "  --hv-socket PATH    the core's socket (default: hv.sock beside it)\n"
    "  --memory SIZE       machine memory of a core that is started (default: the host's RAM)\n"
    "  --allocator NAME    for a core that has none (default: buddy-lazy)\n"
    "  --teardown NAME     default for new VMs of such a core (default: single)\n"
    "  --engine NAME       of VMs that name none, for a core that is started: auto, kvm or soft\n"
    "  --plugin-check HOW  what is done about a plugin that breaks a rule: enforce (default)\n"
    "                      refuses it, warn loads it with a message, off does not check\n"
    "  --idle-exit SECONDS end when nobody is connected and no VM is there for so long\n"
    "  --foreground        stay in the foreground, which is what it does anyway\n"
    "  --verbose           log more\n"
    "  --help, --version\n\n"
    "The same names without dashes are settings in hvd.conf: one `name = value` a line.\n"
    "SIGHUP looks for new plugins, SIGTERM ends the daemon; VMs go on.\n";

static enum mf_status set_text(char **to, const char *value, struct problem *p)
{
    free(*to);
    *to = strdup(value);
    return *to == NULL ? problem_nomem(p) : MF_OK;
}

/* Relative to where we are now: the daemon and the core may look from elsewhere. */
static enum mf_status set_path(char **to, const char *value, struct problem *p)
{
    char *cwd = value[0] == '/' ? NULL : getcwd(NULL, 0);

    if (value[0] == '\0')
        return problem_set(p, MF_E_RANGE, NULL, "a path is empty");
    if (value[0] == '/')
        return set_text(to, value, p);
    free(*to);
    *to = cwd == NULL ? NULL : path_join(cwd, value);
    free(cwd);
    return *to == NULL ? problem_nomem(p) : MF_OK;
}

static enum mf_status set_strategy(char **to, const char *name, const char *value,
                                   struct problem *p)
{
    const char *why = parse_strategy_name(value);

    if (why != NULL)
        return problem_set(p, MF_E_NAME, name, "%s: the name %s", name, why);
    return set_text(to, value, p);
}

static enum mf_status set_check(struct options *o, const char *value, struct problem *p)
{
    static const char *const words[] = {"enforce", "warn", "off"};

    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcmp(value, words[i]) == 0) {
            o->plugin_check = (enum check_mode)i;
            return MF_OK;
        }
    return problem_set(p, MF_E_RANGE, "plugin-check",
                       "plugin-check \"%.40s\": possible are enforce, warn and off", value);
}

/* One setting. `name` as on the command line without dashes. */
static enum mf_status set_one(struct options *o, const char *name, const char *value,
                              struct problem *p)
{
    if (strcmp(name, "socket") == 0)
        return set_path(&o->socket, value, p);
    if (strcmp(name, "hv-socket") == 0)
        return set_path(&o->hv_socket, value, p);
    if (strcmp(name, "allocator") == 0)
        return set_strategy(&o->allocator, name, value, p);
    if (strcmp(name, "teardown") == 0)
        return set_strategy(&o->teardown, name, value, p);
    if (strcmp(name, "engine") == 0) {
        enum mf_engine engine;

        if (!def_engine_parse(value, &engine))
            return problem_set(p, MF_E_RANGE, name,
                               "engine \"%.40s\": possible are auto, kvm and soft", value);
        return set_text(&o->engine, value, p);
    }
    if (strcmp(name, "plugin-check") == 0)
        return set_check(o, value, p);
    if (strcmp(name, "memory") == 0) {
        if (parse_size(value, &o->memory) != MF_OK || o->memory == 0 ||
            o->memory % MEMORY_ALIGN != 0)
            return problem_set(p, MF_E_RANGE, name,
                               "memory \"%.40s\": not a size, a multiple of "
                               "4 KiB, such as 64M",
                               value);
        return MF_OK;
    }
    if (strcmp(name, "idle-exit") == 0) {
        if (parse_u64(value, &o->idle_exit) != MF_OK || o->idle_exit > 31536000)
            return problem_set(p, MF_E_RANGE, name, "idle-exit \"%.40s\": not a number of seconds",
                               value);
        return MF_OK;
    }
    return problem_set(p, MF_E_MALFORMED, name, "there is no setting %.60s", name);
}

/* ---- hvd.conf */

static char *trim(char *s)
{
    s += strspn(s, " \t\r\n");
    size_t n = strlen(s);
    while (n > 0 && strchr(" \t\r\n", s[n - 1]) != NULL)
        s[--n] = '\0';
    return s;
}

static enum mf_status read_line(struct options *o, const char *file, int nr, char *line,
                                struct problem *p)
{
    struct problem why = {0};
    char *s = trim(line);
    char *eq = strchr(s, '=');

    if (s[0] == '\0' || s[0] == '#')
        return MF_OK;
    if (eq == NULL)
        return problem_set(p, MF_E_MALFORMED, NULL, "%s line %d: not of the form name = value",
                           file, nr);
    *eq = '\0';
    if (set_one(o, trim(s), trim(eq + 1), &why) != MF_OK)
        problem_set(p, why.status, why.field, "%.120s line %d: %.160s", file, nr, why.detail);
    return p->status;
}

static enum mf_status read_file(struct options *o, struct problem *p)
{
    char *dir = path_config_dir();
    char *file = dir == NULL ? NULL : path_join(dir, "hvd.conf");
    FILE *f = file == NULL ? NULL : fopen(file, "re");
    char line[4352];

    if (f == NULL && file != NULL && errno != ENOENT && errno != ENOTDIR)
        problem_set(p, MF_E_IO, NULL, "%s cannot be read: %s", file, strerror(errno));
    for (int nr = 1; f != NULL && p->status == MF_OK && fgets(line, sizeof line, f) != NULL; nr++)
        read_line(o, file, nr, line, p);
    if (f != NULL)
        fclose(f);
    free(file);
    free(dir);
    return p->status;
}

/* ---- command line */

static enum mf_status read_arguments(struct options *o, int argc, char **argv, struct problem *p)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 1},
        {"hv-socket", required_argument, NULL, 1},
        {"memory", required_argument, NULL, 1},
        {"allocator", required_argument, NULL, 1},
        {"teardown", required_argument, NULL, 1},
        {"engine", required_argument, NULL, 1},
        {"plugin-check", required_argument, NULL, 1},
        {"idle-exit", required_argument, NULL, 1},
        {"foreground", no_argument, NULL, 'f'},
        {"verbose", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
        {NULL, 0, NULL, 0},
    };
    int at;
    int c;

    optind = 1;
    opterr = 0;
    while ((c = getopt_long(argc, argv, "", options, &at)) != -1) {
        switch (c) {
        case 1:
            if (set_one(o, options[at].name, optarg, p) != MF_OK)
                return p->status;
            break;
        case 'f':
            break;
        case 'v':
            o->verbose = true;
            break;
        case 'h':
            o->help = true;
            break;
        case 'V':
            o->version = true;
            break;
        default:
            return problem_set(p, MF_E_MALFORMED, NULL,
                               "%.80s: not an option, or without its value", argv[optind - 1]);
        }
    }
    if (optind < argc)
        return problem_set(p, MF_E_MALFORMED, NULL, "%.80s: no argument is expected", argv[optind]);
    return MF_OK;
}

/* ---- defaults */

static uint64_t host_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long size = sysconf(_SC_PAGESIZE);

    if (pages <= 0 || size <= 0)
        return UINT64_C(1) << 30;
    uint64_t bytes = (uint64_t)pages * (uint64_t)size;
    return bytes < MEMORY_UNIT ? MEMORY_UNIT : bytes - bytes % MEMORY_UNIT;
}

static enum mf_status default_path(char **to, const char *dir, const char *name, struct problem *p)
{
    if (*to != NULL)
        return MF_OK;
    *to = path_join(dir, name);
    return *to == NULL ? problem_nomem(p) : MF_OK;
}

static enum mf_status fill_in(struct options *o, struct problem *p)
{
    char *state = path_state_dir();
    char *given = path_runtime_dir();
    char *run = NULL;

    if (state == NULL)
        problem_set(p, MF_E_IO, NULL, "no directory for definitions: set HOME or MAYFLY_STATE_DIR");
    else if (given == NULL)
        problem_nomem(p);
    else if (set_path(&run, given, p) == MF_OK && path_make_private(run, p) == MF_OK &&
             default_path(&o->socket, run, "hvd.sock", p) == MF_OK &&
             default_path(&o->hv_socket, run, "hv.sock", p) == MF_OK &&
             default_path(&o->hv_log, run, "hv.log", p) == MF_OK &&
             default_path(&o->vms_dir, state, "vms", p) == MF_OK)
        default_path(&o->verdicts, state, "plugin-verdicts", p);
    if (p->status == MF_OK && o->allocator == NULL)
        set_text(&o->allocator, "buddy-lazy", p);
    if (p->status == MF_OK && o->teardown == NULL)
        set_text(&o->teardown, "single", p);
    if (o->memory == 0)
        o->memory = host_memory();
    free(run);
    free(given);
    free(state);
    return p->status;
}

enum mf_status options_init(struct options *o, int argc, char **argv, struct problem *p)
{
    *o = (struct options){0};
    if (read_file(o, p) != MF_OK || read_arguments(o, argc, argv, p) != MF_OK)
        return p->status;
    return o->help || o->version ? MF_OK : fill_in(o, p);
}

void options_fini(struct options *o)
{
    free(o->socket);
    free(o->hv_socket);
    free(o->hv_log);
    free(o->vms_dir);
    free(o->verdicts);
    free(o->allocator);
    free(o->teardown);
    free(o->engine);
    *o = (struct options){0};
}
