/*
 * A VM's life: start, slices, end, teardown.
 *
 * An end is asked for by whoever finds its reason (a device, an exit, a hypercall, a deadline).
 * From there on no slice begins; when nothing works on the VM any more its job runs these phases,
 * each in bounded steps:
 *
 *   UNREACHABLE   the engine gives up the vCPUs: nobody can translate any more
 *   CLEAN         RAM that was backed by blocks is cleared, by what was touched of it
 *   BEGIN         a strategy that defers: all that follows is the reaper's (dying.c), the VM is off
 *   BEGIN, ZAP    the teardown strategy takes all mappings out; one that fails is replaced
 *   REAP          the retired frames go to the heap
 *   DESTROY       the roots follow; report, event; shutoff, crashed, or starting again
 */
#include "hv/vm/vm.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "hv/host/log.h"

#define OWNER_LIFE  UINT32_C(0x80000000)
#define OWNER_TRIES 256u

static uint64_t now(const struct vm *vm)
{
    return vm->vmm->env->now_ns(vm->vmm->env->arg);
}

bool vm_transition(struct vm *vm, enum mf_vm_state to)
{
    const struct vmm_events *e = &vm->vmm->events;
    enum mf_vm_state from = vm->state;

    if (!vm_state_legal(from, to)) {
        log_line(LOG_ERROR, "vm %u: refused the transition from %s to %s", vm->id,
                 vm_state_word(from), vm_state_word(to));
        return false;
    }
    vm->state = to;
    vm->moves++;
    if (vm_state_off(from))
        atomic_fetch_add(&vm->vmm->running, 1);
    if (to == MF_VM_STOPPING)
        atomic_fetch_add(&vm->vmm->stopping, 1);
    if (from == MF_VM_STOPPING)
        atomic_fetch_sub(&vm->vmm->stopping, 1);
    if (vm_state_off(to))
        atomic_fetch_sub(&vm->vmm->running, 1);
    if (e->state)
        e->state(e->arg, vm->id, from, to, vm->moves);
    return true;
}

/* ---- begin */

static void life_reset_machine(struct vm *vm)
{
    console_forget(&vm->console);
    atomic_store(&vm->guest_events, 0);
    atomic_store(&vm->first_run_at, 0);
    atomic_store(&vm->deadline_hit, false);
    atomic_store(&vm->clock_frozen, 0);
    vm_machine_reset(vm);
    for (unsigned i = 0; i < vm->config.vcpus; i++) {
        struct vcpu *v = &vm->cpus[i].cpu;

        atomic_store(&v->events, 0);
        atomic_store(&v->instructions, 0);
        atomic_store(&v->exits, 0);
        atomic_store(&v->decodes, 0);
        atomic_store(&v->tlb_misses, 0);
        atomic_store(&v->stage2_faults, 0);
        vm->cpus[i].starved = false;
    }
}

/*
 * The frames of a life are owned by OWNER_VM(id), or, while the reaper still has an earlier life's,
 * by a number made for this one.
 */
static enum mf_status life_take_owner(struct vm *vm, uint64_t quota)
{
    struct vmm *m = vm->vmm;
    enum mf_status st;

    vm->owner = OWNER_VM(vm->id);
    st = heap_owner_begin(m->heap, vm->owner, quota);
    for (unsigned i = 0; st == MF_E_EXISTS && i < OWNER_TRIES; i++) {
        vm->owner = OWNER_LIFE | (atomic_fetch_add(&m->owners, 1) & (OWNER_LIFE - 1) >> 1);
        st = heap_owner_begin(m->heap, vm->owner, quota);
    }
    return st;
}

/*
 * What a VM claims at its start: its RAM, and the tables for all of it in one root, with the roots
 * and the second stage's own frame. More tables (another root) come from what is free then.
 */
static enum mf_status life_claim(struct vm *vm, struct mf_error *e)
{
    uint64_t frames = vm->config.memory >> FRAME_SHIFT;
    struct heap_shortage why;
    enum mf_status st;

