#include "daemon/vms.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/log.h"
#include "daemon/parse.h"

/* ---- words */

static const struct {
    const char *word;
    const char *text;
} reasons[] = {
    [MF_END_NONE] = {"none", "it has not ended"},
    [MF_END_POWEROFF] = {"poweroff", "the guest powered off"},
    [MF_END_DEBUG_EXIT] = {"debug-exit", "the guest wrote to the debug-exit port"},
    [MF_END_RESET] = {"reset", "the guest asked for a reset, which ends it"},
    [MF_END_GUEST_CALL] = {"guest-call", "the guest ended itself by hypercall"},
    [MF_END_TRIPLE_FAULT] = {"triple-fault", "the guest crashed by a triple fault"},
    [MF_END_BAD_ACCESS] = {"bad-access", "the guest crashed by an access outside its RAM"},
    [MF_END_ENGINE] = {"engine", "the engine could not go on with the guest"},
    [MF_END_DESTROYED] = {"destroyed", "it was destroyed on request"},
    [MF_END_SHUTDOWN] = {"shutdown", "the guest did not end in its grace period"},
    [MF_END_NO_MEMORY] = {"no-memory", "machine memory ran out under the guest"},
    [MF_END_CORE_LOST] = {"core-lost", "the hypervisor core died with it"},
    [MF_END_IMAGE] = {"image", "the kernel image could not be loaded"},
    [MF_END_PANIC] = {"panic", "the guest's kernel panicked"},
};

const char *end_reason_word(uint32_t r)
{
    return r < sizeof reasons / sizeof reasons[0] ? reasons[r].word : "engine";
}

const char *end_reason_text(uint32_t r)
{
    return r < sizeof reasons / sizeof reasons[0] ? reasons[r].text : "it ended";
}

const char *vm_state_text(enum mf_vm_state s)
{
    static const char *const words[] = {"shutoff", "starting", "running",
                                        "paused",  "stopping", "crashed"};

    return (unsigned)s < sizeof words / sizeof words[0] ? words[s] : "crashed";
}

/* ---- uuids: version 4, or version 8 with a mark in front */

static const uint8_t run_mark[6] = {'M', 'F', '-', 'r', 'u', 'n'};

void uuid_make(uint8_t uuid[16], bool run)
{
    if (getrandom(uuid, 16, 0) != 16)
        for (int i = 0; i < 16; i++)
            uuid[i] = (uint8_t)random();
    if (run)
        memcpy(uuid, run_mark, sizeof run_mark);
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | (run ? 0x80 : 0x40));
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

bool uuid_is_run(const uint8_t uuid[16])
{
    return memcmp(uuid, run_mark, sizeof run_mark) == 0 && (uuid[6] & 0xf0) == 0x80;
}

/* ---- tables */

static uint32_t hash_name(const char *s)
{
    uint32_t h = 2166136261u;

    for (; *s != '\0'; s++)
        h = (h ^ (uint8_t)*s) * 16777619u;
    return (h ^ h >> 15) % VMS_BUCKETS;
}

void vms_init(struct vms *v, struct link *l, struct hub *h)
{
    *v = (struct vms){.link = l, .hub = h};
}

void vms_fini(struct vms *v)
{
    while (v->first != NULL)
        vms_remove(v, v->first);
}

struct vm *vms_find_name(struct vms *v, const char *name)
{
    struct vm *vm = v->by_name[hash_name(name)];

    while (vm != NULL && strcmp(vm->def.name, name) != 0)
        vm = vm->name_next;
    return vm;
}

struct vm *vms_find_uuid(struct vms *v, const uint8_t uuid[16])
{
    struct vm *vm = v->first;

    while (vm != NULL && memcmp(vm->def.uuid, uuid, 16) != 0)
        vm = vm->next;
    return vm;
}

struct vm *vms_find(struct vms *v, const char *s)
{
    uint8_t uuid[16];
    struct vm *vm = vms_find_name(v, s);

    if (vm == NULL && parse_uuid(s, uuid))
        vm = vms_find_uuid(v, uuid);
    return vm == NULL || vm->hidden ? NULL : vm;
}

struct vm *vms_find_id(struct vms *v, uint32_t id)
{
    struct vm *vm = v->by_id[id % VMS_BUCKETS];

