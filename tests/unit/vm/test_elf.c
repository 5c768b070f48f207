#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "hv/boot/elf.h"

struct file {
    Elf64_Ehdr eh;
    Elf64_Phdr ph[4];
    struct {
        Elf64_Nhdr h;
        char name[4];
        uint32_t desc;
    } note;
    uint8_t code[256];
};

/* Two segments at 1 MiB and 2 MiB, entry in the first. */
static struct file good(void)
{
    struct file f;

    memset(&f, 0, sizeof f);
    memcpy(f.eh.e_ident, ELFMAG, SELFMAG);
    f.eh.e_ident[EI_CLASS] = ELFCLASS64;
    f.eh.e_ident[EI_DATA] = ELFDATA2LSB;
    f.eh.e_type = ET_EXEC;
    f.eh.e_machine = EM_X86_64;
    f.eh.e_phoff = offsetof(struct file, ph);
    f.eh.e_phnum = 2;
    f.eh.e_phentsize = sizeof(Elf64_Phdr);
    f.eh.e_entry = 0x100010;
    /* Not in ascending order: the loader sorts. */
    f.ph[0] = (Elf64_Phdr){.p_type = PT_LOAD,
                           .p_offset = offsetof(struct file, code) + 128,
                           .p_vaddr = 0x200000,
                           .p_paddr = 0x200000,
                           .p_filesz = 64,
                           .p_memsz = 0x5000};
    f.ph[1] = (Elf64_Phdr){.p_type = PT_LOAD,
                           .p_offset = offsetof(struct file, code),
                           .p_vaddr = 0x100000,
                           .p_paddr = 0x100000,
                           .p_filesz = 128,
                           .p_memsz = 128};
    f.ph[2] = (Elf64_Phdr){.p_type = PT_NOTE,
                           .p_offset = offsetof(struct file, note),
                           .p_filesz = sizeof f.note,
                           .p_align = 4};
    f.note.h = (Elf64_Nhdr){.n_namesz = 4, .n_descsz = 4, .n_type = 18};
    memcpy(f.note.name, "Xen", 4);
    f.note.desc = 0x100020;
    return f;
}

struct mem {
    const uint8_t *p;
    uint64_t n;
};

static int64_t mem_read(void *arg, uint64_t off, void *buf, uint64_t n)
{
    const struct mem *m = arg;

    if (off >= m->n)
        return 0;
    if (n > m->n - off)
        n = m->n - off;
    memcpy(buf, m->p + off, n);
    return (int64_t)n;
}

static struct boot_elf elf;
static struct mf_error err;

static enum mf_status parse(const void *p, size_t n)
{
    struct mem m = {p, n};
    struct boot_source src = {mem_read, &m, n};
    enum mf_status st;

    memset(&err, 0, sizeof err);
    st = boot_elf_parse(&src, &elf, &err);
    if (st) {
        assert_string_equal(err.field, "kernel");
        assert_true(err.text[0]);
    }
    return st;
}

static void refused(const struct file *f, const char *word)
{
    assert_int_equal(parse(f, sizeof *f), MF_E_IMAGE);
    if (!strstr(err.text, word))
        fail_msg("'%s' does not say '%s'", err.text, word);
}

/* Protects: a plain ELF64 image is understood: sorted segments, entry, sizes. */
static void plain_elf64(void **state)
{
    struct file f = good();

    (void)state;
    assert_int_equal(parse(&f, sizeof f), MF_OK);
    assert_int_equal(elf.kind, BOOT_ENTRY_ELF64);
    assert_int_equal(elf.entry, 0x100010);
    assert_int_equal(elf.nr_segments, 2);
    assert_int_equal(elf.segments[0].paddr, 0x100000);
    assert_int_equal(elf.segments[1].paddr, 0x200000);
    assert_int_equal(elf.segments[1].memsz, 0x5000);
    assert_int_equal(elf.file_bytes, 192);
}

/* Protects: the Xen note makes it a PVH image with the note's entry. */
static void pvh(void **state)
{
    struct file f = good();

    (void)state;
    f.eh.e_phnum = 3;
    assert_int_equal(parse(&f, sizeof f), MF_OK);
    assert_int_equal(elf.kind, BOOT_ENTRY_PVH);
    assert_int_equal(elf.entry, 0x100020);
    f.note.desc = 0x300000;
    refused(&f, "entry");
    f.note.h.n_descsz = 0xfffffff0; /* a malformed note is no note */
    assert_int_equal(parse(&f, sizeof f), MF_OK);
    assert_int_equal(elf.kind, BOOT_ENTRY_ELF64);
}

