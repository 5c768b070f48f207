#include "daemon/linux.h"

#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* The setup header, by offsets in the file: Documentation/arch/x86/boot.rst. */
#define AT_SETUP_SECTS 0x1f1u
#define AT_BOOT_FLAG   0x1feu
#define AT_HEADER_LEN  0x201u /* of what follows 0x202 */
#define AT_MAGIC       0x202u
#define AT_VERSION     0x206u
#define AT_LOADFLAGS   0x211u
#define AT_XLOADFLAGS  0x236u
#define AT_CMDLINE_MAX 0x238u
#define AT_PAYLOAD     0x248u
#define AT_PAYLOAD_LEN 0x24cu
#define AT_INIT_SIZE   0x260u
#define HEADER_BYTES   0x290u

#define BOOT_FLAG     0xaa55u
#define MAGIC         "HdrS"
#define VERSION_MIN   0x20cu /* the first with xloadflags: Linux 3.8 */
#define LOADED_HIGH   0x01u
#define XLF_KERNEL_64 0x01u
#define SECTOR        512u
#define SECTS_DEFAULT 4u
#define PHNUM_MAX     64u
#define NOTES_MAX     65536u

static uint32_t get(const uint8_t *h, unsigned at, unsigned bytes)
{
    uint32_t v = 0;

    memcpy(&v, h + at, bytes);
    return v;
}

/* As many bytes as there are, up to n; -1 on an error. */
static ssize_t read_at(int fd, void *buf, size_t n, uint64_t at)
{
    size_t have = 0;

    while (have < n) {
        ssize_t k = pread(fd, (char *)buf + have, n - have, (off_t)(at + have));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        have += (size_t)k;
    }
    return (ssize_t)have;
}

static enum mf_status bad(struct problem *p, const char *why)
{
    return problem_set(p, MF_E_IMAGE, "kernel", "%s", why);
}

/* ---- bzImage */

static enum mf_status check_protocol(const uint8_t *h, struct problem *p)
{
    uint32_t version = get(h, AT_VERSION, 2);

    if (memcmp(h + AT_MAGIC, MAGIC, 4) != 0)
        return bad(p, "the file is a boot sector without a Linux setup header: a kernel older than "
                      "Linux 1.3.73, or no kernel");
    if (version < VERSION_MIN)
        return problem_set(p, MF_E_IMAGE, "kernel",
                           "the setup header is of boot protocol %" PRIu32 ".%02" PRIu32
                           ": at least 2.12 (Linux 3.8) is needed",
                           version >> 8, version & 0xff);
    if (!(h[AT_XLOADFLAGS] & XLF_KERNEL_64))
        return bad(p, "this is a 32-bit Linux kernel (its xloadflags name no 64-bit entry): 64-bit "
                      "ones are supported");
    if (!(h[AT_LOADFLAGS] & LOADED_HIGH))
        return bad(p, "this is a zImage, which loads low: a bzImage is needed");
    return MF_OK;
}

static enum mf_status take_payload(const uint8_t *h, uint64_t size, struct linux_kernel *k,
                                   struct problem *p)
{
    uint64_t sects = h[AT_SETUP_SECTS] != 0 ? h[AT_SETUP_SECTS] : SECTS_DEFAULT;

    k->payload_at = (sects + 1) * SECTOR + get(h, AT_PAYLOAD, 4);
    k->payload_len = get(h, AT_PAYLOAD_LEN, 4);
    if (k->payload_at > size || k->payload_len > size - k->payload_at)
        return problem_set(p, MF_E_IMAGE, "kernel",
                           "the bzImage is truncated: its payload ends at %" PRIu64
                           ", the file at %" PRIu64,
                           k->payload_at + k->payload_len, size);
    if (k->payload_len < 5)
        return bad(p, "the setup header names no payload");
    k->unpacked_max = get(h, AT_INIT_SIZE, 4);
    if (k->unpacked_max > MF_IMAGE_MAX)
        return problem_set(p, MF_E_IMAGE, "kernel",
                           "the setup header's init_size is %" PRIu32
                           " bytes, the limit is %" PRIu64,
                           k->unpacked_max, MF_IMAGE_MAX);
    return MF_OK;
}

