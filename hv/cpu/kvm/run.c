/* The way into the guest and back. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "hv/cpu/kvm/kvm.h"

#define KICK_SIGNAL SIGUSR1

/* ---- kicks */

static void on_signal(int nr)
{
    (void)nr; /* its coming is what ends KVM_RUN */
}

bool kvm_signal_setup(void)
{
    struct sigaction a = {.sa_handler = on_signal};

    sigemptyset(&a.sa_mask);
    return sigaction(KICK_SIGNAL, &a, NULL) == 0;
}

/*
 * What is to be seen stands in vcpu->events or the second stage's epoch already. immediate_exit
 * catches a thread that is about to enter, the signal one that has entered; it is cleared before
 * events are looked at.
 */
void kvm_cpu_kick(struct kvm_cpu *c)
{
    __atomic_store_n(&c->run->immediate_exit, 1, __ATOMIC_SEQ_CST);
    if (atomic_load(&c->inside))
        pthread_kill(c->self, KICK_SIGNAL);
}

static enum cpu_exit fail(struct kvm_cpu *c, const char *what)
{
    c->shell->broken = true;
    snprintf(c->v->detail, sizeof c->v->detail, "%s", what);
    return CPU_EXIT_FAILED;
}

/* ---- what others asked for */

static bool open_window(const struct kvm_cpu *c)
{
    return c->run->ready_for_interrupt_injection && c->run->if_flag;
}

/* An external interrupt, when the guest takes one now; else the kernel is told to say when. */
static void serve_interrupt(struct kvm_cpu *c)
{
    struct kvm_interrupt irq;
    struct vcpu *v = c->v;
    int vec;

    if (!open_window(c)) {
        c->run->request_interrupt_window = 1;
        return;
    }
    atomic_fetch_and(&v->events, ~CPU_EVENT_INTR);
    vec = v->mops->intr_ack(v->machine, v);
    if (vec < 0)
        return;
    irq.irq = (uint32_t)vec;
    if (!kvm_ioctl_p(c->fd, KVM_INTERRUPT, &irq))
        c->halted = false;
    c->run->ready_for_interrupt_injection = 0;
    c->run->request_interrupt_window = 1;
    atomic_fetch_or(&v->events, CPU_EVENT_INTR); /* there may be more */
}

/* As the software engine: keeps clock and APIC base; vCPU 0 goes on at the reset vector. */
static bool serve_init(struct kvm_cpu *c)
{
    struct cpu_state now, s;

    kvm_regs_get(c, &now);
    cpu_state_reset(&s);
    s.tsc_offset = now.tsc_offset;
    s.apic_base = now.apic_base;
    s.wait_sipi = c->index != 0;
    return kvm_regs_set(c, &s) == MF_OK;
}

static bool serve_sipi(struct kvm_cpu *c)
{
    uint64_t vector = atomic_load(&c->v->sipi_vector);
    struct cpu_state s;

    if (!c->wait_sipi)
        return true;
    kvm_regs_get(c, &s);
    s.wait_sipi = 0;
    s.rip = 0;
    s.seg[CPU_CS].selector = (uint16_t)(vector << 8);
    s.seg[CPU_CS].base = vector << 12;
    return kvm_regs_set(c, &s) == MF_OK;
}

/* False: run() ends with *why. */
static bool serve_events(struct kvm_cpu *c, enum cpu_exit *why)
{
    struct vcpu *v = c->v;
    uint32_t events = atomic_load(&v->events);

    c->run->request_interrupt_window = 0;
    if (events & CPU_EVENT_KICK) {
        atomic_fetch_and(&v->events, ~CPU_EVENT_KICK);
        *why = CPU_EXIT_EVENT;
        return false;
    }
    *why = CPU_EXIT_FAILED;
    if (events & CPU_EVENT_INIT) {
        atomic_fetch_and(&v->events, ~CPU_EVENT_INIT);
        if (!serve_init(c))
            return fail(c, "the kernel refuses the state after INIT"), false;
    }
    if (events & CPU_EVENT_SIPI) {
        atomic_fetch_and(&v->events, ~CPU_EVENT_SIPI);
        if (!serve_sipi(c))
            return fail(c, "the kernel refuses the state after SIPI"), false;
    }
    if (!c->wait_sipi && (events & CPU_EVENT_NMI)) {
        atomic_fetch_and(&v->events, ~CPU_EVENT_NMI);
        if (!kvm_ioctl(c->fd, KVM_NMI, 0))
            c->halted = false;
    }
    if (!c->wait_sipi && (events & CPU_EVENT_INTR))
        serve_interrupt(c);
    if (!c->halted && !c->wait_sipi)
        return true;
    v->halt_masked = c->wait_sipi || !c->run->if_flag;
    *why = CPU_EXIT_HALT;
    return false;
}