    while (vm != NULL && vm->id != id)
        vm = vm->id_next;
    return vm;
}

struct vm *vms_add(struct vms *v, struct vm_def *def)
{
    struct vm *vm = calloc(1, sizeof *vm);

    if (vm == NULL)
        return NULL;
    vm->refs = 1;
    vm->listed = true;
    vm->def = *def;
    vm->state = MF_VM_SHUTOFF;
    def_taken(def);
    struct vm **bucket = &v->by_name[hash_name(vm->def.name)];
    vm->name_next = *bucket;
    *bucket = vm;
    vm->prev = v->last;
    if (v->last != NULL)
        v->last->next = vm;
    else
        v->first = vm;
    v->last = vm;
    v->count++;
    return vm;
}

void vm_ref(struct vm *vm)
{
    vm->refs++;
}

void vm_unref(struct vm *vm)
{
    if (--vm->refs > 0)
        return;
    def_fini(&vm->def);
    free(vm);
}

/* Takes the kept events about `id` out of the list, then lets them happen in their order. */
static void replay(struct vms *v, uint32_t id)
{
    for (unsigned i = 0; i < v->nr_early;) {
        struct vms_early e = v->early[i];
        if (e.event.vm != id) {
            i++;
            continue;
        }
        v->nr_early--;
        memmove(&v->early[i], &v->early[i + 1], (v->nr_early - i) * sizeof v->early[0]);
        vms_event(v, e.nr, &e.event);
    }
}

void vms_set_id(struct vms *v, struct vm *vm, uint32_t id)
{
    struct vm **at = &v->by_id[vm->id % VMS_BUCKETS];

    if (vm->id == id)
        return;
    vm->moves_known = false;
    vm->info_now = false;
    if (vm->id != 0) {
        while (*at != vm)
            at = &(*at)->id_next;
        *at = vm->id_next;
    }
    vm->id = id;
    if (id == 0)
        return;
    at = &v->by_id[id % VMS_BUCKETS];
    vm->id_next = *at;
    *at = vm;
    replay(v, id);
}

static void tell_waiters(struct vm *vm)
{
    vm_ref(vm);
    for (struct vm_waiter *w = vm->waiters, *next; w != NULL; w = next) {
        next = w->next;
        w->changed(w);
    }
    vm_unref(vm);
}

void vms_remove(struct vms *v, struct vm *vm)
{
    struct vm **at = &v->by_name[hash_name(vm->def.name)];

    vms_set_id(v, vm, 0);
    while (*at != vm)
        at = &(*at)->name_next;
    *at = vm->name_next;
    *(vm->prev != NULL ? &vm->prev->next : &v->first) = vm->next;
    *(vm->next != NULL ? &vm->next->prev : &v->last) = vm->prev;
    v->count--;
    vm->listed = false;
    struct jsonw *w = vm->hidden ? NULL : hub_begin(v->hub, "vm-deleted");
    if (w != NULL) {
        jsonw_kstr(w, "vm", vm->def.name);
        hub_end(v->hub);
    }
    tell_waiters(vm);
    vm_unref(vm);
}

void vm_wait(struct vm *vm, struct vm_waiter *w)
{
    w->next = vm->waiters;
    vm->waiters = w;
}

void vm_unwait(struct vm *vm, struct vm_waiter *w)
{
    struct vm_waiter **at = &vm->waiters;

    while (*at != NULL && *at != w)
        at = &(*at)->next;
    if (*at != NULL)
        *at = w->next;
}

bool vm_is_off(const struct vm *vm)
{
    return vm->state == MF_VM_SHUTOFF || vm->state == MF_VM_CRASHED;
}

bool vm_has_end(const struct vm *vm)
{
    return vm->has_info && vm->info.end.reason != MF_END_NONE;
}

/* ---- what happens */

static void set_state(struct vms *v, struct vm *vm, enum mf_vm_state to)
{
    enum mf_vm_state from = vm->state;

    vm->info_now = false;
    if (from == to)
        return;
    vm->state = to;
    if (!vm_is_off(vm))
        vm->ended = false;
    struct jsonw *w = hub_begin(v->hub, "vm-state");
    if (w != NULL) {
        jsonw_kstr(w, "vm", vm->def.name);
        jsonw_ku64(w, "id", vm->id);
        jsonw_kstr(w, "from", vm_state_text(from));
        jsonw_kstr(w, "state", vm_state_text(to));
        hub_end(v->hub);
    }
    tell_waiters(vm);
}

