#include "hv/cpu/soft/walk.h"

#include "hv/cpu/soft/mmu.h"

#define PTE_P        UINT64_C(0x1)
#define PTE_W        UINT64_C(0x2)
#define PTE_U        UINT64_C(0x4)
#define PTE_A        UINT64_C(0x20)
#define PTE_D        UINT64_C(0x40)
#define PTE_PS       UINT64_C(0x80)
#define PTE_G        UINT64_C(0x100)
#define PTE_NX       (UINT64_C(1) << 63)
#define PTE_PHY      UINT64_C(0x0000fffffffff000) /* 48 bits of physical address are offered */
#define PTE_TOO_HIGH UINT64_C(0x000f000000000000)

#define PFE_P    1u
#define PFE_W    2u
#define PFE_U    4u
#define PFE_RSVD 8u
#define PFE_I    16u

#define LEVELS_MAX 4u

/* ---- guest-physical */

static enum phys phys_failed(struct cpu *c, enum mf_status st)
{
    c->v->status = st;
    cpu_leave(c, CPU_EXIT_NO_MEMORY);
    return PHYS_FAIL;
}

enum phys phys_page(struct cpu *c, uint64_t g, bool write, uint8_t **host)
{
    struct ptlb_entry *e = &c->ptlb[g % PTLB_SIZE];
    uint64_t tag = (g << FRAME_SHIFT) | c->ptlb_gen;
    struct s2_leaf leaf;
    enum mf_status st;

    if (likely((write ? e->tag_w : e->tag_r) == tag)) {
        *host = e->host;
        return PHYS_RAM;
    }
    if (g >= S2_GFN_END)
        return PHYS_MMIO;
    c->faults++;
    st = stage2_fault(c->v->vm->s2, 0, gfn(g), write ? S2_READ | S2_WRITE : S2_READ, &leaf);
    if (st == MF_E_RANGE || st == MF_E_PERM)
        return PHYS_MMIO;
    if (st != MF_OK)
        return phys_failed(c, st);
    if (e->tag_r != tag)
        e->tag_w = 0;
    e->tag_r = tag;
    if (write)
        e->tag_w = tag;
    e->host = c->arena_base + (leaf.mfn.v << FRAME_SHIFT);
    *host = e->host;
    return PHYS_RAM;
}

/* ---- guest page tables */

/* One of the paging modes: what the walk needs to know of it. */
struct format {
    unsigned levels, bits, pte_size;
    bool nx;
};

static struct format format_of(const struct cpu *c)
{
    bool nx = (c->efer & EFER_NX) != 0;

    if (cpu_long(c))
        return (struct format){4, 9, 8, nx};
    if (c->cr4 & CR4_PAE)
        return (struct format){3, 9, 8, nx};
    return (struct format){2, 10, 4, false};
}

static uint64_t pte_load(const uint8_t *p, unsigned size)
{
    return size == 8 ? __atomic_load_n((const uint64_t *)(const void *)p, __ATOMIC_RELAXED)
                     : __atomic_load_n((const uint32_t *)(const void *)p, __ATOMIC_RELAXED);
}

