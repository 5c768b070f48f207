/*
 * Any bytes as guest code, in 16, 32 and 64-bit mode, with any registers and page tables: the
 * engine neither crashes nor hangs, a slice stays near its budget, what lies outside the guest's
 * RAM is never reached, and all frames come back.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hv/cpu/engine.h"
#include "hv/host/arena.h"
#include "hv/mm/teardown.h"

#define FRAMES 2048u /* of the machine */
#define RAM    256u  /* of the guest */
#define VM     OWNER_VM(1)
#define BUDGET 2000u
#define SLACK  8192u /* by how much a slice may pass its budget: blocks and string chunks */
#define SLICES 4u
#define CODE   0x10000u

/* How an input begins; the rest of it is code, or what a random sequence begun by it makes of it.
 */
struct head {
    uint8_t mode;   /* bits 0-2: real, 16, 32, 32 legacy, 32 PAE, 64; 3: CPL 3; 4: wild tables; 5:
                       code below */
    uint8_t events; /* interrupts between the slices */
    uint16_t cr;    /* of CR0 and CR4 */
    uint32_t flags;
    uint64_t seed; /* of registers and tables */
};

enum { REAL, SEG16, FLAT32, LEGACY, PAE, LONG, MODES };

static struct host_arena arena;
static struct heap *heap;
static const struct mf_teardown_ops *zap_ops;
static struct teardown zap;
static uint64_t rnd_state;

static uint64_t rnd(void)
{
    rnd_state ^= rnd_state << 13;
    rnd_state ^= rnd_state >> 7;
    rnd_state ^= rnd_state << 17;
    return rnd_state;
}

static const struct mf_plugin *load(const char *kind, const char *name)
{
    const struct mf_plugin *p;
    char path[512];
    void *so;

    snprintf(path, sizeof path, "%s/%s_%s.so", FUZZ_PLUGINS, kind, name);
    so = dlopen(path, RTLD_NOW);
    FUZZ_ASSERT(so);
    p = dlsym(so, MF_PLUGIN_SYMBOL);
    FUZZ_ASSERT(p);
    return p;
}

static void start(void)
{
    enum mf_status st;

    FUZZ_ASSERT(host_arena_init(&arena, FRAMES * FRAME_SIZE, NULL) == MF_OK);
    heap = heap_create(&arena.env, &arena.mm, 1, &st);
    FUZZ_ASSERT(heap);
    FUZZ_ASSERT(heap_select(heap, "buddy-lazy", load("allocator", "buddy-lazy")->ops.allocator,
                            NULL, NULL) == MF_OK);
    zap_ops = load("teardown", "single")->ops.teardown;
}

/* ---- the machine: everything answers something */

static enum machine_result port_in(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                   uint32_t *value)
{
    (void)m;
    (void)v;
    FUZZ_ASSERT(size == 1 || size == 2 || size == 4);
    *value = (uint32_t)rnd() & (size == 4 ? UINT32_MAX : (1u << size * 8) - 1);
    return port % 16 == 15 ? MACHINE_NONE : MACHINE_OK;
}

static enum machine_result port_out(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                    uint32_t value)
{
    (void)m;
    (void)v;
    FUZZ_ASSERT(size == 4 || ((size == 1 || size == 2) && !(value >> size * 8)));
    return port % 16 == 15 ? MACHINE_STOP : MACHINE_OK;
}

static enum machine_result mmio_read(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                     uint64_t *value)
{
    (void)m;
    (void)v;
    FUZZ_ASSERT(size >= 1 && size <= 8 && a.v >= RAM * FRAME_SIZE);
    *value = 0;
    return a.v >> 20 & 1 ? MACHINE_OK : MACHINE_NONE;
}

static enum machine_result mmio_write(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                      uint64_t value)
{
    (void)value;
    return mmio_read(m, v, a, size, &value);
}

static enum machine_result hypercall(void *m, struct vcpu *v, uint64_t nr, const uint64_t arg[4],
                                     int64_t *result)
{
    (void)m;
    (void)v;
    *result = (int64_t)arg[0];
    return nr & 1 ? MACHINE_YIELD : MACHINE_OK;
}

static int intr_ack(void *m, struct vcpu *v)
{
    (void)m;
    v->events &= ~CPU_EVENT_INTR;
    return (int)(rnd() & 0xff);
}

static uint64_t clock_ns(void *m)
{
    (void)m;
    return 1000;
}

static const struct machine_ops machine = {
    .port_in = port_in,
    .port_out = port_out,
    .mmio_read = mmio_read,
    .mmio_write = mmio_write,
    .hypercall = hypercall,
    .intr_ack = intr_ack,
    .clock_ns = clock_ns,
};

/* ---- the guest */

