/*
 * The hypercall ABI between hvd and hv, and between guests and hv.
 *
 * Transport of the control door: a SOCK_SEQPACKET Unix socket, one message a packet, at most
 * MF_MSG_MAX bytes, little endian, natural alignment. A request is struct mf_msg, then the call's
 * argument structure, then its tail. A reply is struct mf_msg with the same `nr` and `cookie`,
 * then the reply structure and tail on MF_OK, or struct mf_error otherwise. An event is a
 * struct mf_msg with MF_MSG_EVENT, then struct mf_event.
 *
 * Whatever had happened when an answer was made is told before the answer: a client that follows
 * the events is never behind an answer. It may be ahead of one; `moves` says so.
 *
 * MF_AGAIN as a reply status: the call was preempted; the same request is sent again with
 * `cont` as it came back. The core does this itself for calls from the socket unless the request
 * carries MF_MSG_NO_CONT; a client may thus ignore it.
 *
 * Every reserved field and flag bit must be zero, every string is zero terminated inside its
 * array and zero padded. Sizes in bytes, times in nanoseconds: durations, or CLOCK_MONOTONIC where
 * the name ends in `_at`; zero there means "has not happened".
 *
 * The guest door: number in RAX, arguments in RBX, RCX, RDX, RSI; result in RAX, negative: minus a
 * status. CPL 0 only.
 */
#ifndef MAYFLY_HYPERCALL_H
#define MAYFLY_HYPERCALL_H

#include <stddef.h>
#include <stdint.h>

#include "plugin.h"
#include "status.h"

#define MF_ABI_VERSION 1u
#define MF_MAGIC       0x594c464du /* "MFLY" */
#define MF_MSG_MAX     65536u
#define MF_MSG_FDS_MAX 8u

#define MF_MSG_REPLY   0x1u
#define MF_MSG_EVENT   0x2u
#define MF_MSG_NO_CONT 0x4u

#define MF_PAGE_SIZE        4096u
#define MF_VCPUS_MAX        64u
#define MF_VMS_MAX          65536u
#define MF_VM_NAME_MAX      64u   /* with the zero */
#define MF_CMDLINE_MAX      2048u /* with the zero */
#define MF_RAM_MIN          65536u
#define MF_IMAGE_MAX        (UINT64_C(1) << 31)
#define MF_MODULES_MAX      7u
#define MF_SETUP_OFFSET     0x1f1u /* of Linux's setup header, in its file and in boot_params */
#define MF_SETUP_MAX        159u
#define MF_CONSOLE_SIZE     65536u /* default bytes of console output kept by the core */
#define MF_CONSOLE_SIZE_MAX (1u << 20)
#define MF_GRACE_DEFAULT_NS UINT64_C(5000000000)
#define MF_GRACE_MAX_NS     UINT64_C(600000000000)
#define MF_GUEST_WRITE_MAX  4096u
#define MF_PART_FRAMES_MAX  (UINT64_C(1) << 18) /* guest frames that one call works on: 1 GiB */
#define MF_VM_LAST_CREATED  0xffffffffu         /* inside a batch */
#define MF_ORDERS           (MF_ORDER_MAX + 1u)

enum mf_call_nr {
#define MF_CALL(sym, nr, name, args, reply, door, text) MF_CALL_##sym = nr,
#include "hypercall.def"
#undef MF_CALL
    MF_CALL_END_
};

struct mf_msg {
    uint32_t magic;
    uint16_t nr; /* enum mf_call_nr, or enum mf_event_nr with MF_MSG_EVENT */
    uint16_t flags;
    uint32_t size;   /* of the whole message */
    uint32_t status; /* in a reply; 0 in a request */
    uint64_t cookie; /* the client's, given back */
    uint64_t cont;   /* 0, or what the last MF_AGAIN reply held */
};

struct mf_error {
    char field[64]; /* the field at fault, empty when none is */
    char text[192]; /* one sentence: what was given, what is possible */
};

/* ---- states, reasons */

enum mf_vm_state {
    MF_VM_SHUTOFF = 0,
    MF_VM_STARTING = 1,
    MF_VM_RUNNING = 2,
    MF_VM_PAUSED = 3,
    MF_VM_STOPPING = 4,
    MF_VM_CRASHED = 5,
};

