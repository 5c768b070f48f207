/*
 * A growing byte buffer. A failed allocation sticks: later appends do nothing, and the owner asks
 * `failed` once at the end instead of after every append.
 */
#ifndef MAYFLY_DAEMON_BUF_H
#define MAYFLY_DAEMON_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *p; /* owned; `len` bytes, zero terminated once anything was appended */
    size_t len;
    size_t cap;
    bool failed;
};

/* Starts empty: a zeroed struct buf is a valid one. */
void buf_fini(struct buf *b);
/* Makes room for `n` more bytes and a zero. False when out of memory. */
bool buf_reserve(struct buf *b, size_t n);
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_char(struct buf *b, char c);
void buf_fmt(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Hands the bytes over to the caller, who frees them; the buffer is empty afterwards. */
char *buf_take(struct buf *b, size_t *len);

#endif