static void put(struct stage2 *s2, uint64_t at, uint64_t v)
{
    FUZZ_ASSERT(stage2_write(s2, gpa(at), &v, sizeof v) == MF_OK);
}

/* Tables at 0x1000 to 0x3fff that map low memory to itself, GDT, IDT; `wild`: with any entries. */
static void tables(struct stage2 *s2, unsigned mode, bool wild)
{
    static const uint64_t gdt[] = {0,
                                   0x00cf9b000000ffff,
                                   0x00af9b000000ffff,
                                   0x00cf93000000ffff,
                                   0x00cff3000000ffff,
                                   0x00affb000000ffff,
                                   0x00008b0060000067};

    put(s2, 0x1000, 0x2000 | (mode == LONG ? 7 : 1));
    put(s2, 0x2000, 0x3007);
    put(s2, 0x3000, mode == LEGACY ? 0x87 : 0x4007);
    for (uint64_t i = 0; mode != LEGACY && i < RAM; i++)
        put(s2, 0x4000 + i * 8, i << 12 | 7);
    for (unsigned i = 0; i < 7; i++)
        put(s2, 0x7000 + i * 8, gdt[i]);
    for (uint64_t i = 0; i < 32; i++)
        put(s2, 0x8000 + i * 16, 0x8e0000100000 + (i << 4));
    for (unsigned i = 0; wild && i < 48; i++) {
        uint64_t e = rnd();

        e = (e & 0x8000000000000fff) | (e & 0x1ff000) | (rnd() % 4 ? 1 : 0);
        put(s2, 0x1000 + rnd() % 0x1c00 / 8 * 8 + 8 * (rnd() % 0x280), rnd() % 16 ? e : rnd());
    }
}

static void segments(struct cpu_state *s, unsigned mode, unsigned dpl)
{
    unsigned code = mode == LONG ? 0xa9b : mode == SEG16 ? 0x9b : 0xc9b;

    for (unsigned n = 0; n < CPU_SEGS; n++)
        s->seg[n] = (struct cpu_segment){
            (uint16_t)(dpl ? 0x23 : 0x18), (uint16_t)((mode == SEG16 ? 0x93 : 0xc93) | dpl << 5),
            mode == SEG16 ? 0xffff : UINT32_MAX, mode == SEG16 ? CODE : 0};
    s->seg[CPU_CS].selector = (uint16_t)(dpl ? 0x2b : mode == LONG ? 0x10 : 0x08);
    s->seg[CPU_CS].attr = (uint16_t)(code | dpl << 5);
    s->tr = (struct cpu_segment){0x30, 0x8b, 0x67, 0x6000};
    if (rnd() % 8 == 0)
        s->seg[rnd() % CPU_SEGS].limit = (uint32_t)rnd() & 0xffff;
}

static void registers(struct cpu_state *s, const struct head *h, unsigned mode)
{
    cpu_state_reset(s);
    for (unsigned i = 0; i < 16; i++)
        s->gpr[i] = rnd() % 4 ? rnd() % (RAM * FRAME_SIZE) : rnd();
    s->rflags = (h->flags & 0x3f7fd7 & ~0x20000u) | 2;
    s->gdt_base = 0x7000;
    s->gdt_limit = 55;
    s->idt_base = mode == REAL ? 0 : 0x8000;
    s->idt_limit = mode == REAL ? 0x3ff : 0x1ff;
    s->rip = mode == REAL || mode == SEG16 ? 0 : CODE;
    if (mode == REAL) {
        s->seg[CPU_CS].base = CODE;
        s->seg[CPU_CS].selector = CODE >> 4;
        return;
    }
    segments(s, mode, h->mode & 8 ? 3 : 0);
    s->cr0 = 0x11 | (h->cr & 0x2e) | (h->cr & 0x40 ? 0x10000 : 0) | (h->cr & 0x80 ? 0x40000 : 0);
    s->cr4 = h->cr >> 8 & 0x9c;
    if (mode >= LEGACY)
        s->cr0 |= 0x80000000u;
    if (mode == PAE || mode == LONG)
        s->cr4 |= 0x20;
    s->efer = (h->cr & 0x100 ? 0x800 : 0) | (h->cr & 0x200 ? 1 : 0) | (mode == LONG ? 0x500 : 0);
    s->cr3 = mode == LONG ? 0x1000 : mode == PAE ? 0x2000 : 0x3000;
    if (mode == LEGACY)
        s->cr4 |= 0x10;
}

