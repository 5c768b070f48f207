/*
 * Errors as they leave the core: a status, the field at fault and one sentence. Every function
 * that checks input takes a `struct mf_error *` (may be NULL) and fills it when it fails.
 */
#ifndef MAYFLY_HOST_ERROR_H
#define MAYFLY_HOST_ERROR_H

#include "proto/hypercall.h"

/* Fills *e (truncating) and returns `st`, so that it can stand in a return statement. */
__attribute__((format(printf, 4, 5))) enum mf_status
error_set(struct mf_error *e, enum mf_status st, const char *field, const char *fmt, ...);
/* The status's own sentence, unless *e already has one. */
enum mf_status error_default(struct mf_error *e, enum mf_status st);

#endif
