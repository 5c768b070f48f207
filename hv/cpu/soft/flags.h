/*
 * Lazy arithmetic flags. An instruction stores three words, the flags are computed when asked for.
 *
 *   fl_res  result, sign extended to 64 bits:    ZF: is zero, SF: sign, PF: parity of low byte
 *   fl_cv   carries out of each bit, moved up so that the operand's top bit is bit 63:
 *                                                CF: bit 63, OF: bit 63 xor bit 62
 *   fl_aux  bits 0-7: carries out of the low byte (AF: bit 3)
 *           bits 8-15: flips PF by parity, bit 16: flips SF; zero but after POPF, SAHF and the like
 */
#ifndef MAYFLY_CPU_SOFT_FLAGS_H
#define MAYFLY_CPU_SOFT_FLAGS_H

#include "hv/cpu/soft/cpu.h"

static inline bool fl_zf(const struct cpu *c)
{
    return c->fl_res == 0;
}

static inline bool fl_sf(const struct cpu *c)
{
    return ((c->fl_res >> 63) ^ (c->fl_aux >> 16)) & 1;
}

static inline bool fl_cf(const struct cpu *c)
{
    return c->fl_cv >> 63;
}

static inline bool fl_of(const struct cpu *c)
{
    return ((c->fl_cv >> 63) ^ (c->fl_cv >> 62)) & 1;
}

static inline bool fl_af(const struct cpu *c)
{
    return (c->fl_aux >> 3) & 1;
}

static inline bool fl_pf(const struct cpu *c)
{
    return !__builtin_parity((uint8_t)(c->fl_res ^ (c->fl_aux >> 8)));
}

/* CF and OF, the others stay. */
static inline void fl_set_co(struct cpu *c, bool cf, bool of)
{
    c->fl_cv = ((uint64_t)cf << 63) | ((uint64_t)(cf ^ of) << 62);
}

static inline void fl_set_cf(struct cpu *c, bool cf)
{
    fl_set_co(c, cf, fl_of(c));
}

static inline uint32_t fl_arith(const struct cpu *c)
{
    return (uint32_t)((fl_cf(c) ? FL_CF : 0) | (fl_pf(c) ? FL_PF : 0) | (fl_af(c) ? FL_AF : 0) |
                      (fl_zf(c) ? FL_ZF : 0) | (fl_sf(c) ? FL_SF : 0) | (fl_of(c) ? FL_OF : 0));
}

static inline void fl_put_arith(struct cpu *c, uint32_t f)
{
    c->fl_res = f & FL_ZF ? 0 : 0x100;
    fl_set_co(c, f & FL_CF, f & FL_OF);
    c->fl_aux =
        (uint32_t)((f & FL_AF ? 8 : 0) | (f & FL_PF ? 0 : 0x100) | (f & FL_SF ? 0x10000 : 0));
}

static inline uint32_t fl_get(const struct cpu *c)
{
    return c->fl_sys | fl_arith(c);
}

/* ZF alone. */
static inline void fl_set_zf(struct cpu *c, bool zf)
{
    fl_put_arith(c, (fl_arith(c) & ~FL_ZF) | (zf ? FL_ZF : 0));
}

/* Condition codes 0 to 15, as in Jcc. */
static inline bool fl_cond(const struct cpu *c, unsigned cc)
{
    bool r;

    switch (cc >> 1) {
    case 0:
        r = fl_of(c);
        break;
    case 1:
        r = fl_cf(c);
        break;
    case 2:
        r = fl_zf(c);
        break;
    case 3:
        r = fl_cf(c) | fl_zf(c);
        break;
    case 4:
        r = fl_sf(c);
        break;
    case 5:
        r = fl_pf(c);
        break;
    case 6:
        r = fl_sf(c) ^ fl_of(c);
        break;
    default:
        r = fl_zf(c) | (fl_sf(c) ^ fl_of(c));
        break;
    }
    return r ^ (cc & 1);
}

#endif