static void slices(struct vcpu *v, const struct head *h)
{
    const struct engine_ops *ops = v->vm->ops;
    struct cpu_state s;

    for (unsigned i = 0; i < SLICES; i++) {
        uint64_t before = v->instructions;
        enum cpu_exit e;

        if (h->events >> i & 1)
            v->events |= CPU_EVENT_INTR;
        if (h->events >> i & 0x10)
            v->events |= CPU_EVENT_NMI;
        e = ops->run(v, BUDGET);
        FUZZ_ASSERT(v->instructions - before <= BUDGET + SLACK);
        FUZZ_ASSERT(e <= CPU_EXIT_FAILED && e != CPU_EXIT_NO_MEMORY);
        FUZZ_ASSERT(memchr(v->detail, 0, sizeof v->detail));
        FUZZ_ASSERT(!v->viewer.inside);
        ops->get_state(v, &s);
        FUZZ_ASSERT(s.rflags & 2);
        if (e == CPU_EXIT_BAD_ACCESS)
            FUZZ_ASSERT(v->bad_gpa.v >= RAM * FRAME_SIZE);
        if (e == CPU_EXIT_TRIPLE_FAULT || e == CPU_EXIT_BAD_ACCESS || e == CPU_EXIT_FAILED)
            return;
    }
}

static void finish(struct stage2 *s2)
{
    struct heap_info info;
    enum mf_status st;

    stage2_close(s2);
    FUZZ_ASSERT(teardown_begin_whole(&zap, s2, zap_ops) == MF_OK);
    while ((st = teardown_step(&zap, 1000)) == MF_AGAIN || st == MF_BLOCKED)
        stage2_reap(s2, 1000);
    FUZZ_ASSERT(st == MF_OK);
    teardown_end(&zap);
    FUZZ_ASSERT(stage2_reap(s2, UINT64_MAX) == MF_OK);
    FUZZ_ASSERT(stage2_destroy(s2) == MF_OK);
    heap_get_info(heap, &info);
    FUZZ_ASSERT(!info.used_ram && !info.used_table);
}

static const uint8_t common[] = {0x0f, 0x66, 0xf2, 0xf3, 0x48, 0x8b, 0x89, 0xff, 0x01, 0xc3,
                                 0xe8, 0xeb, 0x75, 0xa4, 0xab, 0xcf, 0x50, 0x58, 0x8e, 0x07};

/* Random bytes, half of them common opcodes. */
static void scramble(uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = rnd() % 2 ? (uint8_t)rnd() : common[rnd() % sizeof common];
}

/* The code of an input; a different sequence for each input, the same for the same one. */
static void load_code(struct stage2 *s2, const struct head *h, const uint8_t *data, size_t size)
{
    uint64_t hash = h->seed;
    uint8_t code[512];

    FUZZ_ASSERT(stage2_write(s2, gpa(CODE), data, size) == MF_OK);
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
    rnd_state = hash | 1;
    if (!(h->mode & 32))
        return;
    scramble(code, sizeof code);
    FUZZ_ASSERT(stage2_write(s2, gpa(CODE), code, sizeof code) == MF_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct s2_config c = {.owner = VM, .roots = 1, .nr_regions = 1, .regions = {{{0}, RAM}}};
    struct engine_vm vm = {.ops = engine_soft(), .nr_vcpus = 1};
    struct vcpu v = {.vm = &vm, .mops = &machine};
    struct cpu_state s;
    struct head h;

    if (size < sizeof h)
        return 0;
    memcpy(&h, data, sizeof h);
    if (!heap)
        start();
    rnd_state = h.seed | 1;
    FUZZ_ASSERT(stage2_create(heap, &c, &vm.s2) == MF_OK);
    tables(vm.s2, (h.mode & 7) % MODES, h.mode & 16);
    load_code(vm.s2, &h, data + sizeof h, size - sizeof h);
    FUZZ_ASSERT(vm.ops->vm_init(&vm) == MF_OK && vm.ops->vcpu_init(&v) == MF_OK);
    registers(&s, &h, (h.mode & 7) % MODES);
    FUZZ_ASSERT(vm.ops->set_state(&v, &s) == MF_OK);
    slices(&v, &h);
    vm.ops->vcpu_fini(&v);
    vm.ops->vm_fini(&vm);
    finish(vm.s2);
    return 0;
}

/* Some seeds for each mode, privilege, kind of tables and of code. */
size_t fuzz_seed(unsigned i, uint8_t *buf)
{
    struct head h = {.mode = (uint8_t)(i % MODES | (i / MODES % 8) << 3),
                     .events = (uint8_t)(i * 37),
                     .cr = (uint16_t)(i * 0x1111),
                     .flags = i & 1 ? 0x202 : 2,
                     .seed = (i + 1) * UINT64_C(0x9e3779b97f4a7c15)};

    if (i >= MODES * 16)
        return 0;
    memcpy(buf, &h, sizeof h);
    rnd_state = h.seed;
    scramble(buf + sizeof h, 512 - sizeof h);
    return 512;
}
