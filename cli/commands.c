/* Every command and option: the one table behind parsing, help and completion. */
#include <stdio.h>
#include <string.h>

#include "cli/hvctl.h"

const struct cli_option cli_global_options[] = {
    {"output", 'o', "FORMAT", "json: the API's answer as it came; table: for people (default)"},
    {"socket", 0, "PATH", "the daemon's socket; none is started then"},
    {"no-start", 0, NULL, "do not start a daemon when none runs (also MAYFLY_NO_START=1)"},
    {"help", 'h', NULL, "explain the command"},
    {"version", 'V', NULL, "version of this program"},
    {0},
};

#define OPTION_ENGINE                                                                              \
    {                                                                                              \
        "engine", 0, "NAME", "auto (default), soft or kvm"                                         \
    }
#define OPTION_TEARDOWN                                                                            \
    {                                                                                              \
        "teardown", 0, "NAME", "teardown strategy instead of the host's default"                   \
    }
#define OPTION_TIMEOUT                                                                             \
    {                                                                                              \
        "timeout", 0, "TIME", "destroy the VM then: 500ms, 10s, 2m (default 60s)"                  \
    }

static const struct cli_option hello_options[] = {
    {"compare", 0, NULL, "run it once with each teardown strategy and compare them"},
    {"form", 0, "FORM", "pvh (default) or elf64: how the guest is entered"},
    {"memory", 'm', "SIZE", "RAM: bytes, or with K, M, G (default 16M)"},
    OPTION_ENGINE,
    OPTION_TEARDOWN,
    OPTION_TIMEOUT,
    {0},
};

#define OPTION_INITRD                                                                              \
    {                                                                                              \
        "initrd", 'i', "FILE", "Linux's initial RAM disk"                                          \
    }
#define OPTION_MODULE                                                                              \
    {                                                                                              \
        "module", 0, "TEXT", "file to load beside the kernel, a blank, its command line; repeat"   \
    }

#define OPTION_CLAIM                                                                               \
    {                                                                                              \
        "claim", 0, NULL, "all of the RAM is promised at the start, or it is refused"              \
    }
#define OPTION_PAGES                                                                               \
    {                                                                                              \
        "pages", 0, "SIZE", "what backs the RAM where possible: 4K (default) or 2M"                \
    }

/* First the members of a definition, see definition.c; then what only a run has. */
static const struct cli_option run_options[] = {
    {"name", 0, "NAME", "name of the VM while it runs (default: chosen)"},
    {"memory", 'm', "SIZE", "RAM: bytes, or with K, M, G, T (default 16M)"},
    {"vcpus", 'c', "N", "virtual CPUs (default 1)"},
    {"cmdline", 0, "TEXT", "kernel command line; also all words behind --"},
    OPTION_INITRD,
    OPTION_MODULE,
    OPTION_ENGINE,
    OPTION_TEARDOWN,
    {"on-reset", 0, "WHAT", "what a guest's reset does: end (default) or restart"},
    OPTION_CLAIM,
    OPTION_PAGES,
    OPTION_TIMEOUT,
    {"report", 'r', NULL, "show times and teardown in full"},
    {"quiet", 'q', NULL, "only the guest's console, no line on how it ended"},
    {"console", 0, NULL, "use its console meanwhile; ^] ends it"},
    {0},
};

static const struct cli_option define_options[] = {
    {"name", 0, "NAME", "name of the VM"},
    {"kernel", 'k', "FILE", "Linux bzImage or vmlinux, PVH, multiboot or ELF64 image"},
    {"memory", 'm', "SIZE", "RAM: bytes, or with K, M, G, T"},
    {"vcpus", 'c', "N", "virtual CPUs (default 1)"},
    {"cmdline", 0, "TEXT", "kernel command line"},
    OPTION_INITRD,
    OPTION_MODULE,
    OPTION_ENGINE,
    OPTION_TEARDOWN,
    {"on-reset", 0, "WHAT", "what a guest's reset does: restart (default) or end"},
    OPTION_CLAIM,
    OPTION_PAGES,
    {"uuid", 0, "UUID", "instead of a random one"},
    {"weight", 0, "N", "share of CPU, 1 to 10000 (default 100)"},
    {"cap", 0, "PERCENT", "most of one CPU for each vCPU, 0 for no cap"},
    {"replace", 0, NULL, "replace a definition that exists (XML: give its --name)"},
    {0},
};

