/* Starts the core as a process that outlives the daemon. */
#ifndef MAYFLY_DAEMON_LAUNCH_H
#define MAYFLY_DAEMON_LAUNCH_H

#include "daemon/core.h"

/* Owned by the loop; gone once core_process_ended has been called. */
struct core_process;

/* NULL with the problem set. */
struct core_process *launch_start(struct core *c, struct problem *p);
/* When the process has ended but the loop has not said so yet: how, else false. */
bool launch_wait(struct core_process *l, char *how, size_t size);
/* Its end is nobody's business any more. */
void launch_forget(struct core_process *l);

#endif
