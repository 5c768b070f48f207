/* The engine's face to hv/vm: VM and vCPU objects, the pool, the run loop. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "hv/cpu/soft/code.h"
#include "hv/cpu/soft/exc.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/fp.h"
#include "hv/cpu/soft/mmu.h"
#include "hv/cpu/soft/soft_vm.h"

#define POOL_MAX 64u

/* vCPUs without a guest. Their caches stay warm; nothing of the former guest is valid in them. */
static struct {
    pthread_mutex_t lock;
    struct cpu *first; /* under lock */
    unsigned count;    /* under lock */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- pool */

static struct cpu *pool_get(void)
{
    struct cpu *c;

    pthread_mutex_lock(&pool.lock);
    c = pool.first;
    if (c) {
        pool.first = c->next_free;
        pool.count--;
    }
    pthread_mutex_unlock(&pool.lock);
    if (c)
        return c;
    c = calloc(1, sizeof *c);
    if (c)
        c->code = code_cache_create();
    if (!c || !c->code) {
        free(c);
        return NULL;
    }
    c->tlb_gen = c->ptlb_gen = 1;
    return c;
}

static void pool_put(struct cpu *c)
{
    bool kept;

    memset(c, 0, offsetof(struct cpu, next_free));
    code_cache_trim(c->code);
    pthread_mutex_lock(&pool.lock);
    kept = pool.count < POOL_MAX;
    if (kept) {
        c->next_free = pool.first;
        pool.first = c;
        pool.count++;
    }
    pthread_mutex_unlock(&pool.lock);
    if (kept)
        return;
    code_cache_destroy(c->code);
    free(c);
}

/* ---- objects */

static enum mf_status soft_probe(const char **why)
{
    *why = "";
    return MF_OK;
}

static enum mf_status soft_vm_init(struct engine_vm *vm)
{
    vm->priv = soft_vm_get();
    return vm->priv ? MF_OK : MF_E_NO_MEMORY;
}

static void soft_vm_fini(struct engine_vm *vm)
{
    if (vm->priv)
        soft_vm_put(vm->priv);
    vm->priv = NULL;
}

/* Everything that was translated or decoded may be something else now. */
static void forget_memory(struct cpu *c)
{
    mmu_flush_all(c);
    code_doubt_all(c);
}

static enum mf_status soft_vcpu_init(struct vcpu *v)
{
    struct cpu *c = pool_get();
    struct cpu_state reset;
    enum mf_status st;

    if (!c)
        return MF_E_NO_MEMORY;
    memset(c, 0, offsetof(struct cpu, next_free));
    c->v = v;
    c->arena_base = heap_arena(stage2_heap(v->vm->s2))->base;
    st = s2_viewer_add(v->vm->s2, &v->viewer);
    if (st != MF_OK) {
        pool_put(c);
        return st;
    }
    soft_vm_add(v->vm->priv, c);
    forget_memory(c);
    cpu_state_reset(&reset);
    cpu_load_state(c, &reset);
    v->priv = c;
    return MF_OK;
}

static void soft_vcpu_fini(struct vcpu *v)
{
    struct cpu *c = v->priv;

    if (!c)
        return;
    soft_vm_remove(v->vm->priv, c);
    s2_viewer_remove(&v->viewer);
    v->priv = NULL;
    pool_put(c);
}

static void soft_get_state(struct vcpu *v, struct cpu_state *s)
{
    cpu_store_state(v->priv, s);
}

static bool state_enterable(const struct cpu_state *s)
{
    bool paging = (s->cr0 & CR0_PG) != 0, lma = (s->efer & EFER_LMA) != 0;
    uint32_t mxcsr;

    if ((s->cr0 >> 32) || (s->cr4 & ~(uint64_t)CR4_BITS) || (s->efer & ~(uint64_t)EFER_BITS))
        return false;
    if ((paging && !(s->cr0 & CR0_PE)) || lma != (paging && (s->efer & EFER_LME)))
        return false;
    memcpy(&mxcsr, s->fx + offsetof(struct fp_state, mxcsr), sizeof mxcsr);
    return fp_mxcsr_valid(mxcsr) && (!lma || (s->cr4 & CR4_PAE)) && !(s->rflags & FL_VM) &&
           !(s->rflags >> 32);
}

static enum mf_status soft_set_state(struct vcpu *v, const struct cpu_state *s)
{
    struct cpu *c = v->priv;

