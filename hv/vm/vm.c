/* VM objects and their registry. Control thread. */
#include "hv/vm/vm.h"

#include <stdlib.h>
#include <string.h>

#include "hv/host/log.h"

#define WEIGHT_MAX 10000u

/* ---- the whole */

static bool scrub_step(void *arg)
{
    return heap_scrub_step(((struct vmm *)arg)->heap, VM_SCRUB_STEP) == MF_AGAIN;
}

static uint64_t now_ns(void *arg)
{
    const struct mm_env *env = ((struct vmm *)arg)->env;

    return env->now_ns(env->arg);
}

static void timer(struct sched_vm *v)
{
    chipset_run(&((struct vm *)((char *)v - offsetof(struct vm, sched)))->chipset);
}

static void deadline(struct sched_vm *v)
{
    struct vm *vm = (struct vm *)((char *)v - offsetof(struct vm, sched));

    atomic_store(&vm->deadline_hit, true);
}

static void kick(struct sched_cpu *c)
{
    struct vm_cpu *vc = (struct vm_cpu *)((char *)c - offsetof(struct vm_cpu, sched));

    atomic_fetch_or(&vc->cpu.events, CPU_EVENT_KICK);
    vc->vm->engine.ops->kick(&vc->cpu);
}

static void idle(struct sched_vm *v)
{
    struct vm *vm = (struct vm *)((char *)v - offsetof(struct vm, sched));
    const struct vmm_events *e = &vm->vmm->events;

    if (atomic_load_explicit(&vm->waited_for, memory_order_relaxed) && e->poke)
        e->poke(e->arg);
}

static void free_thread(void *thread)
{
    sched_thread_destroy(thread);
}

void vmm_set_engine(struct vmm *m, enum mf_engine engine, unsigned pool)
{
    const struct engine_setup setup = {.pool = pool, .thread_free = free_thread};

    m->engine = engine;
    engine_kvm()->setup(&setup);
}

enum mf_status vmm_init(struct vmm *m, struct heap *heap, struct strategies *strategies,
                        unsigned workers)
{
    memset(m, 0, sizeof *m);
    m->heap = heap;
    m->env = heap_env(heap);
    m->strategies = strategies;
    m->next_id = 1;
    boot_cache_init(&m->images);
    vmm_reap_init(m);
    m->slots = calloc(MF_VMS_MAX, sizeof(struct vm *));
    m->names = calloc(MF_VMS_MAX, sizeof(struct vm *));
    m->sched_ops = (struct sched_ops){.slice = vm_slice,
                                      .job = vm_job,
                                      .timer = timer,
                                      .deadline = deadline,
                                      .kick = kick,
                                      .idle = idle,
                                      .scrub = scrub_step,
                                      .reap = vmm_reap_step,
                                      .now_ns = now_ns,
                                      .arg = m};
    if (m->slots && m->names && sched_init(&m->sched, &m->sched_ops, workers)) {
        vmm_set_engine(m, MF_ENGINE_SOFT, 0);
        return MF_OK;
    }
    free(m->slots);
    free(m->names);
    vmm_reap_fini(m);
    return MF_E_IO;
}

void vmm_fini(struct vmm *m)
{
    sched_stop(&m->sched);
    while (m->first)
        if (vm_delete(m->first, NULL) != MF_OK)
            break;
    engine_kvm()->drain();
    vmm_reap_fini(m);
    sched_fini(&m->sched);
    boot_cache_fini(&m->images);
    free(m->slots);
    free(m->names);
}

/* ---- registry */

static uint32_t name_hash(const char *name)
{
    uint32_t h = 2166136261u;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 16777619u;
    return h % MF_VMS_MAX;
}

static struct vm *find_name(struct vmm *m, const char *name)
{
    struct vm *vm = m->names[name_hash(name)];

    while (vm && strcmp(vm->config.name, name) != 0)
        vm = vm->next_by_name;
    return vm;
}

struct vm *vm_find(struct vmm *m, uint32_t id)
{
    struct vm *vm = m->slots[id % MF_VMS_MAX];

    return vm && vm->id == id ? vm : NULL;
}

struct vm *vm_find_from(struct vmm *m, uint32_t id)
{
    struct vm *vm = vm_find(m, id);