enum mf_end_reason {
    MF_END_NONE = 0,
    MF_END_POWEROFF = 1,     /* ACPI power-off port */
    MF_END_DEBUG_EXIT = 2,   /* port 0xf4; code = value written */
    MF_END_RESET = 3,        /* keyboard controller or 0xcf9, with MF_VM_RESET_ENDS */
    MF_END_GUEST_CALL = 4,   /* guest_shutdown; code = its argument */
    MF_END_TRIPLE_FAULT = 5, /* crashed */
    MF_END_BAD_ACCESS = 6,   /* crashed: guest-physical access outside RAM; code = address */
    MF_END_ENGINE = 7,       /* crashed: the engine cannot go on; see detail */
    MF_END_DESTROYED = 8,    /* by request */
    MF_END_SHUTDOWN = 9,     /* shutdown request whose grace period ran out */
    MF_END_NO_MEMORY = 10,   /* crashed: machine memory ran out while the guest touched new RAM */
    MF_END_CORE_LOST = 11,   /* said by hvd: the core died with the VM */
    MF_END_IMAGE = 12,       /* start failed: the image no longer loads */
    MF_END_PANIC = 13,       /* crashed: the guest's kernel says that it panicked */
};

enum mf_engine { MF_ENGINE_AUTO = 0, MF_ENGINE_SOFT = 1, MF_ENGINE_KVM = 2 };

/* What became of a VM's memory when it ended. "Unreachable": no vCPU can run or translate any
 * more. "Returned": every frame is back in the heap. Durations count from the end of the guest. */
struct mf_end_report {
    uint32_t reason; /* enum mf_end_reason */
    uint32_t engine; /* enum mf_engine, never AUTO */
    uint64_t code;
    uint64_t create_ns;      /* vm_create and image check */
    uint64_t start_ns;       /* start until the first instruction can run */
    uint64_t run_ns;         /* first instruction until the guest's end */
    uint64_t unreachable_ns; /* end of the guest until unreachable */
    uint64_t returned_ns;    /* end of the guest until every frame is back; 0: not yet (deferred) */
    uint64_t instructions;   /* that the guest ran; 0 where the engine cannot know */
    uint64_t loops;
    uint64_t loops_per_pass[4]; /* of the populated roots, summed */
    uint64_t entries_removed;
    uint64_t tables_freed; /* without the roots */
    uint64_t roots_freed;
    uint64_t frames_returned; /* all: RAM, tables, roots */
    uint64_t steps;
    uint64_t step_max_ns;
    uint64_t
        kernel_ns; /* of it, spent on the host kernel's objects (KVM); 0 with the soft engine */
    char teardown[MF_NAME_MAX];
    char detail[128]; /* for a crash: a sentence with the register that matters */
};

struct mf_vm_info {
    uint32_t id;
    uint32_t state;  /* enum mf_vm_state */
    uint32_t engine; /* never AUTO */
    uint32_t vcpus;
    uint64_t memory; /* bytes of RAM */
    uint64_t frames_ram;
    uint64_t frames_table;
    uint64_t created_at;
    uint64_t started_at;
    uint64_t instructions;
    uint64_t stage2_faults;
    uint64_t exits;
    uint64_t console_end; /* bytes ever written */
    uint32_t halted;      /* vCPUs halted now */
    uint32_t starts;      /* how often it was started or reset */
    uint8_t uuid[16];
    char name[MF_VM_NAME_MAX];
    char teardown[MF_NAME_MAX];
    struct mf_end_report end; /* of the last life; reason NONE when none ended yet */
    uint32_t moves;           /* state transitions since it was made, modulo 2^32 */
    uint32_t dirty_log;       /* 1: written frames are logged */
    uint64_t leaves[3];       /* of 4 KiB, 2 MiB, 1 GiB; all roots */
    uint64_t frames_given;    /* given back by balloon calls in this life; may be backed again */
    uint64_t frames_taken;    /* backed by balloon calls in this life */
    uint64_t claim_left;      /* frames promised and not yet taken */
};

/* ---- calls */

struct mf_args_none {
    uint64_t reserved;
};
struct mf_reply_none {
    uint64_t reserved;
};

