/*
 * 32-bit protected mode, first with paging off, then with two levels of tables (4 MiB and 4 KiB
 * pages): traps, page faults on demand, arithmetic, the stack frames of the C calling convention.
 */
#include "lib/guest.h"

#define PAGE      4096u
#define PTE_P     0x001u
#define PTE_W     0x002u
#define PDE_PS    0x080u
#define CR0_PG    0x80000000u
#define CR0_WP    0x10000u
#define CR4_PSE   0x10u
#define VA_DEMAND 0x80000000u
#define VA_ALIAS  0x90000000u

struct frame {
    uint32_t edi, esi, ebp, esp, ebx, edx, ecx, eax, vector, error, eip, cs, eflags;
};

static struct {
    uint16_t offset0, selector;
    uint8_t zero, type;
    uint16_t offset1;
} __attribute__((packed)) idt[32];

static uint32_t directory[1024] __attribute__((aligned(4096)));
static uint32_t demand_table[1024] __attribute__((aligned(4096)));
static uint32_t alias_table[1024] __attribute__((aligned(4096)));
static char pages[16][PAGE] __attribute__((aligned(4096)));
static volatile unsigned used_pages, faults;
static volatile uint32_t resume, seen_vector, seen_error, seen_cr2;
static unsigned failed;

void trap_entry32(struct frame *f);

/* Stubs of 16 bytes; vectors 8, 10 to 14 and 17 push an error code themselves. */
__asm__(".balign 16\n"
        "stubs32:\n"
        ".set vec32, 0\n"
        ".rept 32\n"
        ".balign 16\n"
        ".if (vec32 != 8) && (vec32 != 17) && ((vec32 < 10) || (vec32 > 14))\n"
        "pushl $0\n"
        ".endif\n"
        "pushl $vec32\n"
        "jmp common32\n"
        ".set vec32, vec32 + 1\n"
        ".endr\n"
        "common32:\n"
        "pushal\n"
        "cld\n"
        "pushl %esp\n"
        "call trap_entry32\n"
        "popl %eax\n"
        "popal\n"
        "addl $8, %esp\n"
        "iretl\n");
extern char stubs32[];

static void check(bool good, const char *what)
{
    print("%s %s\n", good ? "ok" : "FAIL", what);
    failed += !good;
}

static uint32_t new_page(void)
{
    if (used_pages == sizeof pages / PAGE)
        guest_panic("out of pages");
    return (uint32_t)pages[used_pages++];
}

void trap_entry32(struct frame *f)
{
    uint32_t cr2;
    __asm__ volatile("movl %%cr2, %0" : "=r"(cr2));
    if (f->vector == 14 && !(f->error & 1) && cr2 - VA_DEMAND < 8 * PAGE) {
        demand_table[(cr2 - VA_DEMAND) / PAGE] = new_page() | PTE_P | PTE_W;
        seen_error = f->error;
        seen_cr2 = cr2;
        faults++;
        return;
    }
    seen_vector = f->vector;
    seen_error = f->error;
    seen_cr2 = cr2;
    if (!resume) {
        print("trap %u error %x eip %08x cr2 %08x\n", f->vector, f->error, f->eip, cr2);
        guest_panic("unexpected trap");
    }
    f->eip = resume;
    resume = 0;
}

#define TRAPS32(insn, ...)                                                                         \
    __asm__ volatile("movl $773f, resume\n\t" insn "\n773:"                                        \
                     :                                                                             \
                     : __VA_ARGS__                                                                 \
                     : "eax", "ecx", "edx", "memory", "cc")

static void traps(void)
{
    struct {
        uint16_t limit;
        uint32_t base;
    } __attribute__((packed)) p = {sizeof idt - 1, (uint32_t)idt};
    for (unsigned v = 0; v < 32; v++) {
        uint32_t at = (uint32_t)stubs32 + 16 * v;
        idt[v].offset0 = (uint16_t)at;
        idt[v].offset1 = (uint16_t)(at >> 16);
        idt[v].selector = 0x08;
        idt[v].type = 0x8e;
    }
    __asm__ volatile("lidt %0" : : "m"(p));
    TRAPS32("xorl %%edx, %%edx\n\txorl %%ecx, %%ecx\n\tdivl %%ecx", "m"(resume));
    check(seen_vector == 0, "divide by zero");
    TRAPS32("ud2", "m"(resume));
    check(seen_vector == 6, "undefined instruction");
    TRAPS32("int3", "m"(resume));
    check(seen_vector == 3, "breakpoint");
    TRAPS32("movl $0x1000, %%eax\n\tmovl %%eax, %%es", "m"(resume));
    check(seen_vector == 13 && seen_error == 0x1000, "selector outside the GDT");
}

