#include "client.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGS_MAX 96

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void nap(void)
{
    usleep(1000);
}

/* ---- the core */

static const char *below(const char *env, const char *file)
{
    static char paths[4][512];
    static unsigned next;
    char *p = paths[next++ % 4];
    const char *dir = getenv(env);

    snprintf(p, sizeof paths[0], "%s/%s", dir ? dir : ".", file);
    return p;
}

const char *plugin_path(const char *file)
{
    return below("MAYFLY_TEST_PLUGINS", file);
}

const char *guest_path(const char *file)
{
    return below("MAYFLY_TEST_GUESTS", file);
}

static bool make_dir(struct core_proc *p)
{
    memset(p, 0, sizeof *p);
    snprintf(p->dir, sizeof p->dir, "/tmp/mayfly-core-XXXXXX");
    if (!mkdtemp(p->dir))
        return false;
    snprintf(p->socket, sizeof p->socket, "%s/hv.sock", p->dir);
    snprintf(p->log, sizeof p->log, "%s/hv.log", p->dir);
    return true;
}

static bool spawn(struct core_proc *p, const char *const *argv)
{
    int ready[2];
    char c;

    if (pipe(ready))
        return false;
    p->pid = fork();
    if (p->pid == 0) {
        char fd[16];
        const char *args[ARGS_MAX];
        unsigned n = 0;

        /* A test that fails and goes away must not leave its core behind. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(open("/dev/null", O_RDWR | O_CLOEXEC), STDOUT_FILENO);
        dup2(STDOUT_FILENO, STDERR_FILENO);
        close(ready[0]);
        for (; argv[n]; n++)
            args[n] = argv[n];
        snprintf(fd, sizeof fd, "%d", ready[1]);
        args[n++] = "--ready-fd";
        args[n++] = fd;
        args[n] = NULL;
        execv(args[0], (char *const *)(uintptr_t)args);
        _exit(127);
    }
    close(ready[1]);
    bool ok = p->pid > 0 && read(ready[0], &c, 1) == 1;
    close(ready[0]);
    return ok;
}

const char *test_engine(void)
{
    const char *e = getenv("MAYFLY_TEST_ENGINE");

    return e ? e : "soft";
}

bool test_on_kvm(void)
{
    return strcmp(test_engine(), "kvm") == 0;
}

static bool start_argv(struct core_proc *p, const char *memory, const char *const *more)
{
    const char *argv[ARGS_MAX - 3];
    unsigned n = 0;

    if (!p->dir[0] && !make_dir(p))
        return false;
    argv[n++] = getenv("MAYFLY_HV");
    argv[n++] = "--socket";
    argv[n++] = p->socket;
    argv[n++] = "--log-file";
    argv[n++] = p->log;
    argv[n++] = "--memory";
    argv[n++] = memory;
    argv[n++] = "--engine";
    argv[n++] = test_engine();
    while (*more && n < ARGS_MAX - 4)
        argv[n++] = *more++;
    argv[n] = NULL;
    return argv[0] && spawn(p, argv);
}

bool core_start(struct core_proc *p, const char *memory, ...)
{
    const char *more[ARGS_MAX] = {NULL};
    unsigned n = 0;
    va_list ap;

    va_start(ap, memory);
    while (n < ARGS_MAX - 1 && (more[n] = va_arg(ap, const char *)))
        n++;
    va_end(ap);
    return start_argv(p, memory, more);
}

bool core_start_full(struct core_proc *p, const char *memory, const char *workers)
{
    static const char *const files[] = {
        "allocator_buddy-page.so", "allocator_buddy-chunk.so", "allocator_buddy-lazy.so",
        "allocator_bitmap.so",     "teardown_present.so",      "teardown_scan.so",
        "teardown_skip.so",        "teardown_single.so",       "teardown_tracked.so",
        "teardown_deferred.so",    "teardown_arena.so"};
    static char paths[sizeof files / sizeof files[0]][512];
    const char *more[ARGS_MAX] = {"--workers",  workers,  "--allocator", "buddy-lazy",
                                  "--teardown", "single", NULL};
    unsigned n = 6;

    for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(paths[i], sizeof paths[i], "%s", plugin_path(files[i]));
        more[n++] = "--plugin";
        more[n++] = paths[i];
    }
    return start_argv(p, memory, more);
}

int core_stop(struct core_proc *p)
{
    int status = -1;

    if (p->pid <= 0)
        return -1;
    kill(p->pid, SIGTERM);
    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until; nap()) {
        pid_t got = waitpid(p->pid, &status, WNOHANG);

        if (!got)
            continue;
        p->pid = 0;
        return got > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    kill(p->pid, SIGKILL);
    waitpid(p->pid, &status, 0);
    p->pid = 0;
    return -1;
}

void core_remove_dir(struct core_proc *p)
{
    DIR *d = opendir(p->dir);
    struct dirent *e;

    if (!d)
        return;
    while ((e = readdir(d)))
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(p->dir);
    p->dir[0] = 0;
}

uint64_t core_rss(const struct core_proc *p)
{
    char path[64];
    unsigned long long size = 0, rss = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)p->pid);
    f = fopen(path, "r");
    if (f && fscanf(f, "%llu %llu", &size, &rss) != 2)
        rss = 0;
    if (f)
        fclose(f);
    return rss * (uint64_t)sysconf(_SC_PAGE_SIZE);
}

int core_fds(const struct core_proc *p)
{
    char path[64];
    int n = 0;
    DIR *d;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)p->pid);
    d = opendir(path);
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

bool core_log_has(const struct core_proc *p, const char *text)
{
    FILE *f = fopen(p->log, "r");
    char line[2048];
    bool has = false;

    while (f && !has && fgets(line, sizeof line, f))
        has = strstr(line, text);
    if (f)
        fclose(f);
    return has;
}

/* ---- messages */

bool client_open(struct client *c, const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    memset(c, 0, offsetof(struct client, in));
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (c->fd >= 0 && !connect(c->fd, (struct sockaddr *)&a, sizeof a))
        return true;
    client_close(c);
    return false;
}

void client_close(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

bool client_send(struct client *c, const void *bytes, size_t n, const int *fds, unsigned nr_fds)
{
    union {
        char buf[CMSG_SPACE(sizeof(int) * 16)];
        struct cmsghdr align;
    } u;
    struct iovec iov = {(void *)(uintptr_t)bytes, n};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

    if (nr_fds) {
        memset(&u, 0, sizeof u);
        m.msg_control = &u;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * nr_fds);
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int) * nr_fds);
        memcpy(CMSG_DATA(h), fds, sizeof(int) * nr_fds);
    }
    return sendmsg(c->fd, &m, MSG_NOSIGNAL) == (ssize_t)n;
}

