/* The control door against clients that do not keep to the rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <pwd.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "client.h"

static struct core_proc core;
static struct client c;

static int setup(void **state)
{
    (void)state;
    memset(&core, 0, sizeof core);
    return core_start(&core, "64M", "--workers", "2", NULL) && client_open(&c, core.socket) ? 0
                                                                                            : -1;
}

static int teardown(void **state)
{
    (void)state;
    return core_close(&core, &c);
}

static enum mf_status host_info(struct client *cl)
{
    struct mf_args_none a = {0};

    return client_call(cl, MF_CALL_HOST_INFO, &a, sizeof a, NULL, 0, NULL, 0);
}

/* Sends a header of these values with `body` zero bytes behind and gives the reply's status. */
static enum mf_status raw(struct mf_msg m, size_t body)
{
    _Alignas(8) uint8_t buf[512] = {0};
    struct mf_msg r;

    memcpy(buf, &m, sizeof m);
    assert_true(client_send(&c, buf, sizeof m + body, NULL, 0));
    assert_true(client_recv(&c, WAIT_MS));
    memcpy(&r, c.in, sizeof r);
    assert_int_equal(r.flags, MF_MSG_REPLY);
    if (r.status)
        memcpy(&c.err, client_body(&c), sizeof c.err);
    return r.status;
}

/* Protects: nothing is answered before hello; a wrong ABI version is refused and hello may follow.
 */
static void hello_first(void **state)
{
    struct mf_args_hello a = {.abi = MF_ABI_VERSION + 1};
    const struct mf_reply_hello *r = client_body(&c);

    (void)state;
    assert_int_equal(host_info(&c), MF_E_STATE);
    assert_int_equal(vm_do(&c, MF_CALL_VM_DESTROY, 1), MF_E_STATE);
    assert_int_equal(client_call(&c, MF_CALL_HELLO, &a, sizeof a, NULL, 0, NULL, 0), MF_E_ABI);
    assert_string_equal(c.err.field, "abi");
    assert_int_equal(host_info(&c), MF_E_STATE);
    assert_int_equal(client_hello(&c), MF_OK);
    assert_int_equal(r->abi, MF_ABI_VERSION);
    assert_int_equal(r->pid, core.pid);
    assert_int_equal(host_info(&c), MF_OK);
}

/* Protects: each kind of malformed message gets its own error, and the connection goes on. */
static void malformed_messages(void **state)
{
    struct mf_msg m = {.magic = MF_MAGIC, .nr = MF_CALL_HOST_INFO, .size = sizeof m + 8};
    struct mf_msg x;

    (void)state;
    assert_int_equal(client_hello(&c), MF_OK);
    assert_int_equal(raw(m, 8), MF_OK);
    x = m;
    x.magic = 1;
    assert_int_equal(raw(x, 8), MF_E_MALFORMED);
    assert_string_equal(c.err.field, "magic");
    assert_int_equal(raw(m, 7), MF_E_SIZE);
    x = m;
    x.size = sizeof m + 16;
    assert_int_equal(raw(x, 16), MF_E_SIZE);
    x = m;
    x.size = UINT32_MAX;
    assert_int_equal(raw(x, 8), MF_E_SIZE);
    x = m;
    x.flags = 0x80;
    assert_int_equal(raw(x, 8), MF_E_RESERVED);
    assert_string_equal(c.err.field, "flags");
    x = m;
    x.nr = 999;
    assert_int_equal(raw(x, 8), MF_E_UNKNOWN_CALL);
    x.nr = MF_CALL_GUEST_SHUTDOWN;
    assert_int_equal(raw(x, 8), MF_E_PERM);
    /* shorter than a header */
    assert_true(client_send(&c, &m, 5, NULL, 0));
    assert_true(client_recv(&c, WAIT_MS));
    assert_int_equal(((struct mf_msg *)c.in)->status, MF_E_MALFORMED);
    assert_int_equal(host_info(&c), MF_OK);
}

