/*
 * The model that an allocator is compared with: what each frame is, and the blocks that are out.
 * Calls into the plugin go through here and are checked where they come back.
 */
#ifndef MAYFLY_CONFORM_ALLOC_MODEL_H
#define MAYFLY_CONFORM_ALLOC_MODEL_H

#include "conform/impl.h"

enum { FRAME_STRANGE, FRAME_FREE, FRAME_OUT, FRAME_SEEN }; /* SEEN: free, and listed */

struct block {
    uint64_t first;
    uint32_t order;
};

struct world {
    const struct mf_allocator_ops *ops;
    struct conform_rng *rng;
    struct conform_area meta, env_area;
    struct mf_alloc_env *env;
    uint64_t frames, free;
    uint8_t *state; /* per frame */
    struct block *out;
    uint64_t nr_out, cap_out;
    uint64_t since_check; /* operations */
};

#define OPS_HAS(ops, member)                                                                       \
    ((ops)->size >= offsetof(struct mf_allocator_ops, member) + sizeof((ops)->member) &&           \
     (ops)->member)

/* A world without free frames. `old_env`: as a core tells that knows less of the structure. */
void world_open(struct world *w, const struct mf_allocator_ops *ops, struct conform_rng *rng,
                uint64_t frames, uint32_t cpus, bool old_env);
/* fini, and the metadata goes; what is out stays out in the model until world_forget. */
void world_close(struct world *w);
void world_forget(struct world *w);

void world_add(struct world *w, uint64_t first, uint64_t n);
/* Random ranges with holes between them, or everything. */
void world_add_random(struct world *w);
/* One block; false: there is none, which was checked. */
bool world_alloc(struct world *w, uint32_t order, struct block *b);
void world_free(struct world *w, uint64_t i);
/* Block `i` comes back in two parts or more. */
void world_free_parts(struct world *w, uint64_t i);
void world_take(struct world *w, uint64_t first, uint64_t n);
/* Puts a block on the list of what is out. */
void world_out(struct world *w, struct block b);
/* Everything that can be looked at. */
void world_check(struct world *w);
/* All blocks come back, then everything is looked at. */
void world_free_all(struct world *w);

#endif
