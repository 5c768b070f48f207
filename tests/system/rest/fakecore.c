/*
 * A stand-in for hv, for faults that the real one does not have: it speaks the control door of
 * proto/hypercall.h, runs no guest, and misbehaves on demand.
 *
 *   fakecore --socket PATH [--memory N] [--fault KIND:CALL[:COUNT]]
 *
 * KIND, at the first (or COUNT-th) call number CALL: die (exit at once, also inside a batch), close
 * (the connection), garbage (a reply that is noise), stray (a reply to nobody), short (a reply cut
 * in the middle), silent (no reply at all). A VM whose command line is "end" has ended by power-off
 * as soon as it starts, others run until they are destroyed.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/hypercall.h"

#define VMS     64
#define CONSOLE "fake console\n"

struct fake_vm {
    struct mf_vm_info info; /* id 0: unused */
    int ends;
};

static struct {
    int fd; /* of the connection */
    uint8_t instance[16];
    uint64_t memory;
    struct fake_vm vm[VMS];
    uint32_t next_id, last_created;
    char allocator[MF_NAME_MAX], teardown[MF_NAME_MAX];
    struct mf_strategy_info strategy[32];
    uint32_t strategies;
    uint64_t seq;
    char fault[16];
    int fault_call, fault_count;
    int fd_count; /* that came with the request */
    struct {      /* events go out before the reply */
        uint16_t nr;
        struct mf_event e;
    } event[256];
    unsigned events;
} core = {.fd = -1, .memory = UINT64_C(1) << 30, .next_id = 1};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct mf_event *push_event(enum mf_event_nr nr, uint32_t vm, uint64_t a, uint64_t b)
{
    static struct mf_event lost;
    struct mf_event *e = &lost;

    if (core.events < sizeof core.event / sizeof core.event[0]) {
        core.event[core.events].nr = (uint16_t)nr;
        e = &core.event[core.events++].e;
    }
    *e = (struct mf_event){.seq = ++core.seq, .at = now_ns(), .vm = vm, .a = a, .b = b};
    return e;
}

static void flush_events(void)
{
    for (unsigned i = 0; i < core.events; i++) {
        struct {
            struct mf_msg m;
            struct mf_event e;
        } out = {.m = {.magic = MF_MAGIC,
                       .nr = core.event[i].nr,
                       .flags = MF_MSG_EVENT,
                       .size = sizeof out},
                 .e = core.event[i].e};
        if (send(core.fd, &out, sizeof out, MSG_NOSIGNAL) < 0)
            break;
    }
    core.events = 0;
}

static void set_state(struct fake_vm *v, uint32_t to)
{
    push_event(MF_EVENT_VM_STATE, v->info.id, v->info.state, to)->moves = ++v->info.moves;
    v->info.state = to;
}

static void end_vm(struct fake_vm *v, uint32_t reason)
{
    v->info.end = (struct mf_end_report){.reason = reason, .frames_returned = 8, .run_ns = 1000};
    snprintf(v->info.end.teardown, sizeof v->info.end.teardown, "%s", core.teardown);
    set_state(v, MF_VM_STOPPING);
    set_state(v, MF_VM_SHUTOFF);
    push_event(MF_EVENT_VM_ENDED, v->info.id, reason, 0);
}

static struct fake_vm *find(uint32_t id)
{
    if (id == MF_VM_LAST_CREATED)
        id = core.last_created;
    for (int i = 0; i < VMS && id != 0; i++)
        if (core.vm[i].info.id == id)
            return &core.vm[i];
    return NULL;
}

/* ---- calls: fill `out`, set *len, return a status */

static uint32_t vm_create(const struct mf_args_vm_create *a, struct mf_reply_vm *out, uint32_t *len)
{
    for (int i = 0; i < VMS; i++) {
        struct fake_vm *v = &core.vm[i];
        if (v->info.id != 0)
            continue;
        *v = (struct fake_vm){.info = {.id = core.next_id++,
                                       .engine = MF_ENGINE_SOFT,
                                       .vcpus = a->vcpus,
                                       .memory = a->memory,
                                       .created_at = now_ns()}};
        memcpy(v->info.name, a->name, sizeof v->info.name);
        memcpy(v->info.uuid, a->uuid, 16);
        memcpy(v->info.teardown, core.teardown, sizeof v->info.teardown);
        core.last_created = v->info.id;
        out->vm = v->info.id;
        *len = sizeof *out;
        return MF_OK;
    }
    return MF_E_LIMIT;
}

