/* The state of a vCPU, between struct cpu_state and the kernel. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hv/cpu/kvm/kvm.h"

#define CR0_PE   UINT64_C(0x1)
#define CR0_PG   UINT64_C(0x80000000)
#define CR4_PAE  UINT64_C(0x20)
#define EFER_LME UINT64_C(0x100)
#define EFER_LMA UINT64_C(0x400)
#define FL_VM    UINT64_C(0x20000)

#define SYNC_ALL (KVM_SYNC_X86_REGS | KVM_SYNC_X86_SREGS | KVM_SYNC_X86_EVENTS)

enum {
    MSR_TSC = 0x10,
    MSR_SYSENTER_CS = 0x174,
    MSR_SYSENTER_ESP = 0x175,
    MSR_SYSENTER_EIP = 0x176,
    MSR_PAT = 0x277,
};
#define MSR_STAR           0xc0000081u
#define MSR_LSTAR          0xc0000082u
#define MSR_CSTAR          0xc0000083u
#define MSR_SFMASK         0xc0000084u
#define MSR_KERNEL_GS_BASE 0xc0000102u

#define STATE_MSRS 9u

/* ---- segments */

static struct kvm_segment segment_in(const struct cpu_segment *s)
{
    return (struct kvm_segment){.base = s->base,
                                .limit = s->limit,
                                .selector = s->selector,
                                .type = s->attr & CPU_SEG_TYPE,
                                .s = (s->attr & CPU_SEG_S) != 0,
                                .dpl = (s->attr & CPU_SEG_DPL) >> 5,
                                .present = (s->attr & CPU_SEG_P) != 0,
                                .avl = (s->attr >> 8) & 1,
                                .l = (s->attr & CPU_SEG_L) != 0,
                                .db = (s->attr & CPU_SEG_DB) != 0,
                                .g = (s->attr & CPU_SEG_G) != 0,
                                .unusable = !(s->attr & CPU_SEG_P)};
}

static struct cpu_segment segment_out(const struct kvm_segment *k)
{
    unsigned attr = k->type | k->s << 4 | k->dpl << 5 | k->present << 7 | k->avl << 8 | k->l << 9 |
                    k->db << 10 | k->g << 11;

    if (k->unusable)
        attr &= ~CPU_SEG_P;
    return (struct cpu_segment){k->selector, (uint16_t)attr, k->limit, k->base};
}

/* ---- what goes through the shared page */

static const unsigned gpr_at[16] = {
    offsetof(struct kvm_regs, rax), offsetof(struct kvm_regs, rcx), offsetof(struct kvm_regs, rdx),
    offsetof(struct kvm_regs, rbx), offsetof(struct kvm_regs, rsp), offsetof(struct kvm_regs, rbp),
    offsetof(struct kvm_regs, rsi), offsetof(struct kvm_regs, rdi), offsetof(struct kvm_regs, r8),
    offsetof(struct kvm_regs, r9),  offsetof(struct kvm_regs, r10), offsetof(struct kvm_regs, r11),
    offsetof(struct kvm_regs, r12), offsetof(struct kvm_regs, r13), offsetof(struct kvm_regs, r14),
    offsetof(struct kvm_regs, r15),
};

static void regs_in(const struct cpu_state *s, struct kvm_regs *r)
{
    for (unsigned i = 0; i < 16; i++)
        memcpy((char *)r + gpr_at[i], &s->gpr[i], sizeof s->gpr[i]);
    r->rip = s->rip;
    r->rflags = s->rflags;
}

static void regs_out(const struct kvm_regs *r, struct cpu_state *s)
{
    for (unsigned i = 0; i < 16; i++)
        memcpy(&s->gpr[i], (const char *)r + gpr_at[i], sizeof s->gpr[i]);
    s->rip = r->rip;
    s->rflags = r->rflags;
}