    if (vm || id <= 1)
        return vm ? vm : m->first;
    for (vm = m->first; vm && vm->id < id; vm = vm->next)
        ;
    return vm;
}

/* Ids go up, so that one is not used again soon; a slot in use is stepped over. */
static uint32_t take_id(struct vmm *m)
{
    uint32_t id;

    do {
        id = m->next_id++;
        if (m->next_id == MF_VM_LAST_CREATED - MF_VMS_MAX)
            m->next_id = 1;
    } while (m->slots[id % MF_VMS_MAX]);
    return id;
}

/* Ascending by id; the end is right but after a wrap of the ids. */
static void link_vm(struct vmm *m, struct vm *vm)
{
    struct vm **bucket = &m->names[name_hash(vm->config.name)];
    struct vm *after = m->last;

    while (after && after->id > vm->id)
        after = after->prev;
    vm->prev = after;
    vm->next = after ? after->next : m->first;
    *(vm->prev ? &vm->prev->next : &m->first) = vm;
    *(vm->next ? &vm->next->prev : &m->last) = vm;
    vm->next_by_name = *bucket;
    *bucket = vm;
    m->slots[vm->id % MF_VMS_MAX] = vm;
    m->nr_vms++;
}

static void unlink_vm(struct vmm *m, struct vm *vm)
{
    struct vm **p = &m->names[name_hash(vm->config.name)];

    while (*p != vm)
        p = &(*p)->next_by_name;
    *p = vm->next_by_name;
    *(vm->prev ? &vm->prev->next : &m->first) = vm->next;
    *(vm->next ? &vm->next->prev : &m->last) = vm->prev;
    m->slots[vm->id % MF_VMS_MAX] = NULL;
    m->nr_vms--;
}

/* ---- create, delete */

static enum mf_status check_limits(struct vmm *m, const struct mf_args_vm_create *c,
                                   struct mf_error *e)
{
    uint64_t arena = heap_arena(m->heap)->frames * FRAME_SIZE;

    if (c->memory < MF_RAM_MIN || c->memory > arena)
        return error_set(e, MF_E_RANGE, "memory",
                         "%llu bytes of RAM: possible are %u to %llu, the core's memory",
                         (unsigned long long)c->memory, MF_RAM_MIN, (unsigned long long)arena);
    if (c->memory % MF_PAGE_SIZE)
        return error_set(e, MF_E_ALIGN, "memory", "%llu bytes of RAM are not a multiple of %u",
                         (unsigned long long)c->memory, MF_PAGE_SIZE);
    if (c->vcpus < 1 || c->vcpus > MF_VCPUS_MAX)
        return error_set(e, MF_E_RANGE, "vcpus", "%u vCPUs: possible are 1 to %u", c->vcpus,
                         MF_VCPUS_MAX);
    if (c->weight > WEIGHT_MAX)
        return error_set(e, MF_E_RANGE, "weight", "%u: possible are 1 to %u", c->weight,
                         WEIGHT_MAX);
    if (c->cap > 100)
        return error_set(e, MF_E_RANGE, "cap", "%u percent: possible are 1 to 100", c->cap);
    if (c->console_size > MF_CONSOLE_SIZE_MAX)
        return error_set(e, MF_E_RANGE, "console_size", "%u bytes: possible are up to %u",
                         c->console_size, MF_CONSOLE_SIZE_MAX);
    return MF_OK;
}

/* The engine for a VM that asks for `want`; NULL: KVM is asked for and *why it cannot be had. */
static const struct engine_ops *choose_engine(const struct vmm *m, uint32_t want, const char **why)
{
    if (want == MF_ENGINE_AUTO)
        want = m->engine;
    if (want == MF_ENGINE_SOFT)
        return engine_soft();
    if (engine_kvm()->probe(why) == MF_OK && (want == MF_ENGINE_KVM || !**why))
        return engine_kvm();
    return want == MF_ENGINE_KVM ? NULL : engine_soft();
}

static enum mf_status check_config(struct vmm *m, const struct mf_args_vm_create *c,
                                   struct mf_error *e)
{
    enum mf_status st = check_limits(m, c, e);
    const char *why;