    if (!(vm->config.flags & MF_VM_CLAIM))
        return MF_OK;
    frames += frames / MF_PT_ENTRIES + frames / (MF_PT_ENTRIES * MF_PT_ENTRIES) + 24;
    st = heap_claim(vm->vmm->heap, vm->owner, frames, &why);
    if (!st)
        return MF_OK;
    return error_set(e, st, "memory",
                     "the claim of %" PRIu64 " frames, tables included, is refused: %" PRIu64
                     " frames are free, %" PRIu64 " of them claimed",
                     why.asked, why.free, why.claimed);
}

static enum mf_status life_make_stage2(struct vm *vm, struct mf_error *e)
{
    struct boot_ram ram = vm_ram(vm);
    struct s2_config c = {
        .roots = 2,
        .track = strategy_teardown(vm->teardown)->flags & MF_TD_TRACKS,
        .arena = strategy_teardown(vm->teardown)->flags & MF_TD_ARENA,
        .nr_regions = ram.high ? 2 : 1,
        .regions = {{gfn(0), ram.low >> FRAME_SHIFT},
                    {gpa_to_gfn(gpa(BOOT_HIGH_BASE)), ram.high >> FRAME_SHIFT}},
        .fault_order = vm->config.flags & MF_VM_LARGE_PAGES ? ORDER_2M : ORDER_4K,
    };

    /* RAM, and tables for every leaf of it in each root, with room to spare: a bound, not a guess.
     */
    uint64_t frames = vm->config.memory >> FRAME_SHIFT;
    uint64_t quota = frames + c.roots * (frames / 256 + 16);
    enum mf_status st = life_take_owner(vm, quota);

    if (st)
        return error_set(e, st, "memory", "the VM cannot own memory: %s", mf_status_text(st));
    c.owner = vm->owner;
    st = life_claim(vm, e);
    if (st)
        goto fail;
    st = stage2_create(vm->vmm->heap, &c, &vm->s2);
    if (!st)
        return MF_OK;
    error_set(e, st, "memory", "the VM's tables cannot be made: %s", mf_status_text(st));
fail:
    heap_owner_end(vm->vmm->heap, c.owner);
    return st;
}

/* Takes the VM's second stage away. Frames that it still held would be lost: that is said loudly.
 */
static enum mf_status life_drop_stage2(struct vm *vm)
{
    enum mf_status st = stage2_destroy(vm->s2);
    uint64_t left;

    if (st)
        return st;
    vm->s2 = NULL;
    vm->engine.s2 = NULL;
    left = heap_owner_end(vm->vmm->heap, vm->owner);
    if (left)
        log_line(LOG_ERROR, "vm %u: %llu frames did not come back", vm->id,
                 (unsigned long long)left);
    return MF_OK;
}

/* A vCPU of an engine that wants it gets a thread: the one that its engine kept, or a new one. */
static enum mf_status life_give_thread(struct vm *vm, struct vm_cpu *vc)
{
    struct sched *s = &vm->vmm->sched;

    /* Without workers the caller drives everything, such vCPUs too. */
    if (!vm->engine.ops->own_threads || !s->nr_workers)
        return MF_OK;
    if (!vc->cpu.thread)
        vc->cpu.thread = sched_thread_create(s);
    if (!vc->cpu.thread)
        return MF_E_LIMIT;
    sched_thread_tie(vc->cpu.thread, &vc->sched);
    return MF_OK;
}

static void life_drop_engine(struct vm *vm, unsigned vcpus)
{
    while (vcpus--) {
        sched_thread_untie(&vm->cpus[vcpus].sched);
        vm->engine.ops->vcpu_fini(&vm->cpus[vcpus].cpu);
    }
    vm->engine.ops->vm_fini(&vm->engine);
}

enum mf_status vm_life_begin(struct vm *vm, struct mf_error *e)
{
    struct boot_ram ram = vm_ram(vm);
    enum mf_status st = boot_load_begin(&vm->load, vm->boot, &ram, &vm->tables, e);
    unsigned n = 0;

