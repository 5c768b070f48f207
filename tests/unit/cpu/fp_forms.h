/* x87, MMX and SSE forms that the differential test runs. */
#ifndef MAYFLY_TEST_CPU_FP_FORMS_H
#define MAYFLY_TEST_CPU_FP_FORMS_H

#include <stdint.h>

/* What an operand is. */
enum fp_kind { K_NONE, K_XMM, K_MMX, K_GPR };

#define FF_MEM   1u /* the r/m may be memory */
#define FF_REG   2u /* ... or a register */
#define FF_RM    (FF_MEM | FF_REG)
#define FF_ALIGN 4u  /* memory must be aligned: now and then it is not */
#define FF_IMM   8u  /* an immediate byte */
#define FF_W     16u /* also with REX.W */
#define FF_BASE  32u /* RDI is the operand: MASKMOV */

struct fp_form {
    const char *name;
    uint8_t pfx, op;
    uint8_t ext;     /* of the opcode in ModRM.reg, 0xff: a register */
    uint8_t reg, rm; /* enum fp_kind */
    uint8_t flags;
    uint8_t elem; /* bytes of a float in the operands, 0: integers */
};

extern const struct fp_form fp_forms[];
extern const unsigned fp_forms_nr;

#endif
