#include "hv/host/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum mf_status error_set(struct mf_error *e, enum mf_status st, const char *field, const char *fmt,
                         ...)
{
    va_list ap;

    if (!e)
        return st;
    memset(e, 0, sizeof *e);
    snprintf(e->field, sizeof e->field, "%s", field ? field : "");
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return st;
}

enum mf_status error_default(struct mf_error *e, enum mf_status st)
{
    if (e && !e->text[0])
        error_set(e, st, e->field[0] ? "" : NULL, "%s", mf_status_text(st));
    return st;
}