    if (st)
        return st;
    life_reset_machine(vm);
    st = life_make_stage2(vm, e);
    if (st) {
        vm->s2 = NULL;
        return st;
    }
    vm->engine.s2 = vm->s2;
    st = vm->engine.ops->vm_init(&vm->engine);
    if (st)
        goto fail_s2;
    for (; n < vm->config.vcpus && !st; n++) {
        st = vm->engine.ops->vcpu_init(&vm->cpus[n].cpu);
        if (st)
            goto fail_cpus;
        st = life_give_thread(vm, &vm->cpus[n]);
    }
    if (st)
        goto fail_cpus;
    vm->ram_at = gfn(0);
    vm->ram_backed = !vm->engine.ops->wants_ram;
    vm->started_at = now(vm);
    vm->starts++;
    vm->phase = VM_PHASE_LOAD;
    return MF_OK;
fail_cpus:
    life_drop_engine(vm, n);
fail_s2:
    life_drop_stage2(vm);
    return error_set(e, st, "engine", "the engine cannot make the VM: %s", mf_status_text(st));
}

/* Whoever waits for the start's result may look. */
static void life_told(struct vm *vm)
{
    if (atomic_load(&vm->waited_for) && vm->vmm->events.poke)
        vm->vmm->events.poke(vm->vmm->events.arg);
}

/* All but the first vCPU wait to be started by it. */
static enum mf_status life_park_others(struct vm *vm)
{
    struct cpu_state state;
    enum mf_status st = MF_OK;

    cpu_state_reset(&state);
    state.wait_sipi = 1;
    for (unsigned i = 1; i < vm->config.vcpus && !st; i++)
        st = vm->engine.ops->set_state(&vm->cpus[i].cpu, &state);
    return st;
}

static void life_run(struct vm *vm, const struct boot_entry *entry)
{
    struct cpu_state state;
    enum mf_status st;

    vm_entry_state(entry, &state);
    st = vm->engine.ops->set_state(&vm->cpus[0].cpu, &state);
    if (!st && vm->config.vcpus > 1)
        st = life_park_others(vm);

    pthread_mutex_lock(&vm->lock);
    if (vm->state == MF_VM_STARTING && st) {
        vm_end_locked(vm, MF_END_ENGINE, 0, "the engine refuses the entry state");
    } else if (vm->state == MF_VM_STARTING) {
        uint64_t t = now(vm);

        vm->phase = VM_PHASE_NONE;
        vm->report.start_ns = t - vm->start_began;
        atomic_store(&vm->clock_base, t);
        vm_transition(vm, MF_VM_RUNNING);
        sched_vm_start(&vm->vmm->sched, &vm->sched);
    }
    vm->start_status = st;
    pthread_mutex_unlock(&vm->lock);
    life_told(vm);
}

/* One step of loading. True: more to do. */
static bool life_load(struct vm *vm, uint64_t budget)
{
    struct boot_entry entry;
    enum mf_status st = MF_OK;

    if (!vm->ram_backed) {
        st = stage2_populate(vm->s2, &vm->ram_at, VM_RAM_STEP);
        vm->ram_backed = !st;
    }
    if (!st)
        st = boot_load_step(&vm->load, vm->s2, budget, &entry);
    if (st == MF_AGAIN)
        return true;
    if (!st) {
        life_run(vm, &entry);
        return false;
    }
    pthread_mutex_lock(&vm->lock);
    vm->start_status = st;
    vm_end_locked(vm, st == MF_E_IMAGE ? MF_END_IMAGE : MF_END_NO_MEMORY, 0, mf_status_text(st));
    pthread_mutex_unlock(&vm->lock);
    life_told(vm);
    return false;
}

static uint64_t boot_bytes(const struct boot_set *b)
{
    uint64_t n = b->kernel->elf.file_bytes;

    for (unsigned i = 0; i < b->nr_modules; i++)
        n += b->module[i]->size;
    return n;
}

static enum mf_status start_locked(struct vm *vm, struct mf_error *e)
{
    enum mf_status st;

