/*
 * Whether this KVM runs a kernel: a breakpoint in 64-bit mode, taken by a handler of the guest's
 * own. Where KVM has no hardware under it and interprets, this is what it may lack, and what every
 * real kernel does while it boots.
 *
 *   0x1000 int3    0x1100 handler: mov al, 0x5a; out 0x80, al
 *   0x2000 PML4    0x3000 PDPT    0x4000 PD: one page of 2 MiB    0x500 GDT    0x600 IDT
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "hv/cpu/kvm/host.h"
#include "hv/cpu/kvm/selftest.h"
#include "hv/cpu/kvm/sys.h"

#define MEMORY   0x10000u
#define AT_GDT   0x500u
#define AT_IDT   0x600u
#define AT_CODE  0x1000u
#define AT_TRAP  0x1100u
#define AT_PML4  0x2000u
#define AT_STACK 0x8000u
#define PORT     0x80u
#define ANSWER   0x5au

static void put64(uint8_t *mem, unsigned at, uint64_t v)
{
    memcpy(mem + at, &v, sizeof v);
}

static void fill(uint8_t *mem)
{
    static const uint8_t code[] = {0xcc, 0xf4}, trap[] = {0xb0, ANSWER, 0xe6, PORT, 0xf4};

    memcpy(mem + AT_CODE, code, sizeof code);
    memcpy(mem + AT_TRAP, trap, sizeof trap);
    put64(mem, AT_PML4, 0x3003);
    put64(mem, 0x3000, 0x4003);
    put64(mem, 0x4000, 0x83);
    put64(mem, AT_GDT + 8, UINT64_C(0x00af9b000000ffff));
    put64(mem, AT_GDT + 16, UINT64_C(0x00cf93000000ffff));
    put64(mem, AT_IDT + 3 * 16, UINT64_C(0x00008e0000080000) | AT_TRAP);
}

static bool enter_state(int fd)
{
    const struct kvm_segment data = {
        .limit = UINT32_MAX, .selector = 16, .type = 3, .present = 1, .s = 1, .db = 1, .g = 1};
    const struct kvm_segment code = {
        .limit = UINT32_MAX, .selector = 8, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    struct kvm_regs r = {.rip = AT_CODE, .rsp = AT_STACK, .rflags = 2};
    struct kvm_sregs s;

    if (kvm_ioctl_p(fd, KVM_GET_SREGS, &s))
        return false;
    s.cs = code;
    s.ds = s.es = s.ss = s.fs = s.gs = data;
    s.gdt = (struct kvm_dtable){.base = AT_GDT, .limit = 23};
    s.idt = (struct kvm_dtable){.base = AT_IDT, .limit = 4 * 16 - 1};
    s.cr0 = 0x80000011;
    s.cr3 = AT_PML4;
    s.cr4 = 0x20;
    s.efer = 0x500;
    return !kvm_ioctl_p(fd, KVM_SET_SREGS, &s) && !kvm_ioctl_p(fd, KVM_SET_REGS, &r);
}

static bool runs(int vm, uint8_t *mem, size_t run_size)
{
    struct kvm_userspace_memory_region slot = {.memory_size = MEMORY,
                                               .userspace_addr = (uint64_t)(uintptr_t)mem};
    struct kvm_run *run;
    bool ok = false;
    int fd, rc;

    if (kvm_ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000u) ||
        kvm_ioctl_p(vm, KVM_SET_USER_MEMORY_REGION, &slot))
        return false;
    fd = kvm_ioctl(vm, KVM_CREATE_VCPU, 0);
    if (fd < 0)
        return false;
    run = kvm_sys()->mmap(fd, run_size);
    if (run && enter_state(fd)) {
        do
            rc = kvm_ioctl(fd, KVM_RUN, 0);
        while (rc && errno == EINTR);
        ok = !rc && run->exit_reason == KVM_EXIT_IO && run->io.port == PORT &&
             run->io.data_offset < run_size && *((uint8_t *)run + run->io.data_offset) == ANSWER;
    }
    if (run)
        kvm_sys()->munmap(run, run_size);
    kvm_sys()->close(fd);
    return ok;
}

bool kvm_selftest(int vm, size_t run_size)
{
    uint8_t *mem = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool ok;

    if (mem == MAP_FAILED)
        return false;
    fill(mem);
    ok = runs(vm, mem, run_size);
    munmap(mem, MEMORY);
    return ok;
}
