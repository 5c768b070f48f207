/*
 * Inside of the KVM engine.
 *
 * A *shell* is a VM of the kernel with its vCPUs, without a guest: what is slow to make. A life
 * borrows one, from the pool or newly made, and gives it back at its end.
 *
 * Memory: each extent of the second stage is a memory slot over the arena's mapping. A shell keeps
 * its slots between lives: nobody runs on it meanwhile, and before a vCPU enters again the slots
 * are compared with the new second stage. The kernel follows what happens to the arena's pages
 * behind a slot by itself.
 *
 * Locks: pool.lock; shell.lock (slots). Neither is held while the other is taken. A kick takes
 * none.
 */
#ifndef MAYFLY_CPU_KVM_KVM_H
#define MAYFLY_CPU_KVM_KVM_H

#include <pthread.h>
#include <stdbool.h>

#include "hv/cpu/engine.h"
#include "hv/cpu/kvm/host.h"
#include "hv/cpu/kvm/sys.h"

struct kvm_shell;

/* A vCPU of the kernel. Used by one thread at a time, but for `inside` and the shared page's
 * immediate_exit. */
struct kvm_cpu {
    struct kvm_shell *shell;
    unsigned index;
    int fd;
    struct kvm_run *run;
    void *thread;   /* that ran it, see vcpu->thread */
    struct vcpu *v; /* NULL: no guest */
    bool fresh;     /* nothing but general state was set since it was made or reset */
    bool pending;   /* the kernel finishes an access at the next entry */
    bool halted, wait_sipi;
    uint8_t cr8;         /* as the machine said before the entry */
    _Atomic bool inside; /* `self` is on its way into or in KVM_RUN */
    pthread_t self;
    unsigned nr_cpuid;
    struct kvm_cpuid_entry2 cpuid[KVM_CPUID_MAX];
};

struct kvm_slot {
    uint64_t gfn, mfn, frames;
    unsigned access;
    uint32_t id;
};

struct kvm_shell {
    int fd;
    unsigned nr_cpus;
    struct kvm_cpu *cpus;
    bool broken; /* something went wrong: not to be used again */
    struct kvm_shell *next;

    pthread_mutex_t lock;
    /* under lock */
    struct kvm_slot *slots; /* ascending by gfn */
    unsigned nr_slots, cap_slots;
    uint32_t *ids; /* free ones, the next at nr_ids - 1 */
    unsigned nr_ids, cap_ids;
    uint32_t next_id;
    bool synced;
    uint64_t epoch; /* of the second stage when the slots were made of it */
};

/* ---- shells (shell.c) */

/* `v`: the vCPUs that it is for; what they show of themselves (CPUID) cannot change later. */
enum mf_status kvm_shell_create(struct engine_vm *vm, struct kvm_shell **out);
void kvm_shell_destroy(struct kvm_shell *s);
/* As new but for its slots. False: it cannot be, destroy it. */
bool kvm_shell_reset(struct kvm_shell *s);
/* Drops what resets go by. */
void kvm_fresh_forget(void);

/* ---- pool (pool.c) */

/* MF_E_NO_MEMORY, MF_E_IO, MF_E_LIMIT (vCPUs). */
enum mf_status kvm_pool_get(struct engine_vm *vm, struct kvm_shell **out);
void kvm_pool_put(struct kvm_shell *s);
void kvm_pool_setup(unsigned size);
void kvm_pool_drain(void);

/* ---- slots (slots.c) */

/*
 * Makes the slots those of the second stage, when it changed since the last time or `force`.
 * MF_E_LIMIT: more extents than the kernel has slots; MF_E_NO_MEMORY, MF_E_IO.
 */
enum mf_status kvm_slots_sync(struct kvm_shell *s, struct stage2 *s2, bool force);
void kvm_slots_drop(struct kvm_shell *s);

/* ---- what a guest sees of its CPU (cpuid.c) */

/* Fills c->cpuid as vCPU `v` of its VM sees it. */
void kvm_cpuid_make(const struct vcpu *v, struct kvm_cpuid_entry2 *out, unsigned *count);

/* ---- state (regs.c) */

/* Everything goes in at the next entry, or now where the kernel has no other way. */
enum mf_status kvm_regs_set(struct kvm_cpu *c, const struct cpu_state *s);
void kvm_regs_get(struct kvm_cpu *c, struct cpu_state *s);
/* The kernel finishes what it has begun. False: it did not. */
bool kvm_regs_settle(struct kvm_cpu *c);

/* What is of no call of its own: MSRs, extended state, debug registers. */
struct kvm_rest;
/* Of a vCPU that was just made; NULL without memory or when the kernel does not tell. */
struct kvm_rest *kvm_rest_read(struct kvm_cpu *c);
bool kvm_rest_write(struct kvm_cpu *c, const struct kvm_rest *r);
void kvm_rest_free(struct kvm_rest *r);

/* ---- running (run.c) */

enum cpu_exit kvm_cpu_run(struct kvm_cpu *c);
void kvm_cpu_kick(struct kvm_cpu *c);
/* So that a signal takes a thread out of KVM_RUN. */
bool kvm_signal_setup(void);

extern void (*kvm_thread_free)(void *thread);

#endif