static const struct cli_option list_options[] = {
    {"names", 0, NULL, "only the names, one a line"},
    {"state", 0, "STATE", "only VMs in this state"},
    {0},
};

#define OPTION_WAIT                                                                                \
    {                                                                                              \
        "wait", 'w', NULL, "until the VM has ended; the exit code says how"                        \
    }
#define OPTION_WAIT_TIME                                                                           \
    {                                                                                              \
        "timeout", 0, "TIME", "how long to wait (default 30s)"                                     \
    }

static const struct cli_option start_options[] = {
    OPTION_WAIT,
    OPTION_WAIT_TIME,
    {"console", 0, NULL, "attach this terminal to its console"},
    {0},
};

static const struct cli_option action_options[] = {
    OPTION_WAIT_TIME,
    {0},
};

static const struct cli_option shutdown_options[] = {
    {"grace", 0, "TIME", "how long the guest has before it is destroyed (default 5s)"},
    OPTION_WAIT,
    OPTION_WAIT_TIME,
    {0},
};

static const struct cli_option delete_options[] = {
    {"force", 'f', NULL, "destroy it first when it runs"},
    {0},
};

static const struct cli_option console_options[] = {
    {"log", 0, NULL, "print what the console holds and leave"},
    {"follow", 'f', NULL, "print it, and what comes, until the VM ends; no input"},
    {"offset", 0, "N", "begin at this byte of the output (default 0)"},
    {0},
};

static const struct cli_option events_options[] = {
    {"count", 'n', "N", "leave after so many events"},
    {"vm", 0, "NAME", "only events about this VM"},
    {"type", 0, "TYPE", "only events of this type, like vm-state or vm-ended"},
    {0},
};

static const struct cli_option strategy_options[] = {
    {"force", 'f', NULL, "load: also a plugin that breaks a rule or cannot be checked"},
    {0},
};

static const struct cli_option plugin_options[] = {
    {"seed", 0, "N", "of the random run (default 1); the same seed does the same"},
    {"operations", 0, "N", "how long the run is, 1 to 1000000000 (default 20000)"},
    {0},
};

static const struct cli_option use_options[] = {
    {"vm", 0, "VM", "teardown: of this VM, also while it runs, instead of the default"},
    {0},
};

static const struct cli_option bench_options[] = {
    {"number", 'n', "N", "how many VMs, one behind the other (default 1000)"},
    {"json", 0, NULL, "one JSON object, as hvbench gives it (the same as -o json)"},
    {"each", 0, NULL, "one row for each teardown strategy"},
    {"form", 0, "FORM", "pvh (default) or elf64: how the guest is entered"},
    {"memory", 'm', "SIZE", "RAM: bytes, or with K, M, G (default 16M)"},
    OPTION_ENGINE,
    OPTION_TEARDOWN,
    {0},
};

