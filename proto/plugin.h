/*
 * The plugin ABI of Mayfly: the one header that a strategy plugin may include.
 *
 * A plugin is an ELF shared object that
 *   - carries one ELF note (name "Mayfly", type MF_PLUGIN_NOTE_TYPE) that says what it is, so that
 *     the daemon reads its manifest without running any of its code;
 *   - exports exactly one symbol, `mayfly_plugin`, a `const struct mf_plugin`;
 *   - calls nothing but the services that the core hands it (and compiler builtins, mem*).
 * MF_PLUGIN_DECLARE() writes both.
 *
 * Versions: MF_PLUGIN_ABI changes when an existing member changes its meaning. Members are only
 * ever appended; each structure carries its own size, and a side reads only what the other's size
 * covers. Status values are those of proto/status.h, repeated here by value where plugins need
 * them (this header stands alone); 0 is success.
 *
 * Frame numbers are indexes into the machine-memory arena: frame n starts at byte n * 4096.
 * An *order* k block is 2^k frames, aligned to 2^k frames. The frame table of the core, not the
 * plugin, is the truth about who owns a frame; a plugin only decides *which* free block is given.
 */
#ifndef MAYFLY_PLUGIN_H
#define MAYFLY_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MF_PLUGIN_ABI       1u
#define MF_PLUGIN_NOTE_NAME "Mayfly"
#define MF_PLUGIN_NOTE_TYPE 1u
#define MF_PLUGIN_SYMBOL    "mayfly_plugin"
#define MF_NAME_MAX         32u /* bytes with the terminating zero: [a-z][a-z0-9-]* */

/* Status values that a plugin returns or is handed (same numbers as proto/status.def). */
#define MF_PL_OK        0
#define MF_PL_AGAIN     1 /* step: budget spent, call again */
#define MF_PL_BLOCKED   2 /* step: waits for a flush; call again when the core says so */
#define MF_PL_RANGE     6
#define MF_PL_NO_MEMORY 24
#define MF_PL_NOT_EMPTY 32

enum mf_plugin_kind {
    MF_PLUGIN_ALLOCATOR = 1,
    MF_PLUGIN_TEARDOWN = 2,
};

/* The note's descriptor. Fixed layout, little endian. Strings are zero terminated and padded. */
struct mf_plugin_note {
    uint32_t size; /* of this structure */
    uint32_t abi;  /* MF_PLUGIN_ABI the plugin was built with */
    uint32_t kind; /* enum mf_plugin_kind */
    uint32_t reserved;
    char name[MF_NAME_MAX];
    char version[16];
    char summary[128];
};

/* ---------------------------------------------------------------- allocators */

#define MF_ORDER_MAX 18u /* 1 GiB */

/* mf_allocator_ops.flags */
#define MF_ALLOC_THREAD_SAFE 0x1u /* alloc/free may be called by several CPUs at once */
#define MF_ALLOC_MERGES      0x2u /* claims: two free buddies never stay unmerged (after drain) */

/*
 * What the core hands to an allocator. `meta` is zeroed, page aligned, lazily committed memory of
 * at least ops->meta_size(nr_frames, nr_cpus) bytes; it belongs to the plugin from init to fini
 * and the core may throw it away at any time after fini without telling.
 */
struct mf_alloc_env {
    uint32_t size;
    uint32_t nr_cpus; /* `cpu` arguments are below this; at least 1 */
    uint64_t nr_frames;
    void *meta;
    uint64_t meta_size;
    /* For spinning on a lock, the n-th time; may yield the CPU. NULL or absent (size): pause. */
    void (*relax)(void *arg, unsigned n);
    void *relax_arg;
};

struct mf_alloc_stats {
    uint32_t size;
    uint32_t reserved;
    uint64_t free_frames; /* all free frames, cached ones included */
    uint64_t cached;      /* of them, in per-CPU caches */
    uint64_t free_blocks[MF_ORDER_MAX + 1];
};

/* Called by ->list for each maximal free run the plugin knows, in any order. False stops. */
typedef bool (*mf_alloc_range_fn)(void *arg, uint64_t first, uint64_t n);

/*
 * Unless MF_ALLOC_THREAD_SAFE is set the core calls at most one of these at a time. With it `alloc`
 * and `free` run for several CPUs at once, but never twice at once with the same `cpu`: what a
 * plugin keeps for each CPU needs no lock. All others stand alone, whatever the flag.
 * `cpu` is a hint for locality. No op may block, none may touch the frames themselves.
 */
