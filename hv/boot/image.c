#include "hv/boot/image.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "hv/boot/plan.h"

#define RACY_NS INT64_C(2000000000)

void boot_cache_init(struct boot_cache *c)
{
    memset(c, 0, sizeof *c);
}

static void image_free(struct boot_image *img)
{
    if (img->mapped)
        munmap(img->data, img->mapped);
    else
        free(img->data);
    free(img);
}

void boot_cache_fini(struct boot_cache *c)
{
    struct boot_image *next;

    for (struct boot_image *i = c->first; i; i = next) {
        next = i->next;
        image_free(i);
    }
    c->first = NULL;
}

/* Unused images are kept up to two limits; the longest unused one goes first. */
static void trim(struct boot_cache *c)
{
    for (;;) {
        struct boot_image **oldest = NULL;
        uint64_t bytes = 0;
        unsigned n = 0;

        for (struct boot_image **p = &c->first; *p; p = &(*p)->next) {
            if ((*p)->refs)
                continue;
            n++;
            bytes += (*p)->elf.file_bytes;
            if (!oldest || (*p)->used_at < (*oldest)->used_at)
                oldest = p;
        }
        if (!oldest || (n <= BOOT_CACHE_IDLE && bytes <= BOOT_CACHE_BYTES))
            return;
        struct boot_image *gone = *oldest;
        *oldest = gone->next;
        image_free(gone);
    }
}

void boot_image_put(struct boot_cache *c, struct boot_image *img)
{
    if (!img || --img->refs)
        return;
    if (!img->racy) {
        trim(c);
        return;
    }
    struct boot_image **p = &c->first;
    while (*p != img)
        p = &(*p)->next;
    *p = img->next;
    image_free(img);
}

static int64_t stamp(const struct timespec *t)
{
    return (int64_t)t->tv_sec * INT64_C(1000000000) + t->tv_nsec;
}

static struct boot_image *lookup(struct boot_cache *c, const struct stat *st, enum boot_file what)
{
    for (struct boot_image *i = c->first; i; i = i->next)
        if (!i->racy && i->file == what && i->dev == st->st_dev && i->ino == st->st_ino &&
            i->size == (uint64_t)st->st_size && i->mtime_ns == stamp(&st->st_mtim) &&
            i->ctime_ns == stamp(&st->st_ctim))
            return i;
    return NULL;
}

static int64_t source_read(void *arg, uint64_t offset, void *buf, uint64_t n)
{
    int fd = *(int *)arg;
    uint64_t have = 0;

    while (have < n) {
        ssize_t k = pread(fd, (char *)buf + have, n - have, (off_t)(offset + have));

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        have += (uint64_t)k;
    }
    return (int64_t)have;
}

static const char *field_of(enum boot_file what)
{
    return what == BOOT_FILE_KERNEL ? "kernel" : "initrd";
}

/* Nobody can change the file any more: true of sealed memfds only. */
static bool is_sealed(int fd)
{
    const int all = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & all) == all;
}

static struct boot_image *image_new(const struct stat *st, enum boot_file what, bool sealed)
{
    struct boot_image *img = calloc(1, sizeof *img);
    struct timespec now;
    int64_t newest;

    if (!img)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    img->dev = st->st_dev;
    img->ino = st->st_ino;
    img->size = (uint64_t)st->st_size;
    img->mtime_ns = stamp(&st->st_mtim);
    img->ctime_ns = stamp(&st->st_ctim);
    newest = img->mtime_ns > img->ctime_ns ? img->mtime_ns : img->ctime_ns;
    img->racy = !sealed && stamp(&now) - newest < RACY_NS;
    img->file = what;
    return img;
}

static enum mf_status take(struct boot_cache *c, struct boot_image *img, struct boot_image **out)
{
    img->refs++;
    img->used_at = ++c->clock;
    *out = img;
    return MF_OK;
}

/* Space for the file bytes; pages of it are committed as they are read. */
static enum mf_status reserve_data(struct boot_image *img, struct mf_error *e)
{
    uint64_t at = 0;

    for (unsigned i = 0; i < img->elf.nr_segments; i++) {
        img->data_at[i] = at;
        at += img->elf.segments[i].filesz;
    }
    img->data = malloc(at ? at : 1);
    if (!img->data)
        return boot_fail(e, MF_E_IO, field_of(img->file),
                         "no host memory for an image of %" PRIu64 " bytes", at);
    return MF_OK;
}

