/*
 * Definitions on disk: one file `<name>.xml` each in a directory of their own. A definition is
 * replaced whole or not at all, whenever the daemon or the machine dies.
 */
#ifndef MAYFLY_DAEMON_STORE_H
#define MAYFLY_DAEMON_STORE_H

#include "daemon/def.h"

struct store {
    int dir; /* fd of the directory */
};

/* Makes the directory (0700, with its parents) where it is missing. MF_E_IO. */
enum mf_status store_init(struct store *s, const char *path, struct problem *p);
void store_fini(struct store *s);

/*
 * Both return once the change is on the disk. Any thread, one call at a time for a name.
 * MF_E_IO: nothing has changed. MF_E_NOT_FOUND of remove: there was none.
 */
enum mf_status store_save(const struct store *s, const struct vm_def *d, struct problem *p);
enum mf_status store_remove(const struct store *s, const char *name, struct problem *p);

/*
 * Reads every definition and removes what unfinished saves left behind. `fn` takes over what the
 * definition owns. A file that cannot be used goes to `bad` with the reason, and stays where it is.
 * MF_E_IO when the directory cannot be read.
 */
typedef void (*store_def_fn)(void *arg, struct vm_def *d);
typedef void (*store_bad_fn)(void *arg, const char *file, const char *why);
enum mf_status store_load(const struct store *s, store_def_fn fn, store_bad_fn bad, void *arg,
                          struct problem *p);

#endif
