/*
 * Kernel images in memory: read once from a file, checked whole, then loadable any number of times
 * without looking at the file again. Images are shared by file identity (device, inode, times,
 * size), so that ten thousand VMs of one kernel read it once. One thread uses a cache and the
 * references; loading from an image (boot/load.h) may happen on others meanwhile.
 */
#ifndef MAYFLY_BOOT_IMAGE_H
#define MAYFLY_BOOT_IMAGE_H

#include <stdbool.h>

#include "hv/boot/elf.h"
#include "hv/boot/map.h"

#define BOOT_CACHE_IDLE  16u                   /* unused images kept */
#define BOOT_CACHE_BYTES (UINT64_C(128) << 20) /* and their bytes, at most */
#define BOOT_READ_STEP   (UINT64_C(4) << 20)

/* What a file is read as. */
enum boot_file {
    BOOT_FILE_KERNEL, /* parsed: its segments are kept */
    BOOT_FILE_MODULE, /* all of its bytes, as one segment at 0 */
};

struct boot_image {
    enum boot_file file;
    struct boot_elf elf;
    uint8_t *data;                       /* the segments' file bytes, one behind the other */
    uint64_t data_at[BOOT_SEGMENTS_MAX]; /* where in `data` a segment begins */
    uint64_t mapped; /* bytes of a sealed file that `data` maps; 0: data is allocated */
    /* the cache's */
    struct boot_image *next;
    unsigned refs;
    bool racy; /* the file was so young that another write might not change its times */
    uint64_t dev, ino, size;
    int64_t mtime_ns, ctime_ns;
    uint64_t used_at; /* counts uses: the smallest goes first */
};

struct boot_cache {
    struct boot_image *first;
    uint64_t clock;
};

/* An image being read. */
struct boot_read {
    int fd; /* the caller's */
    struct boot_image *image;
    unsigned segment;
    uint64_t done; /* bytes of that segment */
};

void boot_cache_init(struct boot_cache *c);
void boot_cache_fini(struct boot_cache *c);

/*
 * begin parses and checks the file, also against the RAM; step reads at most BOOT_READ_STEP bytes
 * (MF_AGAIN: more). A memfd that is sealed against every change is mapped and not read. MF_OK from
 * either: *out is the image with one reference, the read is over; any error: over too. A read that
 * is neither is ended with boot_read_abort.
 * Errors: MF_E_IMAGE, MF_E_TOO_BIG, MF_E_RANGE, MF_E_IO with *e filled; its field is `kernel` or
 * `initrd`.
 */
enum mf_status boot_read_begin(struct boot_read *r, struct boot_cache *c, int fd,
                               enum boot_file what, const struct boot_ram *ram,
                               struct boot_image **out, struct mf_error *e);
enum mf_status boot_read_step(struct boot_read *r, struct boot_cache *c, struct boot_image **out,
                              struct mf_error *e);
void boot_read_abort(struct boot_read *r);

/* Takes NULL. */
void boot_image_put(struct boot_cache *c, struct boot_image *img);

#endif
