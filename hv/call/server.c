#include "hv/call/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "hv/call/conn.h"
#include "hv/host/log.h"

#define QUIT_WAIT_NS  UINT64_C(10000000000)
#define QUIT_FLUSH_MS 200
#define EPOLL_BATCH   32

/* ---- lock and socket */

static enum mf_status take_lock(struct server *s, const char *path, struct mf_error *e)
{
    char lock[sizeof s->path + 8], who[32] = "";
    size_t n = strlen(path);

    if (n > 5 && !strcmp(path + n - 5, ".sock"))
        n -= 5;
    snprintf(lock, sizeof lock, "%.*s.lock", (int)n, path);
    s->lock_fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock_fd < 0)
        return error_set(e, MF_E_IO, "socket", "%s: %s", lock, strerror(errno));
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB)) {
        ssize_t got = pread(s->lock_fd, who, sizeof who - 1, 0);

        who[got > 0 ? got : 0] = 0;
        who[strcspn(who, "\n")] = 0;
        return error_set(e, MF_E_BUSY, "socket", "another core (pid %s) holds %s",
                         who[0] ? who : "unknown", lock);
    }
    int len = snprintf(who, sizeof who, "%d\n", (int)getpid());
    if (ftruncate(s->lock_fd, 0) || pwrite(s->lock_fd, who, (size_t)len, 0) != len)
        return error_set(e, MF_E_IO, "socket", "%s: %s", lock, strerror(errno));
    return MF_OK;
}

static enum mf_status bind_socket(struct server *s, const char *path, struct mf_error *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    mode_t mask;
    int bad;

    if (strlen(path) >= sizeof a.sun_path)
        return error_set(e, MF_E_RANGE, "socket", "the path is longer than %zu bytes",
                         sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    /* We hold the lock, so a socket that is there belongs to a core that is gone. */
    if (!lstat(path, &st)) {
        if (!S_ISSOCK(st.st_mode))
            return error_set(e, MF_E_IO, "socket", "%.120s exists and is no socket", path);
        unlink(path);
    }
    s->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0)
        return error_set(e, MF_E_IO, "socket", "no socket: %s", strerror(errno));
    mask = umask(0177);
    bad = bind(s->listen_fd, (struct sockaddr *)&a, sizeof a);
    umask(mask);
    if (!bad)
        memcpy(s->path, path, strlen(path) + 1); /* ours to take away at the end */
    if (bad || listen(s->listen_fd, SOMAXCONN))
        return error_set(e, MF_E_IO, "socket", "%.120s: %s", path, strerror(errno));
    return MF_OK;
}

static bool watch(struct server *s, int op, int fd, uint32_t events, void *ptr)
{
    struct epoll_event ev = {.events = events, .data.ptr = ptr};

    return epoll_ctl(s->epoll_fd, op, fd, &ev) == 0;
}

enum mf_status server_init(struct server *s, struct core *core, const char *path,
                           struct mf_error *e)
{
    enum mf_status st;

    memset(s, 0, sizeof *s);
    s->core = core;
    s->epoll_fd = s->listen_fd = s->lock_fd = s->signal_fd = -1;
    st = strlen(path) >= sizeof s->path
             ? error_set(e, MF_E_RANGE, "socket", "the path is longer than %zu bytes",
                         sizeof s->path - 1)
             : take_lock(s, path, e);
    if (!st)
        st = bind_socket(s, path, e);
    if (!st) {
        s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (s->epoll_fd < 0 || !watch(s, EPOLL_CTL_ADD, s->listen_fd, EPOLLIN, &s->listen_fd) ||
            !watch(s, EPOLL_CTL_ADD, core->events.fd, EPOLLIN, &core->events))
            st = error_set(e, MF_E_IO, "socket", "epoll: %s", strerror(errno));
    }
    if (st)
        server_fini(s);
    return st;
}

void server_fini(struct server *s)
{
    struct conn *next;

    for (struct conn *c = s->first; c; c = next) {
        next = c->next;
        conn_destroy(c);
    }
    s->first = NULL;
    if (s->path[0])
        unlink(s->path);
    if (s->epoll_fd >= 0)
        close(s->epoll_fd);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    s->epoll_fd = s->listen_fd = s->lock_fd = -1;
}

/* ---- connections */

static bool peer_allowed(int fd, struct mf_error *e)
{
    struct ucred cred;
    socklen_t len = sizeof cred;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len)) {
        error_set(e, MF_E_PERM, NULL, "your credentials cannot be read");
        return false;
    }
    if (cred.uid == 0 || cred.uid == geteuid())
        return true;
    error_set(e, MF_E_PERM, NULL, "user %u may not control this core", cred.uid);
    log_line(LOG_WARNING, "refused a connection of user %u, process %d", cred.uid, cred.pid);
    return false;
}

