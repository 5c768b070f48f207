#include "hv/cpu/kvm/sys.h"

#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static int host_open(const char *path)
{
    return open(path, O_RDWR | O_CLOEXEC);
}

static int host_ioctl(int fd, unsigned long request, unsigned long arg)
{
    return ioctl(fd, request, arg);
}

static void *host_mmap(int fd, size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

static void host_munmap(void *p, size_t bytes)
{
    munmap(p, bytes);
}

static void host_close(int fd)
{
    close(fd);
}

const struct kvm_sys kvm_sys_host = {host_open, host_ioctl, host_mmap, host_munmap, host_close};

static const struct kvm_sys *current = &kvm_sys_host;

void kvm_sys_set(const struct kvm_sys *sys)
{
    current = sys ? sys : &kvm_sys_host;
}

const struct kvm_sys *kvm_sys(void)
{
    return current;
}

int kvm_ioctl(int fd, unsigned long request, unsigned long arg)
{
    return current->ioctl(fd, request, arg);
}

int kvm_ioctl_p(int fd, unsigned long request, void *arg)
{
    return current->ioctl(fd, request, (unsigned long)(uintptr_t)arg);
}
