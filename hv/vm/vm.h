/*
 * Virtual machines: what the core knows of each, and what can be done to it.
 *
 * Calls that say "control thread" are made by one thread only, the one that serves hypercalls (or a
 * test's); it also owns the registry. The rest of a VM is worked on by the scheduler's workers.
 *
 * Locks, outermost first: vmm->dying_lock, vm->lock, then sched.lock, then those of hv/mm. Event
 * callbacks are made with vm->lock held.
 */
#ifndef MAYFLY_VM_VM_H
#define MAYFLY_VM_VM_H

#include "hv/boot/acpi.h"
#include "hv/boot/load.h"
#include "hv/cpu/engine.h"
#include "hv/dev/chipset.h"
#include "hv/dev/endports.h"
#include "hv/dev/uart16550.h"
#include "hv/host/strategies.h"
#include "hv/mm/reaper.h"
#include "hv/vm/console.h"
#include "hv/vm/part.h"
#include "hv/vm/sched.h"
#include "hv/vm/state.h"

#define VM_COM1           0x3f8u
#define VM_SLICE          100000u               /* instructions of a slice */
#define VM_LOAD_INLINE    (UINT64_C(256) << 10) /* an image up to this loads in vm_start itself */
#define VM_RAM_INLINE     (UINT64_C(1) << 30)   /* RAM up to this is backed in vm_start itself */
#define VM_RAM_STEP       64u                   /* blocks */
#define VM_KVM_POOL       0u                    /* KVM VMs without a guest that are kept */
#define VM_LOAD_STEP      (UINT64_C(256) << 10)
#define VM_REAP_STEP      1024u
#define VM_TRACK_STEP     1024u
#define VM_SCRUB_STEP     64u
#define VM_STRATEGY_TRIES 4u
#define VM_START_WAIT_NS  UINT64_C(2000000000)

struct vm;
struct vmm;
struct vm_dying; /* an address space that the reaper has: dying.c */

/* RAM as this VM's engine shows it. */
struct boot_ram vm_ram(const struct vm *vm);

/* What others are told, from any thread. Must be quick and must not call into hv/vm. */
struct vmm_events {
    /* `moves`: how many transitions the VM has made, this one counted. Called with vm->lock held.
     */
    void (*state)(void *arg, uint32_t vm, enum mf_vm_state from, enum mf_vm_state to,
                  uint32_t moves);
    void (*ended)(void *arg, uint32_t vm, enum mf_end_reason reason, uint64_t code);
    /* There is console output; not told again until vm_console_seen. */
    void (*console)(void *arg, uint32_t vm, uint64_t end);
    /* Something that a call may wait for (MF_BLOCKED) has come. */
    void (*poke)(void *arg);
    void *arg;
};

struct vm_cpu {
    struct vcpu cpu; /* first: the engine's */
    struct sched_cpu sched;
    struct vm *vm;
    struct vm_part_request part; /* of the guest on it; under vm->lock */
    bool starved;                /* of who runs it: its last slice found no memory */
    struct lapic lapic;          /* the chipset's */
    uint64_t pvclock;     /* guest-physical place of its kvm-clock; 0: none. Its own thread's */
    uint32_t pvclock_ver; /* version written there last */
};

/* Where a VM's job stands: loading at the start, teardown at the end. */
enum vm_phase {
    VM_PHASE_NONE,
    VM_PHASE_LOAD,
    VM_PHASE_UNREACHABLE, /* nobody runs: take the engine's part away */
    VM_PHASE_CLEAN,       /* RAM backed by blocks is made to read as zero */
    VM_PHASE_BEGIN,       /* a teardown with vm->teardown begins */
    VM_PHASE_ZAP,
    VM_PHASE_REAP,
    VM_PHASE_DESTROY,
    VM_PHASE_STUCK, /* vm->stuck */
};

struct vm {
    struct vmm *vmm;
    uint32_t id;
    struct mf_args_vm_create config;
    uint64_t created_at;
    uint64_t start_waits;    /* control thread: since when a start waits for memory, 0: none does */
    struct vm *next, *prev;  /* registry: by id */
    struct vm *next_by_name; /* registry: chain of a name's bucket */
    struct vm_dying *dying;  /* under vmm->dying_lock: of earlier lives, the last one first */

    struct sched_vm sched;
    struct console console;
    _Atomic bool console_told;
    _Atomic bool waited_for; /* a call waits: poke when the VM gets idle */
    _Atomic uint32_t guest_events;
    _Atomic uint64_t clock_base;   /* host time at which the guest's clock was zero */
    _Atomic uint64_t clock_frozen; /* guest time while it stands still, else 0 */
    _Atomic uint64_t first_run_at;
    _Atomic bool deadline_hit;

