/*
 * A Unix stream socket that at most one process owns: the owner holds a lock on `<name>.lock`
 * beside `<name>.sock` for as long as it lives, however it dies.
 */
#ifndef MAYFLY_DAEMON_LISTEN_H
#define MAYFLY_DAEMON_LISTEN_H

#include "daemon/problem.h"

struct listener {
    int fd;     /* listening, non-blocking; -1: none */
    int lock;   /* fd */
    char *path; /* owned */
};

/*
 * Takes the lock, replaces a stale socket, listens with mode 0600. MF_E_BUSY names the owner's
 * process; MF_E_IO. On failure nothing is changed and `l` owns nothing.
 */
enum mf_status listener_init(struct listener *l, const char *path, struct problem *p);
/* Removes the socket, then lets go of the lock. `keep_fd`: somebody else has closed `fd`. */
void listener_fini(struct listener *l, bool keep_fd);

#endif