static enum mf_status take_bzimage(const uint8_t *h, uint64_t size, struct linux_kernel *k,
                                   struct problem *p)
{
    uint32_t len = AT_MAGIC + h[AT_HEADER_LEN] - MF_SETUP_OFFSET;

    if (size < HEADER_BYTES)
        return problem_set(p, MF_E_IMAGE, "kernel",
                           "the bzImage is truncated: %" PRIu64 " bytes hold no setup header",
                           size);
    if (check_protocol(h, p) != MF_OK || take_payload(h, size, k, p) != MF_OK)
        return p->status;
    k->form = LINUX_BZIMAGE;
    k->cmdline_max = get(h, AT_CMDLINE_MAX, 4);
    k->setup_len = len < MF_SETUP_MAX ? len : MF_SETUP_MAX;
    memcpy(k->setup, h + MF_SETUP_OFFSET, k->setup_len);
    return MF_OK;
}

/* ---- vmlinux */

/* A note segment has one of owner "Linux". What is malformed ends the search. */
static bool has_note(const uint8_t *b, size_t n)
{
    for (size_t at = 0; n - at >= 12;) {
        uint64_t name = get(b + at, 0, 4), desc = get(b + at, 4, 4);
        uint64_t next = 12 + ((name + 3) & ~UINT64_C(3)) + ((desc + 3) & ~UINT64_C(3));
        if (next > n - at)
            return false;
        if (name == 6 && memcmp(b + at + 12, "Linux", 6) == 0)
            return true;
        at += next;
    }
    return false;
}

static bool is_vmlinux(int fd, const uint8_t *head)
{
    static uint8_t notes[NOTES_MAX]; /* the loop's thread only */
    Elf64_Phdr ph[PHNUM_MAX];
    Elf64_Ehdr eh;

    memcpy(&eh, head, sizeof eh);
    if (memcmp(eh.e_ident, ELFMAG, SELFMAG) != 0 || eh.e_ident[EI_CLASS] != ELFCLASS64 ||
        eh.e_phentsize != sizeof ph[0] || eh.e_phnum > PHNUM_MAX || eh.e_phoff > INT64_MAX / 2)
        return false;
    size_t bytes = eh.e_phnum * sizeof ph[0];
    if (read_at(fd, ph, bytes, eh.e_phoff) != (ssize_t)bytes)
        return false;
    for (unsigned i = 0; i < eh.e_phnum; i++) {
        size_t n = ph[i].p_filesz < NOTES_MAX ? (size_t)ph[i].p_filesz : NOTES_MAX;
        if (ph[i].p_type == PT_NOTE && ph[i].p_offset < INT64_MAX / 2 &&
            read_at(fd, notes, n, ph[i].p_offset) == (ssize_t)n && has_note(notes, n))
            return true;
    }
    return false;
}

enum mf_status linux_examine(int fd, uint64_t size, struct linux_kernel *k, struct problem *p)
{
    uint8_t head[HEADER_BYTES] = {0};

    *k = (struct linux_kernel){.form = LINUX_NOT};
    if (read_at(fd, head, sizeof head, 0) < 0)
        return problem_set(p, MF_E_IO, "kernel", "the kernel cannot be read: %s", strerror(errno));
    if (is_vmlinux(fd, head)) {
        k->form = LINUX_VMLINUX;
        k->cmdline_max = MF_CMDLINE_MAX - 1;
        return MF_OK;
    }
    if (memcmp(head, ELFMAG, SELFMAG) == 0 || get(head, AT_BOOT_FLAG, 2) != BOOT_FLAG)
        return MF_OK;
    return take_bzimage(head, size, k, p);
}
