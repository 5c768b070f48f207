#include "hv/boot/load.h"

#include <string.h>

#include "hv/boot/info.h"

#define PAGE      4096u
#define PDPT_SPAN (UINT64_C(1) << 39)
#define GIB       (UINT64_C(1) << 30)

#define SEL_CODE 0x10u
#define SEL_DATA 0x18u
#define SEL_TSS  0x20u

#define PTE_P  0x1u
#define PTE_W  0x2u
#define PTE_PS 0x80u

#define MULTIBOOT_MAGIC 0x2badb002u

/* Null, unused, code, data, and a busy TSS at 0 that nobody uses but VM entry checks want. */
static enum mf_status write_gdt(const struct boot_load *l, struct stage2 *s2)
{
    uint64_t gdt[6] = {
        [SEL_CODE / 8] = l->plan.pml4 ? UINT64_C(0x00af9b000000ffff) : UINT64_C(0x00cf9b000000ffff),
        [SEL_DATA / 8] = UINT64_C(0x00cf93000000ffff),
        [SEL_TSS / 8] = UINT64_C(0x00008b0000000067),
    };

    return stage2_write(s2, gpa(l->plan.area + BOOT_AT_GDT), gdt, sizeof gdt);
}

static enum mf_status write_strings(const struct boot_load *l, struct stage2 *s2)
{
    const struct boot_set *set = l->set;
    enum mf_status st = MF_OK;

    if (l->plan.cmdline)
        st = stage2_write(s2, gpa(l->plan.cmdline), set->cmdline, strlen(set->cmdline) + 1);
    for (unsigned i = 0; i < set->nr_modules && !st; i++)
        st = stage2_write(s2, gpa(l->plan.module_cmdline[i]), set->module_cmdline[i],
                          strlen(set->module_cmdline[i]) + 1);
    return st;
}

static enum mf_status write_tables(const struct boot_load *l, struct stage2 *s2)
{
    const struct boot_plan *p = &l->plan;
    uint8_t b[BOOT_TABLES_MAX];

    if (!p->tables)
        return MF_OK;
    if (l->tables.make(l->tables.arg, p->tables, b, p->tables_bytes) != p->tables_bytes)
        return MF_E_INTERNAL;
    return stage2_write(s2, gpa(p->tables), b, p->tables_bytes);
}

/* One GiB from `base` on in pages of 2 MiB. */
static enum mf_status write_directory(struct stage2 *s2, uint64_t pd, uint64_t base)
{
    uint64_t entries[512];

    for (uint64_t n = 0; n < 512; n++)
        entries[n] = (base + (n << 21)) | PTE_P | PTE_W | PTE_PS;
    return stage2_write(s2, gpa(pd), entries, sizeof entries);
}

static enum mf_status write_paging(struct stage2 *s2, uint64_t pml4, const struct boot_ram *ram)
{
    uint64_t end = ram->high ? BOOT_HIGH_BASE + ram->high : BOOT_HIGH_BASE;
    enum mf_status st = MF_OK;

    uint64_t pd = pml4 + PAGE * (1 + boot_plan_pdpts(ram));

    for (uint64_t i = 0; i < boot_plan_pds(ram) && !st; i++)
        st = write_directory(s2, pd + i * PAGE, i * GIB);
    for (uint64_t i = 0; i < boot_plan_pdpts(ram) && !st; i++) {
        uint64_t pdpt = pml4 + PAGE * (1 + i), base = i * PDPT_SPAN, entries[512];
        uint64_t n = 0, link = pdpt | PTE_P | PTE_W;

        for (; n < 512 && base + n * GIB < end; n++)
            entries[n] = ram->no_1g ? (pd + (base / GIB + n) * PAGE) | PTE_P | PTE_W
                                    : (base + n * GIB) | PTE_P | PTE_W | PTE_PS;
        st = stage2_write(s2, gpa(pml4 + 8 * i), &link, sizeof link);
        if (!st)
            st = stage2_write(s2, gpa(pdpt), entries, n * sizeof entries[0]);
    }
    return st;
}

