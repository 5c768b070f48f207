/*
 * Conformance kit: puts a plugin through its contract in a child process with limits and says which
 * rule it breaks. Used by `mayfly-plugin-check` (for the daemon and the CLI) and by tests.
 *
 * The child loads the plugin, so whatever its code does happens there: a fault, an endless loop, a
 * system call are findings like any other. The first finding ends the check; seed and operations
 * repeat it.
 */
#ifndef MAYFLY_CONFORM_H
#define MAYFLY_CONFORM_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/plugin.h"

enum conform_rule {
#define RULE(symbol, name, kind, text) CONFORM_##symbol,
#include "conform/rules.def"
#undef RULE
    CONFORM_RULES
};

enum conform_mark {
    CONFORM_NOT_RUN, /* not come to: another rule was broken before */
    CONFORM_KEPT,
    CONFORM_NOT_CLAIMED, /* the plugin does not claim it, or has no such op */
    CONFORM_BROKEN,
};

#define CONFORM_OPERATIONS     20000u
#define CONFORM_OPERATIONS_MAX 1000000000u
#define CONFORM_CPU_MS         2000u /* that one call may take, of the CPU's time */

struct conform_options {
    uint64_t seed;       /* any */
    uint64_t operations; /* 1 to CONFORM_OPERATIONS_MAX: model operations, for the whole check */
    uint64_t wall_ms;    /* for the whole check; 0: as long as it takes */
};

struct conform_verdict {
    bool ok;
    struct mf_plugin_note note; /* all zero when the file has none */
    uint64_t seed, operations;  /* asked for; done */
    uint64_t took_ns;
    uint8_t mark[CONFORM_RULES]; /* enum conform_mark */
    enum conform_rule broken;    /* CONFORM_RULES when ok */
    char during[48];             /* the call or phase in which it was found */
    char text[256];              /* what was found */
};

const char *conform_rule_name(enum conform_rule r);
const char *conform_rule_text(enum conform_rule r);
/* Does the rule concern plugins of this kind (enum mf_plugin_kind)? */
bool conform_rule_concerns(enum conform_rule r, uint32_t kind);

/*
 * Checks the plugin behind `fd`, which stays the caller's. False: the check itself could not be
 * made (errno), nothing is known about the plugin. One check at a time in a process; the caller has
 * no other threads.
 */
bool conform_check(int fd, const struct conform_options *o, struct conform_verdict *out);

#endif