bool client_recv(struct client *c, int timeout_ms)
{
    struct pollfd p = {.fd = c->fd, .events = POLLIN};
    struct mf_msg m;
    ssize_t n;

    if (poll(&p, 1, timeout_ms) != 1)
        return false;
    n = recv(c->fd, c->in, sizeof c->in, 0);
    if (n < (ssize_t)sizeof m)
        return false;
    memcpy(&m, c->in, sizeof m);
    return m.magic == MF_MAGIC && m.size == (size_t)n;
}

static const struct mf_msg *head(const struct client *c)
{
    return (const struct mf_msg *)c->in;
}

const void *client_body(const struct client *c)
{
    return c->in + sizeof(struct mf_msg);
}

static void keep_event(struct client *c)
{
    if (c->nr_events == 64)
        return;
    c->event_nr[c->nr_events] = head(c)->nr;
    memcpy(&c->events[c->nr_events++], client_body(c), sizeof(struct mf_event));
}

enum mf_status client_call(struct client *c, unsigned nr, const void *args, size_t args_len,
                           const void *tail, size_t tail_len, const int *fds, unsigned nr_fds)
{
    _Alignas(8) static uint8_t out[MF_MSG_MAX + 16];
    struct mf_msg m = {.magic = MF_MAGIC,
                       .nr = (uint16_t)nr,
                       .flags = (uint16_t)c->flags,
                       .size = (uint32_t)(sizeof m + args_len + tail_len),
                       .cookie = ++c->cookie,
                       .cont = c->cont};

    memset(&c->err, 0, sizeof c->err);
    memcpy(out, &m, sizeof m);
    if (args_len)
        memcpy(out + sizeof m, args, args_len);
    if (tail_len)
        memcpy(out + sizeof m + args_len, tail, tail_len);
    if (!client_send(c, out, m.size, fds, nr_fds))
        return MF_E_UNAVAILABLE;
    do {
        if (!client_recv(c, WAIT_MS))
            return MF_E_UNAVAILABLE;
        if (head(c)->flags & MF_MSG_EVENT)
            keep_event(c);
    } while (head(c)->flags & MF_MSG_EVENT);
    c->cont = head(c)->cont;
    c->reply_len = head(c)->size - (uint32_t)sizeof m;
    if (head(c)->status)
        memcpy(&c->err, client_body(c), sizeof c->err);
    if (head(c)->cookie != c->cookie || head(c)->nr != nr || !(head(c)->flags & MF_MSG_REPLY))
        return MF_E_INTERNAL;
    return head(c)->status;
}