    if (!vm_state_off(vm->state))
        return error_set(e, MF_E_STATE, NULL, "the VM is %s already", vm_state_word(vm->state));
    if (!vm->boot)
        return error_set(e, MF_E_STATE, "kernel", "the VM has no kernel image");
    memset(&vm->report, 0, sizeof vm->report);
    vm->start_began = now(vm);
    vm->start_status = MF_OK;
    vm->restart = false;
    st = vm_life_begin(vm, e);
    if (!st)
        vm_transition(vm, MF_VM_STARTING);
    return st;
}

/* No memory, but that of other VMs is on its way back: the start waits for it, not for ever. */
static bool worth_waiting(struct vm *vm, enum mf_status st, bool hope)
{
    uint64_t t = now(vm);

    if (st != MF_E_NO_MEMORY || !hope ||
        (vm->start_waits && t - vm->start_waits > VM_START_WAIT_NS)) {
        vm->start_waits = 0;
        return false;
    }
    if (!vm->start_waits)
        vm->start_waits = t;
    return true;
}

enum mf_status vm_start(struct vm *vm, struct mf_error *e)
{
    bool hope = vmm_memory_coming(vm->vmm); /* before: it may all be back by the time of failing */
    enum mf_status st;

    /* The worker that ended the last life may still hold the VM for an instant. */
    if (vm_state_off(vm_get_state(vm)) && !sched_vm_idle(&vm->vmm->sched, &vm->sched))
        return MF_AGAIN;
    pthread_mutex_lock(&vm->lock);
    st = start_locked(vm, e);
    pthread_mutex_unlock(&vm->lock);
    if (worth_waiting(vm, st, hope))
        return MF_AGAIN;
    if (st)
        return st;
    /* Nobody else looks at a VM that is starting and has no job: load a small image here. */
    if (boot_bytes(vm->boot) > VM_LOAD_INLINE ||
        (vm->engine.ops->wants_ram && vm->config.memory > VM_RAM_INLINE)) {
        atomic_store(&vm->waited_for, true);
        sched_job(&vm->vmm->sched, &vm->sched);
        return MF_BLOCKED;
    }
    while (life_load(vm, VM_LOAD_STEP))
        ;
    return vm_start_result(vm, e);
}

enum mf_status vm_start_result(struct vm *vm, struct mf_error *e)
{
    enum mf_status st;

    pthread_mutex_lock(&vm->lock);
    st = vm->state == MF_VM_STARTING ? MF_BLOCKED : vm->start_status;
    pthread_mutex_unlock(&vm->lock);
    if (st == MF_BLOCKED)
        return st;
    atomic_store(&vm->waited_for, false);
    return st ? error_set(e, st, "memory", "the image cannot be loaded: %s", mf_status_text(st))
              : MF_OK;
}

/* ---- slices */

__attribute__((format(printf, 4, 5))) static void
crash(struct vm_cpu *vc, enum mf_end_reason reason, uint64_t code, const char *fmt, ...)
{
    struct vm *vm = vc->vm;
    struct cpu_state s;
    char detail[sizeof vm->report.detail];
    va_list ap;

    if (vm_get_state(vm) == MF_VM_STOPPING)
        return; /* its memory is being taken away: what it meets there says nothing */
    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    memset(&s, 0, sizeof s);
    vm->engine.ops->get_state(&vc->cpu, &s);
    size_t n = strlen(detail);
    snprintf(detail + n, sizeof detail - n, ", rip 0x%" PRIx64, s.rip);
    log_line(LOG_WARNING, "vm %u (%s) vcpu %u: %s", vm->id, vm->config.name, vc->cpu.index, detail);
    log_line(LOG_INFO,
             "vm %u: rax %016" PRIx64 " rbx %016" PRIx64 " rcx %016" PRIx64 " rdx %016" PRIx64
             " rsi %016" PRIx64 " rdi %016" PRIx64 " rbp %016" PRIx64 " rsp %016" PRIx64,
             vm->id, s.gpr[CPU_RAX], s.gpr[CPU_RBX], s.gpr[CPU_RCX], s.gpr[CPU_RDX], s.gpr[CPU_RSI],
             s.gpr[CPU_RDI], s.gpr[CPU_RBP], s.gpr[CPU_RSP]);
    log_line(LOG_INFO,
             "vm %u: r8 %016" PRIx64 " r9 %016" PRIx64 " r10 %016" PRIx64 " r11 %016" PRIx64
             " r12 %016" PRIx64 " r13 %016" PRIx64 " r14 %016" PRIx64 " r15 %016" PRIx64,
             vm->id, s.gpr[8], s.gpr[9], s.gpr[10], s.gpr[11], s.gpr[12], s.gpr[13], s.gpr[14],
             s.gpr[15]);
    log_line(LOG_INFO,
             "vm %u: rip %016" PRIx64 " rflags %08" PRIx64 " cr0 %08" PRIx64 " cr2 %016" PRIx64
             " cr3 %016" PRIx64 " cr4 %08" PRIx64 " efer %08" PRIx64 " cs %04x ss %04x"
             " idt %" PRIx64 "+%x gdt %" PRIx64 "+%x",
             vm->id, s.rip, s.rflags, s.cr0, s.cr2, s.cr3, s.cr4, s.efer, s.seg[CPU_CS].selector,
             s.seg[CPU_SS].selector, s.idt_base, s.idt_limit, s.gdt_base, s.gdt_limit);
    vm_end(vm, reason, code, detail);
}

