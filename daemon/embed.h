/* Files of proto/ that are part of the program; written by embed.py when it is built. */
#ifndef MAYFLY_DAEMON_EMBED_H
#define MAYFLY_DAEMON_EMBED_H

#include <stddef.h>

extern const char embed_openapi_json[]; /* zero terminated */
extern const size_t embed_openapi_json_len;
extern const char embed_domain_rng[];
extern const size_t embed_domain_rng_len;

#endif
