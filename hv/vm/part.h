/*
 * Work on a part of a VM's memory while it lives: a range is given back to the heap or backed
 * again (balloon), written frames are logged. All of it is done by the VM's job, in bounded steps;
 * one request at a time, in turn: the one of the control door and one of each vCPU.
 *
 *   ask (control thread, or a vCPU by its hypercall)  ->  steps of the job  ->  result
 *
 * A request that is given back goes through these phases, chunk by chunk:
 *
 *   EDGES   large leaves over the chunk's ends are split
 *   ZAP     the VM's teardown strategy takes the entries out, in every root
 *   FLUSH   the engine is told; the frames go to the heap when no vCPU can hold a translation
 */
#ifndef MAYFLY_VM_PART_H
#define MAYFLY_VM_PART_H

#include <stdbool.h>

#include "hv/mm/teardown.h"
#include "proto/hypercall.h"

#define VM_PART_CHUNK      16384u /* frames given back between two flushes */
#define VM_PART_TAKE_STEP  128u   /* frames backed in a step */
#define VM_PART_FETCH_STEP 2048u  /* frames harvested in a step */
#define VM_PART_TRIES      4u     /* strategies that may fail on a chunk */

struct vm;

enum vm_part_op { VM_PART_GIVE, VM_PART_TAKE, VM_PART_LOG_START, VM_PART_LOG_FETCH };
enum vm_part_state { VM_PART_FREE, VM_PART_ASKED, VM_PART_ON, VM_PART_DONE };

/* Under vm->lock. */
struct vm_part_request {
    enum vm_part_state state;
    enum vm_part_op op;
    uint64_t first, frames;
    uint64_t began;
    bool orphan; /* nobody waits any more */
    enum mf_status status;
    struct mf_reply_balloon result;
};

enum vm_part_phase { VM_PART_EDGES, VM_PART_ZAP, VM_PART_FLUSH };

struct vm_part {
    /* Under vm->lock. */
    struct vm_part_request control;
    unsigned asked;  /* requests that wait */
    bool zapping;    /* vm->zap and vm->teardown are in use */
    uint64_t *dirty; /* a bit for each frame of RAM, regions one behind the other; NULL: no log */
    uint64_t given, taken;

    /* Of the job. */
    struct vm_part_request *on; /* under work */
    unsigned turn;              /* who is asked next: 0 control, then the vCPUs */
    enum vm_part_phase phase;
    unsigned root, tries;
    enum mf_status failed;     /* to be said after the flush */
    uint64_t at, chunk, epoch; /* chunk: first frame behind the one under work */
    struct strategy *other;    /* for this chunk, in the place of one that failed; one use held */
};

/* ---- control thread */

/*
 * MF_BLOCKED: asked; ask vm_part_result. Checks state and range: MF_E_STATE, MF_E_RANGE; MF_E_BUSY
 * while another one's request is under way.
 */
enum mf_status vm_part_ask(struct vm *vm, enum vm_part_op op, uint64_t first, uint64_t frames,
                           struct mf_error *e);
/* The same with vm->lock. */
enum mf_status vm_part_ask_locked(struct vm *vm, enum vm_part_op op, uint64_t first,
                                  uint64_t frames, struct mf_error *e);
/* MF_BLOCKED: not finished. Otherwise the request is over. */
enum mf_status vm_part_result(struct vm *vm, struct mf_reply_balloon *out, struct mf_error *e);
/* Nobody waits for the request any more: it goes on, its result is dropped. */
void vm_part_orphan(struct vm *vm);

/* MF_BLOCKED as vm_part_ask; MF_E_NOT_SUPPORTED: the engine cannot; MF_E_STATE: it is on. */
enum mf_status vm_dirty_start(struct vm *vm, struct mf_error *e);
enum mf_status vm_dirty_stop(struct vm *vm, struct mf_error *e);
/* After a fetch: moves the bits of the range to `bits`; returns how many are set. */
uint64_t vm_dirty_take(struct vm *vm, uint64_t first, uint64_t frames, uint64_t *bits);

/* ---- a vCPU's thread */

/* MF_AGAIN: not finished; the same again, later. MF_OK: *frames as mf_reply_balloon says. */
enum mf_status vm_part_guest(struct vm *vm, unsigned vcpu, enum vm_part_op op, uint64_t first,
                             uint64_t frames, uint64_t *frames_done);

/* ---- the VM's job */

/* One step. True: more to do. */
bool vm_part_step(struct vm *vm);
/* A chunk is being zapped: the VM's strategy must not change now. */
static inline bool vm_part_zapping(const struct vm_part *p)
{
    return p->zapping;
}
/* The life is over: what is under way is given up, who waits is told, the log is gone. */
void vm_part_abort(struct vm *vm);
/* The VM is being freed. */
void vm_part_fini(struct vm_part *p);

/* ---- between part.c and dirty.c, on the job's thread */

/* RAM counted through, regions one behind the other: the number of guest frame g, which is RAM. */
uint64_t vm_ram_index(struct vm *vm, uint64_t g);
uint64_t vm_ram_frames(struct vm *vm);
/*
 * A bounded step of clearing all marks (start) or harvesting a range (fetch), then of waiting for
 * the flush; vm->part.at counts as vm_ram_index. MF_AGAIN: more.
 */
enum mf_status vm_dirty_step(struct vm *vm, const struct vm_part_request *r);
/* Frames whose content went. */
void vm_dirty_mark(struct vm *vm, uint64_t first, uint64_t frames);
/* MF_OK: every vCPU has passed `epoch`. MF_AGAIN: not yet; those inside are asked to leave. */
enum mf_status vm_part_flush(struct vm *vm, uint64_t epoch);

#endif
