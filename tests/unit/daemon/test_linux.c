/* Kernel files of Linux: made here, good and bad in every way that is told apart. */
#include "tests/unit/daemon/cm.h"

#include <archive.h>
#include <archive_entry.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/linux.h"

#define KERNEL_BYTES 150000u
#define SETUP_BYTES  1024u /* one sector and the boot sector */

static uint8_t kernel[KERNEL_BYTES]; /* what the payload unpacks to */
static uint8_t packed[2 * KERNEL_BYTES + 4096];
static size_t packed_len;

static void put(uint8_t *b, size_t at, uint64_t v, unsigned n)
{
    memcpy(b + at, &v, n);
}

static void make_kernel(void)
{
    unsigned seed = 1;

    memset(kernel, 0, sizeof kernel);
    memcpy(kernel, ELFMAG, SELFMAG);
    for (size_t i = 64; i < sizeof kernel / 2; i++)
        kernel[i] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 24);
}

static la_ssize_t take(struct archive *a, void *arg, const void *b, size_t n)
{
    (void)a;
    (void)arg;
    assert_true(packed_len + n <= sizeof packed);
    memcpy(packed + packed_len, b, n);
    packed_len += n;
    return (la_ssize_t)n;
}

/* Packs the kernel by the filter, as the kernel's build does: the size behind it, but for gzip. */
static void pack(int (*filter)(struct archive *))
{
    struct archive *a = archive_write_new();
    struct archive_entry *e = archive_entry_new();

    make_kernel();
    packed_len = 0;
    assert_int_equal(archive_write_set_format_raw(a), ARCHIVE_OK);
    assert_int_equal(filter(a), ARCHIVE_OK);
    archive_write_set_bytes_in_last_block(a, 1);
    assert_int_equal(archive_write_open(a, NULL, NULL, take, NULL), ARCHIVE_OK);
    archive_entry_set_filetype(e, AE_IFREG);
    assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
    assert_int_equal(archive_write_data(a, kernel, sizeof kernel), sizeof kernel);
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_entry_free(e);
    archive_write_free(a);
    if (filter != archive_write_add_filter_gzip) {
        put(packed, packed_len, sizeof kernel, 4);
        packed_len += 4;
    }
}

/* LZ4's legacy form, which kernels use and libarchive does not write: blocks of literals. */
static void pack_lz4_legacy(void)
{
    size_t n = sizeof kernel, len;

    make_kernel();
    put(packed, 0, 0x184c2102, 4);
    packed_len = 8;
    packed[packed_len++] = 0xf0;
    for (len = n - 15; len >= 255; len -= 255)
        packed[packed_len++] = 255;
    packed[packed_len++] = (uint8_t)len;
    memcpy(packed + packed_len, kernel, n);
    packed_len += n;
    put(packed, 4, packed_len - 8, 4);
    put(packed, packed_len, n, 4);
    packed_len += 4;
}

/* A bzImage around the packed kernel; `h` is its setup header, to be spoilt. */
static int bzimage(uint8_t h[SETUP_BYTES])
{
    int fd = memfd_create("bzImage", MFD_CLOEXEC);

    assert_int_equal(write(fd, h, SETUP_BYTES), SETUP_BYTES);
    assert_int_equal(write(fd, packed, packed_len), (ssize_t)packed_len);
    return fd;
}

static void header(uint8_t h[SETUP_BYTES])
{
    memset(h, 0, SETUP_BYTES);
    h[0x1f1] = 1;
    put(h, 0x1fe, 0xaa55, 2);
    h[0x201] = 0x6a;
    memcpy(h + 0x202, "HdrS", 4);
    put(h, 0x206, 0x20f, 2);
    h[0x211] = 1;
    put(h, 0x22c, 0x7fffffff, 4);
    put(h, 0x236, 1, 2);
    put(h, 0x238, 2047, 4);
    put(h, 0x24c, packed_len, 4);
    put(h, 0x260, sizeof kernel + 65536, 4);
}

