/*
 * Plugin files: found in directories, checked without running any of their code. The core checks
 * again what it loads; what is refused here never reaches it.
 */
#ifndef MAYFLY_DAEMON_PLUGINS_H
#define MAYFLY_DAEMON_PLUGINS_H

#include "daemon/problem.h"
#include "proto/plugin.h"

/*
 * Opens `path` and checks it: its directory and the file itself belong to root or to us and can be
 * written by nobody else, the file is regular and has a sound manifest. The caller closes *fd.
 * MF_E_PERM, MF_E_PLUGIN, MF_E_ABI, MF_E_NOT_FOUND, with the field `path`.
 */
enum mf_status plugin_open(const char *path, int *fd, struct mf_plugin_note *note,
                           struct problem *p);

enum plugin_check {
    PLUGIN_UNKNOWN, /* the core had it already */
    PLUGIN_PASSED,
    PLUGIN_BROKEN, /* loaded all the same, where it is loaded */
    PLUGIN_NOT_CHECKED,
};

/* What a scan found in one file; `fd` is -1 and `why` says the reason when it was refused. */
struct plugin_file {
    char *path;
    int fd;
    struct mf_plugin_note note;
    enum plugin_check check;
    char why[256];
};

struct plugin_list {
    struct plugin_file *file;
    size_t count;
};

/*
 * All `*.so` of all plugin directories, by name within a directory. A name that an earlier file
 * has is refused. False: out of memory (what was found so far is in the list).
 */
bool plugin_scan(struct plugin_list *l);
/* Notes a file that was loaded by other means. False: out of memory. */
bool plugin_list_add(struct plugin_list *l, const char *path, const struct mf_plugin_note *note,
                     enum plugin_check check);
void plugin_list_fini(struct plugin_list *l);

#endif
