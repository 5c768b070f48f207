/* The machine around a vCPU: devices on the bus, console, clock, guest calls. */
#include <string.h>

#include "hv/vm/vm.h"

static enum machine_result result_of(enum bus_result r)
{
    return r == BUS_OK ? MACHINE_OK : r == BUS_STOP ? MACHINE_STOP : MACHINE_NONE;
}

static enum machine_result port_in(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                   uint32_t *value)
{
    struct vm *vm = m;
    enum bus_result r = bus_port_read(&vm->bus, port, size, value);

    (void)v;
    return result_of(r == BUS_NONE ? chipset_port_read(&vm->chipset, port, size, value) : r);
}

static enum machine_result port_out(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                    uint32_t value)
{
    struct vm *vm = m;
    enum bus_result r = bus_port_write(&vm->bus, port, size, value);

    (void)v;
    return result_of(r == BUS_NONE ? chipset_port_write(&vm->chipset, port, size, value) : r);
}

static enum machine_result mmio_read(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                     uint64_t *value)
{
    struct vm *vm = m;
    enum bus_result r = chipset_mmio_read(&vm->chipset, v->index, a.v, size, value);

    return result_of(r == BUS_NONE ? bus_mmio_read(&vm->bus, a.v, size, value) : r);
}

static enum machine_result mmio_write(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                      uint64_t value)
{
    struct vm *vm = m;
    enum bus_result r = chipset_mmio_write(&vm->chipset, v->index, a.v, size, value);

    return result_of(r == BUS_NONE ? bus_mmio_write(&vm->bus, a.v, size, value) : r);
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
    return chipset_ack(&((struct vm *)m)->chipset, v->index);
}

static uint64_t clock_ns(void *m)
{
    return vm_clock(m);
}

/* ---- MSRs, CPUID */

#define MSR_TSC      0x10u
#define MSR_PV_FIRST 0x4b564d00u
#define MSR_PV_LAST  0x4b564d01u

static enum machine_result msr_read(void *m, struct vcpu *v, uint32_t nr, uint64_t *value)
{
    struct vm *vm = m;
    bool ok = nr >= MSR_PV_FIRST && nr <= MSR_PV_LAST
                  ? vm_pvclock_read(&vm->cpus[v->index], nr, value)
                  : chipset_msr_read(&vm->chipset, v->index, nr, value);

    return ok ? MACHINE_OK : MACHINE_NONE;
}

static enum machine_result msr_write(void *m, struct vcpu *v, uint32_t nr, uint64_t value)
{
    struct vm *vm = m;
    bool ok = true;

    if (nr == MSR_TSC) {
        chipset_tsc_moved(&vm->chipset, v->index);
        vm_pvclock_update(&vm->cpus[v->index]);
    } else if (nr >= MSR_PV_FIRST && nr <= MSR_PV_LAST) {
        ok = vm_pvclock_write(&vm->cpus[v->index], nr, value);
    } else {
        ok = chipset_msr_write(&vm->chipset, v->index, nr, value);
    }
    return ok ? MACHINE_OK : MACHINE_NONE;
}

static uint64_t cr8_read(void *m, struct vcpu *v)
{
    return chipset_get_cr8(&((struct vm *)m)->chipset, v->index);
}

static void cr8_write(void *m, struct vcpu *v, uint64_t value)
{
    chipset_set_cr8(&((struct vm *)m)->chipset, v->index, (uint8_t)value);
}

#define F1C_X2APIC       (1u << 21)
#define F1C_TSC_DEADLINE (1u << 24)
#define F1D_APIC         (1u << 9)
#define PV_NO_IO_DELAY   (1u << 1)
#define PV_CLOCK         (1u << 3)
#define PV_CLOCK_STABLE  (1u << 24)

/*
 * The hypervisor's leaves look like KVM's, whose clock guests know; our own name stands 0x100
 * above, where guests look for a second interface.
 */
#define LEAF_KVM          0x40000000u
#define LEAF_KVM_FEATURES 0x40000001u
#define LEAF_TIMING       0x40000010u
#define LEAF_MAYFLY       0x40000100u

static void cpuid(void *m, const struct vcpu *v, uint32_t leaf, uint32_t sub, uint32_t r[4])
{
    (void)m;
    (void)v;
    (void)sub;
    switch (leaf) {
    case 1:
        r[2] |= F1C_X2APIC | F1C_TSC_DEADLINE;
        r[3] |= F1D_APIC;
        break;
    case 0x80000001u:
        r[3] |= F1D_APIC;
        break;
    case LEAF_KVM:
        r[0] = LEAF_TIMING;
        memcpy(&r[1], "KVMKVMKVM\0\0", 12);
        break;
    case LEAF_KVM_FEATURES:
        r[0] = PV_NO_IO_DELAY | PV_CLOCK | PV_CLOCK_STABLE;
        break;
    case LEAF_TIMING: /* kHz of TSC and APIC timer */
        r[0] = (uint32_t)CPU_TSC_KHZ;
        r[1] = LAPIC_BUS_KHZ;
        break;
    case LEAF_MAYFLY:
        r[0] = LEAF_MAYFLY;
        memcpy(&r[1], "MayflyMayfly", 12);
        break;
    default:
        break;
    }
}

