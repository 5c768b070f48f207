/* The machine around the CPU: interrupt controllers, timers, clocks, further CPUs, ACPI. */
#include "kernel/kernel.h"

#define VA_MACHINE UINT64_C(0xffffd00000000000) /* device and table pages, by physical address */
#define LAPIC      0xfee00000u
#define IOAPIC     0xfec00000u
#define AP_PAGE    0x8000u

#define VEC_PIT   0x30u
#define VEC_TIMER 0x31u
#define VEC_UART  0x34u
#define VEC_PING  0x35u
#define VEC_PONG  0x36u
#define VEC_NMI   2u

#define REG_EOI     0xb0u
#define REG_SVR     0xf0u
#define REG_ICR     0x300u
#define REG_ICR2    0x310u
#define REG_TIMER   0x320u
#define REG_LINT0   0x350u
#define REG_INITIAL 0x380u
#define REG_DIVIDE  0x3e0u

static volatile unsigned ticks[256];
static volatile unsigned cpus_up, cpus_done;
static volatile uint64_t shared;
static volatile bool go;

static volatile uint8_t *phys(uint64_t pa)
{
    map(VA_MACHINE + (pa & ~(uint64_t)(PAGE - 1)), pa & ~(uint64_t)(PAGE - 1), PTE_W);
    return (volatile uint8_t *)(VA_MACHINE + pa);
}

static void apic_write(unsigned reg, uint32_t v)
{
    *(volatile uint32_t *)(VA_MACHINE + LAPIC + reg) = v;
}

static void ioapic_write(unsigned reg, uint32_t v)
{
    *(volatile uint32_t *)(VA_MACHINE + IOAPIC) = reg;
    *(volatile uint32_t *)(VA_MACHINE + IOAPIC + 0x10) = v;
}

static uint64_t rdtsc(void)
{
    uint32_t lo, hi;
    __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
    return (uint64_t)hi << 32 | lo;
}

/* Nanoseconds of the TSC, whose rate the hypervisor tells. */
static uint64_t tsc_ns(void)
{
    uint32_t r[4];
    cpuid(0x40000010, r);
    return rdtsc() / r[0] * 1000000;
}

static void ipi(uint32_t to, uint32_t low)
{
    apic_write(REG_ICR2, to << 24);
    apic_write(REG_ICR, low);
}

/* Interrupts of the devices; on any CPU. */
static bool take(struct trap_frame *f, uint64_t cr2)
{
    (void)cr2;
    if (f->vector != VEC_NMI && (f->vector < VEC_PIT || f->vector > VEC_PIT + 15))
        return false;
    __atomic_fetch_add(&ticks[f->vector], 1, __ATOMIC_SEQ_CST);
    if (f->vector == VEC_NMI)
        return true;
    if (f->vector == VEC_PIT) {
        outb(0x20, 0x20);
        return true;
    }
    if (f->vector == VEC_UART)
        inb(0x3fa); /* ends the transmitter's interrupt */
    apic_write(REG_EOI, 0);
    if (f->vector == VEC_PING)
        ipi(0, VEC_PONG);
    return true;
}

/* Sleeps until `vector` has come `n` times. The race between the look and HLT is STI's shadow's. */
static void wait_for(unsigned vector, unsigned n)
{
    while (ticks[vector] < n)
        __asm__ volatile("sti; hlt; cli" : : : "memory");
}

static void begin(void)
{
    trap_hook = take;
    phys(LAPIC);
    phys(IOAPIC);
    for (unsigned i = 0; i < 256; i++)
        ticks[i] = 0;
}

static void pic_init(uint8_t open)
{
    outb(0x20, 0x11);
    outb(0x21, VEC_PIT);
    outb(0x21, 4);
    outb(0x21, 1);
    outb(0xa0, 0x11);
    outb(0xa1, VEC_PIT + 8);
    outb(0xa1, 2);
    outb(0xa1, 1);
    outb(0xa1, 0xff);
    outb(0x21, (uint8_t)~open);
}

static void apic_init(void)
{
    pic_init(0);
    apic_write(REG_SVR, 0x1ff);
    apic_write(REG_LINT0, 0x10000);
    apic_write(REG_DIVIDE, 0xb);
}

/* The tick of the 8254 through the 8259: never early, and it wakes a halted CPU each time. */
void mode_pit(void)
{
    uint64_t t0;
    begin();
    pic_init(1);
    outb(0x43, 0x34);
    outb(0x40, 11932 & 0xff); /* 100 Hz */
    outb(0x40, 11932 >> 8);
    wait_for(VEC_PIT, 1);
    t0 = tsc_ns();
    wait_for(VEC_PIT, 7); /* the first of these may have been due already */
    check(tsc_ns() - t0 >= 48000000, "five ticks of 10 ms take that long at least");
    outb(0x43, 0x30);
    pic_init(0);
    check(true, "PIT ticks through the PIC");
}