enum mf_status client_hello(struct client *c)
{
    struct mf_args_hello a = {.abi = MF_ABI_VERSION};

    return client_call(c, MF_CALL_HELLO, &a, sizeof a, NULL, 0, NULL, 0);
}

bool client_connect(struct client *c, const struct core_proc *p)
{
    return client_open(c, p->socket) && client_hello(c) == MF_OK;
}

int core_open(struct core_proc *p, struct client *c, const char *memory)
{
    memset(p, 0, sizeof *p);
    return core_start_full(p, memory, "2") && client_connect(c, p) ? 0 : -1;
}

int core_close(struct core_proc *p, struct client *c)
{
    int code;

    client_close(c);
    code = core_stop(p);
    core_remove_dir(p);
    return code;
}

bool client_event(struct client *c, int timeout_ms, uint16_t *nr, struct mf_event *out)
{
    if (!c->nr_events) {
        if (!client_recv(c, timeout_ms) || !(head(c)->flags & MF_MSG_EVENT))
            return false;
        keep_event(c);
    }
    *nr = c->event_nr[0];
    *out = c->events[0];
    c->nr_events--;
    memmove(c->events, c->events + 1, c->nr_events * sizeof c->events[0]);
    memmove(c->event_nr, c->event_nr + 1, c->nr_events * sizeof c->event_nr[0]);
    return true;
}

/* ---- what tests do all the time */

enum mf_status vm_new(struct client *c, const char *name, uint64_t memory, const char *teardown,
                      uint32_t flags, uint32_t *id)
{
    struct mf_args_vm_create a = {.memory = memory, .vcpus = 1, .flags = flags};
    enum mf_status st;

    memcpy(a.name, name, strnlen(name, sizeof a.name));
    if (teardown)
        memcpy(a.teardown, teardown, strnlen(teardown, sizeof a.teardown));
    st = client_call(c, MF_CALL_VM_CREATE, &a, sizeof a, NULL, 0, NULL, 0);
    if (!st)
        *id = ((const struct mf_reply_vm *)client_body(c))->vm;
    return st;
}

enum mf_status vm_kernel(struct client *c, uint32_t id, const char *path, const char *cmdline)
{
    struct mf_args_vm_image a = {.vm = id, .cmdline_len = (uint32_t)strlen(cmdline)};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum mf_status st;

    if (fd < 0)
        return MF_E_IO;
    st = client_call(c, MF_CALL_VM_IMAGE, &a, sizeof a, cmdline, strlen(cmdline), &fd, 1);
    close(fd);
    return st;
}

enum mf_status vm_do(struct client *c, unsigned nr, uint32_t id)
{
    struct mf_args_vm a = {.vm = id};

    return client_call(c, nr, &a, sizeof a, NULL, 0, NULL, 0);
}

enum mf_status vm_launch(struct client *c, const char *name, uint64_t memory, const char *guest,
                         const char *cmdline, const char *teardown, uint32_t flags, uint32_t *id)
{
    enum mf_status st = vm_new(c, name, memory, teardown, flags, id);

    if (!st)
        st = vm_kernel(c, *id, guest_path(guest), cmdline);
    if (!st)
        st = vm_do(c, MF_CALL_VM_START, *id);
    return st;
}

bool vm_info(struct client *c, uint32_t id, struct mf_vm_info *out)
{
    if (vm_do(c, MF_CALL_VM_INFO, id))
        return false;
    memcpy(out, client_body(c), sizeof *out);
    return true;
}

bool vm_wait_off(struct client *c, uint32_t id, struct mf_vm_info *out)
{
    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until; nap()) {
        if (!vm_info(c, id, out))
            return false;
        if (out->state == MF_VM_SHUTOFF || out->state == MF_VM_CRASHED)
            return true;
    }
    return false;
}

bool vm_wait_returned(struct client *c, uint32_t id, struct mf_vm_info *out)
{
    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until; nap())
        if (!vm_info(c, id, out) || out->end.returned_ns)
            return out->end.returned_ns;
    return false;
}

