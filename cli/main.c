#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/hvctl.h"

/* What was printed must have got out, or the caller must know. */
static enum cli_exit flush(enum cli_exit code)
{
    bool bad = ferror(stdout) != 0;
    if (fflush(stdout) == 0 && !bad)
        return code;
    if (errno != EPIPE)
        cli_error("cannot write to standard output: %s", strerror(errno));
    return code ? code : CLI_INTERNAL;
}

int main(int argc, char *argv[])
{
    static struct cli cli;
    enum cli_exit code;
    signal(SIGPIPE, SIG_IGN);
    http_init(&cli.http);
    code = args_parse(&cli, argc, argv);
    if (!code && (args_flag(&cli, "help") || (cli.command && cli.command->run == cmd_help)))
        code = cmd_help(&cli);
    else if (!code && args_flag(&cli, "version"))
        printf("hvctl %s\n", MAYFLY_VERSION);
    else if (!code && !cli.command)
        code = cli_usage(&cli, "what should be done? A command is missing");
    else if (!code)
        code = cli.command->run(&cli);
    code = flush(code);
    http_fini(&cli.http);
    http_reply_fini(&cli.reply);
    return (int)code;
}
