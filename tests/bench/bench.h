/*
 * hvbench: what its subcommands share.
 */
#ifndef MAYFLY_BENCH_H
#define MAYFLY_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/plugin.h"

/* Subcommands: argv[0] is the subcommand's name. Exit codes: 0, 1 failed, 64 usage. */
int bench_heap_init(int argc, char **argv);
int bench_alloc(int argc, char **argv);
int bench_swap(int argc, char **argv);
int bench_scrub(int argc, char **argv);
int bench_map(int argc, char **argv);
int bench_zap(int argc, char **argv);
int bench_lifecycle(int argc, char **argv);

#define BENCH_USAGE 64

/*
 * Where the strategies are: what bench_set_plugin_dir said, MAYFLY_PLUGIN_PATH, the build tree
 * around this program, the installed directory. Static storage.
 */
const char *bench_plugin_dir(void);
void bench_set_plugin_dir(const char *dir);

#define BENCH_PLUGINS_MAX 32u
struct bench_plugins {
    unsigned n;
    const struct mf_plugin *plugin[BENCH_PLUGINS_MAX];
};
/*
 * Loads all strategies of a kind, in the order of the design's tables, others behind by name.
 * False, with a message, when there is none or one does not load. `only`: NULL or one name.
 */
bool bench_load(struct bench_plugins *out, enum mf_plugin_kind kind, const char *only);

/* "90G", "512M", "4096": bytes; false when it is none or too large. */
bool bench_parse_size(const char *s, uint64_t *out);
bool bench_parse_count(const char *s, unsigned max, unsigned *out);

/* The options that most subcommands have, by their getopt values. */
struct bench_common {
    unsigned repeat;  /* 'r' */
    const char *only; /* 'o': one strategy's name, NULL: all */
    const char *svg;  /* 'g': file for a plot, NULL: none */
    bool json;        /* 'j' */
};
/* Takes the option `c` with optarg; 'p' is the plugin directory. False: none of these, or bad. */
bool bench_common_option(int c, unsigned repeat_max, struct bench_common *b);

/* Sorts `v` and returns its middle. n at least 1. */
uint64_t bench_median(uint64_t *v, unsigned n);
void bench_error(const char *what, const char *detail);

#endif
