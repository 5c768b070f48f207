/* Page tables of our own: all RAM mapped to itself, windows filled by the modes. */
#include "kernel/kernel.h"

bool have_nx;
static uint64_t next_page;

uint64_t page_alloc_end(void)
{
    return next_page;
}

/* RAM behind the image, page by page, past what the loader left there. */
uint64_t page_alloc(void)
{
    uint64_t page;
    if (!next_page)
        next_page = (uint64_t)guest_end;
    do {
        page = next_page;
        next_page += PAGE;
    } while (boot_data_at(page));
    for (unsigned i = 0; i < nr_ram; i++) {
        if (page >= ram[i].first && page + PAGE <= ram[i].end) {
            memset((void *)page, 0, PAGE);
            return page;
        }
    }
    guest_panic("out of RAM");
}

static uint64_t *table_below(uint64_t *entry)
{
    if (!(*entry & PTE_P))
        *entry = page_alloc() | PTE_P | PTE_W | PTE_U;
    return (uint64_t *)(*entry & PTE_ADDR);
}

static unsigned index_at(uint64_t va, unsigned level)
{
    return (va >> (12 + 9 * level)) & 511;
}

static uint64_t root;

uint64_t *pde_of(uint64_t va)
{
    uint64_t *table = (uint64_t *)root;
    table = table_below(&table[index_at(va, 3)]);
    table = table_below(&table[index_at(va, 2)]);
    return &table[index_at(va, 1)];
}

uint64_t *pte_of(uint64_t va)
{
    return &table_below(pde_of(va))[index_at(va, 0)];
}

void map(uint64_t va, uint64_t pa, uint64_t flags)
{
    *pte_of(va) = pa | flags | PTE_P;
    invlpg(va);
}

void paging_init(void)
{
    uint32_t id[4];
    cpuid(0x80000000, id);
    if (id[0] >= 0x80000001) {
        cpuid(0x80000001, id);
        have_nx = id[3] >> 20 & 1;
    }
    if (have_nx)
        wrmsr(MSR_EFER, rdmsr(MSR_EFER) | EFER_NXE);
    root = page_alloc();
    for (unsigned i = 0; i < nr_ram; i++)
        for (uint64_t at = ram[i].first & ~(uint64_t)(LARGE - 1); at < ram[i].end; at += LARGE)
            *pde_of(at) = at | PTE_P | PTE_W | PTE_PS;
    write_cr3(root);
    write_cr0(read_cr0() | CR0_WP); /* a 64-bit loader may have left it out */
}
