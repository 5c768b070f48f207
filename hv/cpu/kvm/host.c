#include "hv/cpu/kvm/host.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hv/cpu/kvm/selftest.h"
#include "hv/cpu/kvm/sys.h"

#define DEVICE "/dev/kvm"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* under lock until it is asked; constant after that */
static bool asked;
static enum mf_status answer;
static char reason[96];
static struct kvm_host host = {.fd = -1};

/* What the engine cannot do without. */
static const struct {
    int cap, least;
    const char *name;
} needed[] = {
    {KVM_CAP_USER_MEMORY, 1, "KVM_CAP_USER_MEMORY"},
    {KVM_CAP_DESTROY_MEMORY_REGION_WORKS, 1, "KVM_CAP_DESTROY_MEMORY_REGION_WORKS"},
    {KVM_CAP_SYNC_MMU, 1, "KVM_CAP_SYNC_MMU"},
    {KVM_CAP_SET_TSS_ADDR, 1, "KVM_CAP_SET_TSS_ADDR"},
    {KVM_CAP_EXT_CPUID, 1, "KVM_CAP_EXT_CPUID"},
    {KVM_CAP_IMMEDIATE_EXIT, 1, "KVM_CAP_IMMEDIATE_EXIT"},
    {KVM_CAP_VCPU_EVENTS, 1, "KVM_CAP_VCPU_EVENTS"},
    {KVM_CAP_XSAVE, 1, "KVM_CAP_XSAVE"},
    {KVM_CAP_DEBUGREGS, 1, "KVM_CAP_DEBUGREGS"},
    {KVM_CAP_ADJUST_CLOCK, 1, "KVM_CAP_ADJUST_CLOCK"},
    {KVM_CAP_SYNC_REGS, 7, "KVM_CAP_SYNC_REGS with registers and events"},
    {KVM_CAP_NR_MEMSLOTS, 8, "KVM_CAP_NR_MEMSLOTS of at least 8"},
};

__attribute__((format(printf, 2, 3))) static enum mf_status say(enum mf_status st, const char *fmt,
                                                                ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);
    return st;
}

static int check(int cap)
{
    return kvm_ioctl(host.fd, KVM_CHECK_EXTENSION, (unsigned long)cap);
}

static enum mf_status open_device(void)
{
    host.fd = kvm_sys()->open(DEVICE);
    if (host.fd >= 0)
        return MF_OK;
    switch (errno) {
    case ENOENT:
        return say(MF_E_NOT_SUPPORTED, "no device " DEVICE ": the module kvm is not loaded");
    case ENXIO:
    case ENODEV:
        return say(MF_E_NOT_SUPPORTED, DEVICE " has no driver: the CPU offers no VMX or SVM");
    case EACCES:
    case EPERM:
        return say(MF_E_PERM, "no permission for " DEVICE);
    case EBUSY:
        return say(MF_E_BUSY, DEVICE " is in use by another hypervisor");
    default:
        return say(MF_E_NOT_SUPPORTED, DEVICE ": %s", strerror(errno));
    }
}

static enum mf_status check_needs(void)
{
    int version = kvm_ioctl(host.fd, KVM_GET_API_VERSION, 0);

    if (version != KVM_API_VERSION)
        return say(MF_E_NOT_SUPPORTED, DEVICE " speaks API version %d, needed is %d", version,
                   KVM_API_VERSION);
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (check(needed[i].cap) < needed[i].least)
            return say(MF_E_NOT_SUPPORTED, DEVICE " lacks %s", needed[i].name);
    return MF_OK;
}

/* A VM that is made and thrown away: only now the CPU's virtualization is really switched on. */
static enum mf_status try_vm(void)
{
    int vm;

    do
        vm = kvm_ioctl(host.fd, KVM_CREATE_VM, 0);
    while (vm < 0 && errno == EINTR);
    if (vm >= 0) {
        int size = kvm_ioctl(host.fd, KVM_GET_VCPU_MMAP_SIZE, 0);

        host.full = size > 0 && kvm_selftest(vm, (size_t)size);
        kvm_sys()->close(vm);
        if (!host.full)
            say(MF_OK, "only on request: this KVM does not run a kernel's breakpoint");
        return MF_OK;
    }
    if (errno == EBUSY)
        return say(MF_E_BUSY, "the CPU's virtualization is in use by another hypervisor");
    return say(MF_E_NOT_SUPPORTED, DEVICE " makes no VM: %s", strerror(errno));
}