static void accept_one(struct server *s)
{
    struct mf_error e;
    struct conn *c;
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    if (!peer_allowed(fd, &e)) {
        conn_refuse(fd, MF_E_PERM, &e);
        close(fd);
        return;
    }
    if (s->nr_conns >= SERVER_CONNS_MAX) {
        error_set(&e, MF_E_LIMIT, NULL, "%u connections are open, the limit", s->nr_conns);
        conn_refuse(fd, MF_E_LIMIT, &e);
        close(fd);
        return;
    }
    c = conn_create(s, fd);
    if (!c)
        return;
    c->epoll_events = EPOLLIN;
    if (!watch(s, EPOLL_CTL_ADD, fd, EPOLLIN, c)) {
        conn_destroy(c);
        return;
    }
    c->next = s->first;
    s->first = c;
    s->nr_conns++;
}

static void reap_dead(struct server *s)
{
    struct conn **p = &s->first;

    while (*p) {
        struct conn *c = *p;

        if (!c->dead) {
            p = &c->next;
            continue;
        }
        *p = c->next;
        s->nr_conns--;
        conn_destroy(c);
    }
}

/* ---- events of the core */

/* A console event that was dropped or that nobody wanted must not silence the console for good. */
static void console_rearm(struct server *s)
{
    for (struct vm *vm = s->core->vmm.first; vm; vm = vm->next)
        vm_console_seen(vm);
}

/* Which events anybody wants: the others are not even queued. */
static void update_mask(struct server *s)
{
    uint32_t mask = 0, before;

    for (struct conn *c = s->first; c; c = c->next)
        mask |= c->session.mask;
    before = atomic_exchange(&s->core->events.mask, mask);
    if ((mask & ~before) & (1u << MF_EVENT_CONSOLE))
        console_rearm(s);
}

void server_spread(struct server *s)
{
    struct event_item i;
    uint64_t lost;

    update_mask(s);
    lost = event_take_lost(&s->core->events);
    while (event_pop(&s->core->events, &i)) {
        if (i.nr == MF_EVENT_CONSOLE) {
            struct vm *vm = vm_find(&s->core->vmm, i.event.vm);

            if (vm) {
                vm_console_seen(vm);
                i.event.a = console_end(&vm->console);
            }
        }
        for (struct conn *c = s->first; c; c = c->next)
            conn_event(c, &i);
    }
    for (struct conn *c = s->first; lost && c; c = c->next)
        conn_lost(c, lost);
    if (lost)
        console_rearm(s);
}

/* ---- the loop */

static void read_signals(struct server *s)
{
    struct signalfd_siginfo si;

    while (read(s->signal_fd, &si, sizeof si) == (ssize_t)sizeof si) {
        log_line(LOG_INFO, "signal %u from process %u: ending, %u VMs live", si.ssi_signo,
                 si.ssi_pid, core_live_vms(s->core));
        s->core->quit = true;
        core_destroy_all(s->core);
    }
}

static bool dispatch(struct server *s, struct epoll_event *ev)
{
    void *p = ev->data.ptr;
    struct conn *c = p;

    if (p == &s->listen_fd) {
        accept_one(s);
        return false;
    }
    if (p == &s->signal_fd) {
        read_signals(s);
        return false;
    }
    if (p == &s->core->events) {
        event_woken(&s->core->events);
        return true;
    }
    if (ev->events & EPOLLOUT)
        conn_write(c);
    if (ev->events & EPOLLIN)
        conn_read(c);
    if (ev->events & (EPOLLERR | EPOLLHUP))
        c->dead = true;
    return false;
}

static void after_round(struct server *s, bool woken)
{
    s->again = false;
    woken = woken || s->core->quit;
    for (struct conn *c = s->first; c; c = c->next)
        if (!c->dead)
            conn_resume(c, woken);
    server_spread(s);
    for (struct conn *c = s->first; c; c = c->next) {
        uint32_t wants;

        if (!c->dead)
            conn_write(c);
        if (c->dead)
            continue;
        s->again = s->again || c->state == CONN_AGAIN;
        wants = conn_wants(c);
        if (wants != c->epoll_events && watch(s, EPOLL_CTL_MOD, c->fd, wants, c))
            c->epoll_events = wants;
    }
    reap_dead(s);
}

bool server_round(struct server *s, int timeout_ms)
{
    struct epoll_event ev[EPOLL_BATCH];
    bool woken = false;
    int n = epoll_wait(s->epoll_fd, ev, EPOLL_BATCH, s->again ? 0 : timeout_ms);

    for (int i = 0; i < n; i++)
        woken = dispatch(s, &ev[i]) || woken;
    after_round(s, woken);
    if (!s->core->quit)
        return true;
    if (!s->quit_at)
        s->quit_at = host_now_ns() + QUIT_WAIT_NS;
    return core_live_vms(s->core) && host_now_ns() < s->quit_at;
}

void server_run(struct server *s, int signal_fd)
{
    s->signal_fd = signal_fd;
    if (signal_fd >= 0)
        watch(s, EPOLL_CTL_ADD, signal_fd, EPOLLIN, &s->signal_fd);
    while (server_round(s, s->core->quit ? 20 : -1))
        ;
    /* The last replies and events go out. */
    s->again = false;
    server_round(s, QUIT_FLUSH_MS);
}
