/* Stands in while the tree has no engine: the core answers every call, and starts no VM. */
#include <string.h>

#include "hv/cpu/engine.h"

void cpu_state_reset(struct cpu_state *s)
{
    memset(s, 0, sizeof *s);
}

static enum mf_status no_probe(const char **why)
{
    *why = "this core was built without an engine";
    return MF_E_NOT_SUPPORTED;
}

static enum mf_status no_vm(struct engine_vm *vm)
{
    (void)vm;
    return MF_E_NOT_SUPPORTED;
}

const struct engine_ops *engine_soft(void)
{
    static const struct engine_ops none = {.name = "none", .probe = no_probe, .vm_init = no_vm};

    return &none;
}