static bool pte_swap(uint8_t *p, unsigned size, uint64_t old, uint64_t new)
{
    uint32_t old32 = (uint32_t)old;

    if (size == 8)
        return __atomic_compare_exchange_n((uint64_t *)(void *)p, &old, new, false,
                                           __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    return __atomic_compare_exchange_n((uint32_t *)(void *)p, &old32, (uint32_t) new, false,
                                       __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}

/* Bits that must be zero in an entry of `level` (1: leaf table). */
static uint64_t pte_reserved(const struct cpu *c, const struct format *f, unsigned level,
                             uint64_t pte)
{
    uint64_t r;

    if (f->pte_size == 4)
        return level == 2 && (c->cr4 & CR4_PSE) && (pte & PTE_PS) ? 0x3fe000 : 0;
    r = PTE_TOO_HIGH | (f->nx ? 0 : PTE_NX);
    if (f->levels == 3 && level == 3)
        return r | PTE_NX | 0x1e6 | UINT64_C(0x7ff0000000000000);
    if (f->levels == 3)
        r |= UINT64_C(0x7ff0000000000000);
    if (level == 4)
        r |= PTE_PS;
    if (level == 3 && (pte & PTE_PS))
        r |= 0x3fffe000;
    if (level == 2 && (pte & PTE_PS))
        r |= 0x1fe000;
    return r;
}

static bool pte_is_leaf(const struct cpu *c, const struct format *f, unsigned level, uint64_t pte)
{
    if (level == 1)
        return true;
    if (f->pte_size == 4)
        return (c->cr4 & CR4_PSE) && (pte & PTE_PS);
    if (f->levels == 3 && level == 3)
        return false;
    return (pte & PTE_PS) != 0;
}

static bool page_fault(struct cpu *c, const struct format *f, uint64_t lin, unsigned acc, bool user,
                       uint32_t why)
{
    uint32_t err = why | (acc == MMU_W ? PFE_W : 0) | (user ? PFE_U : 0);

    if (acc == MMU_X && f->nx)
        err |= PFE_I;
    c->cr2 = cpu_long(c) ? lin : (uint32_t)lin;
    return cpu_raise(c, VEC_PF, err);
}

static bool rights_ok(const struct cpu *c, uint64_t all, uint64_t nx, unsigned acc, bool user)
{
    if (user && !(all & PTE_U))
        return false;
    if (acc == MMU_W && !(all & PTE_W) && (user || (c->cr0 & CR0_WP)))
        return false;
    return acc != MMU_X || !nx;
}

struct step {
    uint64_t at, pte; /* physical address of the entry; what it held */
};

/* Sets accessed, and dirty in the leaf. False in *again: an entry changed under our hands. */
static bool set_bits(struct cpu *c, const struct format *f, const struct step *s, unsigned n,
                     bool dirty, bool *again)
{
    for (unsigned i = 0; i < n; i++) {
        bool leaf = i == n - 1;
        uint64_t want = s[i].pte | PTE_A | (leaf && dirty ? PTE_D : 0);
        uint8_t *host;
        enum phys p;

        if (want == s[i].pte || (f->levels == 3 && i == 0))
            continue;
        p = phys_page(c, s[i].at >> FRAME_SHIFT, true, &host);
        if (p != PHYS_RAM)
            return p == PHYS_MMIO ? cpu_bad_access(c, s[i].at) : false;
        if (!pte_swap(host + PAGE_OFFS(s[i].at), f->pte_size, s[i].pte, want)) {
            *again = true;
            return true;
        }
        mmu_told(c, s[i].at, f->pte_size);
    }
    return true;
}

static uint64_t leaf_gpa(const struct format *f, unsigned level, uint64_t pte, uint64_t lin)
{
    unsigned shift = FRAME_SHIFT + f->bits * (level - 1);
    uint64_t low = (UINT64_C(1) << shift) - 1;
    uint64_t base = f->pte_size == 4 ? pte & UINT64_C(0xfffff000) : pte & PTE_PHY;

    return (base & ~low) | (lin & low);
}

static bool walk_once(struct cpu *c, uint64_t lin, unsigned acc, bool user, struct walk *w,
                      bool *again)
{
    struct format f = format_of(c);
    struct step steps[LEVELS_MAX];
    uint64_t table = f.levels == 3   ? c->cr3 & UINT64_C(0xffffffe0)
                     : f.levels == 4 ? c->cr3 & PTE_PHY
                                     : c->cr3 & UINT64_C(0xfffff000);
    uint64_t all = PTE_W | PTE_U, nx = 0, pte = 0;
    unsigned level = f.levels, n = 0;

    for (;; level--) {
        unsigned shift = FRAME_SHIFT + f.bits * (level - 1);
        uint64_t idx = (lin >> shift) & ((1u << f.bits) - 1);
        uint64_t at = table + idx * f.pte_size;
        uint8_t *host;
        enum phys p = phys_page(c, at >> FRAME_SHIFT, false, &host);

        if (p != PHYS_RAM)
            return p == PHYS_MMIO ? cpu_bad_access(c, at) : false;
        pte = pte_load(host + PAGE_OFFS(at), f.pte_size);
        if (!(pte & PTE_P))
            return page_fault(c, &f, lin, acc, user, 0);
        if (pte & pte_reserved(c, &f, level, pte))
            return page_fault(c, &f, lin, acc, user, PFE_P | PFE_RSVD);
        steps[n++] = (struct step){at, pte};
        if (f.levels != 3 || level != 3)
            all &= pte;
        nx |= f.pte_size == 8 ? pte & PTE_NX : 0;
        if (pte_is_leaf(c, &f, level, pte))
            break;
        table = f.pte_size == 4 ? pte & UINT64_C(0xfffff000) : pte & PTE_PHY;
    }
    if (!rights_ok(c, all, nx, acc, user))
        return page_fault(c, &f, lin, acc, user, PFE_P);
    if (!set_bits(c, &f, steps, n, acc == MMU_W, again))
        return false;
    w->gpa = leaf_gpa(&f, level, pte, lin);
    w->global = (pte & PTE_G) && (c->cr4 & CR4_PGE);
    return true;
}

bool walk_linear(struct cpu *c, uint64_t lin, unsigned acc, bool user, struct walk *w)
{
    if (!(c->cr0 & CR0_PG)) {
        w->gpa = lin;
        w->global = false;
        return true;
    }
    for (;;) {
        bool again = false;

        if (!walk_once(c, lin, acc, user, w, &again))
            return false;
        if (!again)
            return true;
    }
}
