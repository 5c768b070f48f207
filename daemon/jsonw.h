/* Writes JSON text into a buffer. The caller nests correctly; commas are put where they belong. */
#ifndef MAYFLY_DAEMON_JSONW_H
#define MAYFLY_DAEMON_JSONW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/buf.h"

struct jsonw {
    struct buf b;
    bool comma; /* a value was written at this level */
};

void jsonw_fini(struct jsonw *w);
void jsonw_object(struct jsonw *w);
void jsonw_object_end(struct jsonw *w);
void jsonw_array(struct jsonw *w);
void jsonw_array_end(struct jsonw *w);
/* `key` is written as it stands: no character of it may need an escape. */
void jsonw_key(struct jsonw *w, const char *key);
/* Bytes that are not part of valid UTF-8 become U+FFFD, one each. */
void jsonw_strn(struct jsonw *w, const char *s, size_t n);
void jsonw_str(struct jsonw *w, const char *s);
void jsonw_u64(struct jsonw *w, uint64_t v);
void jsonw_i64(struct jsonw *w, int64_t v);
void jsonw_bool(struct jsonw *w, bool v);
void jsonw_null(struct jsonw *w);

/* A member in one go. */
void jsonw_kstr(struct jsonw *w, const char *key, const char *s);
void jsonw_ku64(struct jsonw *w, const char *key, uint64_t v);
void jsonw_kbool(struct jsonw *w, const char *key, bool v);
/* An array of `n` numbers. */
void jsonw_ku64s(struct jsonw *w, const char *key, const uint64_t *v, size_t n);

/*
 * Length of the UTF-8 sequence at `s` (1 to 4), 0 when the bytes there are none. `n` > 0 bytes are
 * there. Surrogates, overlong forms and values above U+10FFFF are none.
 */
size_t utf8_sequence(const unsigned char *s, size_t n);

#endif
