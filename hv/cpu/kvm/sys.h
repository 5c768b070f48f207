/*
 * The system calls through which KVM is reached, as a table, so that tests can put an old, poor or
 * failing kernel in its place.
 */
#ifndef MAYFLY_CPU_KVM_SYS_H
#define MAYFLY_CPU_KVM_SYS_H

#include <stddef.h>

/* Each as the call of that name; -1 and errno on failure, mmap NULL. */
struct kvm_sys {
    int (*open)(const char *path);
    int (*ioctl)(int fd, unsigned long request, unsigned long arg);
    void *(*mmap)(int fd, size_t bytes);
    void (*munmap)(void *p, size_t bytes);
    void (*close)(int fd);
};

extern const struct kvm_sys kvm_sys_host;
/* What the engine calls. NULL sets the host's again. While no VM exists. */
void kvm_sys_set(const struct kvm_sys *sys);
const struct kvm_sys *kvm_sys(void);

int kvm_ioctl(int fd, unsigned long request, unsigned long arg);
int kvm_ioctl_p(int fd, unsigned long request, void *arg);

#endif
