/*
 * Scheduler: a few worker threads run slices of vCPUs and background steps of VMs (loading,
 * teardown, tracking) and scrub freed memory, shared out by stride scheduling:
 *
 *   heap by pass:  [ VM a ] [ VM b ] [ background ] ...      smallest pass runs next and then
 *                      |                   |                 pass += time used / weight
 *               FIFO of its vCPUs    FIFO of VMs with a job,
 *               that can run         then reaper and scrubber
 *
 * An entity that was idle starts at the pass of the one chosen last, so that sleeping saves nothing
 * up. A VM with a cap that has used its share of a period leaves the heap until a timer puts it
 * back; what it used beyond the share counts in the next period. A halted vCPU is in no queue.
 *
 * The reaper (memory of VMs that are gone) may have all the time that nobody wants. While any vCPU
 * runs or could, a step of it is followed by a pause of SCHED_REAP_PAUSE times its length, so it
 * costs them at most a tenth of one CPU.
 *
 * Whatever works on a VM (slice or job step) is counted in `on_cpu` of its entity between take and
 * leave. A vCPU with a thread of its own (engines that want one) is run by that alone, whenever it
 * can run: the host's scheduler shares the CPUs out, weight and cap say nothing about it.
 * `stopping` lets no new slice begin, and when `on_cpu` comes down to zero the VM's job is
 * queued: teardown thus starts when nothing else touches the VM, without anybody waiting.
 */
#ifndef MAYFLY_VM_SCHED_H
#define MAYFLY_VM_SCHED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SCHED_WORKERS_MAX 256u
#define SCHED_WEIGHT      100u /* of a VM that asks for none, and of the background */
#define SCHED_PERIOD_NS   UINT64_C(20000000)
#define SCHED_REAP_PAUSE  9u

struct sched_vm;
struct sched_thread;

/* A place in the heap of things that can run. Under the scheduler's lock. */
struct sched_entity {
    uint64_t pass;
    uint32_t weight;
    int at; /* in the heap, -1: not there */
};

enum sched_cpu_state { SCHED_CPU_OFF, SCHED_CPU_QUEUED, SCHED_CPU_ON, SCHED_CPU_HALTED };

/* A vCPU as the scheduler sees it. Under the scheduler's lock. */
struct sched_cpu {
    struct sched_vm *vm;
    struct sched_cpu *next;
    enum sched_cpu_state state;
    bool woken;                  /* while on: do not sleep on the coming halt */
    struct sched_thread *thread; /* that runs it, NULL: the workers do */
};

struct sched_timer {
    uint64_t at; /* 0: not set */
    int pos;     /* in the heap of timers, -1: not there */
    struct sched_vm *vm;
};

/* A VM as the scheduler sees it. All under the scheduler's lock. */
struct sched_vm {
    struct sched_entity entity;
    struct sched_cpu *first, *last; /* vCPUs that can run */
    struct sched_cpu *cpus[64];
    unsigned nr_cpus;
    unsigned on_cpu;
    bool blocked, stopping, throttled;
    bool job_queued, job_on, job_again; /* again: asked for while it was on */
    bool timer_queued, timer_on;        /* its devices' deadline has come; is being served */
    struct sched_vm *next_job, *next_timer;
    uint32_t cap; /* percent of one CPU per vCPU, 0: none */
    uint64_t period_at, used_ns;
    uint64_t run_ns; /* CPU time, ever */
    struct sched_timer deadline, throttle, devices;
};

enum sched_after {
    SCHED_AFTER_QUEUE, /* can go on at once */
    SCHED_AFTER_HALT,  /* sleeps until woken */
    SCHED_AFTER_OFF,   /* its VM has ended */
};

/* What the scheduler runs. On worker threads, without the scheduler's lock. */
struct sched_ops {
    enum sched_after (*slice)(struct sched_cpu *c);
    /* One bounded step of the VM's job. True: more to do. */
    bool (*job)(struct sched_vm *v);
    /* The devices' deadline has passed. Short; before slices and jobs. */
    void (*timer)(struct sched_vm *v);
    /* The VM's deadline has passed; a job step follows. With the lock: only flags. */
    void (*deadline)(struct sched_vm *v);
    /* With the lock: makes a slice under way end soon. */
    void (*kick)(struct sched_cpu *c);
    /* With the lock: nothing works on the VM any more. */
    void (*idle)(struct sched_vm *v);
    /* Scrubs a bounded amount. True: more to do. */
    bool (*scrub)(void *arg);
    /* A bounded step of the reaper. True: more to do. */
    bool (*reap)(void *arg);
    uint64_t (*now_ns)(void *arg);
    void *arg;
};

