#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "proto/plugin_note.h"

/* The smallest file that passes: header, two program headers, notes. */
struct file {
    Elf64_Ehdr eh;
    Elf64_Phdr ph[2];
    struct {
        Elf64_Nhdr h;
        char name[4];
        char desc[8];
    } other; /* a note of somebody else, before ours */
    struct mf_plugin_note_elf note;
};

static struct file good(void)
{
    struct file f;

    memset(&f, 0, sizeof f);
    memcpy(f.eh.e_ident, ELFMAG, SELFMAG);
    f.eh.e_ident[EI_CLASS] = ELFCLASS64;
    f.eh.e_ident[EI_DATA] = ELFDATA2LSB;
    f.eh.e_type = ET_DYN;
    f.eh.e_machine = EM_X86_64;
    f.eh.e_phoff = offsetof(struct file, ph);
    f.eh.e_phnum = 2;
    f.eh.e_phentsize = sizeof(Elf64_Phdr);
    f.ph[0].p_type = PT_LOAD;
    f.ph[1].p_type = PT_NOTE;
    f.ph[1].p_offset = offsetof(struct file, other);
    f.ph[1].p_filesz = sizeof f.other + sizeof f.note;
    f.ph[1].p_align = 4;
    f.other.h = (Elf64_Nhdr){.n_namesz = 4, .n_descsz = 8, .n_type = 1};
    memcpy(f.other.name, "GNU", 4);
    f.note.namesz = sizeof MF_PLUGIN_NOTE_NAME;
    f.note.descsz = sizeof f.note.desc;
    f.note.type = MF_PLUGIN_NOTE_TYPE;
    strcpy(f.note.name, MF_PLUGIN_NOTE_NAME);
    f.note.desc = (struct mf_plugin_note){.size = sizeof f.note.desc,
                                          .abi = MF_PLUGIN_ABI,
                                          .kind = MF_PLUGIN_TEARDOWN,
                                          .name = "good-one",
                                          .version = "1.2",
                                          .summary = "does it"};
    return f;
}

static enum mf_status find(const void *p, size_t n, struct mf_plugin_note *out)
{
    /* An allocation of exactly n bytes, so that the sanitizer sees a read behind it. */
    uint8_t *copy = malloc(n ? n : 1);
    const char *why = NULL;
    enum mf_status st;

    memcpy(copy, p, n);
    st = mf_plugin_note_find(copy, n, out, &why);
    if (st)
        assert_non_null(why);
    free(copy);
    return st;
}

/* Protects: a note is found behind another one and comes out as it was written. */
static void finds_the_note(void **state)
{
    struct file f = good();
    struct mf_plugin_note n;

    (void)state;
    assert_int_equal(find(&f, sizeof f, &n), MF_OK);
    assert_string_equal(n.name, "good-one");
    assert_string_equal(n.version, "1.2");
    assert_int_equal(n.kind, MF_PLUGIN_TEARDOWN);
}

/* Protects: a file cut at any byte is refused and never read beyond its end. */
static void every_truncation(void **state)
{
    struct file f = good();
    struct mf_plugin_note n;

    (void)state;
    for (size_t len = 0; len < offsetof(struct file, note) + sizeof f.note; len++)
        assert_int_equal(find(&f, len, &n), MF_E_PLUGIN);
}

/* Protects: any single byte changed to any of some values is refused or still a well-formed note.
 */
static void every_mutation(void **state)
{
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff};

    (void)state;
    for (size_t at = 0; at < sizeof(struct file); at++)
        for (size_t v = 0; v < sizeof values; v++) {
            struct file f = good();
            struct mf_plugin_note n;
            enum mf_status st;

            ((uint8_t *)&f)[at] = values[v];
            st = find(&f, sizeof f, &n);
            assert_true(st == MF_OK || st == MF_E_PLUGIN || st == MF_E_ABI);
            if (st == MF_OK) {
                assert_true(mf_strategy_name_ok(n.name));
                assert_int_equal(n.size, sizeof n);
            }
        }
}

/* Protects: offsets and sizes near 2^64 do not wrap around the bounds checks. */
static void huge_numbers(void **state)
{
    static const uint64_t values[] = {UINT64_MAX, UINT64_MAX - 55, UINT64_MAX - 63, INT64_MAX,
                                      UINT32_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct mf_plugin_note n;
        struct file f = good();

        f.eh.e_phoff = values[i];
        assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
        f = good();
        f.ph[1].p_offset = values[i];
        assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
        f = good();
        f.ph[1].p_filesz = values[i];
        assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
        f = good();
        f.note.namesz = (uint32_t)values[i];
        assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
        f = good();
        f.note.descsz = (uint32_t)values[i];
        assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    }
}

/* Protects: what is no x86-64 shared object is refused before its notes are looked at. */
static void wrong_kind_of_file(void **state)
{
    struct mf_plugin_note n;
    struct file f = good();

    (void)state;
    f.eh.e_type = ET_EXEC;
    assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    f = good();
    f.eh.e_machine = EM_AARCH64;
    assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    f = good();
    f.eh.e_ident[EI_CLASS] = ELFCLASS32;
    assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    assert_int_equal(find("#!/bin/sh\n", 10, &n), MF_E_PLUGIN);
}

/* Protects: another ABI version is told apart from a broken file, whatever else changed with it. */
static void other_abi(void **state)
{
    struct mf_plugin_note n;
    struct file f = good();

    (void)state;
    f.note.desc.abi = MF_PLUGIN_ABI + 1;
    f.note.desc.size = 400;
    assert_int_equal(find(&f, sizeof f, &n), MF_E_ABI);
    assert_int_equal(n.abi, MF_PLUGIN_ABI + 1);
}

/* Protects: names and texts of a manifest are what they may be, terminated and padded. */
static void bad_contents(void **state)
{
    static const char *const names[] = {"", "Upper", "9digit", "under_score", "sp ace", "../up"};
    struct mf_plugin_note n;
    struct file f;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        f = good();
        memset(f.note.desc.name, 0, sizeof f.note.desc.name);
        memcpy(f.note.desc.name, names[i], strlen(names[i]));
        assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    }
    f = good();
    memset(f.note.desc.name, 'a', sizeof f.note.desc.name);
    assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    f = good();
    f.note.desc.name[MF_NAME_MAX - 1] = 'x';
    assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    f = good();
    f.note.desc.summary[3] = '\n';
    assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    f = good();
    f.note.desc.kind = 3;
    assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
    f = good();
    f.note.desc.reserved = 1;
    assert_int_equal(find(&f, sizeof f, &n), MF_E_PLUGIN);
}

/* Protects: two manifests in one file are refused instead of one being chosen. */
static void two_notes(void **state)
{
    struct {
        struct file f;
        struct mf_plugin_note_elf second;
    } two = {.f = good()};
    struct mf_plugin_note n;

    (void)state;
    two.second = two.f.note;
    two.f.ph[1].p_filesz += sizeof two.second;
    assert_int_equal(find(&two, sizeof two, &n), MF_E_PLUGIN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_note), cmocka_unit_test(every_truncation),
        cmocka_unit_test(every_mutation), cmocka_unit_test(huge_numbers),
        cmocka_unit_test(other_abi),      cmocka_unit_test(wrong_kind_of_file),
        cmocka_unit_test(bad_contents),   cmocka_unit_test(two_notes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
