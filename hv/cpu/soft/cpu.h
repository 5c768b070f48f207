/*
 * The software engine's own view of a vCPU. Only hv/cpu/soft includes this.
 *
 * A guest instruction is decoded once (decode.c, Zydis) into a `struct op` of 32 bytes: a handler
 * and its operands. Straight runs of ops, up to a branch or the end of the page, make a block;
 * blocks are found by guest frame, offset and decode mode (code.c).
 *
 *   run -> block -> op->fn(c, op) -> (op + 1)->fn(c, op + 1) -> ... -> the end op
 *
 * A handler that is done goes on to the next op by itself (op_next, a tail call) or returns R_OK
 * and lets the run loop do so. One that cannot finish changes nothing that the guest sees, queues
 * an exception or an exit and returns R_STOP; a near branch returns R_BREAK and one that changed
 * more of the way on (mode, interrupt flag, end of slice) R_LOOK, with c->rip set. While handlers
 * run, c->op is the present op and c->next the address behind it; c->rip is right again afterwards.
 */
#ifndef MAYFLY_CPU_SOFT_CPU_H
#define MAYFLY_CPU_SOFT_CPU_H

#include "hv/cpu/engine.h"
#include "hv/cpu/soft/fp_host.h"

#define likely(x)   __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define PAGE_MASK    (~(FRAME_SIZE - 1))
#define PAGE_OFFS(x) ((uint64_t)(x) & (FRAME_SIZE - 1))

#define REG_ZERO 16u /* always zero: "no base", "no index" */
#define REG_MEM  17u /* the memory operand while a locked instruction computes */
#define REG_NEXT 18u /* as a base: relative to the next instruction */
#define REG_HIGH 18u /* as an operand: byte registers AH CH DH BH: REG_HIGH + 0 ... 3 */

struct cpu;
struct op;

enum op_result { R_OK, R_END, R_BREAK, R_LOOK, R_STOP };
typedef enum op_result (*op_fn)(struct cpu *c, const struct op *op);

struct op {
    op_fn fn;
    uint8_t len;                     /* bytes of the instruction */
    uint8_t size;                    /* operand bytes: 1, 2, 4, 8 */
    uint8_t rm, reg;                 /* register operands: destination, source */
    uint8_t base, index, scale, asz; /* memory operand; asz: address bytes 2, 4, 8 */
    uint8_t seg;                     /* CPU_ES ... */
    uint8_t flags;                   /* OPF_* */
    uint8_t sub;                     /* condition code, operation, byte count: the handler's own */
    uint8_t size2;                   /* bytes of the second operand where it differs */
    int32_t disp;
    uint64_t imm;
};
_Static_assert(sizeof(struct op) == 32, "an op is 32 bytes");

#define OPF_MEM   0x01u /* rm is memory */
#define OPF_REP   0x02u /* F3 */
#define OPF_REPNE 0x04u /* F2 */
#define OPF_IMM   0x08u /* the count or source is op->imm */
#define OPF_FLAT  0x10u /* 64-bit code and address: a sum, without checks */

/* Decode modes: what the meaning of the bytes depends on. */
enum cpu_mode { MODE_16, MODE_32, MODE_64 };

#define TLB_BITS 10u
#define TLB_SIZE (1u << TLB_BITS)

/*
 * Tags are the linear page and, in the low bits, a generation: a flush counts it up. A right that
 * is there has the tag of the entry. An entry of a global page outlives a load of CR3: its rights
 * are out of date then, but `global` is not, and the first miss brings them up to date without a
 * walk.
 */
struct tlb_entry {
    uint64_t r, w, x;
    uint64_t slow_w;  /* may be written, and it must be told: the frame holds code */
    uint64_t tag;     /* of the rights that are there */
    uint64_t global;  /* linear page and generation of global pages; 0: is none */
    uintptr_t addend; /* host address minus linear address */
    uint64_t gfn;
};

#define PTLB_SIZE 256u

/* Guest frame to host page, below the TLB. */
struct ptlb_entry {
    uint64_t tag_r, tag_w; /* gfn << 12 | generation */
    uint8_t *host;
};

struct soft_vm;

#define TOLD_GFNS 16u

struct cpu_exc {
    uint8_t vec;
    bool pending;
    bool external; /* an interrupt: no error code */
    uint32_t err;
};

struct code_cache;

struct cpu {
    union {
        uint64_t r[19]; /* general registers, REG_ZERO, REG_MEM, REG_NEXT */
        struct {
            uint64_t r_named[18];
            uint64_t next; /* address behind the present instruction */
        };
    };

    /* Lazy arithmetic flags, see flags.h. */
    uint64_t fl_res, fl_cv;
    uint32_t fl_aux;
    uint32_t fl_sys; /* the rest of RFLAGS, bit 1 set */

    uint64_t rip;
    const struct op *op;
    struct tlb_entry *tlb; /* of the present privilege */
    uint8_t cpl, mode, stack_size;
    bool linkable;               /* code addresses are linear ones: blocks may be linked */
    uint8_t checked;             /* bit per segment: accesses through it need mmu_seg */
    uint64_t seg_base[CPU_SEGS]; /* what is added, zero where 64-bit code ignores the base */
    struct vcpu *v;
    uint8_t *arena_base;