static void apic_one(uint32_t mode, const char *what)
{
    unsigned n = ticks[VEC_TIMER];
    uint64_t t0 = tsc_ns();
    apic_write(REG_TIMER, mode | VEC_TIMER);
    if (mode == 0x40000)
        wrmsr(0x6e0, rdtsc() + 5000000);
    else
        apic_write(REG_INITIAL, 5000000);
    wait_for(VEC_TIMER, n + (mode == 0x20000 ? 3 : 1));
    check(tsc_ns() - t0 >= (mode == 0x20000 ? 12000000 : 4000000), what);
    apic_write(REG_INITIAL, 0);
    apic_write(REG_TIMER, 0x10000);
}

static unsigned my_id(void)
{
    uint32_t r[4];
    cpuid(1, r);
    return r[1] >> 24;
}

void mode_apic(void)
{
    begin();
    apic_init();
    apic_one(0, "LAPIC timer, one-shot");
    apic_one(0x20000, "LAPIC timer, periodic");
    apic_one(0x40000, "LAPIC timer, TSC deadline");
    check(rdmsr(0x6e0) == 0, "a deadline that has passed reads zero");
    wrmsr(0x1b, rdmsr(0x1b) | 0x400);
    check(rdmsr(0x802) == my_id(), "x2APIC id");
    wrmsr(0x83f, VEC_PONG);
    __asm__ volatile("sti; nop; nop; cli" : : : "memory");
    check(ticks[VEC_PONG] == 1 || (rdmsr(0x820 + VEC_PONG / 32) >> (VEC_PONG % 32) & 1),
          "x2APIC self IPI");
    wrmsr(0x1b, 0xfee00100);
    wrmsr(0x1b, 0xfee00900);
}

static void uart_init(uint8_t ier)
{
    ioapic_write(0x10 + 2 * 4 + 1, 0);
    ioapic_write(0x10 + 2 * 4, VEC_UART);
    outb(0x3fc, 0x0b); /* DTR, RTS, OUT2 */
    outb(0x3f9, ier);
}

/* The serial port's line through the IOAPIC: the empty transmitter. */
void mode_uart(void)
{
    begin();
    apic_init();
    uart_init(2);
    wait_for(VEC_UART, 1);
    outb(0x3f9, 0);
    check(ticks[VEC_UART] == 1, "UART interrupt through the IOAPIC");
}

/* Sleeps for a line from the console. */
void mode_uartrx(void)
{
    char line[64];
    unsigned n = 0;
    begin();
    apic_init();
    uart_init(1);
    print("ready\n");
    while (!n || line[n - 1] != '\n') {
        unsigned seen = ticks[VEC_UART];
        int c = serial_getc();
        if (c >= 0 && n < sizeof line - 1)
            line[n++] = (char)c;
        else if (c < 0)
            wait_for(VEC_UART, seen + 1);
    }
    line[n - 1] = 0;
    outb(0x3f9, 0);
    print("got \"%s\" by %s\n", line, ticks[VEC_UART] ? "interrupt" : "luck");
    check(ticks[VEC_UART] > 0, "received data interrupts");
}

/* ---- further CPUs */

static void add_shared(void)
{
    for (unsigned i = 0; i < 50000; i++)
        __asm__ volatile("lock incq %0" : "+m"(shared) : : "cc");
}

void ap_main(void)
{
    apic_write(REG_SVR, 0x1ff);
    __atomic_fetch_add(&cpus_up, 1, __ATOMIC_SEQ_CST);
    while (!go)
        __asm__ volatile("sti; hlt; cli" : : : "memory");
    add_shared();
    __atomic_fetch_add(&cpus_done, 1, __ATOMIC_SEQ_CST);
    for (;;)
        __asm__ volatile("cli; hlt");
}

static void start_cpu(unsigned id)
{
    unsigned up = cpus_up;
    memcpy((void *)(uint64_t)AP_PAGE, ap_blob, (size_t)(ap_blob_end - ap_blob));
    ap_prepare((uint8_t *)(uint64_t)AP_PAGE, page_alloc() + PAGE);
    ipi(id, 0xc500);
    ipi(id, 0x8500);
    ipi(id, 0x600 | AP_PAGE / PAGE);
    ipi(id, 0x600 | AP_PAGE / PAGE); /* as the rules ask for: the second one is nothing */
    while (cpus_up == up)
        __asm__ volatile("pause" : : : "memory");
}