/* Protects: a message larger than the limit is refused whole, the next one is read right. */
static void oversized_message(void **state)
{
    uint8_t *big = calloc(1, MF_MSG_MAX + 4096);
    struct mf_msg m = {.magic = MF_MAGIC, .nr = MF_CALL_BATCH, .size = MF_MSG_MAX + 4096};

    (void)state;
    assert_int_equal(client_hello(&c), MF_OK);
    memcpy(big, &m, sizeof m);
    assert_true(client_send(&c, big, MF_MSG_MAX + 4096, NULL, 0));
    assert_true(client_recv(&c, WAIT_MS));
    assert_int_equal(((struct mf_msg *)c.in)->status, MF_E_SIZE);
    assert_int_equal(host_info(&c), MF_OK);
    free(big);
}

/* Protects: file descriptors that a call does not take are closed, however many come. */
static void unexpected_fds(void **state)
{
    struct mf_args_none a = {0};
    int fds[12], before;

    (void)state;
    assert_int_equal(client_hello(&c), MF_OK);
    for (unsigned i = 0; i < 12; i++)
        fds[i] = 0;
    before = core_fds(&core);
    for (unsigned n = 1; n <= 12; n++) {
        assert_int_equal(client_call(&c, MF_CALL_HOST_INFO, &a, sizeof a, NULL, 0, fds, n),
                         MF_E_MALFORMED);
        assert_string_equal(c.err.field, "fds");
    }
    assert_int_equal(strategy_load(&c, "/dev/null"), MF_E_PLUGIN);
    assert_int_equal(core_fds(&core), before);
    assert_int_equal(client_call(&c, MF_CALL_STRATEGY_LOAD, &a, sizeof a, NULL, 0, NULL, 0),
                     MF_E_MALFORMED);
}

/* Protects: ids of no VM, also 0 and the batch's placeholder outside a batch. */
static void bad_vm_ids(void **state)
{
    static const uint32_t ids[] = {0, 1, 77, 65536, MF_VM_LAST_CREATED};
    static const unsigned calls[] = {MF_CALL_VM_START, MF_CALL_VM_PAUSE,   MF_CALL_VM_RESUME,
                                     MF_CALL_VM_RESET, MF_CALL_VM_DESTROY, MF_CALL_VM_DELETE,
                                     MF_CALL_VM_INFO};

    (void)state;
    assert_int_equal(client_hello(&c), MF_OK);
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++)
        for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++) {
            assert_int_equal(vm_do(&c, calls[k], ids[i]), MF_E_NOT_FOUND);
            assert_string_equal(c.err.field, "vm");
        }
}

/* Protects: limits of a VM's configuration are checked by field, and nothing is left behind. */
static void bad_configurations(void **state)
{
    static const struct {
        uint64_t memory;
        uint32_t vcpus, engine, flags, weight, cap;
        const char *field;
        enum mf_status st;
    } rows[] = {
        {0, 1, 0, 0, 0, 0, "memory", MF_E_RANGE},
        {512, 1, 0, 0, 0, 0, "memory", MF_E_RANGE},
        {MF_RAM_MIN + 1, 1, 0, 0, 0, 0, "memory", MF_E_ALIGN},
        {UINT64_C(65) << 20, 1, 0, 0, 0, 0, "memory", MF_E_RANGE},
        {UINT64_C(1) << 63, 1, 0, 0, 0, 0, "memory", MF_E_RANGE},
        {UINT64_MAX, 1, 0, 0, 0, 0, "memory", MF_E_RANGE},
        {1 << 20, 0, 0, 0, 0, 0, "vcpus", MF_E_RANGE},
        {1 << 20, 9999, 0, 0, 0, 0, "vcpus", MF_E_RANGE},
        {1 << 20, 1, 9, 0, 0, 0, "engine", MF_E_RANGE},
        {1 << 20, 1, 0, 0x80, 0, 0, "flags", MF_E_RESERVED},
        {1 << 20, 1, 0, 0, 10001, 0, "weight", MF_E_RANGE},
        {1 << 20, 1, 0, 0, 0, 101, "cap", MF_E_RANGE},
    };
    const struct mf_reply_host_info *h = client_body(&c);

    (void)state;
    assert_int_equal(client_hello(&c), MF_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct mf_args_vm_create a = {.name = "x",
                                      .memory = rows[i].memory,
                                      .vcpus = rows[i].vcpus,
                                      .engine = rows[i].engine,
                                      .flags = rows[i].flags,
                                      .weight = rows[i].weight,
                                      .cap = rows[i].cap};

        assert_int_equal(client_call(&c, MF_CALL_VM_CREATE, &a, sizeof a, NULL, 0, NULL, 0),
                         rows[i].st);
        assert_string_equal(c.err.field, rows[i].field);
        assert_true(c.err.text[0]);
    }
    assert_int_equal(host_info(&c), MF_OK);
    assert_int_equal(h->vms, 0);
}

