#include <elf.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "hv/boot/load.h"

#define MIB (UINT64_C(1) << 20)

static struct boot_cache cache;
static struct mf_error err;

static int setup(void **state)
{
    (void)state;
    boot_cache_init(&cache);
    memset(&err, 0, sizeof err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    boot_cache_fini(&cache);
    return 0;
}

struct file {
    Elf64_Ehdr eh;
    Elf64_Phdr ph[2];
    uint8_t code[64];
};

/* One segment at `first` of `filler` + 64 bytes in the file and `bss` more in memory. */
static int make(uint64_t first, uint64_t filler, uint64_t bss)
{
    struct file f;
    int fd = memfd_create("image", MFD_CLOEXEC);

    memset(&f, 0, sizeof f);
    memcpy(f.eh.e_ident, ELFMAG, SELFMAG);
    f.eh.e_ident[EI_CLASS] = ELFCLASS64;
    f.eh.e_ident[EI_DATA] = ELFDATA2LSB;
    f.eh.e_type = ET_EXEC;
    f.eh.e_machine = EM_X86_64;
    f.eh.e_phoff = offsetof(struct file, ph);
    f.eh.e_phnum = 1;
    f.eh.e_phentsize = sizeof f.ph[0];
    f.eh.e_entry = first;
    f.ph[0] = (Elf64_Phdr){.p_type = PT_LOAD,
                           .p_offset = offsetof(struct file, code),
                           .p_paddr = first,
                           .p_vaddr = first,
                           .p_filesz = sizeof f.code + filler,
                           .p_memsz = sizeof f.code + filler + bss};
    memset(f.code, 0xab, sizeof f.code);
    assert_int_equal(write(fd, &f, sizeof f), sizeof f);
    assert_int_equal(ftruncate(fd, (off_t)(sizeof f + filler)), 0);
    return fd;
}

static void age(int fd)
{
    struct timespec t[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

    assert_int_equal(futimens(fd, t), 0);
}

static enum mf_status get(int fd, uint64_t ram_bytes, struct boot_image **img)
{
    struct boot_ram ram = boot_ram_layout(ram_bytes);
    struct boot_read r;
    enum mf_status st = boot_read_begin(&r, &cache, fd, BOOT_FILE_KERNEL, &ram, img, &err);

    while (st == MF_AGAIN)
        st = boot_read_step(&r, &cache, img, &err);
    return st;
}

/* Protects: RAM below 3 GiB lies at zero, the rest from 4 GiB on. */
static void ram_layout(void **state)
{
    struct boot_ram r = boot_ram_layout(UINT64_C(3) << 30);

    (void)state;
    assert_true(r.low == UINT64_C(3) << 30 && r.high == 0);
    r = boot_ram_layout((UINT64_C(3) << 30) + 4096);
    assert_true(r.low == UINT64_C(3) << 30 && r.high == 4096);
    r = boot_ram_layout(65536);
    assert_true(r.low == 65536 && r.high == 0);
}

/* Protects: a young file is not shared: a write that leaves its times alone would go unseen. */
static void young_files_are_read_again(void **state)
{
    struct boot_image *a, *b;
    int fd = make(0x10000, 0, 0);

    (void)state;
    assert_int_equal(get(fd, MIB, &a), MF_OK);
    assert_int_equal(get(fd, MIB, &b), MF_OK);
    assert_ptr_not_equal(a, b);
    assert_int_equal(b->data[0], 0xab);
    boot_image_put(&cache, a);
    boot_image_put(&cache, b);
    assert_null(cache.first);
    close(fd);
}

/* Protects: the number of unused images that are kept is bounded; those in use stay. */
static void cache_is_bounded(void **state)
{
    struct boot_image *img[40];

    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        int fd = make(0x10000, 0, 0);

        assert_int_equal(get(fd, MIB, &img[i]), MF_OK);
        img[i]->racy = false; /* as if the file were old */
        close(fd);
    }
    for (unsigned i = 1; i < 40; i++)
        boot_image_put(&cache, img[i]);
    unsigned n = 0;
    for (struct boot_image *i = cache.first; i; i = i->next)
        n++;
    assert_int_equal(n, 1 + BOOT_CACHE_IDLE);
    assert_int_equal(img[0]->data[0], 0xab);
    boot_image_put(&cache, img[0]);
}

/* Protects: an old file is read once, whoever asks; a changed one is another image. */
static void old_files_are_shared(void **state)
{
    struct boot_image *a, *b, *d;
    struct stat st;
    int fd = make(0x10000, 0, 0);

    (void)state;
    assert_int_equal(get(fd, MIB, &a), MF_OK);
    assert_int_equal(fstat(fd, &st), 0);
    a->racy = false;
    assert_int_equal(get(fd, MIB, &b), MF_OK);
    assert_ptr_equal(a, b);
    age(fd);
    assert_int_equal(get(fd, MIB, &d), MF_OK);
    assert_ptr_not_equal(a, d);
    boot_image_put(&cache, a);
    boot_image_put(&cache, b);
    boot_image_put(&cache, d);
    close(fd);
}

/* Protects: a big image is read in several bounded steps, whole. */
static void big_image_in_steps(void **state)
{
    struct boot_ram ram = boot_ram_layout(64 * MIB);
    struct boot_image *img;
    struct boot_read r;
    unsigned steps = 0;
    int fd = make(MIB, 3 * BOOT_READ_STEP, 0);
    enum mf_status st = boot_read_begin(&r, &cache, fd, BOOT_FILE_KERNEL, &ram, &img, &err);

    (void)state;
    while (st == MF_AGAIN) {
        st = boot_read_step(&r, &cache, &img, &err);
        steps++;
    }
    assert_int_equal(st, MF_OK);
    assert_int_equal(steps, 3);
    boot_image_put(&cache, img);
    close(fd);
}

/* Protects: a file that shrinks while it is read is an error, not a crash. */
static void shrinking_file(void **state)
{
    struct boot_ram ram = boot_ram_layout(64 * MIB);
    struct boot_image *img = NULL;
    struct boot_read r;
    int fd = make(MIB, 3 * BOOT_READ_STEP, 0);

    (void)state;
    assert_int_equal(boot_read_begin(&r, &cache, fd, BOOT_FILE_KERNEL, &ram, &img, &err), MF_AGAIN);
    assert_int_equal(ftruncate(fd, 8192), 0);
    assert_int_equal(boot_read_step(&r, &cache, &img, &err), MF_E_IMAGE);
    assert_non_null(strstr(err.text, "shrank"));
    close(fd);
}

/* Protects: the same image fits one VM and not another, by the size of its RAM. */
static void checked_against_ram(void **state)
{
    struct boot_image *img;
    int fd = make(MIB, 0, MIB);

    (void)state;
    assert_int_equal(get(fd, MIB, &img), MF_E_IMAGE);
    assert_non_null(strstr(err.text, "outside"));
    assert_int_equal(get(fd, 2 * MIB, &img), MF_E_IMAGE);
    assert_int_equal(get(fd, 2 * MIB + 65536, &img), MF_OK);
    boot_image_put(&cache, img);
    close(fd);
}

/* Protects: a segment above 3 GiB of RAM lies in the hole, one above 4 GiB does not. */
static void the_hole(void **state)
{
    struct boot_image *img;
    int fd = make(UINT64_C(3) << 30, 0, 0);

    (void)state;
    assert_int_equal(get(fd, UINT64_C(8) << 30, &img), MF_E_IMAGE);
    close(fd);
    fd = make(UINT64_C(5) << 30, 0, 0);
    assert_int_equal(get(fd, UINT64_C(8) << 30, &img), MF_OK);
    boot_image_put(&cache, img);
    close(fd);
}

/* Protects: the smallest RAM holds an image and its boot data; one that leaves no room is refused.
 */
static void room_for_boot_data(void **state)
{
    struct boot_image *img;
    int fd = make(0x8000, 0, 0x1000);

    (void)state;
    assert_int_equal(get(fd, MF_RAM_MIN, &img), MF_OK);
    boot_image_put(&cache, img);
    close(fd);
    fd = make(0x1000, 0, MF_RAM_MIN - 0x1000 - 64);
    assert_int_equal(get(fd, MF_RAM_MIN, &img), MF_E_IMAGE);
    assert_non_null(strstr(err.text, "no room"));
    close(fd);
}

/* Protects: what is no regular file is refused. */
static void other_refusals(void **state)
{
    struct boot_image *img;
    int fd = open("/dev/zero", O_RDONLY);

    (void)state;
    assert_int_equal(get(fd, MIB, &img), MF_E_IMAGE);
    close(fd);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(ram_layout),           T(young_files_are_read_again),
        T(old_files_are_shared), T(cache_is_bounded),
        T(big_image_in_steps),   T(shrinking_file),
        T(checked_against_ram),  T(the_hole),
        T(room_for_boot_data),   T(other_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
