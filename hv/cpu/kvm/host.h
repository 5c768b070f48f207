/*
 * KVM as this host has it: opened and asked once, before the core shuts itself in.
 */
#ifndef MAYFLY_CPU_KVM_HOST_H
#define MAYFLY_CPU_KVM_HOST_H

#include <linux/kvm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

#define KVM_CPUID_MAX 128u
#define KVM_MSRS_MAX  256u

struct kvm_host {
    int fd;          /* /dev/kvm, -1: not usable */
    size_t run_size; /* of a vCPU's shared page */
    unsigned max_slots, max_vcpus;
    bool full;        /* it runs real kernels, see selftest.h */
    bool user_msrs;   /* MSRs can be given to the machine */
    bool hypercalls;  /* a guest's VMCALL can be had (KVM's Xen interception) */
    bool tsc_control; /* the guest's TSC can run at another rate than the host's */
    bool dirty_manual;
    /* What a guest may see, without what is of one vCPU. */
    unsigned nr_cpuid;
    struct kvm_cpuid_entry2 cpuid[KVM_CPUID_MAX];
    /* Registers that hold a guest's state, beyond those with a call of their own. */
    unsigned nr_msrs;
    uint32_t msrs[KVM_MSRS_MAX];
};

/*
 * Opens and checks, once it succeeded no more. MF_OK, or MF_E_NOT_SUPPORTED, MF_E_PERM, MF_E_BUSY
 * and *why, a sentence in static storage that the next call may change. With MF_OK it is empty, or
 * says why this KVM should only be used where it is asked for.
 */
enum mf_status kvm_host_open(const char **why);
/* Forgets the answer and closes. No VM may exist. */
void kvm_host_close(void);
/* After kvm_host_open said MF_OK. */
const struct kvm_host *kvm_host(void);

#endif
