#include "hv/host/strategies.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hv/host/log.h"

static const char *kind_word(uint32_t kind)
{
    return kind == MF_PLUGIN_ALLOCATOR ? "allocator" : "teardown";
}

void strategies_init(struct strategies *s)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
}

void strategies_fini(struct strategies *s)
{
    struct strategy *next;

    for (struct strategy *i = s->first; i; i = next) {
        next = i->next;
        host_plugin_unload(&i->plugin);
        free(i);
    }
    s->first = NULL;
    pthread_mutex_destroy(&s->lock);
}

static struct strategy *find(struct strategies *s, uint32_t kind, const char *name)
{
    for (struct strategy *i = s->first; i; i = i->next)
        if (i->kind == kind && !strncmp(i->name, name, MF_NAME_MAX))
            return i;
    return NULL;
}

static void fill_info(const struct strategies *s, const struct strategy *i,
                      struct mf_strategy_info *out)
{
    memset(out, 0, sizeof *out);
    out->kind = i->kind;
    out->users = i->users;
    out->is_default = i == s->default_teardown || i == s->allocator;
    out->flags =
        i->kind == MF_PLUGIN_ALLOCATOR ? strategy_allocator(i)->flags : strategy_teardown(i)->flags;
    memcpy(out->name, i->name, sizeof out->name);
    memcpy(out->version, i->plugin.note.version, sizeof out->version);
    memcpy(out->summary, i->plugin.note.summary, sizeof out->summary);
}

enum mf_status strategies_load(struct strategies *s, int fd, struct mf_strategy_info *out,
                               struct mf_error *e)
{
    struct strategy *n = calloc(1, sizeof *n);
    enum mf_status st;

    if (!n)
        return error_set(e, MF_E_IO, NULL, "no memory for another strategy");
    st = host_plugin_load(&n->plugin, fd, e);
    if (st)
        goto fail;
    n->kind = n->plugin.note.kind;
    memcpy(n->name, n->plugin.note.name, sizeof n->name);
    pthread_mutex_lock(&s->lock);
    if (find(s, n->kind, n->name)) {
        pthread_mutex_unlock(&s->lock);
        st = error_set(e, MF_E_EXISTS, "name", "%s strategy %s is loaded already",
                       kind_word(n->kind), n->name);
        n->plugin.fd = -1; /* stays the caller's */
        host_plugin_unload(&n->plugin);
        goto fail;
    }
    struct strategy **end = &s->first;
    while (*end)
        end = &(*end)->next;
    *end = n;
    if (out)
        fill_info(s, n, out);
    pthread_mutex_unlock(&s->lock);
    log_line(LOG_INFO, "loaded %s strategy %s %s", kind_word(n->kind), n->name,
             n->plugin.note.version);
    return MF_OK;
fail:
    free(n);
    return st;
}

enum mf_status strategies_load_file(struct strategies *s, const char *path, struct mf_error *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum mf_status st;

    if (fd < 0)
        return error_set(e, MF_E_IO, "plugin", "%.100s: %s", path, strerror(errno));
    st = strategies_load(s, fd, NULL, e);
    if (st)
        close(fd);
    return st;
}

enum mf_status strategies_unload(struct strategies *s, uint32_t kind, const char *name,
                                 struct mf_error *e)
{
    struct strategy *i, **link;
    uint32_t users;

    pthread_mutex_lock(&s->lock);
    i = find(s, kind, name);
    users = i ? i->users : 0;
    if (i && !users) {
        for (link = &s->first; *link != i; link = &(*link)->next)
            ;
        *link = i->next;
    }
    pthread_mutex_unlock(&s->lock);
    if (!i)
        return error_set(e, MF_E_NOT_FOUND, "name", "no %s strategy %.31s is loaded",
                         kind_word(kind), name);
    if (users)
        return error_set(e, MF_E_BUSY, "name", "%s strategy %.31s has %u users", kind_word(kind),
                         name, users);
    log_line(LOG_INFO, "unloaded %s strategy %s", kind_word(kind), i->name);
    host_plugin_unload(&i->plugin);
    free(i);
    return MF_OK;
}

struct strategy *strategies_get(struct strategies *s, uint32_t kind, const char *name)
{
    struct strategy *i;

    pthread_mutex_lock(&s->lock);
    i = find(s, kind, name);
    if (i)
        i->users++;
    pthread_mutex_unlock(&s->lock);
    return i;
}

struct strategy *strategies_get_default(struct strategies *s)
{
    struct strategy *i;

    pthread_mutex_lock(&s->lock);
    i = s->default_teardown;
    if (i)
        i->users++;
    pthread_mutex_unlock(&s->lock);
    return i;
}

struct strategy *strategies_get_other(struct strategies *s, const struct strategy *not_this)
{
    struct strategy *i;

    pthread_mutex_lock(&s->lock);
    for (i = s->first; i; i = i->next)
        if (i != not_this && i->kind == MF_PLUGIN_TEARDOWN)
            break;
    if (i)
        i->users++;
    pthread_mutex_unlock(&s->lock);
    return i;
}

static void put_locked(struct strategy *st)
{
    if (st)
        st->users--;
}

void strategies_put(struct strategies *s, struct strategy *st)
{
    pthread_mutex_lock(&s->lock);
    put_locked(st);
    pthread_mutex_unlock(&s->lock);
}

void strategies_set_default(struct strategies *s, struct strategy *st)
{
    pthread_mutex_lock(&s->lock);
    put_locked(s->default_teardown);
    s->default_teardown = st;
    pthread_mutex_unlock(&s->lock);
}

void strategies_set_allocator(struct strategies *s, struct strategy *st)
{
    pthread_mutex_lock(&s->lock);
    put_locked(s->allocator);
    s->allocator = st;
    pthread_mutex_unlock(&s->lock);
}

void strategies_default_name(struct strategies *s, char *out)
{
    memset(out, 0, MF_NAME_MAX);
    pthread_mutex_lock(&s->lock);
    if (s->default_teardown)
        memcpy(out, s->default_teardown->name, MF_NAME_MAX);
    pthread_mutex_unlock(&s->lock);
}

unsigned strategies_list(struct strategies *s, struct mf_strategy_info *out, unsigned max)
{
    unsigned n = 0;

    pthread_mutex_lock(&s->lock);
    for (struct strategy *i = s->first; i; i = i->next, n++)
        if (n < max)
            fill_info(s, i, &out[n]);
    pthread_mutex_unlock(&s->lock);
    return n;
}
