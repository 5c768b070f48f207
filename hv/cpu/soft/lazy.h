/*
 * Zeroed memory of which only the touched pages cost anything, for tables that are large and mostly
 * empty. malloc does not promise that: it clears, or gives back used, what is not fresh.
 */
#ifndef MAYFLY_CPU_SOFT_LAZY_H
#define MAYFLY_CPU_SOFT_LAZY_H

#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The leak checker looks for pointers in what malloc gave, not in mappings. */
#if defined(__SANITIZE_ADDRESS__)
#define LAZY_MAPS 0
#else
#define LAZY_MAPS 1
#endif

/* NULL without memory. The caller gives it back with lazy_free and the same size. */
static inline void *lazy_alloc(size_t bytes)
{
    void *p;

    if (!LAZY_MAPS)
        return calloc(1, bytes);
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    return p == MAP_FAILED ? NULL : p;
}

/* Takes NULL. */
static inline void lazy_free(void *p, size_t bytes)
{
    if (!LAZY_MAPS)
        free(p);
    else if (p)
        munmap(p, bytes);
}

#endif
