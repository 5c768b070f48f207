/*
 * A control call from its request to its reply.
 *
 * The handler returns MF_OK with `reply` filled, an error with `err` filled, or has not finished:
 * MF_AGAIN (call it again in the next round of the loop) or MF_BLOCKED (call it again when
 * something happened). What it keeps meanwhile is in `u`; `resumed` tells the later calls from the
 * first, and `abandon` is called when nobody waits any more.
 */
#ifndef MAYFLY_CALL_CALL_H
#define MAYFLY_CALL_CALL_H

#include "hv/call/check.h"
#include "hv/call/core.h"

#define CALL_BODY_MAX (MF_MSG_MAX - sizeof(struct mf_msg))

/* What a connection keeps between calls and handlers may change. */
struct call_session {
    bool hello;
    uint32_t mask; /* of events */
};

struct call {
    struct core *core;
    struct call_session *session;
    struct call_request req;
    int *fds; /* not yet taken are -1 when taken; whoever made the call closes the rest */
    unsigned nr_fds, next_fd;
    uint8_t *reply; /* 8-byte aligned, the body without header */
    uint32_t reply_len, reply_cap;
    struct mf_error err;
    uint32_t *last_created; /* of the batch, NULL outside one */
    bool resumed;
    void (*abandon)(struct call *c);
    union {
        struct heap_audit audit;
        struct {
            struct boot_read read;
            struct boot_set *set; /* NULL: none yet, or given to the VM */
            unsigned have;        /* modules in it */
            int fd;               /* being read; -1: none */
            uint64_t began;
            uint32_t vm;
        } image;
        struct strategy *strategy;
        struct batch *batch;
        bool started;
        struct {
            bool asked;
            uint32_t vm;
        } part;
    } u;
};

/* Runs (or resumes) the handler of c->req. */
enum mf_status call_run(struct call *c);
/* Ends a call that has not finished. */
void call_abandon(struct call *c);

/* The reply's body as `type`, zeroed, its length set to it. */
void *call_reply(struct call *c, uint32_t bytes);
/* Takes the next fd; -1 when there is none left. The caller owns it. */
int call_take_fd(struct call *c);
/* The VM that `id` names, or NULL with c->err filled (MF_E_NOT_FOUND). */
struct vm *call_vm(struct call *c, uint32_t id);

/* One for each call of the control door; in host.c, vms.c, part.c, strategies.c and batch.c. */
#define CALL_HANDLERS(X)                                                                           \
    X(HELLO)                                                                                       \
    X(HOST_INFO)                                                                                   \
    X(HEAP_INFO)                                                                                   \
    X(HEAP_AUDIT)                                                                                  \
    X(HEAP_SCRUB)                                                                                  \
    X(HEAP_OFFLINE)                                                                                \
    X(HEAP_ONLINE)                                                                                 \
    X(VM_CREATE)                                                                                   \
    X(VM_IMAGE)                                                                                    \
    X(VM_START)                                                                                    \
    X(VM_PAUSE)                                                                                    \
    X(VM_RESUME)                                                                                   \
    X(VM_RESET)                                                                                    \
    X(VM_SHUTDOWN)                                                                                 \
    X(VM_DESTROY)                                                                                  \
    X(VM_DELETE)                                                                                   \
    X(VM_LIST)                                                                                     \
    X(VM_INFO)                                                                                     \
    X(CONSOLE_READ)                                                                                \
    X(CONSOLE_WRITE)                                                                               \
    X(VM_BALLOON)                                                                                  \
    X(VM_DIRTY_LOG)                                                                                \
    X(VM_DIRTY_FETCH)                                                                              \
    X(STRATEGY_LOAD)                                                                               \
    X(STRATEGY_UNLOAD)                                                                             \
    X(STRATEGY_LIST)                                                                               \
    X(ALLOCATOR_SELECT)                                                                            \
    X(TEARDOWN_SELECT)                                                                             \
    X(BATCH)                                                                                       \
    X(SUBSCRIBE)                                                                                   \
    X(CORE_SHUTDOWN)

#define X(sym) enum mf_status handle_##sym(struct call *c);
CALL_HANDLERS(X)
#undef X

#endif
