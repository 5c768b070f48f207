/* Descriptors and segment registers. */
#ifndef MAYFLY_CPU_SOFT_SEG_H
#define MAYFLY_CPU_SOFT_SEG_H

#include "hv/cpu/soft/cpu.h"

#define SEL_RPL(sel)  ((sel)&3u)
#define SEL_NULL(sel) (((sel)&0xfffcu) == 0)
#define ERR_SEL(sel)  ((uint32_t)(sel)&0xfffcu)

#define ATTR_DPL(a)        (((a)&CPU_SEG_DPL) >> 5)
#define ATTR_IS_CODE(a)    (((a)&0x18u) == 0x18u)
#define ATTR_CONFORMING(a) (((a)&0x1cu) == 0x1cu)

struct descriptor {
    struct cpu_segment s;
    uint64_t lin; /* where it stands */
    uint64_t raw;
};

/* Reads a descriptor; an index outside its table raises `vec` with the selector. */
bool seg_read(struct cpu *c, uint16_t sel, unsigned vec, struct descriptor *d);
/* Sets the accessed bit in memory. */
bool seg_access(struct cpu *c, struct descriptor *d);
/* Loads a data or stack segment register with all checks. */
bool seg_load(struct cpu *c, unsigned n, uint16_t sel);
/* Real mode: selector and base alone. */
void seg_load_real(struct cpu *c, unsigned n, uint16_t sel);
/* A code descriptor is right for a transfer to privilege `cpl` (far jump or call: the present one;
 * `ret`: the one returned to). */
bool seg_code_ok(struct cpu *c, uint16_t sel, struct descriptor *d, bool ret);
/* Makes `d` the code segment at privilege `cpl`. */
void seg_set_cs(struct cpu *c, uint16_t sel, const struct descriptor *d, unsigned cpl);
/* Stack segment for privilege `cpl`, `vec` (#TS or #GP) on faults. */
bool seg_stack(struct cpu *c, uint16_t sel, unsigned cpl, unsigned vec, struct descriptor *d);
/* After a return to less privilege: data segments that it may not keep become null. */
void seg_drop_privileged(struct cpu *c);

#endif
