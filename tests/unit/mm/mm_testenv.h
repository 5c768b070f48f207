/*
 * A small machine for tests of hv/mm: an arena of anonymous memory, an environment in which failure
 * can be injected, the strategies loaded from the build tree.
 */
#ifndef MAYFLY_TEST_MM_TESTENV_H
#define MAYFLY_TEST_MM_TESTENV_H

#include "hv/mm/heap_impl.h"
#include "hv/mm/stage2_impl.h"
#include "hv/mm/teardown.h"

struct mm_testenv {
    struct mm_env env;
    struct mm_arena arena;
    struct heap *heap;
    /* The n-th reserve from now on fails; 0: none does. */
    unsigned fail_reserve;
    unsigned reserves; /* not yet released */
    unsigned punches, log_lines;
    char last_line[256];
};

/* A machine with `frames` frames and an empty heap for `cpus` CPUs, without an allocator. */
void mm_testenv_init(struct mm_testenv *t, uint64_t frames, unsigned cpus);
/* Destroys the heap and checks that all metadata was released. */
void mm_testenv_fini(struct mm_testenv *t);
/* The plugin "<kind>_<name>.so" of the build tree; loaded once and kept. */
const struct mf_plugin *mm_test_plugin(const char *kind, const char *name);
const struct mf_allocator_ops *mm_test_allocator(const char *name);
const struct mf_teardown_ops *mm_test_teardown(const char *name);
/* Selects an allocator and expects success. */
void mm_testenv_select(struct mm_testenv *t, const char *name);
/* Walks the frame table and expects `used` frames in use and nothing wrong. */
void mm_testenv_audit(struct mm_testenv *t, uint64_t used);
/* Tears everything of s2 down, reaps, destroys. For the end of a test; no viewer may be inside. */
void mm_test_end_stage2(struct stage2 *s2, const struct mf_teardown_ops *ops);
/* Builds the reference tree of the design in root 0; its 8 frames are of `s2`'s owner. */
void mm_test_reference_tree(struct stage2 *s2);

/* xorshift: the same numbers for the same seed. */
static inline uint64_t mm_test_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

#endif