/*
 * No frame for a page that the guest touched. While others' memory is on its way back the vCPU
 * tries again; it was left before the access. `hope`: some was on its way when the slice began; all
 * of it may have come back between the failure and now, so the vCPU ends only when a slice that
 * began and ended without hope found no memory, and one before did not either. A VM that is
 * stopping gets here too: its second stage is closed.
 */
static enum sched_after no_memory(struct vm_cpu *vc, bool hope)
{
    bool starved = vc->starved;

    if (vc->cpu.status == MF_E_STATE)
        return SCHED_AFTER_QUEUE;
    vc->starved = true;
    if (vc->cpu.status == MF_E_NO_MEMORY && (hope || !starved || vmm_memory_coming(vc->vm->vmm)))
        return SCHED_AFTER_QUEUE;
    crash(vc, MF_END_NO_MEMORY, 0, "no machine memory for a page the guest touched (%s)",
          mf_status_code(vc->cpu.status));
    return SCHED_AFTER_OFF;
}

enum sched_after vm_slice(struct sched_cpu *c)
{
    struct vm_cpu *vc = (struct vm_cpu *)((char *)c - offsetof(struct vm_cpu, sched));
    struct vcpu *v = &vc->cpu;
    struct vm *vm = vc->vm;
    const uint32_t wakes = CPU_EVENT_INTR | CPU_EVENT_NMI | CPU_EVENT_INIT | CPU_EVENT_SIPI;
    bool hope = vmm_memory_coming(vm->vmm);
    enum cpu_exit why;

    if (!atomic_load_explicit(&vm->first_run_at, memory_order_relaxed))
        atomic_store(&vm->first_run_at, now(vm));
    why = vm->engine.ops->run(v, VM_SLICE);
    uint32_t events = atomic_fetch_and(&v->events, ~CPU_EVENT_KICK);
    if (why != CPU_EXIT_NO_MEMORY)
        vc->starved = false;
    switch (why) {
    case CPU_EXIT_BUDGET:
    case CPU_EXIT_EVENT:
    case CPU_EXIT_YIELD:
        return SCHED_AFTER_QUEUE;
    case CPU_EXIT_STOP:
        return SCHED_AFTER_OFF;
    case CPU_EXIT_HALT:
        return events & (v->halt_masked ? wakes & ~CPU_EVENT_INTR : wakes) ? SCHED_AFTER_QUEUE
                                                                           : SCHED_AFTER_HALT;
    case CPU_EXIT_TRIPLE_FAULT:
        crash(vc, MF_END_TRIPLE_FAULT, 0, "triple fault");
        return SCHED_AFTER_OFF;
    case CPU_EXIT_BAD_ACCESS:
        crash(vc, MF_END_BAD_ACCESS, v->bad_gpa.v, "access to 0x%" PRIx64 " outside RAM",
              v->bad_gpa.v);
        return SCHED_AFTER_OFF;
    case CPU_EXIT_NO_MEMORY:
        return no_memory(vc, hope);
    case CPU_EXIT_FAILED:
    default:
        crash(vc, MF_END_ENGINE, 0, "%.100s", v->detail);
        return SCHED_AFTER_OFF;
    }
}