static enum mf_status examine(uint8_t h[SETUP_BYTES], struct linux_kernel *k, struct problem *p)
{
    int fd = bzimage(h);
    enum mf_status st;

    memset(p, 0, sizeof *p);
    st = linux_examine(fd, SETUP_BYTES + packed_len, k, p);
    close(fd);
    return st;
}

static enum mf_status unpack(int *out, struct problem *p)
{
    uint8_t h[SETUP_BYTES];
    struct linux_kernel k;
    int fd;

    header(h);
    fd = bzimage(h);
    memset(p, 0, sizeof *p);
    assert_int_equal(linux_examine(fd, SETUP_BYTES + packed_len, &k, p), MF_OK);
    assert_int_equal(k.form, LINUX_BZIMAGE);
    linux_unpack(fd, &k, out, p);
    close(fd);
    return p->status;
}

static void unpacks(void)
{
    static uint8_t back[KERNEL_BYTES + 1];
    struct problem p;
    int fd = -1;

    assert_int_equal(unpack(&fd, &p), MF_OK);
    assert_int_equal(pread(fd, back, sizeof back, 0), sizeof kernel);
    assert_memory_equal(back, kernel, sizeof kernel);
    assert_int_equal(write(fd, "x", 1), -1); /* nobody can change it any more */
    close(fd);
}

/* Every packing that distributions use is unpacked to the last byte. */
static void test_packings(void **state)
{
    static int (*const filters[])(struct archive *) = {
        archive_write_add_filter_gzip, archive_write_add_filter_bzip2,
        archive_write_add_filter_lzma, archive_write_add_filter_xz,
        archive_write_add_filter_lz4,  archive_write_add_filter_zstd};

    (void)state;
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        pack(filters[i]);
        if (filters[i] == archive_write_add_filter_lz4)
            pack_lz4_legacy();
        unpacks();
    }
    make_kernel();
    memcpy(packed, kernel, sizeof kernel);
    packed_len = sizeof kernel;
    unpacks();
}