struct mf_args_hello {
    uint32_t abi;
    uint32_t reserved;
};
struct mf_reply_hello {
    uint32_t abi;
    uint32_t pid;
    uint64_t started_at;
    uint8_t instance[16]; /* random: a core that was started anew has another */
};

struct mf_reply_host_info {
    uint64_t memory;
    uint64_t started_at;
    uint64_t now;
    uint32_t cpus;
    uint32_t workers;
    uint32_t vms;
    uint32_t vms_running;
    uint32_t engine_soft; /* 1: usable */
    uint32_t engine_kvm;
    char engine_kvm_why[96]; /* why not; usable: empty, or why only VMs that ask for it get it */
    char version[32];
    char teardown_default[MF_NAME_MAX];
    uint64_t vms_created; /* since start */
    uint64_t slices;      /* vCPU slices run */
};

struct mf_reply_heap_info {
    uint64_t frames;
    uint64_t free;
    uint64_t cached;
    uint64_t dirty; /* free frames that await scrubbing */
    uint64_t used_ram;
    uint64_t used_table;
    uint64_t used_core;
    uint64_t retired; /* cleared, waiting for a flush */
    uint64_t free_blocks[MF_ORDERS];
    uint64_t refused_double;
    uint64_t refused_order;
    uint64_t refused_owner;
    uint64_t refused_plugin; /* blocks of an allocator refused by the frame table */
    uint64_t init_ns;        /* from no allocator to all frames given */
    uint64_t swaps;
    uint64_t swap_pause_ns;      /* of the last swap */
    uint64_t meta_bytes;         /* reserved for the allocator */
    int32_t largest_free_order;  /* -1: none */
    uint32_t scrub;              /* enum mf_heap_scrub */
    char allocator[MF_NAME_MAX]; /* empty: none */
    uint64_t claimed;            /* of the free ones: promised to VMs */
    uint64_t offline;            /* out of use */
    uint64_t offline_waiting;    /* in use and marked: out of use when they are freed */
    uint64_t scrubbed;           /* frames ever zeroed by writing, and by giving them to the host */
    uint64_t punched;
};

struct mf_reply_heap_audit {
    uint64_t frames;
    uint64_t free;
    uint64_t used_ram;
    uint64_t used_table;
    uint64_t used_core;
    uint64_t retired;
    uint64_t overlaps;      /* frames claimed twice: must be 0 */
    uint64_t bad_records;   /* must be 0 */
    uint64_t listed_free;   /* frames that the allocator lists */
    uint64_t listed_in_use; /* of them in use by the table: must be 0 */
    uint64_t lost;          /* free by the table, not listed: must be 0 */
    uint64_t offline;       /* out of use */
};

enum mf_heap_scrub { MF_SCRUB_BACKGROUND = 0, MF_SCRUB_FREE = 1, MF_SCRUB_ALLOC = 2 };

struct mf_args_heap_scrub {
    uint32_t policy; /* enum mf_heap_scrub */
    uint32_t reserved;
};

#define MF_HEAP_RANGE_MAX UINT64_C(32768)

struct mf_args_heap_range {
    uint64_t first;  /* machine frame */
    uint64_t frames; /* 1 to MF_HEAP_RANGE_MAX, all of the core's memory */
};
struct mf_reply_heap_range {
    uint64_t changed; /* went out of use, or into use, by this call */
    uint64_t waiting; /* in use: marked, or the mark taken off */
    uint64_t already; /* there was nothing to do */
};

#define MF_VM_RESET_ENDS  0x1u /* a guest's reset ends the VM instead of restarting it */
#define MF_VM_CLAIM       0x2u /* all of the RAM is promised at the start, or it is refused */
#define MF_VM_LARGE_PAGES 0x4u /* RAM is backed by 2 MiB where possible */

struct mf_args_vm_create {
    char name[MF_VM_NAME_MAX];
    uint8_t uuid[16];
    uint64_t memory;            /* bytes, multiple of 4096, MF_RAM_MIN to the arena's size */
    uint32_t vcpus;             /* 1 to MF_VCPUS_MAX */
    uint32_t engine;            /* enum mf_engine */
    uint32_t flags;             /* MF_VM_* */
    uint32_t weight;            /* share of CPU: 1 to 10000, 0 for 100 */
    uint32_t cap;               /* percent of one CPU per vCPU: 1 to 100, 0 for none */
    uint32_t console_size;      /* bytes kept, 0 for MF_CONSOLE_SIZE */
    char teardown[MF_NAME_MAX]; /* empty: the default */
};
struct mf_reply_vm {
    uint32_t vm;
    uint32_t reserved;
};

