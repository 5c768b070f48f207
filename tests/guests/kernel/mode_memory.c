/* Page tables rewritten, code rewritten, RAM touched and what lies outside it. */
#include "kernel/kernel.h"

static uint64_t word_at(uint64_t va)
{
    return *(volatile uint64_t *)va;
}

static void set_word(uint64_t va, uint64_t v)
{
    *(volatile uint64_t *)va = v;
}

static void table_swap(uint64_t va, uint64_t a, uint64_t b)
{
    uint64_t other = page_alloc(), *pde = pde_of(va), old = *pde;
    ((uint64_t *)other)[0] = b | PTE_P | PTE_W;
    *pte_of(va) = a | PTE_P | PTE_W;
    invlpg(va);
    check(word_at(va) == 0xa, "before a table is exchanged");
    *pde = other | PTE_P | PTE_W;
    invlpg(va);
    check(word_at(va) == 0xb, "after a table was exchanged");
    *pde = old;
    write_cr3(read_cr3());
    check(word_at(va) == 0xa, "after the first one came back");
}

static void global_pages(uint64_t va, uint64_t a, uint64_t b)
{
    write_cr4(read_cr4() | CR4_PGE);
    map(va, a, PTE_W | PTE_G);
    check(word_at(va) == 0xa, "global page");
    *pte_of(va) = b | PTE_P | PTE_W | PTE_G;
    write_cr4(read_cr4() & ~(uint64_t)CR4_PGE);
    check(word_at(va) == 0xb, "global page changed, all flushed by CR4");
    write_cr4(read_cr4() | CR4_PGE);
    *pte_of(va) = a | PTE_P | PTE_W | PTE_G;
    invlpg(va);
    check(word_at(va) == 0xa, "global page flushed by invlpg");
}

/* The table that maps a window is itself reached through the window. */
static void table_through_itself(uint64_t va, uint64_t a)
{
    uint64_t table = (uint64_t)pte_of(va) & ~(uint64_t)(PAGE - 1);
    map(va + PAGE, table, PTE_W);
    set_word(va + PAGE + 2 * 8, a | PTE_P | PTE_W);
    invlpg(va + 2 * PAGE);
    check(word_at(va + 2 * PAGE) == 0xa, "table written through its own mapping");
}

void mode_pt(void)
{
    uint64_t a = page_alloc(), b = page_alloc(), va = VA_PT;
    bool good = true;
    set_word(a, 0xa);
    set_word(b, 0xb);
    map(va, a, PTE_W);
    check(word_at(va) == 0xa, "first mapping");
    map(va, b, PTE_W);
    check(word_at(va) == 0xb, "entry changed and invalidated");
    *pte_of(va) = a | PTE_P | PTE_W;
    write_cr3(read_cr3());
    check(word_at(va) == 0xa, "entry changed, CR3 loaded");
    *pte_of(va) = 0;
    invlpg(va);
    TRAPS("movq %0, %%rdx\n\tmovb (%%rdx), %%cl", "r"(va));
    check(trap_seen.vector == VEC_PF && trap_seen.error == 0 && trap_seen.cr2 == va,
          "mapping taken away");
    map(va, a, 0);
    good &= word_at(va) == 0xa;
    *pte_of(va) |= PTE_W; /* more rights than the cached translation: no flush is needed */
    set_word(va, 0xaa);
    check(good && word_at(a) == 0xaa, "rights added without a flush");
    set_word(a, 0xa);
    table_swap(va, a, b);
    global_pages(va, a, b);
    table_through_itself(va, a);
}

/* ---- code that changes */

static void write_constant(uint64_t at, uint32_t v)
{
    static const uint8_t code[] = {0xb8, 0, 0, 0, 0, 0xc3}; /* mov eax, v; ret */
    memcpy((void *)at, code, sizeof code);
    memcpy((void *)(at + 1), &v, sizeof v);
}

static uint32_t call_at(uint64_t at)
{
    return ((uint32_t(*)(void))at)();
}

/* What hardware asks for before code that was written elsewhere runs. */
static void serialize(void)
{
    uint32_t out[4];
    cpuid(0, out);
}

/* Stores over an instruction that stands further on in the same stretch. */
static uint32_t change_ahead(void)
{
    uint32_t v;
    __asm__ volatile("movb $77, 1f+1(%%rip)\n\t"
                     "jmp 1f\n"
                     "1:\tmovl $5, %0"
                     : "=a"(v)
                     :
                     : "memory");
    return v;
}

/* Each round of a running loop rewrites the loop's own addend. */
static uint32_t change_loop(void)
{
    uint32_t sum = 0, n = 10;
    __asm__ volatile("1:\taddl $0x01010101, %0\n\t"
                     "incb 1b+2(%%rip)\n\t"
                     "decl %1\n\t"
                     "jnz 1b"
                     : "+c"(sum), "+d"(n)
                     :
                     : "memory", "cc");
    return sum;
}

