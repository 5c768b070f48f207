/* What is done with a core between the connection and the first request. See core.h. */
#ifndef MAYFLY_DAEMON_SETUP_H
#define MAYFLY_DAEMON_SETUP_H

#include "daemon/core.h"

/* hello, events, plugins, selections, list of VMs; ends in core_is_up or core_failed. */
void setup_begin(struct core *c);
/* Nobody waits for the verdicts of the scan under way any more. */
void setup_forget_scan(struct core *c);

/* For setup.c and launch.c, in core.c. */
void core_failed(struct core *c, const char *why);
void core_is_up(struct core *c);
void core_is_another(struct core *c);
void core_process_ended(struct core *c, const char *how);

#endif
