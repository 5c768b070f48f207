#include "hv/boot/elf.h"

#include <elf.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hv/boot/multiboot.h"

#define XEN_NOTE_PHYS32_ENTRY 18u

enum mf_status boot_fail(struct mf_error *e, enum mf_status st, const char *field, const char *fmt,
                         ...)
{
    va_list ap;

    if (!e)
        return st;
    memset(e, 0, sizeof *e);
    snprintf(e->field, sizeof e->field, "%s", field);
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return st;
}

/* A program header of either class. */
struct phdr {
    uint32_t type;
    uint64_t offset, vaddr, paddr, filesz, memsz, align;
};

struct parse {
    const struct boot_source *src;
    struct boot_elf *out;
    struct mf_error *e;
    bool is64;
    uint64_t phoff, entry;
    unsigned phnum, phentsize;
    struct phdr ph[BOOT_SEGMENTS_MAX];
    bool is_linux;
    bool pvh;
    uint64_t pvh_entry;
    struct multiboot_header mb;
};

static bool read_all(const struct boot_source *src, uint64_t off, void *buf, uint64_t n)
{
    return off <= src->size && n <= src->size - off &&
           src->read(src->arg, off, buf, n) == (int64_t)n;
}

static enum mf_status parse_ident(struct parse *p)
{
    unsigned char id[EI_NIDENT + 4];
    uint16_t type, machine;

    if (p->src->size == 0)
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the image is empty");
    if (p->src->size < sizeof id || !read_all(p->src, 0, id, sizeof id))
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the image is truncated: %" PRIu64 " bytes",
                         p->src->size);
    if (memcmp(id, ELFMAG, SELFMAG) != 0)
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the image is not an ELF file");
    if (id[EI_CLASS] != ELFCLASS64 && id[EI_CLASS] != ELFCLASS32)
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "unknown ELF class %u", id[EI_CLASS]);
    if (id[EI_DATA] != ELFDATA2LSB)
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the image is not little endian");
    memcpy(&type, id + 16, 2);
    memcpy(&machine, id + 18, 2);
    p->is64 = id[EI_CLASS] == ELFCLASS64;
    if (machine != (p->is64 ? EM_X86_64 : EM_386))
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the image is for machine %u, not for x86",
                         machine);
    if (type != ET_EXEC && type != ET_DYN)
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the image is no executable (ELF type %u)",
                         type);
    return MF_OK;
}

static enum mf_status parse_ehdr(struct parse *p)
{
    uint64_t head = p->is64 ? sizeof(Elf64_Ehdr) : sizeof(Elf32_Ehdr);
    union {
        Elf64_Ehdr h64;
        Elf32_Ehdr h32;
    } u;

    if (!read_all(p->src, 0, &u, head))
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the ELF header is truncated");
    if (p->is64) {
        p->phoff = u.h64.e_phoff;
        p->entry = u.h64.e_entry;
        p->phnum = u.h64.e_phnum;
        p->phentsize = u.h64.e_phentsize;
    } else {
        p->phoff = u.h32.e_phoff;
        p->entry = u.h32.e_entry;
        p->phnum = u.h32.e_phnum;
        p->phentsize = u.h32.e_phentsize;
    }
    if (p->phnum == 0)
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the image has no program headers");
    if (p->phentsize != (p->is64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr)))
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "program headers of %u bytes are unknown",
                         p->phentsize);
    if (p->phnum > BOOT_SEGMENTS_MAX)
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "%u program headers, possible are %u",
                         p->phnum, BOOT_SEGMENTS_MAX);
    return MF_OK;
}

static enum mf_status parse_phdrs(struct parse *p)
{
    uint64_t bytes = (uint64_t)p->phnum * p->phentsize;
    union {
        Elf64_Phdr h64[BOOT_SEGMENTS_MAX];
        Elf32_Phdr h32[BOOT_SEGMENTS_MAX];
    } u;

    if (!read_all(p->src, p->phoff, &u, bytes))
        return boot_fail(p->e, MF_E_IMAGE, "kernel",
                         "the image is truncated: its program headers lie outside the file");
    for (unsigned i = 0; i < p->phnum; i++) {
        if (p->is64) {
            const Elf64_Phdr *h = &u.h64[i];

            p->ph[i] = (struct phdr){h->p_type,   h->p_offset, h->p_vaddr, h->p_paddr,
                                     h->p_filesz, h->p_memsz,  h->p_align};
        } else {
            const Elf32_Phdr *h = &u.h32[i];

            p->ph[i] = (struct phdr){h->p_type,   h->p_offset, h->p_vaddr, h->p_paddr,
                                     h->p_filesz, h->p_memsz,  h->p_align};
        }
    }
    return MF_OK;
}

static enum mf_status check_load(struct parse *p, unsigned i)
{
    const struct phdr *h = &p->ph[i];

