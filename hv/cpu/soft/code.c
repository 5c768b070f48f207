#include "hv/cpu/soft/code.h"

#include <stdlib.h>
#include <string.h>

#include "hv/cpu/soft/decode.h"
#include "hv/cpu/soft/lazy.h"
#include "hv/cpu/soft/mmu.h"
#include "hv/cpu/soft/soft_vm.h"

#define LINE_SHIFT 6u
#define BUCKETS    512u
#define PAGES_MAX  4096u /* beyond it the cache starts over */
#define PAGES_KEPT 4u    /* by a vCPU that waits in the pool */
#define INSN_MAX   15u
#define HEADS      64u

struct code_page {
    uint64_t gfn;
    uint8_t kind;     /* decode mode, and 4: user */
    uint64_t epoch;   /* of the cache, when the bytes were last known to be those in memory */
    uint64_t serial;  /* of the VM in which the frame is watched for this page */
    uint64_t watched; /* generation for soft_vm_settled */
    bool settled;
    uint64_t lines; /* 64-byte lines that were decoded from: their bytes count */
    struct code_page *next;
    struct stored_block *head[HEADS]; /* by offset of the first instruction */
    uint8_t bytes[FRAME_SIZE];
};

struct stored_block {
    struct block b;
    unsigned at; /* offset of its first instruction */
    struct stored_block *next;
    struct op ops[];
};

/* Blocks by guest-physical address, without a walk through pages. */
#define SLOTS      4096u
#define PAGE_SLOTS 64u

struct block_slot {
    uint64_t key; /* address << 3 | kind */
    uint64_t gen;
    struct block *block;
};

struct code_cache {
    uint64_t epoch;
    uint64_t gen; /* of slots and links: what was before is void */
    bool lasting; /* the block that code_find gave may be found again by slots and links */
    unsigned nr_pages;
    struct code_page *bucket[BUCKETS];
    struct block cross; /* the last instruction that went over a page's end */
    struct op cross_ops[2];
    struct block_slot slot[SLOTS];
};

static enum op_result end_of_block(struct cpu *c, const struct op *op)
{
    (void)c;
    (void)op;
    return R_END;
}

const struct op code_end_op = {.fn = end_of_block};

static unsigned bucket_of(uint64_t gfn)
{
    return (unsigned)(gfn % BUCKETS);
}

struct code_cache *code_cache_create(void)
{
    struct code_cache *cc = lazy_alloc(sizeof *cc);

    if (cc)
        cc->epoch = cc->gen = 1;
    return cc;
}

static void page_clear(struct code_page *p)
{
    for (unsigned i = 0; i < HEADS; i++) {
        struct stored_block *s;

        while ((s = p->head[i])) {
            p->head[i] = s->next;
            free(s);
        }
    }
    p->lines = 0;
}

static void cache_empty(struct code_cache *cc)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        struct code_page *p;

        while ((p = cc->bucket[i])) {
            cc->bucket[i] = p->next;
            page_clear(p);
            free(p);
        }
    }
    cc->nr_pages = 0;
}

void code_cache_destroy(struct code_cache *cc)
{
    if (!cc)
        return;
    cache_empty(cc);
    lazy_free(cc, sizeof *cc);
}

/* Slots and links hold no longer. */
static void code_void(struct cpu *c)
{
    c->code->gen++;
    c->map_gen++;
}

void code_doubt_all(struct cpu *c)
{
    c->code->epoch++;
    code_void(c);
    c->smc = true;
}

void code_cache_trim(struct code_cache *cc)
{
    if (cc->nr_pages > PAGES_KEPT)
        cache_empty(cc);
}

static void doubt(struct cpu *c, struct code_page *p)
{
    p->epoch = 0;
    code_void(c);
    c->smc = true;
}

void code_doubt(struct cpu *c, uint64_t g)
{
    for (struct code_page *p = c->code->bucket[bucket_of(g)]; p; p = p->next)
        if (p->gfn == g)
            doubt(c, p);
}

void code_written(struct cpu *c, uint64_t at, unsigned size)
{
    uint64_t g = at >> FRAME_SHIFT;
    unsigned first = (unsigned)(PAGE_OFFS(at) >> LINE_SHIFT);
    unsigned last = (unsigned)(PAGE_OFFS(at + size - 1) >> LINE_SHIFT);
    uint64_t hit = (UINT64_MAX >> (63 - (last - first))) << first;

    for (struct code_page *p = c->code->bucket[bucket_of(g)]; p; p = p->next) {
        if (p->gfn == g && (p->lines & hit))
            doubt(c, p);
    }
}

/* ---- lookup */

