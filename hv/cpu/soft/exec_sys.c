/* System instructions: ports, control registers, MSRs, CPUID, halt, hypercalls. */
#include <string.h>

#include "hv/cpu/soft/exec.h"
#include "hv/cpu/soft/flags.h"
#include "hv/cpu/soft/mmu.h"
#include "hv/cpu/soft/msr.h"

enum op_result exec_ud(struct cpu *c, const struct op *op)
{
    (void)op;
    return op_raise(c, VEC_UD, 0);
}

/* An instruction too long to be one. */
enum op_result exec_gp(struct cpu *c, const struct op *op)
{
    (void)op;
    return op_raise(c, VEC_GP, 0);
}

static bool privileged(struct cpu *c)
{
    return c->cpl == 0 || cpu_raise(c, VEC_GP, 0);
}

/* ---- ports */

static bool port_bitmap(struct cpu *c, uint16_t port, unsigned size)
{
    uint64_t at, bits;

    if (!(c->tr.attr & CPU_SEG_P) || c->tr.limit < 0x67)
        return cpu_raise(c, VEC_GP, 0);
    if (!mmu_sys_read(c, c->tr.base + 0x66, 2, &at))
        return false;
    at += port / 8;
    if (at + 1 > c->tr.limit)
        return cpu_raise(c, VEC_GP, 0);
    if (!mmu_sys_read(c, c->tr.base + at, 2, &bits))
        return false;
    return !(bits >> (port & 7) & size_mask(1) >> (8 - size)) || cpu_raise(c, VEC_GP, 0);
}

bool port_allowed(struct cpu *c, uint16_t port, unsigned size)
{
    unsigned iopl = (c->fl_sys & FL_IOPL) >> 12;

    if (!cpu_protected(c) || (c->cpl <= iopl && !cpu_vm86(c)))
        return true;
    return port_bitmap(c, port, size);
}

/* What the machine wants after the instruction. MACHINE_NONE: nobody answered, which is all ones.
 */
static void machine_wants(struct cpu *c, enum machine_result r)
{
    if (r == MACHINE_STOP)
        cpu_leave(c, CPU_EXIT_STOP);
    else if (r == MACHINE_YIELD)
        cpu_leave(c, CPU_EXIT_YIELD);
}

bool port_read(struct cpu *c, uint16_t port, unsigned size, uint64_t *v)
{
    uint32_t value = UINT32_MAX;
    enum machine_result r = c->v->mops->port_in(c->v->machine, c->v, port, size, &value);

    c->v->exits++;
    machine_wants(c, r);
    *v = (r == MACHINE_NONE ? UINT32_MAX : value) & size_mask(size);
    return true;
}

bool port_write(struct cpu *c, uint16_t port, unsigned size, uint64_t v)
{
    c->v->exits++;
    machine_wants(
        c, c->v->mops->port_out(c->v->machine, c->v, port, size, (uint32_t)(v & size_mask(size))));
    return true;
}

static enum op_result after_machine(struct cpu *c)
{
    return unlikely(c->exiting) ? op_look(c, c->next) : R_OK;
}

static uint16_t port_of(const struct cpu *c, const struct op *op)
{
    return (uint16_t)(op->flags & OPF_IMM ? op->imm : c->r[CPU_RDX]);
}

enum op_result exec_in(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!port_allowed(c, port_of(c, op), op->size) || !port_read(c, port_of(c, op), op->size, &v))
        return R_STOP;
    reg_set(c, CPU_RAX, op->size, v);
    return after_machine(c);
}

enum op_result exec_out(struct cpu *c, const struct op *op)
{
    if (!port_allowed(c, port_of(c, op), op->size) ||
        !port_write(c, port_of(c, op), op->size, c->r[CPU_RAX]))
        return R_STOP;
    return after_machine(c);
}

/* ---- halt, interrupt flag */

enum op_result exec_hlt(struct cpu *c, const struct op *op)
{
    (void)op;
    if (!privileged(c))
        return R_STOP;
    c->halted = true;
    c->v->halt_masked = !(c->fl_sys & FL_IF);
    return op_leave(c, CPU_EXIT_HALT);
}

static bool may_set_if(struct cpu *c)
{
    return !cpu_protected(c) || c->cpl <= (c->fl_sys & FL_IOPL) >> 12 || cpu_raise(c, VEC_GP, 0);
}

enum op_result exec_cli(struct cpu *c, const struct op *op)
{
    (void)op;
    if (!may_set_if(c))
        return R_STOP;
    c->fl_sys &= ~FL_IF;
    return R_OK;
}

enum op_result exec_sti(struct cpu *c, const struct op *op)
{
    (void)op;
    if (!may_set_if(c))
        return R_STOP;
    c->shadow_next = !(c->fl_sys & FL_IF);
    c->fl_sys |= FL_IF;
    return op_look(c, c->next);
}