static void sregs_in(const struct cpu_state *s, struct kvm_sregs *r)
{
    memset(r, 0, sizeof *r);
    r->es = segment_in(&s->seg[CPU_ES]);
    r->cs = segment_in(&s->seg[CPU_CS]);
    r->ss = segment_in(&s->seg[CPU_SS]);
    r->ds = segment_in(&s->seg[CPU_DS]);
    r->fs = segment_in(&s->seg[CPU_FS]);
    r->gs = segment_in(&s->seg[CPU_GS]);
    r->ldt = segment_in(&s->ldtr);
    r->tr = segment_in(&s->tr);
    r->gdt = (struct kvm_dtable){.base = s->gdt_base, .limit = (uint16_t)s->gdt_limit};
    r->idt = (struct kvm_dtable){.base = s->idt_base, .limit = (uint16_t)s->idt_limit};
    r->cr0 = s->cr0;
    r->cr2 = s->cr2;
    r->cr3 = s->cr3;
    r->cr4 = s->cr4;
    r->cr8 = s->cr8;
    r->efer = s->efer;
    r->apic_base = s->apic_base;
}

static void sregs_out(const struct kvm_sregs *r, struct cpu_state *s)
{
    s->seg[CPU_ES] = segment_out(&r->es);
    s->seg[CPU_CS] = segment_out(&r->cs);
    s->seg[CPU_SS] = segment_out(&r->ss);
    s->seg[CPU_DS] = segment_out(&r->ds);
    s->seg[CPU_FS] = segment_out(&r->fs);
    s->seg[CPU_GS] = segment_out(&r->gs);
    s->ldtr = segment_out(&r->ldt);
    s->tr = segment_out(&r->tr);
    s->gdt_base = r->gdt.base;
    s->gdt_limit = r->gdt.limit;
    s->idt_base = r->idt.base;
    s->idt_limit = r->idt.limit;
    s->cr0 = r->cr0;
    s->cr2 = r->cr2;
    s->cr3 = r->cr3;
    s->cr4 = r->cr4;
    s->cr8 = r->cr8;
    s->efer = r->efer;
    s->apic_base = r->apic_base;
}

static void events_in(const struct cpu_state *s, struct kvm_vcpu_events *e)
{
    memset(e, 0, sizeof *e);
    e->flags = KVM_VCPUEVENT_VALID_NMI_PENDING | KVM_VCPUEVENT_VALID_SHADOW;
    e->nmi.masked = s->nmi_blocked;
    e->interrupt.shadow = s->intr_shadow ? KVM_X86_SHADOW_INT_STI : 0;
}

/* ---- what has calls of its own, needed only where it is not what a reset leaves */

static unsigned state_msrs(const struct cpu_state *s, struct kvm_msr_entry *m)
{
    const struct kvm_msr_entry list[STATE_MSRS] = {
        {.index = MSR_STAR, .data = s->star},
        {.index = MSR_LSTAR, .data = s->lstar},
        {.index = MSR_CSTAR, .data = s->cstar},
        {.index = MSR_SFMASK, .data = s->sfmask},
        {.index = MSR_KERNEL_GS_BASE, .data = s->kernel_gs_base},
        {.index = MSR_SYSENTER_CS, .data = s->sysenter_cs},
        {.index = MSR_SYSENTER_ESP, .data = s->sysenter_esp},
        {.index = MSR_SYSENTER_EIP, .data = s->sysenter_eip},
        {.index = MSR_PAT, .data = s->pat},
    };

    memcpy(m, list, sizeof list);
    return STATE_MSRS;
}

static bool set_msrs(struct kvm_cpu *c, const struct cpu_state *s)
{
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry entries[STATE_MSRS];
    } m = {{0}, {{0}}};

    m.head.nmsrs = state_msrs(s, m.entries);
    return kvm_ioctl_p(c->fd, KVM_SET_MSRS, &m) == (int)m.head.nmsrs;
}

/* The x87 and SSE state; wider registers get what they have at reset. */
static bool set_fx(struct kvm_cpu *c, const struct cpu_state *s)
{
    struct kvm_xsave x;
    uint64_t parts = 3;

    memset(&x, 0, sizeof x);
    memcpy(x.region, s->fx, sizeof s->fx);
    memcpy((char *)x.region + 512, &parts, sizeof parts);
    return !kvm_ioctl_p(c->fd, KVM_SET_XSAVE, &x);
}

