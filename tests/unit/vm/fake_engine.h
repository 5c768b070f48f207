/*
 * An engine without a CPU, for tests of hv/vm: each slice does what the test says next.
 */
#ifndef MAYFLY_TEST_FAKE_ENGINE_H
#define MAYFLY_TEST_FAKE_ENGINE_H

#include "hv/cpu/engine.h"

enum fake_act {
    FAKE_SPIN, /* uses its budget up */
    FAKE_HALT,
    FAKE_POWEROFF,
    FAKE_DEBUG_EXIT, /* with code 3 */
    FAKE_RESET,
    FAKE_TRIPLE,
    FAKE_BAD_ACCESS,
    FAKE_NO_MEMORY,
    FAKE_FAIL,
    FAKE_TOUCH, /* demand-faults the next page, then as FAKE_SPIN */
};

extern enum fake_act fake_act; /* of every vCPU from the next slice on */
extern unsigned fake_live;     /* vCPUs between init and fini */
extern unsigned fake_fail_at;  /* the n-th vcpu_init from now fails, 0: none */
extern struct cpu_state fake_state;

#endif
