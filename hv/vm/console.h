/*
 * The last bytes that a guest wrote to its console, by byte offset since the VM was made. The
 * buffer is allocated with the first byte. Thread safe.
 */
#ifndef MAYFLY_VM_CONSOLE_H
#define MAYFLY_VM_CONSOLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct console {
    pthread_mutex_t lock;
    /* under lock */
    uint8_t *ring;
    uint32_t size;
    uint64_t end; /* bytes ever written */
};

void console_init(struct console *c, uint32_t size);
void console_fini(struct console *c);
/* Without host memory for the buffer the bytes are counted and lost. */
void console_put(struct console *c, const uint8_t *bytes, size_t n);
/*
 * Copies at most `max` bytes from *offset on. *offset moves up when older bytes are gone, and down
 * to the end when it lay beyond. Returns how many; *end: bytes ever written.
 */
size_t console_get(struct console *c, uint64_t *offset, uint8_t *out, size_t max, uint64_t *end);
uint64_t console_end(struct console *c);

#endif
