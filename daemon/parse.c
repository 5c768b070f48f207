#include "daemon/parse.h"

#include <stdio.h>
#include <string.h>

#include "daemon/jsonw.h"
#include "proto/hypercall.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_alnum(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Reads digits from *at on and leaves *at behind them. */
static enum mf_status take_digits(const char **at, uint64_t *out)
{
    const char *s = *at;
    uint64_t v = 0;
    bool over = false;

    if (!is_digit(*s))
        return MF_E_MALFORMED;
    for (; is_digit(*s); s++)
        if (__builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            over = true;
    *at = s;
    *out = v;
    return over ? MF_E_RANGE : MF_OK;
}

enum mf_status parse_u64(const char *text, uint64_t *out)
{
    enum mf_status st = take_digits(&text, out);

    return *text != '\0' ? MF_E_MALFORMED : st;
}

/* The shift of a unit, -1 when there is no such unit. */
static int unit_shift(const char *unit)
{
    static const struct {
        const char *name;
        int shift;
    } units[] = {
        {"", 0},   {"b", 0},  {"bytes", 0}, {"k", 10},   {"K", 10},   {"KiB", 10},
        {"M", 20}, {"G", 30}, {"T", 40},    {"MiB", 20}, {"GiB", 30}, {"TiB", 40},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(unit, units[i].name) == 0)
            return units[i].shift;
    return -1;
}

static enum mf_status shifted(uint64_t v, int shift, uint64_t *bytes)
{
    if (shift < 0)
        return MF_E_MALFORMED;
    if (v > (UINT64_MAX >> shift))
        return MF_E_RANGE;
    *bytes = v << shift;
    return MF_OK;
}

enum mf_status parse_size(const char *text, uint64_t *bytes)
{
    uint64_t v;
    enum mf_status st = take_digits(&text, &v);

    if (st == MF_E_MALFORMED || unit_shift(text) < 0 || *text == 'b' || *text == 'k')
        return MF_E_MALFORMED;
    return st != MF_OK ? st : shifted(v, unit_shift(text), bytes);
}

enum mf_status parse_size_unit(const char *digits, const char *unit, uint64_t *bytes)
{
    uint64_t v;
    enum mf_status st = parse_u64(digits, &v);

    return st != MF_OK ? st : shifted(v, unit_shift(unit), bytes);
}

const char *parse_vm_name(const char *name)
{
    size_t n = strlen(name);

    if (n == 0)
        return "is empty";
    if (n >= MF_VM_NAME_MAX)
        return "is longer than 63 characters";
    for (size_t i = 0; i < n; i++)
        if (!is_alnum(name[i]) && strchr("._-", name[i]) == NULL)
            return "has a character other than A-Z a-z 0-9 . _ -";
    if (!is_alnum(name[0]))
        return "does not begin with a letter or a digit";
    if (strstr(name, "..") != NULL)
        return "has two dots in a row";
    if (strspn(name, "0123456789") == n)
        return "has digits only and would read as a number";
    return NULL;
}

const char *parse_strategy_name(const char *name)
{
    size_t n = strlen(name);

    if (n == 0)
        return "is empty";
    if (n >= MF_NAME_MAX)
        return "is longer than 31 characters";
    if (name[0] < 'a' || name[0] > 'z')
        return "does not begin with a small letter";
    for (size_t i = 0; i < n; i++)
        if (!(name[i] >= 'a' && name[i] <= 'z') && !is_digit(name[i]) && name[i] != '-')
            return "has a character other than a-z 0-9 -";
    return NULL;
}

static int hex_value(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool parse_uuid(const char *text, uint8_t uuid[16])
{
    if (strlen(text) != UUID_TEXT - 1)
        return false;
    for (size_t i = 0, at = 0; i < 16; i++, at += 2) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            if (text[at++] != '-')
                return false;
        int hi = hex_value(text[at]);
        int lo = hex_value(text[at + 1]);
        if (hi < 0 || lo < 0)
            return false;
        uuid[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

void uuid_format(const uint8_t uuid[16], char text[UUID_TEXT])
{
    static const char hex[] = "0123456789abcdef";
    size_t at = 0;

    for (size_t i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            text[at++] = '-';
        text[at++] = hex[uuid[i] >> 4];
        text[at++] = hex[uuid[i] & 15];
    }
    text[at] = '\0';
}

bool uuid_is_zero(const uint8_t uuid[16])
{
    static const uint8_t zero[16];

    return memcmp(uuid, zero, sizeof zero) == 0;
}

const char *parse_one_line(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = strlen(text);

    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence(s + i, n - i);
        if (len == 0)
            return "is not valid UTF-8";
        if (s[i] < 0x20 || s[i] == 0x7f)
            return "has a control character";
        if (len == 3 && s[i] == 0xef && s[i + 1] == 0xbf && s[i + 2] >= 0xbe)
            return "has a character that XML cannot hold";
        i += len;
    }
    return NULL;
}