/* ---- CPUID, MSRs, counters */

enum op_result exec_cpuid(struct cpu *c, const struct op *op)
{
    uint32_t r[4];

    (void)op;
    cpuid_read(c, (uint32_t)c->r[CPU_RAX], (uint32_t)c->r[CPU_RCX], r);
    c->r[CPU_RAX] = r[0];
    c->r[CPU_RBX] = r[1];
    c->r[CPU_RCX] = r[2];
    c->r[CPU_RDX] = r[3];
    return R_OK;
}

enum op_result exec_rdmsr(struct cpu *c, const struct op *op)
{
    uint64_t v;

    (void)op;
    if (!privileged(c))
        return R_STOP;
    if (!msr_read(c, (uint32_t)c->r[CPU_RCX], &v))
        return op_raise(c, VEC_GP, 0);
    c->r[CPU_RAX] = (uint32_t)v;
    c->r[CPU_RDX] = v >> 32;
    return R_OK;
}

enum op_result exec_wrmsr(struct cpu *c, const struct op *op)
{
    uint64_t v = (uint32_t)c->r[CPU_RAX] | c->r[CPU_RDX] << 32;

    (void)op;
    if (!privileged(c))
        return R_STOP;
    if (!msr_write(c, (uint32_t)c->r[CPU_RCX], v))
        return op_raise(c, VEC_GP, 0);
    return op_look(c, c->next);
}

/* sub 1: RDTSCP */
enum op_result exec_rdtsc(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if ((c->cr4 & CR4_TSD) && c->cpl)
        return op_raise(c, VEC_GP, 0);
    v = tsc_read(c);
    c->r[CPU_RAX] = (uint32_t)v;
    c->r[CPU_RDX] = v >> 32;
    if (op->sub)
        c->r[CPU_RCX] = (uint32_t)c->tsc_aux;
    return R_OK;
}

enum op_result exec_rdpmc(struct cpu *c, const struct op *op)
{
    (void)op;
    return op_raise(c, VEC_GP, 0); /* no counter is offered */
}

/* ---- control and debug registers: rm is the general one, sub the other */

enum op_result exec_mov_from_cr(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!privileged(c))
        return R_STOP;
    switch (op->sub) {
    case 0:
        v = c->cr0;
        break;
    case 2:
        v = c->cr2;
        break;
    case 3:
        v = c->cr3;
        break;
    case 4:
        v = c->cr4;
        break;
    case 8:
        v = c->v->mops->cr8_read ? c->v->mops->cr8_read(c->v->machine, c->v) : c->cr8;
        break;
    default:
        return op_raise(c, VEC_UD, 0);
    }
    reg_set(c, op->rm, c->mode == MODE_64 ? 8 : 4, v);
    return R_OK;
}

static bool cr0_valid(const struct cpu *c, uint64_t v)
{
    if (v >> 32 || ((v & CR0_PG) && !(v & CR0_PE)) || ((v & CR0_NW) && !(v & CR0_CD)))
        return false;
    if (!(v & CR0_PG) || (c->cr0 & CR0_PG))
        return (v & CR0_PG) || c->mode != MODE_64;
    return !(c->efer & EFER_LME) || ((c->cr4 & CR4_PAE) && !(c->seg[CPU_CS].attr & CPU_SEG_L));
}

bool cpu_set_cr0(struct cpu *c, uint64_t v)
{
    if (!cr0_valid(c, v))
        return false;
    c->cr0 = (v & CR0_BITS) | CR0_ET;
    if ((c->cr0 & CR0_PG) && (c->efer & EFER_LME))
        c->efer |= EFER_LMA;
    else
        c->efer &= ~(uint64_t)EFER_LMA;
    mmu_flush(c);
    cpu_update_mode(c);
    return true;
}

static bool cr4_valid(const struct cpu *c, uint64_t v)
{
    return !(v & ~(uint64_t)CR4_BITS) && ((v & CR4_PAE) || !cpu_long(c));
}

enum op_result exec_mov_to_cr(struct cpu *c, const struct op *op)
{
    uint64_t v = reg_get(c, op->rm, c->mode == MODE_64 ? 8 : 4);
    bool ok = true;

    if (!privileged(c))
        return R_STOP;
    switch (op->sub) {
    case 0:
        ok = cpu_set_cr0(c, v);
        break;
    case 2:
        c->cr2 = v;
        break;
    case 3:
        ok = !cpu_long(c) || !(v >> 48);
        if (ok) {
            c->cr3 = v;
            mmu_flush_space(c);
        }
        break;
    case 4:
        ok = cr4_valid(c, v);
        if (ok) {
            c->cr4 = v;
            mmu_flush(c);
        }
        break;
    case 8:
        ok = !(v & ~UINT64_C(15));
        if (ok)
            c->cr8 = v;
        if (ok && c->v->mops->cr8_write)
            c->v->mops->cr8_write(c->v->machine, c->v, v);
        break;
    default:
        return op_raise(c, VEC_UD, 0);
    }
    return ok ? op_look(c, c->next) : op_raise(c, VEC_GP, 0);
}

