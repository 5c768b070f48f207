/*
 * Second stage: guest frame -> machine frame, in AMD nested-page-table (x86-64 long mode) format,
 * four levels, leaves of 4 KiB, 2 MiB and 1 GiB. The only truth about where a guest frame is, for
 * every engine.
 *
 * One lock per stage2. Mapping is prepare (may fail; allocates tables) then commit (cannot fail).
 *
 * Translations outlive an entry: an engine caches them. Rules:
 *   - each vCPU has a `struct s2_viewer`. It calls s2_viewer_enter before it uses translations and
 *     s2_viewer_leave when it holds none any more (leaves guest mode, halts).
 *   - while inside it looks at s2_viewer_stale from time to time (each block, each exit): when true
 *     it drops every cached translation, then calls s2_viewer_ack.
 *   - a frame whose entry was cleared is retired with the epoch of the clearing and goes to the
 * heap when every viewer is either outside or has acknowledged that epoch (stage2_reap).
 *   - s2_viewer_enter returns true when the epoch moved since the viewer was last inside: drop all.
 */
#ifndef MAYFLY_MM_STAGE2_H
#define MAYFLY_MM_STAGE2_H

#include <stdatomic.h>

#include "hv/mm/heap.h"

#define S2_LEVELS      4u
#define S2_GFN_BITS    36u
#define S2_GFN_END     (UINT64_C(1) << S2_GFN_BITS)
#define S2_ROOTS_MAX   4u
#define S2_REGIONS_MAX 4u
#define S2_VIEWERS_MAX 64u

#define S2_READ  0x1u
#define S2_WRITE 0x2u
#define S2_EXEC  0x4u

struct stage2; /* definition in stage2_impl.h, for hv/mm and its unit tests */

struct s2_viewer {
    _Atomic uint64_t seen; /* epoch acknowledged */
    _Atomic uint32_t inside;
    struct stage2 *s2;
    const _Atomic uint64_t *epoch; /* of s2 */
};

/* RAM: guest frames that are backed on demand. */
struct s2_region {
    gfn_t first;
    uint64_t frames;
};

struct s2_config {
    uint32_t owner;      /* of all frames and tables */
    unsigned roots;      /* 1 to S2_ROOTS_MAX; KVM-like VMs have 2 */
    bool track;          /* keep the used-entry bitmaps from the start */
    bool arena;          /* chunks and extents from the start (stage2_set_arena) */
    unsigned nr_regions; /* disjoint, ascending, inside S2_GFN_END, else MF_E_RANGE */
    struct s2_region regions[S2_REGIONS_MAX];
    /* Highest order that a demand fault may use when range and alignment allow: 0, 9. */
    unsigned fault_order;
};

struct s2_leaf {
    mfn_t mfn;       /* of the guest frame asked for */
    unsigned order;  /* of the leaf: 0, 9, 18 */
    unsigned access; /* S2_* allowed */
};

struct s2_info {
    uint64_t frames_ram, frames_table, faults, epoch, retired;
    uint64_t spare;     /* frames of an arena that are not in use: rests of chunks, its list */
    uint64_t leaves[3]; /* 4 KiB, 2 MiB, 1 GiB */
};

/* Errors: MF_E_RANGE, MF_E_NO_MEMORY, MF_E_NO_ALLOCATOR, MF_E_QUOTA; then nothing is left. */
enum mf_status stage2_create(struct heap *h, const struct s2_config *c, struct stage2 **out);
/*
 * Frees the roots and the object. MF_E_STATE while entries, retired frames or viewers inside are
 * left: tear down first. Takes NULL.
 */
enum mf_status stage2_destroy(struct stage2 *s2);

enum mf_status s2_viewer_add(struct stage2 *s2, struct s2_viewer *v);
void s2_viewer_remove(struct s2_viewer *v);
bool s2_viewer_enter(struct s2_viewer *v);
void s2_viewer_leave(struct s2_viewer *v);
static inline bool s2_viewer_stale(const struct s2_viewer *v)
{
    return atomic_load_explicit(v->epoch, memory_order_relaxed) !=
           atomic_load_explicit(&v->seen, memory_order_relaxed);
}
void s2_viewer_ack(struct s2_viewer *v);

