#include "daemon/paths.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MAYFLY_PLUGIN_DIR
#define MAYFLY_PLUGIN_DIR "/usr/local/lib/mayfly/plugins"
#endif

char *path_join(const char *dir, const char *name)
{
    char *s;

    return asprintf(&s, "%s/%s", dir, name) < 0 ? NULL : s;
}

/* The variable's value when it is an absolute path, as the XDG rules want it. */
static const char *env_path(const char *name)
{
    const char *v = getenv(name);

    return v != NULL && v[0] == '/' ? v : NULL;
}

char *path_runtime_dir(void)
{
    char *s;

    if (getenv("MAYFLY_RUNTIME_DIR") != NULL)
        return strdup(getenv("MAYFLY_RUNTIME_DIR"));
    if (geteuid() == 0)
        return strdup("/run/mayfly");
    if (env_path("XDG_RUNTIME_DIR") != NULL)
        return path_join(env_path("XDG_RUNTIME_DIR"), "mayfly");
    return asprintf(&s, "/tmp/mayfly-%lu", (unsigned long)geteuid()) < 0 ? NULL : s;
}

/* $`xdg`/mayfly, or `home`/mayfly below the home directory. */
static char *xdg_dir(const char *xdg, const char *home)
{
    const char *base = env_path("HOME");
    char *s;

    if (env_path(xdg) != NULL)
        return path_join(env_path(xdg), "mayfly");
    if (base == NULL)
        return NULL;
    return asprintf(&s, "%s/%s/mayfly", base, home) < 0 ? NULL : s;
}

char *path_state_dir(void)
{
    if (getenv("MAYFLY_STATE_DIR") != NULL)
        return strdup(getenv("MAYFLY_STATE_DIR"));
    if (geteuid() == 0)
        return strdup("/var/lib/mayfly");
    return xdg_dir("XDG_STATE_HOME", ".local/state");
}

char *path_config_dir(void)
{
    if (getenv("MAYFLY_CONFIG_DIR") != NULL)
        return strdup(getenv("MAYFLY_CONFIG_DIR"));
    if (geteuid() == 0)
        return strdup("/etc/mayfly");
    return xdg_dir("XDG_CONFIG_HOME", ".config");
}

enum mf_status path_make_private(const char *dir, struct problem *p)
{
    struct stat s;

    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return problem_set(p, MF_E_IO, NULL, "%s cannot be made: %s", dir, strerror(errno));
    if (lstat(dir, &s) != 0)
        return problem_set(p, MF_E_IO, NULL, "%s cannot be examined: %s", dir, strerror(errno));
    if (!S_ISDIR(s.st_mode))
        return problem_set(p, MF_E_PERM, NULL, "%s is not a directory", dir);
    if (s.st_uid != geteuid())
        return problem_set(p, MF_E_PERM, NULL, "%s belongs to user %lu", dir,
                           (unsigned long)s.st_uid);
    if ((s.st_mode & 022) != 0)
        return problem_set(p, MF_E_PERM, NULL, "%s can be written by others", dir);
    return MF_OK;
}

/* Directory of this program's file, without a slash behind it. */
static bool own_dir(char dir[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);

    if (n <= 0)
        return false;
    dir[n] = '\0';
    char *slash = strrchr(dir, '/');
    if (slash == NULL)
        return false;
    *slash = '\0';
    return true;
}

/* `a`/`b`/`c` when that is a program that we may run. */
static char *runnable(const char *a, const char *b, const char *c)
{
    struct stat s;
    char *path;

    if (asprintf(&path, "%s/%s/%s", a, b, c) < 0)
        return NULL;
    if (stat(path, &s) == 0 && S_ISREG(s.st_mode) && access(path, X_OK) == 0)
        return path;
    free(path);
    return NULL;
}

static char *search_path(const char *name)
{
    const char *at = getenv("PATH");
    char *found = NULL;

    while (at != NULL && *at != '\0' && found == NULL) {
        size_t n = strcspn(at, ":");
        char *dir = strndup(at, n);
        if (dir != NULL && dir[0] == '/')
            found = runnable(dir, ".", name);
        free(dir);
        at += n + (at[n] == ':');
    }
    return found;
}

char *path_program(const char *name, const char *env, const char *near)
{
    char dir[PATH_MAX];
    char *found = NULL;

    if (getenv(env) != NULL)
        return strdup(getenv(env));
    if (own_dir(dir)) {
        found = runnable(dir, ".", name);
        if (found == NULL)
            found = runnable(dir, near, name);
    }
    return found != NULL ? found : search_path(name);
}

static void each_of_list(const char *list, void (*fn)(void *arg, const char *dir), void *arg)
{
    while (*list != '\0') {
        size_t n = strcspn(list, ":");
        char *dir = strndup(list, n);
        if (dir != NULL && n > 0)
            fn(arg, dir);
        free(dir);
        list += n + (list[n] == ':');
    }
}

void path_plugin_dirs(void (*fn)(void *arg, const char *dir), void *arg)
{
    char dir[PATH_MAX];

    if (getenv("MAYFLY_PLUGIN_PATH") != NULL) {
        each_of_list(getenv("MAYFLY_PLUGIN_PATH"), fn, arg);
        return;
    }
    if (own_dir(dir)) {
        char *near = path_join(dir, "../plugins");
        if (near != NULL && access(near, F_OK) == 0)
            fn(arg, near);
        free(near);
    }
    fn(arg, MAYFLY_PLUGIN_DIR);
    if (geteuid() != 0) {
        char *data = xdg_dir("XDG_DATA_HOME", ".local/share");
        char *own = data == NULL ? NULL : path_join(data, "plugins");
        if (own != NULL)
            fn(arg, own);
        free(own);
        free(data);
    }
}