void mode_smp(void)
{
    uint32_t r[4];
    unsigned cpus;
    begin();
    apic_init();
    cpuid(1, r);
    cpus = r[1] >> 16 & 0xff;
    print("cpus %u\n", cpus);
    for (unsigned i = 1; i < cpus; i++)
        start_cpu(i);
    check(cpus_up == cpus - 1 && my_id() == 0, "all CPUs started from real mode");
    for (unsigned i = 0; i < 200; i++) {
        ipi(1 + i % (cpus - 1), VEC_PING);
        wait_for(VEC_PONG, i + 1);
    }
    check(ticks[VEC_PING] == 200 && ticks[VEC_PONG] == 200, "IPIs there and back");
    ipi(1, 0x400);
    while (!ticks[VEC_NMI])
        __asm__ volatile("pause" : : : "memory");
    check(true, "NMI by IPI");
    go = true;
    ipi(0, 0xc0000 | VEC_UART); /* all but me: they wake and see `go` */
    add_shared();
    while (cpus_done != cpus - 1)
        __asm__ volatile("pause" : : : "memory");
    check(shared == 50000 * (uint64_t)cpus, "locked increments of all CPUs add up");
}

/* ---- clocks */

struct pv_time {
    volatile uint32_t version;
    uint32_t pad0;
    uint64_t tsc, system_time;
    uint32_t mul;
    int8_t shift;
    uint8_t flags, pad[2];
};

static uint64_t pv_now(const struct pv_time *t)
{
    uint64_t d = rdtsc() - t->tsc;
    d = t->shift < 0 ? d >> -t->shift : d << t->shift;
    return t->system_time + (uint64_t)((unsigned __int128)d * t->mul >> 32);
}

static unsigned cmos(uint8_t reg)
{
    outb(0x70, reg);
    return inb(0x71);
}

void mode_clock(void)
{
    uint32_t r[4];
    uint64_t page = page_alloc(), before, after;
    struct pv_time *t = (struct pv_time *)page;
    uint32_t *wall = (uint32_t *)(page + 64);
    begin();
    cpuid(0x40000000, r);
    check(!memcmp(&r[1], "KVMKVMKVM\0\0\0", 12), "the leaves of a clock that guests know");
    cpuid(0x40000001, r);
    check((r[0] >> 3 & 1) && (r[0] >> 24 & 1), "kvm-clock is offered, and stable");
    cpuid(0x40000100, r);
    check(!memcmp(&r[1], "MayflyMayfly", 12), "our own signature");
    wrmsr(0x4b564d01, page | 1);
    check(rdmsr(0x4b564d01) == (page | 1), "the clock's page is remembered");
    check(t->version && !(t->version & 1) && (t->flags & 1), "version and flags");
    before = pv_now(t);
    apic_init();
    apic_one(0, "sleep between two looks at the clock");
    after = pv_now(t);
    check(after - before >= 4000000 && after - before < UINT64_C(3600000000000), "it advances");
    wrmsr(0x10, rdtsc() + UINT64_C(1000000000000));
    check(pv_now(t) - after < UINT64_C(3600000000000), "a written TSC does not move it");
    TRAPS("movl $0x1002, %%eax; xorl %%edx, %%edx; movl $0x4b564d01, %%ecx; wrmsr", "r"(0));
    check(trap_seen.vector == VEC_GP, "a misaligned page is refused");
    wrmsr(0x4b564d00, page + 64);
    print("wall %u\n", wall[1]);
    print("rtc %02x%02x-%02x-%02x\n", cmos(0x32), cmos(9), cmos(8), cmos(7));
}

/* ---- ACPI */

static uint64_t get(uint64_t pa, unsigned n)
{
    uint64_t v = 0;
    while (n--)
        v = v << 8 | *phys(pa + n);
    return v;
}

/* The table's address by its signature; its checksum must be right. */
static uint64_t table(const char *signature)
{
    uint64_t xsdt = get(boot_rsdp() + 24, 8), n = get(xsdt + 4, 4);
    for (uint64_t i = 36; i < n; i += 8) {
        uint64_t at = get(xsdt + i, 8), len = get(at + 4, 4);
        uint8_t sum = 0;
        if (get(at, 4) != *(const uint32_t *)(const void *)signature)
            continue;
        for (uint64_t k = 0; k < len; k++)
            sum = (uint8_t)(sum + get(at + k, 1));
        check(!sum, signature);
        return at;
    }
    guest_panic("no such ACPI table");
}

/* Ends by the way that the tables name. */
void mode_acpi(void)
{
    uint64_t madt, fadt, n, cpus = 0;
    begin();
    check(boot_rsdp() && get(boot_rsdp(), 8) == *(const uint64_t *)(const void *)"RSD PTR ",
          "RSDP");
    madt = table("APIC");
    n = get(madt + 4, 4);
    for (uint64_t i = 44; i < n; i += get(madt + i + 1, 1))
        cpus += get(madt + i, 1) == 0;
    print("madt cpus %lu\n", cpus);
    fadt = table("FACP");
    print("powering off by port %lx\n", get(fadt + 64, 4));
    outw((uint16_t)get(fadt + 64, 4), 5 << 10 | 1 << 13);
    guest_panic("still there");
}
