#include "tests/unit/cpu/cpu_testvm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* ---- the machine */

static struct tv_access *note(struct testvm *t, enum tv_what what, uint64_t where, unsigned size,
                              uint64_t value)
{
    struct tv_access *a = &t->log[t->nr_log < TV_LOG ? t->nr_log : TV_LOG - 1];

    t->nr_log++;
    *a = (struct tv_access){.what = what, .where = where, .size = size, .value = value};
    return a;
}

static enum machine_result port_in(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                   uint32_t *value)
{
    struct testvm *t = m;

    (void)v;
    *value = size == 4 ? t->in_value : t->in_value & ((1u << size * 8) - 1);
    note(t, TV_PORT_IN, port, size, *value);
    return t->answer;
}

static enum machine_result port_out(void *m, struct vcpu *v, uint16_t port, unsigned size,
                                    uint32_t value)
{
    struct testvm *t = m;

    (void)v;
    note(t, TV_PORT_OUT, port, size, value);
    return t->answer;
}

static bool is_device(const struct testvm *t, gpa_t a)
{
    return t->mmio && a.v >> FRAME_SHIFT == 0xf0000;
}

static enum machine_result mmio_read(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                     uint64_t *value)
{
    struct testvm *t = m;

    (void)v;
    if (!is_device(t, a))
        return MACHINE_NONE;
    *value =
        UINT64_C(0x8877665544332211) & (size == 8 ? UINT64_MAX : (UINT64_C(1) << size * 8) - 1);
    note(t, TV_MMIO_READ, a.v, size, *value);
    return MACHINE_OK;
}

static enum machine_result mmio_write(void *m, struct vcpu *v, gpa_t a, unsigned size,
                                      uint64_t value)
{
    struct testvm *t = m;

    (void)v;
    if (!is_device(t, a))
        return MACHINE_NONE;
    note(t, TV_MMIO_WRITE, a.v, size, value);
    return MACHINE_OK;
}

static enum machine_result hypercall(void *m, struct vcpu *v, uint64_t nr, const uint64_t arg[4],
                                     int64_t *result)
{
    struct testvm *t = m;

    (void)v;
    memcpy(note(t, TV_HYPERCALL, nr, 0, 0)->arg, arg, 4 * sizeof arg[0]);
    *result = t->call_result;
    return t->answer;
}