static unsigned code_kind(const struct cpu *c)
{
    return c->mode | (c->cpl == 3 ? 4u : 0);
}

static struct code_page *page_get(struct cpu *c, uint64_t g)
{
    struct code_cache *cc = c->code;
    struct code_page *p;

    for (p = cc->bucket[bucket_of(g)]; p; p = p->next)
        if (p->gfn == g && p->kind == code_kind(c))
            return p;
    if (cc->nr_pages >= PAGES_MAX) {
        cache_empty(cc);
        code_void(c);
    }
    p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->gfn = g;
    p->kind = (uint8_t)code_kind(c);
    p->epoch = cc->epoch;
    p->next = cc->bucket[bucket_of(g)];
    cc->bucket[bucket_of(g)] = p;
    cc->nr_pages++;
    return p;
}

/* The frame is watched for this page, in this VM. */
static void page_watch(struct cpu *c, struct code_page *p)
{
    if (likely(p->serial == c->svm->serial))
        return;
    p->serial = c->svm->serial;
    p->watched = soft_vm_watch(c, p->gfn);
    p->settled = false;
    mmu_unwrite(c, p->gfn);
}

/* The bytes decoded from are still those in memory, or the page is empty now. */
static void page_check(struct cpu *c, struct code_page *p, const uint8_t *host)
{
    bool settled;

    page_watch(c, p);
    if (likely(p->epoch == c->code->epoch && p->settled))
        return;
    settled = soft_vm_settled(c, p->watched); /* asked before the bytes are looked at */
    p->epoch = c->code->epoch;
    for (uint64_t left = p->lines; left; left &= left - 1) {
        unsigned at = (unsigned)__builtin_ctzll(left) << LINE_SHIFT;

        if (!guest_same(p->bytes + at, host + at, 1u << LINE_SHIFT)) {
            page_clear(p);
            code_void(c);
            break;
        }
    }
    p->settled = settled;
}

/* Makes p->bytes hold [from, to) as it is in memory now; what is decoded is decoded from there. */
static void page_note(struct code_page *p, const uint8_t *host, unsigned from, unsigned to)
{
    for (unsigned line = from >> LINE_SHIFT; line <= (to - 1) >> LINE_SHIFT; line++) {
        if (p->lines >> line & 1)
            continue;
        p->lines |= UINT64_C(1) << line;
        guest_copy(p->bytes + (line << LINE_SHIFT), host + (line << LINE_SHIFT), 1u << LINE_SHIFT);
    }
}

static unsigned insn_end(unsigned pos)
{
    return pos + INSN_MAX < FRAME_SIZE ? pos + INSN_MAX : (unsigned)FRAME_SIZE;
}

/* Decodes a run of instructions that lie wholly in the page. NULL: the first one does not. */
static struct block *page_decode(struct cpu *c, struct code_page *p, const uint8_t *host,
                                 unsigned at, bool *no_memory)
{
    struct op ops[BLOCK_OPS + 1];
    unsigned n = 0, pos = at;
    struct stored_block *s;
    enum decoded d = DECODED;

    while (n < BLOCK_OPS && d == DECODED && pos < FRAME_SIZE) {
        page_note(p, host, pos, insn_end(pos));
        d = decode_op(c->mode, p->bytes + pos, insn_end(pos) - pos, &ops[n]);
        if (d == DECODED_SHORT)
            break;
        c->decodes++;
        pos += ops[n++].len;
    }
    if (!n)
        return NULL;
    ops[n] = code_end_op;
    s = malloc(sizeof *s + (n + 1) * sizeof ops[0]);
    *no_memory = !s;
    if (!s)
        return NULL;
    memcpy(s->ops, ops, (n + 1) * sizeof ops[0]);
    s->b = (struct block){.ops = s->ops, .nr = n};
    s->at = at;
    s->next = p->head[at % HEADS];
    p->head[at % HEADS] = s;
    return &s->b;
}

/* One instruction that goes on in the next page: decoded each time, from both. */
static struct block *cross_decode(struct cpu *c, uint64_t lin, const uint8_t *host, unsigned n)
{
    uint8_t bytes[INSN_MAX];
    uint64_t next = c->mode == MODE_64 ? lin + n : (uint32_t)(lin + n);
    struct mmu_ref ref;