static bool set_debug(struct kvm_cpu *c, const struct cpu_state *s)
{
    struct kvm_debugregs d = {.dr6 = s->dr[6], .dr7 = s->dr[7]};

    memcpy(d.db, s->dr, sizeof d.db);
    return !kvm_ioctl_p(c->fd, KVM_SET_DEBUGREGS, &d);
}

static bool same_msrs(const struct cpu_state *a, const struct cpu_state *b)
{
    struct kvm_msr_entry x[STATE_MSRS], y[STATE_MSRS];

    state_msrs(a, x);
    state_msrs(b, y);
    return memcmp(x, y, sizeof x) == 0;
}

static bool set_slow(struct kvm_cpu *c, const struct cpu_state *s)
{
    struct cpu_state reset;
    bool ok = true;

    cpu_state_reset(&reset);
    if (!c->fresh || !same_msrs(s, &reset))
        ok = set_msrs(c, s);
    if (ok && (!c->fresh || memcmp(s->fx, reset.fx, sizeof s->fx) != 0))
        ok = set_fx(c, s);
    if (ok && (!c->fresh || memcmp(s->dr, reset.dr, sizeof s->dr) != 0))
        ok = set_debug(c, s);
    return ok;
}

/* ---- the whole */

static bool enterable(const struct cpu_state *s)
{
    bool paging = (s->cr0 & CR0_PG) != 0, lma = (s->efer & EFER_LMA) != 0;

    if (s->cr0 >> 32 || s->rflags >> 32 || s->rflags & FL_VM)
        return false;
    if ((paging && !(s->cr0 & CR0_PE)) || lma != (paging && (s->efer & EFER_LME)))
        return false;
    return (!lma || s->cr4 & CR4_PAE) && s->cr8 < 16;
}

enum mf_status kvm_regs_set(struct kvm_cpu *c, const struct cpu_state *s)
{
    struct kvm_sync_regs *sync = &c->run->s.regs;

    if (!enterable(s) || !kvm_regs_settle(c) || !set_slow(c, s))
        return MF_E_RANGE;
    regs_in(s, &sync->regs);
    sregs_in(s, &sync->sregs);
    events_in(s, &sync->events);
    c->run->kvm_dirty_regs = SYNC_ALL;
    c->halted = s->halted != 0;
    c->wait_sipi = s->wait_sipi != 0;
    c->run->if_flag = (s->rflags & 0x200) != 0;
    c->run->ready_for_interrupt_injection = 0;
    if (c->v)
        atomic_store(&c->v->tsc_offset, s->tsc_offset);
    return MF_OK;
}

bool kvm_regs_settle(struct kvm_cpu *c)
{
    /* Strings of ports and two-part accesses come back more than once. */
    for (unsigned i = 0; c->pending && i < 4; i++) {
        int rc;

        c->run->immediate_exit = 1;
        rc = kvm_ioctl(c->fd, KVM_RUN, 0);
        if (rc && errno == EINTR)
            c->pending = false;
        else if (rc)
            break;
    }
    return !c->pending;
}

static void get_slow(struct kvm_cpu *c, struct cpu_state *s)
{
    struct kvm_debugregs d;
    struct kvm_xsave x;
    struct {
        struct kvm_msrs head;
        struct kvm_msr_entry e[STATE_MSRS];
    } m = {{0}, {{0}}};

    m.head.nmsrs = state_msrs(s, m.e);
    if (kvm_ioctl_p(c->fd, KVM_GET_MSRS, &m) == (int)STATE_MSRS) {
        uint64_t *to[STATE_MSRS] = {&s->star,         &s->lstar,          &s->cstar,
                                    &s->sfmask,       &s->kernel_gs_base, &s->sysenter_cs,
                                    &s->sysenter_esp, &s->sysenter_eip,   &s->pat};

        for (unsigned i = 0; i < STATE_MSRS; i++)
            *to[i] = m.e[i].data;
    }
    memset(&x, 0, sizeof x);
    if (!kvm_ioctl_p(c->fd, KVM_GET_XSAVE, &x))
        memcpy(s->fx, x.region, sizeof s->fx);
    if (!kvm_ioctl_p(c->fd, KVM_GET_DEBUGREGS, &d)) {
        memcpy(s->dr, d.db, sizeof d.db);
        s->dr[6] = d.dr6;
        s->dr[7] = d.dr7;
    }
}