static int intr_ack(void *m, struct vcpu *v)
{
    struct testvm *t = m;
    int vec = t->vector;

    (void)v;
    t->vector = -1;
    return vec;
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

/* ---- life */

static void vm_begin(struct testvm *t)
{
    struct s2_config c = {.owner = t->owner, .roots = 1, .nr_regions = 1};

    c.regions[0].frames = TV_RAM_FRAMES;
    assert_int_equal(stage2_create(t->mm.heap, &c, &t->s2), MF_OK);
    memset(&t->v, 0, sizeof t->v);
    t->evm = (struct engine_vm){.ops = engine_soft(), .s2 = t->s2, .nr_vcpus = 1};
    assert_int_equal(t->evm.ops->vm_init(&t->evm), MF_OK);
    t->v.vm = &t->evm;
    t->v.mops = &machine;
    t->v.machine = t;
    assert_int_equal(t->evm.ops->vcpu_init(&t->v), MF_OK);
    t->nr_log = 0;
    t->answer = MACHINE_OK;
    t->vector = -1;
    t->mmio = false;
    t->evm.ops->get_state(&t->v, &t->st);
}

static void vm_end(struct testvm *t)
{
    t->evm.ops->vcpu_fini(&t->v);
    t->evm.ops->vm_fini(&t->evm);
    mm_test_end_stage2(t->s2, mm_test_teardown("single"));
}

void tv_init(struct testvm *t)
{
    memset(t, 0, sizeof *t);
    mm_testenv_init(&t->mm, 2 * TV_RAM_FRAMES, 1);
    mm_testenv_select(&t->mm, "buddy-lazy");
    t->owner = OWNER_VM(1);
    vm_begin(t);
}

void tv_fini(struct testvm *t)
{
    vm_end(t);
    mm_testenv_fini(&t->mm);
}

void tv_again(struct testvm *t)
{
    vm_end(t);
    t->owner++;
    vm_begin(t);
}

/* ---- memory */

void tv_write(struct testvm *t, uint64_t at, const void *p, uint64_t n)
{
    assert_int_equal(stage2_write(t->s2, gpa(at), p, n), MF_OK);
    for (uint64_t g = at >> FRAME_SHIFT; g <= (at + n - 1) >> FRAME_SHIFT; g++)
        t->evm.ops->page_written(&t->evm, gfn(g));
}

void tv_read(struct testvm *t, uint64_t at, void *p, uint64_t n)
{
    assert_int_equal(stage2_read(t->s2, gpa(at), p, n), MF_OK);
}

void tv_put64(struct testvm *t, uint64_t at, uint64_t v)
{
    tv_write(t, at, &v, sizeof v);
}

uint64_t tv_get64(struct testvm *t, uint64_t at)
{
    uint64_t v;

    tv_read(t, at, &v, sizeof v);
    return v;
}

uint8_t *tv_ptr(struct testvm *t, uint64_t at)
{
    struct s2_leaf leaf;

    assert_int_equal(stage2_fault(t->s2, 0, gfn(at >> FRAME_SHIFT), S2_READ | S2_WRITE, &leaf),
                     MF_OK);
    return (uint8_t *)heap_ptr(t->mm.heap, leaf.mfn) + (at & (FRAME_SIZE - 1));
}

/* ---- modes */

static struct cpu_segment segment(unsigned sel, unsigned attr)
{
    return (struct cpu_segment){(uint16_t)sel, (uint16_t)attr, 0xffffffff, 0};
}

static void tables(struct testvm *t)
{
    const uint64_t gdt[] = {0,
                            0x00cf9b000000ffff,
                            0x00af9b000000ffff,
                            0x00cf93000000ffff,
                            0x00cff3000000ffff,
                            0x00affb000000ffff,
                            0x00008b0000000067 | (uint64_t)TV_TSS << 16,
                            0};
    uint8_t hlt = 0xf4;

    tv_write(t, TV_GDT, gdt, sizeof gdt);
    tv_put64(t, TV_TSS + 4, TV_RSP0);
    tv_put64(t, TV_TSS + 0x24, TV_IST1);
    tv_put64(t, TV_TSS + 0x60, UINT64_C(0x68) << 48); /* no I/O bitmap */
    for (unsigned vec = 0; vec < TV_VECTORS; vec++) {
        tv_write(t, TV_HANDLERS + vec * 16, &hlt, 1);
        tv_gate(t, vec, TV_HANDLERS + vec * 16, 0, 0, false);
    }
}

void tv_gate(struct testvm *t, unsigned vec, uint64_t to, unsigned dpl, unsigned ist, bool trap)
{
    uint64_t low = (to & 0xffff) | (uint64_t)TV_CS << 16 | (uint64_t)ist << 32 |
                   (uint64_t)(trap ? 0x8f : 0x8e) << 40 | (uint64_t)dpl << 45 |
                   (to >> 16 & 0xffff) << 48;

    tv_put64(t, TV_IDT + vec * 16, low);
    tv_put64(t, TV_IDT + vec * 16 + 8, to >> 32);
}

static void flat(struct testvm *t, unsigned cs, unsigned cs_attr, unsigned ds, unsigned dpl)
{
    struct cpu_state *s = &t->st;

    cpu_state_reset(s);
    for (unsigned n = 0; n < CPU_SEGS; n++)
        s->seg[n] = segment(ds, 0xc93 | dpl << 5);
    s->seg[CPU_CS] = segment(cs, cs_attr | dpl << 5);
    s->tr = (struct cpu_segment){TV_TR, 0x8b, 0x67, TV_TSS};
    s->gdt_base = TV_GDT;
    s->gdt_limit = 63;
    s->idt_base = TV_IDT;
    s->idt_limit = TV_VECTORS * 16 - 1;
    s->rip = TV_CODE;
    s->gpr[CPU_RSP] = TV_STACK;
    s->cr0 = 0x11;
}

static void long_at(struct testvm *t, unsigned cs, unsigned ds, unsigned dpl)
{
    tables(t);
    tv_put64(t, TV_PML4, TV_PDPT | 7);
    tv_put64(t, TV_PDPT, TV_PD | 7);
    for (uint64_t i = 0; i < 512; i++)
        tv_put64(t, TV_PD + i * 8, i << 21 | 0x87);
    flat(t, cs, 0xa9b, ds, dpl);
    t->st.cr0 |= 0x80000000u;
    t->st.cr4 = 0x20;
    t->st.cr3 = TV_PML4;
    t->st.efer = 0xd01;
}

void tv_long(struct testvm *t)
{
    long_at(t, TV_CS, TV_DS, 0);
}

void tv_user(struct testvm *t)
{
    long_at(t, TV_UCS, TV_UDS, 3);
}

void tv_protected(struct testvm *t)
{
    tables(t);
    flat(t, TV_CS32, 0xc9b, TV_DS, 0);
}

static void put32(struct testvm *t, uint64_t at, uint32_t v)
{
    tv_write(t, at, &v, 4);
}

void tv_legacy_paging(struct testvm *t)
{
    tv_protected(t);
    assert_int_equal(stage2_fill(t->s2, gpa(TV_PD), 0, FRAME_SIZE), MF_OK);
    put32(t, TV_PD, TV_PT | 7);
    for (uint32_t i = 0; i < 1024; i++)
        put32(t, TV_PT + i * 4, i << 12 | 7);
    t->st.cr3 = TV_PD;
    t->st.cr0 |= 0x80000000u;
}

void tv_pae_paging(struct testvm *t)
{
    tv_protected(t);
    assert_int_equal(stage2_fill(t->s2, gpa(TV_PDPT), 0, 2 * FRAME_SIZE), MF_OK);
    tv_put64(t, TV_PDPT, TV_PD | 1);
    for (uint64_t i = 0; i < 2; i++)
        tv_put64(t, TV_PD + i * 8, i << 21 | 0x87);
    t->st.cr3 = TV_PDPT;
    t->st.cr4 = 0x20;
    t->st.cr0 |= 0x80000000u;
}

void tv_small_pages(struct testvm *t)
{
    for (unsigned i = 0; i < 512; i++)
        tv_put64(t, tv_pte(i), (uint64_t)i << 12 | 7);
    tv_put64(t, TV_PD, TV_PT | 7);
}

/* ---- running */

enum cpu_exit tv_run(struct testvm *t, uint64_t budget)
{
    assert_int_equal(t->evm.ops->set_state(&t->v, &t->st), MF_OK);
    return tv_resume(t, budget);
}

enum cpu_exit tv_resume(struct testvm *t, uint64_t budget)
{
    enum cpu_exit e = t->evm.ops->run(&t->v, budget);

    t->evm.ops->get_state(&t->v, &t->st);
    return e;
}

void tv_run_to_halt(struct testvm *t)
{
    enum cpu_exit e;

    t->st.rip = TV_CODE;
    e = tv_run(t, TV_BUDGET);
    if (e != CPU_EXIT_HALT)
        fail_msg("exit %d at %#llx: %s", (int)e, (unsigned long long)t->st.rip, t->v.detail);
}

int tv_vector(const struct testvm *t)
{
    uint64_t at = t->st.rip - 1 - TV_HANDLERS;

    return at < TV_VECTORS * 16 && at % 16 == 0 ? (int)(at / 16) : -1;
}

void tv_expect_vector(struct testvm *t, unsigned vec)
{
    tv_run_to_halt(t);
    assert_int_equal(tv_vector(t), vec);
}
