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

void console_put(struct console *c, const uint8_t *bytes, size_t n)
{
    pthread_mutex_lock(&c->lock);
    if (!c->ring)
        c->ring = malloc(c->size);
    for (size_t i = 0; c->ring && i < n; i++)
        c->ring[(c->end + i) % c->size] = bytes[i];
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