static enum mf_status write_info(const struct boot_load *l, struct stage2 *s2)
{
    switch (l->plan.kind) {
    case BOOT_ENTRY_LINUX64:
        return boot_info_linux(l, s2);
    case BOOT_ENTRY_MULTIBOOT:
        return boot_info_multiboot(l, s2);
    case BOOT_ENTRY_PVH:
    case BOOT_ENTRY_ELF64:
    default:
        return boot_info_pvh(l, s2);
    }
}

static void entry_state(struct boot_entry *b, const struct boot_plan *p)
{
    *b = (struct boot_entry){.kind = p->kind,
                             .rip = p->entry,
                             .rbx = p->area + BOOT_AT_INFO,
                             .gdt = p->area + BOOT_AT_GDT,
                             .gdt_limit = 6 * 8 - 1,
                             .code = SEL_CODE,
                             .data = SEL_DATA,
                             .tss = SEL_TSS,
                             .cr3 = p->pml4};
    if (p->kind == BOOT_ENTRY_ELF64)
        b->rdi = b->rbx;
    if (p->kind == BOOT_ENTRY_MULTIBOOT)
        b->rax = MULTIBOOT_MAGIC;
    if (p->kind == BOOT_ENTRY_LINUX64) {
        b->rbx = 0;
        b->rsi = p->params;
    }
    if (p->stack)
        b->rsp = p->stack + PAGE - 8;
}

static enum mf_status finish(struct boot_load *l, struct stage2 *s2, struct boot_entry *entry)
{
    enum mf_status st = write_gdt(l, s2);

    if (!st)
        st = write_info(l, s2);
    if (!st)
        st = write_strings(l, s2);
    if (!st)
        st = write_tables(l, s2);
    if (!st && l->plan.pml4)
        st = write_paging(s2, l->plan.pml4, &l->ram);
    if (!st)
        entry_state(entry, &l->plan);
    return st;
}

enum mf_status boot_load_begin(struct boot_load *l, const struct boot_set *set,
                               const struct boot_ram *ram, const struct boot_tables *tables,
                               struct mf_error *e)
{
    l->set = set;
    l->ram = *ram;
    l->tables = tables ? *tables : (struct boot_tables){NULL, NULL};
    l->part = 0;
    l->done = 0;
    return boot_plan_make(set, ram, tables, &l->plan, e);
}

static bool is_zero(const uint8_t *p, uint64_t n)
{
    return !p[0] && !memcmp(p, p + 1, n - 1);
}

/* Writes all but pages that are zero: those are there already. */
static enum mf_status write_sparse(struct stage2 *s2, uint64_t to, const uint8_t *from, uint64_t n)
{
    while (n) {
        uint64_t run = 0, piece;

        for (; run < n; run += piece) {
            piece = PAGE - (to + run) % PAGE;
            if (piece > n - run)
                piece = n - run;
            if (is_zero(from + run, piece))
                break;
        }
        if (run) {
            enum mf_status st = stage2_write(s2, gpa(to), from, run);

            if (st)
                return st;
        } else {
            run = piece;
        }
        to += run;
        from += run;
        n -= run;
    }
    return MF_OK;
}

/* What is loaded, one part behind the other: the kernel's segments, then the modules. */
static uint64_t part_of(const struct boot_load *l, uint64_t *to, const uint8_t **from)
{
    const struct boot_image *k = l->set->kernel;

    if (l->part < k->elf.nr_segments) {
        *to = k->elf.segments[l->part].paddr;
        *from = k->data + k->data_at[l->part];
        return k->elf.segments[l->part].filesz;
    }
    const unsigned m = l->part - k->elf.nr_segments;
    *to = l->plan.module[m];
    *from = l->set->module[m]->data;
    return l->set->module[m]->size;
}

enum mf_status boot_load_step(struct boot_load *l, struct stage2 *s2, uint64_t budget,
                              struct boot_entry *entry)
{
    while (l->part < l->set->kernel->elf.nr_segments + l->set->nr_modules) {
        uint64_t to, n, size;
        const uint8_t *from;
        enum mf_status st;

        size = part_of(l, &to, &from);
        n = size - l->done < budget ? size - l->done : budget;
        st = write_sparse(s2, to + l->done, from + l->done, n);
        if (st)
            return st;
        l->done += n;
        budget -= n;
        if (l->done < size)
            return MF_AGAIN;
        l->part++;
        l->done = 0;
    }
    return finish(l, s2, entry);
}
