/* The command line: options anywhere, everything checked against the command's table. */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/hvctl.h"

/* One line on stderr; what came from elsewhere in it must not steer the terminal. */
static void print_line(const char *prefix, const char *fmt, va_list ap)
{
    char *text;
    fflush(stdout);
    if (vasprintf(&text, fmt, ap) < 0)
        return;
    clean_text(text);
    fprintf(stderr, "%s%s\n", prefix, text);
    free(text);
}

void cli_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_line("hvctl: ", fmt, ap);
    va_end(ap);
}

void cli_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_line("", fmt, ap);
    va_end(ap);
}

enum cli_exit cli_usage(const struct cli *cli, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    print_line("hvctl: ", fmt, ap);
    va_end(ap);
    if (cli->command)
        fprintf(stderr, "usage: hvctl %s %s\nSee `hvctl help %s`.\n", cli->command->name,
                cli->command->args, cli->command->name);
    else
        fputs("See `hvctl help`.\n", stderr);
    return CLI_USAGE;
}

bool parse_number(const char *text, uint64_t max, uint64_t *v)
{
    uint64_t n = 0;
    if (!*text)
        return false;
    for (const char *s = text; *s; s++) {
        unsigned d = (unsigned)(*s - '0');
        if (d > 9 || n > (UINT64_MAX - d) / 10)
            return false;
        n = n * 10 + d;
    }
    *v = n;
    return n <= max;
}

/* Milliseconds of one unit, 0 when there is no such unit. */
static uint64_t duration_unit(const char *s)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"min", 60000}, {"h", 3600000}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(s, units[i].name) == 0)
            return units[i].ms;
    return 0;
}

bool parse_duration_ms(const char *text, uint64_t *ms)
{
    const uint64_t max = 86400000;
    uint64_t whole = 0, milli = 0, scale = 100, unit;
    const char *s = text;
    if (!isdigit((unsigned char)*s))
        return false;
    for (; isdigit((unsigned char)*s); s++) {
        whole = whole * 10 + (uint64_t)(*s - '0');
        if (whole > max)
            return false;
    }
    if (*s == '.') {
        if (!isdigit((unsigned char)*++s))
            return false;
        for (; isdigit((unsigned char)*s); s++, scale /= 10)
            milli += scale * (uint64_t)(*s - '0');
    }
    unit = duration_unit(s);
    if (!unit)
        return false;
    *ms = whole * unit + milli * unit / 1000;
    return *ms >= 1 && *ms <= max;
}

const char *args_value(const struct cli *cli, const char *name)
{
    for (unsigned i = cli->nr_values; i > 0; i--)
        if (strcmp(cli->values[i - 1].option->name, name) == 0)
            return cli->values[i - 1].value;
    return NULL;
}

bool args_flag(const struct cli *cli, const char *name)
{
    for (unsigned i = 0; i < cli->nr_values; i++)
        if (strcmp(cli->values[i].option->name, name) == 0)
            return true;
    return false;
}

bool args_number(const struct cli *cli, const char *name, uint64_t min, uint64_t max,
                 uint64_t otherwise, uint64_t *v)
{
    const char *text = args_value(cli, name);
    *v = otherwise;
    if (!text)
        return true;
    if (parse_number(text, max, v) && *v >= min)
        return true;
    cli_usage(cli, "--%s takes a whole number from %llu to %llu, not '%s'", name,
              (unsigned long long)min, (unsigned long long)max, text);
    return false;
}

bool args_duration(const struct cli *cli, const char *name, uint64_t otherwise_ms, uint64_t *ms)
{
    const char *text = args_value(cli, name);
    *ms = otherwise_ms;
    if (!text || parse_duration_ms(text, ms))
        return true;
    cli_usage(cli, "--%s takes a time like 500ms, 1.5s or 2m, up to 24h, not '%s'", name, text);
    return false;
}

static const struct cli_option *find_long(const struct cli_option *o, const char *name, size_t n)
{
    for (; o && o->name; o++)
        if (strlen(o->name) == n && memcmp(o->name, name, n) == 0)
            return o;
    return NULL;
}

