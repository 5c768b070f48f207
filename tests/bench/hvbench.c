/*
 * hvbench: measures the core's parts. Numbers, never a verdict.
 */
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *text;
} subcommands[] = {
    {"heap-init", bench_heap_init, "time from an empty heap to all frames given"},
    {"alloc", bench_alloc, "an allocation and a free"},
    {"swap", bench_swap, "an allocator taking over from another"},
    {"scrub", bench_scrub, "keeping one owner's data from the next"},
    {"map", bench_map, "a demand fault, with and without tracking"},
    {"zap", bench_zap, "teardown of a second stage"},
    {"lifecycle", bench_lifecycle, "whole lives of a guest inside the core"},
};

static int usage(FILE *f, int code)
{
    fprintf(f, "usage: hvbench SUBCOMMAND [OPTION]... [--json]\n\n");
    for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++)
        fprintf(f, "  %-12s %s\n", subcommands[i].name, subcommands[i].text);
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage(stderr, BENCH_USAGE);
    if (!strcmp(argv[1], "--help"))
        return usage(stdout, 0);
    for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++)
        if (!strcmp(argv[1], subcommands[i].name))
            return subcommands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "hvbench: no subcommand \"%s\"\n", argv[1]);
    return usage(stderr, BENCH_USAGE);
}