/* Protects: without plugins the core says which it lacks, and works once it has them. */
static void no_strategies(void **state)
{
    uint32_t id;

    (void)state;
    assert_int_equal(client_hello(&c), MF_OK);
    assert_int_equal(vm_new(&c, "a", 1 << 20, NULL, 0, &id), MF_E_NO_TEARDOWN);
    assert_int_equal(vm_new(&c, "a", 1 << 20, "single", 0, &id), MF_E_NO_TEARDOWN);
    assert_int_equal(strategy_load(&c, plugin_path("teardown_single.so")), MF_OK);
    assert_int_equal(select_teardown(&c, 0, "single"), MF_OK);
    assert_int_equal(vm_new(&c, "a", 4 << 20, NULL, 0, &id), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_START, id), MF_E_STATE);
    assert_string_equal(c.err.field, "kernel");
    assert_int_equal(vm_kernel(&c, id, guest_path("hello.elf"), ""), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_START, id), MF_E_NO_ALLOCATOR);
    assert_int_equal(select_allocator(&c, "buddy-lazy"), MF_E_NOT_FOUND);
    assert_int_equal(strategy_load(&c, plugin_path("allocator_buddy-lazy.so")), MF_OK);
    assert_int_equal(select_allocator(&c, "buddy-lazy"), MF_OK);
    assert_int_equal(vm_do(&c, MF_CALL_VM_START, id), MF_OK);
    struct mf_vm_info info;
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_POWEROFF);
}

/* ---- batch */

static uint8_t batch[MF_MSG_MAX];
static uint32_t batch_len, batch_count;

static void batch_add(unsigned nr, const void *args, uint32_t n)
{
    struct mf_msg m = {
        .magic = MF_MAGIC, .nr = (uint16_t)nr, .size = (uint32_t)sizeof m + n, .cookie = 100};

    memcpy(batch + batch_len, &m, sizeof m);
    memcpy(batch + batch_len + sizeof m, args, n);
    batch_len += (m.size + 7u) & ~7u;
    batch_count++;
}

static enum mf_status batch_run(const int *fds, unsigned nr_fds)
{
    struct mf_args_batch a = {.count = batch_count};
    enum mf_status st = client_call(&c, MF_CALL_BATCH, &a, sizeof a, batch, batch_len, fds, nr_fds);

    batch_len = batch_count = 0;
    return st;
}

/* Status of the n-th reply of a batch. */
static enum mf_status batch_status(unsigned n)
{
    const uint8_t *p = (const uint8_t *)client_body(&c) + sizeof(struct mf_reply_batch);
    struct mf_msg m;

    for (;; n--, p += (m.size + 7u) & ~7u) {
        memcpy(&m, p, sizeof m);
        assert_int_equal(m.magic, MF_MAGIC);
        assert_int_equal(m.cookie, 100);
        if (!n)
            return m.status;
    }
}

static void load_strategies(void)
{
    assert_int_equal(client_hello(&c), MF_OK);
    assert_int_equal(strategy_load(&c, plugin_path("teardown_single.so")), MF_OK);
    assert_int_equal(select_teardown(&c, 0, "single"), MF_OK);
    assert_int_equal(strategy_load(&c, plugin_path("allocator_buddy-lazy.so")), MF_OK);
    assert_int_equal(select_allocator(&c, "buddy-lazy"), MF_OK);
}