static enum mf_status map_data(struct boot_image *img, int fd, struct mf_error *e)
{
    void *p = mmap(NULL, img->size, PROT_READ, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return boot_fail(e, MF_E_IO, field_of(img->file), "the image cannot be mapped: %s",
                         strerror(errno));
    img->data = p;
    img->mapped = img->size;
    for (unsigned i = 0; i < img->elf.nr_segments; i++)
        img->data_at[i] = img->elf.segments[i].offset;
    return MF_OK;
}

static enum mf_status look_at(int fd, enum boot_file what, struct stat *s, struct mf_error *e)
{
    if (fstat(fd, s))
        return boot_fail(e, MF_E_IO, field_of(what), "the image cannot be looked at: %s",
                         strerror(errno));
    if (!S_ISREG(s->st_mode))
        return boot_fail(e, MF_E_IMAGE, field_of(what), "the image is not a regular file");
    return MF_OK;
}

/* A module has no form; it only has to be there and to fit. */
static enum mf_status check_module(const struct boot_image *img, const struct boot_ram *ram,
                                   struct mf_error *e)
{
    if (!img->size)
        return boot_fail(e, MF_E_IMAGE, "initrd", "the file is empty");
    if (img->size > ram->low)
        return boot_fail(e, MF_E_RANGE, "initrd",
                         "%" PRIu64 " bytes are more than the guest's %" PRIu64
                         " bytes of RAM below 4 GiB",
                         img->size, ram->low);
    return MF_OK;
}

static enum mf_status examine(struct boot_image *img, int *fd, const struct boot_ram *ram,
                              struct mf_error *e)
{
    struct boot_source src = {.read = source_read, .arg = fd, .size = img->size};
    enum mf_status st;

    if (img->file == BOOT_FILE_MODULE) {
        st = check_module(img, ram, e);
        img->elf.nr_segments = 1;
        img->elf.segments[0] = (struct boot_segment){0, img->size, 0, img->size};
        img->elf.file_bytes = img->size;
        return st;
    }
    st = boot_elf_parse(&src, &img->elf, e);
    return st ? st : boot_plan_kernel(img, ram, e);
}

enum mf_status boot_read_begin(struct boot_read *r, struct boot_cache *c, int fd,
                               enum boot_file what, const struct boot_ram *ram,
                               struct boot_image **out, struct mf_error *e)
{
    bool sealed = is_sealed(fd);
    struct boot_image *img;
    struct stat s;
    enum mf_status st = look_at(fd, what, &s, e);

    memset(r, 0, sizeof *r);
    r->fd = fd;
    if (st)
        return st;
    img = lookup(c, &s, what);
    if (img) {
        st = what == BOOT_FILE_KERNEL ? boot_plan_kernel(img, ram, e) : check_module(img, ram, e);
        return st ? st : take(c, img, out);
    }
    img = image_new(&s, what, sealed);
    if (!img)
        return boot_fail(e, MF_E_IO, field_of(what), "no host memory for another image");
    st = examine(img, &r->fd, ram, e);
    if (!st)
        st = sealed ? map_data(img, fd, e) : reserve_data(img, e);
    if (st) {
        image_free(img);
        return st;
    }
    r->image = img;
    if (sealed)
        r->segment = img->elf.nr_segments; /* nothing to read */
    return boot_read_step(r, c, out, e);
}

enum mf_status boot_read_step(struct boot_read *r, struct boot_cache *c, struct boot_image **out,
                              struct mf_error *e)
{
    struct boot_image *img = r->image;
    const char *field = field_of(img->file);
    uint64_t budget = BOOT_READ_STEP;

    while (r->segment < img->elf.nr_segments) {
        const struct boot_segment *s = &img->elf.segments[r->segment];
        uint64_t n = s->filesz - r->done < budget ? s->filesz - r->done : budget;

        if (source_read(&r->fd, s->offset + r->done, img->data + img->data_at[r->segment] + r->done,
                        n) != (int64_t)n) {
            boot_read_abort(r);
            return boot_fail(e, MF_E_IMAGE, field, "the image shrank while it was read");
        }
        r->done += n;
        budget -= n;
        if (r->done < s->filesz)
            return MF_AGAIN;
        r->segment++;
        r->done = 0;
    }
    r->image = NULL;
    img->next = c->first;
    c->first = img;
    return take(c, img, out);
}

void boot_read_abort(struct boot_read *r)
{
    if (r->image)
        image_free(r->image);
    r->image = NULL;
}
