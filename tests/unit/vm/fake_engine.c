#include "fake_engine.h"

#include <stdio.h>
#include <string.h>

enum fake_act fake_act;
unsigned fake_live, fake_fail_at;
struct cpu_state fake_state;
static uint64_t next_page;

void cpu_state_reset(struct cpu_state *s)
{
    memset(s, 0, sizeof *s);
}

static enum mf_status probe(const char **why)
{
    *why = NULL;
    return MF_OK;
}

static enum mf_status vm_init(struct engine_vm *vm)
{
    (void)vm;
    next_page = 16;
    return MF_OK;
}

static void vm_fini(struct engine_vm *vm)
{
    (void)vm;
}

static enum mf_status vcpu_init(struct vcpu *v)
{
    enum mf_status st;

    if (fake_fail_at && !--fake_fail_at)
        return MF_E_NO_MEMORY;
    st = s2_viewer_add(v->vm->s2, &v->viewer);
    fake_live += !st;
    return st;
}

static void vcpu_fini(struct vcpu *v)
{
    s2_viewer_remove(&v->viewer);
    fake_live--;
}

static void get_state(struct vcpu *v, struct cpu_state *s)
{
    (void)v;
    *s = fake_state;
}

static enum mf_status set_state(struct vcpu *v, const struct cpu_state *s)
{
    (void)v;
    fake_state = *s;
    return MF_OK;
}

static enum cpu_exit port(struct vcpu *v, uint16_t number, unsigned size, uint32_t value)
{
    return v->mops->port_out(v->machine, v, number, size, value) == MACHINE_STOP ? CPU_EXIT_STOP
                                                                                 : CPU_EXIT_FAILED;
}

static enum cpu_exit touch(struct vcpu *v)
{
    struct s2_leaf leaf;

    v->status = stage2_fault(v->vm->s2, 0, gfn(next_page++), S2_READ | S2_WRITE, &leaf);
    return v->status ? CPU_EXIT_NO_MEMORY : CPU_EXIT_BUDGET;
}

static enum cpu_exit run(struct vcpu *v, uint64_t budget)
{
    atomic_fetch_add(&v->instructions, budget);
    switch (fake_act) {
    case FAKE_SPIN:
        return CPU_EXIT_BUDGET;
    case FAKE_HALT:
        return CPU_EXIT_HALT;
    case FAKE_POWEROFF:
        return port(v, 0x604, 2, 0x2000);
    case FAKE_DEBUG_EXIT:
        return port(v, 0xf4, 1, 3);
    case FAKE_RESET:
        return port(v, 0x64, 1, 0xfe);
    case FAKE_TRIPLE:
        return CPU_EXIT_TRIPLE_FAULT;
    case FAKE_BAD_ACCESS:
        v->bad_gpa = gpa(0x123456789000);
        return CPU_EXIT_BAD_ACCESS;
    case FAKE_NO_MEMORY:
        v->status = MF_E_NO_MEMORY;
        return CPU_EXIT_NO_MEMORY;
    case FAKE_TOUCH:
        return touch(v);
    case FAKE_FAIL:
    default:
        snprintf(v->detail, sizeof v->detail, "cannot do it");
        return CPU_EXIT_FAILED;
    }
}

static void kick(struct vcpu *v)
{
    (void)v;
}

const struct engine_ops *engine_soft(void)
{
    static const struct engine_ops ops = {.name = "fake",
                                          .kind = ENGINE_SOFT,
                                          .probe = probe,
                                          .vm_init = vm_init,
                                          .vm_fini = vm_fini,
                                          .vcpu_init = vcpu_init,
                                          .vcpu_fini = vcpu_fini,
                                          .get_state = get_state,
                                          .set_state = set_state,
                                          .run = run,
                                          .kick = kick};

    return &ops;
}

static enum mf_status probe_none(const char **why)
{
    *why = "scripted";
    return MF_E_NOT_SUPPORTED;
}

static void setup_none(const struct engine_setup *s)
{
    (void)s;
}

static void drain_none(void)
{
}

const struct engine_ops *engine_kvm(void)
{
    static const struct engine_ops ops = {.name = "kvm",
                                          .kind = ENGINE_KVM,
                                          .probe = probe_none,
                                          .setup = setup_none,
                                          .drain = drain_none};

    return &ops;
}