/* ---- end */

void vm_end_locked(struct vm *vm, enum mf_end_reason reason, uint64_t code, const char *detail)
{
    struct mf_end_report *r = &vm->report;
    uint64_t first = atomic_load(&vm->first_run_at);

    if (vm->state != MF_VM_STARTING && vm->state != MF_VM_RUNNING && vm->state != MF_VM_PAUSED)
        return;
    vm->end_at = now(vm);
    r->reason = reason;
    r->engine = (uint32_t)vm->engine.ops->kind;
    r->code = code;
    r->create_ns = vm->create_ns;
    r->run_ns = first ? vm->end_at - first : 0;
    snprintf(r->detail, sizeof r->detail, "%s", detail ? detail : "");
    vm_swap_cancel(vm);
    stage2_close(vm->s2);
    vm->phase = VM_PHASE_UNREACHABLE;
    vm->tries = 0;
    vm_transition(vm, MF_VM_STOPPING);
    sched_vm_stop(&vm->vmm->sched, &vm->sched);
}

void vm_end(struct vm *vm, enum mf_end_reason reason, uint64_t code, const char *detail)
{
    pthread_mutex_lock(&vm->lock);
    vm_end_locked(vm, reason, code, detail);
    pthread_mutex_unlock(&vm->lock);
}

/* With vm->lock. */
static void end_panicked(struct vm *vm, const char *why)
{
    char detail[sizeof vm->report.detail];

    snprintf(detail, sizeof detail, "the guest's kernel panicked%s%s", why[0] ? ": " : "", why);
    vm_end_locked(vm, MF_END_PANIC, 0, detail);
}

void vm_guest_panic(struct vm *vm)
{
    char why[CONSOLE_PANIC_MAX];

    console_panic(&vm->console, why);
    pthread_mutex_lock(&vm->lock);
    end_panicked(vm, why);
    pthread_mutex_unlock(&vm->lock);
}

void vm_guest_reset(struct vm *vm)
{
    char why[CONSOLE_PANIC_MAX];
    bool panicked = console_panic(&vm->console, why);

    pthread_mutex_lock(&vm->lock);
    if (panicked) {
        end_panicked(vm, why);
    } else if (vm->state == MF_VM_RUNNING || vm->state == MF_VM_PAUSED) {
        /* One that was asked to end and resets instead has ended: shutdown stays bounded. */
        vm->restart = !(vm->config.flags & MF_VM_RESET_ENDS) &&
                      !(atomic_load(&vm->guest_events) & MF_GUEST_EVENT_SHUTDOWN);
        vm_end_locked(vm, MF_END_RESET, 0, NULL);
    }
    pthread_mutex_unlock(&vm->lock);
}

/* ---- teardown: the job's phases */

static enum mf_status end_unreachable(struct vm *vm)
{
    if (!sched_vm_quiet(&vm->vmm->sched, &vm->sched))
        return MF_BLOCKED; /* the last slice's end queues the job again */
    for (unsigned i = 0; i < vm->config.vcpus; i++)
        vm->report.instructions += atomic_load(&vm->cpus[i].cpu.instructions);
    life_drop_engine(vm, vm->config.vcpus);
    vm->report.kernel_ns = vm->engine.kernel_ns;
    vm->report.unreachable_ns = now(vm) - vm->end_at;
    vm->ram_at = gfn(0);
    vm->phase = vm->engine.ops->wants_ram ? VM_PHASE_CLEAN : VM_PHASE_BEGIN;
    return MF_OK;
}

