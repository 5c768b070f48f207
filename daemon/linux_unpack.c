/* A bzImage's payload, unpacked by libarchive: its filters without any archive format. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "daemon/linux.h"

#define CHUNK 65536u
#define HOLE  4096u

/* Packed by: how its first bytes tell. */
struct packing {
    const char *name;
    const char *magic;
    size_t len;
    int (*filter)(struct archive *); /* NULL: not one of ours */
    bool has_trailer;                /* the build appended the size, which the format lacks */
};

static const struct packing packings[] = {
    {"gzip", "\x1f\x8b", 2, archive_read_support_filter_gzip, false},
    {"bzip2", "BZh", 3, archive_read_support_filter_bzip2, true},
    {"LZMA", "\x5d\x00\x00", 3, archive_read_support_filter_lzma, true},
    {"xz", "\xfd\x37zXZ\x00", 6, archive_read_support_filter_xz, true},
    {"LZ4", "\x02\x21\x4c\x18", 4, archive_read_support_filter_lz4, true},
    {"zstd", "\x28\xb5\x2f\xfd", 4, archive_read_support_filter_zstd, true},
    {"LZO", "\x89LZO", 4, NULL, true},
    {"none",
     "\x7f"
     "ELF",
     4, archive_read_support_filter_none, false},
};

/* What is being unpacked: a piece of a file. */
struct payload {
    int fd;
    uint64_t at, left;
    uLong crc; /* of what came out */
    char buf[CHUNK];
};

static la_ssize_t read_piece(struct archive *a, void *arg, const void **buf)
{
    struct payload *f = arg;
    size_t want = f->left < CHUNK ? (size_t)f->left : CHUNK;
    ssize_t n;

    do
        n = pread(f->fd, f->buf, want, (off_t)f->at);
    while (n < 0 && errno == EINTR);
    if (n < 0 || (n == 0 && want != 0)) {
        archive_set_error(a, n < 0 ? errno : EIO, "the file cannot be read");
        return ARCHIVE_FATAL;
    }
    f->at += (uint64_t)n;
    f->left -= (uint64_t)n;
    *buf = f->buf;
    return n;
}

static bool is_zero(const char *b, size_t n)
{
    return b[0] == 0 && memcmp(b, b + 1, n - 1) == 0;
}