/*
 * Prepared mapping of 2^order guest frames at g (aligned, order 0, 9 or 18) to m. Reserves the
 * tables on the way; holds no lock between prepare and commit. Abandon what is not committed.
 * MF_E_EXISTS: something is mapped there. MF_E_STATE: the VM is dying (stage2_close). The block at
 * m must be RAM of the stage2's owner, of that very order: MF_E_WRONG_OWNER, MF_E_WRONG_ORDER. From
 * the commit on it belongs to the second stage, which gives it back when its last map is gone.
 */
struct s2_map {
    struct stage2 *s2;
    unsigned root, order, access;
    gfn_t g;
    mfn_t m;
    unsigned spare_count;
    mfn_t spare[S2_LEVELS];
};
enum mf_status stage2_map_prepare(struct stage2 *s2, unsigned root, gfn_t g, mfn_t m,
                                  unsigned order, unsigned access, struct s2_map *map);
/*
 * MF_OK. What may have happened since the prepare: MF_E_EXISTS, a racing map was faster;
 * MF_E_BUSY, an edge of what a teardown takes out lies inside the block; MF_E_STATE, the VM was
 * closed; MF_E_NO_MEMORY, a teardown took tables away and there is none to
 * replace them. Then nothing is changed. The spares are freed in any case.
 */
enum mf_status stage2_map_commit(struct s2_map *map);
void stage2_map_abandon(struct s2_map *map);

/*
 * Where guest frame g is, without populating. MF_E_NOT_FOUND: no mapping. Sets accessed, and dirty
 * when `access` has S2_WRITE. MF_E_PERM: mapped, but not for this access.
 */
enum mf_status stage2_lookup(struct stage2 *s2, unsigned root, gfn_t g, unsigned access,
                             struct s2_leaf *out);
/*
 * The same, but a gfn inside a region without a mapping gets a zeroed frame. MF_E_RANGE: outside
 * every region. MF_E_NO_MEMORY, MF_E_QUOTA, MF_E_STATE (closed). In another root than 0 it gets the
 * frame that root 0 has there, which is populated first.
 */
enum mf_status stage2_fault(struct stage2 *s2, unsigned root, gfn_t g, unsigned access,
                            struct s2_leaf *out);

/*
 * Copy between guest memory (root 0) and the caller's, populating inside regions; for boot code,
 * devices and guest hypercalls (a read of a frame not populated gives zeros and leaves it so).
 * Closed: MF_E_STATE where a frame would have to be populated. All or nothing with respect to
 * range: MF_E_RANGE before any byte is copied when a part lies outside RAM. A viewer need not be
 * inside: the lock is held per frame.
 */
enum mf_status stage2_write(struct stage2 *s2, gpa_t a, const void *src, uint64_t n);
enum mf_status stage2_read(struct stage2 *s2, gpa_t a, void *dst, uint64_t n);
enum mf_status stage2_fill(struct stage2 *s2, gpa_t a, uint8_t byte, uint64_t n);
/* MF_OK when [a, a + n) is inside regions; overflow checked; n = 0 is fine anywhere in RAM. */
enum mf_status stage2_check(const struct stage2 *s2, gpa_t a, uint64_t n);

/*
 * Splits the large leaf around g into 512 leaves of the next size, and its block with it, in every
 * root that shows the block at g; the guest sees no difference. MF_E_NOT_FOUND: no leaf there.
 * MF_E_RANGE: it is 4 KiB already. MF_E_BUSY: the block is mapped elsewhere too. MF_E_NO_MEMORY,
 * MF_E_QUOTA: no table.
 */
enum mf_status stage2_split(struct stage2 *s2, unsigned root, gfn_t g);
/*
 * Splits what lies over an edge of [first, first + n), in every root, until each leaf is inside or
 * outside the range; *splits: how many. Errors of stage2_split; MF_AGAIN: a vCPU maps as fast as
 * this splits. What was split stays so.
 */
