#include "hv/boot/load.h"

#include <inttypes.h>
#include <string.h>

#define PAGE       4096u
#define AREA_FIRST 0x1000u
#define AREA_END   (UINT64_C(1) << 32)
#define AT_GDT     0x000u
#define AT_INFO    0x040u
#define AT_MAP     0x080u
#define AT_CMDLINE 0x100u
#define PDPT_SPAN  (UINT64_C(1) << 39)
#define GIB        (UINT64_C(1) << 30)

#define SEL_CODE 0x10u
#define SEL_DATA 0x18u
#define SEL_TSS  0x20u

#define PTE_P  0x1u
#define PTE_W  0x2u
#define PTE_PS 0x80u

#define START_MAGIC 0x336ec578u
#define MAP_RAM     1u

_Static_assert(AT_CMDLINE + MF_CMDLINE_MAX <= PAGE, "the boot page holds the command line");

/* Xen's public PVH start structure, version 1. */
struct start_info {
    uint32_t magic, version, flags, nr_modules;
    uint64_t modules, cmdline, rsdp, memmap;
    uint32_t memmap_entries, reserved;
};
struct map_entry {
    uint64_t addr, size;
    uint32_t type, reserved;
};
_Static_assert(sizeof(struct start_info) == 56, "hvm_start_info");
_Static_assert(sizeof(struct map_entry) == 24, "hvm_memmap_table_entry");

static uint64_t ram_end(const struct boot_ram *ram)
{
    return ram->high ? BOOT_HIGH_BASE + ram->high : ram->low;
}

static uint64_t nr_pdpts(const struct boot_ram *ram)
{
    uint64_t n = (ram_end(ram) + PDPT_SPAN - 1) / PDPT_SPAN;

    return n ? n : 1;
}

static uint64_t area_bytes(enum boot_entry_kind kind, const struct boot_ram *ram)
{
    return kind == BOOT_ENTRY_PVH ? PAGE : PAGE * (3 + nr_pdpts(ram));
}