    /* the machine; between life_begin and life's end */
    struct chipset chipset;
    struct bus bus;
    struct uart16550 com1;
    struct end_ports ends;
    struct boot_tables tables; /* set by vm_machine_init, stays the same */
    struct engine_vm engine;
    struct vm_cpu *cpus;
    struct vcpu **vcpus; /* the engine's view of them */

    pthread_mutex_t lock;
    /* under lock */
    enum mf_vm_state state;
    uint32_t moves;            /* transitions made, modulo 2^32 */
    struct stage2 *s2;         /* NULL while off */
    uint32_t owner;            /* of the frames of this life: valid while s2 is there */
    uint32_t end_life;         /* `starts` of the life that `end` tells of */
    struct boot_set *boot;     /* NULL: no image yet */
    struct strategy *teardown; /* one use held */
    struct strategy *swap_to;  /* being prepared (tracking), one use held */
    uint64_t swap_began;
    enum mf_status swap_status; /* of the last swap that had to wait */
    struct mf_reply_swap swap_done;
    bool restart; /* start over when torn down */
    bool stuck;   /* no teardown strategy can finish: waits for another */
    uint32_t starts;
    uint64_t started_at, create_ns, start_began, end_at;
    enum mf_status start_status;
    struct mf_end_report end; /* of the last life */

    /* of the job: whoever runs it */
    enum vm_phase phase;
    unsigned tries;
    gfn_t ram_at; /* backing at the start, clearing at the end: how far */
    bool ram_backed;
    struct boot_load load;
    struct teardown zap;
    struct vm_part part; /* has fields under lock too */
    struct mf_end_report report;
};

/* The whole of it: one per core. */
struct vmm {
    struct heap *heap;
    const struct mm_env *env;
    struct strategies *strategies;
    struct sched sched;
    struct sched_ops sched_ops;
    enum mf_engine engine;    /* of VMs that leave it to the core; AUTO: KVM where it works */
    struct vmm_events events; /* set before the first VM; ops may be NULL */
    /* A guest's hypercall; NULL: there are none. */
    enum machine_result (*guest_call)(struct vm *vm, unsigned vcpu, uint64_t nr,
                                      const uint64_t arg[4], int64_t *result);
    struct reaper reaper;
    struct reaper_ops reaper_ops;
    _Atomic(struct vm_dying *) returned; /* whose reports wait to be completed */
    _Atomic uint32_t owners;             /* made for lives that began while an earlier one died */
    pthread_mutex_t dying_lock;          /* before vm->lock */
    _Atomic uint32_t running;            /* starting, running, paused or stopping */
    _Atomic uint32_t stopping;           /* of them, with memory on its way back */

    /* control thread */
    struct boot_cache images;
    struct vm **slots; /* MF_VMS_MAX, by the low bits of the id */
    struct vm **names; /* MF_VMS_MAX buckets */
    struct vm *first, *last;
    uint32_t nr_vms, next_id;
    uint64_t vms_created;
};

/* MF_E_IO: no memory or threads. `workers` 0: the caller drives sched_step(&m->sched). */
enum mf_status vmm_init(struct vmm *m, struct heap *heap, struct strategies *strategies,
                        unsigned workers);
/* Before the first VM. `pool`: how many KVM VMs without a guest are kept, 0 for none. At first VMs
 * get the software engine, and there is no pool. */
void vmm_set_engine(struct vmm *m, enum mf_engine engine, unsigned pool);
/* Every VM must be off. */
void vmm_fini(struct vmm *m);

/* Memory of VMs that have ended is on its way back to the heap. Any thread. */
static inline bool vmm_memory_coming(struct vmm *m)
{
    return atomic_load(&m->stopping) || atomic_load(&m->reaper.trees);
}

/* A strategy was loaded: trees that none could take apart get another chance. Any thread. */
void vmm_reap_retry(struct vmm *m);

/* ---- registry; control thread */

/* Checks every field of the configuration, changes nothing when one is bad. */
enum mf_status vm_create(struct vmm *m, const struct mf_args_vm_create *c, struct vm **out,
                         struct mf_error *e);
/* MF_E_STATE: not off. MF_AGAIN: off, but a worker is about to let go of it: call again. */
enum mf_status vm_delete(struct vm *vm, struct mf_error *e);
/* NULL when there is none. */
struct vm *vm_find(struct vmm *m, uint32_t id);
/* The first VM with an id >= `id`, NULL at the end. */
struct vm *vm_find_from(struct vmm *m, uint32_t id);

/* ---- life; control thread */

/*
 * Takes over `boot` and its images on MF_OK. MF_E_STATE unless off; errors of boot_plan_make: then
 * what the VM had before stays.
 */
