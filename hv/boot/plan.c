#include "hv/boot/plan.h"

#include <inttypes.h>
#include <string.h>

#define PAGE       4096u
#define AREA_FIRST 0x1000u
#define AREA_END   (UINT64_C(1) << 32)
#define PDPT_SPAN  (UINT64_C(1) << 39)
#define PD_SPAN    (UINT64_C(1) << 30)

/* The Linux setup header, by its offsets in the file. */
#define HDR_INITRD_MAX     (0x22cu - MF_SETUP_OFFSET)
#define INITRD_MAX_DEFAULT UINT32_C(0x7fffffff)

static uint64_t page_up(uint64_t n)
{
    return (n + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static uint64_t ram_end(const struct boot_ram *ram)
{
    return ram->high ? BOOT_HIGH_BASE + ram->high : ram->low;
}

uint64_t boot_plan_pdpts(const struct boot_ram *ram)
{
    uint64_t n = (ram_end(ram) + PDPT_SPAN - 1) / PDPT_SPAN;

    return n ? n : 1;
}

uint64_t boot_plan_pds(const struct boot_ram *ram)
{
    uint64_t end = ram_end(ram) > BOOT_HIGH_BASE ? ram_end(ram) : BOOT_HIGH_BASE;

    return ram->no_1g ? (end + PD_SPAN - 1) / PD_SPAN : 0;
}

/* The area's parts, as offsets into it. Strings are below 2 * MF_CMDLINE_MAX by their checks. */
static void lay_out(struct boot_plan *p, const struct boot_set *set, const struct boot_ram *ram)
{
    uint64_t at = BOOT_AT_STRINGS;

    if (set->cmdline[0]) {
        p->cmdline = at;
        at += strlen(set->cmdline) + 1;
    }
    for (unsigned i = 0; i < set->nr_modules; i++) {
        p->module_cmdline[i] = at;
        at += strlen(set->module_cmdline[i]) + 1;
    }
    if (p->tables_bytes) {
        p->tables = (at + 15) & ~UINT64_C(15);
        at = p->tables + p->tables_bytes;
    }
    at = page_up(at);
    if (p->kind == BOOT_ENTRY_ELF64 || p->kind == BOOT_ENTRY_LINUX64) {
        p->stack = at;
        p->pml4 = at + PAGE;
        at += PAGE * (2 + boot_plan_pdpts(ram) + boot_plan_pds(ram));
    }
    if (p->kind == BOOT_ENTRY_LINUX64) {
        p->params = at;
        at += PAGE;
    }
    p->area_bytes = at;
}

/* From offsets to addresses. */
static void move_to(struct boot_plan *p, uint64_t area, unsigned nr_modules)
{
    uint64_t *at[] = {&p->cmdline, &p->tables, &p->stack, &p->pml4, &p->params};

    p->area = area;
    for (unsigned i = 0; i < sizeof at / sizeof at[0]; i++)
        if (*at[i])
            *at[i] += area;
    for (unsigned i = 0; i < nr_modules; i++)
        p->module_cmdline[i] += area;
}

/* The lowest place for `need` bytes of boot area, 0 when there is none. Segments are ascending. */
static uint64_t place_area(const struct boot_elf *f, const struct boot_ram *ram, uint64_t need)
{
    uint64_t at = AREA_FIRST;
    uint64_t end = ram->low < AREA_END ? ram->low : AREA_END;

    for (unsigned i = 0; i < f->nr_segments; i++) {
        const struct boot_segment *s = &f->segments[i];
        uint64_t s_end = s->paddr + s->memsz;

        if (s->paddr >= at && s->paddr - at >= need)
            break;
        if (s_end > at)
            at = s_end > UINT64_MAX - PAGE ? UINT64_MAX : page_up(s_end);
    }
    return at <= end && end - at >= need ? at : 0;
}

/* The end of RAM that a module may lie in. */
static uint64_t module_limit(const struct boot_plan *p, const struct boot_set *set,
                             const struct boot_ram *ram)
{
    uint32_t max = INITRD_MAX_DEFAULT;
    uint64_t end = ram->low;

    if (p->kind != BOOT_ENTRY_LINUX64)
        return end;
    if (set->setup_len >= HDR_INITRD_MAX + sizeof max)
        memcpy(&max, set->setup + HDR_INITRD_MAX, sizeof max);
    return end <= max ? end : (uint64_t)max + 1;
}

/* What lies at [at, at + n): where its lowest part begins; UINT64_MAX: nothing does. */
static uint64_t taken_at(const struct boot_plan *p, const struct boot_set *set, unsigned modules,
                         uint64_t at, uint64_t n)
{
    const struct boot_elf *f = &set->kernel->elf;

    for (unsigned i = 0; i < f->nr_segments; i++) {
        const struct boot_segment *s = &f->segments[i];

        if (s->paddr < at + n && at < s->paddr + s->memsz)
            return s->paddr;
    }
    if (p->area < at + n && at < p->area + p->area_bytes)
        return p->area;
    for (unsigned i = 0; i < modules; i++)
        if (p->module[i] < at + n && at < p->module[i] + page_up(set->module[i]->size))
            return p->module[i];
    return UINT64_MAX;
}

/* The highest free place; each turn steps below something that is there, so it ends. */
static bool place_module(struct boot_plan *p, const struct boot_set *set, unsigned i,
                         uint64_t limit)
{
    uint64_t n = page_up(set->module[i]->size), end = limit & ~(uint64_t)(PAGE - 1);

    while (end >= n && end - n >= AREA_FIRST) {
        uint64_t below = taken_at(p, set, i, end - n, n);

        if (below == UINT64_MAX) {
            p->module[i] = end - n;
            return true;
        }
        end = below & ~(uint64_t)(PAGE - 1);
    }
    return false;
}

static enum mf_status place_modules(struct boot_plan *p, const struct boot_set *set,
                                    const struct boot_ram *ram, struct mf_error *e)
{
    uint64_t limit = module_limit(p, set, ram);

    for (unsigned i = 0; i < set->nr_modules; i++)
        if (!place_module(p, set, i, limit))
            return boot_fail(e, MF_E_RANGE, "initrd",
                             "%" PRIu64 " bytes of module %u find no room in the guest's %" PRIu64
                             " bytes of RAM",
                             set->module[i]->size, i, ram->low + ram->high);
    return MF_OK;
}

static bool in_ram(const struct boot_ram *ram, uint64_t a, uint64_t n)
{
    if (a < ram->low)
        return n <= ram->low - a;
    return ram->high && a >= BOOT_HIGH_BASE && a - BOOT_HIGH_BASE < ram->high &&
           n <= ram->high - (a - BOOT_HIGH_BASE);
}

static enum mf_status check_segments(const struct boot_elf *f, const struct boot_ram *ram,
                                     struct mf_error *e)
{
    for (unsigned i = 0; i < f->nr_segments; i++) {
        const struct boot_segment *s = &f->segments[i];

        if (!in_ram(ram, s->paddr, s->memsz))
            return boot_fail(e, MF_E_IMAGE, "kernel",
                             "the segment [0x%" PRIx64 ", 0x%" PRIx64
                             ") lies outside the guest's %" PRIu64 " bytes of RAM",
                             s->paddr, s->paddr + s->memsz, ram->low + ram->high);
    }
    if (!in_ram(ram, f->entry, 1))
        return boot_fail(e, MF_E_IMAGE, "kernel", "the entry 0x%" PRIx64 " lies outside RAM",
                         f->entry);
    return MF_OK;
}

static enum mf_status find_area(struct boot_plan *p, const struct boot_set *set,
                                const struct boot_ram *ram, struct mf_error *e)
{
    uint64_t area;

    lay_out(p, set, ram);
    area = place_area(&set->kernel->elf, ram, p->area_bytes);
    if (!area)
        return boot_fail(e, MF_E_IMAGE, "kernel",
                         "the segments leave no room for %" PRIu64 " bytes of boot data in %" PRIu64
                         " bytes of RAM",
                         p->area_bytes, ram->low + ram->high);
    move_to(p, area, set->nr_modules);
    return MF_OK;
}

enum mf_status boot_plan_kernel(const struct boot_image *img, const struct boot_ram *ram,
                                struct mf_error *e)
{
    struct boot_plan p = {.kind = img->elf.kind};
    struct boot_set set = {.cmdline = ""};
    enum mf_status st = check_segments(&img->elf, ram, e);

    set.kernel = (struct boot_image *)(uintptr_t)img;
    return st ? st : find_area(&p, &set, ram, e);
}

/* How the image is entered: a setup header says Linux, whatever its notes say. */
static enum mf_status choose_entry(struct boot_plan *p, const struct boot_set *set,
                                   struct mf_error *e)
{
    const struct boot_elf *f = &set->kernel->elf;

    p->kind = f->kind;
    p->entry = f->entry;
    if (!set->setup_len)
        return MF_OK;
    if (!f->entry64)
        return boot_fail(e, MF_E_IMAGE, "kernel",
                         "the kernel has a Linux setup header, but no 64-bit entry");
    p->kind = BOOT_ENTRY_LINUX64;
    p->entry = f->entry64;
    return MF_OK;
}

enum mf_status boot_plan_make(const struct boot_set *set, const struct boot_ram *ram,
                              const struct boot_tables *t, struct boot_plan *p, struct mf_error *e)
{
    enum mf_status st;

    memset(p, 0, sizeof *p);
    st = check_segments(&set->kernel->elf, ram, e);
    if (!st)
        st = choose_entry(p, set, e);
    if (st)
        return st;
    if (t && t->make)
        p->tables_bytes = t->make(t->arg, 0, NULL, 0);
    if (p->tables_bytes > BOOT_TABLES_MAX)
        return boot_fail(e, MF_E_INTERNAL, "kernel", "%u bytes of ACPI tables, possible are %u",
                         p->tables_bytes, BOOT_TABLES_MAX);
    st = find_area(p, set, ram, e);
    if (!st)
        st = place_modules(p, set, ram, e);
    if (!st)
        boot_map_make(ram, p->kind == BOOT_ENTRY_LINUX64 || p->kind == BOOT_ENTRY_MULTIBOOT,
                      p->tables, p->tables_bytes, &p->map);
    return st;
}
