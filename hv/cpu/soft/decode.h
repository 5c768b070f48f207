/* Machine code -> ops, by Zydis. */
#ifndef MAYFLY_CPU_SOFT_DECODE_H
#define MAYFLY_CPU_SOFT_DECODE_H

#include "hv/cpu/soft/cpu.h"

enum decoded {
    DECODED,
    DECODED_END,   /* an op that straight code does not go on behind */
    DECODED_SHORT, /* the instruction needs more bytes than given */
};

/* One instruction from at most `n` bytes. What no x86-64-v1 integer machine has becomes an op that
 * raises #UD. */
enum decoded decode_op(enum cpu_mode mode, const uint8_t *bytes, unsigned n, struct op *op);

#endif
