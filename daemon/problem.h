/* What went wrong with a request: the parts of a problem document (RFC 9457). */
#ifndef MAYFLY_DAEMON_PROBLEM_H
#define MAYFLY_DAEMON_PROBLEM_H

#include "daemon/jsonw.h"
#include "proto/status.h"

struct problem {
    enum mf_status status; /* MF_OK: none */
    char field[64];        /* member, parameter or element at fault; empty when none is */
    char detail[320];      /* one sentence for a person */
    char rule[40];         /* conformance rule that a plugin breaks; empty when it is not that */
};

/*
 * Fills `p` and returns `status`. `field` may be NULL. A detail that does not fit is cut. A request
 * that is wrong has one problem: a `p` that is filled already stays as it is.
 */
enum mf_status problem_set(struct problem *p, enum mf_status status, const char *field,
                           const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Out of memory in the daemon itself. */
enum mf_status problem_nomem(struct problem *p);

/* The document. */
void problem_json(const struct problem *p, struct jsonw *w);

#endif