/* Protects: create, image and start of one VM in one message; its id is known inside the batch. */
static void batch_launches(void **state)
{
    struct mf_args_vm_create create = {.name = "b", .memory = 4 << 20, .vcpus = 1};
    struct mf_args_vm_image image = {.vm = MF_VM_LAST_CREATED};
    struct mf_args_vm vm = {.vm = MF_VM_LAST_CREATED};
    const struct mf_reply_batch *r = client_body(&c);
    struct mf_vm_info info;
    int fd = open(guest_path("hello.elf"), O_RDONLY);
    int before;

    (void)state;
    load_strategies();
    before = core_fds(&core);
    batch_add(MF_CALL_VM_CREATE, &create, sizeof create);
    batch_add(MF_CALL_VM_IMAGE, &image, sizeof image);
    batch_add(MF_CALL_VM_START, &vm, sizeof vm);
    assert_int_equal(batch_run(&fd, 1), MF_OK);
    assert_int_equal(r->done, 3);
    uint32_t id =
        ((const struct mf_reply_vm *)((const uint8_t *)(r + 1) + sizeof(struct mf_msg)))->vm;
    assert_true(vm_wait_off(&c, id, &info));
    assert_int_equal(info.end.reason, MF_END_POWEROFF);
    assert_int_equal(core_fds(&core), before);
    close(fd);
}

/* Protects: a batch stops at the first failure, says so, and closes the fds nobody took. */
static void batch_stops(void **state)
{
    struct mf_args_none none = {0};
    struct mf_args_vm vm = {.vm = 4242};
    struct mf_args_batch inner = {.count = 1};
    const struct mf_reply_batch *r = client_body(&c);
    int fds[2] = {0, 0}, before;

    (void)state;
    assert_int_equal(client_hello(&c), MF_OK);
    before = core_fds(&core);
    batch_add(MF_CALL_HOST_INFO, &none, sizeof none);
    batch_add(MF_CALL_VM_START, &vm, sizeof vm);
    batch_add(MF_CALL_HOST_INFO, &none, sizeof none);
    assert_int_equal(batch_run(fds, 2), MF_OK);
    assert_int_equal(r->done, 1);
    assert_int_equal(batch_status(0), MF_OK);
    assert_int_equal(batch_status(1), MF_E_NOT_FOUND);
    assert_int_equal(core_fds(&core), before);
    batch_add(MF_CALL_BATCH, &inner, sizeof inner);
    assert_int_equal(batch_run(NULL, 0), MF_OK);
    assert_int_equal(r->done, 0);
    assert_int_equal(batch_status(0), MF_E_RANGE);
    /* more calls announced than there are; too many; none */
    batch_add(MF_CALL_HOST_INFO, &none, sizeof none);
    batch_count = 3;
    assert_int_equal(batch_run(NULL, 0), MF_OK);
    assert_int_equal(r->done, 1);
    batch_count = 65;
    assert_int_equal(batch_run(NULL, 0), MF_E_RANGE);
    assert_string_equal(c.err.field, "count");
    assert_int_equal(batch_run(NULL, 0), MF_E_RANGE);
}

/* Protects: replies that do not fit end the batch before the call that has no room. */
static void batch_overflow(void **state)
{
    struct mf_args_none none = {0};
    const struct mf_reply_batch *r = client_body(&c);

    (void)state;
    assert_int_equal(client_hello(&c), MF_OK);
    for (unsigned i = 0; i < 64; i++)
        batch_add(MF_CALL_STRATEGY_LIST, &none, sizeof none);
    assert_int_equal(batch_run(NULL, 0), MF_OK);
    assert_int_equal(r->done, 64);
}

/* ---- events */

