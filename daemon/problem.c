#include "daemon/problem.h"

#include <stdarg.h>
#include <stdio.h>

enum mf_status problem_set(struct problem *p, enum mf_status status, const char *field,
                           const char *fmt, ...)
{
    va_list ap;

    if (p->status != MF_OK)
        return p->status;
    p->status = status;
    snprintf(p->field, sizeof p->field, "%s", field == NULL ? "" : field);
    va_start(ap, fmt);
    vsnprintf(p->detail, sizeof p->detail, fmt, ap);
    va_end(ap);
    return status;
}

enum mf_status problem_nomem(struct problem *p)
{
    return problem_set(p, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
}

void problem_json(const struct problem *p, struct jsonw *w)
{
    const struct mf_status_row *row = mf_status_row(p->status);

    jsonw_object(w);
    jsonw_kstr(w, "type", "about:blank");
    jsonw_kstr(w, "title", row->text);
    jsonw_ku64(w, "status", (uint64_t)row->http);
    jsonw_kstr(w, "code", row->code);
    jsonw_kstr(w, "detail", p->detail[0] != '\0' ? p->detail : row->text);
    if (p->field[0] != '\0')
        jsonw_kstr(w, "field", p->field);
    if (p->rule[0] != '\0')
        jsonw_kstr(w, "rule", p->rule);
    jsonw_object_end(w);
}
