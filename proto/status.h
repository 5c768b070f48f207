/*
 * Status codes: one table (status.def) makes the enum, the code words and the texts.
 * A function that can fail returns `enum mf_status`; MF_OK is zero; MF_AGAIN and MF_BLOCKED are
 * not errors.
 */
#ifndef MAYFLY_STATUS_H
#define MAYFLY_STATUS_H

#include <stddef.h>
#include <stdint.h>

enum mf_status {
#define MF_STATUS(sym, val, code, http, text) sym = val,
#include "status.def"
#undef MF_STATUS
    MF_STATUS_END_
};

struct mf_status_row {
    enum mf_status value;
    int http;
    const char *symbol;
    const char *code;
    const char *text;
};

/* The row of `st`, or the row of MF_E_INTERNAL for a number that is no status. Static storage. */
static inline const struct mf_status_row *mf_status_row(unsigned st)
{
    static const struct mf_status_row rows[] = {
#define MF_STATUS(sym, val, code, http, text) [val] = {sym, http, #sym, code, text},
#include "status.def"
#undef MF_STATUS
    };
    return st < MF_STATUS_END_ ? &rows[st] : &rows[MF_E_INTERNAL];
}

static inline const char *mf_status_code(unsigned st)
{
    return mf_status_row(st)->code;
}

static inline const char *mf_status_text(unsigned st)
{
    return mf_status_row(st)->text;
}

#endif
