/* The engine's face to hv/vm: VM and vCPU objects, the pool, the run loop. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "hv/cpu/soft/code.h"
#include "hv/cpu/soft/run.h"
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
    c->tlb_gen = c->global_gen = c->ptlb_gen = 1;
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
    run_forget(c);
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

/* ---- running */

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
        run_forget(c);
    soft_vm_enter(c);
    run_cpu(c);
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