    if (c->mode != MODE_64 && c->rip + n > c->seg[CPU_CS].limit) {
        cpu_raise(c, VEC_GP, 0);
        return NULL;
    }
    guest_copy(bytes, host, n);
    if (!mmu_ref(c, next, MMU_X, c->cpl == 3, &ref))
        return NULL;
    if (!ref.host) {
        cpu_bad_access(c, ref.gpa);
        return NULL;
    }
    guest_copy(bytes + n, ref.host, INSN_MAX - n);
    decode_op(c->mode, bytes, INSN_MAX, &c->code->cross_ops[0]);
    c->code->cross_ops[1] = code_end_op;
    c->decodes++;
    c->code->cross = (struct block){.ops = c->code->cross_ops, .nr = 1};
    c->code->lasting = false;
    return &c->code->cross;
}

static struct block *out_of_memory(struct cpu *c)
{
    c->v->status = MF_E_NO_MEMORY;
    cpu_leave(c, CPU_EXIT_NO_MEMORY);
    return NULL;
}

/* Linear address of the next instruction. */
static bool code_lin(struct cpu *c, uint64_t *lin)
{
    const struct cpu_segment *cs = &c->seg[CPU_CS];

    if (c->mode == MODE_64) {
        *lin = c->rip;
        return true;
    }
    if (c->rip > cs->limit)
        return cpu_raise(c, VEC_GP, 0);
    *lin = (uint32_t)(cs->base + c->rip);
    return true;
}

static bool code_host(struct cpu *c, uint64_t lin, const uint8_t **host, uint64_t *g)
{
    const struct tlb_entry *e = tlb_slot(c->tlb, lin);
    struct mmu_ref ref;

    if (likely(e->x == ((lin & PAGE_MASK) | c->tlb_gen))) {
        *host = (const uint8_t *)(e->addend + (uintptr_t)lin);
        *g = e->gfn;
        return true;
    }
    if (!mmu_ref(c, lin, MMU_X, c->cpl == 3, &ref))
        return false;
    if (!ref.host)
        return cpu_bad_access(c, ref.gpa);
    *host = ref.host;
    *g = ref.gpa >> FRAME_SHIFT;
    return true;
}

/* The block at `at` of a page whose bytes are right. */
static struct block *page_block(struct cpu *c, struct code_page *p, const uint8_t *host,
                                uint64_t lin)
{
    unsigned at = (unsigned)PAGE_OFFS(lin);
    bool no_memory = false;
    struct block *b;

    for (struct stored_block *s = p->head[at % HEADS]; s; s = s->next)
        if (s->at == at)
            return &s->b;
    b = page_decode(c, p, host - at, at, &no_memory);
    if (b)
        return b;
    return no_memory ? out_of_memory(c) : cross_decode(c, lin, host, (unsigned)FRAME_SIZE - at);
}

/* The blocks of a guest page lie together, so that a small guest touches few of the host's. */
static unsigned slot_of(uint64_t gfn, unsigned offset)
{
    return (unsigned)(gfn * PAGE_SLOTS + (offset ^ offset / PAGE_SLOTS) % PAGE_SLOTS) % SLOTS;
}

struct block *code_find(struct cpu *c)
{
    struct code_cache *cc = c->code;
    struct block_slot *slot;
    const uint8_t *host;
    struct code_page *p;
    struct block *b;
    uint64_t lin, g, key;

    if (!code_lin(c, &lin) || !code_host(c, lin, &host, &g))
        return NULL;
    key = (g << FRAME_SHIFT | PAGE_OFFS(lin)) << 3 | code_kind(c);
    slot = &cc->slot[slot_of(g, PAGE_OFFS(lin))];
    cc->lasting = true;
    if (likely(slot->key == key && slot->gen == cc->gen))
        return slot->block;
    p = page_get(c, g);
    if (!p)
        return out_of_memory(c);
    page_check(c, p, host - PAGE_OFFS(lin));
    cc->lasting = p->settled;
    b = page_block(c, p, host, lin);
    if (b && cc->lasting)
        *slot = (struct block_slot){key, cc->gen, b};
    return b;
}

struct block *code_follow(struct cpu *c, struct block *b, uint64_t from)
{
    struct code_cache *cc = c->code;
    uint64_t gen = cc->gen, rip = c->rip;
    struct block *to;

    if (likely(c->linkable))
        for (unsigned i = 0; i < LINKS; i++) {
            const struct link *l = &b->link[i];

            if (likely(l->rip == rip) && l->stamp == (l->far ? c->map_gen : cc->gen))
                return l->to;
        }
    to = code_find(c);
    if (to && c->linkable && cc->lasting && cc->gen == gen && b != &cc->cross) {
        bool far = ((from ^ rip) & PAGE_MASK) != 0;

        b->link[b->turn] = (struct link){rip, far ? c->map_gen : gen, to, far};
        b->turn = (b->turn + 1) % LINKS;
    }
    return to;
}
