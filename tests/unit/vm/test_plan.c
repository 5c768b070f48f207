/* Where what a guest boots from goes, and what multiboot headers say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hv/boot/multiboot.h"
#include "hv/boot/plan.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static struct mf_error err;

/* Protects: the map has all RAM, names the hole and ACPI's pages, and is in order. */
static void the_map(void **state)
{
    struct boot_ram ram = boot_ram_layout(5 * GIB);
    struct boot_map m;
    uint64_t usable = 0, last = 0;

    (void)state;
    boot_map_make(&ram, false, 0, 0, &m);
    assert_int_equal(m.n, 2);
    assert_true(m.e[1].addr == 4 * GIB && m.e[1].size == 2 * GIB);
    boot_map_make(&ram, true, 0x1800, 0x900, &m);
    for (unsigned i = 0; i < m.n; i++) {
        assert_true(m.e[i].size > 0 && m.e[i].addr >= last);
        last = m.e[i].addr + m.e[i].size;
        usable += m.e[i].type == BOOT_MAP_RAM ? m.e[i].size : 0;
    }
    assert_int_equal(m.e[1].type, BOOT_MAP_ACPI);
    assert_true(m.e[1].addr == 0x1000 && m.e[1].size == 0x2000);
    assert_int_equal(m.e[3].type, BOOT_MAP_RESERVED);
    assert_true(usable == 5 * GIB - 0x60000 - 0x2000);
}

/* Protects: ACPI inside the hole, and RAM that ends before or inside it, keep the map whole. */
static void odd_maps(void **state)
{
    struct boot_ram ram = boot_ram_layout(2 * MIB);
    struct boot_map m;

    (void)state;
    boot_map_make(&ram, true, 0xc0000, 100, &m);
    assert_int_equal(m.n, 5);
    assert_int_equal(m.e[2].type, BOOT_MAP_ACPI);
    ram = boot_ram_layout(0xb0000);
    boot_map_make(&ram, true, 0, 0, &m);
    assert_int_equal(m.n, 2);
    assert_true(m.e[1].addr == 0xa0000 && m.e[1].size == 0x10000);
    ram = boot_ram_layout(65536);
    boot_map_make(&ram, true, 0, 0, &m);
    assert_int_equal(m.n, 1);
}

/* A kernel of one segment, and modules of these sizes. */
static struct boot_set *make_set(enum boot_entry_kind kind, uint64_t at, uint64_t bytes,
                                 const char *cmdline, unsigned n, const uint64_t *sizes)
{
    uint32_t len[MF_MODULES_MAX] = {0};
    struct boot_set *s = boot_set_create(cmdline, (uint32_t)strlen(cmdline), n, len);

    assert_non_null(s);
    s->kernel = calloc(1, sizeof *s->kernel);
    assert_non_null(s->kernel);
    s->kernel->elf.kind = kind;
    s->kernel->elf.entry = s->kernel->elf.entry64 = at;
    s->kernel->elf.nr_segments = 1;
    s->kernel->elf.segments[0] = (struct boot_segment){.paddr = at, .memsz = bytes};
    for (unsigned i = 0; i < n; i++) {
        s->module[i] = calloc(1, sizeof *s->module[i]);
        assert_non_null(s->module[i]);
        s->module[i]->size = sizes[i];
    }
    return s;
}

static void drop(struct boot_set *s)
{
    for (unsigned i = 0; i < s->nr_modules; i++)
        free(s->module[i]);
    free(s->kernel);
    free(s);
}

static enum mf_status plan(struct boot_set *s, uint64_t ram_bytes, const struct boot_tables *t,
                           struct boot_plan *p)
{
    struct boot_ram ram = boot_ram_layout(ram_bytes);

    memset(&err, 0, sizeof err);
    return boot_plan_make(s, &ram, t, p, &err);
}

/* Protects: nothing of a plan overlaps anything else or leaves RAM, at many sizes. */
static void nothing_overlaps(void **state)
{
    const uint64_t sizes[3] = {5 * MIB + 1, 4096, 1};

    (void)state;
    for (uint64_t ram = 16 * MIB; ram < 80 * MIB; ram += 4 * MIB + 4096) {
        struct boot_set *s =
            make_set(BOOT_ENTRY_LINUX64, 10 * MIB, ram / 3, "console=ttyS0", 3, sizes);
        struct boot_plan p;
        uint64_t from[5], end[5];

        if (10 * MIB + ram / 3 > ram || plan(s, ram, NULL, &p)) {
            drop(s);
            continue;
        }
        for (unsigned i = 0; i < 3; i++) {
            from[i] = p.module[i];
            end[i] = p.module[i] + sizes[i];
            assert_int_equal(p.module[i] % 4096, 0);
        }
        from[3] = p.area;
        end[3] = p.area + p.area_bytes;
        from[4] = 10 * MIB;
        end[4] = 10 * MIB + ram / 3;
        for (unsigned i = 0; i < 5; i++) {
            assert_true(end[i] <= ram && from[i] >= 4096);
            for (unsigned k = 0; k < i; k++)
                assert_true(end[i] <= from[k] || end[k] <= from[i]);
        }
        drop(s);
    }
}

