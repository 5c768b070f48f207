/* What the daemon is told: by the command line, else by hvd.conf, else defaults. */
#ifndef MAYFLY_DAEMON_OPTIONS_H
#define MAYFLY_DAEMON_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/checker.h"
#include "daemon/problem.h"

struct options {
    char *socket;    /* absolute path */
    char *hv_socket; /* absolute path */
    char *hv_log;
    char *vms_dir;
    char *verdicts; /* file of the verdicts on plugins */
    enum check_mode plugin_check;
    uint64_t memory; /* bytes */
    char *allocator;
    char *teardown;
    char *engine;       /* NULL: the core's own default */
    uint64_t idle_exit; /* seconds, 0: never */
    bool verbose;
    bool help, version;
};

/* Reads both, and makes the runtime directory. MF_E_RANGE and others name the option. */
enum mf_status options_init(struct options *o, int argc, char **argv, struct problem *p);
void options_fini(struct options *o);
extern const char options_usage[];

#endif
