/*
 * All VMs that the daemon knows: those that are defined, and those that the core has without a
 * definition (transient: one-shot runs, or what another client made). Loop thread only.
 *
 * A VM object lives while it is in the tables or anybody holds a reference; `listed` says which.
 * What happens to it is told by the core's events; `state` follows them alone, each one step. An
 * answer of the core comes behind all events that it is newer than, so it can only be older: what
 * it says of the state is shown to whoever asked, being of one moment with its other numbers.
 */
#ifndef MAYFLY_DAEMON_VMS_H
#define MAYFLY_DAEMON_VMS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/def.h"
#include "daemon/hub.h"
#include "daemon/link.h"

#define VMS_BUCKETS 4096u
#define VMS_EARLY   1024u /* events kept about VMs whose creation is not known yet */

struct vm;

/* Somebody who waits for a VM to come to a state. */
struct vm_waiter {
    struct vm_waiter *next;
    /* Called on each change of state, on the end, and when the VM goes. May take itself out. */
    void (*changed)(struct vm_waiter *w);
};

struct vm {
    struct vm *name_next, *id_next; /* in the buckets */
    struct vm *prev, *next;         /* in vms.all, by age */
    unsigned refs;
    bool listed;  /* in the tables */
    bool defined; /* has a definition on disk */
    bool hidden;  /* only keeps the name while its definition is being made */
    bool busy;    /* one request at a time may change what it is */
    bool ended;   /* the last life is over and its memory returned */
    bool stale;   /* not seen yet in the list that is being gone through */
    struct vm_def def;
    uint32_t id; /* in the core; 0: not there */
    uint32_t
        moves; /* of the state, as the core counts them; not known yet right after vms_set_id */
    bool moves_known;
    enum mf_vm_state state;
    bool has_info;          /* `info` says something: of this life or of the last one */
    bool info_now;          /* no event came since `info` was taken */
    struct mf_vm_info info; /* as it was last asked for */
    struct vm_waiter *waiters;
};

struct vms {
    struct link *link;
    struct hub *hub;
    struct vm *by_name[VMS_BUCKETS];
    struct vm *by_id[VMS_BUCKETS];
    struct vm *first, *last;
    unsigned count;
    unsigned creating; /* requests that make a VM in the core and do not know its id yet */
    struct vms_early { /* what happened meanwhile to VMs that nobody knew */
        enum mf_event_nr nr;
        struct mf_event event;
    } early[VMS_EARLY];
    unsigned nr_early;
    bool early_lost; /* there were more */
    /* Asks for a reconciliation: events were lost. */
    void (*relist)(void *arg);
    void *relist_arg;
};

void vms_init(struct vms *v, struct link *l, struct hub *h);
void vms_fini(struct vms *v);

struct vm *vms_find(struct vms *v, const char *name_or_uuid);
struct vm *vms_find_name(struct vms *v, const char *name);
struct vm *vms_find_uuid(struct vms *v, const uint8_t uuid[16]);
struct vm *vms_find_id(struct vms *v, uint32_t id);

/* Adds one under def->name, which is free; takes over what `def` owns on success. NULL: no memory.
 */
struct vm *vms_add(struct vms *v, struct vm_def *def);
/* Takes it out of the tables; waiters and clients are told. */
void vms_remove(struct vms *v, struct vm *vm);
void vm_ref(struct vm *vm);
void vm_unref(struct vm *vm);

/* The core's number of it, 0 for none. What happened under this number already is made up for. */
void vms_set_id(struct vms *v, struct vm *vm, uint32_t id);
/* An answer of the core. Moves the state on only where events were not told (lost, or new here). */
void vm_set_info(struct vms *v, struct vm *vm, const struct mf_vm_info *info);
/* The state that belongs to `info` while that is fresh, else the last one known. */
enum mf_vm_state vm_shown_state(const struct vm *vm);
bool vm_is_off(const struct vm *vm);
/* The VM has an end to tell of. */
bool vm_has_end(const struct vm *vm);

void vm_wait(struct vm *vm, struct vm_waiter *w);
void vm_unwait(struct vm *vm, struct vm_waiter *w);

/*
 * Brackets a request to the core that makes a VM. Events about ids that nobody knows are kept
 * until vms_set_id or until the last such request has ended; then the core is asked about them.
 */
void vms_creating(struct vms *v);
void vms_created(struct vms *v);

/* An event of the core about a VM. */
void vms_event(struct vms *v, enum mf_event_nr nr, const struct mf_event *e);

/*
 * Makes the tables agree with the core's list, which the caller goes through between the two:
 * begin, then each entry, then end.
 */
void vms_reconcile_begin(struct vms *v);
void vms_reconcile(struct vms *v, const struct mf_vm_info *info);
void vms_reconcile_end(struct vms *v);
/* The core is dead and every VM in it. */
void vms_core_lost(struct vms *v);

/* A fresh uuid; that of a one-shot run is marked, so that a later daemon clears it away. */
void uuid_make(uint8_t uuid[16], bool run);
bool uuid_is_run(const uint8_t uuid[16]);

const char *vm_state_text(enum mf_vm_state s);
const char *end_reason_word(uint32_t reason);
const char *end_reason_text(uint32_t reason);

#endif
