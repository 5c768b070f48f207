/*
 * Teardown driver: takes mappings out of a second stage with a strategy plugin, in bounded steps.
 *
 *   begin -> step, step, ... -> done -> end
 *
 * The driver counts what was removed; the strategy counts its own loops. It checks each service
 * call of the strategy (is this a table of this tree, is the leaf in scope, is the table empty), so
 * that a wrong strategy can make a teardown slow or incomplete, which the driver notices
 * (MF_E_PLUGIN from the last step), but cannot free anything twice.
 */
#ifndef MAYFLY_MM_TEARDOWN_H
#define MAYFLY_MM_TEARDOWN_H

#include "hv/mm/stage2.h"

#define TEARDOWN_BUDGET 512u /* units of a default step: bounded by about 200 us */

struct teardown_report {
    uint64_t loops;
    uint64_t loops_per_pass[MF_ZAP_PASSES];
    uint64_t entries_removed, leaves_removed, tables_freed, frames_retired;
    uint64_t steps, step_max_ns;
    uint64_t loops_by_root[S2_ROOTS_MAX];
    uint64_t loops_per_pass_by_root[S2_ROOTS_MAX][MF_ZAP_PASSES];
};

struct teardown {
    struct stage2 *s2;
    const struct mf_teardown_ops *ops;
    struct mf_zap zap; /* of the root under work */
    unsigned root, root_end;
    bool begun, active, whole;
    bool all; /* every root, to the end of the address space */
    gfn_t first, last;
    bool tracking; /* the bitmaps are complete, or the strategy does not use them */
    bool waits;    /* a service said MF_PL_BLOCKED in this step */
    uint64_t idle; /* units of work since an entry was removed */
    struct teardown_report report;
    _Alignas(16) uint8_t state[MF_ZAP_STATE_MAX];
};

/* Complete, and without a flag that this core does not know. */
bool teardown_ops_ok(const struct mf_teardown_ops *ops);
/*
 * Starts a teardown of guest frames first ... last in the roots [root, root_end), or of all of them
 * (`whole`). One at a time per stage2: MF_E_BUSY. A leaf that only partly lies in the range:
 * MF_E_ALIGN. The object is the caller's and must stay until teardown_end.
 */
enum mf_status teardown_begin_whole(struct teardown *t, struct stage2 *s2,
                                    const struct mf_teardown_ops *ops);
enum mf_status teardown_begin_range(struct teardown *t, struct stage2 *s2,
                                    const struct mf_teardown_ops *ops, unsigned root,
                                    unsigned root_end, gfn_t first, gfn_t last);
/*
 * MF_AGAIN: budget spent. MF_BLOCKED: frames wait for a flush; call stage2_reap, and again after
 * viewers moved. MF_E_STATE: not begun.
 * MF_OK: every entry in scope is out (frames may still be retired: stage2_reap). MF_E_PLUGIN: the
 * strategy says it is done and entries are left, or it makes no progress; call teardown_end and
 * start again with another strategy.
 */
enum mf_status teardown_step(struct teardown *t, uint32_t budget);
void teardown_end(struct teardown *t);

#endif
