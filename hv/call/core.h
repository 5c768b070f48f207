/*
 * The core as its doors see it: machine memory, strategies, VMs, the queue of events.
 */
#ifndef MAYFLY_CALL_CORE_H
#define MAYFLY_CALL_CORE_H

#include "hv/call/events.h"
#include "hv/host/arena.h"
#include "hv/vm/vm.h"

struct core {
    struct host_arena arena;
    struct heap *heap;
    struct strategies strategies;
    struct vmm vmm;
    struct event_queue events;
    uint64_t started_at;
    uint32_t cpus, workers;
    uint8_t instance[16];
    bool quit; /* control thread: ends when no VM lives any more */
};

/* Everything but the socket. Errors are logged. */
bool core_init(struct core *c, uint64_t memory, unsigned workers, struct mf_error *e);
/* VMs that still live are destroyed first, in bounded time. */
void core_fini(struct core *c);

/* Makes a loaded allocator the heap's. Errors of heap_select, MF_E_NOT_FOUND. */
enum mf_status core_select_allocator(struct core *c, const char *name, struct mf_reply_swap *r,
                                     struct mf_error *e);
/* Makes a loaded teardown strategy the default for new VMs. */
enum mf_status core_select_teardown(struct core *c, const char *name, struct mf_reply_swap *r,
                                    struct mf_error *e);
/* Destroys every VM that is not off. */
void core_destroy_all(struct core *c);
uint32_t core_live_vms(struct core *c);

/* The guest door: the same table, other rows. */
enum machine_result guest_call(struct vm *vm, unsigned vcpu, uint64_t nr, const uint64_t arg[4],
                               int64_t *result);

#endif
