#include "hv/boot/multiboot.h"

#include <inttypes.h>
#include <string.h>

#define HEADER_MAGIC 0x1badb002u
#define NEEDS_ALIGN  0x0001u /* modules on page borders: they always are */
#define NEEDS_MEMORY 0x0002u /* the memory map */
#define NEEDS_VIDEO  0x0004u /* a wish: guests here have no display, and see that they got none */
#define ADDRESSES    0x10000u

static uint32_t word(const uint8_t *b, uint64_t at)
{
    uint32_t v;

    memcpy(&v, b + at, sizeof v);
    return v;
}

void multiboot_find(const struct boot_source *src, struct multiboot_header *h)
{
    uint64_t n = src->size < MULTIBOOT_SEARCH ? src->size : MULTIBOOT_SEARCH;
    uint8_t b[MULTIBOOT_SEARCH];

    memset(h, 0, sizeof *h);
    if (src->read(src->arg, 0, b, n) != (int64_t)n)
        return;
    for (uint64_t at = 0; at + 12 <= n; at += 4) {
        uint32_t flags = word(b, at + 4);

        if (word(b, at) != HEADER_MAGIC || HEADER_MAGIC + flags + word(b, at + 8) != 0)
            continue;
        h->offset = at;
        h->required = flags & 0xffff;
        h->addresses = flags & ADDRESSES;
        h->found = !h->addresses || at + 32 <= n;
        if (h->addresses && h->found) {
            h->header_addr = word(b, at + 12);
            h->load_addr = word(b, at + 16);
            h->load_end = word(b, at + 20);
            h->bss_end = word(b, at + 24);
            h->entry = word(b, at + 28);
        }
        return;
    }
}

enum mf_status multiboot_check(const struct multiboot_header *h, struct mf_error *e)
{
    uint32_t other = h->required & ~(NEEDS_ALIGN | NEEDS_MEMORY | NEEDS_VIDEO);

    if (other)
        return boot_fail(e, MF_E_IMAGE, "kernel",
                         "the multiboot header requires features 0x%x that are not known", other);
    return MF_OK;
}

enum mf_status multiboot_segment(const struct boot_source *src, const struct multiboot_header *h,
                                 struct boot_elf *out, struct mf_error *e)
{
    uint64_t before = (uint64_t)h->header_addr - h->load_addr, from, filesz, memsz;

    if (h->load_addr > h->header_addr || before > h->offset)
        return boot_fail(e, MF_E_IMAGE, "kernel",
                         "the multiboot header at 0x%" PRIx64 " names address 0x%x of itself and"
                         " 0x%x of the load: they do not fit",
                         h->offset, h->header_addr, h->load_addr);
    from = h->offset - before;
    filesz = src->size - from;
    if (h->load_end) {
        if (h->load_end < h->load_addr || h->load_end - h->load_addr > filesz)
            return boot_fail(e, MF_E_IMAGE, "kernel",
                             "the image is truncated: the multiboot header loads [0x%x, 0x%x) from"
                             " 0x%" PRIx64 " on, the file ends at 0x%" PRIx64,
                             h->load_addr, h->load_end, from, src->size);
        filesz = h->load_end - h->load_addr;
    }
    memsz = filesz;
    if (h->bss_end) {
        if (h->bss_end < h->load_addr + filesz)
            return boot_fail(e, MF_E_IMAGE, "kernel",
                             "the multiboot header ends .bss at 0x%x, inside what is loaded",
                             h->bss_end);
        memsz = h->bss_end - h->load_addr;
    }
    if (h->entry < h->load_addr || h->entry - h->load_addr >= memsz)
        return boot_fail(e, MF_E_IMAGE, "kernel", "the entry 0x%x lies outside every segment",
                         h->entry);
    out->segments[0] = (struct boot_segment){h->load_addr, memsz, from, filesz};
    out->nr_segments = 1;
    out->file_bytes = filesz;
    out->kind = BOOT_ENTRY_MULTIBOOT;
    out->entry = h->entry;
    return MF_OK;
}