/* The lowest place for the boot area, 0 when there is none. Segments are ascending. */
static uint64_t place_area(const struct boot_elf *f, const struct boot_ram *ram)
{
    uint64_t need = area_bytes(f->kind, ram), at = AREA_FIRST;
    uint64_t end = ram->low < AREA_END ? ram->low : AREA_END;

    for (unsigned i = 0; i < f->nr_segments; i++) {
        const struct boot_segment *s = &f->segments[i];
        uint64_t s_end = s->paddr + s->memsz;

        if (s->paddr >= at && s->paddr - at >= need)
            break;
        if (s_end > at)
            at =
                s_end > UINT64_MAX - PAGE ? UINT64_MAX : (s_end + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    }
    return at <= end && end - at >= need ? at : 0;
}

static bool in_ram(const struct boot_ram *ram, uint64_t a, uint64_t n)
{
    if (a < ram->low)
        return n <= ram->low - a;
    return ram->high && a >= BOOT_HIGH_BASE && a - BOOT_HIGH_BASE < ram->high &&
           n <= ram->high - (a - BOOT_HIGH_BASE);
}

enum mf_status boot_image_check(const struct boot_image *img, const struct boot_ram *ram,
                                uint64_t cmdline_len, struct mf_error *e)
{
    const struct boot_elf *f = &img->elf;

    if (cmdline_len >= MF_CMDLINE_MAX)
        return boot_fail(e, MF_E_RANGE, "cmdline", "%" PRIu64 " bytes, possible are %u",
                         cmdline_len, MF_CMDLINE_MAX - 1);
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
    if (!place_area(f, ram))
        return boot_fail(e, MF_E_IMAGE, "kernel",
                         "the segments leave no room for %" PRIu64 " bytes of boot data in %" PRIu64
                         " bytes of RAM",
                         area_bytes(f->kind, ram), ram->low + ram->high);
    return MF_OK;
}

/* Null, unused, code, data, and a busy TSS at 0 that nobody uses but VM entry checks want. */
static enum mf_status write_gdt(struct stage2 *s2, uint64_t area, enum boot_entry_kind kind)
{
    uint64_t gdt[6] = {
        [SEL_CODE / 8] =
            kind == BOOT_ENTRY_PVH ? UINT64_C(0x00cf9b000000ffff) : UINT64_C(0x00af9b000000ffff),
        [SEL_DATA / 8] = UINT64_C(0x00cf93000000ffff),
        [SEL_TSS / 8] = UINT64_C(0x00008b0000000067),
    };

    return stage2_write(s2, gpa(area + AT_GDT), gdt, sizeof gdt);
}

static enum mf_status write_info(struct stage2 *s2, uint64_t area, const struct boot_load *l)
{
    struct map_entry map[2] = {{.addr = 0, .size = l->ram.low, .type = MAP_RAM},
                               {.addr = BOOT_HIGH_BASE, .size = l->ram.high, .type = MAP_RAM}};
    struct start_info info = {
        .magic = START_MAGIC,
        .version = 1,
        .cmdline = area + AT_CMDLINE,
        .memmap = area + AT_MAP,
        .memmap_entries = l->ram.high ? 2 : 1,
    };
    uint8_t block[AT_MAP - AT_INFO + sizeof map] = {0};
    enum mf_status st;

    memcpy(block, &info, sizeof info);
    memcpy(block + (AT_MAP - AT_INFO), map, sizeof map);
    st = stage2_write(s2, gpa(area + AT_INFO), block, sizeof block);
    if (!st && l->cmdline[0])
        st = stage2_write(s2, gpa(area + AT_CMDLINE), l->cmdline, strlen(l->cmdline) + 1);
    return st;
}

static enum mf_status write_tables(struct stage2 *s2, uint64_t pml4, const struct boot_ram *ram)
{
    uint64_t end = ram_end(ram) > AREA_END ? ram_end(ram) : AREA_END;
    enum mf_status st = MF_OK;

    for (uint64_t i = 0; i < nr_pdpts(ram) && !st; i++) {
        uint64_t pdpt = pml4 + PAGE * (1 + i), base = i * PDPT_SPAN, entries[512];
        uint64_t n = 0, link = pdpt | PTE_P | PTE_W;

        for (; n < 512 && base + n * GIB < end; n++)
            entries[n] = (base + n * GIB) | PTE_P | PTE_W | PTE_PS;
        st = stage2_write(s2, gpa(pml4 + 8 * i), &link, sizeof link);
        if (!st)
            st = stage2_write(s2, gpa(pdpt), entries, n * sizeof entries[0]);
    }
    return st;
}

static void entry_state(struct boot_entry *b, const struct boot_elf *f, uint64_t area)
{
    *b = (struct boot_entry){.kind = f->kind,
                             .rip = f->entry,
                             .info = area + AT_INFO,
                             .gdt = area + AT_GDT,
                             .gdt_limit = 6 * 8 - 1,
                             .code = SEL_CODE,
                             .data = SEL_DATA,
                             .tss = SEL_TSS};
    if (f->kind == BOOT_ENTRY_ELF64) {
        b->rsp = area + 2 * PAGE - 8;
        b->cr3 = area + 2 * PAGE;
    }
}

static enum mf_status finish(struct boot_load *l, struct stage2 *s2, struct boot_entry *entry)
{
    const struct boot_elf *f = &l->image->elf;
    uint64_t area = place_area(f, &l->ram);
    enum mf_status st;

    if (!area)
        return MF_E_IMAGE;
    st = write_gdt(s2, area, f->kind);
    if (!st)
        st = write_info(s2, area, l);
    if (!st && f->kind == BOOT_ENTRY_ELF64)
        st = write_tables(s2, area + 2 * PAGE, &l->ram);
    if (!st)
        entry_state(entry, f, area);
    return st;
}

enum mf_status boot_load_step(struct boot_load *l, struct stage2 *s2, uint64_t budget,
                              struct boot_entry *entry)
{
    const struct boot_image *img = l->image;

    while (l->segment < img->elf.nr_segments) {
        const struct boot_segment *s = &img->elf.segments[l->segment];
        uint64_t n = s->filesz - l->done < budget ? s->filesz - l->done : budget;
        enum mf_status st = MF_OK;

        if (n)
            st = stage2_write(s2, gpa(s->paddr + l->done),
                              img->data + img->data_at[l->segment] + l->done, n);
        if (st)
            return st;
        l->done += n;
        budget -= n;
        if (l->done < s->filesz)
            return MF_AGAIN;
        l->segment++;
        l->done = 0;
    }
    return finish(l, s2, entry);
}
