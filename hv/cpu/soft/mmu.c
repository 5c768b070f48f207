#include "hv/cpu/soft/mmu.h"

#include "hv/cpu/soft/code.h"
#include "hv/cpu/soft/soft_vm.h"
#include "hv/cpu/soft/walk.h"

#define GEN_MASK UINT64_C(0xfff)

/* ---- forgetting */

static void tlb_clear(struct cpu *c)
{
    memset(c->tlbs, 0, sizeof c->tlbs);
    c->tlb_gen = c->global_gen = 1;
    c->direct = false;
}

void mmu_flush_space(struct cpu *c)
{
    if (++c->tlb_gen > GEN_MASK)
        tlb_clear(c);
    c->map_gen++;
}

void mmu_flush(struct cpu *c)
{
    c->direct = false;
    if (++c->global_gen > GEN_MASK)
        tlb_clear(c);
    mmu_flush_space(c);
}

void mmu_flush_page(struct cpu *c, uint64_t lin)
{
    for (unsigned u = 0; u < 2; u++)
        *tlb_slot(c->tlbs[u], lin) = (struct tlb_entry){0};
    c->map_gen++;
}

void mmu_flush_all(struct cpu *c)
{
    mmu_flush(c);
    if (++c->ptlb_gen > GEN_MASK) {
        memset(c->ptlb, 0, sizeof c->ptlb);
        c->ptlb_gen = 1;
    }
}

static void unwrite(struct tlb_entry *e)
{
    if (e->w)
        e->slow_w = e->w;
    e->w = 0;
}

void mmu_unwrite(struct cpu *c, uint64_t g)
{
    if (!c->direct)
        return;
    for (unsigned u = 0; u < 2; u++)
        for (unsigned i = 0; i < TLB_SIZE; i++)
            if (c->tlbs[u][i].gfn == g)
                unwrite(&c->tlbs[u][i]);
}

void mmu_unwrite_watched(struct cpu *c)
{
    if (!c->direct)
        return;
    for (unsigned u = 0; u < 2; u++)
        for (unsigned i = 0; i < TLB_SIZE; i++)
            if (c->tlbs[u][i].w && soft_vm_watches(c->svm, c->tlbs[u][i].gfn))
                unwrite(&c->tlbs[u][i]);
}

/* ---- translation */

static void tlb_fill(struct cpu *c, uint64_t lin, unsigned acc, bool user, const struct walk *w,
                     uint8_t *page)
{
    struct tlb_entry *e = tlb_slot(c->tlbs[user], lin);
    uint64_t tag = (lin & PAGE_MASK) | c->tlb_gen, gfn = w->gpa >> FRAME_SHIFT;
    uintptr_t addend = (uintptr_t)page - (uintptr_t)(lin & PAGE_MASK);

    if (e->tag != tag || e->addend != addend || e->gfn != gfn)
        *e = (struct tlb_entry){.tag = tag, .addend = addend, .gfn = gfn};
    e->global = w->global ? (lin & PAGE_MASK) | c->global_gen : 0;
    if (acc == MMU_X)
        e->x = tag;
    else
        e->r = tag;
    if (acc != MMU_W)
        return;
    if (soft_vm_watches(c->svm, gfn)) {
        e->slow_w = tag;
    } else {
        e->w = tag;
        c->direct = true;
    }
}

/* Brings a global entry up to date that a load of CR3 left behind. True: it gives the right. */
static bool tlb_renew(struct cpu *c, uint64_t lin, unsigned acc, bool user, struct mmu_ref *ref)
{
    struct tlb_entry *e = tlb_slot(c->tlbs[user], lin);
    uint64_t old = e->tag, tag = (lin & PAGE_MASK) | c->tlb_gen;

    if (e->global != ((lin & PAGE_MASK) | c->global_gen) || old == tag)
        return false;
    e->tag = tag;
    e->r = e->r == old ? tag : 0;
    e->w = e->w == old ? tag : 0;
    e->x = e->x == old ? tag : 0;
    e->slow_w = e->slow_w == old ? tag : 0;
    ref->host = (uint8_t *)(e->addend + (uintptr_t)lin);
    ref->gpa = e->gfn << FRAME_SHIFT | PAGE_OFFS(lin);
    return (acc == MMU_X ? e->x : acc == MMU_W ? e->w | e->slow_w : e->r) != 0;
}

/* The present instruction's memory operand is addressed through SS. */
static bool through_stack(const struct cpu *c)
{
    return c->op && (c->op->flags & OPF_MEM) && c->op->seg == CPU_SS;
}