const struct machine_ops vm_machine_ops = {
    .port_in = port_in,
    .port_out = port_out,
    .mmio_read = mmio_read,
    .mmio_write = mmio_write,
    .hypercall = hypercall,
    .intr_ack = intr_ack,
    .clock_ns = clock_ns,
    .msr_read = msr_read,
    .msr_write = msr_write,
    .cr8_read = cr8_read,
    .cr8_write = cr8_write,
    .cpuid = cpuid,
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

static void com1_irq(void *arg, bool level)
{
    irq_set(&((struct vm *)arg)->chipset.lines, IRQ_COM1, level);
}

static void guest_ends(void *arg, enum end_kind kind, uint64_t code)
{
    struct vm *vm = arg;

    if (kind == END_KIND_RESET)
        vm_guest_reset(vm);
    else
        vm_end(vm, MF_END_DEBUG_EXIT, code, NULL);
}

/* ---- what the chipset has of the VM */

static uint64_t chipset_wall(void *arg)
{
    (void)arg;
    return vm_wall_ns();
}

/* While the clock stands still nothing is armed: vm_resume does it again. */
static void chipset_arm(void *arg, uint64_t at)
{
    struct vm *vm = arg;
    uint64_t base = atomic_load(&vm->clock_base);

    if (!atomic_load(&vm->clock_frozen))
        sched_timer(&vm->vmm->sched, &vm->sched, at > UINT64_MAX - base ? UINT64_MAX : at + base);
}

static void chipset_event(void *arg, unsigned cpu, enum lapic_event e, uint8_t vector)
{
    static const uint32_t bits[] = {
        [LAPIC_EV_INTR] = CPU_EVENT_INTR,
        [LAPIC_EV_NMI] = CPU_EVENT_NMI,
        [LAPIC_EV_INIT] = CPU_EVENT_INIT,
        [LAPIC_EV_SIPI] = CPU_EVENT_SIPI,
    };
    struct vm *vm = arg;
    struct vm_cpu *c = &vm->cpus[cpu];

    if (e == LAPIC_EV_SIPI)
        atomic_store(&c->cpu.sipi_vector, vector);
    /* Who set the bit wakes; it is cleared by the vCPU when it looks. */
    if (!(atomic_fetch_or(&c->cpu.events, bits[e]) & bits[e]))
        sched_wake(&vm->vmm->sched, &c->sched);
}

static uint64_t chipset_tsc(void *arg, unsigned cpu)
{
    return atomic_load(&((struct vm *)arg)->cpus[cpu].cpu.tsc_offset);
}

static void chipset_ends(void *arg, enum chipset_end kind)
{
    struct vm *vm = arg;

    if (kind == CHIPSET_RESET)
        vm_guest_reset(vm);
    else if (kind == CHIPSET_PANIC)
        vm_guest_panic(vm);
    else
        vm_end(vm, MF_END_POWEROFF, 0, NULL);
}

static const struct chipset_ops chipset_ops = {
    .now = clock_ns,
    .wall = chipset_wall,
    .arm = chipset_arm,
    .event = chipset_event,
    .tsc_offset = chipset_tsc,
    .end = chipset_ends,
};

static uint32_t tables_make(void *arg, uint64_t base, void *buf, uint32_t cap)
{
    return acpi_tables_make(((struct vm *)arg)->config.vcpus, base, buf, cap);
}

enum mf_status vm_machine_init(struct vm *vm)
{
    struct boot_ram ram = boot_ram_layout(vm->config.memory);
    struct chipset_config c = {.lapics = &vm->cpus[0].lapic,
                               .stride = sizeof vm->cpus[0],
                               .cpus = vm->config.vcpus,
                               .ram_low = ram.low,
                               .ram_high = ram.high};
    enum mf_status st;

    chipset_init(&vm->chipset, &chipset_ops, vm, &c);
    vm->tables = (struct boot_tables){tables_make, vm};
    bus_init(&vm->bus);
    uart16550_init(&vm->com1, com1_sink, com1_irq, vm);
    st = bus_claim_ports(&vm->bus, &vm->com1.device, VM_COM1, VM_COM1 + UART_PORTS - 1);
    return st ? st : end_ports_init(&vm->ends, &vm->bus, guest_ends, vm);
}

void vm_machine_fini(struct vm *vm)
{
    chipset_fini(&vm->chipset);
}

void vm_machine_reset(struct vm *vm)
{
    bus_reset(&vm->bus);
    chipset_reset(&vm->chipset);
    for (unsigned i = 0; i < vm->config.vcpus; i++)
        vm->cpus[i].pvclock = 0;
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
