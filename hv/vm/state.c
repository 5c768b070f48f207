#include "hv/vm/state.h"

#define BIT(s) (1u << (s))

static const unsigned legal[VM_STATES] = {
    [MF_VM_SHUTOFF] = BIT(MF_VM_STARTING),
    [MF_VM_CRASHED] = BIT(MF_VM_STARTING),
    [MF_VM_STARTING] = BIT(MF_VM_RUNNING) | BIT(MF_VM_STOPPING),
    [MF_VM_RUNNING] = BIT(MF_VM_PAUSED) | BIT(MF_VM_STOPPING),
    [MF_VM_PAUSED] = BIT(MF_VM_RUNNING) | BIT(MF_VM_STOPPING),
    [MF_VM_STOPPING] = BIT(MF_VM_SHUTOFF) | BIT(MF_VM_CRASHED) | BIT(MF_VM_STARTING),
};

bool vm_state_legal(enum mf_vm_state from, enum mf_vm_state to)
{
    return (unsigned)from < VM_STATES && (unsigned)to < VM_STATES && (legal[from] & BIT(to));
}

const char *vm_state_word(unsigned state)
{
    static const char *const words[VM_STATES] = {"shutoff", "starting", "running",
                                                 "paused",  "stopping", "crashed"};

    return state < VM_STATES ? words[state] : "?";
}

bool vm_reason_crashed(enum mf_end_reason reason)
{
    switch (reason) {
    case MF_END_TRIPLE_FAULT:
    case MF_END_BAD_ACCESS:
    case MF_END_ENGINE:
    case MF_END_NO_MEMORY:
    case MF_END_IMAGE:
    case MF_END_PANIC:
    case MF_END_CORE_LOST:
        return true;
    default:
        return false;
    }
}
