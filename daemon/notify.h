/* Tells the service manager how we do, when there is one (NOTIFY_SOCKET). */
#ifndef MAYFLY_DAEMON_NOTIFY_H
#define MAYFLY_DAEMON_NOTIFY_H

/* `state` as in "READY=1". Failures are nobody's business. */
void notify(const char *state);

#endif