    if (st)
        return st;
    if (c->flags & ~(MF_VM_RESET_ENDS | MF_VM_CLAIM | MF_VM_LARGE_PAGES))
        return error_set(e, MF_E_RESERVED, "flags", "unknown flags 0x%x", c->flags);
    if (c->engine > MF_ENGINE_KVM)
        return error_set(e, MF_E_RANGE, "engine", "%u is no engine", c->engine);
    if (!choose_engine(m, c->engine, &why))
        return error_set(e, MF_E_NOT_SUPPORTED, "engine", "KVM cannot be used: %s", why);
    if (find_name(m, c->name))
        return error_set(e, MF_E_EXISTS, "name", "a VM named %s exists", c->name);
    if (m->nr_vms >= MF_VMS_MAX)
        return error_set(e, MF_E_LIMIT, NULL, "%u VMs exist, the limit", m->nr_vms);
    return MF_OK;
}

static void vm_free(struct vm *vm)
{
    strategies_put(vm->vmm->strategies, vm->teardown);
    boot_set_destroy(vm->boot, &vm->vmm->images);
    console_fini(&vm->console);
    vm_part_fini(&vm->part);
    vm_machine_fini(vm);
    pthread_mutex_destroy(&vm->lock);
    free(vm->vcpus);
    free(vm->cpus);
    free(vm);
}

static struct vm *vm_alloc(struct vmm *m, const struct mf_args_vm_create *c)
{
    struct vm *vm = calloc(1, sizeof *vm);
    const char *why;

    if (!vm)
        return NULL;
    vm->cpus = calloc(c->vcpus, sizeof *vm->cpus);
    vm->vcpus = calloc(c->vcpus, sizeof *vm->vcpus);
    if (!vm->cpus || !vm->vcpus) {
        free(vm->vcpus);
        free(vm->cpus);
        free(vm);
        return NULL;
    }
    vm->vmm = m;
    vm->config = *c;
    pthread_mutex_init(&vm->lock, NULL);
    console_init(&vm->console, c->console_size ? c->console_size : MF_CONSOLE_SIZE);
    sched_vm_init(&vm->sched, c->weight, c->cap);
    for (unsigned i = 0; i < c->vcpus; i++) {
        vm->vcpus[i] = &vm->cpus[i].cpu;
        vm->cpus[i].vm = vm;
        vm->cpus[i].cpu.vm = &vm->engine;
        vm->cpus[i].cpu.index = i;
        vm->cpus[i].cpu.mops = &vm_machine_ops;
        vm->cpus[i].cpu.machine = vm;
        sched_cpu_init(&vm->sched, &vm->cpus[i].sched);
    }
    vm->engine.ops = choose_engine(m, c->engine, &why);
    vm->engine.nr_vcpus = c->vcpus;
    vm->engine.vcpus = vm->vcpus;
    return vm;
}

static enum mf_status take_teardown(struct vmm *m, const char *name, struct strategy **out,
                                    struct mf_error *e)
{
    *out = name[0] ? strategies_get(m->strategies, MF_PLUGIN_TEARDOWN, name)
                   : strategies_get_default(m->strategies);
    if (*out)
        return MF_OK;
    if (name[0])
        return error_set(e, MF_E_NO_TEARDOWN, "teardown", "no teardown strategy %s is loaded",
                         name);
    return error_set(e, MF_E_NO_TEARDOWN, "teardown",
                     "the core has no default teardown strategy: load and select one");
}

enum mf_status vm_create(struct vmm *m, const struct mf_args_vm_create *c, struct vm **out,
                         struct mf_error *e)
{
    uint64_t t0 = m->env->now_ns(m->env->arg);
    struct strategy *teardown;
    struct vm *vm;
    enum mf_status st = check_config(m, c, e);

    if (!st)
        st = take_teardown(m, c->teardown, &teardown, e);
    if (st)
        return st;
    vm = sched_reserve(&m->sched, m->nr_vms + 1) ? vm_alloc(m, c) : NULL;
    if (!vm) {
        strategies_put(m->strategies, teardown);
        return error_set(e, MF_E_NO_MEMORY, NULL, "no host memory for another VM");
    }
    vm->teardown = teardown;
    st = vm_machine_init(vm);
    if (st) {
        vm_free(vm);
        return error_set(e, st, NULL, "the machine's ports overlap");
    }
    vm->id = take_id(m);
    link_vm(m, vm);
    m->vms_created++;
    vm->created_at = m->env->now_ns(m->env->arg);
    vm->create_ns = vm->created_at - t0;
    *out = vm;
    return MF_OK;
}