static const struct cli_option *find_letter(const struct cli_option *o, char letter)
{
    for (; o && o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

static bool add_value(struct cli *cli, const struct cli_option *o, const char *value)
{
    if (cli->nr_values == CLI_OPTIONS_MAX) {
        cli_usage(cli, "too many options");
        return false;
    }
    cli->values[cli->nr_values++] = (struct cli_value){o, value};
    return true;
}

/* One "--name", "--name=value" or "--name value"; moves *i when it takes the next word. */
static bool take_long(struct cli *cli, int argc, char *const argv[], int *i)
{
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    const struct cli_option *o = find_long(cli_global_options, name, n);
    if (!o && cli->command)
        o = find_long(cli->command->options, name, n);
    if (!o) {
        cli_usage(cli, "unknown option --%.*s", (int)n, name);
        return false;
    }
    if (!o->arg) {
        if (equals)
            cli_usage(cli, "--%s takes no value", o->name);
        return !equals && add_value(cli, o, NULL);
    }
    if (equals)
        return add_value(cli, o, equals + 1);
    if (*i + 1 >= argc) {
        cli_usage(cli, "--%s needs a value: %s", o->name, o->arg);
        return false;
    }
    return add_value(cli, o, argv[++*i]);
}

/* One "-x", "-xvalue" or "-x value". */
static bool take_letter(struct cli *cli, int argc, char *const argv[], int *i)
{
    const char *word = argv[*i];
    const struct cli_option *o = find_letter(cli_global_options, word[1]);
    if (!o && cli->command)
        o = find_letter(cli->command->options, word[1]);
    if (!o || (!o->arg && word[2])) {
        cli_usage(cli, "unknown option %s", word);
        return false;
    }
    if (!o->arg)
        return add_value(cli, o, NULL);
    if (word[2])
        return add_value(cli, o, word + 2);
    if (*i + 1 >= argc) {
        cli_usage(cli, "-%c needs a value: %s", o->letter, o->arg);
        return false;
    }
    return add_value(cli, o, argv[++*i]);
}

static unsigned distance(const char *a, const char *b)
{
    unsigned row[32], n = (unsigned)strlen(b);
    if (n >= 31)
        return 99;
    for (unsigned j = 0; j <= n; j++)
        row[j] = j;
    for (unsigned i = 1; a[i - 1]; i++) {
        unsigned diagonal = row[0];
        row[0] = i;
        for (unsigned j = 1; j <= n; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

static enum cli_exit no_such_command(const struct cli *cli, const char *word)
{
    const struct cli_command *best = NULL;
    unsigned least = 3;
    for (const struct cli_command *c = cli_commands; c->name; c++) {
        unsigned d = distance(word, c->name);
        if (d < least) {
            least = d;
            best = c;
        }
    }
    if (best)
        return cli_usage(cli, "there is no command '%s'; did you mean '%s'?", word, best->name);
    return cli_usage(cli, "there is no command '%s'", word);
}

static enum cli_exit take_globals(struct cli *cli)
{
    const char *format = args_value(cli, "output"), *forbidden = getenv("MAYFLY_NO_START");
    if (format && strcmp(format, "json") != 0 && strcmp(format, "table") != 0)
        return cli_usage(cli, "--output is json or table, not '%s'", format);
    cli->json = format && strcmp(format, "json") == 0;
    cli->may_start =
        !args_flag(cli, "no-start") && (!forbidden || !*forbidden) && !args_value(cli, "socket");
    return CLI_OK;
}

static enum cli_exit check_count(const struct cli *cli)
{
    const struct cli_command *c = cli->command;
    if (args_flag(cli, "help"))
        return CLI_OK;
    if (cli->rest && cli->rest[0] && !c->takes_rest)
        return cli_usage(cli, "%s takes nothing behind --", c->name);
    if (cli->nr_args < c->args_min)
        return cli_usage(cli, "%s: something is missing", c->name);
    if (cli->nr_args > c->args_max)
        return cli_usage(cli, "%s: '%s' is too much", c->name, cli->args[c->args_max]);
    return CLI_OK;
}

enum cli_exit args_parse(struct cli *cli, int argc, char *const argv[])
{
    enum cli_exit code;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (strcmp(word, "--") == 0) {
            cli->rest = (const char *const *)&argv[i + 1];
            break;
        }
        if (word[0] == '-' && word[1] == '-') {
            if (!take_long(cli, argc, argv, &i))
                return CLI_USAGE;
        } else if (word[0] == '-' && word[1]) {
            if (!take_letter(cli, argc, argv, &i))
                return CLI_USAGE;
        } else if (!cli->command) {
            cli->command = command_find(word);
            if (!cli->command)
                return no_such_command(cli, word);
        } else if (!word[0]) {
            return cli_usage(cli, "an argument is empty");
        } else if (cli->nr_args == CLI_ARGS_MAX) {
            return cli_usage(cli, "more than %u arguments", CLI_ARGS_MAX);
        } else {
            cli->args[cli->nr_args++] = word;
        }
    }
    code = take_globals(cli);
    if (code || !cli->command)
        return code;
    return check_count(cli);
}