/* Protects: the initrd stays below what the setup header names, and below 2 GiB without one. */
static void initrd_limits(void **state)
{
    const uint64_t size = 3 * MIB;
    struct boot_set *s = make_set(BOOT_ENTRY_LINUX64, 16 * MIB, MIB, "", 1, &size);
    struct boot_plan p;
    uint32_t max = 64 * MIB - 1;

    (void)state;
    assert_int_equal(plan(s, 8 * GIB, NULL, &p), MF_OK);
    assert_true(p.module[0] == 2 * GIB - size);
    s->setup_len = 128;
    memcpy(s->setup + 0x22c - MF_SETUP_OFFSET, &max, 4);
    assert_int_equal(plan(s, 8 * GIB, NULL, &p), MF_OK);
    assert_true(p.module[0] == 64 * MIB - size);
    max = MIB;
    memcpy(s->setup + 0x22c - MF_SETUP_OFFSET, &max, 4);
    assert_int_equal(plan(s, 8 * GIB, NULL, &p), MF_E_RANGE);
    assert_string_equal(err.field, "initrd");
    drop(s);
    s = make_set(BOOT_ENTRY_PVH, 16 * MIB, MIB, "", 1, &size);
    assert_int_equal(plan(s, 8 * GIB, NULL, &p), MF_OK);
    assert_true(p.module[0] == 3 * GIB - size);
    drop(s);
}

/* Protects: a module that finds no room is refused and named. */
static void no_room(void **state)
{
    const uint64_t sizes[2] = {6 * MIB, 6 * MIB};
    struct boot_set *s = make_set(BOOT_ENTRY_LINUX64, 4 * MIB, 8 * MIB, "", 2, sizes);
    struct boot_plan p;

    (void)state;
    assert_int_equal(plan(s, 20 * MIB, NULL, &p), MF_E_RANGE);
    assert_string_equal(err.field, "initrd");
    assert_non_null(strstr(err.text, "module 1"));
    assert_int_equal(plan(s, 25 * MIB, NULL, &p), MF_OK);
    drop(s);
}

static uint32_t some_tables(void *arg, uint64_t base, void *buf, uint32_t cap)
{
    uint32_t n = *(const uint32_t *)arg;

    (void)base;
    if (n <= cap)
        memset(buf, 0x55, n);
    return n;
}

/* Protects: tables lie behind the strings, aligned, in pages that the map names ACPI. */
static void tables_have_a_place(void **state)
{
    struct boot_set *s = make_set(BOOT_ENTRY_LINUX64, 16 * MIB, MIB, "abc", 0, NULL);
    uint32_t bytes = 4000;
    struct boot_tables t = {some_tables, &bytes};
    struct boot_plan p;

    (void)state;
    assert_int_equal(plan(s, 64 * MIB, &t, &p), MF_OK);
    assert_int_equal(p.tables % 16, 0);
    assert_true(p.tables > p.cmdline + 3 && p.tables + bytes <= p.stack);
    assert_int_equal(p.map.e[1].type, BOOT_MAP_ACPI);
    assert_true(p.map.e[1].addr <= p.tables &&
                p.map.e[1].addr + p.map.e[1].size >= p.tables + bytes);
    assert_true(p.params == p.area + p.area_bytes - 4096);
    bytes = BOOT_TABLES_MAX + 1;
    assert_int_equal(plan(s, 64 * MIB, &t, &p), MF_E_INTERNAL);
    drop(s);
}

/* Protects: a setup header makes it Linux; without 64-bit code that is refused. */
static void setup_header_decides(void **state)
{
    struct boot_set *s = make_set(BOOT_ENTRY_PVH, 16 * MIB, MIB, "", 0, NULL);
    struct boot_plan p;

    (void)state;
    s->setup_len = 100;
    assert_int_equal(plan(s, 64 * MIB, NULL, &p), MF_OK);
    assert_int_equal(p.kind, BOOT_ENTRY_LINUX64);
    s->kernel->elf.entry64 = 0;
    assert_int_equal(plan(s, 64 * MIB, NULL, &p), MF_E_IMAGE);
    assert_string_equal(err.field, "kernel");
    drop(s);
}

/* ---- multiboot */

static uint8_t file[16384];
static uint64_t file_size;

