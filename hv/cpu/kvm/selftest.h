/* A guest of a few instructions that says whether this KVM runs a kernel. */
#ifndef MAYFLY_CPU_KVM_SELFTEST_H
#define MAYFLY_CPU_KVM_SELFTEST_H

#include <stdbool.h>
#include <stddef.h>

/* `vm`: a VM without vCPUs and memory, which is not to be used for anything else after it. */
bool kvm_selftest(int vm, size_t run_size);

#endif