bool vm_wait_state(struct client *c, uint32_t id, uint32_t state)
{
    struct mf_vm_info info;

    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until; nap())
        if (vm_info(c, id, &info) && info.state == state)
            return true;
    return false;
}

const char *vm_console(struct client *c, uint32_t id)
{
    static char text[MF_MSG_MAX];
    struct mf_args_console_read a = {.vm = id, .max = 60000};
    const struct mf_reply_console_read *r = client_body(c);

    text[0] = 0;
    if (!client_call(c, MF_CALL_CONSOLE_READ, &a, sizeof a, NULL, 0, NULL, 0)) {
        memcpy(text, r + 1, r->count);
        text[r->count] = 0;
    }
    return text;
}

bool vm_wait_console(struct client *c, uint32_t id, const char *text)
{
    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until; nap())
        if (strstr(vm_console(c, id), text))
            return true;
    return false;
}

enum mf_status vm_remove(struct client *c, uint32_t id)
{
    return vm_do(c, MF_CALL_VM_DELETE, id);
}

enum mf_status strategy_load(struct client *c, const char *path)
{
    struct mf_args_none a = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum mf_status st;

    if (fd < 0)
        return MF_E_IO;
    st = client_call(c, MF_CALL_STRATEGY_LOAD, &a, sizeof a, NULL, 0, &fd, 1);
    close(fd);
    return st;
}

enum mf_status select_teardown(struct client *c, uint32_t vm, const char *name)
{
    struct mf_args_teardown_select a = {.vm = vm};

    memcpy(a.name, name, strnlen(name, sizeof a.name));
    return client_call(c, MF_CALL_TEARDOWN_SELECT, &a, sizeof a, NULL, 0, NULL, 0);
}

enum mf_status select_allocator(struct client *c, const char *name)
{
    struct mf_args_strategy a = {.kind = MF_PLUGIN_ALLOCATOR};

    memcpy(a.name, name, strnlen(name, sizeof a.name));
    return client_call(c, MF_CALL_ALLOCATOR_SELECT, &a, sizeof a, NULL, 0, NULL, 0);
}

bool heap_info(struct client *c, struct mf_reply_heap_info *out)
{
    struct mf_args_none a = {0};

    if (client_call(c, MF_CALL_HEAP_INFO, &a, sizeof a, NULL, 0, NULL, 0))
        return false;
    memcpy(out, client_body(c), sizeof *out);
    return true;
}

bool heap_audit(struct client *c, struct mf_reply_heap_audit *out)
{
    struct mf_args_none a = {0};

    if (client_call(c, MF_CALL_HEAP_AUDIT, &a, sizeof a, NULL, 0, NULL, 0))
        return false;
    memcpy(out, client_body(c), sizeof *out);
    return true;
}

bool heap_is_whole(struct client *c)
{
    struct mf_reply_heap_audit a;
    struct mf_reply_heap_info i;

    /* Memory of VMs whose teardown is deferred may still be on its way. */
    for (uint64_t until = now_ms() + WAIT_MS; now_ms() < until; nap())
        if (!heap_info(c, &i) || i.free == i.frames)
            break;
    if (!heap_info(c, &i) || !heap_audit(c, &a))
        return false;
    if (a.frames == a.free && a.free == i.free && a.listed_free == a.free && !a.overlaps &&
        !a.bad_records && !a.listed_in_use && !a.lost && !i.refused_double && !i.refused_order &&
        !i.refused_owner && !i.refused_plugin && !i.used_ram && !i.used_table && !i.retired)
        return true;
    fprintf(stderr,
            "heap: frames %llu free %llu/%llu ram %llu table %llu core %llu retired %llu overlaps "
            "%llu bad %llu listed %llu in use %llu lost %llu refused %llu %llu %llu %llu\n",
            (unsigned long long)a.frames, (unsigned long long)a.free, (unsigned long long)i.free,
            (unsigned long long)a.used_ram, (unsigned long long)a.used_table,
            (unsigned long long)a.used_core, (unsigned long long)a.retired,
            (unsigned long long)a.overlaps, (unsigned long long)a.bad_records,
            (unsigned long long)a.listed_free, (unsigned long long)a.listed_in_use,
            (unsigned long long)a.lost, (unsigned long long)i.refused_double,
            (unsigned long long)i.refused_order, (unsigned long long)i.refused_owner,
            (unsigned long long)i.refused_plugin);
    return false;
}
