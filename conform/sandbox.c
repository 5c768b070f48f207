#include "conform/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <seccomp.h>
#include <stddef.h>

/* The checks themselves need these; a plugin that uses them is caught by other rules. */
static const int always[] = {
    SCMP_SYS(mmap),
    SCMP_SYS(munmap),
    SCMP_SYS(mprotect),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    SCMP_SYS(futex),
    SCMP_SYS(exit_group),
    SCMP_SYS(exit),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(sched_yield),
    SCMP_SYS(pause),
    SCMP_SYS(seccomp),
    SCMP_SYS(prctl),
    SCMP_SYS(mremap),
    SCMP_SYS(restart_syscall),
};

/* The loader needs these beside. */
static const int loading[] = {
    SCMP_SYS(read),     SCMP_SYS(pread64), SCMP_SYS(fstat),   SCMP_SYS(newfstatat),
    SCMP_SYS(lseek),    SCMP_SYS(fcntl),   SCMP_SYS(geteuid), SCMP_SYS(getcwd),
    SCMP_SYS(readlink), SCMP_SYS(close),   SCMP_SYS(dup),
};

static int allow(scmp_filter_ctx ctx, const int *calls, size_t n)
{
    int r = 0;

    for (size_t i = 0; !r && i < n; i++)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, calls[i], 0);
    return r;
}

static bool enter(bool load)
{
    scmp_filter_ctx ctx;
    int r;

    if (CONFORM_SANITIZED)
        return true;
    ctx = seccomp_init(SCMP_ACT_TRAP);
    if (!ctx) {
        errno = ENOMEM;
        return false;
    }
    r = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_TSYNC, 1);
    if (!r)
        r = allow(ctx, always, sizeof always / sizeof always[0]);
    if (!r && load)
        r = allow(ctx, loading, sizeof loading / sizeof loading[0]);
    if (!r && load)
        r = seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1,
                             SCMP_A2(SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT, O_RDONLY));
    if (!r)
        r = seccomp_load(ctx);
    seccomp_release(ctx);
    errno = r < 0 ? -r : 0;
    return r == 0;
}

bool sandbox_loading(void)
{
    return enter(true);
}

bool sandbox_running(void)
{
    return enter(false);
}