static uint32_t vm_act(uint16_t nr, struct fake_vm *v)
{
    int off = v->info.state == MF_VM_SHUTOFF || v->info.state == MF_VM_CRASHED;

    if (nr == MF_CALL_VM_START || nr == MF_CALL_VM_DELETE ? !off : off)
        return MF_E_STATE;
    if (nr == MF_CALL_VM_DELETE) {
        push_event(MF_EVENT_VM_DELETED, v->info.id, 0, 0);
        v->info.id = 0;
    } else if (nr == MF_CALL_VM_START) {
        set_state(v, MF_VM_STARTING);
        set_state(v, MF_VM_RUNNING);
        v->info.starts++;
        v->info.console_end = strlen(CONSOLE);
        if (v->ends)
            end_vm(v, MF_END_POWEROFF);
    } else if (nr == MF_CALL_VM_PAUSE) {
        set_state(v, MF_VM_PAUSED);
    } else if (nr == MF_CALL_VM_RESUME) {
        set_state(v, MF_VM_RUNNING);
    } else if (nr == MF_CALL_VM_DESTROY || nr == MF_CALL_VM_SHUTDOWN) {
        end_vm(v, MF_END_DESTROYED);
    }
    return MF_OK;
}

static uint32_t vm_list(uint32_t first, uint8_t *out, uint32_t *len)
{
    struct mf_reply_vm_list l = {0};

    /* Few a reply: the reader must go on where it stopped. */
    for (uint32_t id = first; id < core.next_id; id++) {
        const struct fake_vm *v = find(id);
        if (v == NULL)
            continue;
        if (l.count == 3) {
            l.next_id = id;
            break;
        }
        memcpy(out + sizeof l + l.count++ * sizeof v->info, &v->info, sizeof v->info);
    }
    memcpy(out, &l, sizeof l);
    *len = (uint32_t)(sizeof l + l.count * sizeof(struct mf_vm_info));
    return MF_OK;
}

static uint32_t console_read(const struct mf_args_console_read *a, uint8_t *out, uint32_t *len)
{
    struct fake_vm *v = find(a->vm);
    struct mf_reply_console_read r = {.offset = a->offset};

    if (v == NULL)
        return MF_E_NOT_FOUND;
    r.end = v->info.console_end;
    r.ended = v->info.state == MF_VM_SHUTOFF;
    if (r.offset > r.end)
        r.offset = r.end;
    r.count = (uint32_t)(r.end - r.offset);
    memcpy(out, &r, sizeof r);
    memcpy(out + sizeof r, &CONSOLE[r.offset], r.count);
    *len = (uint32_t)sizeof r + r.count;
    return MF_OK;
}

static uint32_t host_info(uint8_t *out, uint32_t *len)
{
    struct mf_reply_host_info h = {
        .memory = core.memory, .cpus = 1, .workers = 1, .engine_soft = 1, .now = now_ns()};

    snprintf(h.version, sizeof h.version, "fake");
    memcpy(h.teardown_default, core.teardown, sizeof core.teardown);
    memcpy(out, &h, sizeof h);
    *len = sizeof h;
    return MF_OK;
}

static uint32_t select_name(char *to, const char *name, uint8_t *out, uint32_t *len)
{
    struct mf_reply_swap s = {.total_ns = 1};

    memcpy(s.from, to, MF_NAME_MAX);
    memcpy(s.to, name, MF_NAME_MAX);
    memcpy(to, name, MF_NAME_MAX);
    memcpy(out, &s, sizeof s);
    *len = sizeof s;
    return MF_OK;
}

static uint32_t call(const struct mf_msg *m, const uint8_t *args, uint8_t *out, uint32_t *len);

static void die_at(uint16_t nr)
{
    if (nr == core.fault_call && strcmp(core.fault, "die") == 0 && --core.fault_count <= 0)
        _exit(9);
}