enum mf_status vm_delete(struct vm *vm, struct mf_error *e)
{
    enum mf_vm_state state = vm_get_state(vm);

    if (!vm_state_off(state))
        return error_set(e, MF_E_STATE, NULL, "the VM is %s: only one that is off can be deleted",
                         vm_state_word(state));
    if (!sched_vm_idle(&vm->vmm->sched, &vm->sched))
        return MF_AGAIN;
    unlink_vm(vm->vmm, vm);
    vm_defer_forget(vm);
    vm_free(vm);
    return MF_OK;
}

struct boot_ram vm_ram(const struct vm *vm)
{
    struct boot_ram ram = boot_ram_layout(vm->config.memory);

    ram.no_1g = vm->engine.ops->has_1g && !vm->engine.ops->has_1g();
    return ram;
}

enum mf_status vm_set_boot(struct vm *vm, struct boot_set *boot, uint64_t took_ns,
                           struct mf_error *e)
{
    struct boot_ram ram = vm_ram(vm);
    struct boot_set *old = NULL;
    struct boot_plan plan;
    enum mf_status st = boot_plan_make(boot, &ram, &vm->tables, &plan, e);

    if (st)
        return st;
    pthread_mutex_lock(&vm->lock);
    if (vm_state_off(vm->state)) {
        old = vm->boot;
        vm->boot = boot;
        vm->create_ns += took_ns;
    } else {
        st = error_set(e, MF_E_STATE, NULL, "the VM is %s: its image cannot change",
                       vm_state_word(vm->state));
    }
    pthread_mutex_unlock(&vm->lock);
    boot_set_destroy(old, &vm->vmm->images);
    return st;
}

/* ---- looking at it */

enum mf_vm_state vm_get_state(struct vm *vm)
{
    enum mf_vm_state state;

    pthread_mutex_lock(&vm->lock);
    state = vm->state;
    pthread_mutex_unlock(&vm->lock);
    return state;
}

static void info_counters(struct vm *vm, struct mf_vm_info *out)
{
    struct s2_info s2;

    for (unsigned i = 0; i < vm->config.vcpus; i++) {
        const struct vcpu *v = &vm->cpus[i].cpu;

        out->instructions += atomic_load_explicit(&v->instructions, memory_order_relaxed);
        out->exits += atomic_load_explicit(&v->exits, memory_order_relaxed);
        out->stage2_faults += atomic_load_explicit(&v->stage2_faults, memory_order_relaxed);
    }
    out->halted = sched_vm_halted(&vm->vmm->sched, &vm->sched);
    if (!vm->s2)
        return;
    stage2_get_info(vm->s2, &s2);
    out->frames_ram = s2.frames_ram;
    out->frames_table = s2.frames_table;
    memcpy(out->leaves, s2.leaves, sizeof out->leaves);
    out->dirty_log = vm->part.dirty != NULL;
    out->frames_given = vm->part.given;
    out->frames_taken = vm->part.taken;
    if (vm->config.flags & MF_VM_CLAIM)
        out->claim_left = heap_claim_left(vm->vmm->heap, vm->owner);
}

void vm_get_info(struct vm *vm, struct mf_vm_info *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&vm->lock);
    out->id = vm->id;
    out->state = vm->state;
    out->moves = vm->moves;
    out->engine = (uint32_t)vm->engine.ops->kind;
    out->vcpus = vm->config.vcpus;
    out->memory = vm->config.memory;
    out->created_at = vm->created_at;
    out->started_at = vm->started_at;
    out->starts = vm->starts;
    out->end = vm->end;
    info_counters(vm, out);
    memcpy(out->teardown, vm->teardown->name, sizeof out->teardown);
    pthread_mutex_unlock(&vm->lock);
    out->console_end = console_end(&vm->console);
    memcpy(out->uuid, vm->config.uuid, sizeof out->uuid);
    memcpy(out->name, vm->config.name, sizeof out->name);
}
