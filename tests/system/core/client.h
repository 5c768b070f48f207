/*
 * A raw hypercall client for tests, and a way to start a core of one's own: a private directory
 * with socket and log, removed at the end.
 */
#ifndef MAYFLY_TEST_CLIENT_H
#define MAYFLY_TEST_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/hypercall.h"

#define WAIT_MS 120000 /* for anything that must come: machines are slow and noisy */

struct client {
    int fd;
    uint64_t cookie;
    uint32_t flags; /* of requests */
    uint64_t cont;  /* for the next request, and what the last reply held */
    struct mf_error err;
    uint32_t reply_len;         /* of the body */
    struct mf_event events[64]; /* came while a reply was waited for */
    uint16_t event_nr[64];
    unsigned nr_events;
    _Alignas(8) uint8_t in[MF_MSG_MAX]; /* last message; the body is behind the header */
};

struct core_proc {
    pid_t pid;
    char dir[64], socket[96], log[96];
};

/* ---- the core */

/* Engine of the cores that tests start, whatever this machine has: soft unless the environment's
 * MAYFLY_TEST_ENGINE says another. A test's own --engine comes later and wins. */
const char *test_engine(void);
bool test_on_kvm(void);

/* Starts hv with these further options (NULL ends them) and waits until it is ready. */
bool core_start(struct core_proc *p, const char *memory, ...);
/* The same with the allocators and teardowns of the build tree loaded and selected. */
bool core_start_full(struct core_proc *p, const char *memory, const char *workers);
/*
 * A test's own core with all of that, and a client of it; and their end. Both give what cmocka
 * wants of a setup and a teardown: 0 when all is well.
 */
int core_open(struct core_proc *p, struct client *c, const char *memory);
int core_close(struct core_proc *p, struct client *c);
/* Asks it to end by signal, waits; its exit code, -1 when it was killed or did not end. */
int core_stop(struct core_proc *p);
void core_remove_dir(struct core_proc *p);
/* Resident memory in bytes; open file descriptors. */
uint64_t core_rss(const struct core_proc *p);
int core_fds(const struct core_proc *p);
/* True when the log holds `text`. */
bool core_log_has(const struct core_proc *p, const char *text);

/* Path of a plugin or guest of the build tree; static storage, four calls deep. */
const char *plugin_path(const char *file);
const char *guest_path(const char *file);

/* ---- calls */

bool client_open(struct client *c, const char *path);
void client_close(struct client *c);
/* Sends raw bytes as one message, with fds. */
bool client_send(struct client *c, const void *bytes, size_t n, const int *fds, unsigned nr_fds);
/* Waits for the next message. False: closed or nothing came. */
bool client_recv(struct client *c, int timeout_ms);
/* Whole call. The reply's body is then c->in + sizeof(struct mf_msg), an error in c->err. */
enum mf_status client_call(struct client *c, unsigned nr, const void *args, size_t args_len,
                           const void *tail, size_t tail_len, const int *fds, unsigned nr_fds);
const void *client_body(const struct client *c);
enum mf_status client_hello(struct client *c);
/* client_open and hello. */
bool client_connect(struct client *c, const struct core_proc *p);
/* The next event, also one that came earlier. False: none in time. */
bool client_event(struct client *c, int timeout_ms, uint16_t *nr, struct mf_event *out);

/* ---- what tests do all the time */

enum mf_status vm_new(struct client *c, const char *name, uint64_t memory, const char *teardown,
                      uint32_t flags, uint32_t *id);
enum mf_status vm_kernel(struct client *c, uint32_t id, const char *path, const char *cmdline);
enum mf_status vm_do(struct client *c, unsigned nr, uint32_t id);
/* Creates, loads, starts. */
enum mf_status vm_launch(struct client *c, const char *name, uint64_t memory, const char *guest,
                         const char *cmdline, const char *teardown, uint32_t flags, uint32_t *id);
bool vm_info(struct client *c, uint32_t id, struct mf_vm_info *out);
/* Polls until the VM is off (or in `state`). */
bool vm_wait_off(struct client *c, uint32_t id, struct mf_vm_info *out);
/* Polls until the memory of its last life is back. */
bool vm_wait_returned(struct client *c, uint32_t id, struct mf_vm_info *out);
bool vm_wait_state(struct client *c, uint32_t id, uint32_t state);
/* The console's text so far, zero terminated. */
const char *vm_console(struct client *c, uint32_t id);
/* Polls until the console holds `text`. */
bool vm_wait_console(struct client *c, uint32_t id, const char *text);
/* Deletes, polling while a worker lets go. */
enum mf_status vm_remove(struct client *c, uint32_t id);
enum mf_status strategy_load(struct client *c, const char *path);
enum mf_status select_teardown(struct client *c, uint32_t vm, const char *name);
enum mf_status select_allocator(struct client *c, const char *name);
bool heap_info(struct client *c, struct mf_reply_heap_info *out);
bool heap_audit(struct client *c, struct mf_reply_heap_audit *out);
/* No frame is in use, the table and the allocator agree. */
bool heap_is_whole(struct client *c);

#endif
