/*
 * Finding strategies, reading sizes, medians.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/bench.h"

static char plugin_dir[PATH_MAX];

void bench_error(const char *what, const char *detail)
{
    fprintf(stderr, "hvbench: %s%s%s\n", what, detail ? ": " : "", detail ? detail : "");
}

void bench_set_plugin_dir(const char *dir)
{
    snprintf(plugin_dir, sizeof plugin_dir, "%s", dir);
}

/* The build tree: this program is <build>/tests/bench/hvbench. */
static bool from_build_tree(void)
{
    char exe[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash;

    if (n <= 0)
        return false;
    exe[n] = '\0';
    slash = strrchr(exe, '/');
    if (!slash || (size_t)snprintf(plugin_dir, sizeof plugin_dir, "%.*s/../../plugins",
                                   (int)(slash - exe), exe) >= sizeof plugin_dir)
        return false;
    return !access(plugin_dir, R_OK | X_OK);
}

const char *bench_plugin_dir(void)
{
    const char *path = getenv("MAYFLY_PLUGIN_PATH");

    if (plugin_dir[0])
        return plugin_dir;
    if (path && *path)
        snprintf(plugin_dir, sizeof plugin_dir, "%.*s", (int)strcspn(path, ":"), path);
    else if (!from_build_tree())
        snprintf(plugin_dir, sizeof plugin_dir, "%s", MAYFLY_PLUGIN_DIR);
    return plugin_dir;
}

/* Place in the output: the design's order, others behind. */
static int rank(const char *name)
{
    static const char *const order[] = {"buddy-page", "buddy-chunk", "buddy-lazy", "bitmap",
                                        "scan",       "skip",        "present",    "single",
                                        "tracked",    "deferred",    "arena"};

    for (int i = 0; i < (int)(sizeof order / sizeof order[0]); i++)
        if (!strcmp(order[i], name))
            return i;
    return INT_MAX;
}

static int by_rank(const void *a, const void *b)
{
    const struct mf_plugin *x = *(const struct mf_plugin *const *)a;
    const struct mf_plugin *y = *(const struct mf_plugin *const *)b;

    if (rank(x->name) != rank(y->name))
        return rank(x->name) < rank(y->name) ? -1 : 1;
    return strcmp(x->name, y->name);
}

static const struct mf_plugin *load(const char *file)
{
    const struct mf_plugin *p;
    char path[PATH_MAX + NAME_MAX + 2];
    void *so;

    snprintf(path, sizeof path, "%s/%s", bench_plugin_dir(), file);
    so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    p = so ? dlsym(so, MF_PLUGIN_SYMBOL) : NULL;
    if (!p || p->abi != MF_PLUGIN_ABI) {
        bench_error("the strategy does not load", p ? path : dlerror());
        return NULL;
    }
    return p;
}

static bool is_wanted(const char *file, const char *prefix, const char *only)
{
    size_t len = strlen(file), skip = strlen(prefix);

    if (strncmp(file, prefix, skip) || len < skip + 4 || strcmp(file + len - 3, ".so"))
        return false;
    return !only || (strlen(only) == len - skip - 3 && !strncmp(file + skip, only, len - skip - 3));
}

bool bench_load(struct bench_plugins *out, enum mf_plugin_kind kind, const char *only)
{
    const char *prefix = kind == MF_PLUGIN_ALLOCATOR ? "allocator_" : "teardown_";
    DIR *d = opendir(bench_plugin_dir());
    struct dirent *e;
    bool ok = true;

    out->n = 0;
    if (!d) {
        bench_error(bench_plugin_dir(), strerror(errno));
        return false;
    }
    while (ok && (e = readdir(d)) && out->n < BENCH_PLUGINS_MAX) {
        if (!is_wanted(e->d_name, prefix, only))
            continue;
        out->plugin[out->n] = load(e->d_name);
        ok = out->plugin[out->n++] != NULL;
    }
    closedir(d);
    if (ok && !out->n) {
        bench_error("no such strategy in", bench_plugin_dir());
        ok = false;
    }
    if (ok)
        qsort(out->plugin, out->n, sizeof out->plugin[0], by_rank);
    return ok;
}

bool bench_parse_size(const char *s, uint64_t *out)
{
    static const char units[] = "KMGT";
    unsigned long long v;
    unsigned shift = 0;
    const char *u;
    char *end;

    errno = 0;
    v = strtoull(s, &end, 10);
    if (errno || end == s || *s == '-' || *s == '+')
        return false;
    if (*end && (u = strchr(units, *end))) {
        shift = 10 * (unsigned)(u - units + 1);
        end++;
        if (!strcmp(end, "iB"))
            end += 2;
    }
    if (*end || !v || v > UINT64_MAX >> shift)
        return false;
    *out = (uint64_t)v << shift;
    return true;
}

bool bench_parse_count(const char *s, unsigned max, unsigned *out)
{
    unsigned long v;
    char *end;

    errno = 0;
    v = strtoul(s, &end, 10);
    if (errno || end == s || *end || *s == '-' || !v || v > max)
        return false;
    *out = (unsigned)v;
    return true;
}

bool bench_common_option(int c, unsigned repeat_max, struct bench_common *b)
{
    switch (c) {
    case 'r':
        return bench_parse_count(optarg, repeat_max, &b->repeat);
    case 'o':
        b->only = optarg;
        return true;
    case 'g':
        b->svg = optarg;
        return true;
    case 'p':
        bench_set_plugin_dir(optarg);
        return true;
    case 'j':
        b->json = true;
        return true;
    default:
        return false;
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t bench_median(uint64_t *v, unsigned n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}