/* ---- accesses that the machine answers. True: the guest goes on. */

static bool goes_on(enum machine_result r, enum cpu_exit *why)
{
    if (r == MACHINE_STOP)
        *why = CPU_EXIT_STOP;
    else if (r == MACHINE_YIELD)
        *why = CPU_EXIT_YIELD;
    return r == MACHINE_OK || r == MACHINE_NONE;
}

static bool exit_port(struct kvm_cpu *c, enum cpu_exit *why)
{
    struct kvm_run *run = c->run;
    struct vcpu *v = c->v;
    uint8_t *data = (uint8_t *)run + run->io.data_offset;
    uint32_t count = run->io.count, size = run->io.size;

    if (size > 4 || run->io.data_offset > kvm_host()->run_size ||
        (uint64_t)count * size > kvm_host()->run_size - run->io.data_offset) {
        *why = fail(c, "the kernel told a port access that cannot be");
        return false;
    }
    for (uint32_t i = 0; i < count; i++, data += size) {
        enum machine_result r;
        uint32_t value = 0;

        if (run->io.direction == KVM_EXIT_IO_OUT) {
            memcpy(&value, data, size);
            r = v->mops->port_out(v->machine, v, run->io.port, size, value);
        } else {
            r = v->mops->port_in(v->machine, v, run->io.port, size, &value);
            if (r == MACHINE_NONE)
                value = UINT32_MAX;
            memcpy(data, &value, size);
        }
        if (!goes_on(r, why))
            return false;
    }
    return true;
}

/* RAM without a slot: not backed when the slots were made, or taken away and touched again. */
static bool exit_ram(struct kvm_cpu *c, uint64_t a, enum cpu_exit *why)
{
    struct kvm_run *run = c->run;
    struct stage2 *s2 = c->v->vm->s2;
    unsigned want = run->mmio.is_write ? S2_READ | S2_WRITE : S2_READ;
    struct s2_leaf leaf;
    enum mf_status st = stage2_fault(s2, 0, gpa_to_gfn(gpa(a)), want, &leaf);
    uint8_t *at;

    atomic_fetch_add_explicit(&c->v->stage2_faults, 1, memory_order_relaxed);
    if (st) {
        c->v->status = st;
        *why = CPU_EXIT_NO_MEMORY;
        return false;
    }
    at = (uint8_t *)heap_ptr(stage2_heap(s2), leaf.mfn) + (a & (FRAME_SIZE - 1));
    if (run->mmio.is_write)
        memcpy(at, run->mmio.data, run->mmio.len);
    else
        memcpy(run->mmio.data, at, run->mmio.len);
    st = kvm_slots_sync(c->shell, s2, true);
    if (st)
        *why = fail(c, "no memory slot for a page of RAM");
    return !st;
}

static bool exit_mmio(struct kvm_cpu *c, enum cpu_exit *why)
{
    struct kvm_run *run = c->run;
    struct vcpu *v = c->v;
    uint64_t a = run->mmio.phys_addr, value = 0;
    unsigned len = run->mmio.len;
    enum machine_result r;

    if (!len || len > 8 || (a & (FRAME_SIZE - 1)) + len > FRAME_SIZE) {
        *why = fail(c, "the kernel told a memory access that cannot be");
        return false;
    }
    if (stage2_check(v->vm->s2, gpa(a), len) == MF_OK)
        return exit_ram(c, a, why);
    if (run->mmio.is_write) {
        memcpy(&value, run->mmio.data, len);
        r = v->mops->mmio_write(v->machine, v, gpa(a), len, value);
    } else {
        r = v->mops->mmio_read(v->machine, v, gpa(a), len, &value);
        memcpy(run->mmio.data, &value, len);
    }
    if (r == MACHINE_NONE) {
        v->bad_gpa = gpa(a);
        *why = CPU_EXIT_BAD_ACCESS;
        return false;
    }
    return goes_on(r, why);
}