    if (!state_enterable(s))
        return MF_E_RANGE;
    cpu_load_state(c, s);
    c->exc.pending = false;
    return MF_OK;
}

static void soft_kick(struct vcpu *v)
{
    atomic_fetch_or(&v->events, CPU_EVENT_KICK);
}

static void soft_page_written(struct engine_vm *vm, gfn_t g)
{
    struct soft_vm *s = vm->priv;

    if (soft_vm_watches(s, g.v))
        soft_vm_written(s, NULL, g.v);
}

/* ---- run loop */

static bool queue_interrupt(struct cpu *c, unsigned vec)
{
    c->exc = (struct cpu_exc){.vec = (uint8_t)vec, .pending = true, .external = true};
    c->halted = false;
    return true;
}

/* INIT keeps the clock and where the LAPIC is. vCPU 0 goes on at the reset vector. */
static void take_init(struct cpu *c)
{
    struct cpu_state s;

    cpu_state_reset(&s);
    s.tsc_offset = c->tsc_offset;
    s.apic_base = c->apic_base;
    s.wait_sipi = c->v->index != 0;
    c->exc.pending = false;
    cpu_load_state(c, &s);
}

static void take_sipi(struct cpu *c)
{
    uint64_t vector = atomic_load(&c->v->sipi_vector);

    if (!c->wait_sipi)
        return;
    c->wait_sipi = false;
    c->rip = 0;
    c->seg[CPU_CS].selector = (uint16_t)(vector << 8);
    c->seg[CPU_CS].base = vector << 12;
    cpu_update_mode(c);
}

/* True: something changed, look again before going on. */
static bool serve_start(struct cpu *c, uint32_t events)
{
    if (events & CPU_EVENT_INIT) {
        atomic_fetch_and(&c->v->events, ~CPU_EVENT_INIT);
        take_init(c);
        return true;
    }
    if (events & CPU_EVENT_SIPI) {
        atomic_fetch_and(&c->v->events, ~CPU_EVENT_SIPI);
        take_sipi(c);
        return true;
    }
    return false;
}

/* Serves what others asked for. True: something is queued, look again before going on. */
static bool serve_events(struct cpu *c)
{
    uint32_t events = atomic_load_explicit(&c->v->events, memory_order_acquire);
    int vec;

    if (likely(!events))
        return false;
    if (events & CPU_EVENT_KICK) {
        atomic_fetch_and(&c->v->events, ~CPU_EVENT_KICK);
        return !cpu_leave(c, CPU_EXIT_EVENT);
    }
    if (unlikely(events & (CPU_EVENT_INIT | CPU_EVENT_SIPI)) && serve_start(c, events))
        return true;
    if (c->shadow || c->wait_sipi)
        return false;
    if ((events & CPU_EVENT_NMI) && !c->nmi_blocked) {
        atomic_fetch_and(&c->v->events, ~CPU_EVENT_NMI);
        c->nmi_blocked = true;
        return queue_interrupt(c, VEC_NMI);
    }
    if (!(events & CPU_EVENT_INTR) || !(c->fl_sys & FL_IF))
        return false;
    /* Cleared before the controller is asked: what it raises after that sets the bit again. */
    atomic_fetch_and(&c->v->events, ~CPU_EVENT_INTR);
    vec = c->v->mops->intr_ack(c->v->machine, c->v);
    if (vec < 0)
        return false;
    atomic_fetch_or(&c->v->events, CPU_EVENT_INTR); /* there may be more */
    return queue_interrupt(c, (unsigned)vec);
}

static void look_at_memory(struct cpu *c)
{
    if (unlikely(s2_viewer_stale(&c->v->viewer))) {
        forget_memory(c);
        s2_viewer_ack(&c->v->viewer);
    }
    if (unlikely(atomic_load_explicit(&c->told, memory_order_relaxed)))
        soft_vm_serve(c);
}

static uint64_t next_ip(const struct cpu *c, const struct op *op)
{
    uint64_t ip = c->rip + op->len;

    return c->mode == MODE_64 ? ip : (uint32_t)ip;
}

/* Runs ops of a block; `one`: a single one. False: an exception or exit stopped it. */
static bool run_block(struct cpu *c, const struct block *b, bool one)
{
    const struct op *op = b->ops;
    uint64_t n = 0;
    enum op_result r;

    do {
        c->next = next_ip(c, op);
        r = op->fn(c, op);
        if (unlikely(r != R_OK))
            break;
        c->rip = c->next;
        n++;
        op++;
    } while (op->fn && !c->smc && !one);
    c->count += n + (r == R_BREAK);
    return r != R_STOP;
}

/* The trap after an instruction that began with TF set. */
static void single_step_trap(struct cpu *c)
{
    c->dr[6] |= 0x4000;
    cpu_raise(c, VEC_DB, 0);
}

static void run_slice(struct cpu *c)
{
    bool step = (c->fl_sys & FL_TF) != 0, done;
    struct block *b;

    c->smc = false;
    b = code_find(c);
    if (!b)
        return;
    done = run_block(c, b, step || c->shadow);
    if (!done)
        return;
    c->shadow = c->shadow_next;
    c->shadow_next = false;
    if (unlikely(step))
        single_step_trap(c);
}

static void leave_halted(struct cpu *c)
{
    c->v->halt_masked = c->wait_sipi || !(c->fl_sys & FL_IF);
    cpu_leave(c, CPU_EXIT_HALT);
}

static void run_loop(struct cpu *c)
{
    while (!c->exiting) {
        if (unlikely(c->exc.pending && c->budget)) {
            c->budget--; /* a handler that faults at once runs no instruction, but costs */
            exc_deliver(c);
            continue;
        }
        look_at_memory(c);
        if (serve_events(c))
            continue;
        if (unlikely(c->halted || c->wait_sipi))
            leave_halted(c);
        else if (c->count >= c->budget)
            cpu_leave(c, CPU_EXIT_BUDGET);
        else
            run_slice(c);
    }
}

static void add_relaxed(_Atomic uint64_t *to, uint64_t n)
{
    atomic_fetch_add_explicit(to, n, memory_order_relaxed);
}

static enum cpu_exit soft_run(struct vcpu *v, uint64_t budget)
{
    struct cpu *c = v->priv;

    c->count = c->decodes = c->tlb_misses = c->faults = 0;
    c->budget = budget;
    c->exiting = false;
    if (s2_viewer_enter(&v->viewer))
        forget_memory(c);
    soft_vm_enter(c);
    run_loop(c);
    soft_vm_leave(c);
    s2_viewer_leave(&v->viewer);
    add_relaxed(&v->instructions, c->count);
    add_relaxed(&v->decodes, c->decodes);
    add_relaxed(&v->tlb_misses, c->tlb_misses);
    add_relaxed(&v->stage2_faults, c->faults);
    return c->exit;
}

const struct engine_ops *engine_soft(void)
{
    static const struct engine_ops ops = {
        .name = "soft",
        .kind = ENGINE_SOFT,
        .probe = soft_probe,
        .vm_init = soft_vm_init,
        .vm_fini = soft_vm_fini,
        .vcpu_init = soft_vcpu_init,
        .vcpu_fini = soft_vcpu_fini,
        .get_state = soft_get_state,
        .set_state = soft_set_state,
        .run = soft_run,
        .kick = soft_kick,
        .page_written = soft_page_written,
    };

    return &ops;
}