static void life_begin_again(struct vm *vm)
{
    struct mf_error e = {{0}, {0}};
    enum mf_status st;

    vm->restart = false;
    vm->start_began = now(vm);
    vm_transition(vm, MF_VM_STARTING);
    memset(&vm->report, 0, sizeof vm->report);
    st = vm_life_begin(vm, &e);
    if (!st)
        return;
    log_line(LOG_ERROR, "vm %u: cannot start again: %s", vm->id, e.text);
    vm->start_status = st;
    vm_transition(vm, MF_VM_STOPPING);
    memset(&vm->end, 0, sizeof vm->end);
    vm->end.reason = MF_END_NO_MEMORY;
    snprintf(vm->end.detail, sizeof vm->end.detail, "%.127s", e.text);
    vm->phase = VM_PHASE_NONE;
    vm_transition(vm, MF_VM_CRASHED);
    if (vm->vmm->events.ended)
        vm->vmm->events.ended(vm->vmm->events.arg, vm->id, MF_END_NO_MEMORY, 0);
}

static void end_publish(struct vm *vm)
{
    const struct vmm_events *e = &vm->vmm->events;
    enum mf_end_reason reason = vm->report.reason;

    memcpy(vm->report.teardown, vm->teardown->name, sizeof vm->report.teardown);
    vm->end = vm->report;
    vm->end_life = vm->starts;
    sched_vm_reset(&vm->vmm->sched, &vm->sched);
    sched_scrub(&vm->vmm->sched);
    if (vm->restart) {
        life_begin_again(vm);
        return;
    }
    vm->phase = VM_PHASE_NONE;
    vm_transition(vm, vm_reason_crashed(reason) ? MF_VM_CRASHED : MF_VM_SHUTOFF);
    if (e->ended)
        e->ended(e->arg, vm->id, reason, vm->report.code);
}

/* MF_BLOCKED: the VM is off, the reaper has its memory. Anything else: the VM's job does it. */
static enum mf_status end_defer(struct vm *vm)
{
    struct vm_dying *d = vm_defer_prepare(vm);
    enum mf_status st;

    if (!d)
        return MF_OK;
    pthread_mutex_lock(&vm->lock);
    st = vm_defer_locked(vm, d);
    if (!st)
        end_publish(vm);
    pthread_mutex_unlock(&vm->lock);
    if (!st)
        return MF_BLOCKED;
    vm_defer_abandon(vm, d);
    return MF_OK;
}

static enum mf_status end_clean(struct vm *vm)
{
    enum mf_status st = stage2_zero_step(vm->s2, &vm->ram_at);

    if (!st)
        vm->phase = VM_PHASE_BEGIN;
    return st;
}

static enum mf_status end_begin(struct vm *vm)
{
    enum mf_status st = teardown_begin_whole(&vm->zap, vm->s2, strategy_teardown(vm->teardown));

    if (st) {
        log_line(LOG_ERROR, "vm %u: teardown %s cannot begin: %s", vm->id, vm->teardown->name,
                 mf_status_text(st));
        return st;
    }
    vm->phase = VM_PHASE_ZAP;
    return MF_OK;
}

static void end_add_report(struct vm *vm)
{
    const struct teardown_report *t = &vm->zap.report;
    struct mf_end_report *r = &vm->report;

    r->loops += t->loops;
    for (unsigned i = 0; i < MF_ZAP_PASSES; i++)
        r->loops_per_pass[i] += t->loops_per_pass[i];
    r->entries_removed += t->entries_removed;
    r->tables_freed += t->tables_freed;
    r->frames_returned += t->frames_retired;
    r->steps += t->steps;
    if (t->step_max_ns > r->step_max_ns)
        r->step_max_ns = t->step_max_ns;
}

static enum mf_status end_zap(struct vm *vm)
{
    enum mf_status st = teardown_step(&vm->zap, TEARDOWN_BUDGET);

