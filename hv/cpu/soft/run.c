/*
 * The run loop. The outer one looks at everything: exceptions, interrupts, shadows, single step,
 * memory. The inner one runs from block to block for as long as nothing but near branches happens,
 * and looks at no more than whether somebody else wants something.
 */
#include "hv/cpu/soft/run.h"

#include "hv/cpu/soft/code.h"
#include "hv/cpu/soft/exc.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"
#include "hv/cpu/soft/soft_vm.h"

void run_forget(struct cpu *c)
{
    mmu_flush_all(c);
    code_doubt_all(c);
}

/* ---- what others want */

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
        run_forget(c);
        s2_viewer_ack(&c->v->viewer);
    }
    if (unlikely(atomic_load_explicit(&c->told, memory_order_relaxed)))
        soft_vm_serve(c);
}

/* Nobody wants anything that could be served now. */
static inline bool undisturbed(const struct cpu *c)
{
    uint32_t events = atomic_load_explicit(&c->v->events, memory_order_relaxed);

    if (unlikely(events) && ((events & ~CPU_EVENT_INTR) || (c->fl_sys & FL_IF)))
        return false;
    return likely(!atomic_load_explicit(&c->told, memory_order_relaxed)) &&
           likely(!s2_viewer_stale(&c->v->viewer));
}

/* ---- blocks */

static uint64_t ip_cut(const struct cpu *c, uint64_t ip)
{
    return c->mode == MODE_64 ? ip : (uint32_t)ip;
}

/* Runs the ops of a block and counts them. */
static inline enum op_result run_ops(struct cpu *c, const struct block *b)
{
    const struct op *op = b->ops;
    enum op_result r;

    c->next = c->rip;
    do {
        c->op = op;
        c->next += op->len;
        r = op->fn(c, op);
        op = c->op + 1; /* it may have gone on */
    } while (r == R_OK && likely(!c->smc));
    c->count += (uint64_t)(op - b->ops) - (r == R_STOP || r == R_END);
    if (r == R_STOP)
        c->rip = ip_cut(c, c->next - c->op->len);
    else if (r <= R_END)
        c->rip = ip_cut(c, c->next);
    c->op = NULL;
    return r == R_OK ? R_LOOK : r;
}

/* From block to block. */
static void run_blocks(struct cpu *c)
{
    struct block *b;
    uint64_t from;

    c->smc = false;
    b = code_find(c);
    while (likely(b != NULL)) {
        from = c->rip;
        if (unlikely(run_ops(c, b) > R_BREAK) || unlikely(c->smc) || unlikely(!undisturbed(c)) ||
            unlikely(c->count >= c->budget))
            return;
        b = code_follow(c, b, from);
    }
}

/* The trap after an instruction that began with TF set. */
static void single_step_trap(struct cpu *c)
{
    c->dr[6] |= 0x4000;
    cpu_raise(c, VEC_DB, 0);
}

/* One instruction, because of a shadow or of single step. */
static void run_one(struct cpu *c)
{
    bool step = (c->fl_sys & FL_TF) != 0;
    struct op op[2];
    struct block *b, one = {.ops = op, .nr = 1};

    c->smc = false;
    b = code_find(c);
    if (!b)
        return;
    op[0] = b->ops[0];
    op[1] = code_end_op;
    if (run_ops(c, &one) == R_STOP) {
        c->shadow = c->shadow && !c->exc.pending; /* a handler begins without one */
        return;
    }
    c->shadow = false;
    if (unlikely(step) && !c->shadow_stack) /* MOV SS puts the trap off */
        single_step_trap(c);
}

static void run_some(struct cpu *c)
{
    c->shadow_next = c->shadow_stack = false;
    if (unlikely(c->shadow || (c->fl_sys & FL_TF)))
        run_one(c);
    else
        run_blocks(c);
    if (unlikely(c->shadow_next))
        c->shadow = true;
}

static void leave_halted(struct cpu *c)
{
    c->v->halt_masked = c->wait_sipi || !(c->fl_sys & FL_IF);
    cpu_leave(c, CPU_EXIT_HALT);
}

void run_cpu(struct cpu *c)
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
            run_some(c);
    }
}
