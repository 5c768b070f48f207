/*
 * CPU engine interface. An engine runs vCPUs; it knows second-stage memory (hv/mm) and sees the
 * rest of the machine through `struct machine_ops`, which hv/vm implements.
 *
 * Threads: one vCPU is run by one thread at a time; different vCPUs of a VM may run at once. `kick`
 * and setting vcpu->events may come from any thread at any time.
 */
#ifndef MAYFLY_CPU_ENGINE_H
#define MAYFLY_CPU_ENGINE_H

#include <stdatomic.h>

#include "hv/mm/stage2.h"

/* Why run() came back. */
enum cpu_exit {
    CPU_EXIT_BUDGET,       /* the slice is used up */
    CPU_EXIT_HALT,         /* HLT or wait for SIPI; goes on by events, see halt_masked */
    CPU_EXIT_EVENT,        /* kicked: look at vcpu->events */
    CPU_EXIT_STOP,         /* a machine op answered MACHINE_STOP; state is past the instruction */
    CPU_EXIT_YIELD,        /* a machine op answered MACHINE_YIELD */
    CPU_EXIT_TRIPLE_FAULT, /* the guest is gone */
    CPU_EXIT_BAD_ACCESS,   /* guest-physical access outside RAM and MMIO: bad_gpa */
    CPU_EXIT_NO_MEMORY,    /* demand fault failed: status; may be run again, nothing is lost */
    CPU_EXIT_FAILED, /* the engine cannot go on (an instruction it lacks, host error): detail */
};

/* vcpu->events, set by others, cleared by whoever serves them. */
#define CPU_EVENT_KICK 0x1u /* leave run() soon: the scheduler wants the thread */
/* The interrupt controller has something: ask machine_ops->intr_ack once interrupts are open (IF
 * set, no shadow: the interrupt window). Set anew for each further vector. */
#define CPU_EVENT_INTR 0x2u
#define CPU_EVENT_NMI  0x4u
/* INIT: the vCPU is reset but for its APIC base and TSC, then waits for SIPI (vCPU 0 does not: it
 * starts at the reset vector). The machine has reset the vCPU's LAPIC already. */
#define CPU_EVENT_INIT 0x8u
/* SIPI with vcpu->sipi_vector; ignored unless the vCPU waits for one. Served after INIT. */
#define CPU_EVENT_SIPI 0x10u

struct cpu_segment {
    uint16_t selector;
    uint16_t attr;  /* VMCB layout: type 0-3, S 4, DPL 5-6, P 7, AVL 8, L 9, DB 10, G 11 */
    uint32_t limit; /* in bytes, already scaled by G */
    uint64_t base;
};
#define CPU_SEG_TYPE 0x00fu
#define CPU_SEG_S    0x010u
#define CPU_SEG_DPL  0x060u
#define CPU_SEG_P    0x080u
#define CPU_SEG_L    0x200u
#define CPU_SEG_DB   0x400u
#define CPU_SEG_G    0x800u

enum { CPU_RAX, CPU_RCX, CPU_RDX, CPU_RBX, CPU_RSP, CPU_RBP, CPU_RSI, CPU_RDI };
enum { CPU_ES, CPU_CS, CPU_SS, CPU_DS, CPU_FS, CPU_GS, CPU_SEGS };

/* Architectural state of a vCPU, the same for every engine. */
struct cpu_state {
    uint64_t gpr[16]; /* CPU_RAX ..., r8 to r15 */
    uint64_t rip, rflags;
    struct cpu_segment seg[CPU_SEGS], ldtr, tr;
    uint64_t gdt_base, idt_base;
    uint32_t gdt_limit, idt_limit;
    uint64_t cr0, cr2, cr3, cr4, cr8, efer;
    uint64_t dr[8];
    uint64_t star, lstar, cstar, sfmask, kernel_gs_base;
    uint64_t sysenter_cs, sysenter_esp, sysenter_eip;
    uint64_t apic_base, pat, tsc_offset;
    uint8_t halted, wait_sipi, nmi_blocked, intr_shadow;
    _Alignas(16) uint8_t fx[512]; /* FXSAVE image */
};

/* The state after INIT/power-on (real mode at f000:fff0). */
void cpu_state_reset(struct cpu_state *s);

/* What an op of the machine wants the engine to do next. */
enum machine_result {
    MACHINE_OK,
    MACHINE_STOP,  /* finish the instruction, then leave with CPU_EXIT_STOP */
    MACHINE_YIELD, /* finish the instruction, then leave with CPU_EXIT_YIELD */
    MACHINE_NONE,  /* nobody is there: reads give all ones (ports), CPU_EXIT_BAD_ACCESS (MMIO) */
};

struct vcpu;

/*
 * How a vCPU reaches the machine around it. `m` is the vcpu's `machine`. Sizes are 1, 2, 4 (ports)
 * or 1, 2, 4, 8 (MMIO); values are zero extended. All may be called with the viewer inside.
 */
struct machine_ops {
    enum machine_result (*port_in)(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                   uint32_t *value);
    enum machine_result (*port_out)(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                    uint32_t value);
    enum machine_result (*mmio_read)(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                     uint64_t *value);
    enum machine_result (*mmio_write)(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                      uint64_t value);
    /* VMCALL/VMMCALL at CPL 0: nr from RAX, args from RBX, RCX, RDX, RSI; *result goes to RAX. */
    enum machine_result (*hypercall)(void *m, struct vcpu *v, uint64_t nr, const uint64_t arg[4],
                                     int64_t *result);
    /* Vector of the pending external interrupt, acknowledged; -1 when there is none. */
    int (*intr_ack)(void *m, struct vcpu *v);
    /* Nanoseconds since the VM started, stopped while it is paused: the base of every guest clock.
     */
    uint64_t (*clock_ns)(void *m);