struct sched {
    const struct sched_ops *ops;
    unsigned nr_workers;
    pthread_t threads[SCHED_WORKERS_MAX];
    _Atomic uint64_t slices;

    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* under lock */
    bool quit;
    unsigned sleeping;
    uint64_t vpass; /* of the entity chosen last */
    struct sched_entity **heap;
    unsigned heap_len, heap_cap;
    struct sched_entity background;
    struct sched_vm *job_first, *job_last;
    struct sched_vm *timer_first, *timer_last;
    bool scrub_wanted, scrub_on;
    bool reap_wanted, reap_on, reap_again; /* again: asked for while it was on */
    bool reap_turn;                        /* before the next job */
    struct sched_timer reap_pause;
    unsigned slices_on;
    struct sched_timer **timers;
    unsigned timers_len, timers_cap;
};

/* False when memory or a thread is missing. 0 workers: the caller drives sched_step. */
bool sched_init(struct sched *s, const struct sched_ops *ops, unsigned workers);
/* Ends the workers after the step they are in. Nothing runs any more; the rest may still be asked.
 */
void sched_stop(struct sched *s);
void sched_fini(struct sched *s);

/* Makes room for one more VM; false without memory. Each VM object does it once. */
bool sched_reserve(struct sched *s, unsigned vms);
void sched_vm_init(struct sched_vm *v, uint32_t weight, uint32_t cap);
void sched_cpu_init(struct sched_vm *v, struct sched_cpu *c);

/*
 * Threads for vCPUs. One is made idle and runs the vCPU that it is tied to, from any state of the
 * VM in which that can run. Untied before the vCPU's VM is reset or goes; the vCPU is not on then.
 * NULL: the host has no more threads.
 */
struct sched_thread *sched_thread_create(struct sched *s);
void sched_thread_destroy(struct sched_thread *t);
void sched_thread_tie(struct sched_thread *t, struct sched_cpu *c);
void sched_thread_untie(struct sched_cpu *c);

/* Lets the VM run: its first vCPU is queued, the others wait to be woken. */
void sched_vm_start(struct sched *s, struct sched_vm *v);
/* Pause and go on. After block, slices under way end soon: sched_vm_idle says when. */
void sched_vm_block(struct sched *s, struct sched_vm *v);
void sched_vm_unblock(struct sched *s, struct sched_vm *v);
/* No slice begins any more; the job is queued once nothing works on the VM. */
void sched_vm_stop(struct sched *s, struct sched_vm *v);
/* After the teardown: forgets vCPUs and timers; the VM may start again or be deleted. */
void sched_vm_reset(struct sched *s, struct sched_vm *v);
/* Nothing works on the VM and no job waits. */
bool sched_vm_idle(struct sched *s, struct sched_vm *v);
/* How many of its vCPUs are halted. */
unsigned sched_vm_halted(struct sched *s, struct sched_vm *v);
/* No slice is under way and no device's timer is being served. */
bool sched_vm_quiet(struct sched *s, struct sched_vm *v);
void sched_job(struct sched *s, struct sched_vm *v);
/* Sets the deadline; an earlier one that is set already stays. */
void sched_deadline(struct sched *s, struct sched_vm *v, uint64_t at);
/*
 * Calls ops->timer once the host's clock reaches `at`. An earlier moment that is set stays; nothing
 * happens while the VM is blocked (then it is set again after unblock) or stopping. Any thread.
 */
void sched_timer(struct sched *s, struct sched_vm *v, uint64_t at);
/*
 * A halted vCPU gets queued. One that runs will not sleep; on a worker it sees its events by
 * itself, one with a thread is kicked. Any thread.
 */
void sched_wake(struct sched *s, struct sched_cpu *c);
/* There is memory to scrub. From a job: the worker that does it goes on with this. */
void sched_scrub(struct sched *s);

/* There is something for the reaper. Any thread. */
void sched_reap(struct sched *s);

/* Runs one slice or step on the calling thread. False: nothing can run now. */
bool sched_step(struct sched *s);

#endif
