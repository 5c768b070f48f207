#include "hv/cpu/soft/msr.h"

#include <string.h>

#include "hv/cpu/soft/mmu.h"

/* CPUID.1:EDX and its twin in 0x80000001: exactly what the engine does. */
#define F_FPU   (1u << 0)
#define F_PSE   (1u << 3)
#define F_TSC   (1u << 4)
#define F_MSR   (1u << 5)
#define F_PAE   (1u << 6)
#define F_CX8   (1u << 8)
#define F_SEP   (1u << 11)
#define F_PGE   (1u << 13)
#define F_CMOV  (1u << 15)
#define F_PAT   (1u << 16)
#define F_CLFSH (1u << 19)
#define F_MMX   (1u << 23)
#define F_FXSR  (1u << 24)
#define F_SSE   (1u << 25)
#define F_SSE2  (1u << 26)
#define F_BASIC                                                                                    \
    (F_FPU | F_PSE | F_TSC | F_MSR | F_PAE | F_CX8 | F_PGE | F_CMOV | F_PAT | F_MMX | F_FXSR)

#define F_CX16       (1u << 13)
#define F_HYPERVISOR (1u << 31)

#define F_SYSCALL (1u << 11)
#define F_NX      (1u << 20)
#define F_1G      (1u << 26)
#define F_RDTSCP  (1u << 27)
#define F_LM      (1u << 29)
#define F_LAHF    (1u << 0)

#define F_NO_FCS      (1u << 13) /* leaf 7: x87 keeps no selectors */
#define F_FP_POINTERS (1u << 2)  /* FXSAVE and FXRSTOR always take the x87 pointers */
#define CLFLUSH_LINE  64u

#define SIGNATURE  0x00000f00u /* family 15, model 0: no erratum applies */
#define VENDOR     "AuthenticAMD"
#define HYPERVISOR "MayflyMayfly"

static void text(uint32_t r[4], const char *s, unsigned a, unsigned b, unsigned d)
{
    memcpy(&r[a], s, 4);
    memcpy(&r[b], s + 4, 4);
    memcpy(&r[d], s + 8, 4);
}

static void leaf_basic(const struct cpu *c, uint32_t leaf, uint32_t r[4])
{
    if (leaf == 0) {
        r[0] = 7;
        text(r, VENDOR, 1, 3, 2);
        return;
    }
    r[0] = SIGNATURE;
    r[1] = c->v->index << 24 | (c->v->vm->nr_vcpus & 0xff) << 16 | CLFLUSH_LINE / 8 << 8;
    r[2] = F_CX16 | F_HYPERVISOR;
    r[3] = F_BASIC | F_SEP | F_CLFSH | F_SSE | F_SSE2;
}

static void leaf_extended(uint32_t leaf, uint32_t r[4])
{
    static const char brand[48] = "Mayfly software processor";

    switch (leaf) {
    case 0x80000000u:
        r[0] = 0x80000008u;
        text(r, VENDOR, 1, 3, 2);
        break;
    case 0x80000001u:
        r[0] = SIGNATURE;
        r[2] = F_LAHF;
        r[3] = F_BASIC | F_SYSCALL | F_NX | F_1G | F_RDTSCP | F_LM;
        break;
    case 0x80000002u:
    case 0x80000003u:
    case 0x80000004u:
        memcpy(r, brand + (leaf - 0x80000002u) * 16, 16);
        break;
    case 0x80000007u:
        r[3] = 1u << 8; /* the TSC's rate never changes */
        break;
    case 0x80000008u:
        r[0] = 48 | 48 << 8;
        r[1] = F_FP_POINTERS;
        break;
    default:
        break;
    }
}

void cpuid_read(const struct cpu *c, uint32_t leaf, uint32_t sub, uint32_t r[4])
{
    memset(r, 0, 4 * sizeof r[0]);
    if (leaf <= 1)
        leaf_basic(c, leaf, r);
    else if (leaf == 7 && !sub)
        r[1] = F_NO_FCS;
    else if (leaf == 0x40000000u) {
        r[0] = leaf;
        text(r, HYPERVISOR, 1, 2, 3);
    } else if (leaf >= 0x80000000u) {
        leaf_extended(leaf, r);
    }
    if (c->v->mops->cpuid)
        c->v->mops->cpuid(c->v->machine, c->v, leaf, sub, r);
}

/* ---- MSRs */

enum {
    MSR_TSC = 0x10,
    MSR_APIC_BASE = 0x1b,
    MSR_PATCH_LEVEL = 0x8b,
    MSR_MTRR_CAP = 0xfe,
    MSR_SYSENTER_CS = 0x174,
    MSR_SYSENTER_ESP = 0x175,
    MSR_SYSENTER_EIP = 0x176,
    MSR_PAT = 0x277,
    MSR_MTRR_DEFAULT = 0x2ff,
};
#define MSR_EFER           0xc0000080u
#define MSR_STAR           0xc0000081u
#define MSR_LSTAR          0xc0000082u
#define MSR_CSTAR          0xc0000083u
#define MSR_SFMASK         0xc0000084u
#define MSR_FS_BASE        0xc0000100u
#define MSR_GS_BASE        0xc0000101u
#define MSR_KERNEL_GS_BASE 0xc0000102u
#define MSR_TSC_AUX        0xc0000103u

