/*
 * What the core gives up once it runs: new programs, new sockets, looking into other processes.
 */
#ifndef MAYFLY_SANDBOX_H
#define MAYFLY_SANDBOX_H

#include <stdbool.h>

/*
 * For all threads. Loading plugins by file descriptor still works. False, errno set: the host does
 * not do it. Does nothing (true) in builds with sanitizers, which need more than the core does.
 */
bool sandbox_enter(void);

#endif