static uint32_t batch(const struct mf_args_batch *a, const uint8_t *at, uint8_t *out, uint32_t *len)
{
    struct mf_reply_batch r = {0};
    uint32_t end = sizeof r;

    for (uint32_t i = 0; i < a->count; i++) {
        struct mf_msg m;
        struct mf_msg reply;
        uint32_t n = 0;
        memcpy(&m, at, sizeof m);
        die_at(m.nr);
        reply = (struct mf_msg){.magic = MF_MAGIC, .nr = m.nr, .flags = MF_MSG_REPLY};
        reply.status = call(&m, at + sizeof m, out + end + sizeof m, &n);
        if (reply.status != MF_OK) {
            n = sizeof(struct mf_error);
            memset(out + end + sizeof m, 0, n);
        }
        reply.size = (uint32_t)sizeof reply + n;
        memcpy(out + end, &reply, sizeof reply);
        end += (reply.size + 7u) & ~7u;
        at += (m.size + 7u) & ~7u;
        if (reply.status != MF_OK)
            break;
        r.done++;
    }
    memcpy(out, &r, sizeof r);
    *len = end;
    return MF_OK;
}

static uint32_t image(const struct mf_args_vm_image *a, const uint8_t *cmdline)
{
    struct fake_vm *v = find(a->vm);

    if (v == NULL)
        return MF_E_NOT_FOUND;
    v->ends = a->cmdline_len == 3 && memcmp(cmdline, "end", 3) == 0;
    return MF_OK;
}

static uint32_t hello(uint8_t *out, uint32_t *len)
{
    struct mf_reply_hello h = {.abi = MF_ABI_VERSION, .pid = (uint32_t)getpid()};

    memcpy(h.instance, core.instance, 16);
    memcpy(out, &h, sizeof h);
    *len = sizeof h;
    return MF_OK;
}

static uint32_t vm_call(uint16_t nr, uint32_t id, uint8_t *out, uint32_t *len)
{
    struct fake_vm *v = find(id);

    if (v == NULL)
        return MF_E_NOT_FOUND;
    if (nr != MF_CALL_VM_INFO)
        return vm_act(nr, v);
    memcpy(out, &v->info, sizeof v->info);
    *len = sizeof v->info;
    return MF_OK;
}

static uint32_t call(const struct mf_msg *m, const uint8_t *args, uint8_t *out, uint32_t *len)
{
    const struct mf_call_row *row = mf_call_row(m->nr);
    uint64_t copy[MF_MSG_MAX / 8];

    if (row == NULL || m->size < sizeof *m + row->args_size)
        return MF_E_SIZE;
    memcpy(copy, args, m->size - sizeof *m);
    args = (const uint8_t *)copy;
    *len = row->reply_size;
    memset(out, 0, row->reply_size);
    switch (m->nr) {
    case MF_CALL_HELLO:
        return hello(out, len);
    case MF_CALL_HOST_INFO:
        return host_info(out, len);
    case MF_CALL_HEAP_INFO:
        memcpy(((struct mf_reply_heap_info *)(void *)out)->allocator, core.allocator, MF_NAME_MAX);
        return MF_OK;
    case MF_CALL_VM_CREATE:
        return vm_create((const void *)args, (void *)out, len);
    case MF_CALL_VM_IMAGE:
        return image((const void *)args, args + row->args_size);
    case MF_CALL_VM_LIST:
        return vm_list(((const struct mf_args_vm_list *)(const void *)args)->first_id, out, len);
    case MF_CALL_CONSOLE_READ:
        return console_read((const void *)args, out, len);
    case MF_CALL_ALLOCATOR_SELECT:
        return select_name(core.allocator,
                           ((const struct mf_args_strategy *)(const void *)args)->name, out, len);
    case MF_CALL_TEARDOWN_SELECT:
        return select_name(core.teardown,
                           ((const struct mf_args_teardown_select *)(const void *)args)->name, out,
                           len);
    case MF_CALL_BATCH:
        return batch((const void *)args, args + row->args_size, out, len);
    case MF_CALL_VM_START:
    case MF_CALL_VM_PAUSE:
    case MF_CALL_VM_RESUME:
    case MF_CALL_VM_SHUTDOWN:
    case MF_CALL_VM_DESTROY:
    case MF_CALL_VM_DELETE:
    case MF_CALL_VM_INFO:
        return vm_call(m->nr, ((const struct mf_args_vm *)(const void *)args)->vm, out, len);
    default:
        return MF_OK; /* a reply of zeroes: nothing loaded, nothing to tell */
    }
}

/* ---- faults */

