/*
 * What a guest sees of its CPU. The system side is that of the software engine: what it does not
 * offer (performance counters, nested virtualization, machine checks, MTRRs ...) is not offered
 * here either, unless the machine adds it. Of what computes, everything up to AVX2 that the host's
 * CPU and KVM have. Vendor, family and model are the host's: errata and the behaviour of SYSENTER
 * hang on them.
 *
 * Bit numbers: Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E.
 */
#include <string.h>

#include "hv/cpu/kvm/kvm.h"

#define BIT(n) (1u << (n))

/* fpu pse tsc msr pae cx8 sep pge cmov pat clflush mmx fxsr sse sse2 */
#define EDX_1                                                                                      \
    (BIT(0) | BIT(3) | BIT(4) | BIT(5) | BIT(6) | BIT(8) | BIT(11) | BIT(13) | BIT(15) | BIT(16) | \
     BIT(19) | BIT(23) | BIT(24) | BIT(25) | BIT(26))
/* sse3 pclmul ssse3 fma cx16 pcid sse4.1 sse4.2 movbe popcnt aes xsave osxsave avx f16c rdrand */
#define ECX_1                                                                                      \
    (BIT(0) | BIT(1) | BIT(9) | BIT(12) | BIT(13) | BIT(17) | BIT(19) | BIT(20) | BIT(22) |        \
     BIT(23) | BIT(25) | BIT(26) | BIT(27) | BIT(28) | BIT(29) | BIT(30))
#define ECX_1_HYPERVISOR BIT(31)
/* fsgsbase bmi1 avx2 smep bmi2 erms invpcid rdseed adx smap clflushopt clwb sha */
#define EBX_7                                                                                      \
    (BIT(0) | BIT(3) | BIT(5) | BIT(7) | BIT(8) | BIT(9) | BIT(10) | BIT(18) | BIT(19) | BIT(20) | \
     BIT(23) | BIT(24) | BIT(29))
/* umip gfni vaes vpclmul rdpid */
#define ECX_7 (BIT(2) | BIT(8) | BIT(9) | BIT(10) | BIT(22))
/* fsrm md_clear spec_ctrl stibp l1d_flush arch_capabilities ssbd */
#define EDX_7 (BIT(4) | BIT(10) | BIT(26) | BIT(27) | BIT(28) | BIT(29) | BIT(31))
/* xsaveopt xsavec xgetbv1 */
#define EAX_D1 (BIT(0) | BIT(1) | BIT(2))
/* x87, SSE, AVX state */
#define XCR0_BITS 7u
/* lahf abm misalignsse 3dnowprefetch */
#define ECX_80000001 (BIT(0) | BIT(5) | BIT(7) | BIT(8))
/* those of EDX_1 that AMD repeats; syscall nx 1g rdtscp lm */
#define EDX_80000001                                                                               \
    (BIT(0) | BIT(3) | BIT(4) | BIT(5) | BIT(6) | BIT(8) | BIT(13) | BIT(15) | BIT(16) | BIT(23) | \
     BIT(24) | BIT(11) | BIT(20) | BIT(26) | BIT(27) | BIT(29))
/* ibpb ibrs stibp and their kin */
#define EBX_80000008 (BIT(12) | BIT(14) | BIT(15) | BIT(24) | BIT(25))

#define HYPERVISOR "MayflyMayfly"

static void mask_basic(const struct vcpu *v, struct kvm_cpuid_entry2 *e)
{
    switch (e->function) {
    case 1:
        e->ebx = (e->ebx & 0xff00) | v->index << 24 | (v->vm->nr_vcpus & 0xff) << 16;
        e->ecx = (e->ecx & ECX_1) | ECX_1_HYPERVISOR;
        e->edx &= EDX_1;
        break;
    case 4: /* caches: of one core of its own */
        e->eax &= 0x3fff;
        break;
    case 7:
        e->eax = 0;
        e->ebx = e->index ? 0 : e->ebx & EBX_7;
        e->ecx = e->index ? 0 : e->ecx & ECX_7;
        e->edx = e->index ? 0 : e->edx & EDX_7;
        break;
    case 0xd:
        if (e->index == 0) {
            e->eax &= XCR0_BITS;
            e->edx = 0;
        } else if (e->index == 1) {
            e->eax &= EAX_D1;
            e->ebx = e->ecx = e->edx = 0;
        }
        break;
    default:
        break;
    }
}

static void mask_extended(struct kvm_cpuid_entry2 *e)
{
    switch (e->function) {
    case 0x80000001u:
        e->ecx &= ECX_80000001;
        e->edx &= EDX_80000001;
        break;
    case 0x80000007u:
        e->eax = e->ebx = e->ecx = 0;
        e->edx = BIT(8); /* the TSC's rate never changes */
        break;
    case 0x80000008u:
        e->ebx &= EBX_80000008;
        e->ecx = e->edx = 0;
        break;
    default:
        break;
    }
}

/* Leaves that a guest gets at all. */
static bool offered(const struct kvm_cpuid_entry2 *e)
{
    switch (e->function) {
    case 0:
    case 1:
    case 2:
    case 4:
        return true;
    case 7:
        return e->index == 0;
    case 0xd:
        return e->index <= 2;
    default:
        return e->function >= 0x80000000u && e->function <= 0x80000008u;
    }
}

static void add_hypervisor(struct kvm_cpuid_entry2 *out, unsigned *n)
{
    struct kvm_cpuid_entry2 e = {.function = 0x40000000u, .eax = 0x40000000u};

    memcpy(&e.ebx, HYPERVISOR, 4);
    memcpy(&e.ecx, HYPERVISOR + 4, 4);
    memcpy(&e.edx, HYPERVISOR + 8, 4);
    out[(*n)++] = e;
    out[(*n)++] = (struct kvm_cpuid_entry2){.function = 0x40000001u};
}

/*
 * What the machine adds, but for the TSC deadline, which counts ticks of another rate than this
 * TSC, and x2APIC: the kernel keeps the register that turns it on to itself.
 */
static void ask_machine(const struct vcpu *v, struct kvm_cpuid_entry2 *e)
{
    uint32_t r[4] = {e->eax, e->ebx, e->ecx, e->edx};

    if (!v->mops->cpuid)
        return;
    v->mops->cpuid(v->machine, v, e->function, e->index, r);
    e->eax = r[0];
    e->ebx = r[1];
    e->ecx = r[2];
    e->edx = r[3];
    if (e->function == 1)
        e->ecx &= ~(BIT(21) | BIT(24));
}

void kvm_cpuid_make(const struct vcpu *v, struct kvm_cpuid_entry2 *out, unsigned *count)
{
    const struct kvm_host *h = kvm_host();
    unsigned n = 0;

    for (unsigned i = 0; i < h->nr_cpuid && n < KVM_CPUID_MAX - 2; i++) {
        struct kvm_cpuid_entry2 e = h->cpuid[i];

        if (!offered(&e))
            continue;
        if (e.function == 0 && e.eax > 0xd)
            e.eax = 0xd;
        if (e.function == 0x80000000u && e.eax > 0x80000008u)
            e.eax = 0x80000008u;
        if (e.function < 0x80000000u)
            mask_basic(v, &e);
        else
            mask_extended(&e);
        out[n++] = e;
    }
    add_hypervisor(out, &n);
    for (unsigned i = 0; i < n; i++)
        ask_machine(v, &out[i]);
    *count = n;
}
