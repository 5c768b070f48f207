/* The guest door: calls by VMCALL and VMMCALL. On the vCPU's thread; the engine checked CPL 0. */
#include <string.h>

#include "hv/call/core.h"

#define GUEST_CODE_MAX 255u

static int64_t minus(enum mf_status st)
{
    return -(int64_t)st;
}

static enum machine_result guest_GUEST_VERSION(struct vm *vm, unsigned vcpu, const uint64_t arg[4],
                                               int64_t *result)
{
    (void)vm;
    (void)vcpu;
    (void)arg;
    *result = MF_ABI_VERSION;
    return MACHINE_OK;
}

static enum machine_result guest_GUEST_CONSOLE_WRITE(struct vm *vm, unsigned vcpu,
                                                     const uint64_t arg[4], int64_t *result)
{
    uint8_t buf[MF_GUEST_WRITE_MAX];
    enum mf_status st;

    (void)vcpu;
    if (arg[1] > sizeof buf) {
        *result = minus(MF_E_TOO_BIG);
        return MACHINE_OK;
    }
    st = stage2_read(vm->s2, gpa(arg[0]), buf, arg[1]);
    if (st) {
        *result = minus(st);
        return MACHINE_OK;
    }
    vm_console_output(vm, buf, arg[1]);
    *result = (int64_t)arg[1];
    return MACHINE_OK;
}

static enum machine_result guest_GUEST_SHUTDOWN(struct vm *vm, unsigned vcpu, const uint64_t arg[4],
                                                int64_t *result)
{
    (void)vcpu;
    if (arg[0] > GUEST_CODE_MAX) {
        *result = minus(MF_E_RANGE);
        return MACHINE_OK;
    }
    vm_end(vm, MF_END_GUEST_CALL, arg[0], NULL);
    *result = 0;
    return MACHINE_STOP;
}

static enum machine_result guest_GUEST_YIELD(struct vm *vm, unsigned vcpu, const uint64_t arg[4],
                                             int64_t *result)
{
    (void)vcpu;
    (void)arg;
    *result = (int64_t)atomic_load(&vm->guest_events);
    return MACHINE_YIELD;
}

/* While it is not finished the vCPU gives its slice up: the work is the VM's job's. */
static enum machine_result balloon(struct vm *vm, unsigned vcpu, enum vm_part_op op,
                                   const uint64_t arg[4], int64_t *result)
{
    uint64_t frames = 0;
    enum mf_status st = vm_part_guest(vm, vcpu, op, arg[0], arg[1], &frames);

    *result = st ? minus(st) : (int64_t)frames;
    return st == MF_AGAIN ? MACHINE_YIELD : MACHINE_OK;
}

static enum machine_result guest_GUEST_BALLOON_GIVE(struct vm *vm, unsigned vcpu,
                                                    const uint64_t arg[4], int64_t *result)
{
    return balloon(vm, vcpu, VM_PART_GIVE, arg, result);
}

static enum machine_result guest_GUEST_BALLOON_TAKE(struct vm *vm, unsigned vcpu,
                                                    const uint64_t arg[4], int64_t *result)
{
    return balloon(vm, vcpu, VM_PART_TAKE, arg, result);
}

enum machine_result guest_call(struct vm *vm, unsigned vcpu, uint64_t nr, const uint64_t arg[4],
                               int64_t *result)
{
    const struct mf_call_row *row = nr <= UINT16_MAX ? mf_call_row((unsigned)nr) : NULL;

    if (!row) {
        *result = minus(MF_E_UNKNOWN_CALL);
        return MACHINE_OK;
    }
    if (row->door != MF_DOOR_GUEST) {
        *result = minus(MF_E_PERM);
        return MACHINE_OK;
    }
    switch (nr) {
#define GUEST_CALL(sym)                                                                            \
    case MF_CALL_##sym:                                                                            \
        return guest_##sym(vm, vcpu, arg, result)
        GUEST_CALL(GUEST_VERSION);
        GUEST_CALL(GUEST_CONSOLE_WRITE);
        GUEST_CALL(GUEST_SHUTDOWN);
        GUEST_CALL(GUEST_YIELD);
        GUEST_CALL(GUEST_BALLOON_GIVE);
        GUEST_CALL(GUEST_BALLOON_TAKE);
    default:
        *result = minus(MF_E_UNKNOWN_CALL);
        return MACHINE_OK;
    }
}