struct mf_args_vm {
    uint32_t vm;
    uint32_t reserved;
};

/*
 * The tail is the command line, the modules' command lines, the setup header. The fds are the
 * kernel's and the modules', in this order. The first module is Linux's initial RAM disk.
 */
struct mf_args_vm_image {
    uint32_t vm;
    uint32_t cmdline_len; /* bytes, without a zero; below MF_CMDLINE_MAX */
    uint32_t setup_len;   /* at most MF_SETUP_MAX; 0: the image is not from a bzImage */
    uint32_t nr_modules;
    uint32_t module_len[MF_MODULES_MAX]; /* bytes of their command lines, all together below
                                            MF_CMDLINE_MAX */
    uint32_t reserved;
};

struct mf_args_vm_shutdown {
    uint32_t vm;
    uint32_t reserved;
    uint64_t grace_ns; /* 0 for MF_GRACE_DEFAULT_NS, at most MF_GRACE_MAX_NS */
};

struct mf_args_vm_list {
    uint32_t first_id;
    uint32_t reserved;
};
struct mf_reply_vm_list {
    uint32_t count;
    uint32_t next_id; /* to go on from; 0: the list is at its end */
};

struct mf_args_console_read {
    uint32_t vm;
    uint32_t max; /* bytes, at most what fits in a message */
    uint64_t offset;
};
struct mf_reply_console_read {
    uint64_t offset; /* of the first byte given; above the asked one when older ones are gone */
    uint64_t end;    /* bytes ever written */
    uint32_t count;
    uint32_t ended; /* 1: the VM has ended, no more will come in this life */
};

struct mf_args_console_write {
    uint32_t vm;
    uint32_t count;
};
struct mf_reply_console_write {
    uint32_t taken;
    uint32_t reserved;
};

enum mf_balloon_op { MF_BALLOON_GIVE = 1, MF_BALLOON_TAKE = 2 };

/* Guest frames: 1 to MF_PART_FRAMES_MAX, all of them RAM of the VM. */
struct mf_args_balloon {
    uint32_t vm;
    uint32_t op;    /* enum mf_balloon_op */
    uint64_t first; /* guest frame */
    uint64_t frames;
};
/* A frame that the guest touches while its range is given back may be counted twice. */
struct mf_reply_balloon {
    uint64_t frames; /* frames of RAM that went to the heap, or came from it */
    uint64_t tables; /* tables that went with them */
    uint64_t splits; /* large leaves split at the range's ends */
    uint64_t loops;  /* of the teardown strategy */
    uint64_t steps;
    uint64_t step_max_ns;
    uint64_t total_ns;
    char teardown[MF_NAME_MAX]; /* the strategy that did it */
};

struct mf_args_dirty_log {
    uint32_t vm;
    uint32_t on; /* 1: start, all marks cleared; 0: end */
};

struct mf_args_dirty_fetch {
    uint32_t vm;
    uint32_t reserved;
    uint64_t first;  /* guest frame */
    uint64_t frames; /* as in mf_args_balloon */
};
/*
 * Bit i % 64 of word i / 64 stands for frame first + i. A large leaf counts as a whole, and so does
 * a range that was given back.
 */
struct mf_reply_dirty_fetch {
    uint64_t first;
    uint64_t frames;
    uint64_t dirty; /* bits that are set */
    uint32_t words; /* (frames + 63) / 64 */
    uint32_t reserved;
};

struct mf_args_strategy {
    uint32_t kind; /* enum mf_plugin_kind */
    uint32_t reserved;
    char name[MF_NAME_MAX];
};
struct mf_strategy_info {
    uint32_t kind;
    uint32_t users; /* VMs (and 1 for a default or the heap) that hold it */
    uint32_t is_default;
    uint32_t flags; /* of its ops */
    char name[MF_NAME_MAX];
    char version[16];
    char summary[128];
};
struct mf_reply_strategy_list {
    uint32_t count;
    uint32_t reserved;
};