struct mf_allocator_ops {
    uint32_t size;
    uint32_t flags;
    /* Bytes of metadata for `nr_frames` frames; 0 when the plugin cannot serve that many. */
    uint64_t (*meta_size)(uint64_t nr_frames, uint32_t nr_cpus);
    /* Makes an allocator without any free frame. `env` stays valid until fini. */
    int (*init)(const struct mf_alloc_env *env);
    /*
     * Gives the frames [first, first + n) to the allocator: at start, and when it takes over from
     * another one. Any alignment, any length; the ranges of several calls never overlap. n is 0
     * when there is nothing to take over: called at least once before alloc and free.
     */
    int (*add)(const struct mf_alloc_env *env, uint64_t first, uint64_t n);
    /*
     * Takes one block of 2^order frames, aligned. MF_PL_NO_MEMORY when there is none; what is in
     * the caches of other CPUs need not be looked for: the core then drains, alone, and asks again.
     */
    int (*alloc)(const struct mf_alloc_env *env, uint32_t cpu, uint32_t order, uint64_t *first);
    /*
     * Returns a block. The core has checked that it is allocated. The order need not be the one it
     * was allocated at: a part of a larger block may come back, also a block that a former
     * allocator handed out.
     */
    int (*free)(const struct mf_alloc_env *env, uint32_t cpu, uint64_t first, uint32_t order);
    /* Moves what per-CPU caches hold back to the shared lists. May be NULL: nothing is cached. */
    void (*drain)(const struct mf_alloc_env *env);
    /* Lists every free frame exactly once, in runs (drained first). */
    void (*list)(const struct mf_alloc_env *env, mf_alloc_range_fn fn, void *arg);
    /* Fills `out`; `out->size` says how much the core can take. */
    void (*stats)(const struct mf_alloc_env *env, struct mf_alloc_stats *out);
    /* Ends the allocator. Its free frames are the core's again. */
    void (*fini)(const struct mf_alloc_env *env);
    /*
     * Takes the frames [first, first + n), all of which are free (drained first), as if they had
     * been allocated; they may lie in any free blocks, whose rest stays free. MF_PL_RANGE, with
     * nothing changed, when one of them is not free. May be NULL or absent (size): to take frames
     * out of use the core then starts the allocator anew with the others.
     */
    int (*take)(const struct mf_alloc_env *env, uint64_t first, uint64_t n);
};

/* ---------------------------------------------------------------- teardown */

/* Second-stage entry bits: AMD nested page tables, which are x86-64 long-mode tables. */
#define MF_PTE_PRESENT  (UINT64_C(1) << 0)
#define MF_PTE_WRITE    (UINT64_C(1) << 1)
#define MF_PTE_USER     (UINT64_C(1) << 2)
#define MF_PTE_ACCESSED (UINT64_C(1) << 5)
#define MF_PTE_DIRTY    (UINT64_C(1) << 6)
#define MF_PTE_LEAF     (UINT64_C(1) << 7) /* PS; at level 1 every present entry is a leaf */
#define MF_PTE_NX       (UINT64_C(1) << 63)
#define MF_PTE_ADDR     UINT64_C(0x000ffffffffff000)
#define MF_PT_ENTRIES   512u

/*
 * A table is named by the address of its first entry, always read through this pointer and never
 * written. Levels: 4 is the root, 1 holds 4 KiB leaves. An entry at level L spans
 * 2^(9 * (L - 1)) guest frames.
 * Present test: an entry that the CPU sees as not present can still be in use by software
 * (a frozen or tracked one): test with `entry != 0`.
 */
typedef const volatile uint64_t *mf_table;

struct mf_zap;

/*
 * Services of the core, valid from begin to end. All are O(1) but zap_run, sweep and drop, which
 * are O(what they remove). Members behind `count` came later: MF_ZAP_HAS() says whether the core
 * that runs has one.
 */