static void say_ended(struct vms *v, struct vm *vm, uint32_t reason, uint64_t code)
{
    struct jsonw *w = hub_begin(v->hub, "vm-ended");

    if (w == NULL)
        return;
    jsonw_kstr(w, "vm", vm->def.name);
    jsonw_ku64(w, "id", vm->id);
    jsonw_kstr(w, "reason", end_reason_word(reason));
    jsonw_ku64(w, "code", code);
    hub_end(v->hub);
}

/* Takes the count of an event or an answer. False: what came says nothing new of the state. */
static bool take_moves(struct vm *vm, uint32_t moves)
{
    if (vm->moves_known && (int32_t)(moves - vm->moves) <= 0)
        return false;
    vm->moves_known = true;
    vm->moves = moves;
    return true;
}

void vm_set_info(struct vms *v, struct vm *vm, const struct mf_vm_info *info)
{
    vm->info = *info;
    vm->info.name[MF_VM_NAME_MAX - 1] = '\0';
    vm->info.teardown[MF_NAME_MAX - 1] = '\0';
    vm->info.end.teardown[MF_NAME_MAX - 1] = '\0';
    vm->info.end.detail[sizeof vm->info.end.detail - 1] = '\0';
    vm->has_info = true;
    if (take_moves(vm, info->moves))
        set_state(v, vm, (enum mf_vm_state)info->state);
    vm->info_now = true;
}

enum mf_vm_state vm_shown_state(const struct vm *vm)
{
    return vm->id != 0 && vm->info_now ? (enum mf_vm_state)vm->info.state : vm->state;
}

/* A definition as far as the core knows one. */
static struct vm *adopt(struct vms *v, const struct mf_vm_info *info)
{
    struct vm_def d;

    def_init(&d, DEF_DEFINE);
    snprintf(d.name, sizeof d.name, "%.*s", (int)sizeof info->name - 1, info->name);
    memcpy(d.uuid, info->uuid, 16);
    d.memory = info->memory;
    d.vcpus = info->vcpus;
    d.engine = (enum mf_engine)info->engine;
    return parse_vm_name(d.name) != NULL ? NULL : vms_add(v, &d);
}

/* The VM that the core's entry is about: by number, else by uuid and name, else a new one. */
static struct vm *identify(struct vms *v, const struct mf_vm_info *info)
{
    char name[MF_VM_NAME_MAX];
    struct vm *vm = vms_find_id(v, info->id);

    if (vm != NULL)
        return vm;
    snprintf(name, sizeof name, "%.*s", (int)sizeof info->name - 1, info->name);
    vm = vms_find_name(v, name);
    if (vm != NULL && (vm->id != 0 || memcmp(vm->def.uuid, info->uuid, 16) != 0)) {
        log_line(LOG_WARN, "the core has another VM named %s, number %u: left alone", name,
                 info->id);
        return NULL;
    }
    if (vm == NULL)
        vm = adopt(v, info);
    if (vm != NULL)
        vms_set_id(v, vm, info->id);
    return vm;
}

/* What a run of a former daemon left in the core goes once it has ended. */
static void sweep(struct vms *v, struct vm *vm)
{
    struct mf_args_vm a = {.vm = vm->id};
    struct link_request r = {.nr = MF_CALL_VM_DELETE, .args = &a};

    if (!vm->defined && !vm->busy && vm->id != 0 && vm_is_off(vm) && vm_has_end(vm) &&
        uuid_is_run(vm->def.uuid))
        link_call(v->link, &r);
}

struct lookup {
    struct vms *v;
    uint32_t id;
};

static void on_lookup(void *arg, const struct link_reply *r)
{
    struct lookup *l = arg;
    struct vm *vm = r->status == MF_OK ? identify(l->v, r->body) : NULL;

    if (vm != NULL) {
        vm_set_info(l->v, vm, r->body);
        sweep(l->v, vm);
    }
    free(l);
}

