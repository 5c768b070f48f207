#include "daemon/jsonw.h"

#include <string.h>

void jsonw_fini(struct jsonw *w)
{
    buf_fini(&w->b);
    w->comma = false;
}

static void before_value(struct jsonw *w)
{
    if (w->comma)
        buf_char(&w->b, ',');
    w->comma = false;
}

void jsonw_object(struct jsonw *w)
{
    before_value(w);
    buf_char(&w->b, '{');
}

void jsonw_object_end(struct jsonw *w)
{
    buf_char(&w->b, '}');
    w->comma = true;
}

void jsonw_array(struct jsonw *w)
{
    before_value(w);
    buf_char(&w->b, '[');
}

void jsonw_array_end(struct jsonw *w)
{
    buf_char(&w->b, ']');
    w->comma = true;
}

void jsonw_key(struct jsonw *w, const char *key)
{
    before_value(w);
    buf_char(&w->b, '"');
    buf_str(&w->b, key);
    buf_add(&w->b, "\":", 2);
}

/* The lead byte says the length and the least second byte that is not overlong. */
size_t utf8_sequence(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80)
        return 1;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n < len)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if (s[0] == 0xe0 && s[1] < 0xa0)
        return 0;
    if (s[0] == 0xed && s[1] > 0x9f)
        return 0;
    if (s[0] == 0xf0 && s[1] < 0x90)
        return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f)
        return 0;
    return len;
}

static void put_escape(struct buf *b, unsigned char c)
{
    static const char hex[] = "0123456789abcdef";
    const char *from = "\"\\\b\f\n\r\t";
    const char *to = "\"\\bfnrt";
    const char *at = c == 0 ? NULL : strchr(from, c);

    buf_char(b, '\\');
    if (at != NULL) {
        buf_char(b, to[at - from]);
        return;
    }
    char u[5] = {'u', '0', '0', hex[c >> 4], hex[c & 15]};
    buf_add(b, u, sizeof u);
}

/* How many bytes from `s` on need no escape and are plain ASCII. */
static size_t plain_run(const unsigned char *s, size_t n)
{
    size_t i = 0;

    while (i < n && s[i] >= 0x20 && s[i] < 0x7f && s[i] != '"' && s[i] != '\\')
        i++;
    return i;
}

void jsonw_strn(struct jsonw *w, const char *str, size_t n)
{
    const unsigned char *s = (const unsigned char *)str;

    before_value(w);
    buf_char(&w->b, '"');
    for (size_t i = 0; i < n;) {
        size_t run = plain_run(s + i, n - i);
        if (run > 0) {
            buf_add(&w->b, s + i, run);
            i += run;
            continue;
        }
        size_t len = utf8_sequence(s + i, n - i);
        if (len == 0)
            buf_str(&w->b, "\xef\xbf\xbd");
        else if (len == 1 && s[i] != 0x7f)
            put_escape(&w->b, s[i]);
        else
            buf_add(&w->b, s + i, len);
        i += len == 0 ? 1 : len;
    }
    buf_char(&w->b, '"');
    w->comma = true;
}

void jsonw_str(struct jsonw *w, const char *s)
{
    jsonw_strn(w, s, strlen(s));
}

void jsonw_u64(struct jsonw *w, uint64_t v)
{
    char digits[20];
    size_t i = sizeof digits;

    before_value(w);
    do {
        digits[--i] = (char)('0' + v % 10);
        v /= 10;
    } while (v > 0);
    buf_add(&w->b, digits + i, sizeof digits - i);
    w->comma = true;
}

void jsonw_i64(struct jsonw *w, int64_t v)
{
    if (v >= 0) {
        jsonw_u64(w, (uint64_t)v);
        return;
    }
    before_value(w);
    buf_char(&w->b, '-');
    jsonw_u64(w, 0 - (uint64_t)v);
}

void jsonw_bool(struct jsonw *w, bool v)
{
    before_value(w);
    buf_str(&w->b, v ? "true" : "false");
    w->comma = true;
}

void jsonw_null(struct jsonw *w)
{
    before_value(w);
    buf_str(&w->b, "null");
    w->comma = true;
}

void jsonw_kstr(struct jsonw *w, const char *key, const char *s)
{
    jsonw_key(w, key);
    jsonw_str(w, s);
}

void jsonw_ku64(struct jsonw *w, const char *key, uint64_t v)
{
    jsonw_key(w, key);
    jsonw_u64(w, v);
}

void jsonw_kbool(struct jsonw *w, const char *key, bool v)
{
    jsonw_key(w, key);
    jsonw_bool(w, v);
}

void jsonw_ku64s(struct jsonw *w, const char *key, const uint64_t *v, size_t n)
{
    jsonw_key(w, key);
    jsonw_array(w);
    for (size_t i = 0; i < n; i++)
        jsonw_u64(w, v[i]);
    jsonw_array_end(w);
}
