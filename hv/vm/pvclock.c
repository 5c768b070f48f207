/*
 * kvm-clock: a page of the guest says how its TSC becomes nanoseconds, so that it calibrates
 * nothing and reads the time without leaving guest mode. Layouts and numbers are those of KVM's
 * documented guest interface (MSR_KVM_WALL_CLOCK_NEW, MSR_KVM_SYSTEM_TIME_NEW).
 *
 * Guest clock, TSC and this clock are one: all stand still while the VM is paused, so what was
 * written stays true until the guest writes its TSC.
 */
#include <time.h>

#include "hv/vm/vm.h"

#define MSR_WALL_CLOCK  0x4b564d00u
#define MSR_SYSTEM_TIME 0x4b564d01u
#define ENABLE          1u
#define FLAG_STABLE     1u /* all vCPUs' values agree */
#define NS              UINT64_C(1000000000)

struct wall_clock {
    uint32_t version, sec, nsec; /* of the moment at which the clock was zero */
};

struct time_info {
    uint32_t version; /* odd while it changes */
    uint32_t pad0;
    uint64_t tsc, system_time;
    uint32_t mul; /* ns = (ticks << shift) * mul >> 32 */
    int8_t shift;
    uint8_t flags, pad[2];
};
_Static_assert(sizeof(struct wall_clock) == 12, "pvclock_wall_clock");
_Static_assert(sizeof(struct time_info) == 32, "pvclock_vcpu_time_info");

uint64_t vm_wall_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

static bool put(struct vm *vm, uint64_t at, const void *p, uint64_t n)
{
    if (stage2_write(vm->s2, gpa(at), p, n))
        return false;
    if (vm->engine.ops->page_written) {
        vm->engine.ops->page_written(&vm->engine, gpa_to_gfn(gpa(at)));
        vm->engine.ops->page_written(&vm->engine, gpa_to_gfn(gpa(at + n - 1)));
    }
    return true;
}

static bool write_wall(struct vm *vm, uint64_t at)
{
    uint64_t began = vm_wall_ns() - vm_clock(vm);
    struct wall_clock w = {1, (uint32_t)(began / NS), (uint32_t)(began % NS)};

    if (!put(vm, at, &w, sizeof w))
        return false;
    w.version = 2;
    return put(vm, at, &w.version, sizeof w.version);
}

/* Only this vCPU reads its page, and it is here: nobody sees the odd version but a reader elsewhere
 * that would take it as "try again". */
static bool write_time(struct vm_cpu *c)
{
    uint64_t now = vm_clock(c->vm);
    struct time_info t = {
        .version = c->pvclock_ver + 1,
        .tsc = now + atomic_load(&c->cpu.tsc_offset),
        .system_time = now,
        .mul = 0x80000000u, /* CPU_TSC_KHZ: a tick is a nanosecond */
        .shift = 1,
        .flags = FLAG_STABLE,
    };

    if (!put(c->vm, c->pvclock, &t, sizeof t))
        return false;
    t.version = c->pvclock_ver += 2;
    return put(c->vm, c->pvclock, &t.version, sizeof t.version);
}

bool vm_pvclock_write(struct vm_cpu *c, uint32_t nr, uint64_t v)
{
    if (v & 2 || (nr == MSR_WALL_CLOCK && v & 3))
        return false; /* both are aligned to four bytes */
    if (nr == MSR_WALL_CLOCK)
        return write_wall(c->vm, v);
    c->pvclock = v & ENABLE ? v & ~UINT64_C(3) : 0;
    return !(v & ENABLE) || write_time(c);
}

bool vm_pvclock_read(const struct vm_cpu *c, uint32_t nr, uint64_t *v)
{
    *v = nr == MSR_SYSTEM_TIME && c->pvclock ? c->pvclock | ENABLE : 0;
    return true;
}

void vm_pvclock_update(struct vm_cpu *c)
{
    if (c->pvclock)
        write_time(c);
}