/* Asks the core about a VM: one that an event named, or one that has just ended. */
static void look_up(struct vms *v, uint32_t id)
{
    struct mf_args_vm a = {.vm = id};
    struct lookup *l = malloc(sizeof *l);

    if (l == NULL)
        return;
    *l = (struct lookup){v, id};
    link_call(v->link,
              &(struct link_request){.nr = MF_CALL_VM_INFO, .args = &a, .fn = on_lookup, .arg = l});
}

void vms_creating(struct vms *v)
{
    v->creating++;
}

void vms_created(struct vms *v)
{
    uint32_t last = 0;

    if (--v->creating > 0)
        return;
    for (unsigned i = 0; i < v->nr_early; i++) {
        if (v->early[i].event.vm != last && v->early[i].nr != MF_EVENT_VM_DELETED)
            look_up(v, v->early[i].event.vm);
        last = v->early[i].event.vm;
    }
    v->nr_early = 0;
    if (v->early_lost)
        v->relist(v->relist_arg);
    v->early_lost = false;
}

static void unknown_id(struct vms *v, enum mf_event_nr nr, const struct mf_event *e)
{
    if (v->creating == 0) {
        if (nr != MF_EVENT_VM_DELETED)
            look_up(v, e->vm);
    } else if (v->nr_early < VMS_EARLY) {
        v->early[v->nr_early++] = (struct vms_early){nr, *e};
    } else {
        v->early_lost = true;
    }
}

static void on_deleted(struct vms *v, struct vm *vm)
{
    vms_set_id(v, vm, 0);
    if (vm->defined || vm->busy) {
        set_state(v, vm, vm->state == MF_VM_CRASHED ? MF_VM_CRASHED : MF_VM_SHUTOFF);
        return;
    }
    vms_remove(v, vm);
}

void vms_event(struct vms *v, enum mf_event_nr nr, const struct mf_event *e)
{
    struct vm *vm = vms_find_id(v, e->vm);

    if (vm == NULL) {
        unknown_id(v, nr, e);
        return;
    }
    if (nr == MF_EVENT_VM_STATE && e->b <= MF_VM_CRASHED && take_moves(vm, e->moves))
        set_state(v, vm, (enum mf_vm_state)e->b);
    if (nr == MF_EVENT_VM_ENDED) {
        vm->ended = true;
        say_ended(v, vm, (uint32_t)e->a, e->b);
        if (!vm->busy || vm->defined)
            look_up(v, vm->id);
        tell_waiters(vm);
    }
    if (nr == MF_EVENT_VM_DELETED)
        on_deleted(v, vm);
}

/* ---- the whole list */

void vms_reconcile_begin(struct vms *v)
{
    for (struct vm *vm = v->first; vm != NULL; vm = vm->next)
        vm->stale = vm->id != 0;
}

void vms_reconcile(struct vms *v, const struct mf_vm_info *info)
{
    struct vm *vm = identify(v, info);

    if (vm == NULL)
        return;
    vm->stale = false;
    vm_set_info(v, vm, info);
    vm->ended = vm_is_off(vm) && vm_has_end(vm);
    tell_waiters(vm); /* an end may have been missed */
    if (vm->listed)
        sweep(v, vm);
}

void vms_reconcile_end(struct vms *v)
{
    for (struct vm *vm = v->first, *next; vm != NULL; vm = next) {
        next = vm->next;
        if (vm->id != 0 && vm->stale)
            on_deleted(v, vm);
    }
}

void vms_core_lost(struct vms *v)
{
    for (struct vm *vm = v->first, *next; vm != NULL; vm = next) {
        next = vm->next;
        if (vm->id == 0)
            continue;
        bool lived = !vm_is_off(vm);
        if (lived) {
            vm->has_info = true;
            vm->info.end = (struct mf_end_report){.reason = MF_END_CORE_LOST};
            say_ended(v, vm, MF_END_CORE_LOST, 0);
        }
        vms_set_id(v, vm, 0);
        vm_ref(vm);
        if (lived)
            set_state(v, vm, MF_VM_CRASHED);
        else
            tell_waiters(vm);
        if (vm->listed && !vm->defined && !vm->busy)
            vms_remove(v, vm);
        vm_unref(vm);
    }
}