enum mf_status vm_set_boot(struct vm *vm, struct boot_set *boot, uint64_t took_ns,
                           struct mf_error *e);
/*
 * MF_OK: runs (or ran and ended already). MF_BLOCKED: loading; ask vm_start_result. MF_AGAIN: the
 * last life is not quite let go of; call again.
 */
enum mf_status vm_start(struct vm *vm, struct mf_error *e);
enum mf_status vm_start_result(struct vm *vm, struct mf_error *e);
/* MF_BLOCKED: paused, but a slice is still under way; ask vm_pause_result. */
enum mf_status vm_pause(struct vm *vm, struct mf_error *e);
enum mf_status vm_pause_result(struct vm *vm, struct mf_error *e);
enum mf_status vm_resume(struct vm *vm, struct mf_error *e);
enum mf_status vm_reset(struct vm *vm, struct mf_error *e);
enum mf_status vm_shutdown(struct vm *vm, uint64_t grace_ns, struct mf_error *e);
enum mf_status vm_destroy(struct vm *vm, struct mf_error *e);

/*
 * Makes `to` (a use is taken over on MF_OK and MF_BLOCKED) the VM's strategy. MF_BLOCKED: tracking
 * is being turned on; ask vm_teardown_result.
 */
enum mf_status vm_set_teardown(struct vm *vm, struct strategy *to, struct mf_reply_swap *report,
                               struct mf_error *e);
enum mf_status vm_teardown_result(struct vm *vm, struct mf_reply_swap *report, struct mf_error *e);

void vm_get_info(struct vm *vm, struct mf_vm_info *out);
enum mf_vm_state vm_get_state(struct vm *vm);
/* Input for COM1; returns how many bytes fitted. */
size_t vm_console_input(struct vm *vm, const uint8_t *bytes, size_t n);
/* From here on new output is told again. */
void vm_console_seen(struct vm *vm);

/* ---- for the machine and guest calls; worker threads */

/* Ends this life, unless it is ending already. `detail` may be NULL. */
void vm_end(struct vm *vm, enum mf_end_reason reason, uint64_t code, const char *detail);
/* The guest's kernel says that it panicked: ends this life, whatever a reset would do. */
void vm_guest_panic(struct vm *vm);
/* The guest asks for a reset: start over, or end, as configured; after a panic: end. */
void vm_guest_reset(struct vm *vm);
void vm_console_output(struct vm *vm, const uint8_t *bytes, size_t n);
uint64_t vm_clock(struct vm *vm);

/* ---- between the files of hv/vm */

/* With vm->lock. An illegal transition is refused, logged and changes nothing. */
bool vm_transition(struct vm *vm, enum mf_vm_state to);
/* Starts a life: second stage, devices, engine. Nothing is left on failure. */
enum mf_status vm_life_begin(struct vm *vm, struct mf_error *e);
/* The scheduler's. */
enum sched_after vm_slice(struct sched_cpu *c);
bool vm_job(struct sched_vm *v);
/* With vm->lock: ends, as vm_end. */
void vm_end_locked(struct vm *vm, enum mf_end_reason reason, uint64_t code, const char *detail);
/* With vm->lock: forgets a strategy swap that was being prepared. */
void vm_swap_cancel(struct vm *vm);
bool vm_track_step(struct vm *vm);
enum mf_status vm_machine_init(struct vm *vm);
void vm_machine_fini(struct vm *vm);
/* Power-on state of all devices. No vCPU runs. */
void vm_machine_reset(struct vm *vm);
/* kvm-clock's MSRs. False: #GP. On the vCPU's own thread. */
bool vm_pvclock_write(struct vm_cpu *c, uint32_t nr, uint64_t value);
bool vm_pvclock_read(const struct vm_cpu *c, uint32_t nr, uint64_t *value);
/* The vCPU's TSC was written. */
void vm_pvclock_update(struct vm_cpu *c);
uint64_t vm_wall_ns(void);

/* Deferred teardown (dying.c). NULL: the strategy does not defer, or there is no host memory. */
struct vm_dying *vm_defer_prepare(struct vm *vm);
void vm_defer_abandon(struct vm *vm, struct vm_dying *d);
/* With vm->lock, the engine's part gone. On failure nothing is changed: abandon `d`. */
enum mf_status vm_defer_locked(struct vm *vm, struct vm_dying *d);
/* The VM is about to be deleted. */
void vm_defer_forget(struct vm *vm);
bool vmm_reap_step(void *arg);
void vmm_reap_init(struct vmm *m);
void vmm_reap_fini(struct vmm *m);
/* The engine's state for an entry of hv/boot. */
void vm_entry_state(const struct boot_entry *b, struct cpu_state *s);
extern const struct machine_ops vm_machine_ops;

#endif