bool mmu_ref(struct cpu *c, uint64_t lin, unsigned acc, bool user, struct mmu_ref *ref)
{
    struct walk w;
    uint8_t *page;
    enum phys p;

    if (cpu_long(c) && !is_canonical(lin))
        return cpu_raise(c, through_stack(c) ? VEC_SS : VEC_GP, 0);
    if (tlb_renew(c, lin, acc, user, ref))
        return true;
    c->tlb_misses++;
    if (!walk_linear(c, lin, acc, user, &w))
        return false;
    p = phys_page(c, w.gpa >> FRAME_SHIFT, acc == MMU_W, &page);
    if (p == PHYS_FAIL)
        return false;
    ref->gpa = w.gpa;
    ref->host = NULL;
    if (p == PHYS_MMIO)
        return true;
    ref->host = page + PAGE_OFFS(w.gpa);
    tlb_fill(c, lin, acc, user, &w, page);
    return true;
}

/* ---- slow accesses */

/* What a machine op answered; the access itself is done. */
static bool machine_said(struct cpu *c, enum machine_result r, uint64_t a)
{
    if (r == MACHINE_NONE)
        return cpu_bad_access(c, a);
    if (r != MACHINE_OK) {
        cpu_leave(c, r == MACHINE_STOP ? CPU_EXIT_STOP : CPU_EXIT_YIELD);
        c->smc = true; /* the run loop looks up behind this instruction */
    }
    return true;
}

static bool mmio_read(struct cpu *c, uint64_t a, unsigned size, uint64_t *out)
{
    c->v->exits++;
    *out = 0;
    if (!c->v->mops->mmio_read)
        return cpu_bad_access(c, a);
    return machine_said(c, c->v->mops->mmio_read(c->v->machine, c->v, gpa(a), size, out), a);
}

static bool mmio_write(struct cpu *c, uint64_t a, unsigned size, uint64_t v)
{
    c->v->exits++;
    if (!c->v->mops->mmio_write)
        return cpu_bad_access(c, a);
    return machine_said(c, c->v->mops->mmio_write(c->v->machine, c->v, gpa(a), size, v), a);
}

static uint64_t lin_next_page(const struct cpu *c, uint64_t lin)
{
    uint64_t next = (lin & PAGE_MASK) + FRAME_SIZE;

    return cpu_long(c) ? next : (uint32_t)next;
}

void mmu_told(struct cpu *c, uint64_t at, unsigned size)
{
    if (likely(!soft_vm_watches(c->svm, at >> FRAME_SHIFT)))
        return;
    code_written(c, at, size);
    soft_vm_written(c->svm, c, at >> FRAME_SHIFT);
}

/* A page that may be written, but not past `mmu_told`. */
static bool ref_slow_w(struct cpu *c, uint64_t lin, bool user, struct mmu_ref *ref)
{
    const struct tlb_entry *e = tlb_slot(c->tlbs[user], lin);

    if (e->slow_w != ((lin & PAGE_MASK) | c->tlb_gen))
        return false;
    ref->host = (uint8_t *)(e->addend + (uintptr_t)lin);
    ref->gpa = e->gfn << FRAME_SHIFT | PAGE_OFFS(lin);
    return true;
}

static bool read_part(struct cpu *c, const struct mmu_ref *ref, unsigned size, uint64_t *out)
{
    if (!ref->host)
        return mmio_read(c, ref->gpa, size, out);
    *out = 0;
    guest_copy(out, ref->host, size);
    return true;
}

static bool write_part(struct cpu *c, const struct mmu_ref *ref, unsigned size, uint64_t v)
{
    if (!ref->host)
        return mmio_write(c, ref->gpa, size, v);
    guest_copy(ref->host, &v, size);
    mmu_told(c, ref->gpa, size);
    return true;
}

static bool read_as(struct cpu *c, uint64_t lin, unsigned size, bool user, uint64_t *out)
{
    struct mmu_ref a, b;
    unsigned n = (unsigned)(FRAME_SIZE - PAGE_OFFS(lin));
    uint64_t low, high;

    if (!mmu_ref(c, lin, MMU_R, user, &a))
        return false;
    if (n >= size)
        return read_part(c, &a, size, out);
    if (!mmu_ref(c, lin_next_page(c, lin), MMU_R, user, &b))
        return false;
    if (!read_part(c, &a, n, &low) || !read_part(c, &b, size - n, &high))
        return false;
    *out = low | high << (n * 8);
    return true;
}

