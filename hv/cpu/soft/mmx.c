/* MMX registers, which are the low parts of the physical x87 registers. */
#include <string.h>

#include "hv/cpu/soft/fp.h"

#define MMX_EXPONENT 0xffffu

/* The state keeps ST(0) first; physical register `n` is ST(n - TOP). */
static unsigned st_of(const struct cpu *c, unsigned n)
{
    return (n - fsw_top(c)) & 7;
}

void x87_set_top(struct cpu *c, unsigned top)
{
    unsigned by = (top - fsw_top(c)) & 7;
    struct fp_state old;

    c->fp.fsw = (uint16_t)((c->fp.fsw & ~FSW_TOP) | top << 11);
    if (!by)
        return;
    memcpy(&old, &c->fp, sizeof old);
    for (unsigned n = 0; n < 8; n++)
        c->fp.st[n] = old.st[(n + by) & 7];
}

void mmx_begin(struct cpu *c)
{
    c->fp.ftw = 0xff;
    x87_set_top(c, 0);
}

uint64_t mmx_get(const struct cpu *c, unsigned n)
{
    return c->fp.st[st_of(c, n)].m;
}

void mmx_set(struct cpu *c, unsigned n, uint64_t v)
{
    c->fp.st[n].m = v;
    c->fp.st[n].e = MMX_EXPONENT;
}