static bool exit_msr(struct kvm_cpu *c, bool write, enum cpu_exit *why)
{
    struct kvm_run *run = c->run;
    struct vcpu *v = c->v;
    uint64_t value = run->msr.data;
    enum machine_result r = MACHINE_NONE;

    if (write && v->mops->msr_write)
        r = v->mops->msr_write(v->machine, v, run->msr.index, value);
    else if (!write && v->mops->msr_read)
        r = v->mops->msr_read(v->machine, v, run->msr.index, &value);
    run->msr.error = r == MACHINE_NONE;
    run->msr.data = value;
    return goes_on(r, why);
}

/* VMCALL or VMMCALL, by way of the kernel's interception for Xen. The registers are ours. */
static bool exit_hypercall(struct kvm_cpu *c, enum cpu_exit *why)
{
    struct kvm_run *run = c->run;
    uint64_t mask = run->xen.u.hcall.longmode ? UINT64_MAX : UINT32_MAX, arg[4];
    struct kvm_regs regs;
    enum machine_result r;
    int64_t result = 0;

    if (run->xen.type != KVM_EXIT_XEN_HCALL || kvm_ioctl_p(c->fd, KVM_GET_REGS, &regs)) {
        *why = fail(c, "the kernel told a hypercall that cannot be");
        return false;
    }
    if (run->xen.u.hcall.cpl) {
        run->xen.u.hcall.result = (uint64_t) - (int64_t)MF_E_PERM;
        return true;
    }
    arg[0] = regs.rbx & mask;
    arg[1] = regs.rcx & mask;
    arg[2] = regs.rdx & mask;
    arg[3] = regs.rsi & mask;
    r = c->v->mops->hypercall(c->v->machine, c->v, run->xen.u.hcall.input & mask, arg, &result);
    run->xen.u.hcall.result = (uint64_t)result & mask;
    return goes_on(r, why);
}

/* ---- exits that end it */

static enum cpu_exit exit_internal(struct kvm_cpu *c)
{
    const struct kvm_run *run = c->run;
    char text[128];
    int n = snprintf(text, sizeof text, "KVM internal error %u", run->internal.suberror);

    for (unsigned i = 0; i < run->internal.ndata && i < 4 && n > 0 && (size_t)n < sizeof text; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %" PRIx64,
                      (uint64_t)run->internal.data[i]);
    return fail(c, text);
}

static enum cpu_exit exit_entry(struct kvm_cpu *c)
{
    char text[96];

    snprintf(text, sizeof text, "KVM cannot enter the guest, hardware reason 0x%" PRIx64,
             (uint64_t)c->run->fail_entry.hardware_entry_failure_reason);
    return fail(c, text);
}

static enum cpu_exit exit_unknown(struct kvm_cpu *c)
{
    char text[96];

    snprintf(text, sizeof text, "KVM exit %u, hardware reason 0x%" PRIx64, c->run->exit_reason,
             (uint64_t)c->run->hw.hardware_exit_reason);
    return fail(c, text);
}