struct mf_zap_host {
    uint32_t size;
    uint32_t reserved;
    /* The table that entry `index` of `table` points to, NULL when it is absent or a leaf. */
    mf_table (*child)(struct mf_zap *z, mf_table table, uint32_t index);
    /*
     * Removes entry `index` of `table`. A leaf: the entry is cleared, its accessed and dirty bits
     * are harvested, its frames retired. A table: unlinked and its frame retired, but only when it
     * has no entry left (MF_PL_NOT_EMPTY). MF_PL_RANGE when a leaf lies outside the scope or the
     * arguments are not an entry of this tree. Not an error, nothing counted: an absent entry.
     * MF_PL_BLOCKED: too many frames wait for a flush, or the step has cost all that a step may;
     * nothing was done; return MF_PL_BLOCKED.
     */
    int (*zap)(struct mf_zap *z, mf_table table, uint32_t index);
    /*
     * Removes the present *leaves* among the `n` entries from `index` on, in one call; `*removed`
     * says how many. Entries that point to tables are left alone. Errors as for zap; on
     * MF_PL_BLOCKED `*removed` leaves were removed, the lowest ones.
     */
    int (*zap_run)(struct mf_zap *z, mf_table table, uint32_t index, uint32_t n, uint32_t *removed);
    /*
     * With MF_TD_TRACKS: 8 words of 64 bits, bit i set when entry i is in use. NULL otherwise.
     * Kept up to date by the core on map and zap.
     */
    const volatile uint64_t *(*used)(struct mf_zap *z, mf_table table);
    /* How many entries of `table` are in use, 0 to 512. */
    uint32_t (*count)(struct mf_zap *z, mf_table table);
    /*
     * With MF_TD_TRACKS, for a `table` of level 2: goes through its entries in use from `index` on
     * and takes out each level 1 table that lies wholly in the scope and has at most MF_SWEEP_MAX
     * entries, its leaves first. Stops at an entry that is anything else, and before a table that
     * would make `*removed` (leaves and tables together) more than `max`. `*next` is the entry
     * where it stopped, MF_PT_ENTRIES when it went through all; an absent entry is never named.
     * Errors as for zap, with `*next` and `*removed` saying what was done before. A table that got
     * an entry meanwhile stays, and so may be named by `*next` again.
     */
    int (*sweep)(struct mf_zap *z, mf_table table, uint32_t index, uint32_t max, uint32_t *next,
                 uint32_t *removed);
    /*
     * With MF_TD_ARENA and `whole`, on a second stage that takes no more mappings: takes at most
     * `n` extents of the address space out with everything that they hold, `*dropped` says how
     * many; 0 with MF_PL_OK: nothing is left, in any root. An extent is a block of guest RAM or a
     * chunk of tables. The first call unlinks every root, so that no walk finds an entry from then
     * on; tables read before must not be read any more. MF_PL_RANGE, with nothing done: something
     * is mapped that is in no extent (it was there before the strategy was), or the address space
     * still lives, or the teardown is not of the whole; use the other services.
     */
    int (*drop)(struct mf_zap *z, uint32_t n, uint32_t *dropped);
    /*
     * With MF_TD_TRACKS: the first entry in use of `table` at or behind `index`, MF_PT_ENTRIES when
     * there is none. For tables with few entries cheaper than the bitmap, which `used` may have to
     * write first.
     */
    uint32_t (*next)(struct mf_zap *z, mf_table table, uint32_t index);
};

#define MF_SWEEP_MAX 8u

/* Has this core that service? */
#define MF_ZAP_HAS(host, member)                                                                   \
    ((host)->size >= offsetof(struct mf_zap_host, member) + sizeof((host)->member))

#define MF_ZAP_PASSES 4u

/*
 * One teardown of one root. The core owns it. The strategy reads the upper part and writes the
 * counters: `loops` is what it says its work was, `loops_per_pass` the same by pass where it has
 * passes. Entries removed and tables freed are counted by the core, out of its reach.
 */
struct mf_zap {
    uint32_t size;
    uint32_t root_level; /* 4 */
    const struct mf_zap_host *host;
    mf_table root;
    uint64_t first_gfn; /* scope: guest frames first_gfn ... last_gfn, both inside */
    uint64_t last_gfn;
    bool whole; /* the scope is all that the root can map */
    uint8_t reserved[7];

    uint64_t loops;
    uint64_t loops_per_pass[MF_ZAP_PASSES];
};

