/* A VM's definition from options of the command line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/hvctl.h"

char *absolute_path(const char *path)
{
    char *cwd, *whole = NULL;
    if (path[0] == '/')
        return strdup(path);
    cwd = getcwd(NULL, 0);
    if (cwd && asprintf(&whole, "%s/%s", cwd, path) < 0)
        whole = NULL;
    free(cwd);
    return whole;
}

static void add_text(struct json_object *o, const char *member, const char *value)
{
    if (value)
        json_object_object_add(o, member, json_object_new_string(value));
}

/* Option `name`, a file, as an absolute path. */
static bool add_file(struct cli *cli, struct json_object *o, const char *name)
{
    const char *value = args_value(cli, name);
    char *path = value ? absolute_path(value) : NULL;
    if (value && !path) {
        cli_error("%s: %s", value, strerror(errno));
        return false;
    }
    add_text(o, name, path);
    free(path);
    return true;
}

/* --module "FILE WORDS", as often as it is given. */
static bool add_module(struct json_object *list, const char *value)
{
    struct json_object *m = json_object_new_object();
    size_t n = strcspn(value, " ");
    char *file = strndup(value, n), *path = file ? absolute_path(file) : NULL;
    free(file);
    add_text(m, "file", path);
    if (value[n])
        add_text(m, "cmdline", value + n + 1);
    json_object_array_add(list, m);
    bool good = path != NULL;
    if (!good)
        cli_error("%s: %s", value, strerror(errno));
    free(path);
    return good;
}

static bool add_modules(struct cli *cli, struct json_object *o)
{
    struct json_object *list = NULL;
    bool good = true;
    for (unsigned i = 0; i < cli->nr_values && good; i++) {
        if (strcmp(cli->values[i].option->name, "module") != 0)
            continue;
        if (!list) {
            list = json_object_new_array();
            json_object_object_add(o, "modules", list);
        }
        good = add_module(list, cli->values[i].value);
    }
    return good;
}

/* Option `name` as a whole number; its range is the daemon's to judge. */
static bool add_number(struct cli *cli, struct json_object *o, const char *name)
{
    uint64_t v;
    if (!args_value(cli, name))
        return true;
    if (!args_number(cli, name, 0, UINT32_MAX, 0, &v))
        return false;
    json_object_object_add(o, name, json_object_new_uint64(v));
    return true;
}

/* --cmdline, or the words behind "--" with blanks between them. */
static bool add_cmdline(struct cli *cli, struct json_object *o)
{
    const char *text = args_value(cli, "cmdline");
    char *joined;
    size_t n = 1, at = 0;
    if (!cli->rest || !cli->rest[0]) {
        add_text(o, "cmdline", text);
        return true;
    }
    if (text) {
        cli_usage(cli, "--cmdline and words behind -- do not go together");
        return false;
    }
    for (const char *const *w = cli->rest; *w; w++)
        n += strlen(*w) + 1;
    joined = malloc(n);
    if (!joined)
        return false;
    for (const char *const *w = cli->rest; *w; w++)
        at += (size_t)snprintf(joined + at, n - at, "%s%s", at ? " " : "", *w);
    add_text(o, "cmdline", joined);
    free(joined);
    return true;
}

enum cli_exit definition_from_options(struct cli *cli, const char *kernel, struct json_object **out)
{
    struct json_object *o = json_object_new_object();
    char *path = kernel ? absolute_path(kernel) : NULL;
    bool good;
    if (kernel && !path) {
        cli_error("%s: %s", kernel, strerror(errno));
        json_object_put(o);
        return CLI_INTERNAL;
    }
    add_text(o, "name", args_value(cli, "name"));
    add_text(o, "uuid", args_value(cli, "uuid"));
    add_text(o, "memory", args_value(cli, "memory"));
    add_text(o, "kernel", path);
    add_text(o, "engine", args_value(cli, "engine"));
    add_text(o, "teardown", args_value(cli, "teardown"));
    add_text(o, "on_reset", args_value(cli, "on-reset"));
    add_text(o, "pages", args_value(cli, "pages"));
    if (args_flag(cli, "claim"))
        json_object_object_add(o, "claim", json_object_new_boolean(true));
    free(path);
    good = add_cmdline(cli, o) && add_file(cli, o, "initrd") && add_modules(cli, o) &&
           add_number(cli, o, "vcpus") && add_number(cli, o, "weight") && add_number(cli, o, "cap");
    if (good)
        *out = o;
    else
        json_object_put(o);
    return good ? CLI_OK : CLI_USAGE;
}