uint64_t tsc_read(struct cpu *c)
{
    return c->v->mops->clock_ns(c->v->machine) + c->tsc_offset; /* CPU_TSC_KHZ */
}

/* The registers that only hold a value. */
static uint64_t *plain(struct cpu *c, uint32_t nr)
{
    switch (nr) {
    case MSR_SYSENTER_CS:
        return &c->sysenter_cs;
    case MSR_SYSENTER_ESP:
        return &c->sysenter_esp;
    case MSR_SYSENTER_EIP:
        return &c->sysenter_eip;
    case MSR_PAT:
        return &c->pat;
    case MSR_STAR:
        return &c->star;
    case MSR_LSTAR:
        return &c->lstar;
    case MSR_CSTAR:
        return &c->cstar;
    case MSR_SFMASK:
        return &c->sfmask;
    case MSR_FS_BASE:
        return &c->seg[CPU_FS].base;
    case MSR_GS_BASE:
        return &c->seg[CPU_GS].base;
    case MSR_KERNEL_GS_BASE:
        return &c->kernel_gs_base;
    case MSR_TSC_AUX:
        return &c->tsc_aux;
    default:
        return NULL;
    }
}

/* The registers that the machine keeps. Without a machine that does, APIC base is a constant. */
static bool machine_msr_read(struct cpu *c, uint32_t nr, uint64_t *v)
{
    const struct machine_ops *m = c->v->mops;

    if (m->msr_read)
        return m->msr_read(c->v->machine, c->v, nr, v) != MACHINE_NONE;
    *v = c->apic_base;
    return nr == MSR_APIC_BASE;
}

static bool machine_msr_write(struct cpu *c, uint32_t nr, uint64_t v)
{
    const struct machine_ops *m = c->v->mops;

    if (!m->msr_write || m->msr_write(c->v->machine, c->v, nr, v) == MACHINE_NONE)
        return false;
    if (nr == MSR_APIC_BASE)
        c->apic_base = v;
    return true;
}

static void tsc_write(struct cpu *c, uint64_t v)
{
    const struct machine_ops *m = c->v->mops;

    c->tsc_offset += v - tsc_read(c);
    atomic_store(&c->v->tsc_offset, c->tsc_offset);
    if (m->msr_write)
        m->msr_write(c->v->machine, c->v, MSR_TSC, v);
}

bool msr_read(struct cpu *c, uint32_t nr, uint64_t *v)
{
    const uint64_t *p = plain(c, nr);

    if (p) {
        *v = *p;
        return true;
    }
    switch (nr) {
    case MSR_EFER:
        *v = c->efer;
        return true;
    case MSR_TSC:
        *v = tsc_read(c);
        return true;
    case MSR_PATCH_LEVEL:
    case MSR_MTRR_CAP:
    case MSR_MTRR_DEFAULT:
        *v = 0;
        return true;
    default:
        return machine_msr_read(c, nr, v);
    }
}

static bool efer_write(struct cpu *c, uint64_t v)
{
    if (v & ~(uint64_t)EFER_BITS)
        return false;
    if ((c->cr0 & CR0_PG) && (v & EFER_LME) != (c->efer & EFER_LME))
        return false;
    c->efer = (v & ~(uint64_t)EFER_LMA) | (c->efer & EFER_LMA);
    mmu_flush(c);
    return true;
}

static bool pat_valid(uint64_t v)
{
    for (unsigned i = 0; i < 8; i++) {
        unsigned type = v >> (i * 8) & 0xff;

        if (type > 7 || type == 2 || type == 3)
            return false;
    }
    return true;
}

bool msr_write(struct cpu *c, uint32_t nr, uint64_t v)
{
    uint64_t *p = plain(c, nr);
    bool address = nr == MSR_LSTAR || nr == MSR_CSTAR || nr == MSR_FS_BASE || nr == MSR_GS_BASE ||
                   nr == MSR_KERNEL_GS_BASE || nr == MSR_SYSENTER_ESP || nr == MSR_SYSENTER_EIP;

    if (nr == MSR_EFER)
        return efer_write(c, v);
    if (nr == MSR_TSC) {
        tsc_write(c, v);
        return true;
    }
    if (nr == MSR_PATCH_LEVEL)
        return true;
    if (!p)
        return machine_msr_write(c, nr, v);
    if ((address && !is_canonical(v)) || (nr == MSR_PAT && !pat_valid(v)) ||
        ((nr == MSR_TSC_AUX || nr == MSR_SFMASK) && v >> 32))
        return false;
    *p = v;
    if (nr == MSR_FS_BASE || nr == MSR_GS_BASE)
        cpu_update_mode(c);
    return true;
}
