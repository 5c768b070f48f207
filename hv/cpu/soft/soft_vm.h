/*
 * What the vCPUs of a VM share in the software engine: which frames hold decoded code, notices
 * between vCPUs, and the way to be alone for an access that no host instruction does atomically.
 *
 * Code. Each vCPU decodes for itself. A frame that any of them has decoded from is *watched*: no
 * vCPU writes to it past the slow path, which tells the others. A vCPU that begins to watch a frame
 * cannot know at once that no other one still holds a direct right to write: until all of them have
 * looked (`settled`), it compares the bytes whenever it enters code of that frame.
 */
#ifndef MAYFLY_CPU_SOFT_VM_H
#define MAYFLY_CPU_SOFT_VM_H

#include <pthread.h>

#include "hv/cpu/soft/cpu.h"

/* cpu->told: what a vCPU has to look at before its next block. */
#define TOLD_CODE  1u /* code was written: told_gfn */
#define TOLD_WATCH 2u /* a frame began to be watched: direct writes to it end */
#define TOLD_STOP  4u /* another vCPU wants to be alone */

#define CODE_MAP_BITS 20u /* frames beyond 4 GiB share bits with those below */
#define CODE_MAP_LIST 64u

struct soft_vm {
    uint64_t serial;            /* of this VM, never again */
    bool smp;                   /* more than one vCPU; fixed before the first one runs */
    _Atomic uint64_t watch_gen; /* counts frames that began to be watched */

    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct cpu *cpus;  /* under lock; read without by vCPUs that run: it does not change then */
    struct cpu *alone; /* under lock */
    uint64_t watched[CODE_MAP_LIST]; /* under lock: which bits to clear, while they are few */
    unsigned nr_watched;             /* under lock */

    struct soft_vm *next_free;
    _Atomic uint64_t map[(1u << CODE_MAP_BITS) / 64];
};

/* NULL: no memory. */
struct soft_vm *soft_vm_get(void);
void soft_vm_put(struct soft_vm *s);
void soft_vm_add(struct soft_vm *s, struct cpu *c);
void soft_vm_remove(struct soft_vm *s, struct cpu *c);

static inline bool soft_vm_watches(const struct soft_vm *s, uint64_t gfn)
{
    uint64_t n = gfn & ((1u << CODE_MAP_BITS) - 1);

    return atomic_load_explicit(&s->map[n / 64], memory_order_acquire) >> (n % 64) & 1;
}

/* `c` is about to decode from the frame. Returns the generation for soft_vm_settled. */
uint64_t soft_vm_watch(struct cpu *c, uint64_t gfn);
/* No vCPU has a direct right to write from before that generation. */
bool soft_vm_settled(const struct cpu *c, uint64_t gen);
/* A watched frame was written, by `by` (which knows) or by nobody of the VM (NULL). */
void soft_vm_written(struct soft_vm *s, const struct cpu *by, uint64_t gfn);

/* Around run(). */
void soft_vm_enter(struct cpu *c);
void soft_vm_leave(struct cpu *c);
/* Does what c->told says. */
void soft_vm_serve(struct cpu *c);

/* Between these no other vCPU of the VM is inside an instruction. */
void soft_vm_alone(struct cpu *c);
void soft_vm_together(struct cpu *c);

#endif