struct mf_args_teardown_select {
    uint32_t vm; /* 0: the default for new VMs */
    uint32_t reserved;
    char name[MF_NAME_MAX];
};
struct mf_reply_swap {
    uint64_t pause_ns; /* how long the thing swapped stood still */
    uint64_t total_ns;
    uint64_t free_frames; /* allocator: handed over */
    uint64_t ranges;      /* allocator: in so many runs */
    char from[MF_NAME_MAX];
    char to[MF_NAME_MAX];
};

struct mf_args_batch {
    uint32_t count; /* 1 to 64 */
    uint32_t reserved;
};
struct mf_reply_batch {
    uint32_t done; /* calls that succeeded; whole replies follow, one behind the other,
                      8-byte aligned, the failed one last */
    uint32_t reserved;
};

struct mf_args_subscribe {
    uint32_t mask; /* bit per enum mf_event_nr */
    uint32_t reserved;
};

struct mf_args_core_shutdown {
    uint32_t force;
    uint32_t reserved;
};

struct mf_args_guest {
    uint64_t arg[4];
};
struct mf_reply_guest {
    int64_t result;
};
#define MF_GUEST_EVENT_SHUTDOWN 0x1u /* somebody asked this guest to end */

/* ---- events */

enum mf_event_nr {
    MF_EVENT_VM_STATE = 1, /* a, b: old and new state */
    MF_EVENT_VM_ENDED = 2, /* a: reason, b: code; the memory is returned, vm_info has the report */
    MF_EVENT_CONSOLE = 3,  /* a: bytes ever written; coalesced, read them by console_read */
    MF_EVENT_VM_DELETED = 4,
    MF_EVENT_STRATEGY = 5, /* a: kind, b: 1 loaded, 2 unloaded, 3 selected; text: name */
    MF_EVENT_LOST = 6,     /* a: events dropped because the reader was slow */
    MF_EVENT_LOG = 7,      /* text: a warning or error line of the core */
};

struct mf_event {
    uint64_t seq; /* counts all events of this connection */
    uint64_t at;
    uint32_t vm;    /* 0: none */
    uint32_t moves; /* VM_STATE: of the VM with this one (mf_vm_info.moves), else 0 */
    uint64_t a;
    uint64_t b;
    char text[128];
};

/* ---- layout, the same for every compiler */

_Static_assert(sizeof(struct mf_msg) == 32, "mf_msg");
_Static_assert(sizeof(struct mf_error) == 256, "mf_error");
_Static_assert(sizeof(struct mf_event) == 168, "mf_event");
_Static_assert(sizeof(struct mf_args_vm_create) == 144, "mf_args_vm_create");
_Static_assert(sizeof(struct mf_args_vm_image) == 48, "mf_args_vm_image");
_Static_assert(sizeof(struct mf_end_report) == 320, "mf_end_report");
_Static_assert(sizeof(struct mf_vm_info) == 584, "mf_vm_info");
_Static_assert(sizeof(struct mf_reply_heap_info) == 360, "mf_reply_heap_info");
_Static_assert(sizeof(struct mf_strategy_info) == 192, "mf_strategy_info");
_Static_assert(sizeof(struct mf_reply_swap) == 96, "mf_reply_swap");

/* One row of the call table. */
struct mf_call_row {
    uint16_t nr;
    uint8_t door; /* 'c' or 'g' */
    uint8_t reserved;
    uint32_t args_size;
    uint32_t reply_size;
    const char *name;
    const char *text;
};

#define MF_DOOR_CONTROL 'c'
#define MF_DOOR_GUEST   'g'

/* The row of call `nr`, NULL when there is no such call. Static storage. */
static inline const struct mf_call_row *mf_call_row(unsigned nr)
{
    static const struct mf_call_row rows[] = {
#define MF_CALL(sym, num, nm, args, reply, door_, txt)                                             \
    {num, MF_DOOR_##door_, 0, sizeof(struct args), sizeof(struct reply), nm, txt},
#include "hypercall.def"
#undef MF_CALL
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].nr == nr)
            return &rows[i];
    return NULL;
}

#endif