const struct cli_command cli_commands[] = {
    {"hello", "[--compare] [OPTIONS]", "run the hello VM and say how it went", hello_options, 0, 0,
     false, cmd_hello},
    {"run", "KERNEL [OPTIONS] [-- WORD...]", "run a VM once: define, start, wait, report, forget",
     run_options, 1, 1, true, cmd_run},
    {"define", "FILE | --name NAME --memory SIZE --kernel FILE [OPTIONS]",
     "define a VM from XML, JSON (- for standard input) or options", define_options, 0, 1, false,
     cmd_define},
    {"list", "[OPTIONS]", "all VMs", list_options, 0, 0, false, cmd_list},
    {"show", "VM...", "everything about a VM", NULL, 1, CLI_ARGS_MAX, false, cmd_show},
    {"start", "VM... [OPTIONS]", "start VMs", start_options, 1, CLI_ARGS_MAX, false, cmd_action},
    {"pause", "VM...", "stop the vCPUs, keep the memory", action_options, 1, CLI_ARGS_MAX, false,
     cmd_action},
    {"resume", "VM...", "let paused VMs go on", action_options, 1, CLI_ARGS_MAX, false, cmd_action},
    {"reset", "VM...", "load the image again and start over", action_options, 1, CLI_ARGS_MAX,
     false, cmd_action},
    {"shutdown", "VM... [OPTIONS]", "ask guests to end, destroy them when they do not",
     shutdown_options, 1, CLI_ARGS_MAX, false, cmd_action},
    {"destroy", "VM...", "end VMs at once, whatever the guest does", action_options, 1,
     CLI_ARGS_MAX, false, cmd_action},
    {"delete", "VM... [OPTIONS]", "forget VMs that do not run", delete_options, 1, CLI_ARGS_MAX,
     false, cmd_delete},
    {"console", "VM [OPTIONS]", "use a VM's console; ^] leaves", console_options, 1, 1, false,
     cmd_console},
    {"events", "[OPTIONS]", "show events as they happen", events_options, 0, 0, false, cmd_events},
    {"stats", "[VM...]", "counters of all VMs, or of these", NULL, 0, CLI_ARGS_MAX, false,
     cmd_stats},
    {"balloon", "give|take VM ADDRESS SIZE", "give a range of a VM's memory back, or take it again",
     NULL, 4, 4, false, cmd_balloon},
    {"dirty", "start|stop VM | fetch VM ADDRESS SIZE", "log the pages that a VM writes", NULL, 2, 4,
     false, cmd_dirty},
    {"dumpxml", "VM", "a VM's definition as domain XML", NULL, 1, 1, false, cmd_dumpxml},
    {"strategy", "list | show KIND NAME | load FILE | unload KIND NAME",
     "strategies: what is loaded, load, unload", strategy_options, 1, 3, false, cmd_strategy},
    {"plugin", "check FILE | rules", "check a plugin file for conformance, without a daemon",
     plugin_options, 1, 2, false, cmd_plugin},
    {"use", "allocator NAME | teardown NAME [--vm VM]", "swap a strategy while VMs run",
     use_options, 2, 2, false, cmd_use},
    {"heap", "[audit | scrub POLICY | offline FIRST COUNT | online FIRST COUNT]",
     "the page heap; audit: walk the frame table and compare", NULL, 0, 3, false, cmd_heap},
    {"host", "", "the host and its core", NULL, 0, 0, false, cmd_host},
    {"bench", "hello [OPTIONS]", "time the life of many VMs through the whole stack", bench_options,
     1, 1, false, cmd_bench},
    {"version", "", "versions of this program, the daemon and the core", NULL, 0, 0, false,
     cmd_version},
    {"completion", "bash", "print a completion script for the shell", NULL, 1, 1, false,
     cmd_completion},
    {"help", "[COMMAND]", "this list, or a command's options", NULL, 0, 1, false, cmd_help},
    {0},
};

