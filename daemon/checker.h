/*
 * Has plugins checked for conformance before the core gets them: runs mayfly-plugin-check on each
 * in a process of its own, a few at a time, and keeps the verdicts (verdicts.h). Loop thread only.
 */
#ifndef MAYFLY_DAEMON_CHECKER_H
#define MAYFLY_DAEMON_CHECKER_H

#include <uv.h>

#include "daemon/problem.h"
#include "daemon/verdicts.h"

/* What is done about a plugin that is found in a directory. Setting `plugin-check`. */
enum check_mode {
    CHECK_ENFORCE, /* checked; what breaks a rule is refused */
    CHECK_WARN,    /* checked; what breaks a rule is told in the log and loaded */
    CHECK_OFF,     /* not checked */
};

struct checker {
    uv_loop_t *loop;
    struct verdicts verdicts;
    struct check *first, **last; /* those that wait and those that run, in order */
    unsigned running;
    unsigned made, broken; /* checks made and rules broken, for the metrics */
    bool unsaved;          /* verdicts that are not in the file yet */
    bool quitting;
};

/* `v` is valid during the callback; NULL: the check could not be made, and `why` says so. */
typedef void (*checker_fn)(void *arg, const struct verdict *v, const char *why);

/* Keeps verdicts in `path`, which is taken over; NULL: not beyond this process. */
void checker_init(struct checker *c, uv_loop_t *loop, char *path);
/* Ends what runs and answers everybody; the loop must run once more before it is closed. */
void checker_quit(struct checker *c);
/* Once nothing runs any more. */
void checker_fini(struct checker *c);

/*
 * The verdict on the plugin behind `fd`, which stays the caller's. `fn` is called exactly once,
 * before this returns when the verdict is known already.
 */
void checker_run(struct checker *c, int fd, checker_fn fn, void *arg);

/* "breaks the rule NAME: ..." as a problem of the field `path`. */
enum mf_status checker_problem(const struct verdict *v, const char *why, struct problem *p);

#endif
