/* The parent's side: starts the child, watches that it comes on, reads the verdict. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "conform/impl.h"

#define LOOK_MS  10
#define STUCK_MS 60000u /* a call that takes no CPU time either */

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t = {0};

    clock_gettime(id, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void found(struct conform_verdict *v, enum conform_rule r, const char *op, const char *text)
{
    v->ok = false;
    v->broken = r;
    v->mark[r] = CONFORM_BROKEN;
    snprintf(v->during, sizeof v->during, "%s", op ? op : "");
    snprintf(v->text, sizeof v->text, "%s", text);
}

struct watch {
    struct conform_shared *s;
    clockid_t clock; /* of the child's CPU time */
    uint64_t calls;  /* last seen */
    uint64_t since;  /* wall time of that */
};

/* Is the call under way one that will not come back? */
static const char *is_stuck(struct watch *w)
{
    uint64_t calls = atomic_load(&w->s->calls), wall = clock_ns(CLOCK_MONOTONIC);

    if (calls != w->calls) {
        w->calls = calls;
        w->since = wall;
        return NULL;
    }
    if (!(calls & 1))
        return NULL;
    if (wall - w->since > STUCK_MS * UINT64_C(1000000))
        return "the call waits and does not come back";
    if (clock_ns(w->clock) > atomic_load(&w->s->cpu_ns) + CONFORM_CPU_MS * UINT64_C(1000000) &&
        atomic_load(&w->s->calls) == calls)
        return "the call has had two seconds of CPU time and does not come back";
    return NULL;
}

/* Waits for the child's end. True: it ended by itself. */
static bool wait_child(int pidfd, pid_t pid, struct conform_shared *s, uint64_t wall_ms)
{
    uint64_t began = clock_ns(CLOCK_MONOTONIC);
    struct watch w = {.s = s, .since = began};
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    const char *why = NULL;

    if (clock_getcpuclockid(pid, &w.clock))
        w.clock = CLOCK_MONOTONIC;
    while (poll(&p, 1, LOOK_MS) <= 0) {
        why = is_stuck(&w);
        if (!why && wall_ms && clock_ns(CLOCK_MONOTONIC) - began > wall_ms * UINT64_C(1000000))
            why = "the check took longer than it may";
        if (!why)
            continue;
        kill(pid, SIGKILL);
        poll(&p, 1, -1);
        if (!atomic_load(&s->said))
            found(&s->v, CONFORM_ENDLESS, atomic_load(&s->now), why);
        return false;
    }
    return true;
}

static void child_ended(struct conform_shared *s, int status)
{
    char text[96];

    if (atomic_load(&s->said))
        return;
    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "the process was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(text, sizeof text, "the process ended by itself with status %d",
                 WEXITSTATUS(status));
    found(&s->v, CONFORM_CRASH, atomic_load(&s->now), text);
}

static bool run_child(int fd, const struct conform_options *o, struct conform_shared *s)
{
    int status = 0, pidfd, e;
    pid_t pid = fork();

    if (pid < 0)
        return false;
    if (pid == 0) {
        conform_shared = s;
        conform_child(fd, o);
    }
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    e = errno;
    if (pidfd < 0)
        kill(pid, SIGKILL);
    else if (!wait_child(pidfd, pid, s, o->wall_ms))
        atomic_store(&s->said, true);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pidfd < 0) {
        errno = e;
        return false;
    }
    close(pidfd);
    child_ended(s, status);
    return true;
}

bool conform_check(int fd, const struct conform_options *o, struct conform_verdict *out)
{
    struct conform_shared *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t began = clock_ns(CLOCK_MONOTONIC);
    bool ok;

    if (s == MAP_FAILED)
        return false;
    s->v.seed = o->seed;
    s->v.broken = CONFORM_RULES;
    ok = run_child(fd, o, s);
    *out = s->v;
    out->took_ns = clock_ns(CLOCK_MONOTONIC) - began;
    munmap(s, sizeof *s);
    return ok;
}