/*
 * mf_teardown_ops.flags
 *
 * MF_TD_TRACKS  The used-entry bitmaps are kept for address spaces with this strategy (host->used,
 *               host->sweep). One that gets the strategy while it lives has them built before.
 * MF_TD_DEFERS  When an address space ends as a whole the core first takes it away from its VM, in
 *               O(1): no vCPU is inside, no lookup leads to it, the VM is off and can start again
 *               or be deleted. begin, step and end then run in the background, in bounded steps,
 *               with a share of the CPU that leaves running vCPUs theirs. `whole` is set and no
 *               entry is added in such a teardown. Ranges of a living one are worked on as ever.
 * MF_TD_ARENA   Address spaces with this strategy draw their tables from private chunks and their
 *               RAM by extents, which host->drop takes out whole. What was mapped before stays
 *               where it is. The other services work all the same.
 * A core refuses a strategy with a flag that it does not know.
 */
#define MF_TD_TRACKS 0x1u
#define MF_TD_DEFERS 0x2u
#define MF_TD_ARENA  0x4u
#define MF_TD_FLAGS  (MF_TD_TRACKS | MF_TD_DEFERS | MF_TD_ARENA) /* all of them */

#define MF_ZAP_STATE_MAX 1024u

/*
 * While a teardown is under way no table of that root is freed by anybody else, so a table pointer
 * may be kept in the state between steps; entries may be *added* meanwhile (a running guest
 * faults), also inside the scope. Steps of one teardown never run at the same time.
 */
struct mf_teardown_ops {
    uint32_t size;
    uint32_t flags;
    uint32_t state_size; /* bytes of `state`, zeroed by the core, at most MF_ZAP_STATE_MAX */
    uint32_t reserved;
    int (*begin)(struct mf_zap *z, void *state);
    /*
     * Works on at most about `budget` units, one unit being one loop or one entry handled, then
     * returns MF_PL_AGAIN; MF_PL_OK when nothing is left in the scope (tables that lie only partly
     * in the scope stay, unless empty); MF_PL_BLOCKED when a service said so.
     */
    int (*step)(struct mf_zap *z, void *state, uint32_t budget);
    /* Also after an abort. May be NULL. */
    void (*end)(struct mf_zap *z, void *state);
};

/* ---------------------------------------------------------------- declaration */

struct mf_plugin {
    uint32_t size;
    uint32_t abi;
    uint32_t kind;
    uint32_t reserved;
    const char *name; /* the same as in the note */
    union {
        const struct mf_allocator_ops *allocator;
        const struct mf_teardown_ops *teardown;
    } ops;
};

struct mf_plugin_note_elf {
    uint32_t namesz;
    uint32_t descsz;
    uint32_t type;
    char name[8]; /* "Mayfly" padded to four */
    struct mf_plugin_note desc;
};

_Static_assert(sizeof(struct mf_plugin_note) == 192, "plugin note layout");
_Static_assert(sizeof(struct mf_plugin_note_elf) == 12 + 8 + 192, "plugin note ELF layout");

#define MF_PLUGIN_DECLARE(kind_, name_, version_, summary_, member_, ops_)                         \
    __attribute__((section(".note.mayfly"), used,                                                  \
                   aligned(4))) static const struct mf_plugin_note_elf mf_plugin_note_ = {         \
        .namesz = sizeof(MF_PLUGIN_NOTE_NAME),                                                     \
        .descsz = sizeof(struct mf_plugin_note),                                                   \
        .type = MF_PLUGIN_NOTE_TYPE,                                                               \
        .name = MF_PLUGIN_NOTE_NAME,                                                               \
        .desc = {sizeof(struct mf_plugin_note), MF_PLUGIN_ABI, kind_, 0, name_, version_,          \
                 summary_},                                                                        \
    };                                                                                             \
    __attribute__((visibility("default"))) extern const struct mf_plugin mayfly_plugin;            \
    const struct mf_plugin mayfly_plugin = {                                                       \
        .size = sizeof(struct mf_plugin),                                                          \
        .abi = MF_PLUGIN_ABI,                                                                      \
        .kind = kind_,                                                                             \
        .name = name_,                                                                             \
        .ops = {.member_ = ops_},                                                                  \
    }

#define MF_ALLOCATOR_PLUGIN(name, version, summary, ops)                                           \
    MF_PLUGIN_DECLARE(MF_PLUGIN_ALLOCATOR, name, version, summary, allocator, ops)
#define MF_TEARDOWN_PLUGIN(name, version, summary, ops)                                            \
    MF_PLUGIN_DECLARE(MF_PLUGIN_TEARDOWN, name, version, summary, teardown, ops)

#ifdef __cplusplus
}
#endif

#endif