static bool handle_exit(struct kvm_cpu *c, enum cpu_exit *why)
{
    switch (c->run->exit_reason) {
    case KVM_EXIT_IO:
        c->pending = true;
        return exit_port(c, why);
    case KVM_EXIT_MMIO:
        c->pending = true;
        return exit_mmio(c, why);
    case KVM_EXIT_X86_RDMSR:
    case KVM_EXIT_X86_WRMSR:
        c->pending = true;
        return exit_msr(c, c->run->exit_reason == KVM_EXIT_X86_WRMSR, why);
    case KVM_EXIT_XEN:
        c->pending = true;
        return exit_hypercall(c, why);
    case KVM_EXIT_IRQ_WINDOW_OPEN:
    case KVM_EXIT_INTR:
    case KVM_EXIT_SET_TPR:
        return true;
    case KVM_EXIT_HLT:
        c->halted = true; /* the loop sees whether something wakes it already */
        return true;
    case KVM_EXIT_SHUTDOWN:
        c->shell->broken = true; /* nothing says what such a vCPU still holds */
        *why = CPU_EXIT_TRIPLE_FAULT;
        return false;
    case KVM_EXIT_INTERNAL_ERROR:
        *why = exit_internal(c);
        return false;
    case KVM_EXIT_FAIL_ENTRY:
        *why = exit_entry(c);
        return false;
    default:
        *why = exit_unknown(c);
        return false;
    }
}

/* ---- the loop */

/* The task priority lives in the machine's LAPIC, MOV CR8 in the kernel. */
static void offer_cr8(struct kvm_cpu *c)
{
    struct vcpu *v = c->v;

    if (!v->mops->cr8_read)
        return;
    c->cr8 = (uint8_t)v->mops->cr8_read(v->machine, v);
    c->run->cr8 = c->cr8;
    if (c->run->kvm_dirty_regs)
        c->run->s.regs.sregs.cr8 = c->cr8;
}

static void take_cr8(struct kvm_cpu *c)
{
    struct vcpu *v = c->v;

    if (v->mops->cr8_write && c->run->cr8 != c->cr8)
        v->mops->cr8_write(v->machine, v, c->run->cr8 & 15);
}

/* Slots that are not those of the second stage any more are brought up to it. */
static bool look_at_memory(struct kvm_cpu *c, bool first, enum cpu_exit *why)
{
    struct vcpu *v = c->v;
    bool stale = s2_viewer_stale(&v->viewer);
    enum mf_status st;

    if (!first && !stale)
        return true;
    st = kvm_slots_sync(c->shell, v->vm->s2, false);
    if (stale)
        s2_viewer_ack(&v->viewer);
    if (!st)
        return true;
    v->status = st;
    *why = st == MF_E_LIMIT       ? fail(c, "the RAM lies in more pieces than KVM has memory slots")
           : st == MF_E_NO_MEMORY ? CPU_EXIT_NO_MEMORY
                                  : fail(c, "KVM refuses a memory slot");
    return false;
}

/* One entry. False: run() ends with *why. */
static bool enter(struct kvm_cpu *c, enum cpu_exit *why)
{
    bool state_new = c->run->kvm_dirty_regs != 0;
    char text[96];
    int rc;

    offer_cr8(c);
    rc = kvm_ioctl(c->fd, KVM_RUN, 0);
    c->fresh = false;
    atomic_fetch_add_explicit(&c->v->exits, 1, memory_order_relaxed);
    if (rc == 0) {
        c->pending = false;
        take_cr8(c);
        return handle_exit(c, why);
    }
    if (errno == EINTR || errno == EAGAIN) {
        c->pending = false;
        return true;
    }
    if (errno == EINVAL && state_new)
        *why = fail(c, "KVM refuses the vCPU's state");
    else
        *why = (snprintf(text, sizeof text, "KVM_RUN: %s", strerror(errno)), fail(c, text));
    return false;
}

enum cpu_exit kvm_cpu_run(struct kvm_cpu *c)
{
    enum cpu_exit why = CPU_EXIT_FAILED;
    struct vcpu *v = c->v;
    bool first = true, go;

    c->self = pthread_self();
    atomic_store(&c->inside, true);
    s2_viewer_enter(&v->viewer);
    do {
        __atomic_store_n(&c->run->immediate_exit, 0, __ATOMIC_SEQ_CST);
        go = look_at_memory(c, first, &why) && serve_events(c, &why) && enter(c, &why);
        first = false;
    } while (go);
    s2_viewer_leave(&v->viewer);
    /* The state is past the instruction; and nothing of it is left for another guest. */
    if (why == CPU_EXIT_STOP && !kvm_regs_settle(c))
        c->shell->broken = true;
    atomic_store(&c->inside, false);
    return why;
}
