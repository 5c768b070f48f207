/*
 * The frame table: who owns each frame of machine memory. It is the truth about ownership; an
 * allocator plugin only proposes.
 *
 * All of it is zero at the start and zero means free: an untouched table is a valid one, so a heap
 * of any size starts without writing here. Sparse arrays:
 *
 *   rec[frame]      16 bytes; the first 8 written for the *head* of an allocated block only. Zero
 *                   there: free, or inside a larger block. Frames at a 2 MiB boundary have theirs
 *                   in an array of their own, so that the records of large blocks lie dense.
 *   mark[frame]     one byte: in use; free and not yet scrubbed; to go out of use when it is freed.
 *                   Being per frame it survives split and merge of blocks. Only who holds a frame
 *                   changes its byte, so giving it back is a plain store and taking it is one
 *                   compare-and-swap that refuses a block which the allocator gives twice.
 *   group[2 MiB]    belongs to one block of order >= 9, whose marks are not kept; all of it is
 *                   dirty, whatever the marks say; and hints that save looking at the marks.
 *
 * A free frame that is not dirty reads as zero.
 */
#ifndef MAYFLY_MM_FRAME_H
#define MAYFLY_MM_FRAME_H

#include "hv/mm/env.h"

enum frame_state {
    FRAME_FREE = 0,
    FRAME_USED = 1,
    FRAME_RETIRED = 2, /* no longer mapped, a vCPU may still hold a translation */
    FRAME_OFFLINE = 3, /* taken out of use */
    FRAME_LEAVING = 4, /* is being scrubbed on its way out of its owner's hands */
};

enum frame_type {
    FRAME_T_NONE = 0,
    FRAME_T_RAM = 1,   /* of a guest */
    FRAME_T_TABLE = 2, /* second-stage table */
    FRAME_T_CORE = 3,  /* of the core itself */
};

#define OWNER_NONE   0u
#define OWNER_CORE   1u
#define OWNER_VM(id) ((uint32_t)(id) + 16u) /* owners of VMs */

#define FRAME_CLEAN 5u
#define FRAME_STALE 6u

struct frame {
    uint32_t owner;
    uint8_t order;
    uint8_t type;  /* enum frame_type */
    uint8_t state; /* enum frame_state */
    uint8_t level; /* of a table: 1 to 4, FRAME_STALE at its end when it has entries left; of RAM:
                      FRAME_CLEAN when it reads as zero at its end */
    union {
        struct {
            uint64_t
                gfn : 40; /* the first guest frame it backs, in root 0 or the first to map it */
            uint64_t maps : 24; /* leaves that point to it */
        } ram;
        uint64_t next; /* RETIRED: mfn + 1 of the next in the queue, 0 at the end */
        struct {
            uint64_t count : 16; /* entries in use, 0 to 512 */
            uint64_t sum : 9;    /* XOR of their indexes: of one entry, where it is */
            uint64_t kept : 1;   /* the bitmap of used entries is right */
            uint64_t root : 6;   /* index of the root it hangs below */
            uint64_t base : 32;  /* first guest frame it can map, divided by 512 */
        } table;
        uint64_t last; /* free and dirty: who freed it as a block of order 0 or, for the record of
                          a 2 MiB, as a part of one of order >= 9; 0 when not known */
        uint64_t word;
    } u;
};

_Static_assert(sizeof(struct frame) == 16, "a frame record is 16 bytes");

#endif