static void refused(const char *what)
{
    struct problem p;
    int fd = -1;

    assert_int_equal(unpack(&fd, &p), MF_E_IMAGE);
    assert_int_equal(fd, -1);
    assert_string_equal(p.field, "kernel");
    if (strstr(p.detail, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", p.detail, what);
}

/* A payload that is cut or spoilt is refused, in whatever way it is packed. */
static void test_corrupt(void **state)
{
    enum { WITH_CHECKSUM = 3 }; /* of these; in the others not every change can be seen */
    static int (*const filters[])(struct archive *) = {
        archive_write_add_filter_gzip, archive_write_add_filter_bzip2, archive_write_add_filter_xz,
        archive_write_add_filter_zstd, archive_write_add_filter_lzma};

    (void)state;
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
        uint8_t tail[4];

        pack(filters[i]);
        memcpy(tail, packed + packed_len - 4, 4);
        packed_len /= 2;
        memcpy(packed + packed_len - 4, tail, 4);
        refused("corrupt or truncated");
        if (i >= WITH_CHECKSUM)
            continue;
        pack(filters[i]);
        for (size_t at = packed_len / 3; at < packed_len / 3 + 64; at++)
            packed[at] ^= 0x5a;
        refused("corrupt or truncated");
    }
    pack_lz4_legacy();
    put(packed, 4, 100000, 4); /* the block ends in the middle of its literals */
    refused("corrupt or truncated");
}

/* What would unpack to more than the header allows is stopped, whether it says its size or lies. */
static void test_bomb(void **state)
{
    uint8_t h[SETUP_BYTES];
    struct linux_kernel k;
    struct problem p = {0};
    int fd, out = -1;

    (void)state;
    pack(archive_write_add_filter_xz);
    for (int lie = 0; lie < 2; lie++) {
        put(packed, packed_len - 4, lie ? 4096 : sizeof kernel, 4);
        header(h);
        put(h, 0x260, 65536, 4);
        fd = bzimage(h);
        memset(&p, 0, sizeof p);
        assert_int_equal(linux_examine(fd, SETUP_BYTES + packed_len, &k, &p), MF_OK);
        assert_int_equal(linux_unpack(fd, &k, &out, &p), MF_E_IMAGE);
        assert_non_null(strstr(p.detail, "setup header allows"));
        assert_int_equal(out, -1);
        close(fd);
    }
}

/* A size behind the payload that does not match what came out of it. */
static void test_size_lies(void **state)
{
    (void)state;
    pack(archive_write_add_filter_zstd);
    put(packed, packed_len - 4, sizeof kernel - 1, 4);
    refused("came out of it");
}

static void bad_header(uint8_t h[SETUP_BYTES], const char *what)
{
    struct linux_kernel k;
    struct problem p;

    assert_int_equal(examine(h, &k, &p), MF_E_IMAGE);
    assert_string_equal(p.field, "kernel");
    if (strstr(p.detail, what) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", p.detail, what);
}

/* Setup headers that cannot be used, each told by its own sentence. */
static void test_headers(void **state)
{
    uint8_t h[SETUP_BYTES];

    (void)state;
    pack(archive_write_add_filter_gzip);
    header(h);
    put(h, 0x206, 0x20b, 2);
    bad_header(h, "protocol 2.11");
    header(h);
    put(h, 0x236, 0, 2);
    bad_header(h, "32-bit Linux kernel");
    header(h);
    h[0x211] = 0;
    bad_header(h, "zImage");
    header(h);
    memset(h + 0x202, 0, 4);
    bad_header(h, "boot sector without");
    header(h);
    put(h, 0x24c, packed_len + 1, 4);
    bad_header(h, "truncated");
    header(h);
    put(h, 0x248, 0xffffffff, 4);
    bad_header(h, "truncated");
    header(h);
    put(h, 0x24c, 4, 4);
    bad_header(h, "no payload");
    header(h);
    put(h, 0x260, 0xffffffff, 4);
    bad_header(h, "init_size");
    packed_len = 0;
    header(h);
    h[0x1f1] = 200;
    bad_header(h, "truncated");
}

/* Packings that are not unpacked here are named. */
static void test_unknown_packings(void **state)
{
    (void)state;
    memset(packed, 0, 64);
    packed_len = 64;
    memcpy(packed, "\x89LZO\0\r\n\x1a\n", 9);
    refused("LZO");
    memcpy(packed, "\xde\xad\xbe\xef", 4);
    refused("de ad be ef");
}

/* A file of a few bytes, and one that ends inside the setup header. */
static void test_short(void **state)
{
    uint8_t h[SETUP_BYTES];
    struct linux_kernel k;
    struct problem p = {0};
    int fd;

    (void)state;
    packed_len = 0;
    header(h);
    fd = bzimage(h);
    assert_int_equal(ftruncate(fd, 0x210), 0);
    assert_int_equal(linux_examine(fd, 0x210, &k, &p), MF_E_IMAGE);
    assert_non_null(strstr(p.detail, "truncated"));
    memset(&p, 0, sizeof p);
    assert_int_equal(ftruncate(fd, 3), 0);
    assert_int_equal(linux_examine(fd, 3, &k, &p), MF_OK);
    assert_int_equal(k.form, LINUX_NOT);
    close(fd);
}

/* The setup header is what the guest will see, no longer than it says. */
static void test_setup(void **state)
{
    uint8_t h[SETUP_BYTES];
    struct linux_kernel k;
    struct problem p;

    (void)state;
    pack(archive_write_add_filter_gzip);
    header(h);
    assert_int_equal(examine(h, &k, &p), MF_OK);
    assert_int_equal(k.setup_len, 0x202 + 0x6a - 0x1f1);
    assert_memory_equal(k.setup, h + 0x1f1, k.setup_len);
    assert_int_equal(k.cmdline_max, 2047);
    h[0x201] = 0xff;
    assert_int_equal(examine(h, &k, &p), MF_OK);
    assert_int_equal(k.setup_len, MF_SETUP_MAX);
}

struct vmlinux {
    Elf64_Ehdr eh;
    Elf64_Phdr ph;
    uint8_t notes[64];
};

static enum linux_form form_of(const struct vmlinux *f)
{
    struct linux_kernel k;
    struct problem p = {0};
    int fd = memfd_create("vmlinux", MFD_CLOEXEC);

    assert_int_equal(write(fd, f, sizeof *f), sizeof *f);
    assert_int_equal(linux_examine(fd, sizeof *f, &k, &p), MF_OK);
    close(fd);
    return k.form;
}

/* A vmlinux is told by its note, and notes that lie about their sizes hurt nobody. */
static void test_vmlinux(void **state)
{
    struct vmlinux f = {.eh = {.e_phoff = sizeof f.eh, .e_phentsize = sizeof f.ph, .e_phnum = 1},
                        .ph = {.p_type = PT_NOTE,
                               .p_offset = offsetof(struct vmlinux, notes),
                               .p_filesz = sizeof f.notes}};

    (void)state;
    memcpy(f.eh.e_ident, ELFMAG, SELFMAG);
    f.eh.e_ident[EI_CLASS] = ELFCLASS64;
    put(f.notes, 0, 4, 4); /* of Xen, then Linux's */
    memcpy(f.notes + 12, "Xen", 4);
    assert_int_equal(form_of(&f), LINUX_NOT);
    put(f.notes, 16, 6, 4);
    put(f.notes, 20, 4, 4);
    memcpy(f.notes + 28, "Linux", 6);
    assert_int_equal(form_of(&f), LINUX_VMLINUX);
    put(f.notes, 20, 0xffffffff, 4);
    assert_int_equal(form_of(&f), LINUX_NOT);
    put(f.notes, 20, 4, 4);
    f.ph.p_filesz = UINT64_MAX;
    assert_int_equal(form_of(&f), LINUX_NOT);
    f.eh.e_phoff = UINT64_MAX - 8;
    assert_int_equal(form_of(&f), LINUX_NOT);
}

static void line(const char *user, uint32_t max, const char *want, const char *missing)
{
    struct buf b = {0};

    assert_true(linux_cmdline(user, max, &b));
    assert_true(b.len <= max || b.len == strlen(user));
    if (want != NULL)
        assert_non_null(strstr(b.p, want));
    if (missing != NULL)
        assert_null(strstr(b.p, missing));
    assert_string_equal(b.p + b.len - strlen(user), user);
    buf_fini(&b);
}

/* Options are put in front of the user's, which win; too long a line loses options, not words. */
static void test_cmdline(void **state)
{
    char user[2001];

    (void)state;
    line("", 2047, "console=ttyS0 ", NULL);
    line("root=/dev/vda console=ttyS1", 2047, "panic=-1", "console=ttyS0");
    line("xconsole=1", 2047, "console=ttyS0", NULL);
    line("cryptomgr.notests", 2047, NULL, "cryptomgr.notests ");
    line("consoleblank=0 panic=10", 2047, "console=ttyS0", "panic=-1");
    memset(user, 'u', 2000);
    user[2000] = '\0';
    line(user, 2040, "console=ttyS0 ", "cryptomgr");
    line(user, 2000, NULL, "console");
}

/* Each option says why, and is left out for its own word. */
static void test_options(void **state)
{
    (void)state;
    for (const struct linux_option *o = linux_options(); o->word != NULL; o++) {
        assert_true(o->why[0] != '\0');
        assert_int_equal(strncmp(o->word, o->key, strlen(o->key)), 0);
        line(o->key, 2047, NULL, o->word[strlen(o->key)] == '=' ? o->word : NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packings), cmocka_unit_test(test_corrupt),
        cmocka_unit_test(test_bomb),     cmocka_unit_test(test_size_lies),
        cmocka_unit_test(test_headers),  cmocka_unit_test(test_unknown_packings),
        cmocka_unit_test(test_short),    cmocka_unit_test(test_setup),
        cmocka_unit_test(test_vmlinux),  cmocka_unit_test(test_cmdline),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
