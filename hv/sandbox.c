#include "hv/sandbox.h"

#include <errno.h>
#include <seccomp.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static const int denied[] = {
    SCMP_SYS(execve),
    SCMP_SYS(execveat),
    SCMP_SYS(fork),
    SCMP_SYS(vfork),
    SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(socket),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(socketpair),
    SCMP_SYS(connect),
    SCMP_SYS(bind),
    SCMP_SYS(listen),
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(chroot),
    SCMP_SYS(setns),
    SCMP_SYS(unshare),
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(init_module),
    SCMP_SYS(kexec_load),
    SCMP_SYS(finit_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(reboot),
    SCMP_SYS(keyctl),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(pidfd_getfd),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(io_uring_setup),
};

bool sandbox_enter(void)
{
    scmp_filter_ctx ctx;
    int r = 0;

    if (SANITIZED)
        return true;
    ctx = seccomp_init(SCMP_ACT_ALLOW);
    if (!ctx) {
        errno = ENOMEM;
        return false;
    }
    r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_TSYNC, 1);
    for (size_t i = 0; !r && i < sizeof denied / sizeof denied[0]; i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPERM), denied[i], 0);
    if (!r)
        r = seccomp_load(ctx);
    seccomp_release(ctx);
    errno = r < 0 ? -r : 0;
    return r == 0;
}
