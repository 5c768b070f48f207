#include "daemon/router.h"

#include <stdio.h>
#include <string.h>

#define SEGMENTS_MAX 8

struct segments {
    size_t n;
    const char *s[SEGMENTS_MAX];
};

/* Cuts "/a/b" into "a", "b". False when it is no such path or has too many. */
static bool cut(char *path, struct segments *out)
{
    out->n = 0;
    if (path[0] != '/')
        return false;
    for (char *at = path; at != NULL;) {
        *at++ = '\0';
        if (out->n == SEGMENTS_MAX)
            return false;
        out->s[out->n++] = at;
        at = strchr(at, '/');
    }
    return true;
}

/* Compares with a pattern; the segments at {…} go to arg[]. */
static bool match(const char *pattern, const struct segments *s, const char **arg, size_t nr_args)
{
    size_t args = 0;

    for (size_t i = 0; i < s->n; i++) {
        if (*pattern++ != '/')
            return false;
        size_t len = strcspn(pattern, "/");
        if (pattern[0] == '{') {
            if (s->s[i][0] == '\0' || args == nr_args)
                return false;
            arg[args++] = s->s[i];
        } else if (strlen(s->s[i]) != len || memcmp(s->s[i], pattern, len) != 0) {
            return false;
        }
        pattern += len;
    }
    return *pattern == '\0';
}

static void add_allowed(char *allow, size_t size, const char *method)
{
    size_t n = strlen(allow);

    snprintf(allow + n, size - n, "%s%s%s", n > 0 ? ", " : "", method,
             strcmp(method, "GET") == 0 ? ", HEAD" : "");
}

const struct route *router_find(const struct route *table, size_t n, const char *method, char *path,
                                const char **arg, size_t nr_args, char *allow, size_t allow_size)
{
    const char *want = strcmp(method, "HEAD") == 0 ? "GET" : method;
    struct segments s;

    allow[0] = '\0';
    if (!cut(path, &s))
        return NULL;
    for (size_t i = 0; i < n; i++) {
        if (!match(table[i].path, &s, arg, nr_args))
            continue;
        if (strcmp(table[i].method, want) == 0) {
            allow[0] = '\0';
            return &table[i];
        }
        add_allowed(allow, allow_size, table[i].method);
    }
    return NULL;
}