void mode_smc(void)
{
    uint64_t page = page_alloc();
    bool good = true;
    map(VA_ALIAS, page, PTE_W);
    map(VA_ALIAS + PAGE, page, PTE_W);
    for (uint32_t i = 1; i < 100; i++) {
        write_constant(VA_ALIAS + 0x100, i);
        good &= call_at(VA_ALIAS + 0x100) == i;
    }
    check(good, "code rewritten in place");
    good = true;
    for (uint32_t i = 1; i < 100; i++) {
        write_constant(VA_ALIAS + PAGE + 0x100, i * 3);
        serialize();
        good &= call_at(VA_ALIAS + 0x100) == i * 3;
    }
    check(good, "code rewritten through a second address");
    good = true;
    for (uint32_t i = 1; i < 100; i++) {
        write_constant(page + 0x100, i * 5);
        serialize();
        good &= call_at(VA_ALIAS + 0x100) == i * 5 && call_at(VA_ALIAS + PAGE + 0x100) == i * 5;
    }
    check(good, "code rewritten through the identity map");
    write_constant(VA_ALIAS + PAGE - 3,
                   0x12345678); /* goes on at the first byte of the same page */
    serialize();
    check(call_at(VA_ALIAS + PAGE - 3) == 0x12345678, "instruction across a page border");
    check(change_ahead() == 77, "next instructions rewritten");
    /* 10 * 0x01010101 + 0 + 1 + ... + 9, the low byte counts up */
    check(change_loop() == 10 * 0x01010101u + 45, "loop that rewrites itself");
}

/* ---- RAM */

static uint64_t pattern_of(uint64_t at)
{
    return (at ^ 0x5bd1e995c0ffee11) * 0x9e3779b97f4a7c15;
}

/* Whether RAM at `page` is free for us to write: not low memory, image, tables, loader's data. */
static bool usable(uint64_t page)
{
    return page >= 0x100000 && !boot_data_at(page) &&
           !(page >= ((uint64_t)guest_first & ~(uint64_t)(PAGE - 1)) && page < page_alloc_end());
}

void mode_touch(void)
{
    uint64_t stride = cmdline_number("stride", 256 * 1024), touched = 0, wrong = 0;
    if (stride < 8)
        stride = 8;
    for (unsigned i = 0; i < nr_ram; i++)
        for (uint64_t at = ram[i].first; at < ram[i].end; at += stride)
            if (usable(at & ~(uint64_t)(PAGE - 1))) {
                set_word(at & ~UINT64_C(7), pattern_of(at));
                touched++;
            }
    for (unsigned i = 0; i < nr_ram; i++)
        for (uint64_t at = ram[i].first; at < ram[i].end; at += stride)
            if (usable(at & ~(uint64_t)(PAGE - 1)))
                wrong += word_at(at & ~UINT64_C(7)) != pattern_of(at);
    print("touched %lu places, %lu wrong\n", touched, wrong);
    check(touched > 0 && wrong == 0, "RAM keeps what is written");
}

/* New RAM must hold nothing of whoever had it before. */
void mode_zero(void)
{
    uint64_t pages = 0, dirty = 0;
    for (unsigned i = 0; i < nr_ram; i++)
        for (uint64_t page = ram[i].first; page < ram[i].end; page += PAGE) {
            const uint64_t *w = (const uint64_t *)page;
            uint64_t any = 0;
            if (!usable(page))
                continue;
            for (unsigned k = 0; k < PAGE / 8; k++)
                any |= w[k];
            pages++;
            dirty += any != 0;
        }
    print("%lu pages, %lu not zero\n", pages, dirty);
    check(pages > 0 && dirty == 0, "new RAM is zero");
}

/*
 * Touches `addr=` (16 MiB above the last RAM) by `access=` read, write, exec or table (an address
 * reached through a page table that is out there). None of them may come back.
 */
void mode_outside(void)
{
    uint64_t addr = 0, va = VA_OUTSIDE;
    for (unsigned i = 0; i < nr_ram; i++)
        if (ram[i].end > addr)
            addr = ram[i].end;
    addr = cmdline_number("addr", ((addr + LARGE - 1) & ~(uint64_t)(LARGE - 1)) + 8 * LARGE);
    print("touching outside RAM at %016lx\n", addr);
    map(va, addr & ~(uint64_t)(PAGE - 1), PTE_W);
    va += addr & (PAGE - 1);
    if (cmdline_lists("access", "write")) {
        set_word(va, 1);
    } else if (cmdline_lists("access", "exec")) {
        call_at(va);
    } else if (cmdline_lists("access", "table")) {
        *pde_of(va) = (addr & ~(uint64_t)(PAGE - 1)) | PTE_P | PTE_W;
        write_cr3(read_cr3());
        word_at(va);
    } else {
        word_at(va);
    }
    check(false, "came back from outside RAM");
}