static unsigned dr_number(const struct cpu *c, unsigned n)
{
    return (n == 4 || n == 5) && !(c->cr4 & CR4_DE) ? n + 2 : n;
}

enum op_result exec_mov_from_dr(struct cpu *c, const struct op *op)
{
    unsigned n = dr_number(c, op->sub);

    if (!privileged(c))
        return R_STOP;
    if (n == 4 || n == 5 || n > 7)
        return op_raise(c, VEC_UD, 0);
    reg_set(c, op->rm, c->mode == MODE_64 ? 8 : 4, c->dr[n]);
    return R_OK;
}

enum op_result exec_mov_to_dr(struct cpu *c, const struct op *op)
{
    uint64_t v = reg_get(c, op->rm, c->mode == MODE_64 ? 8 : 4);
    unsigned n = dr_number(c, op->sub);

    if (!privileged(c))
        return R_STOP;
    if (n == 4 || n == 5 || n > 7)
        return op_raise(c, VEC_UD, 0);
    if (n >= 6 && v >> 32)
        return op_raise(c, VEC_GP, 0);
    if (n == 6)
        v = (v & 0xe00f) | 0xffff0ff0;
    else if (n == 7)
        v = (v & 0xffff2bff) | 0x400;
    c->dr[n] = v;
    return R_OK;
}

enum op_result exec_clts(struct cpu *c, const struct op *op)
{
    (void)op;
    if (!privileged(c))
        return R_STOP;
    c->cr0 &= ~(uint64_t)CR0_TS;
    return R_OK;
}

enum op_result exec_lmsw(struct cpu *c, const struct op *op)
{
    uint64_t v;

    if (!privileged(c) || !rm_get(c, op, 2, &v))
        return R_STOP;
    v = (c->cr0 & ~UINT64_C(0xe)) | (v & 0xf) | (c->cr0 & CR0_PE);
    return cpu_set_cr0(c, v) ? op_look(c, c->next) : op_raise(c, VEC_GP, 0);
}

enum op_result exec_smsw(struct cpu *c, const struct op *op)
{
    return rm_put(c, op, op->flags & OPF_MEM ? 2 : op->size, c->cr0) ? R_OK : R_STOP;
}

enum op_result exec_invlpg(struct cpu *c, const struct op *op)
{
    uint64_t lin;

    if (!privileged(c))
        return R_STOP;
    lin = c->seg_base[op->seg] + op_ea(c, op);
    mmu_flush_page(c, c->mode == MODE_64 ? lin : (uint32_t)lin);
    return op_look(c, c->next);
}

enum op_result exec_wbinvd(struct cpu *c, const struct op *op)
{
    (void)op;
    return privileged(c) ? R_OK : R_STOP;
}

/* Faults as a load of one byte. */
enum op_result exec_clflush(struct cpu *c, const struct op *op)
{
    uint64_t v;

    return rm_get(c, op, 1, &v) ? R_OK : R_STOP;
}

enum op_result exec_vmcall(struct cpu *c, const struct op *op)
{
    uint64_t arg[4] = {c->r[CPU_RBX], c->r[CPU_RCX], c->r[CPU_RDX], c->r[CPU_RSI]};
    uint64_t nr = c->r[CPU_RAX];
    int64_t result = 0;

    (void)op;
    if (!privileged(c))
        return R_STOP;
    c->v->exits++;
    if (c->mode != MODE_64) {
        nr = (uint32_t)nr;
        for (unsigned i = 0; i < 4; i++)
            arg[i] = (uint32_t)arg[i];
    }
    machine_wants(c, c->v->mops->hypercall(c->v->machine, c->v, nr, arg, &result));
    reg_set(c, CPU_RAX, c->mode == MODE_64 ? 8 : 4, (uint64_t)result);
    return op_look(c, c->next); /* it may have written code */
}

enum op_result exec_swapgs(struct cpu *c, const struct op *op)
{
    uint64_t base = c->seg[CPU_GS].base;

    (void)op;
    if (c->mode != MODE_64)
        return op_raise(c, VEC_UD, 0);
    if (!privileged(c))
        return R_STOP;
    c->seg[CPU_GS].base = c->kernel_gs_base;
    c->kernel_gs_base = base;
    c->seg_base[CPU_GS] = c->seg[CPU_GS].base;
    return R_OK;
}
