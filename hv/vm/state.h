/*
 * The legal transitions of a VM, in one place:
 *
 *   shutoff, crashed -> starting -> running <-> paused
 *                           |          |          |
 *                           +------> stopping <---+
 *                                   /    |    \
 *                            shutoff  crashed  starting (reset: the same guest starts over)
 */
#ifndef MAYFLY_VM_STATE_H
#define MAYFLY_VM_STATE_H

#include <stdbool.h>

#include "proto/hypercall.h"

#define VM_STATES 6u

bool vm_state_legal(enum mf_vm_state from, enum mf_vm_state to);
/* "running" and so on; "?" for a number that is no state. Static storage. */
const char *vm_state_word(unsigned state);
/* shutoff or crashed: no memory, nothing runs. */
static inline bool vm_state_off(enum mf_vm_state s)
{
    return s == MF_VM_SHUTOFF || s == MF_VM_CRASHED;
}
/* Reasons that end in `crashed`. */
bool vm_reason_crashed(enum mf_end_reason reason);

#endif