enum mf_status stage2_split_edges(struct stage2 *s2, gfn_t first, uint64_t n, unsigned *splits);
/*
 * The reverse: 512 leaves of one size, that fill a table and lie in one aligned block one behind
 * the other with the same access, become one leaf. MF_E_STATE: they do not, or a teardown is under
 * way.
 */
enum mf_status stage2_merge(struct stage2 *s2, unsigned root, gfn_t g);
/*
 * What leaves of [first, first + n) allow from here on. A leaf that lies only partly in the range:
 * MF_E_ALIGN, nothing changed. *epoch: see stage2_flushed. n at most S2_PART_MAX.
 */
#define S2_PART_MAX (UINT64_C(1) << 18)
enum mf_status stage2_protect(struct stage2 *s2, unsigned root, gfn_t first, uint64_t n,
                              unsigned access, uint64_t *epoch);
/*
 * Which guest frames of [first, first + n) were written since the last time: bit i of `bits`, which
 * has (n + 63) / 64 words, for frame first + i; a large leaf counts as a whole. The marks are
 * cleared. A vCPU may write on through what it has cached until *epoch is flushed: copy the frames
 * only then. n at most S2_PART_MAX. MF_E_RANGE.
 */
enum mf_status stage2_dirty_fetch(struct stage2 *s2, unsigned root, gfn_t first, uint64_t n,
                                  uint64_t *bits, uint64_t *epoch);
/* True when no viewer can hold a translation from before `epoch`. */
bool stage2_flushed(struct stage2 *s2, uint64_t epoch);

/*
 * Backs what is RAM and not yet backed from *at on, in root 0, by the largest aligned blocks that
 * the heap gives; nothing of them is touched, so the host commits no memory. About `budget` blocks;
 * MF_AGAIN until all is done. MF_E_NO_MEMORY, MF_E_QUOTA, MF_E_STATE: *at is where it stands.
 */
enum mf_status stage2_populate(struct stage2 *s2, gfn_t *at, uint64_t budget);
/*
 * The first run of mapped frames at or behind `from` in root 0 that lie one behind the other in
 * machine memory too, with one access. A very long run may be told in parts. MF_E_NOT_FOUND: none.
 */
struct s2_extent {
    gfn_t g;
    mfn_t m;
    uint64_t frames;
    unsigned access;
};
enum mf_status stage2_extent(struct stage2 *s2, gfn_t from, struct s2_extent *out);
/*
 * Makes the RAM from *at on read as zero, so that it goes back to the heap clean. For the end of a
 * VM: nobody may write it any more. MF_AGAIN until all is done; at most S2_ZERO_STEP frames a call,
 * or one leaf. Where the host offers no cheap way nothing is done.
 */
#define S2_ZERO_STEP UINT64_C(16384)
enum mf_status stage2_zero_step(struct stage2 *s2, gfn_t *at);

/* From here on maps and faults answer MF_E_STATE. Idempotent. */
void stage2_close(struct stage2 *s2);
/* Opens again after a full teardown (guest reset). MF_E_STATE when entries are left. */
enum mf_status stage2_reopen(struct stage2 *s2);

/* Returns retired frames whose epoch is acknowledged, at most `budget`; MF_AGAIN: more are ready,
 * MF_BLOCKED: some wait for a viewer, MF_OK: none retired. */
enum mf_status stage2_reap(struct stage2 *s2, uint64_t budget);

/* Turns the used-entry bitmaps on, in bounded steps while the VM runs; MF_AGAIN until done. */
enum mf_status stage2_track_step(struct stage2 *s2, uint64_t budget);
/* Off again; not while a teardown is under way, which may need them. */
void stage2_untrack(struct stage2 *s2);

/*
 * Tables and demand-faulted RAM come from chunks of the address space's own from here on
 * (MF_TD_ARENA), or no more; what is mapped stays where it is. Turned off it gives back the chunks'
 * rests: not while a teardown is under way, when it stays as it is.
 */
void stage2_set_arena(struct stage2 *s2, bool on);

void stage2_get_info(struct stage2 *s2, struct s2_info *out);
unsigned stage2_roots(const struct stage2 *s2);
struct heap *stage2_heap(const struct stage2 *s2);

#endif
