/*
 * mayfly-plugin-check: the conformance kit as a program.
 *
 *   mayfly-plugin-check [--seed N] [--operations N] [--wall-ms N] [--json] FILE.so
 *   mayfly-plugin-check --rules
 *
 * Exit code: 0 every rule kept, 1 a rule broken, 2 usage, 3 the check could not be made.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "conform/conform.h"

enum { EXIT_KEPT, EXIT_BROKEN, EXIT_USAGE, EXIT_IMPOSSIBLE };

static const char *mark_word(uint8_t mark)
{
    static const char *const words[] = {"not-run", "kept", "not-claimed", "broken"};

    return mark < sizeof words / sizeof words[0] ? words[mark] : "?";
}

static const char *kind_word(uint32_t kind)
{
    return kind == MF_PLUGIN_ALLOCATOR ? "allocator" : kind == MF_PLUGIN_TEARDOWN ? "teardown" : "";
}

/* ---- output */

static void json_string(const char *s)
{
    putchar('"');
    for (; *s; s++)
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < 0x20 || (unsigned char)*s > 0x7e)
            printf("\\u%04x", (unsigned char)*s);
        else
            putchar(*s);
    putchar('"');
}

static void json_member(const char *name, const char *value, bool last)
{
    printf("\"%s\": ", name);
    json_string(value);
    printf(last ? "" : ", ");
}

static void print_json(const struct conform_verdict *v)
{
    bool first = true;

    printf("{\"ok\": %s, ", v->ok ? "true" : "false");
    json_member("kind", kind_word(v->note.kind), false);
    json_member("name", v->note.name, false);
    json_member("version", v->note.version, false);
    printf("\"seed\": %" PRIu64 ", \"operations\": %" PRIu64 ", \"took_ns\": %" PRIu64 ", ",
           v->seed, v->operations, v->took_ns);
    json_member("rule", v->ok ? "" : conform_rule_name(v->broken), false);
    json_member("during", v->during, false);
    json_member("text", v->text, false);
    printf("\"rules\": [");
    for (unsigned r = 0; r < CONFORM_RULES; r++) {
        if (!conform_rule_concerns(r, v->note.kind))
            continue;
        printf("%s{", first ? "" : ", ");
        json_member("name", conform_rule_name(r), false);
        json_member("mark", mark_word(v->mark[r]), true);
        putchar('}');
        first = false;
    }
    printf("]}\n");
}

static void print_text(const struct conform_verdict *v)
{
    if (v->note.name[0])
        printf("%s %s %s, seed %" PRIu64 ", %" PRIu64 " operations, %.3f s\n",
               kind_word(v->note.kind), v->note.name, v->note.version, v->seed, v->operations,
               (double)v->took_ns / 1e9);
    for (unsigned r = 0; r < CONFORM_RULES; r++)
        if (conform_rule_concerns(r, v->note.kind))
            printf("  %-24s %s\n", conform_rule_name(r), mark_word(v->mark[r]));
    if (v->ok)
        printf("all rules kept\n");
    else
        printf("broken: %s (%s)\n  in %s: %s\n", conform_rule_name(v->broken),
               conform_rule_text(v->broken), v->during[0] ? v->during : "no call", v->text);
}

static void print_rules(void)
{
    for (unsigned r = 0; r < CONFORM_RULES; r++) {
        bool a = conform_rule_concerns(r, MF_PLUGIN_ALLOCATOR);
        bool t = conform_rule_concerns(r, MF_PLUGIN_TEARDOWN);

        printf("%-24s %-9s %s\n", conform_rule_name(r),
               a && t ? "both"
               : a    ? "allocator"
                      : "teardown",
               conform_rule_text(r));
    }
}

/* ---- options */

static bool number(const char *s, uint64_t min, uint64_t max, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && !errno && *out >= min && *out <= max;
}

static int usage(const char *why, const char *what)
{
    fprintf(stderr,
            "mayfly-plugin-check: %s%s\n"
            "usage: mayfly-plugin-check [--seed N] [--operations N] [--wall-ms N] [--json] "
            "FILE.so\n       mayfly-plugin-check --rules\n",
            why, what);
    return EXIT_USAGE;
}

static int check(const char *path, const struct conform_options *o, bool json)
{
    struct conform_verdict v;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0) {
        fprintf(stderr, "mayfly-plugin-check: %s: %s\n", path, strerror(errno));
        return EXIT_IMPOSSIBLE;
    }
    if (!conform_check(fd, o, &v)) {
        fprintf(stderr, "mayfly-plugin-check: the check cannot be made: %s\n", strerror(errno));
        close(fd);
        return EXIT_IMPOSSIBLE;
    }
    close(fd);
    if (json)
        print_json(&v);
    else
        print_text(&v);
    return v.ok ? EXIT_KEPT : EXIT_BROKEN;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"seed", required_argument, NULL, 's'},    {"operations", required_argument, NULL, 'n'},
        {"wall-ms", required_argument, NULL, 'w'}, {"json", no_argument, NULL, 'j'},
        {"rules", no_argument, NULL, 'r'},         {NULL, 0, NULL, 0}};
    struct conform_options o = {.seed = 1, .operations = CONFORM_OPERATIONS};
    bool json = false;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 's' && !number(optarg, 0, UINT64_MAX, &o.seed))
            return usage("not a seed: ", optarg);
        if (c == 'n' && !number(optarg, 1, CONFORM_OPERATIONS_MAX, &o.operations))
            return usage("operations are from 1 to 1000000000, not ", optarg);
        if (c == 'w' && !number(optarg, 0, UINT64_C(1) << 40, &o.wall_ms))
            return usage("not a time in milliseconds: ", optarg);
        if (c == 'r') {
            print_rules();
            return EXIT_KEPT;
        }
        if (c == '?')
            return usage("unknown option", "");
        json = json || c == 'j';
    }
    if (optind != argc - 1)
        return usage("one plugin file is needed", "");
    return check(argv[optind], &o, json);
}
