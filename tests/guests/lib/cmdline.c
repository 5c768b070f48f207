#include "lib/guest.h"

static const char *text = "";

void cmdline_init(const struct start_info *si)
{
    if (si && si->cmdline)
        text = (const char *)(uintptr_t)si->cmdline;
}

const char *cmdline_text(void)
{
    return text;
}

static size_t word_length(const char *s)
{
    size_t n = 0;
    while (s[n] && s[n] != ' ')
        n++;
    return n;
}

const char *cmdline_find(const char *key, size_t *len)
{
    size_t keylen = strlen(key), n;
    for (const char *s = text; *s; s += n) {
        n = word_length(s);
        if (n == 0) {
            n = 1; /* a blank */
            continue;
        }
        if (n < keylen || memcmp(s, key, keylen) != 0)
            continue;
        if (n == keylen || s[keylen] == '=') {
            *len = n == keylen ? 0 : n - keylen - 1;
            return n == keylen ? s + n : s + keylen + 1;
        }
    }
    return NULL;
}

bool cmdline_has(const char *key)
{
    size_t len;
    return cmdline_find(key, &len) != NULL;
}

static unsigned digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    if (c >= 'a' && c <= 'f')
        return (unsigned)(c - 'a') + 10;
    return 99;
}

uint64_t cmdline_number(const char *key, uint64_t otherwise)
{
    size_t len, i = 0;
    unsigned base = 10;
    uint64_t v = 0;
    const char *s = cmdline_find(key, &len);
    if (!s || len == 0)
        return otherwise;
    if (len > 2 && s[0] == '0' && s[1] == 'x') {
        base = 16;
        i = 2;
    }
    for (; i < len && digit_of(s[i]) < base; i++)
        v = v * base + digit_of(s[i]);
    if (i < len)
        v <<= s[i] == 'K' ? 10 : s[i] == 'M' ? 20 : s[i] == 'G' ? 30 : 0;
    return v;
}

bool cmdline_lists(const char *key, const char *word)
{
    size_t len, n, want = strlen(word);
    const char *s = cmdline_find(key, &len);
    if (!s)
        return false;
    for (const char *end = s + len; s < end; s += n + 1) {
        for (n = 0; s + n < end && s[n] != ','; n++)
            ;
        if (n == want && memcmp(s, word, n) == 0)
            return true;
    }
    return false;
}
