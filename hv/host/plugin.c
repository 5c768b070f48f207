#include "hv/host/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/plugin_note.h"

static enum mf_status check_file(int fd, off_t *size, struct mf_error *e)
{
    struct stat st;

    if (fstat(fd, &st))
        return error_set(e, MF_E_IO, "fd", "the plugin's file cannot be looked at: %s",
                         strerror(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(e, MF_E_PLUGIN, "fd", "the plugin is not a regular file");
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return error_set(e, MF_E_PLUGIN, "fd",
                         "the plugin's file belongs to user %u, neither to root nor to user %u",
                         st.st_uid, geteuid());
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return error_set(e, MF_E_PLUGIN, "fd",
                         "the plugin's file is writable by others than its owner (mode %04o)",
                         (unsigned)st.st_mode & 07777u);
    if (st.st_size > (off_t)MF_PLUGIN_FILE_MAX)
        return error_set(e, MF_E_PLUGIN, "fd", "the plugin's file is larger than %u bytes",
                         MF_PLUGIN_FILE_MAX);
    *size = st.st_size;
    return MF_OK;
}

/* A file may shrink while it is read: pread into our own memory, never a mapping. */
static enum mf_status read_note(int fd, off_t size, struct mf_plugin_note *note, struct mf_error *e)
{
    uint8_t *buf = malloc(size ? (size_t)size : 1);
    const char *why = NULL;
    enum mf_status st;
    size_t have = 0;

    if (!buf)
        return error_set(e, MF_E_IO, "fd", "no memory to read the plugin's file");
    while (have < (size_t)size) {
        ssize_t n = pread(fd, buf + have, (size_t)size - have, (off_t)have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            free(buf);
            return error_set(e, MF_E_IO, "fd", "the plugin's file cannot be read: %s",
                             strerror(errno));
        }
        if (n == 0)
            break;
        have += (size_t)n;
    }
    st = mf_plugin_note_find(buf, have, note, &why);
    free(buf);
    if (st == MF_E_ABI)
        return error_set(e, st, "abi", "plugin ABI %u, spoken here is %u", note->abi,
                         MF_PLUGIN_ABI);
    return st ? error_set(e, st, "note", "%s", why) : MF_OK;
}

static bool allocator_complete(const struct mf_allocator_ops *o)
{
    return o->size >= sizeof *o && o->meta_size && o->init && o->add && o->alloc && o->free &&
           o->list && o->stats && o->fini;
}

static bool teardown_complete(const struct mf_teardown_ops *o)
{
    return o->size >= sizeof *o && o->begin && o->step && o->state_size <= MF_ZAP_STATE_MAX;
}

static enum mf_status check_ops(const struct mf_plugin *d, struct mf_error *e)
{
    uint32_t known =
        d->kind == MF_PLUGIN_ALLOCATOR ? MF_ALLOC_THREAD_SAFE | MF_ALLOC_MERGES : MF_TD_FLAGS;
    uint32_t flags;
    bool complete;

    if (!d->ops.allocator)
        return error_set(e, MF_E_PLUGIN, "ops", "the plugin has no ops table");
    if (d->kind == MF_PLUGIN_ALLOCATOR) {
        complete = allocator_complete(d->ops.allocator);
        flags = d->ops.allocator->flags;
    } else {
        complete = teardown_complete(d->ops.teardown);
        flags = d->ops.teardown->flags;
    }
    if (!complete)
        return error_set(e, MF_E_PLUGIN, "ops", "the plugin's ops table is incomplete");
    if (flags & ~known)
        return error_set(e, MF_E_PLUGIN, "flags", "the ops table has unknown flags 0x%x",
                         flags & ~known);
    return MF_OK;
}

enum mf_status host_plugin_check(const struct mf_plugin *d, const struct mf_plugin_note *note,
                                 struct mf_error *e)
{
    if (d->abi != MF_PLUGIN_ABI)
        return error_set(e, MF_E_ABI, "abi", "plugin ABI %u, spoken here is %u", d->abi,
                         MF_PLUGIN_ABI);
    if (d->size < sizeof *d)
        return error_set(e, MF_E_PLUGIN, "size", "the plugin's declaration is %u bytes, not %zu",
                         d->size, sizeof *d);
    if (d->kind != note->kind)
        return error_set(e, MF_E_PLUGIN, "kind", "kind %u in the code, %u in the note", d->kind,
                         note->kind);
    if (!d->name || strncmp(d->name, note->name, MF_NAME_MAX) != 0)
        return error_set(e, MF_E_PLUGIN, "name", "the name in the code is not that in the note");
    return check_ops(d, e);
}

enum mf_status host_plugin_load(struct host_plugin *p, int fd, struct mf_error *e)
{
    char path[32];
    off_t size = 0;
    enum mf_status st;

    memset(p, 0, sizeof *p);
    p->fd = -1;
    st = check_file(fd, &size, e);
    if (!st)
        st = read_note(fd, size, &p->note, e);
    if (st)
        return st;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    p->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!p->dl)
        return error_set(e, MF_E_PLUGIN, "fd", "the plugin does not load: %s", dlerror());
    p->decl = dlsym(p->dl, MF_PLUGIN_SYMBOL);
    if (!p->decl)
        st = error_set(e, MF_E_PLUGIN, "symbol", "the plugin has no symbol " MF_PLUGIN_SYMBOL);
    else
        st = host_plugin_check(p->decl, &p->note, e);
    if (st) {
        dlclose(p->dl);
        p->dl = NULL;
        return st;
    }
    p->fd = fd;
    return MF_OK;
}

void host_plugin_unload(struct host_plugin *p)
{
    if (p->dl)
        dlclose(p->dl);
    if (p->fd >= 0)
        close(p->fd);
    p->dl = NULL;
    p->fd = -1;
}