void kvm_regs_get(struct kvm_cpu *c, struct cpu_state *s)
{
    struct kvm_sync_regs now;

    cpu_state_reset(s);
    kvm_regs_settle(c);
    if (c->run->kvm_dirty_regs) {
        now = c->run->s.regs; /* not entered since it was set */
    } else {
        memset(&now, 0, sizeof now);
        if (kvm_ioctl_p(c->fd, KVM_GET_REGS, &now.regs) ||
            kvm_ioctl_p(c->fd, KVM_GET_SREGS, &now.sregs) ||
            kvm_ioctl_p(c->fd, KVM_GET_VCPU_EVENTS, &now.events))
            return;
    }
    regs_out(&now.regs, s);
    sregs_out(&now.sregs, s);
    s->nmi_blocked = now.events.nmi.masked;
    s->intr_shadow = now.events.interrupt.shadow != 0;
    get_slow(c, s);
    s->halted = c->halted;
    s->wait_sipi = c->wait_sipi;
    if (c->v)
        s->tsc_offset = atomic_load(&c->v->tsc_offset);
}

/* ---- the rest, for a shell that gets another guest */

struct kvm_rest {
    struct kvm_xsave xsave;
    struct kvm_xcrs xcrs;
    struct kvm_debugregs debug;
    unsigned nr_msrs;
    struct kvm_msrs *msrs;
};

/* Reads what can be read; numbers that the kernel lists and does not have are left out. */
static bool read_msrs(struct kvm_cpu *c, struct kvm_msrs *m)
{
    const struct kvm_host *h = kvm_host();
    struct kvm_msr_entry one;
    unsigned n = 0;

    for (unsigned i = 0; i < h->nr_msrs; i++) {
        struct {
            struct kvm_msrs head;
            struct kvm_msr_entry e;
        } x = {{.nmsrs = 1}, {.index = h->msrs[i]}};

        if (kvm_ioctl_p(c->fd, KVM_GET_MSRS, &x) != 1)
            continue;
        if (x.e.index == MSR_TSC)
            x.e.data = 0;
        one = x.e;
        /* One that does not take its own value back is not state. */
        if (kvm_ioctl_p(c->fd, KVM_SET_MSRS, &x) == 1)
            m->entries[n++] = one;
    }
    m->nmsrs = n;
    return n > 0;
}

struct kvm_rest *kvm_rest_read(struct kvm_cpu *c)
{
    struct kvm_rest *r = calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->msrs = calloc(1, sizeof *r->msrs + KVM_MSRS_MAX * sizeof r->msrs->entries[0]);
    if (r->msrs && !kvm_ioctl_p(c->fd, KVM_GET_XSAVE, &r->xsave) &&
        !kvm_ioctl_p(c->fd, KVM_GET_XCRS, &r->xcrs) &&
        !kvm_ioctl_p(c->fd, KVM_GET_DEBUGREGS, &r->debug) && read_msrs(c, r->msrs))
        return r;
    kvm_rest_free(r);
    return NULL;
}

void kvm_rest_free(struct kvm_rest *r)
{
    if (!r)
        return;
    free(r->msrs);
    free(r);
}

bool kvm_rest_write(struct kvm_cpu *c, const struct kvm_rest *r)
{
    struct kvm_rest copy = *r;

    return !kvm_ioctl_p(c->fd, KVM_SET_XCRS, &copy.xcrs) &&
           !kvm_ioctl_p(c->fd, KVM_SET_XSAVE, &copy.xsave) &&
           !kvm_ioctl_p(c->fd, KVM_SET_DEBUGREGS, &copy.debug) &&
           kvm_ioctl_p(c->fd, KVM_SET_MSRS, r->msrs) == (int)r->msrs->nmsrs;
}
