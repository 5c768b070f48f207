/* Where things are: directories by user and environment, sibling programs, plugin directories. */
#ifndef MAYFLY_DAEMON_PATHS_H
#define MAYFLY_DAEMON_PATHS_H

#include <stdbool.h>

#include "daemon/problem.h"

/*
 * Absolute paths, which the caller frees; NULL when out of memory or when the environment names
 * none (no home). Nothing is created.
 */
char *path_runtime_dir(void);
char *path_state_dir(void);
char *path_config_dir(void);
/* `dir`/`name`. */
char *path_join(const char *dir, const char *name);

/*
 * Makes the runtime directory, and sees that it is a directory of ours that nobody else can write
 * to. MF_E_IO, MF_E_PERM.
 */
enum mf_status path_make_private(const char *dir, struct problem *p);

/*
 * The file of a sibling program: `env` names it, else it stands beside this program, else in
 * `near` relative to this program's directory, else in PATH. The caller frees it; NULL: not found.
 */
char *path_program(const char *name, const char *env, const char *near);

/* Calls `fn` for each directory in which plugins are looked for, in order. */
void path_plugin_dirs(void (*fn)(void *arg, const char *dir), void *arg);

#endif
