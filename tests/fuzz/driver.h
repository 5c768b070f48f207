/*
 * A fuzz target is LLVMFuzzerTestOneInput (so that libFuzzer can drive it too) and some seeds. The
 * driver mutates the seeds by a fixed sequence of random numbers: the same run each time.
 */
#ifndef MAYFLY_FUZZ_DRIVER_H
#define MAYFLY_FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define FUZZ_MAX 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Writes seed `i` into `buf` (FUZZ_MAX bytes) and returns its size; 0 when there is none. */
size_t fuzz_seed(unsigned i, uint8_t *buf);

/* Ends the program when a property does not hold. */
#define FUZZ_ASSERT(cond)                                                                          \
    do {                                                                                           \
        if (!(cond))                                                                               \
            fuzz_fail(#cond, __FILE__, __LINE__);                                                  \
    } while (0)
void fuzz_fail(const char *what, const char *file, int line);

#endif
