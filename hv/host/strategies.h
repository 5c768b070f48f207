/*
 * The strategies that are loaded, and who uses them. A strategy that has users cannot be unloaded.
 * Thread safe.
 */
#ifndef MAYFLY_HOST_STRATEGIES_H
#define MAYFLY_HOST_STRATEGIES_H

#include <pthread.h>

#include "hv/host/plugin.h"

struct strategy {
    struct strategy *next;
    struct host_plugin plugin;
    char name[MF_NAME_MAX];
    uint32_t kind;
    uint32_t users; /* under the registry's lock */
};

struct strategies {
    pthread_mutex_t lock;
    /* under lock */
    struct strategy *first;
    struct strategy *default_teardown; /* counted as one of its users */
    struct strategy *allocator;        /* likewise: the heap's */
};

void strategies_init(struct strategies *s);
/* Nothing may use a strategy any more. */
void strategies_fini(struct strategies *s);

/* Takes over `fd` on success. Errors of host_plugin_load, and MF_E_EXISTS. */
enum mf_status strategies_load(struct strategies *s, int fd, struct mf_strategy_info *out,
                               struct mf_error *e);
/* Opens the file first. */
enum mf_status strategies_load_file(struct strategies *s, const char *path, struct mf_error *e);
/* MF_E_NOT_FOUND, MF_E_BUSY. */
enum mf_status strategies_unload(struct strategies *s, uint32_t kind, const char *name,
                                 struct mf_error *e);

/* The strategy with one user more, NULL when there is none of that name. */
struct strategy *strategies_get(struct strategies *s, uint32_t kind, const char *name);
/* The default for new VMs, with one user more; NULL when none is set. */
struct strategy *strategies_get_default(struct strategies *s);
/* Any other teardown strategy, with one user more: to finish what `not_this` could not. */
struct strategy *strategies_get_other(struct strategies *s, const struct strategy *not_this);
/* Takes NULL. */
void strategies_put(struct strategies *s, struct strategy *st);

/* Takes over the caller's use of `st` as the default, gives the former one's back. */
void strategies_set_default(struct strategies *s, struct strategy *st);
void strategies_set_allocator(struct strategies *s, struct strategy *st);
/* Name of the default teardown, empty when none; `out` has MF_NAME_MAX bytes. */
void strategies_default_name(struct strategies *s, char *out);

/* Fills at most `max` entries, returns how many there are. */
unsigned strategies_list(struct strategies *s, struct mf_strategy_info *out, unsigned max);

static inline const struct mf_teardown_ops *strategy_teardown(const struct strategy *st)
{
    return st->plugin.decl->ops.teardown;
}
static inline const struct mf_allocator_ops *strategy_allocator(const struct strategy *st)
{
    return st->plugin.decl->ops.allocator;
}

#endif