    /* What follows may be NULL: such a machine has no LAPIC and no paravirtual clock. */

    /*
     * MSRs that are the machine's: APIC base (0x1b), TSC deadline (0x6e0), x2APIC (0x800 to 0x8ff),
     * kvm-clock (0x4b564d00, 0x4b564d01). The engine asks for every number it does not know itself;
     * MACHINE_NONE: no such register or value, #GP. A write of the TSC (0x10) is told after
     * vcpu->tsc_offset has changed.
     */
    enum machine_result (*msr_read)(void *m, struct vcpu *v, uint32_t nr, uint64_t *value);
    enum machine_result (*msr_write)(void *m, struct vcpu *v, uint32_t nr, uint64_t value);
    /* CR8: bits 4 to 7 of the task priority. `value` is 0 to 15. */
    uint64_t (*cr8_read)(void *m, struct vcpu *v);
    void (*cr8_write)(void *m, struct vcpu *v, uint64_t value);
    /* Adds what the machine offers to a leaf that the engine has filled (EAX, EBX, ECX, EDX). */
    void (*cpuid)(void *m, const struct vcpu *v, uint32_t leaf, uint32_t sub, uint32_t r[4]);
};

/* Rate of every engine's TSC where the host does not set it: it counts the clock's nanoseconds. */
#define CPU_TSC_KHZ UINT64_C(1000000)
_Static_assert(CPU_TSC_KHZ == 1000000, "a tick is a nanosecond: no conversion is needed");

struct engine_ops;

/* Of one VM. The engine hangs its own behind `priv`. Owned by hv/vm. */
struct engine_vm {
    const struct engine_ops *ops;
    struct stage2 *s2;
    unsigned nr_vcpus;
    struct vcpu *const *vcpus; /* nr_vcpus; the soft engine does without */
    void *priv;
    uint64_t kernel_ns; /* what vm_fini spent on the host kernel's objects */
};

struct vcpu {
    struct engine_vm *vm;
    unsigned index;
    const struct machine_ops *mops;
    void *machine;
    _Atomic uint32_t events;
    _Atomic uint8_t sipi_vector; /* of CPU_EVENT_SIPI: starts at vector << 12 in real mode */
    /* Kept by the engine: guest TSC = clock_ns * kHz / 10^6 + tsc_offset. */
    _Atomic uint64_t tsc_offset;
    struct s2_viewer viewer; /* registered by the engine in vcpu_init */
    void *priv;

    /*
     * The thread that runs this vCPU, for engines with `own_threads`; hv/vm's to set and to
     * interpret. The engine keeps it with its own vCPU from life to life, and gives it to
     * engine_setup.thread_free with that one's end.
     */
    void *thread;

    /* Filled by run() for the exit it returns. */
    gpa_t bad_gpa;
    enum mf_status status;
    /* CPU_EXIT_HALT: CPU_EVENT_INTR does not wake it (IF is 0, or it waits for SIPI). */
    bool halt_masked;
    char detail[128];

    /* Counters, read by others without a lock. */
    _Atomic uint64_t instructions, exits, decodes, tlb_misses, stage2_faults;
};

/*
 * Every op but kick: called by the thread that owns the VM's life or that vCPU. `run` never blocks
 * but for page faults of the host; it leaves within about `budget` instructions (soft) or by kick
 * (kvm).
 */
struct engine_setup {
    unsigned pool; /* VM objects without a guest that are kept for the next life */
    void (*thread_free)(void *thread);
};

struct engine_ops {
    const char *name;
    enum mf_engine_kind { ENGINE_SOFT = 1, ENGINE_KVM = 2 } kind;
    /* MF_OK when it can work here; else *why (static string). With MF_OK *why is empty, or the
     * reason why it is only for VMs that ask for it. */
    enum mf_status (*probe)(const char **why);
    enum mf_status (*vm_init)(struct engine_vm *vm);
    void (*vm_fini)(struct engine_vm *vm);
    /* NULL for engines that have nothing to set up. Once, before the first VM; undone by drain. */
    void (*setup)(const struct engine_setup *s);
    void (*drain)(void);
    bool (*has_1g)(void); /* the vCPU has pages of 1 GiB; NULL: it has */
    bool own_threads;     /* a vCPU wants to be run by one thread always; run() may take for ever */
    bool wants_ram;       /* RAM is to be backed before the guest runs, see stage2_populate */
    /* Registers the viewer; state after reset. */
    enum mf_status (*vcpu_init)(struct vcpu *v);
    void (*vcpu_fini)(struct vcpu *v);
    void (*get_state)(struct vcpu *v, struct cpu_state *s);
    /* MF_E_RANGE when the state cannot be entered. */
    enum mf_status (*set_state)(struct vcpu *v, const struct cpu_state *s);
    enum cpu_exit (*run)(struct vcpu *v, uint64_t budget);
    /* Makes a run() under way leave soon. Safe against a vCPU that does not run. */
    void (*kick)(struct vcpu *v);
    /*
     * Notices about the second stage; may be NULL. A page that was written by other means than this
     * VM's vCPUs (device, boot loader, hypercall); an extent mapped or unmapped.
     */
    void (*page_written)(struct engine_vm *vm, gfn_t g);
    void (*mapped)(struct engine_vm *vm, gfn_t g, mfn_t m, unsigned order, unsigned access);
    void (*unmapped)(struct engine_vm *vm, gfn_t g, uint64_t frames);
};

/* Never NULL. Whether one works here its probe says. */
const struct engine_ops *engine_soft(void);
const struct engine_ops *engine_kvm(void);

#endif