static uint32_t factorial(uint32_t n)
{
    volatile uint32_t m = n; /* keeps the recursion */
    return n < 2 ? 1 : m * factorial(n - 1);
}

static void arithmetic(void)
{
    uint32_t lo, hi, q, r, bcd = 0x15;
    uint64_t wide = UINT64_C(0x123456789abcdef0);
    volatile unsigned by = 13;
    __asm__("mull %3" : "=a"(lo), "=d"(hi) : "0"(0xdeadbeef), "r"(0x12345678) : "cc");
    check(hi == 0x0fd5bdee && lo == 0x5621ca08, "multiply to 64 bits");
    __asm__("divl %4" : "=a"(q), "=d"(r) : "0"(lo + 7), "1"(hi), "r"(0x12345678) : "cc");
    check(q == 0xdeadbeef && r == 7, "divide 64 bits");
    check((wide << by) == UINT64_C(0x8acf13579bde0000) && (wide >> by) == UINT64_C(0x91a2b3c4d5e6),
          "shifts of 64 bits in two registers");
    check(factorial(12) == 479001600, "recursion");
    __asm__("addb $0x27, %b0\n\tdaa" : "+a"(bcd) : : "cc");
    check((bcd & 0xff) == 0x42, "decimal adjust");
}

static void paging(void)
{
    volatile uint32_t *at;
    uint32_t v, shared;
    for (unsigned i = 0; i < 4; i++)
        directory[i] = i << 22 | PTE_P | PTE_W | PDE_PS;
    directory[VA_DEMAND >> 22] = (uint32_t)demand_table | PTE_P | PTE_W;
    directory[VA_ALIAS >> 22] = (uint32_t)alias_table | PTE_P | PTE_W;
    __asm__ volatile("movl %%cr4, %0\n\torl %1, %0\n\tmovl %0, %%cr4" : "=&r"(v) : "i"(CR4_PSE));
    __asm__ volatile("movl %0, %%cr3" : : "r"(directory) : "memory");
    __asm__ volatile("movl %%cr0, %0\n\torl %1, %0\n\tmovl %0, %%cr0\n\tjmp 1f\n1:"
                     : "=&r"(v)
                     : "i"(CR0_PG | CR0_WP)
                     : "memory");
    check(true, "paging on");
    for (unsigned i = 0; i < 4; i++) {
        at = (volatile uint32_t *)(VA_DEMAND + i * PAGE + 16);
        *at = i + 1;
        check(*at == i + 1 && seen_error == 2 && seen_cr2 == (uint32_t)at, "page on demand");
    }
    at = (volatile uint32_t *)(VA_DEMAND + 6 * PAGE - 2);
    *at = 0x11223344;
    check(faults == 6 && *at == 0x11223344, "write across two missing pages");
    shared = new_page();
    alias_table[0] = shared | PTE_P | PTE_W;
    alias_table[1] = shared | PTE_P;
    *(volatile uint32_t *)VA_ALIAS = 0xfeedface;
    check(*(volatile uint32_t *)(VA_ALIAS + PAGE) == 0xfeedface, "one page at two addresses");
    TRAPS32("movl %0, %%edx\n\tmovb $1, (%%edx)", "r"(VA_ALIAS + PAGE), "m"(resume));
    check(seen_vector == 14 && seen_error == 3, "write to a read-only page");
}

void guest_main(const struct start_info *si)
{
    print("kernel32: command line \"%s\"\n", cmdline_text());
    check(si->magic == PVH_MAGIC, "start information");
    traps();
    arithmetic();
    paging();
    print("kernel32: %u failed\n", failed);
    if (failed)
        guest_debug_exit(1);
}
