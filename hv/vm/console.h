/*
 * The last bytes that a guest wrote to its console, by byte offset since the VM was made. The
 * buffer is allocated with the first byte. It also listens for what a Linux kernel says when it
 * panics: some of them have no other way to tell. Thread safe.
 */
#ifndef MAYFLY_VM_CONSOLE_H
#define MAYFLY_VM_CONSOLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONSOLE_PANIC_MAX 96u /* bytes of a panic's reason, with the zero */

struct console {
    pthread_mutex_t lock;
    /* under lock */
    uint8_t *ring;
    uint32_t size;
    uint64_t end;   /* bytes ever written */
    unsigned heard; /* bytes of the panic line's beginning that were the last ones written */
    bool in_panic;  /* they were there: its reason follows until the end of the line */
    bool panicked;  /* at any time in this life */
    unsigned panic_len;
    char panic[CONSOLE_PANIC_MAX]; /* the reason */
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
/* The reason of the first panic that was heard since console_forget; false and empty: none was. */
bool console_panic(struct console *c, char reason[CONSOLE_PANIC_MAX]);
/* Another life begins: what the last one said does not count. */
void console_forget(struct console *c);

#endif
