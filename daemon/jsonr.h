/* Reads the JSON text of a request within limits. */
#ifndef MAYFLY_DAEMON_JSONR_H
#define MAYFLY_DAEMON_JSONR_H

#include <json-c/json.h>
#include <stddef.h>

#include "daemon/problem.h"

/*
 * One JSON object and nothing else: strict syntax, valid UTF-8, at most DEF_JSON_DEPTH deep. The
 * caller puts *out. MF_E_MALFORMED names the byte at fault; MF_E_TOO_BIG, MF_E_NO_MEMORY.
 */
enum mf_status json_read_object(const char *text, size_t len, struct json_object **out,
                                struct problem *p);

/*
 * An object with exactly the one member `key`, a string without a zero in it. The caller frees
 * *out. Errors as above.
 */
enum mf_status json_read_one(const char *text, size_t len, const char *key, char **out,
                             struct problem *p);

#endif
