/*
 * The child's side: limits, fault handlers, guarded memory, the second thread, the verdict. What
 * the plugin's code does, it does in here.
 */
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "conform/impl.h"
#include "conform/sandbox.h"
#include "hv/host/plugin.h"

#define PAGE             4096u
#define FAULT_AREAS      64u
#define PAGE_FAULT_WRITE 0x2                 /* in an x86 page fault's error code */
#define ADDRESSES        (UINT64_C(8) << 30) /* of address space beyond what we have */

struct conform_shared *conform_shared;

/* ---- the verdict */

static void say(void)
{
    atomic_store(&conform_shared->said, true);
    _exit(0);
}

static enum conform_rule blamed = CONFORM_RULES;

void conform_blame(enum conform_rule r)
{
    blamed = r;
}

void conform_fail(enum conform_rule r, const char *fmt, ...)
{
    static atomic_flag claimed = ATOMIC_FLAG_INIT;
    struct conform_verdict *v = &conform_shared->v;
    const char *now = atomic_load(&conform_shared->now);
    va_list ap;

    /* The first finding counts; another thread with one of its own waits for the end. */
    while (atomic_flag_test_and_set(&claimed))
        pause();
    if (blamed != CONFORM_RULES && !conform_rule_concerns(r, MF_PLUGIN_TEARDOWN))
        r = blamed; /* the rules of both kinds stay what they are */
    v->ok = false;
    v->broken = r;
    v->mark[r] = CONFORM_BROKEN;
    snprintf(v->during, sizeof v->during, "%s", now ? now : "");
    va_start(ap, fmt);
    vsnprintf(v->text, sizeof v->text, fmt, ap);
    va_end(ap);
    say();
    __builtin_unreachable();
}

void conform_kept(enum conform_rule r)
{
    if (conform_shared->v.mark[r] == CONFORM_NOT_RUN)
        conform_shared->v.mark[r] = CONFORM_KEPT;
}

void conform_not_claimed(enum conform_rule r)
{
    conform_shared->v.mark[r] = CONFORM_NOT_CLAIMED;
}

void conform_count(uint64_t n)
{
    conform_shared->v.operations += n;
}

static void note_cpu_time(void)
{
    struct timespec t = {0};

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    atomic_store(&conform_shared->cpu_ns, (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
}

void conform_enter(const char *op)
{
    note_cpu_time();
    atomic_store(&conform_shared->now, op);
    atomic_fetch_add(&conform_shared->calls, 1);
}

void conform_alive(void)
{
    note_cpu_time();
    atomic_fetch_add(&conform_shared->calls, 2);
}

void conform_leave(void)
{
    atomic_fetch_add(&conform_shared->calls, 1);
}

/* ---- faults */

static struct fault_area {
    uintptr_t at;
    size_t bytes;
    enum conform_rule rule, read_rule;
    const char *what, *read_what;
} areas[FAULT_AREAS];
static unsigned nr_areas;

void conform_fault_is(const void *at, size_t bytes, enum conform_rule rule, const char *what)
{
    if (nr_areas == FAULT_AREAS)
        abort(); /* more areas than any check makes */
    areas[nr_areas++] = (struct fault_area){(uintptr_t)at, bytes, rule, rule, what, what};
}

void conform_fault_read_is(const void *at, enum conform_rule rule, const char *what)
{
    for (unsigned i = 0; i < nr_areas; i++)
        if (areas[i].at == (uintptr_t)at) {
            areas[i].read_rule = rule;
            areas[i].read_what = what;
        }
}

void conform_fault_forget(const void *at)
{
    for (unsigned i = nr_areas; i-- > 0;)
        if (areas[i].at == (uintptr_t)at)
            areas[i] = areas[--nr_areas];
}

static void on_fault(int sig, siginfo_t *si, void *context)
{
    uintptr_t at = (uintptr_t)si->si_addr;

    bool write = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & PAGE_FAULT_WRITE;

    /* The areas that were named last are inside those named before. */
    for (unsigned i = nr_areas; sig == SIGSEGV && i-- > 0;)
        if (at >= areas[i].at && at - areas[i].at < areas[i].bytes)
            conform_fail(write ? areas[i].rule : areas[i].read_rule, "%s",
                         write ? areas[i].what : areas[i].read_what);
    conform_fail(CONFORM_CRASH, "signal %d (%s) at address %#lx", sig, strsignal(sig),
                 (unsigned long)at);
}

static void on_system_call(int sig, siginfo_t *si, void *context)
{
    (void)sig;
    (void)context;
    conform_fail(CONFORM_SYSTEM, "system call number %d", si->si_syscall);
}

/* A fault may be that of a stack: each thread handles it on another one. */
static void other_stack(void)
{
    stack_t s = {.ss_size = 1u << 16};

    s.ss_sp = mmap(NULL, s.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s.ss_sp == MAP_FAILED || sigaltstack(&s, NULL))
        abort();
}

static void catch_faults(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT};
    struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    sigfillset(&a.sa_mask);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigaction(faults[i], &a, NULL);
    a.sa_sigaction = on_system_call;
    sigaction(SIGSYS, &a, NULL);
    other_stack();
}

/* ---- guarded memory */

void conform_area_make(struct conform_area *a, size_t bytes, enum conform_rule rule,
                       const char *what)
{
    uint8_t *m;

    a->bytes = (bytes + PAGE - 1) & ~(size_t)(PAGE - 1);
    a->mapped = a->bytes + 2 * PAGE;
    m = mmap(NULL, a->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED || mprotect(m + PAGE, a->bytes, PROT_READ | PROT_WRITE))
        abort();
    a->at = m + PAGE;
    conform_fault_is(m, a->mapped, rule, what);
}

void conform_area_drop(struct conform_area *a)
{
    if (!a->at)
        return;
    conform_fault_forget(a->at - PAGE);
    munmap(a->at - PAGE, a->mapped);
    *a = (struct conform_area){0};
}

void *conform_area_tail(struct conform_area *a, size_t bytes)
{
    return a->at + a->bytes - bytes;
}

/* ---- the second thread */

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* under lock */
    bool ready;
    void (*fn)(void *);
    void *arg;
} beside = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void *beside_main(void *arg)
{
    other_stack();
    pthread_mutex_lock(&beside.lock);
    beside.ready = true;
    pthread_cond_broadcast(&beside.change);
    for (;;) {
        while (!beside.fn)
            pthread_cond_wait(&beside.change, &beside.lock);
        pthread_mutex_unlock(&beside.lock);
        beside.fn(beside.arg);
        pthread_mutex_lock(&beside.lock);
        beside.fn = NULL;
        pthread_cond_broadcast(&beside.change);
    }
    return arg;
}