/* Pieces that are zero become holes, which take no memory: .bss and what aligns segments. */
static bool write_at(int fd, const char *b, size_t n, uint64_t at)
{
    while (n > 0) {
        size_t piece = HOLE - at % HOLE;
        ssize_t k;

        if (piece > n)
            piece = n;
        k = is_zero(b, piece) ? (ssize_t)piece : pwrite(fd, b, piece, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return false;
        b += k;
        at += (uint64_t)k;
        n -= (size_t)k;
    }
    return true;
}

static enum mf_status corrupt(struct archive *a, const struct packing *pack, struct problem *p)
{
    const char *why = archive_error_string(a);

    return problem_set(p, MF_E_IMAGE, "kernel", "the %s payload is corrupt or truncated: %.120s",
                       pack->name, why == NULL ? "it cannot be unpacked" : why);
}

/* Everything the archive has, at most `cap` bytes, into `out`. */
static enum mf_status copy_out(struct archive *a, struct payload *f, const struct packing *pack,
                               int out, uint64_t cap, uint64_t *total, struct problem *p)
{
    char *b = malloc(CHUNK);
    la_ssize_t n = 0;

    if (b == NULL)
        return problem_nomem(p);
    for (*total = 0; p->status == MF_OK && (n = archive_read_data(a, b, CHUNK)) > 0;) {
        uint64_t at = *total;
        *total += (uint64_t)n;
        if (pack->filter == archive_read_support_filter_gzip)
            f->crc = crc32(f->crc, (const Bytef *)b, (uInt)n);
        if (*total > cap)
            problem_set(p, MF_E_IMAGE, "kernel",
                        "the payload unpacks to more than %" PRIu64
                        " bytes, all that the setup header allows",
                        cap);
        else if (!write_at(out, b, (size_t)n, at))
            problem_set(p, MF_E_IO, "kernel", "the kernel cannot be unpacked: %s", strerror(errno));
    }
    free(b);
    if (p->status == MF_OK && n < 0)
        corrupt(a, pack, p);
    if (p->status == MF_OK && ftruncate(out, (off_t)*total) != 0)
        problem_set(p, MF_E_IO, "kernel", "the kernel cannot be unpacked: %s", strerror(errno));
    return p->status;
}

static enum mf_status unpack(struct payload *f, const struct packing *pack, int out, uint64_t cap,
                             uint64_t *total, struct problem *p)
{
    struct archive *a = archive_read_new();
    struct archive_entry *entry;

    if (a == NULL)
        return problem_nomem(p);
    if (archive_read_support_format_raw(a) != ARCHIVE_OK || pack->filter(a) != ARCHIVE_OK)
        problem_set(p, MF_E_IMAGE, "kernel",
                    "the payload is packed by %s, which this build cannot unpack", pack->name);
    else if (archive_read_open(a, f, NULL, read_piece, NULL) != ARCHIVE_OK ||
             archive_read_next_header(a, &entry) != ARCHIVE_OK)
        corrupt(a, pack, p);
    else
        copy_out(a, f, pack, out, cap, total, p);
    archive_read_free(a);
    return p->status;
}

static const struct packing *find_packing(const uint8_t *head)
{
    for (size_t i = 0; i < sizeof packings / sizeof packings[0]; i++)
        if (memcmp(head, packings[i].magic, packings[i].len) == 0)
            return &packings[i];
    return NULL;
}

/* The payload's first bytes tell how it is packed, its last four how large it was. */
static const struct packing *examine(int fd, const struct linux_kernel *k, uint32_t *size,
                                     struct problem *p)
{
    uint8_t head[8] = {0}, tail[4];
    size_t n = k->payload_len < sizeof head ? (size_t)k->payload_len : sizeof head;

    if (pread(fd, head, n, (off_t)k->payload_at) != (ssize_t)n ||
        pread(fd, tail, 4, (off_t)(k->payload_at + k->payload_len - 4)) != 4) {
        problem_set(p, MF_E_IMAGE, "kernel", "the kernel file shrank while it was read");
        return NULL;
    }
    memcpy(size, tail, 4);
    const struct packing *pack = find_packing(head);
    if (pack == NULL)
        problem_set(p, MF_E_IMAGE, "kernel",
                    "the payload begins with %02x %02x %02x %02x: that is no packing that is known",
                    head[0], head[1], head[2], head[3]);
    else if (pack->filter == NULL)
        problem_set(
            p, MF_E_IMAGE, "kernel",
            "the payload is packed by %s: gzip, bzip2, LZMA, xz, LZ4 and zstd are supported",
            pack->name);
    return p->status == MF_OK ? pack : NULL;
}

/* libarchive leaves gzip's checksum, which stands before the size, to others. */
static enum mf_status check_gzip(int fd, const struct linux_kernel *k, uLong crc, struct problem *p)
{
    uint32_t want = 0;

    if (k->payload_len < 8 ||
        pread(fd, &want, 4, (off_t)(k->payload_at + k->payload_len - 8)) != 4 || want != crc)
        problem_set(p, MF_E_IMAGE, "kernel",
                    "the gzip payload is corrupt or truncated: its checksum does not match");
    return p->status;
}

static enum mf_status unpack_to(int out, int fd, const struct linux_kernel *k, struct problem *p)
{
    uint64_t cap = k->unpacked_max, total = 0;
    uint32_t size = 0;
    const struct packing *pack = examine(fd, k, &size, p);

    if (pack == NULL)
        return p->status;
    /* Packings that carry a size are refused before a byte of them is unpacked. */
    if (strcmp(pack->name, "none") != 0 && size > cap)
        return problem_set(p, MF_E_IMAGE, "kernel",
                           "the payload unpacks to %" PRIu32
                           " bytes, the setup header allows %" PRIu32,
                           size, k->unpacked_max);
    struct payload *f = malloc(sizeof *f);
    if (f == NULL)
        return problem_nomem(p);
    f->fd = fd;
    f->at = k->payload_at;
    f->left = k->payload_len - (pack->has_trailer ? 4 : 0);
    f->crc = crc32(0, Z_NULL, 0);
    if (unpack(f, pack, out, cap, &total, p) == MF_OK &&
        pack->filter == archive_read_support_filter_gzip)
        check_gzip(fd, k, f->crc, p);
    free(f);
    if (p->status == MF_OK && strcmp(pack->name, "none") != 0 && total != size)
        problem_set(p, MF_E_IMAGE, "kernel",
                    "the %s payload is corrupt or truncated: %" PRIu64 " bytes came out of it, its "
                    "end says %" PRIu32,
                    pack->name, total, size);
    return p->status;
}

enum mf_status linux_unpack(int fd, const struct linux_kernel *k, int *out, struct problem *p)
{
    *out = memfd_create("vmlinux", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*out < 0)
        return problem_set(p, MF_E_IO, "kernel", "the kernel cannot be unpacked: %s",
                           strerror(errno));
    unpack_to(*out, fd, k, p);
    if (p->status == MF_OK &&
        fcntl(*out, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
        problem_set(p, MF_E_IO, "kernel", "the kernel cannot be unpacked: %s", strerror(errno));
    if (p->status != MF_OK) {
        close(*out);
        *out = -1;
    }
    return p->status;
}
