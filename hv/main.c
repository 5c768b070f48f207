/* hv, the hypervisor core: options, start, end. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "hv/call/server.h"
#include "hv/host/log.h"
#include "hv/sandbox.h"

#define PLUGINS_MAX  64u
#define KVM_POOL_MAX 4096u

struct options {
    const char *socket, *log_file, *allocator, *teardown;
    const char *plugins[PLUGINS_MAX];
    unsigned nr_plugins;
    uint64_t memory;
    unsigned workers;
    enum mf_engine engine;
    unsigned kvm_pool;
    int ready_fd;
};

static const char usage[] =
    "usage: hv --socket PATH [--memory SIZE] [--workers N] [--ready-fd N] [--log-file FILE]\n"
    "          [--plugin FILE.so ...] [--allocator NAME] [--teardown NAME] [--engine NAME]\n"
    "          [--kvm-pool N] [--foreground]\n"
    "\n"
    "  --socket PATH     where hvd connects\n"
    "  --memory SIZE     machine memory, reserved and not committed: a number with K, M, G or T;\n"
    "                    the host's RAM if not given\n"
    "  --workers N       threads that run guests, one for each CPU if not given\n"
    "  --ready-fd N      a line is written there when the core takes calls\n"
    "  --log-file FILE   log there instead of to standard error\n"
    "  --plugin FILE     load this strategy; may be repeated\n"
    "  --allocator NAME  page allocator to start with, one of the plugins\n"
    "  --teardown NAME   default teardown strategy, one of the plugins\n"
    "  --engine NAME     of VMs that name none: auto (default: kvm where it works), kvm or soft\n"
    "  --kvm-pool N      KVM VMs without a guest that are kept for the next; none if not given\n";

/* A number with an optional K, M, G or T (and iB, B). False: not one, or beyond 64 bits. */
static bool parse_size(const char *s, uint64_t *out)
{
    static const char units[] = "KMGT";
    unsigned long long v;
    unsigned shift = 0;
    const char *unit;
    char *end;

    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    v = strtoull(s, &end, 10);
    if (errno)
        return false;
    unit = *end ? strchr(units, *end & ~0x20) : NULL;
    if (unit && *unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (*end == 'i')
            end++;
    }
    if (*end == 'B' || (shift && *end == 'b'))
        end++;
    if (*end || v > UINT64_MAX >> shift)
        return false;
    *out = (uint64_t)v << shift;
    return true;
}

static bool parse_count(const char *s, unsigned long max, unsigned long *out)
{
    char *end;

    errno = 0;
    *out = strtoul(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && !errno && *out <= max;
}

static bool bad(const char *option, const char *value)
{
    fprintf(stderr, "hv: --%s: '%s' is not possible\n", option, value);
    return false;
}

static bool parse_engine(struct options *o, const char *name)
{
    static const char *const names[] = {
        [MF_ENGINE_AUTO] = "auto", [MF_ENGINE_SOFT] = "soft", [MF_ENGINE_KVM] = "kvm"};

    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            o->engine = (enum mf_engine)i;
            return true;
        }
    return false;
}

static bool parse_one(struct options *o, int c, const char *arg)
{
    unsigned long n = 0;

    switch (c) {
    case 's':
        o->socket = arg;
        return true;
    case 'm':
        return parse_size(arg, &o->memory) && o->memory ? true : bad("memory", arg);
    case 'w':
        if (!parse_count(arg, SCHED_WORKERS_MAX, &n) || !n)
            return bad("workers", arg);
        o->workers = (unsigned)n;
        return true;
    case 'r':
        if (!parse_count(arg, 1 << 20, &n))
            return bad("ready-fd", arg);
        o->ready_fd = (int)n;
        return true;
    case 'l':
        o->log_file = arg;
        return true;
    case 'p':
        if (o->nr_plugins == PLUGINS_MAX)
            return bad("plugin", arg);
        o->plugins[o->nr_plugins++] = arg;
        return true;
    case 'a':
        o->allocator = arg;
        return true;
    case 't':
        o->teardown = arg;
        return true;
    case 'e':
        return parse_engine(o, arg) ? true : bad("engine", arg);
    case 'k':
        if (!parse_count(arg, KVM_POOL_MAX, &n))
            return bad("kvm-pool", arg);
        o->kvm_pool = (unsigned)n;
        return true;
    default:
        return c == 'f';
    }
}