    struct cpu_exc exc;
    bool exiting;
    enum cpu_exit exit;
    bool smc;    /* code of this vCPU was written: blocks must be looked up anew */
    bool shadow; /* no interrupt before the next instruction ends */
    bool shadow_next;
    bool shadow_stack;      /* by a load of SS: no trap of single step either */
    uint64_t count, budget; /* instructions of this run */

    struct cpu_segment seg[CPU_SEGS], ldtr, tr;
    uint64_t gdt_base, idt_base;
    uint32_t gdt_limit, idt_limit;
    uint64_t cr0, cr2, cr3, cr4, cr8, efer;
    uint64_t dr[8];
    uint64_t star, lstar, cstar, sfmask, kernel_gs_base, tsc_aux;
    uint64_t sysenter_cs, sysenter_esp, sysenter_eip;
    uint64_t apic_base, pat, tsc_offset;
    bool halted, wait_sipi, nmi_blocked;
    uint64_t decodes, tlb_misses, faults; /* of this run */

    /* Of the VM's other vCPUs, see soft_vm.h. */
    struct soft_vm *svm;
    _Atomic uint32_t told;        /* TOLD_* */
    _Atomic uint64_t watch_seen;  /* watch_gen that is obeyed; UINT64_MAX: not inside run() */
    bool running;                 /* under svm->lock: inside run() and not parked */
    unsigned nr_told;             /* under svm->lock; more than TOLD_GFNS: all */
    uint64_t told_gfn[TOLD_GFNS]; /* under svm->lock */

    struct fp_state fp; /* always with TOP-relative registers, as FXSAVE64 */

    /* From here on: kept when the vCPU waits in the pool. What the caches hold is told from what is
     * valid by the generations, which never go back. */
    struct cpu *next_free; /* in the pool; of the VM's list otherwise */
    struct code_cache *code;
    uint64_t tlb_gen, global_gen, ptlb_gen; /* low 12 bits of a tag */
    bool direct;      /* some entry gives the right to write since the last flush */
    uint64_t map_gen; /* moves whenever a linear address may lead to another block */
    struct ptlb_entry ptlb[PTLB_SIZE];
    struct tlb_entry tlbs[2][TLB_SIZE]; /* supervisor, user */
};

/* RFLAGS. */
#define FL_CF    0x1u
#define FL_ONE   0x2u
#define FL_PF    0x4u
#define FL_AF    0x10u
#define FL_ZF    0x40u
#define FL_SF    0x80u
#define FL_TF    0x100u
#define FL_IF    0x200u
#define FL_DF    0x400u
#define FL_OF    0x800u
#define FL_IOPL  0x3000u
#define FL_NT    0x4000u
#define FL_RF    0x10000u
#define FL_VM    0x20000u
#define FL_AC    0x40000u
#define FL_VIF   0x80000u
#define FL_VIP   0x100000u
#define FL_ID    0x200000u
#define FL_ARITH (FL_CF | FL_PF | FL_AF | FL_ZF | FL_SF | FL_OF)

#define CR0_PE 0x1u
#define CR0_MP 0x2u
#define CR0_EM 0x4u
#define CR0_TS 0x8u
#define CR0_ET 0x10u
#define CR0_NE 0x20u
#define CR0_WP 0x10000u
#define CR0_AM 0x40000u
#define CR0_NW 0x20000000u
#define CR0_CD 0x40000000u
#define CR0_PG 0x80000000u
#define CR0_BITS                                                                                   \
    (CR0_PE | CR0_MP | CR0_EM | CR0_TS | CR0_ET | CR0_NE | CR0_WP | CR0_AM | CR0_NW | CR0_CD |     \
     CR0_PG)

#define CR4_TSD  0x4u
#define CR4_DE   0x8u
#define CR4_PSE  0x10u
#define CR4_PAE  0x20u
#define CR4_PGE  0x80u
#define CR4_PCE  0x100u
#define CR4_FXSR 0x200u /* OSFXSR: SSE may be used */
#define CR4_XMM  0x400u /* OSXMMEXCPT: #XM, not #UD */
#define CR4_BITS (CR4_TSD | CR4_DE | CR4_PSE | CR4_PAE | CR4_PGE | CR4_PCE | CR4_FXSR | CR4_XMM)

#define EFER_SCE  0x1u
#define EFER_LME  0x100u
#define EFER_LMA  0x400u
#define EFER_NX   0x800u
#define EFER_BITS (EFER_SCE | EFER_LME | EFER_LMA | EFER_NX)

enum {
    VEC_DE = 0,
    VEC_DB = 1,
    VEC_NMI = 2,
    VEC_BP = 3,
    VEC_OF = 4,
    VEC_BR = 5,
    VEC_UD = 6,
    VEC_NM = 7,
    VEC_DF = 8,
    VEC_TS = 10,
    VEC_NP = 11,
    VEC_SS = 12,
    VEC_GP = 13,
    VEC_PF = 14,
    VEC_MF = 16,
    VEC_AC = 17,
    VEC_XM = 19,
};