static bool write_as(struct cpu *c, uint64_t lin, unsigned size, bool user, uint64_t v)
{
    struct mmu_ref a, b;
    unsigned n = (unsigned)(FRAME_SIZE - PAGE_OFFS(lin));

    if (!ref_slow_w(c, lin, user, &a) && !mmu_ref(c, lin, MMU_W, user, &a))
        return false;
    if (n >= size)
        return write_part(c, &a, size, v);
    if (!mmu_ref(c, lin_next_page(c, lin), MMU_W, user, &b))
        return false;
    return write_part(c, &a, n, v & size_mask(n)) && write_part(c, &b, size - n, v >> (n * 8));
}

bool mmu_read(struct cpu *c, uint64_t lin, unsigned size, uint64_t *out)
{
    return read_as(c, lin, size, c->cpl == 3, out);
}

bool mmu_write(struct cpu *c, uint64_t lin, unsigned size, uint64_t v)
{
    return write_as(c, lin, size, c->cpl == 3, v);
}

bool mmu_sys_read(struct cpu *c, uint64_t lin, unsigned size, uint64_t *out)
{
    return read_as(c, lin, size, false, out);
}

bool mmu_sys_write(struct cpu *c, uint64_t lin, unsigned size, uint64_t v)
{
    return write_as(c, lin, size, false, v);
}

bool mmu_probe_write(struct cpu *c, uint64_t lin, unsigned size)
{
    struct mmu_ref ref;

    if (!mmu_ref(c, lin, MMU_W, c->cpl == 3, &ref))
        return false;
    return page_fits(lin, size) || mmu_ref(c, lin_next_page(c, lin), MMU_W, c->cpl == 3, &ref);
}

static uint64_t lin_add(const struct cpu *c, uint64_t lin, unsigned n)
{
    return cpu_long(c) ? lin + n : (uint32_t)(lin + n);
}

/* The largest piece of 8, 4, 2 or 1 bytes at an address that is in one page. */
static unsigned piece(uint64_t lin, unsigned left)
{
    unsigned n = 8;

    while (n > left || !page_fits(lin, n))
        n /= 2;
    return n;
}

bool mmu_read_bytes(struct cpu *c, uint64_t lin, void *p, unsigned n)
{
    uint8_t buf[MMU_BYTES_MAX];

    for (unsigned i = 0, k; i < n; i += k) {
        uint64_t at = lin_add(c, lin, i), v;

        k = piece(at, n - i);
        if (!mmu_read(c, at, k, &v))
            return false;
        memcpy(buf + i, &v, k);
    }
    memcpy(p, buf, n);
    return true;
}

bool mmu_write_bytes(struct cpu *c, uint64_t lin, const void *p, unsigned n)
{
    const uint8_t *from = p;

    if (!mmu_probe_write(c, lin, n))
        return false;
    for (unsigned i = 0, k; i < n; i += k) {
        uint64_t at = lin_add(c, lin, i), v = 0;

        k = piece(at, n - i);
        memcpy(&v, from + i, k);
        if (!mmu_write(c, at, k, v))
            return false;
    }
    return true;
}

/* ---- segments */

static bool seg_fault(struct cpu *c, unsigned seg)
{
    return cpu_raise(c, seg == CPU_SS ? VEC_SS : VEC_GP, 0);
}

static bool seg_rights(const struct cpu_segment *s, unsigned acc)
{
    bool code = (s->attr & 8) != 0;

    if (!(s->attr & CPU_SEG_P) || !(s->attr & CPU_SEG_S))
        return false;
    if (acc == MMU_W)
        return !code && (s->attr & 2);
    return acc == MMU_X ? code : !code || (s->attr & 2);
}

bool mmu_seg(struct cpu *c, unsigned seg, uint64_t off, unsigned size, unsigned acc, uint64_t *lin)
{
    const struct cpu_segment *s = &c->seg[seg];
    uint64_t last = off + size - 1;

    if (cpu_descriptors(c) && !seg_rights(s, acc))
        return seg_fault(c, seg);
    if ((s->attr & 0xc) == 4) { /* data, expand down */
        uint64_t top = s->attr & CPU_SEG_DB ? 0xffffffffu : 0xffffu;

        if (off <= s->limit || last > top)
            return seg_fault(c, seg);
    } else if (last > s->limit) {
        return seg_fault(c, seg);
    }
    *lin = (uint32_t)(s->base + off);
    return true;
}
