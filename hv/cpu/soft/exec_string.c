/*
 * String instructions. One call does as many elements as fit until the end of a page, so that a
 * long REP stays interruptible: registers are exact behind each element, and the instruction is
 * come back to while RCX is not zero. MOVS and STOS forward inside plain pages are one memmove or
 * fill.
 */
#include <string.h>

#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"

#define CHUNK 512u /* elements before the run loop looks around */

static void reg_advance(struct cpu *c, unsigned n, const struct op *op, uint64_t elements)
{
    uint64_t by = elements * op->size;

    reg_set(c, n, op->asz, c->r[n] + (c->fl_sys & FL_DF ? 0 - by : by));
}

static bool src_load(struct cpu *c, const struct op *op, uint64_t *v)
{
    uint64_t lin;

    return lin_of(c, op->seg, addr_cut(c->r[CPU_RSI], op->asz), op->size, MMU_R, &lin) &&
           mem_load(c, lin, op->size, v);
}

static bool dst_load(struct cpu *c, const struct op *op, uint64_t *v)
{
    uint64_t lin;

    return lin_of(c, CPU_ES, addr_cut(c->r[CPU_RDI], op->asz), op->size, MMU_R, &lin) &&
           mem_load(c, lin, op->size, v);
}

static bool dst_store(struct cpu *c, const struct op *op, uint64_t v)
{
    uint64_t lin;

    return lin_of(c, CPU_ES, addr_cut(c->r[CPU_RDI], op->asz), op->size, MMU_W, &lin) &&
           mem_store(c, lin, op->size, v);
}

static void compare(struct cpu *c, uint64_t a, uint64_t b, unsigned size)
{
    uint64_t r = a - b, borrow = (~a & b) | ((~a | b) & r);

    c->fl_res = sign_extend(r, size);
    c->fl_cv = borrow << (64 - size * 8);
    c->fl_aux = (uint8_t)borrow;
}

static bool string_in(struct cpu *c, const struct op *op)
{
    uint16_t port = (uint16_t)c->r[CPU_RDX];
    uint64_t lin, v;

    /* The destination is checked before the port is read: a device is not asked twice. */
    if (!port_allowed(c, port, op->size) ||
        !lin_of(c, CPU_ES, addr_cut(c->r[CPU_RDI], op->asz), op->size, MMU_W, &lin) ||
        !mmu_probe_write(c, lin, op->size))
        return false;
    return port_read(c, port, op->size, &v) && mem_store(c, lin, op->size, v);
}

/* One element. False: fault queued, nothing moved. */
static bool element(struct cpu *c, const struct op *op)
{
    unsigned size = op->size;
    uint64_t v, w;

    switch (op->sub) {
    case STR_MOVS:
        if (!src_load(c, op, &v) || !dst_store(c, op, v))
            return false;
        break;
    case STR_STOS:
        if (!dst_store(c, op, c->r[CPU_RAX] & size_mask(size)))
            return false;
        break;
    case STR_LODS:
        if (!src_load(c, op, &v))
            return false;
        reg_set(c, CPU_RAX, size, v);
        break;
    case STR_CMPS:
        if (!src_load(c, op, &v) || !dst_load(c, op, &w))
            return false;
        compare(c, v, w, size);
        break;
    case STR_SCAS:
        if (!dst_load(c, op, &w))
            return false;
        compare(c, c->r[CPU_RAX] & size_mask(size), w, size);
        break;
    case STR_INS:
        if (!string_in(c, op))
            return false;
        break;
    default:
        if (!port_allowed(c, (uint16_t)c->r[CPU_RDX], size) || !src_load(c, op, &v) ||
            !port_write(c, (uint16_t)c->r[CPU_RDX], size, v))
            return false;
        break;
    }
    if (op->sub == STR_MOVS || op->sub == STR_LODS || op->sub == STR_CMPS || op->sub == STR_OUTS)
        reg_advance(c, CPU_RSI, op, 1);
    if (op->sub != STR_LODS && op->sub != STR_OUTS)
        reg_advance(c, CPU_RDI, op, 1);
    return true;
}

static uint64_t page_room(uint64_t lin, unsigned size)
{
    return (FRAME_SIZE - PAGE_OFFS(lin)) / size;
}

static void fill(uint8_t *p, uint64_t v, unsigned size, uint64_t n)
{
    if (size == 1) {
        guest_fill(p, (uint8_t)v, n);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        host_store(p + i * size, size, v);
}

/* Elements of MOVS or STOS done at one go; 0: the plain way. */
static uint64_t bulk(struct cpu *c, const struct op *op, uint64_t n)
{
    unsigned size = op->size;
    uint64_t d, s;
    uint8_t *to;

    if ((c->fl_sys & FL_DF) || c->mode != MODE_64 || op->asz != 8)
        return 0;
    d = c->seg_base[CPU_ES] + c->r[CPU_RDI];
    n = n < page_room(d, size) ? n : page_room(d, size);
    if (op->sub == STR_STOS) {
        if (!n || !(to = tlb_w(c, d, size)))
            return 0;
        fill(to, c->r[CPU_RAX], size, n);
    } else {
        const uint8_t *from;

        s = c->seg_base[op->seg] + c->r[CPU_RSI];
        n = n < page_room(s, size) ? n : page_room(s, size);
        if (!n || !(to = tlb_w(c, d, size)) || !(from = tlb_r(c, s, size)))
            return 0;
        if (to > from && to < from + n * size)
            return 0; /* each element must see the one before it */
        guest_copy(to, from, n * size);
        reg_advance(c, CPU_RSI, op, n);
    }
    reg_advance(c, CPU_RDI, op, n);
    return n;
}

static bool repeat_ends(const struct cpu *c, const struct op *op)
{
    if (op->sub != STR_CMPS && op->sub != STR_SCAS)
        return false;
    return fl_zf(c) != ((op->flags & OPF_REP) != 0);
}

enum op_result exec_string(struct cpu *c, const struct op *op)
{
    unsigned done = 0;

    if (!(op->flags & (OPF_REP | OPF_REPNE))) {
        if (!element(c, op))
            return R_STOP;
        return c->exiting ? op_look(c, c->next) : R_OK;
    }
    for (;;) {
        uint64_t left = addr_cut(c->r[CPU_RCX], op->asz), n = 0;

        if (!left)
            return R_OK;
        if (done++ >= CHUNK || c->exiting || c->smc)
            return op_look(c, op_ip(c, op)); /* come back to it */
        if (op->sub == STR_MOVS || op->sub == STR_STOS)
            n = bulk(c, op, left);
        if (!n) {
            if (!element(c, op))
                return R_STOP;
            n = 1;
        }
        c->count++;
        reg_set(c, CPU_RCX, op->asz, left - n);
        if (repeat_ends(c, op))
            return R_OK;
        if (c->count >= c->budget)
            return left == n ? R_OK : op_look(c, op_ip(c, op));
    }
}