static int64_t read_file(void *arg, uint64_t offset, void *buf, uint64_t n)
{
    (void)arg;
    if (offset >= file_size)
        return 0;
    if (n > file_size - offset)
        n = file_size - offset;
    memcpy(buf, file + offset, n);
    return (int64_t)n;
}

static enum mf_status parse(const uint32_t h[8], uint64_t at, struct boot_elf *f)
{
    struct boot_source src = {.read = read_file, .size = file_size};

    memset(&err, 0, sizeof err);
    memset(file, 0, sizeof file);
    memcpy(file + at, h, 32);
    return boot_elf_parse(&src, f, &err);
}

#define MAGIC       0x1badb002u
#define HEADER(f)   MAGIC, (f), 0u - MAGIC - (f)
#define WITH_PLACES 0x10000u

/* Protects: a flat multiboot image: what is loaded from where, and where it begins. */
static void multiboot_flat(void **state)
{
    uint32_t h[8] = {HEADER(WITH_PLACES | 3), 0x100040, 0x100000, 0x101000, 0x103000, 0x100100};
    struct boot_elf f;

    (void)state;
    file_size = 8192;
    assert_int_equal(parse(h, 0x140, &f), MF_OK);
    assert_int_equal(f.kind, BOOT_ENTRY_MULTIBOOT);
    assert_true(f.entry == 0x100100 && f.nr_segments == 1);
    assert_true(f.segments[0].paddr == 0x100000 && f.segments[0].offset == 0x100);
    assert_true(f.segments[0].filesz == 0x1000 && f.segments[0].memsz == 0x3000);
    h[5] = h[6] = 0; /* all of the file, no .bss */
    assert_int_equal(parse(h, 0x140, &f), MF_OK);
    assert_true(f.segments[0].filesz == 8192 - 0x100 && f.segments[0].memsz == 8192 - 0x100);
}

/* Protects: each lie of a multiboot header is refused. */
static void multiboot_lies(void **state)
{
    const uint32_t good[8] = {
        HEADER(WITH_PLACES), 0x100040, 0x100000, 0x101000, 0x103000, 0x100100};
    static const struct {
        unsigned word;
        uint32_t value;
        const char *what;
    } lies[] = {
        {3, 0x0fffff, "do not fit"},    {3, 0x100200, "do not fit"},    {4, 0x100041, "do not fit"},
        {5, 0x0fffff, "truncated"},     {5, 0x110000, "truncated"},     {6, 0x100800, ".bss"},
        {7, 0x0fffff, "outside every"}, {7, 0x103000, "outside every"},
    };
    struct boot_elf f;
    uint32_t h[8];

    (void)state;
    file_size = 8192;
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        memcpy(h, good, sizeof h);
        h[lies[i].word] = lies[i].value;
        assert_int_equal(parse(h, 0x140, &f), MF_E_IMAGE);
        assert_string_equal(err.field, "kernel");
        if (!strstr(err.text, lies[i].what))
            fail_msg("%u: \"%s\" does not say \"%s\"", i, err.text, lies[i].what);
    }
}

/* Protects: required features that nobody knows, a wrong checksum, a header behind 8 KiB. */
static void multiboot_refusals(void **state)
{
    const uint32_t strange[8] = {HEADER(WITH_PLACES | 8), 0x100000, 0x100000, 0, 0, 0x100000};
    const uint32_t good[8] = {HEADER(WITH_PLACES), 0x100000, 0x100000, 0, 0, 0x100000};
    uint32_t bad[8];
    struct boot_elf f;

    (void)state;
    file_size = sizeof file;
    assert_int_equal(parse(strange, 0, &f), MF_E_IMAGE);
    assert_non_null(strstr(err.text, "0x8"));
    memcpy(bad, good, sizeof bad);
    bad[2]++;
    assert_int_equal(parse(bad, 0, &f), MF_E_IMAGE);
    assert_non_null(strstr(err.text, "not an ELF"));
    assert_int_equal(parse(good, MULTIBOOT_SEARCH, &f), MF_E_IMAGE);
    assert_int_equal(parse(good, MULTIBOOT_SEARCH - 28, &f), MF_E_IMAGE);
    assert_int_equal(parse(good, MULTIBOOT_SEARCH - 32, &f), MF_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_map),
        cmocka_unit_test(odd_maps),
        cmocka_unit_test(nothing_overlaps),
        cmocka_unit_test(initrd_limits),
        cmocka_unit_test(no_room),
        cmocka_unit_test(tables_have_a_place),
        cmocka_unit_test(setup_header_decides),
        cmocka_unit_test(multiboot_flat),
        cmocka_unit_test(multiboot_lies),
        cmocka_unit_test(multiboot_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