    if (h->filesz > h->memsz)
        return boot_fail(p->e, MF_E_IMAGE, "kernel",
                         "segment %u: 0x%" PRIx64 " bytes in the file, 0x%" PRIx64 " in memory", i,
                         h->filesz, h->memsz);
    if (h->memsz > UINT64_MAX - h->paddr)
        return boot_fail(p->e, MF_E_IMAGE, "kernel",
                         "segment %u: 0x%" PRIx64 " + 0x%" PRIx64 " wraps around", i, h->paddr,
                         h->memsz);
    if (h->offset > p->src->size || h->filesz > p->src->size - h->offset)
        return boot_fail(p->e, MF_E_IMAGE, "kernel",
                         "the image is truncated: segment %u ends at 0x%" PRIx64 " + 0x%" PRIx64
                         ", the file at 0x%" PRIx64,
                         i, h->offset, h->filesz, p->src->size);
    return MF_OK;
}

static int by_address(const void *a, const void *b)
{
    const struct boot_segment *x = a, *y = b;

    return x->paddr < y->paddr ? -1 : x->paddr > y->paddr;
}

static enum mf_status collect_segments(struct parse *p)
{
    struct boot_elf *out = p->out;

    for (unsigned i = 0; i < p->phnum; i++) {
        const struct phdr *h = &p->ph[i];
        enum mf_status st;

        if (h->type != PT_LOAD)
            continue;
        st = check_load(p, i);
        if (st)
            return st;
        if (!h->memsz)
            continue;
        out->segments[out->nr_segments++] =
            (struct boot_segment){h->paddr, h->memsz, h->offset, h->filesz};
        out->file_bytes += h->filesz; /* at most 64 file sizes: no wrap */
    }
    if (!out->nr_segments)
        return boot_fail(p->e, MF_E_IMAGE, "kernel", "the image has nothing to load (no PT_LOAD)");
    if (out->file_bytes > MF_IMAGE_MAX)
        return boot_fail(p->e, MF_E_TOO_BIG, "kernel",
                         "the segments hold %" PRIu64 " bytes, the limit is %" PRIu64,
                         out->file_bytes, MF_IMAGE_MAX);
    qsort(out->segments, out->nr_segments, sizeof out->segments[0], by_address);
    for (unsigned i = 1; i < out->nr_segments; i++) {
        const struct boot_segment *a = &out->segments[i - 1], *b = a + 1;

        if (a->paddr + a->memsz > b->paddr)
            return boot_fail(p->e, MF_E_IMAGE, "kernel",
                             "segments overlap: [0x%" PRIx64 ", 0x%" PRIx64 ") and [0x%" PRIx64
                             ", 0x%" PRIx64 ")",
                             a->paddr, a->paddr + a->memsz, b->paddr, b->paddr + b->memsz);
    }
    return MF_OK;
}

/* Takes what a note says about the entry; `b` holds its name, at `desc` behind it its content. */
static void take_note(struct parse *p, const uint8_t *b, uint32_t namesz, uint32_t type,
                      const uint8_t *desc, uint32_t descsz)
{
    if (namesz == 6 && !memcmp(b, "Linux", 6))
        p->is_linux = true;
    if (type == XEN_NOTE_PHYS32_ENTRY && namesz == 4 && !memcmp(b, "Xen", 4) &&
        (descsz == 4 || descsz == 8)) {
        p->pvh = true;
        p->pvh_entry = 0;
        memcpy(&p->pvh_entry, desc, descsz);
    }
}

/* Goes through one note segment; what is malformed ends the search there. */
static void scan_notes(struct parse *p, const uint8_t *b, uint64_t n, uint64_t align)
{
    for (uint64_t at = 0; n - at >= 12;) {
        uint32_t namesz, descsz, type;
        uint64_t desc, next;

        memcpy(&namesz, b + at, 4);
        memcpy(&descsz, b + at + 4, 4);
        memcpy(&type, b + at + 8, 4);
        desc = (12 + (uint64_t)namesz + align - 1) & ~(align - 1);
        if (desc > n - at || descsz > n - at - desc)
            return;
        take_note(p, b + at + 12, namesz, type, b + at + desc, descsz);
        next = (desc + descsz + align - 1) & ~(align - 1);
        if (next > n - at)
            return;
        at += next;
    }
}

static enum mf_status read_notes(struct parse *p)
{
    for (unsigned i = 0; i < p->phnum; i++) {
        const struct phdr *h = &p->ph[i];
        uint64_t n = h->filesz < BOOT_NOTES_MAX ? h->filesz : BOOT_NOTES_MAX;
        uint8_t *buf;

        if (h->type != PT_NOTE || !n)
            continue;
        buf = malloc(n);
        if (!buf)
            return boot_fail(p->e, MF_E_IO, "kernel", "no memory to read the image's notes");
        if (!read_all(p->src, h->offset, buf, n)) {
            free(buf);
            return boot_fail(p->e, MF_E_IMAGE, "kernel",
                             "the image is truncated: note segment %u lies outside the file", i);
        }
        scan_notes(p, buf, n, h->align == 8 ? 8 : 4);
        free(buf);
    }
    return MF_OK;
}

