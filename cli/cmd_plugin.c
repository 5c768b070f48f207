/* Plugins as files: the conformance check, made here and now by its own program. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/hvctl.h"

#define PROGRAM "mayfly-plugin-check"

extern char **environ;

/* What the program's exit codes mean, see conform/main.c. */
static enum cli_exit exit_code(int status)
{
    static const enum cli_exit codes[] = {CLI_OK, CLI_REJECTED, CLI_USAGE, CLI_INTERNAL};
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code >= 0 && (size_t)code < sizeof codes / sizeof codes[0])
        return codes[code];
    cli_error(PROGRAM " ended in an unexpected way (status %d)", status);
    return CLI_INTERNAL;
}

/* Runs the program with our streams and waits for it. */
static enum cli_exit run(char *const argv[])
{
    char program[4096 + 64];
    int status = 0, error;
    pid_t pid;
    program_path(PROGRAM, "MAYFLY_PLUGIN_CHECK", "../conform", program, sizeof program);
    error = posix_spawnp(&pid, program, NULL, NULL, argv, environ);
    if (error) {
        cli_error("cannot start %s: %s; set MAYFLY_PLUGIN_CHECK to its path", program,
                  strerror(error));
        return CLI_UNAVAILABLE;
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) {
            cli_error("waiting for " PROGRAM ": %s", strerror(errno));
            return CLI_INTERNAL;
        }
    return exit_code(status);
}

static char *word(const char *s)
{
    return (char *)(uintptr_t)s; /* argv is not const, but nobody writes it */
}

static enum cli_exit plugin_check(struct cli *cli, const char *file)
{
    char seed[24], operations[24];
    uint64_t v;
    char *argv[9] = {word(PROGRAM)};
    unsigned n = 1;
    if (!args_number(cli, "seed", 0, UINT64_MAX, 1, &v))
        return CLI_USAGE;
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)v);
    if (!args_number(cli, "operations", 1, 1000000000, 20000, &v))
        return CLI_USAGE;
    snprintf(operations, sizeof operations, "%llu", (unsigned long long)v);
    argv[n++] = word("--seed");
    argv[n++] = seed;
    argv[n++] = word("--operations");
    argv[n++] = operations;
    if (cli->json)
        argv[n++] = word("--json");
    argv[n++] = word("--");
    argv[n++] = word(file);
    return run(argv);
}

enum cli_exit cmd_plugin(struct cli *cli)
{
    char *rules[] = {word(PROGRAM), word("--rules"), NULL};
    if (strcmp(cli->args[0], "check") == 0 && cli->nr_args == 2)
        return plugin_check(cli, cli->args[1]);
    if (strcmp(cli->args[0], "rules") != 0 || cli->nr_args != 1)
        return cli_usage(cli, "plugin: not understood");
    if (cli->json || cli->nr_values > 0)
        return cli_usage(cli, "plugin rules takes no options");
    return run(rules);
}
