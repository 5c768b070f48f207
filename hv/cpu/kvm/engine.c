/* The engine's face to hv/vm. */
#include <string.h>
#include <time.h>

#include "hv/cpu/kvm/kvm.h"

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static enum mf_status kvm_probe(const char **why)
{
    return kvm_host_open(why);
}

static void kvm_setup(const struct engine_setup *s)
{
    kvm_thread_free = s->thread_free;
    kvm_signal_setup();
    kvm_pool_setup(s->pool);
}

static enum mf_status kvm_vm_init(struct engine_vm *vm)
{
    const char *why;
    struct kvm_shell *s;
    uint64_t t0 = now_ns();
    enum mf_status st = kvm_host_open(&why);

    if (!st)
        st = kvm_pool_get(vm, &s);
    if (st)
        return st;
    s->synced = false;
    vm->priv = s;
    vm->kernel_ns = now_ns() - t0;
    return MF_OK;
}

static void kvm_vm_fini(struct engine_vm *vm)
{
    struct kvm_shell *s = vm->priv;
    uint64_t t0 = now_ns();

    if (!s)
        return;
    vm->priv = NULL;
    kvm_pool_put(s);
    vm->kernel_ns = now_ns() - t0;
}

static enum mf_status kvm_vcpu_init(struct vcpu *v)
{
    struct kvm_shell *s = v->vm->priv;
    struct kvm_cpu *c = &s->cpus[v->index];
    struct cpu_state reset;
    enum mf_status st = s2_viewer_add(v->vm->s2, &v->viewer);

    if (st)
        return st;
    c->v = v;
    cpu_state_reset(&reset);
    st = kvm_regs_set(c, &reset);
    if (st) {
        s->broken = true;
        c->v = NULL;
        s2_viewer_remove(&v->viewer);
        return MF_E_IO;
    }
    v->priv = c;
    v->thread = c->thread;
    return MF_OK;
}

static void kvm_vcpu_fini(struct vcpu *v)
{
    struct kvm_cpu *c = v->priv;

    if (!c)
        return;
    s2_viewer_remove(&v->viewer);
    c->thread = v->thread;
    c->v = NULL;
    v->priv = v->thread = NULL;
}

static void kvm_get_state(struct vcpu *v, struct cpu_state *s)
{
    kvm_regs_get(v->priv, s);
}

static enum mf_status kvm_set_state(struct vcpu *v, const struct cpu_state *s)
{
    return kvm_regs_set(v->priv, s);
}

static enum cpu_exit kvm_run_vcpu(struct vcpu *v, uint64_t budget)
{
    (void)budget;
    return kvm_cpu_run(v->priv);
}

static void kvm_kick(struct vcpu *v)
{
    struct kvm_cpu *c = v->priv;

    if (!c)
        return;
    kvm_cpu_kick(c);
}

/* Whoever is in guest mode comes out, so that its viewer can acknowledge. */
static void kvm_unmapped(struct engine_vm *vm, gfn_t g, uint64_t frames)
{
    struct kvm_shell *s = vm->priv;

    (void)g;
    (void)frames;
    for (unsigned i = 0; s && i < s->nr_cpus; i++)
        kvm_cpu_kick(&s->cpus[i]);
}

static void kvm_drain(void)
{
    kvm_pool_drain();
    kvm_host_close();
}

static bool kvm_has_1g(void)
{
    const struct kvm_host *h = kvm_host();

    for (unsigned i = 0; i < h->nr_cpuid; i++)
        if (h->cpuid[i].function == 0x80000001u)
            return (h->cpuid[i].edx & 1u << 26) != 0;
    return false;
}

const struct engine_ops *engine_kvm(void)
{
    static const struct engine_ops ops = {
        .name = "kvm",
        .kind = ENGINE_KVM,
        .probe = kvm_probe,
        .setup = kvm_setup,
        .drain = kvm_drain,
        .has_1g = kvm_has_1g,
        .own_threads = true,
        .wants_ram = true,
        .vm_init = kvm_vm_init,
        .vm_fini = kvm_vm_fini,
        .vcpu_init = kvm_vcpu_init,
        .vcpu_fini = kvm_vcpu_fini,
        .get_state = kvm_get_state,
        .set_state = kvm_set_state,
        .run = kvm_run_vcpu,
        .kick = kvm_kick,
        .unmapped = kvm_unmapped,
    };

    return &ops;
}
