#include "hv/host/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "hv/host/log.h"

#define ARENA_MIN (UINT64_C(1) << 20)
#define ARENA_MAX (UINT64_C(1) << 46)

uint64_t host_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static uint64_t env_now(void *arg)
{
    (void)arg;
    return host_now_ns();
}

/* A holder that runs lets go within microseconds; one that was preempted needs the CPU. */
static void env_relax(void *arg, unsigned n)
{
    (void)arg;
    if (n < 64)
        __builtin_ia32_pause();
    else
        sched_yield();
}

static void *env_reserve(void *arg, uint64_t bytes)
{
    void *p;

    (void)arg;
    if (!bytes || bytes > ARENA_MAX)
        return NULL;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    return p == MAP_FAILED ? NULL : p;
}

static void env_release(void *arg, void *p, uint64_t bytes)
{
    (void)arg;
    if (p)
        munmap(p, bytes);
}

static enum mf_status env_punch(void *arg, uint64_t offset, uint64_t bytes)
{
    struct host_arena *a = arg;

    if (offset > a->bytes || bytes > a->bytes - offset)
        return MF_E_RANGE;
    if (fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes))
        return MF_E_IO;
    return MF_OK;
}

#define ZERO_KEEP (UINT64_C(64) * FRAME_SIZE)

/*
 * What was touched is what the host has committed. A little of it is cleared and stays committed,
 * which spares the next guest its page faults; more is given back.
 */
static enum mf_status env_zero(void *arg, uint64_t offset, uint64_t bytes)
{
    struct host_arena *a = arg;
    off_t end = (off_t)(offset + bytes), at, hole;
    uint64_t kept = 0;

    if (offset > a->bytes || bytes > a->bytes - offset)
        return MF_E_RANGE;
    for (at = (off_t)offset; at < end; at = hole) {
        at = lseek(a->fd, at, SEEK_DATA);
        if (at < 0 && errno == ENXIO)
            break;
        if (at < 0)
            return MF_E_IO;
        if (at >= end)
            break;
        hole = lseek(a->fd, at, SEEK_HOLE);
        if (hole < 0)
            return MF_E_IO;
        hole = hole < end ? hole : end;
        kept += (uint64_t)(hole - at);
        if (kept > ZERO_KEEP)
            return env_punch(arg, offset, bytes);
        memset(a->mm.base + at, 0, (size_t)(hole - at));
    }
    return MF_OK;
}

static void env_log(void *arg, enum mm_log_level level, const char *line)
{
    static const enum log_level levels[] = {
        [MM_LOG_ERROR] = LOG_ERROR, [MM_LOG_WARNING] = LOG_WARNING, [MM_LOG_INFO] = LOG_INFO};

    (void)arg;
    log_line(levels[level], "%s", line);
}

enum mf_status host_arena_init(struct host_arena *a, uint64_t bytes, struct mf_error *e)
{
    void *p;

    memset(a, 0, sizeof *a);
    a->fd = -1;
    if (bytes % FRAME_SIZE)
        return error_set(e, MF_E_ALIGN, "memory", "%llu bytes are not a multiple of 4096",
                         (unsigned long long)bytes);
    if (bytes < ARENA_MIN || bytes > ARENA_MAX)
        return error_set(e, MF_E_RANGE, "memory", "%llu bytes: possible are 1 MiB to 64 TiB",
                         (unsigned long long)bytes);
    a->fd = memfd_create("mayfly-arena", MFD_CLOEXEC);
    if (a->fd < 0 || ftruncate(a->fd, (off_t)bytes))
        goto fail;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, a->fd, 0);
    if (p == MAP_FAILED)
        goto fail;
    madvise(p, bytes, MADV_DONTDUMP);
    a->bytes = bytes;
    a->mm.base = p;
    a->mm.frames = bytes >> FRAME_SHIFT;
    a->env = (struct mm_env){.arg = a,
                             .now_ns = env_now,
                             .relax = env_relax,
                             .reserve = env_reserve,
                             .release = env_release,
                             .punch = env_punch,
                             .zero = env_zero,
                             .log = env_log};
    return MF_OK;
fail:
    error_set(e, MF_E_IO, "memory", "%llu bytes cannot be reserved: %s", (unsigned long long)bytes,
              strerror(errno));
    if (a->fd >= 0)
        close(a->fd);
    a->fd = -1;
    return MF_E_IO;
}

void host_arena_fini(struct host_arena *a)
{
    if (a->mm.base)
        munmap(a->mm.base, a->bytes);
    if (a->fd >= 0)
        close(a->fd);
    memset(a, 0, sizeof *a);
    a->fd = -1;
}