/* Protects: a subscriber sees the whole life of a VM in order, with the end last. */
static void events_of_a_life(void **state)
{
    static const uint32_t path[][2] = {{MF_VM_SHUTOFF, MF_VM_STARTING},
                                       {MF_VM_STARTING, MF_VM_RUNNING},
                                       {MF_VM_RUNNING, MF_VM_STOPPING},
                                       {MF_VM_STOPPING, MF_VM_SHUTOFF}};
    struct mf_args_subscribe s = {.mask = 1u << MF_EVENT_VM_STATE | 1u << MF_EVENT_VM_ENDED};
    struct mf_event e;
    uint64_t seq = 0;
    uint16_t nr;
    uint32_t id;

    (void)state;
    load_strategies();
    assert_int_equal(client_call(&c, MF_CALL_SUBSCRIBE, &s, sizeof s, NULL, 0, NULL, 0), MF_OK);
    assert_int_equal(vm_launch(&c, "e", 4 << 20, "hello.elf", "", NULL, 0, &id), MF_OK);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(client_event(&c, WAIT_MS, &nr, &e));
        assert_int_equal(nr, MF_EVENT_VM_STATE);
        assert_int_equal(e.vm, id);
        assert_int_equal(e.a, path[i][0]);
        assert_int_equal(e.b, path[i][1]);
        assert_true(e.seq == ++seq);
    }
    assert_true(client_event(&c, WAIT_MS, &nr, &e));
    assert_int_equal(nr, MF_EVENT_VM_ENDED);
    assert_int_equal(e.a, MF_END_POWEROFF);
    s.mask = 1;
    assert_int_equal(client_call(&c, MF_CALL_SUBSCRIBE, &s, sizeof s, NULL, 0, NULL, 0),
                     MF_E_RANGE);
}

/* The last state event about `id` among those that came before the last answer, and drops them. */
static uint32_t told_moves(uint32_t id, uint32_t before)
{
    for (unsigned i = 0; i < c.nr_events; i++)
        if (c.event_nr[i] == MF_EVENT_VM_STATE && c.events[i].vm == id) {
            assert_int_equal(c.events[i].moves, before + 1);
            before = c.events[i].moves;
        }
    c.nr_events = 0;
    return before;
}

/*
 * Protects: an answer never overtakes an event. Whatever an answer knows of a VM's state was told
 * before it, from the subscription on, at whatever moment of the VM's life it is asked.
 */
static void answers_come_behind_events(void **state)
{
    struct mf_args_subscribe s = {.mask = 1u << MF_EVENT_VM_STATE};
    struct mf_vm_info info;
    uint32_t id, told;

    (void)state;
    load_strategies();
    assert_int_equal(client_call(&c, MF_CALL_SUBSCRIBE, &s, sizeof s, NULL, 0, NULL, 0), MF_OK);
    for (unsigned life = 0; life < 100; life++) {
        c.nr_events = 0;
        assert_int_equal(vm_launch(&c, "e", 4 << 20, "hello.elf", "", NULL, 0, &id), MF_OK);
        told = told_moves(id, 0);
        assert_true(told >= 1);
        do {
            assert_true(vm_info(&c, id, &info));
            told = told_moves(id, told);
            assert_true(told >= info.moves);
            if (info.moves == told)
                assert_true(info.state != MF_VM_SHUTOFF || info.end.reason == MF_END_POWEROFF);
        } while (info.state != MF_VM_SHUTOFF);
        assert_int_equal(vm_remove(&c, id), MF_OK);
    }
}

/* Protects: a subscriber that does not read loses events and is told how many; others go on. */
static void slow_reader(void **state)
{
    struct mf_args_subscribe s = {.mask = 1u << MF_EVENT_STRATEGY};
    struct client slow;
    struct mf_event e;
    uint64_t got = 0, lost = 0, want = 0;
    uint16_t nr;

    (void)state;
    load_strategies();
    assert_int_equal(strategy_load(&c, plugin_path("teardown_scan.so")), MF_OK);
    assert_true(client_connect(&slow, &core));
    assert_int_equal(client_call(&slow, MF_CALL_SUBSCRIBE, &s, sizeof s, NULL, 0, NULL, 0), MF_OK);
    for (unsigned i = 0; i < 6000; i++, want++)
        assert_int_equal(select_teardown(&c, 0, i % 2 ? "single" : "scan"), MF_OK);
    while (got + lost < want && client_event(&slow, WAIT_MS, &nr, &e)) {
        if (nr == MF_EVENT_LOST)
            lost += e.a;
        else
            got++;
    }
    assert_int_equal(got + lost, want);
    assert_true(lost > 0);
    assert_int_equal(host_info(&slow), MF_OK);
    client_close(&slow);
}