static bool inside(const struct boot_elf *f, uint64_t a)
{
    for (unsigned i = 0; i < f->nr_segments; i++)
        if (a >= f->segments[i].paddr && a - f->segments[i].paddr < f->segments[i].memsz)
            return true;
    return false;
}

/* e_entry is physical in some kernels and virtual in others: what lies in a segment is meant. */
static bool resolve_entry(const struct parse *p, uint64_t *entry)
{
    if (inside(p->out, *entry))
        return true;
    for (unsigned i = 0; i < p->phnum; i++) {
        const struct phdr *h = &p->ph[i];

        if (h->type == PT_LOAD && *entry >= h->vaddr && *entry - h->vaddr < h->memsz) {
            *entry = h->paddr + (*entry - h->vaddr);
            return inside(p->out, *entry);
        }
    }
    return false;
}

/* By the multiboot header: its own addresses replace the segments. */
static enum mf_status enter_multiboot(struct parse *p)
{
    enum mf_status st = multiboot_check(&p->mb, p->e);

    if (st)
        return st;
    if (p->mb.addresses)
        return multiboot_segment(p->src, &p->mb, p->out, p->e);
    p->out->kind = BOOT_ENTRY_MULTIBOOT;
    p->out->entry = p->entry;
    return MF_OK;
}

static enum mf_status choose_entry(struct parse *p)
{
    struct boot_elf *out = p->out;

    if (p->is_linux && p->is64) {
        out->kind = BOOT_ENTRY_LINUX64;
        out->entry = p->entry;
    } else if (p->pvh) {
        out->kind = BOOT_ENTRY_PVH;
        out->entry = p->pvh_entry;
    } else if (p->mb.found) {
        return enter_multiboot(p);
    } else if (p->is64) {
        out->kind = BOOT_ENTRY_ELF64;
        out->entry = p->entry;
    } else {
        return boot_fail(p->e, MF_E_IMAGE, "kernel",
                         p->is_linux ? "this is a 32-bit Linux kernel: 64-bit ones are supported"
                                     : "a 32-bit ELF image is supported with a PVH entry note or a "
                                       "multiboot header only");
    }
    return MF_OK;
}

static enum mf_status find_entry(struct parse *p)
{
    struct boot_elf *out = p->out;
    uint64_t at = p->entry;
    enum mf_status st = read_notes(p);

    if (!st)
        st = choose_entry(p);
    if (st)
        return st;
    if (p->is64 && resolve_entry(p, &at))
        out->entry64 = at;
    if (out->kind == BOOT_ENTRY_PVH ? !inside(out, out->entry) : !resolve_entry(p, &out->entry))
        return boot_fail(p->e, MF_E_IMAGE, "kernel",
                         "the entry 0x%" PRIx64 " lies outside every segment", out->entry);
    if ((out->kind == BOOT_ENTRY_PVH || out->kind == BOOT_ENTRY_MULTIBOOT) &&
        out->entry > UINT32_MAX)
        return boot_fail(p->e, MF_E_IMAGE, "kernel",
                         "the 32-bit entry 0x%" PRIx64 " is above 4 GiB", out->entry);
    return MF_OK;
}

/* A file that is no ELF: a multiboot header that names its addresses makes it a kernel. */
static bool is_flat(struct parse *p)
{
    char magic[SELFMAG];

    multiboot_find(p->src, &p->mb);
    return p->mb.found && p->mb.addresses &&
           !(read_all(p->src, 0, magic, SELFMAG) && !memcmp(magic, ELFMAG, SELFMAG));
}

enum mf_status boot_elf_parse(const struct boot_source *src, struct boot_elf *out,
                              struct mf_error *e)
{
    struct parse p = {.src = src, .out = out, .e = e};
    enum mf_status st;

    memset(out, 0, sizeof *out);
    if (src->size > MF_IMAGE_MAX)
        return boot_fail(e, MF_E_TOO_BIG, "kernel",
                         "the image is %" PRIu64 " bytes, the limit is %" PRIu64, src->size,
                         MF_IMAGE_MAX);
    if (is_flat(&p))
        return enter_multiboot(&p);
    st = parse_ident(&p);
    if (!st)
        st = parse_ehdr(&p);
    if (!st)
        st = parse_phdrs(&p);
    if (!st)
        st = collect_segments(&p);
    if (!st)
        st = find_entry(&p);
    return st;
}