/* Comes back when the thread has all that it will ask of the operating system. */
static void beside_start(void)
{
    if (pthread_create(&beside.thread, NULL, beside_main, NULL))
        abort();
    pthread_mutex_lock(&beside.lock);
    while (!beside.ready)
        pthread_cond_wait(&beside.change, &beside.lock);
    pthread_mutex_unlock(&beside.lock);
}

void conform_beside(void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&beside.lock);
    beside.arg = arg;
    beside.fn = fn;
    pthread_cond_broadcast(&beside.change);
    pthread_mutex_unlock(&beside.lock);
}

void conform_beside_wait(void)
{
    pthread_mutex_lock(&beside.lock);
    while (beside.fn)
        pthread_cond_wait(&beside.change, &beside.lock);
    pthread_mutex_unlock(&beside.lock);
}

/* ---- life */

static void limit(int what, uint64_t n)
{
    struct rlimit r = {n, n};

    setrlimit(what, &r);
}

static void set_limits(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 0);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, 0);
    if (!CONFORM_SANITIZED)
        limit(RLIMIT_AS, ADDRESSES);
}

static void load(struct host_plugin *p, int fd)
{
    struct mf_error e = {{0}, {0}};
    enum mf_status st;

    conform_enter("load");
    st = host_plugin_load(p, fd, &e);
    conform_leave();
    conform_shared->v.note = p->note;
    if (st)
        conform_fail(CONFORM_LOADS, "%.*s", (int)sizeof e.text - 1, e.text);
    conform_kept(CONFORM_LOADS);
}

void conform_child(int fd, const struct conform_options *o)
{
    struct conform_verdict *v = &conform_shared->v;
    struct host_plugin p;

    set_limits();
    catch_faults();
    beside_start();
    /* What the C library does the first time it is asked, it does before the door is shut. */
    free(malloc(1u << 20));
    if (!sandbox_loading())
        abort();
    load(&p, dup(fd));
    if (!sandbox_running())
        abort();
    if (p.note.kind == MF_PLUGIN_ALLOCATOR)
        conform_allocator(p.decl->ops.allocator, o);
    else
        conform_teardown(p.decl->ops.teardown, o);
    for (unsigned r = 0; r < CONFORM_RULES; r++)
        if (conform_rule_concerns(r, p.note.kind))
            conform_kept(r);
    v->ok = true;
    say();
    __builtin_unreachable();
}
