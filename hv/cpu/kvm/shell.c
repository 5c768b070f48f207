/* VM shells: a VM of the kernel and its vCPUs, made, reset and destroyed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hv/cpu/kvm/kvm.h"

/* Three pages below 4 GiB where the kernel hides what old Intel CPUs need for real mode. */
#define TSS_ADDR 0xfffbd000u

void (*kvm_thread_free)(void *thread);

/* What a fresh vCPU holds, read once for the first and once for the other vCPUs. */
static struct {
    pthread_mutex_t lock;
    struct kvm_rest *rest[2]; /* under lock while being set, constant after that */
} fresh = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int retry(int fd, unsigned long request, unsigned long arg)
{
    int rc;

    do
        rc = kvm_ioctl(fd, request, arg);
    while (rc < 0 && errno == EINTR);
    return rc;
}

static enum mf_status status_of_errno(void)
{
    switch (errno) {
    case ENOMEM:
        return MF_E_NO_MEMORY;
    case EMFILE:
    case ENFILE:
    case ENOSPC:
        return MF_E_LIMIT;
    case EBUSY:
        return MF_E_BUSY;
    default:
        return MF_E_IO;
    }
}

/* ---- vCPUs */

static void cpu_fini(struct kvm_cpu *c)
{
    if (c->thread && kvm_thread_free)
        kvm_thread_free(c->thread);
    if (c->run)
        kvm_sys()->munmap(c->run, kvm_host()->run_size);
    if (c->fd >= 0)
        kvm_sys()->close(c->fd);
}

static enum mf_status set_cpuid(struct kvm_cpu *c)
{
    struct {
        struct kvm_cpuid2 head;
        struct kvm_cpuid_entry2 entries[KVM_CPUID_MAX];
    } *arg = calloc(1, sizeof *arg);
    enum mf_status st;

    if (!arg)
        return MF_E_NO_MEMORY;
    arg->head.nent = c->nr_cpuid;
    memcpy(arg->entries, c->cpuid, c->nr_cpuid * sizeof c->cpuid[0]);
    st = kvm_ioctl_p(c->fd, KVM_SET_CPUID2, arg) ? MF_E_IO : MF_OK;
    free(arg);
    return st;
}

static enum mf_status cpu_init(struct kvm_cpu *c, struct kvm_shell *s, const struct vcpu *v)
{
    struct kvm_enable_cap cap = {.cap = KVM_CAP_ENFORCE_PV_FEATURE_CPUID, .args = {1}};

    c->shell = s;
    c->index = v->index;
    c->fresh = true;
    c->fd = retry(s->fd, KVM_CREATE_VCPU, v->index);
    if (c->fd < 0)
        return status_of_errno();
    c->run = kvm_sys()->mmap(c->fd, kvm_host()->run_size);
    if (!c->run)
        return MF_E_NO_MEMORY;
    kvm_cpuid_make(v, c->cpuid, &c->nr_cpuid);
    /* Older kernels cannot: their guests may then use paravirtual registers that none offers. */
    kvm_ioctl_p(c->fd, KVM_ENABLE_CAP, &cap);
    return set_cpuid(c);
}

/* ---- VMs */

static enum mf_status vm_setup(struct kvm_shell *s, bool machine_msrs)
{
    struct kvm_enable_cap cap = {.cap = KVM_CAP_X86_USER_SPACE_MSR,
                                 .args = {KVM_MSR_EXIT_REASON_UNKNOWN | KVM_MSR_EXIT_REASON_INVAL}};
    struct kvm_xen_hvm_config xen = {.flags = KVM_XEN_HVM_CONFIG_INTERCEPT_HCALL};

    if (kvm_ioctl(s->fd, KVM_SET_TSS_ADDR, TSS_ADDR))
        return status_of_errno();
    if (machine_msrs && kvm_host()->user_msrs && kvm_ioctl_p(s->fd, KVM_ENABLE_CAP, &cap))
        return status_of_errno();
    if (kvm_host()->hypercalls && kvm_ioctl_p(s->fd, KVM_XEN_HVM_CONFIG, &xen))
        return status_of_errno();
    return MF_OK;
}

enum mf_status kvm_shell_create(struct engine_vm *vm, struct kvm_shell **out)
{
    struct kvm_shell *s;
    enum mf_status st = MF_E_NO_MEMORY;