static void read_limits(void)
{
    int size = kvm_ioctl(host.fd, KVM_GET_VCPU_MMAP_SIZE, 0);
    int vcpus = check(KVM_CAP_MAX_VCPUS), xen = check(KVM_CAP_XEN_HVM);

    host.run_size = size > 0 ? (size_t)size : 0;
    host.max_slots = (unsigned)check(KVM_CAP_NR_MEMSLOTS);
    host.max_vcpus = vcpus > 0 ? (unsigned)vcpus : 4;
    host.user_msrs = check(KVM_CAP_X86_USER_SPACE_MSR) > 0 && check(KVM_CAP_X86_MSR_FILTER) > 0;
    host.hypercalls = xen > 0 && (xen & KVM_XEN_HVM_CONFIG_INTERCEPT_HCALL);
    host.tsc_control = check(KVM_CAP_TSC_CONTROL) > 0;
    host.dirty_manual = check(KVM_CAP_MANUAL_DIRTY_LOG_PROTECT2) > 0;
}

static enum mf_status read_msrs(void)
{
    struct kvm_msr_list *l = calloc(1, sizeof *l + KVM_MSRS_MAX * sizeof l->indices[0]);
    enum mf_status st = MF_OK;

    if (!l)
        return say(MF_E_NO_MEMORY, "no host memory");
    l->nmsrs = KVM_MSRS_MAX;
    if (kvm_ioctl_p(host.fd, KVM_GET_MSR_INDEX_LIST, l) || l->nmsrs > KVM_MSRS_MAX) {
        st = say(MF_E_NOT_SUPPORTED, DEVICE " does not tell its MSRs");
    } else {
        memcpy(host.msrs, l->indices, l->nmsrs * sizeof l->indices[0]);
        host.nr_msrs = l->nmsrs;
    }
    free(l);
    return st;
}

static enum mf_status read_cpuid(void)
{
    struct kvm_cpuid2 *c = calloc(1, sizeof *c + KVM_CPUID_MAX * sizeof c->entries[0]);
    enum mf_status st = MF_OK;

    if (!c)
        return say(MF_E_NO_MEMORY, "no host memory");
    c->nent = KVM_CPUID_MAX;
    if (kvm_ioctl_p(host.fd, KVM_GET_SUPPORTED_CPUID, c) || c->nent > KVM_CPUID_MAX) {
        st = say(MF_E_NOT_SUPPORTED, DEVICE " does not tell its CPUID");
    } else {
        memcpy(host.cpuid, c->entries, c->nent * sizeof c->entries[0]);
        host.nr_cpuid = c->nent;
    }
    free(c);
    return st;
}

static enum mf_status ask(void)
{
    enum mf_status st = open_device();

    if (st)
        return st;
    st = check_needs();
    if (!st)
        st = try_vm();
    if (!st)
        read_limits();
    if (!st && host.run_size < sizeof(struct kvm_run))
        st = say(MF_E_NOT_SUPPORTED, DEVICE " has vCPU pages of %zu bytes", host.run_size);
    if (!st)
        st = read_cpuid();
    if (!st)
        st = read_msrs();
    if (st) {
        kvm_sys()->close(host.fd);
        host.fd = -1;
    }
    return st;
}

enum mf_status kvm_host_open(const char **why)
{
    enum mf_status st;

    pthread_mutex_lock(&lock);
    if (!asked) {
        reason[0] = '\0';
        answer = ask();
        asked = !answer;
    }
    st = answer;
    *why = reason;
    pthread_mutex_unlock(&lock);
    return st;
}

void kvm_host_close(void)
{
    pthread_mutex_lock(&lock);
    if (host.fd >= 0)
        kvm_sys()->close(host.fd);
    host.fd = -1;
    asked = false;
    pthread_mutex_unlock(&lock);
}

const struct kvm_host *kvm_host(void)
{
    return &host;
}
