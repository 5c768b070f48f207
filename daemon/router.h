/* Finds the route of a request by method and path. Pure. */
#ifndef MAYFLY_DAEMON_ROUTER_H
#define MAYFLY_DAEMON_ROUTER_H

#include <stddef.h>

#include "daemon/http.h"

/*
 * The route that takes `method` at `path`, or NULL. `path` is cut into segments: those that stand
 * for {…} are in arg[]. `allow` gets the methods that the path takes, as the Allow header lists
 * them, when the path is known but the method is not; else "". HEAD is taken where GET is.
 */
const struct route *router_find(const struct route *table, size_t n, const char *method, char *path,
                                const char **arg, size_t nr_args, char *allow, size_t allow_size);

#endif