    if (st == MF_AGAIN)
        return st;
    if (st == MF_BLOCKED) {
        /* Nobody is inside any more, so what is retired can go. */
        st = stage2_reap(vm->s2, VM_REAP_STEP);
        return st == MF_BLOCKED || st == MF_OK ? MF_AGAIN : st;
    }
    end_add_report(vm);
    teardown_end(&vm->zap);
    if (st) {
        log_line(LOG_ERROR, "vm %u: teardown strategy %s failed: %s", vm->id, vm->teardown->name,
                 mf_status_text(st));
        return st;
    }
    vm->phase = VM_PHASE_REAP;
    return MF_OK;
}

/* A strategy that failed is replaced for this VM by another one that is loaded. */
static enum mf_status end_replace(struct vm *vm)
{
    struct vmm *m = vm->vmm;
    struct strategy *other = NULL;

    pthread_mutex_lock(&vm->lock);
    if (vm->tries++ < VM_STRATEGY_TRIES)
        other = strategies_get_other(m->strategies, vm->teardown);
    if (other) {
        log_line(LOG_ERROR, "vm %u: teardown goes on with strategy %s", vm->id, other->name);
        strategies_put(m->strategies, vm->teardown);
        vm->teardown = other;
    } else {
        log_line(LOG_ERROR, "vm %u: no teardown strategy can finish: memory stays until one is set",
                 vm->id);
    }
    vm->phase = other ? VM_PHASE_BEGIN : VM_PHASE_STUCK;
    vm->stuck = !other;
    pthread_mutex_unlock(&vm->lock);
    return other ? MF_OK : MF_BLOCKED;
}

static enum mf_status end_destroy(struct vm *vm)
{
    unsigned roots = stage2_roots(vm->s2);
    enum mf_status st;

    pthread_mutex_lock(&vm->lock);
    st = life_drop_stage2(vm);
    if (!st) {
        vm->report.roots_freed = roots;
        vm->report.frames_returned += roots;
        vm->report.returned_ns = now(vm) - vm->end_at;
        end_publish(vm);
    }
    pthread_mutex_unlock(&vm->lock);
    return st;
}

static enum mf_status end_step(struct vm *vm)
{
    switch (vm->phase) {
    case VM_PHASE_UNREACHABLE:
        return end_unreachable(vm);
    case VM_PHASE_CLEAN:
        return end_clean(vm);
    case VM_PHASE_BEGIN: {
        enum mf_status st = vm->tries ? MF_OK : end_defer(vm);

        return st ? st : end_begin(vm);
    }
    case VM_PHASE_ZAP:
        return end_zap(vm);
    case VM_PHASE_REAP: {
        enum mf_status st = stage2_reap(vm->s2, VM_REAP_STEP);

        if (st == MF_OK)
            vm->phase = VM_PHASE_DESTROY;
        return st == MF_BLOCKED ? MF_AGAIN : st;
    }
    case VM_PHASE_DESTROY:
        return end_destroy(vm);
    default:
        return MF_BLOCKED;
    }
}

/* Phases that are done at once follow each other; the first that wants another step ends this one.
 */
static bool end_job(struct vm *vm)
{
    enum mf_status st = MF_OK;

    while (!st && vm->phase >= VM_PHASE_UNREACHABLE && vm->phase < VM_PHASE_STUCK) {
        st = end_step(vm);
        if (st == MF_AGAIN)
            return true;
        if (st == MF_BLOCKED)
            break;
        if (st)
            st = end_replace(vm);
    }
    return vm->phase == VM_PHASE_LOAD; /* started again */
}

bool vm_job(struct sched_vm *v)
{
    struct vm *vm = (struct vm *)((char *)v - offsetof(struct vm, sched));
    enum mf_vm_state state;

    if (atomic_exchange(&vm->deadline_hit, false))
        vm_end(vm, MF_END_SHUTDOWN, 0, NULL);
    state = vm_get_state(vm);
    if (state == MF_VM_STOPPING) {
        vm_part_abort(vm);
        return end_job(vm);
    }
    if (state == MF_VM_STARTING)
        return life_load(vm, VM_LOAD_STEP);
    /* A swap of the strategy waits for the end of a chunk, and the next chunk for the swap. */
    if (!vm_part_zapping(&vm->part) && vm_track_step(vm))
        return true;
    return vm_part_step(vm);
}