/* Protects: an entry given as virtual address is found at its physical place. */
static void virtual_entry(void **state)
{
    struct file f = good();

    (void)state;
    f.ph[1].p_vaddr = UINT64_C(0xffffffff80000000);
    f.eh.e_entry = UINT64_C(0xffffffff80000010);
    assert_int_equal(parse(&f, sizeof f), MF_OK);
    assert_int_equal(elf.entry, 0x100010);
}

/* Protects: an empty file, and one cut at any byte before its last segment's end. */
static void empty_and_truncated(void **state)
{
    struct file f = good();
    size_t whole = offsetof(struct file, code) + 192;

    (void)state;
    assert_int_equal(parse(&f, 0), MF_E_IMAGE);
    assert_non_null(strstr(err.text, "empty"));
    for (size_t n = 1; n < whole; n++) {
        assert_int_equal(parse(&f, n), MF_E_IMAGE);
        assert_non_null(strstr(err.text, "truncated"));
    }
    assert_int_equal(parse(&f, whole), MF_OK);
}

/* Protects: what is not ELF, not x86, not little endian or not a program is named so. */
static void not_a_kernel(void **state)
{
    struct file f = good();

    (void)state;
    f.eh.e_ident[1] = 'e';
    refused(&f, "not an ELF");
    f = good();
    f.eh.e_machine = EM_AARCH64;
    refused(&f, "machine 183");
    f = good();
    f.eh.e_machine = EM_386; /* in a 64-bit file */
    refused(&f, "machine 3");
    f = good();
    f.eh.e_ident[EI_DATA] = ELFDATA2MSB;
    refused(&f, "little endian");
    f = good();
    f.eh.e_ident[EI_CLASS] = 7;
    refused(&f, "class");
    f = good();
    f.eh.e_type = ET_REL;
    refused(&f, "executable");
    f = good();
    f.eh.e_phentsize = 32;
    refused(&f, "program headers");
    f = good();
    f.eh.e_phnum = 65;
    refused(&f, "65 program headers");
    f = good();
    f.eh.e_phnum = 0;
    refused(&f, "no program headers");
}

/* Protects: an image without anything to load. */
static void nothing_to_load(void **state)
{
    struct file f = good();

    (void)state;
    f.ph[0].p_type = f.ph[1].p_type = PT_NULL;
    refused(&f, "PT_LOAD");
    f = good();
    f.ph[0].p_memsz = f.ph[0].p_filesz = f.ph[1].p_memsz = f.ph[1].p_filesz = 0;
    refused(&f, "PT_LOAD");
}

/* Protects: an entry outside every segment, also one in the gap between two. */
static void entry_outside(void **state)
{
    static const uint64_t entries[] = {0, 0xfffff, 0x100080, 0x205000, UINT64_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        struct file f = good();

        f.eh.e_entry = entries[i];
        refused(&f, "entry");
    }
}

/* Protects: segments that overlap by one byte or wholly; ones that only touch are fine. */
static void overlap(void **state)
{
    struct file f = good();

    (void)state;
    f.ph[0].p_paddr = 0x10007f;
    refused(&f, "overlap");
    f.ph[0].p_paddr = 0x100000;
    refused(&f, "overlap");
    f.ph[0].p_paddr = 0x100080;
    assert_int_equal(parse(&f, sizeof f), MF_OK);
    f.ph[0].p_paddr = 0xfb001;
    refused(&f, "overlap");
}

/* Protects: sizes and addresses near 2^64 neither wrap nor pass. */
static void near_the_end_of_numbers(void **state)
{
    struct file f = good();

    (void)state;
    f.ph[0].p_memsz = UINT64_MAX;
    refused(&f, "wraps");
    f = good();
    f.ph[0].p_paddr = UINT64_MAX - 0x10;
    refused(&f, "wraps");
    f = good();
    f.ph[0].p_filesz = UINT64_MAX;
    refused(&f, "in the file");
    f.ph[0].p_memsz = UINT64_MAX;
    f.ph[0].p_paddr = 0;
    refused(&f, "truncated");
    f = good();
    f.ph[0].p_offset = UINT64_MAX;
    refused(&f, "truncated");
    f = good();
    f.eh.e_phoff = UINT64_MAX - 8;
    refused(&f, "truncated");
    f = good();
    f.ph[0].p_filesz = f.ph[0].p_memsz + 1;
    refused(&f, "in the file");
}