static inline bool cpu_long(const struct cpu *c)
{
    return (c->efer & EFER_LMA) != 0;
}

static inline bool cpu_protected(const struct cpu *c)
{
    return (c->cr0 & CR0_PE) != 0;
}

static inline bool cpu_vm86(const struct cpu *c)
{
    return (c->fl_sys & FL_VM) != 0;
}

/* Protected mode that is not virtual-8086: descriptors are what selectors mean. */
static inline bool cpu_descriptors(const struct cpu *c)
{
    return cpu_protected(c) && !cpu_vm86(c);
}

static inline bool is_canonical(uint64_t a)
{
    return (uint64_t)((int64_t)(a << 16) >> 16) == a;
}

/* Queues an exception; always false, so that a check can return it. */
static inline bool cpu_raise(struct cpu *c, unsigned vec, uint32_t err)
{
    c->exc = (struct cpu_exc){.vec = (uint8_t)vec, .pending = true, .err = err};
    return false;
}

static inline enum op_result op_raise(struct cpu *c, unsigned vec, uint32_t err)
{
    cpu_raise(c, vec, err);
    return R_STOP;
}

/* The run ends with `e` before this instruction; always false. */
static inline bool cpu_leave(struct cpu *c, enum cpu_exit e)
{
    c->exit = e;
    c->exiting = true;
    return false;
}

/* Guest-physical `at` is neither RAM nor a device: the run ends; always false. */
static inline bool cpu_bad_access(struct cpu *c, uint64_t at)
{
    c->v->bad_gpa = gpa(at);
    return cpu_leave(c, CPU_EXIT_BAD_ACCESS);
}

/* Address of the present instruction, while its handler runs. */
static inline uint64_t op_ip(const struct cpu *c, const struct op *op)
{
    uint64_t ip = c->next - op->len;

    return c->mode == MODE_64 ? ip : (uint32_t)ip;
}

/* The handler of `op` is done. Not after an access to memory: op_next_mem. */
static inline __attribute__((always_inline)) enum op_result op_next(struct cpu *c,
                                                                    const struct op *op)
{
    op++;
    c->op = op;
    c->next += op->len;
    return op->fn(c, op);
}

/* The run loop looks when code was written or a device wants it. */
static inline __attribute__((always_inline)) enum op_result op_next_mem(struct cpu *c,
                                                                        const struct op *op)
{
    return unlikely(c->smc) ? R_OK : op_next(c, op);
}

/* A near branch: nothing but the address has changed. */
static inline enum op_result op_jump(struct cpu *c, uint64_t ip)
{
    c->rip = ip;
    return R_BREAK;
}

/* Goes on at `ip` after a look at everything that may have changed. */
static inline enum op_result op_look(struct cpu *c, uint64_t ip)
{
    c->rip = ip;
    return R_LOOK;
}

/* The run ends with `e` behind this instruction. */
static inline enum op_result op_leave(struct cpu *c, enum cpu_exit e)
{
    c->exit = e;
    c->exiting = true;
    return op_look(c, c->next);
}

static inline uint64_t size_mask(unsigned size)
{
    return size == 8 ? UINT64_MAX : (UINT64_C(1) << (size * 8)) - 1;
}

static inline uint64_t sign_extend(uint64_t v, unsigned size)
{
    unsigned s = 64 - size * 8;

    return (uint64_t)((int64_t)(v << s) >> s);
}

/* ---- registers by operand number */

static inline uint64_t reg_get(const struct cpu *c, unsigned n, unsigned size)
{
    if (size == 1 && n >= REG_HIGH)
        return (uint8_t)(c->r[n - REG_HIGH] >> 8);
    return c->r[n] & size_mask(size);
}

/* 32-bit writes clear the upper half, narrower ones keep the rest. */
static inline void reg_set(struct cpu *c, unsigned n, unsigned size, uint64_t v)
{
    switch (size) {
    case 8:
        c->r[n] = v;
        break;
    case 4:
        c->r[n] = (uint32_t)v;
        break;
    case 2:
        c->r[n] = (c->r[n] & ~UINT64_C(0xffff)) | (uint16_t)v;
        break;
    default:
        if (n >= REG_HIGH)
            c->r[n - REG_HIGH] = (c->r[n - REG_HIGH] & ~UINT64_C(0xff00)) | ((v & 0xff) << 8);
        else
            c->r[n] = (c->r[n] & ~UINT64_C(0xff)) | (uint8_t)v;
        break;
    }
}

/* ---- state.c */
void cpu_update_mode(struct cpu *c); /* after CS, SS, CR0, EFER, RFLAGS.VM or any segment moved */
void cpu_set_rflags(struct cpu *c, uint64_t v, uint32_t mask);
void cpu_load_state(struct cpu *c, const struct cpu_state *s);
void cpu_store_state(const struct cpu *c, struct cpu_state *s);

#endif
