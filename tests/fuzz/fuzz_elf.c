/* Kernel images and plugin notes: what passes lies inside the file and does not wrap. */
#include <elf.h>
#include <string.h>

#include "driver.h"
#include "hv/boot/elf.h"
#include "proto/plugin_note.h"

struct seed {
    Elf64_Ehdr eh;
    Elf64_Phdr ph[3];
    Elf64_Nhdr nh;
    char name[8];
    uint8_t desc[192];
    uint8_t code[256];
};

static void common(struct seed *s)
{
    memset(s, 0, sizeof *s);
    memcpy(s->eh.e_ident, ELFMAG, SELFMAG);
    s->eh.e_ident[EI_CLASS] = ELFCLASS64;
    s->eh.e_ident[EI_DATA] = ELFDATA2LSB;
    s->eh.e_machine = EM_X86_64;
    s->eh.e_phoff = offsetof(struct seed, ph);
    s->eh.e_phentsize = sizeof(Elf64_Phdr);
    s->eh.e_phnum = 3;
    for (unsigned i = 0; i < 2; i++)
        s->ph[i] = (Elf64_Phdr){.p_type = PT_LOAD,
                                .p_offset = offsetof(struct seed, code) + 128 * i,
                                .p_paddr = 0x100000u * (i + 1),
                                .p_vaddr = 0x100000u * (i + 1),
                                .p_filesz = 128,
                                .p_memsz = 4096};
    s->ph[2] = (Elf64_Phdr){.p_type = PT_NOTE, .p_offset = offsetof(struct seed, nh), .p_align = 4};
    s->eh.e_entry = 0x100000;
}

size_t fuzz_seed(unsigned i, uint8_t *buf)
{
    struct seed s;
    struct mf_plugin_note note = {.size = sizeof note,
                                  .abi = MF_PLUGIN_ABI,
                                  .kind = MF_PLUGIN_TEARDOWN,
                                  .name = "seed",
                                  .version = "1"};

    common(&s);
    if (i == 0) {
        s.eh.e_type = ET_EXEC;
        s.nh = (Elf64_Nhdr){4, 4, 18};
        memcpy(s.name, "Xen\0\x10\x00\x10\x00", 8);
        s.ph[2].p_filesz = sizeof s.nh + 8;
    } else if (i == 1) {
        s.eh.e_type = ET_DYN;
        s.nh = (Elf64_Nhdr){sizeof MF_PLUGIN_NOTE_NAME, sizeof note, MF_PLUGIN_NOTE_TYPE};
        memcpy(s.name, MF_PLUGIN_NOTE_NAME, sizeof MF_PLUGIN_NOTE_NAME);
        memcpy(s.desc, &note, sizeof note);
        s.ph[2].p_filesz = sizeof s.nh + 8 + sizeof note;
    } else {
        return 0;
    }
    memcpy(buf, &s, sizeof s);
    return sizeof s;
}

struct mem {
    const uint8_t *p;
    uint64_t n;
};

static int64_t mem_read(void *arg, uint64_t off, void *buf, uint64_t n)
{
    const struct mem *m = arg;

    FUZZ_ASSERT(off <= m->n && n <= m->n - off);
    memcpy(buf, m->p + off, n);
    return (int64_t)n;
}

static void check_elf(const struct boot_elf *f, size_t size)
{
    bool entry = false;

    FUZZ_ASSERT(f->nr_segments >= 1 && f->nr_segments <= BOOT_SEGMENTS_MAX);
    for (unsigned i = 0; i < f->nr_segments; i++) {
        const struct boot_segment *s = &f->segments[i];

        FUZZ_ASSERT(s->memsz && s->filesz <= s->memsz);
        FUZZ_ASSERT(s->paddr + s->memsz > s->paddr);
        FUZZ_ASSERT(s->offset <= size && s->filesz <= size - s->offset);
        FUZZ_ASSERT(!i || s[-1].paddr + s[-1].memsz <= s->paddr);
        entry = entry || (f->entry >= s->paddr && f->entry - s->paddr < s->memsz);
    }
    FUZZ_ASSERT(entry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mem m = {data, size};
    struct boot_source src = {mem_read, &m, size};
    struct mf_plugin_note note;
    const char *why = NULL;
    struct boot_elf elf;
    struct mf_error e;
    enum mf_status st = boot_elf_parse(&src, &elf, &e);

    if (!st)
        check_elf(&elf, size);
    else
        FUZZ_ASSERT(e.text[0]);
    st = mf_plugin_note_find(data, size, &note, &why);
    if (st == MF_OK)
        FUZZ_ASSERT(mf_strategy_name_ok(note.name));
    else
        FUZZ_ASSERT(why != NULL);
    return 0;
}
