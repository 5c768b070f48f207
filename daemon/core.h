/*
 * The core process as the daemon needs it: found running or started, its plugins loaded, its VMs
 * known. Loop thread only.
 *
 *      DOWN ──need──▶ LAUNCHING ──socket answers──▶ SETUP ──▶ UP
 *       ▲ ▲             │ did not come up            │         │
 *       │ └─────────────┴────────────────────────────┘         │
 *       └──────────────── connection lost ──────────────────────┘
 *
 * A core that somebody else starts is found by itself. One that dies is started again when it is
 * needed, later and later when it keeps dying.
 */
#ifndef MAYFLY_DAEMON_CORE_H
#define MAYFLY_DAEMON_CORE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/link.h"
#include "daemon/plugins.h"
#include "daemon/problem.h"

struct hvd;

enum core_state { CORE_DOWN, CORE_LAUNCHING, CORE_SETUP, CORE_UP };

struct core_config {
    const char *socket;
    const char *log_file;
    uint64_t memory; /* bytes of machine memory for a core that is started */
    const char *allocator;
    const char *teardown;
    const char *engine; /* for a core that is started; NULL: its own default */
};

typedef void (*core_need_fn)(void *arg, const struct problem *p);

struct core {
    struct hvd *d;
    struct core_config cfg;
    struct link link;
    enum core_state state;
    struct core_waiting *waiting, **waiting_tail;
    uv_timer_t timer;
    struct core_process *process; /* the core we started, as long as it lives; NULL: none */
    uint64_t launch_until;        /* loop time in ms */
    uint64_t not_before;          /* the next start or connection */
    uint64_t up_since;
    unsigned failures; /* in a row */
    char last_words[200];
    uint8_t instance[16]; /* of the core that is or was connected; zero before the first */
    uint32_t pid;
    uint64_t memory; /* bytes of machine memory; 0: not known yet */
    unsigned starts; /* cores started, for the metrics */
    unsigned losses;
    bool relist;                /* the list is to be gone through again */
    struct plugin_list plugins; /* of the last scan */
    unsigned loading;           /* plugins that are checked or on their way into the core */
    struct scan *scan;          /* the one under way, in setup.c; NULL: none */
};

bool core_init(struct core *c, struct hvd *d, const struct core_config *cfg);
/* Lets go of the connection; the core goes on. The loop must run once more. */
void core_fini(struct core *c);

/*
 * Calls `fn` once the core is up (p is NULL), or with the reason why it will not be. May call it
 * before it returns.
 */
void core_need(struct core *c, core_need_fn fn, void *arg);

/* Looks for new plugins and loads them. */
void core_rescan(struct core *c);
/* Goes through the list of VMs again. */
void core_relist(struct core *c);
/* The problem that a failed call's reply is. `field` replaces what the core named; NULL: as it is.
 */
void core_problem(const struct link_reply *r, const char *field, struct problem *p);
/* The file a strategy was loaded from, NULL when it is not known. */
const struct plugin_file *core_plugin(const struct core *c, uint32_t kind, const char *name);
/* Which events the core sends; console events only while somebody follows a console. */
void core_subscribe(struct core *c, bool consoles);

#endif
