/*
 * Loads a plugin's shared object: who owns the file, what its manifest says, and only then its
 * code.
 */
#ifndef MAYFLY_HOST_PLUGIN_H
#define MAYFLY_HOST_PLUGIN_H

#include "hv/host/error.h"

struct host_plugin {
    int fd;   /* stays open: it keeps the name /proc/self/fd/N, by which libc knows it, unique */
    void *dl; /* dlopen handle */
    struct mf_plugin_note note;
    const struct mf_plugin *decl;
};

/*
 * Takes over `fd` on success only. Errors: MF_E_PLUGIN (not a regular file, owned by somebody else,
 * writable by others, not a plugin, does not load, its declaration differs from its note, its ops
 * table is incomplete), MF_E_ABI (another ABI version), MF_E_IO.
 */
enum mf_status host_plugin_load(struct host_plugin *p, int fd, struct mf_error *e);
/* Nothing may run or hold its code any more. */
void host_plugin_unload(struct host_plugin *p);

/* Compares the declaration in the code with the note and checks that the ops table is complete. */
enum mf_status host_plugin_check(const struct mf_plugin *decl, const struct mf_plugin_note *note,
                                 struct mf_error *e);

#endif
