/* The KVM engine's look at the host, with a kernel put in the real one's place. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hv/cpu/engine.h"
#include "hv/cpu/kvm/host.h"
#include "hv/cpu/kvm/sys.h"

/* The kernel as this test wants it. */
static struct {
    int open_errno, api, missing, create_errno;
    unsigned interrupted; /* so many KVM_CREATE_VM end with EINTR first */
    int opened;           /* fds that are not closed again */
} kernel;

static int fake_open(const char *path)
{
    assert_string_equal(path, "/dev/kvm");
    if (kernel.open_errno) {
        errno = kernel.open_errno;
        return -1;
    }
    kernel.opened++;
    return 1000;
}

static int fake_create(void)
{
    if (kernel.interrupted) {
        kernel.interrupted--;
        errno = EINTR;
        return -1;
    }
    if (kernel.create_errno) {
        errno = kernel.create_errno;
        return -1;
    }
    kernel.opened++;
    return 1001;
}

static int fake_ioctl(int fd, unsigned long request, unsigned long arg)
{
    (void)fd;
    switch (request) {
    case KVM_GET_API_VERSION:
        return kernel.api;
    case KVM_CHECK_EXTENSION:
        return (int)arg == kernel.missing ? 0 : 64;
    case KVM_CREATE_VM:
        return fake_create();
    case KVM_GET_VCPU_MMAP_SIZE:
        return 12288;
    case KVM_GET_SUPPORTED_CPUID:
        ((struct kvm_cpuid2 *)(uintptr_t)arg)->nent = 1;
        return 0;
    case KVM_GET_MSR_INDEX_LIST:
        ((struct kvm_msr_list *)(uintptr_t)arg)->nmsrs = 1;
        return 0;
    default:
        errno = EINVAL;
        return -1;
    }
}

static void *fake_mmap(int fd, size_t bytes)
{
    (void)fd;
    (void)bytes;
    return NULL;
}

static void fake_munmap(void *p, size_t bytes)
{
    (void)p;
    (void)bytes;
}

static void fake_close(int fd)
{
    (void)fd;
    kernel.opened--;
}

static const struct kvm_sys fake = {fake_open, fake_ioctl, fake_mmap, fake_munmap, fake_close};

static int setup(void **state)
{
    (void)state;
    memset(&kernel, 0, sizeof kernel);
    kernel.api = KVM_API_VERSION;
    kernel.missing = -1;
    kvm_sys_set(&fake);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_host_close();
    kvm_sys_set(NULL);
    return kernel.opened;
}

static void expect(enum mf_status st, const char *text)
{
    const char *why = NULL;

    assert_int_equal(engine_kvm()->probe(&why), st);
    if (!strstr(why, text))
        fail_msg("\"%s\" does not say \"%s\"", why, text);
}

/* Protects: each way in which the device can be out of reach is told apart. */
static void no_device(void **state)
{
    static const struct {
        int err;
        enum mf_status st;
        const char *text;
    } rows[] = {{ENOENT, MF_E_NOT_SUPPORTED, "no device"},
                {EACCES, MF_E_PERM, "no permission"},
                {EPERM, MF_E_PERM, "no permission"},
                {ENODEV, MF_E_NOT_SUPPORTED, "no VMX or SVM"},
                {EBUSY, MF_E_BUSY, "in use"},
                {EIO, MF_E_NOT_SUPPORTED, "/dev/kvm: "}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kernel.open_errno = rows[i].err;
        expect(rows[i].st, rows[i].text);
    }
}

/* Protects: an old API version and each missing capability are refused by name, nothing stays open.
 */
static void poor_kernel(void **state)
{
    (void)state;
    kernel.api = 11;
    expect(MF_E_NOT_SUPPORTED, "API version 11");
    assert_int_equal(kernel.opened, 0);
    kernel.api = KVM_API_VERSION;
    kernel.missing = KVM_CAP_IMMEDIATE_EXIT;
    expect(MF_E_NOT_SUPPORTED, "lacks KVM_CAP_IMMEDIATE_EXIT");
    kernel.missing = KVM_CAP_SYNC_REGS;
    expect(MF_E_NOT_SUPPORTED, "lacks KVM_CAP_SYNC_REGS");
    kernel.missing = KVM_CAP_NR_MEMSLOTS;
    expect(MF_E_NOT_SUPPORTED, "KVM_CAP_NR_MEMSLOTS");
    assert_int_equal(kernel.opened, 0);
}

/* Protects: virtualization that another holds is said; signals do not make a VM fail. */
static void no_vm(void **state)
{
    (void)state;
    kernel.create_errno = EBUSY;
    expect(MF_E_BUSY, "in use");
    kernel.create_errno = ENOMEM;
    expect(MF_E_NOT_SUPPORTED, "makes no VM");
    kernel.create_errno = 0;
    kernel.interrupted = 10000;
    /* This kernel runs no guest, so auto must not take it. */
    expect(MF_OK, "only on request");
    assert_int_equal(kernel.interrupted, 0);
    assert_int_equal(kernel.opened, 1);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {T(no_device), T(poor_kernel), T(no_vm)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