/* Protects: a client that sends and never reads replies blocks itself only. */
static void reader_that_never_reads(void **state)
{
    struct mf_msg m = {.magic = MF_MAGIC, .nr = MF_CALL_STRATEGY_LIST, .size = sizeof m + 8};
    uint8_t buf[sizeof m + 8] = {0};
    struct client deaf;
    unsigned sent = 0;

    (void)state;
    load_strategies();
    assert_true(client_connect(&deaf, &core));
    memcpy(buf, &m, sizeof m);
    while (sent < 100000 &&
           send(deaf.fd, buf, sizeof buf, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof buf)
        sent++;
    assert_true(sent < 100000);
    assert_int_equal(host_info(&c), MF_OK);
    client_close(&deaf);
    assert_int_equal(host_info(&c), MF_OK);
}

/* Protects: with MF_MSG_NO_CONT a long call comes back in pieces; a wrong continuation is refused.
 */
static void continuations(void **state)
{
    struct mf_args_none a = {0};
    enum mf_status st;
    unsigned rounds = 0;

    (void)state;
    load_strategies();
    c.flags = MF_MSG_NO_CONT;
    while ((st = client_call(&c, MF_CALL_HEAP_AUDIT, &a, sizeof a, NULL, 0, NULL, 0)) == MF_AGAIN) {
        assert_true(c.cont != 0);
        rounds++;
    }
    assert_int_equal(st, MF_OK);
    c.cont = 12345;
    assert_int_equal(client_call(&c, MF_CALL_HEAP_AUDIT, &a, sizeof a, NULL, 0, NULL, 0),
                     MF_E_RANGE);
    assert_string_equal(c.err.field, "cont");
    c.flags = 0;
    c.cont = 0;
    assert_true(heap_is_whole(&c));
}

/* ---- ownership of the socket */

/* Protects: another user's process cannot give orders even when it can reach the socket. */
static void wrong_user(void **state)
{
    struct passwd *nobody = getpwnam("nobody");
    int status;
    pid_t pid;

    (void)state;
    if (geteuid() != 0 || !nobody)
        skip();
    assert_int_equal(chmod(core.dir, 0755), 0);
    assert_int_equal(chmod(core.socket, 0666), 0);
    pid = fork();
    if (pid == 0) {
        struct mf_args_hello a = {.abi = MF_ABI_VERSION};
        static struct client other;
        struct mf_msg m = {.magic = MF_MAGIC, .size = sizeof m + sizeof a};
        uint8_t buf[sizeof m + sizeof a];

        if (setgid(nobody->pw_gid) || setuid(nobody->pw_uid) || !client_open(&other, core.socket))
            _exit(2);
        memcpy(buf, &m, sizeof m);
        memcpy(buf + sizeof m, &a, sizeof a);
        client_send(&other, buf, sizeof buf, NULL, 0);
        /* One refusal, then the end of the connection. */
        if (!client_recv(&other, WAIT_MS) || ((struct mf_msg *)other.in)->status != MF_E_PERM)
            _exit(3);
        _exit(client_recv(&other, WAIT_MS) ? 4 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(client_hello(&c), MF_OK);
}

/* Protects: a second core on the same socket fails, says who holds it, and harms nothing. */
static void second_start(void **state)
{
    struct core_proc second = core;
    int status;

    (void)state;
    second.pid = 0;
    snprintf(second.log, sizeof second.log, "%s/second.log", core.dir);
    assert_false(core_start(&second, "64M", NULL));
    assert_int_equal(waitpid(second.pid, &status, 0), second.pid);
    assert_int_equal(WEXITSTATUS(status), 1);
    char who[64];
    snprintf(who, sizeof who, "pid %d", (int)core.pid);
    assert_true(core_log_has(&second, who));
    assert_int_equal(client_hello(&c), MF_OK);
}

/* Protects: the socket that a killed core left is replaced; a file in its place is not touched. */
static void stale_socket(void **state)
{
    int status, fd;

    (void)state;
    client_close(&c);
    kill(core.pid, SIGKILL);
    waitpid(core.pid, &status, 0);
    assert_int_equal(access(core.socket, F_OK), 0);
    assert_true(core_start(&core, "64M", NULL));
    assert_true(client_connect(&c, &core));
    client_close(&c);
    assert_int_equal(core_stop(&core), 0);
    assert_int_not_equal(access(core.socket, F_OK), 0);
    fd = open(core.socket, O_CREAT | O_WRONLY, 0600);
    close(fd);
    assert_false(core_start(&core, "64M", NULL));
    assert_int_equal(waitpid(core.pid, &status, 0), core.pid);
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_int_equal(access(core.socket, F_OK), 0);
    unlink(core.socket);
    assert_true(core_start(&core, "64M", NULL));
    assert_true(client_open(&c, core.socket));
}

/* Protects: shutdown by call: refused while VMs live, forced it destroys them and ends. */
static void core_shutdown(void **state)
{
    struct mf_args_core_shutdown a = {0};
    uint32_t id;
    int status;

    (void)state;
    load_strategies();
    assert_int_equal(vm_launch(&c, "l", 4 << 20, "loop.elf", "", NULL, 0, &id), MF_OK);
    assert_int_equal(client_call(&c, MF_CALL_CORE_SHUTDOWN, &a, sizeof a, NULL, 0, NULL, 0),
                     MF_E_STATE);
    a.force = 2;
    assert_int_equal(client_call(&c, MF_CALL_CORE_SHUTDOWN, &a, sizeof a, NULL, 0, NULL, 0),
                     MF_E_RANGE);
    a.force = 1;
    assert_int_equal(client_call(&c, MF_CALL_CORE_SHUTDOWN, &a, sizeof a, NULL, 0, NULL, 0), MF_OK);
    assert_int_equal(waitpid(core.pid, &status, 0), core.pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    client_close(&c);
    assert_true(core_start(&core, "64M", NULL));
    assert_true(client_open(&c, core.socket));
}

/* Protects: SIGTERM with a VM in an endless loop ends the core cleanly. */
static void ends_by_signal(void **state)
{
    uint32_t id;

    (void)state;
    load_strategies();
    assert_int_equal(vm_launch(&c, "l", 4 << 20, "loop.elf", "", NULL, 0, &id), MF_OK);
    assert_int_equal(core_stop(&core), 0);
    assert_true(core_log_has(&core, "ended"));
    client_close(&c);
    assert_true(core_start(&core, "64M", NULL));
    assert_true(client_open(&c, core.socket));
}

/* Protects: the core runs with its system calls filtered (not in sanitizer builds). */
static void sandboxed(void **state)
{
    char path[64], line[256];
    int mode = -1;
    FILE *f;

    (void)state;
    if (getenv("MAYFLY_TEST_SANITIZED"))
        skip();
    snprintf(path, sizeof path, "/proc/%d/status", (int)core.pid);
    f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "Seccomp: %d", &mode) == 1)
            break;
    fclose(f);
    assert_int_equal(mode, 2);
}

/* Protects: memory is reserved, not committed: 90 GiB start anywhere and cost little. */
static void huge_memory(void **state)
{
    struct core_proc big;

    (void)state;
    memset(&big, 0, sizeof big);
    assert_true(core_start_full(&big, "90G", "1"));
    assert_true(core_rss(&big) < (UINT64_C(256) << 20));
    assert_true(core_log_has(&big, "buddy-lazy"));
    assert_int_equal(core_stop(&big), 0);
    core_remove_dir(&big);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(hello_first),       T(malformed_messages),
        T(oversized_message), T(unexpected_fds),
        T(bad_vm_ids),        T(bad_configurations),
        T(no_strategies),     T(batch_launches),
        T(batch_stops),       T(batch_overflow),
        T(events_of_a_life),  T(answers_come_behind_events),
        T(slow_reader),       T(continuations),
        T(wrong_user),        T(reader_that_never_reads),
        T(second_start),      T(stale_socket),
        T(core_shutdown),     T(ends_by_signal),
        T(sandboxed),         cmocka_unit_test(huge_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