const struct cli_command *command_find(const char *name)
{
    for (const struct cli_command *c = cli_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static void print_options(const struct cli_option *o)
{
    for (; o && o->name; o++) {
        char left[64];
        char letter[8] = "    ";
        if (o->letter)
            snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->arg ? " " : "",
                 o->arg ? o->arg : "");
        printf("  %-24s %s\n", left, o->text);
    }
}

static void help_command(const struct cli_command *c)
{
    printf("usage: hvctl %s%s%s\n\n%s: %s\n", c->name, c->args[0] ? " " : "", c->args, c->name,
           c->text);
    if (c->options)
        fputs("\noptions:\n", stdout);
    print_options(c->options);
    fputs("\nfor every command:\n", stdout);
    print_options(cli_global_options);
}

static void help_all(void)
{
    fputs("usage: hvctl COMMAND [ARGUMENTS] [OPTIONS]\n\n"
          "Runs virtual machines through the host control daemon hvd.\n\ncommands:\n",
          stdout);
    for (const struct cli_command *c = cli_commands; c->name; c++)
        printf("  %-12s %s\n", c->name, c->text);
    fputs("\nfor every command:\n", stdout);
    print_options(cli_global_options);
    fputs(
        "\nexit codes: 0 the guest ended well; 1 to 63 its own code; 64 wrong usage; 65 refused;\n"
        "69 no daemon or core; 70 internal; 71 the guest crashed; 72 ended by force; 73 timeout\n",
        stdout);
}

enum cli_exit cmd_help(struct cli *cli)
{
    const struct cli_command *about = cli->command;
    if (cli->nr_args && !args_flag(cli, "help")) {
        about = command_find(cli->args[0]);
        if (!about)
            return cli_usage(cli, "there is no command '%s'", cli->args[0]);
    }
    if (!about || (about->run == cmd_help && !cli->nr_args && !args_flag(cli, "help")))
        help_all();
    else
        help_command(about);
    return CLI_OK;
}

static void completion_command(const struct cli_command *c)
{
    printf("    %s) words='", c->name);
    for (const struct cli_option *o = c->options; o && o->name; o++)
        printf("--%s ", o->name);
    for (const struct cli_option *o = cli_global_options; o->name; o++)
        printf("--%s%s", o->name, o[1].name ? " " : "'");
    if (strncmp(c->args, "VM", 2) == 0 || strncmp(c->args, "[VM", 3) == 0)
        fputs(" vms=1", stdout);
    if (strcmp(c->name, "strategy") == 0)
        fputs("; subs='list show load unload'", stdout);
    else if (strcmp(c->name, "use") == 0)
        fputs("; subs='allocator teardown'", stdout);
    else if (strcmp(c->name, "heap") == 0)
        fputs("; subs='audit scrub offline online'", stdout);
    else if (strcmp(c->name, "balloon") == 0)
        fputs("; subs='give take'", stdout);
    else if (strcmp(c->name, "dirty") == 0)
        fputs("; subs='start stop fetch'", stdout);
    else if (strcmp(c->name, "bench") == 0)
        fputs("; subs=hello", stdout);
    fputs(" ;;\n", stdout);
}

enum cli_exit cmd_completion(struct cli *cli)
{
    if (strcmp(cli->args[0], "bash") != 0)
        return cli_usage(cli, "no completion for '%s'", cli->args[0]);
    fputs("# bash completion of hvctl, made by `hvctl completion bash`\n"
          "_hvctl() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} command= words= subs= vms= i\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        [[ ${COMP_WORDS[i]} == -* ]] || { command=${COMP_WORDS[i]}; break; }\n"
          "    done\n"
          "    case $command in\n"
          "    '') words='",
          stdout);
    for (const struct cli_command *c = cli_commands; c->name; c++)
        printf("%s%s", c->name, c[1].name ? " " : "' ;;\n");
    for (const struct cli_command *c = cli_commands; c->name; c++)
        completion_command(c);
    fputs("    esac\n"
          "    if [[ $word != -* && -n $command ]]; then\n"
          "        words=$subs\n"
          "        [[ -z $vms ]] || words=$(hvctl --no-start list --names 2>/dev/null)\n"
          "    fi\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
          "    [[ -n ${COMPREPLY[*]} || $word == -* ]] || "
          "mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
          "}\n"
          "complete -F _hvctl hvctl\n",
          stdout);
    return CLI_OK;
}
