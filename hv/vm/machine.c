/* The machine around a vCPU: devices on the bus, console, clock, guest calls. */
#include "hv/vm/vm.h"

static enum machine_result result_of(enum bus_result r)
{
    return r == BUS_OK ? MACHINE_OK : r == BUS_STOP ? MACHINE_STOP : MACHINE_NONE;
}

static enum machine_result port_in(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                   uint32_t *value)
{
    (void)v;
    return result_of(bus_port_read(&((struct vm *)m)->bus, port, size, value));
}

static enum machine_result port_out(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                    uint32_t value)
{
    (void)v;
    return result_of(bus_port_write(&((struct vm *)m)->bus, port, size, value));
}

static enum machine_result mmio_read(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                     uint64_t *value)
{
    (void)v;
    return result_of(bus_mmio_read(&((struct vm *)m)->bus, a.v, size, value));
}

static enum machine_result mmio_write(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                      uint64_t value)
{
    (void)v;
    return result_of(bus_mmio_write(&((struct vm *)m)->bus, a.v, size, value));
}

static enum machine_result hypercall(void *m, struct vcpu *v, uint64_t nr, const uint64_t arg[4],
                                     int64_t *result)
{
    struct vm *vm = m;

    if (vm->vmm->guest_call)
        return vm->vmm->guest_call(vm, v->index, nr, arg, result);
    *result = -(int64_t)MF_E_UNKNOWN_CALL;
    return MACHINE_OK;
}

static int intr_ack(void *m, struct vcpu *v)
{
    (void)m;
    (void)v;
    return -1; /* no interrupt controller yet */
}

static uint64_t clock_ns(void *m)
{
    return vm_clock(m);
}

const struct machine_ops vm_machine_ops = {
    .port_in = port_in,
    .port_out = port_out,
    .mmio_read = mmio_read,
    .mmio_write = mmio_write,
    .hypercall = hypercall,
    .intr_ack = intr_ack,
    .clock_ns = clock_ns,
};

uint64_t vm_clock(struct vm *vm)
{
    uint64_t frozen = atomic_load(&vm->clock_frozen);

    return frozen ? frozen : vm->vmm->env->now_ns(vm->vmm->env->arg) - atomic_load(&vm->clock_base);
}

static void com1_sink(void *arg, uint8_t byte)
{
    vm_console_output(arg, &byte, 1);
}

static void guest_ends(void *arg, enum end_kind kind, uint64_t code)
{
    struct vm *vm = arg;

    if (kind == END_KIND_RESET)
        vm_guest_reset(vm);
    else
        vm_end(vm, kind == END_KIND_POWEROFF ? MF_END_POWEROFF : MF_END_DEBUG_EXIT, code, NULL);
}

enum mf_status vm_machine_init(struct vm *vm)
{
    enum mf_status st;

    bus_init(&vm->bus);
    uart16550_init(&vm->com1, com1_sink, NULL, vm);
    st = bus_claim_ports(&vm->bus, &vm->com1.device, VM_COM1, VM_COM1 + UART_PORTS - 1);
    return st ? st : end_ports_init(&vm->ends, &vm->bus, guest_ends, vm);
}

void vm_console_output(struct vm *vm, const uint8_t *bytes, size_t n)
{
    const struct vmm_events *e = &vm->vmm->events;

    console_put(&vm->console, bytes, n);
    if (e->console && !atomic_exchange(&vm->console_told, true))
        e->console(e->arg, vm->id, console_end(&vm->console));
}

void vm_console_seen(struct vm *vm)
{
    atomic_store(&vm->console_told, false);
}

size_t vm_console_input(struct vm *vm, const uint8_t *bytes, size_t n)
{
    size_t taken = uart16550_input(&vm->com1, bytes, n);

    if (taken)
        sched_wake(&vm->vmm->sched, &vm->cpus[0].sched);
    return taken;
}
