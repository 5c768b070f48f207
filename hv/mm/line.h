/*
 * Builds one log line without libc. Text that does not fit is cut off.
 */
#ifndef MAYFLY_MM_LINE_H
#define MAYFLY_MM_LINE_H

#include "hv/mm/env.h"

struct mm_line {
    size_t len;
    char text[200];
};

static inline void mm_line_str(struct mm_line *l, const char *s)
{
    while (*s && l->len + 1 < sizeof l->text)
        l->text[l->len++] = *s++;
    l->text[l->len] = '\0';
}

static inline void mm_line_num(struct mm_line *l, uint64_t v)
{
    char digits[21];
    unsigned n = sizeof digits - 1;

    digits[n] = '\0';
    do
        digits[--n] = (char)('0' + v % 10);
    while (v /= 10);
    mm_line_str(l, digits + n);
}

static inline void mm_log(const struct mm_env *env, enum mm_log_level level,
                          const struct mm_line *l)
{
    if (env->log)
        env->log(env->arg, level, l->text);
}

#endif
