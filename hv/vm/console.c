#include "hv/vm/console.h"

#include <stdlib.h>
#include <string.h>

void console_init(struct console *c, uint32_t size)
{
    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    c->size = size;
}

void console_fini(struct console *c)
{
    free(c->ring);
    c->ring = NULL;
    pthread_mutex_destroy(&c->lock);
}

/* Waits for the line that Linux prints when it panics, and takes the rest of it. */
static void listen(struct console *c, char byte)
{
    static const char line[] = "Kernel panic - not syncing: ";

    if (c->in_panic) {
        if (byte == '\n' || byte == '\r' || c->panic_len == CONSOLE_PANIC_MAX - 1)
            c->in_panic = false;
        else if (byte >= ' ' && byte <= '~')
            c->panic[c->panic_len++] = byte;
        return;
    }
    /* No part of the line but its first byte begins it. */
    c->heard = byte == line[c->heard] ? c->heard + 1 : byte == line[0];
    if (!line[c->heard]) {
        c->heard = 0;
        c->in_panic = !c->panicked;
        c->panicked = true;
    }
}

void console_put(struct console *c, const uint8_t *bytes, size_t n)
{
    pthread_mutex_lock(&c->lock);
    if (!c->ring)
        c->ring = malloc(c->size);
    for (size_t i = 0; c->ring && i < n; i++)
        c->ring[(c->end + i) % c->size] = bytes[i];
    for (size_t i = 0; i < n; i++)
        listen(c, (char)bytes[i]);
    c->end += n;
    pthread_mutex_unlock(&c->lock);
}

size_t console_get(struct console *c, uint64_t *offset, uint8_t *out, size_t max, uint64_t *end)
{
    size_t n = 0;

    pthread_mutex_lock(&c->lock);
    if (*offset > c->end)
        *offset = c->end;
    if (c->end - *offset > c->size)
        *offset = c->end - c->size;
    if (c->ring) {
        n = c->end - *offset < max ? (size_t)(c->end - *offset) : max;
        for (size_t i = 0; i < n; i++)
            out[i] = c->ring[(*offset + i) % c->size];
    }
    *end = c->end;
    pthread_mutex_unlock(&c->lock);
    return n;
}

uint64_t console_end(struct console *c)
{
    uint64_t end;

    pthread_mutex_lock(&c->lock);
    end = c->end;
    pthread_mutex_unlock(&c->lock);
    return end;
}

bool console_panic(struct console *c, char reason[CONSOLE_PANIC_MAX])
{
    pthread_mutex_lock(&c->lock);
    bool panicked = c->panicked;
    memcpy(reason, c->panic, CONSOLE_PANIC_MAX);
    pthread_mutex_unlock(&c->lock);
    return panicked;
}

void console_forget(struct console *c)
{
    pthread_mutex_lock(&c->lock);
    c->heard = 0;
    c->in_panic = c->panicked = false;
    c->panic_len = 0;
    memset(c->panic, 0, sizeof c->panic);
    pthread_mutex_unlock(&c->lock);
}