/* Protects: a file larger than the limit is refused before anything of it is read. */
static void too_big(void **state)
{
    struct file f = good();
    struct mem m = {(const uint8_t *)&f, sizeof f};
    struct boot_source src = {mem_read, &m, MF_IMAGE_MAX + 1};

    (void)state;
    assert_int_equal(boot_elf_parse(&src, &elf, &err), MF_E_TOO_BIG);
}

/* Protects: a 32-bit image needs a PVH note. */
static void elf32(void **state)
{
    struct {
        Elf32_Ehdr eh;
        Elf32_Phdr ph[2];
        struct {
            Elf32_Nhdr h;
            char name[4];
            uint32_t desc;
        } note;
        uint8_t code[64];
    } f;

    (void)state;
    memset(&f, 0, sizeof f);
    memcpy(f.eh.e_ident, ELFMAG, SELFMAG);
    f.eh.e_ident[EI_CLASS] = ELFCLASS32;
    f.eh.e_ident[EI_DATA] = ELFDATA2LSB;
    f.eh.e_type = ET_EXEC;
    f.eh.e_machine = EM_386;
    f.eh.e_phoff = (uint32_t)((char *)&f.ph - (char *)&f);
    f.eh.e_phnum = 1;
    f.eh.e_phentsize = sizeof(Elf32_Phdr);
    f.eh.e_entry = 0x100000;
    f.ph[0].p_type = PT_LOAD;
    f.ph[0].p_paddr = 0x100000;
    f.ph[0].p_offset = (uint32_t)((char *)&f.code - (char *)&f);
    f.ph[0].p_filesz = f.ph[0].p_memsz = 64;
    f.ph[1].p_type = PT_NOTE;
    f.ph[1].p_offset = (uint32_t)((char *)&f.note - (char *)&f);
    f.ph[1].p_filesz = sizeof f.note;
    f.note.h = (Elf32_Nhdr){.n_namesz = 4, .n_descsz = 4, .n_type = 18};
    memcpy(f.note.name, "Xen", 4);
    f.note.desc = 0x100004;
    assert_int_equal(parse(&f, sizeof f), MF_E_IMAGE);
    assert_non_null(strstr(err.text, "32-bit"));
    f.eh.e_phnum = 2;
    assert_int_equal(parse(&f, sizeof f), MF_OK);
    assert_int_equal(elf.kind, BOOT_ENTRY_PVH);
    assert_int_equal(elf.entry, 0x100004);
}

/* Protects: whatever single byte is wrong, what passes is consistent. */
static void mutations(void **state)
{
    (void)state;
    for (size_t at = 0; at < offsetof(struct file, code); at++)
        for (unsigned v = 0; v < 256; v += 5) {
            struct file f = good();

            f.eh.e_phnum = 3;
            ((uint8_t *)&f)[at] = (uint8_t)v;
            if (parse(&f, sizeof f))
                continue;
            for (unsigned i = 0; i < elf.nr_segments; i++) {
                const struct boot_segment *s = &elf.segments[i];

                assert_true(s->filesz <= s->memsz && s->memsz);
                assert_true(s->memsz <= UINT64_MAX - s->paddr);
                assert_true(s->offset + s->filesz <= sizeof f);
                assert_true(!i || s[-1].paddr + s[-1].memsz <= s->paddr);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_elf64),
        cmocka_unit_test(pvh),
        cmocka_unit_test(virtual_entry),
        cmocka_unit_test(empty_and_truncated),
        cmocka_unit_test(not_a_kernel),
        cmocka_unit_test(nothing_to_load),
        cmocka_unit_test(entry_outside),
        cmocka_unit_test(overlap),
        cmocka_unit_test(near_the_end_of_numbers),
        cmocka_unit_test(too_big),
        cmocka_unit_test(elf32),
        cmocka_unit_test(mutations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