    if (vm->nr_vcpus > kvm_host()->max_vcpus)
        return MF_E_LIMIT;
    s = calloc(1, sizeof *s);
    if (!s)
        return MF_E_NO_MEMORY;
    pthread_mutex_init(&s->lock, NULL);
    s->fd = -1;
    s->cpus = calloc(vm->nr_vcpus, sizeof *s->cpus);
    if (!s->cpus)
        goto fail;
    s->fd = retry(kvm_host()->fd, KVM_CREATE_VM, 0);
    st = s->fd < 0 ? status_of_errno() : vm_setup(s, vm->vcpus[0]->mops->msr_read != NULL);
    for (; !st && s->nr_cpus < vm->nr_vcpus; s->nr_cpus++) {
        struct kvm_cpu *c = &s->cpus[s->nr_cpus];

        c->fd = -1;
        st = cpu_init(c, s, vm->vcpus[s->nr_cpus]);
    }
    if (!st) {
        *out = s;
        return MF_OK;
    }
fail:
    kvm_shell_destroy(s);
    return st;
}

void kvm_shell_destroy(struct kvm_shell *s)
{
    if (!s)
        return;
    for (unsigned i = 0; i < s->nr_cpus; i++)
        cpu_fini(&s->cpus[i]);
    if (s->fd >= 0)
        kvm_sys()->close(s->fd);
    kvm_slots_drop(s);
    pthread_mutex_destroy(&s->lock);
    free(s->cpus);
    free(s);
}

/* ---- another guest */

/*
 * What a vCPU holds that was never entered, read from one made for this. NULL: it cannot be told.
 */
static struct kvm_rest *read_fresh(const struct kvm_cpu *like)
{
    struct kvm_cpu c = {.fd = -1, .index = like->index};
    struct kvm_rest *r = NULL;
    int vm = retry(kvm_host()->fd, KVM_CREATE_VM, 0);

    if (vm < 0)
        return NULL;
    c.fd = retry(vm, KVM_CREATE_VCPU, like->index);
    if (c.fd >= 0) {
        c.nr_cpuid = like->nr_cpuid;
        memcpy(c.cpuid, like->cpuid, sizeof c.cpuid);
        if (!set_cpuid(&c))
            r = kvm_rest_read(&c);
        kvm_sys()->close(c.fd);
    }
    kvm_sys()->close(vm);
    return r;
}

static const struct kvm_rest *fresh_rest(const struct kvm_cpu *c)
{
    struct kvm_rest **at = &fresh.rest[c->index != 0];
    const struct kvm_rest *r;

    pthread_mutex_lock(&fresh.lock);
    if (!*at)
        *at = read_fresh(c);
    r = *at;
    pthread_mutex_unlock(&fresh.lock);
    return r;
}

static bool cpu_reset(struct kvm_cpu *c)
{
    const struct kvm_rest *rest = fresh_rest(c);
    struct cpu_state s;

    if (!rest || !kvm_regs_settle(c) || !kvm_rest_write(c, rest))
        return false;
    c->halted = c->wait_sipi = false;
    c->fresh = true;
    /* Nothing of the former guest's state stays readable in the shared page either. */
    memset(&c->run->s, 0, sizeof c->run->s);
    memset((char *)c->run + sizeof *c->run, 0, kvm_host()->run_size - sizeof *c->run);
    cpu_state_reset(&s);
    return kvm_regs_set(c, &s) == MF_OK;
}

bool kvm_shell_reset(struct kvm_shell *s)
{
    struct kvm_clock_data clock;
    bool ok = !s->broken;

    memset(&clock, 0, sizeof clock);
    for (unsigned i = 0; ok && i < s->nr_cpus; i++)
        ok = cpu_reset(&s->cpus[i]);
    s->synced = false;
    return ok && !kvm_ioctl_p(s->fd, KVM_SET_CLOCK, &clock);
}

void kvm_fresh_forget(void)
{
    pthread_mutex_lock(&fresh.lock);
    for (unsigned i = 0; i < 2; i++) {
        kvm_rest_free(fresh.rest[i]);
        fresh.rest[i] = NULL;
    }
    pthread_mutex_unlock(&fresh.lock);
}