/* -1: go on; else the program's exit code. */
static int parse_options(struct options *o, int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},    {"memory", required_argument, NULL, 'm'},
        {"workers", required_argument, NULL, 'w'},   {"ready-fd", required_argument, NULL, 'r'},
        {"log-file", required_argument, NULL, 'l'},  {"plugin", required_argument, NULL, 'p'},
        {"allocator", required_argument, NULL, 'a'}, {"teardown", required_argument, NULL, 't'},
        {"engine", required_argument, NULL, 'e'},    {"kvm-pool", required_argument, NULL, 'k'},
        {"foreground", no_argument, NULL, 'f'},      {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},         {NULL, 0, NULL, 0}};
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int c;

    memset(o, 0, sizeof *o);
    o->ready_fd = -1;
    o->engine = MF_ENGINE_AUTO;
    if (getenv("MAYFLY_ENGINE") && !parse_engine(o, getenv("MAYFLY_ENGINE"))) {
        bad("engine", getenv("MAYFLY_ENGINE"));
        return 64;
    }
    o->kvm_pool = VM_KVM_POOL;
    o->workers = cpus > 0 && cpus < (long)SCHED_WORKERS_MAX ? (unsigned)cpus : 1;
    o->memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 'h')
            return fputs(usage, stdout) < 0;
        if (c == 'v')
            return printf("hv %s, ABI %u\n", MAYFLY_VERSION, MF_ABI_VERSION) < 0;
        if (!parse_one(o, c, optarg)) {
            fputs(c == '?' ? usage : "", stderr);
            return 64;
        }
    }
    if (optind < argc || !o->socket) {
        fputs(usage, stderr);
        return 64;
    }
    return -1;
}

static bool fail(const struct mf_error *e)
{
    log_line(LOG_ERROR, "%s%s%s", e->field, e->field[0] ? ": " : "", e->text);
    return false;
}

static bool load_strategies(struct core *core, const struct options *o)
{
    struct mf_reply_swap swap;
    struct heap_info info;
    struct mf_error e;

    for (unsigned i = 0; i < o->nr_plugins; i++)
        if (strategies_load_file(&core->strategies, o->plugins[i], &e)) {
            log_line(LOG_ERROR, "plugin %s: %s", o->plugins[i], e.text);
            return false;
        }
    if (o->allocator) {
        if (core_select_allocator(core, o->allocator, &swap, &e))
            return fail(&e);
        heap_get_info(core->heap, &info);
        log_line(LOG_INFO, "heap: %llu frames given to %s in %llu ns",
                 (unsigned long long)info.frames, info.allocator, (unsigned long long)info.init_ns);
    } else {
        log_line(LOG_INFO, "no allocator: guests cannot start until one is loaded and selected");
    }
    return !o->teardown || !core_select_teardown(core, o->teardown, &swap, &e) || fail(&e);
}

/* 2,000 images, plugins and clients are within reach of no default. */
static void raise_limits(void)
{
    struct rlimit r;

    if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

static int block_signals(void)
{
    sigset_t set;

    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    /* Before the workers start: they inherit it, and only the loop sees signals. */
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sigdelset(&set, SIGHUP);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void tell_ready(int fd)
{
    static const char line[] = "ready\n";

    if (fd < 0)
        return;
    if (write(fd, line, sizeof line - 1) < 0)
        log_line(LOG_WARNING, "--ready-fd %d: %s", fd, strerror(errno));
    close(fd);
}

static bool serve(struct core *core, const struct options *o, int signals)
{
    struct server server;
    struct mf_error e;

    if (server_init(&server, core, o->socket, &e))
        return fail(&e);
    if (!load_strategies(core, o)) {
        server_fini(&server);
        return false;
    }
    if (!sandbox_enter())
        log_line(LOG_WARNING, "the host offers no system call filter: %s", strerror(errno));
    log_line(LOG_INFO, "ready: %llu MiB of machine memory, %u workers, socket %s",
             (unsigned long long)(o->memory >> 20), o->workers, o->socket);
    tell_ready(o->ready_fd);
    server_run(&server, signals);
    core_destroy_all(core);
    server_fini(&server);
    return true;
}

int main(int argc, char **argv)
{
    static struct core core;
    struct options o;
    struct mf_error e;
    int code = parse_options(&o, argc, argv), signals;
    const char *why;
    bool ok;

    if (code >= 0)
        return code;
    if (o.log_file && !log_open(o.log_file)) {
        fprintf(stderr, "hv: %s: %s\n", o.log_file, strerror(errno));
        return 1;
    }
    raise_limits();
    signals = block_signals();
    o.memory &= ~(uint64_t)(MF_PAGE_SIZE - 1);
    if (!core_init(&core, o.memory, o.workers, &e)) {
        fail(&e);
        return 1;
    }
    vmm_set_engine(&core.vmm, o.engine, o.kvm_pool);
    /* Opened here, before the sandbox. */
    if (engine_kvm()->probe(&why) || *why)
        log_line(o.engine == MF_ENGINE_KVM ? LOG_WARNING : LOG_INFO, "engine kvm: %s", why);
    ok = serve(&core, &o, signals);
    core_fini(&core);
    if (signals >= 0)
        close(signals);
    if (ok)
        log_line(LOG_INFO, "ended");
    return ok ? 0 : 1;
}