/* 1: handled, no ordinary reply. */
static int misbehave(const struct mf_msg *m)
{
    uint8_t noise[512];
    struct mf_msg stray = {.magic = MF_MAGIC,
                           .nr = m->nr,
                           .flags = MF_MSG_REPLY,
                           .size = sizeof stray + 8,
                           .cookie = m->cookie ^ 0x5500000055u};
    uint8_t packet[sizeof stray + 8] = {0};

    die_at(m->nr);
    if (m->nr != core.fault_call || --core.fault_count > 0)
        return 0;
    core.fault_call = -1;
    if (strcmp(core.fault, "close") == 0) {
        shutdown(core.fd, SHUT_RDWR);
    } else if (strcmp(core.fault, "garbage") == 0) {
        memset(noise, 0xa5, sizeof noise);
        (void)!send(core.fd, noise, sizeof noise, MSG_NOSIGNAL);
    } else if (strcmp(core.fault, "stray") == 0) {
        memcpy(packet, &stray, sizeof stray);
        (void)!send(core.fd, packet, sizeof packet, MSG_NOSIGNAL);
    } else if (strcmp(core.fault, "short") == 0) {
        stray.cookie = m->cookie;
        (void)!send(core.fd, &stray, sizeof stray - 4, MSG_NOSIGNAL);
    }
    return 1;
}

static void serve_one(const uint8_t *in)
{
    static uint64_t out[2 * MF_MSG_MAX / 8];
    struct mf_msg m;
    uint8_t *bytes = (uint8_t *)out;
    uint32_t len = 0;

    memcpy(&m, in, sizeof m);
    if (misbehave(&m))
        return;
    struct mf_msg r = {.magic = MF_MAGIC, .nr = m.nr, .flags = MF_MSG_REPLY, .cookie = m.cookie};
    r.status = call(&m, in + sizeof m, bytes + sizeof r, &len);
    if (r.status != MF_OK) {
        len = sizeof(struct mf_error);
        memset(bytes + sizeof r, 0, len);
        snprintf((char *)bytes + sizeof r + 64, 192, "the fake core refuses");
    }
    r.size = (uint32_t)sizeof r + len;
    memcpy(bytes, &r, sizeof r);
    flush_events();
    (void)!send(core.fd, bytes, r.size, MSG_NOSIGNAL);
}

static void serve(void)
{
    static uint8_t in[MF_MSG_MAX];
    char control[256];

    for (;;) {
        struct iovec iov = {in, sizeof in};
        struct msghdr h = {.msg_iov = &iov,
                           .msg_iovlen = 1,
                           .msg_control = control,
                           .msg_controllen = sizeof control};
        ssize_t n = recvmsg(core.fd, &h, MSG_CMSG_CLOEXEC);
        if (n < (ssize_t)sizeof(struct mf_msg))
            return;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c != NULL; c = CMSG_NXTHDR(&h, c))
            for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++)
                close(((int *)(void *)CMSG_DATA(c))[i]);
        serve_one(in);
    }
}

static int listen_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0 || strlen(path) >= sizeof a.sun_path)
        return -1;
    strcpy(a.sun_path, path);
    unlink(path);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 8) != 0)
        return -1;
    return fd;
}

static void read_fault(char *text)
{
    char *kind = strtok(text, ":");
    char *nr = strtok(NULL, ":");
    char *count = strtok(NULL, ":");

    snprintf(core.fault, sizeof core.fault, "%s", kind);
    core.fault_call = nr == NULL ? -1 : atoi(nr);
    core.fault_count = count == NULL ? 1 : atoi(count);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"socket", required_argument, NULL, 's'},
                                            {"memory", required_argument, NULL, 'm'},
                                            {"fault", required_argument, NULL, 'f'},
                                            {NULL, 0, NULL, 0}};
    const char *path = NULL;
    int c;

    core.fault_call = -1;
    /* A daemon that starts the core knows nothing of faults: they come by environment. */
    if (getenv("FAKECORE_FAULT") != NULL)
        read_fault(strdup(getenv("FAKECORE_FAULT")));
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 's')
            path = optarg;
        else if (c == 'm')
            core.memory = strtoull(optarg, NULL, 10);
        else if (c == 'f')
            read_fault(optarg);
        else
            return 2;
    }
    if (getrandom(core.instance, 16, 0) != 16)
        return 1;
    int fd = path == NULL ? -1 : listen_at(path);
    if (fd < 0) {
        fprintf(stderr, "fakecore: no socket: %s\n", strerror(errno));
        return 1;
    }
    while ((core.fd = accept(fd, NULL, NULL)) >= 0) {
        serve();
        close(core.fd);
    }
    return 0;
}
