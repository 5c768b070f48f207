/*
 * Linux kernels, as far as the daemon looks into them: a bzImage's setup header, and whether an ELF
 * file is a vmlinux. Hostile input; nothing is trusted to lie inside the file.
 */
#ifndef MAYFLY_DAEMON_LINUX_H
#define MAYFLY_DAEMON_LINUX_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/buf.h"
#include "daemon/problem.h"
#include "proto/hypercall.h"

enum linux_form {
    LINUX_NOT,     /* some other kernel, or none: the core will say */
    LINUX_VMLINUX, /* the core takes it as it is */
    LINUX_BZIMAGE, /* its payload must be unpacked */
};

struct linux_kernel {
    enum linux_form form;
    uint32_t cmdline_max; /* bytes, without the zero */
    /* of a bzImage: */
    uint64_t payload_at, payload_len; /* in the file; at least 5 bytes, inside it */
    uint32_t unpacked_max;            /* init_size: what it needs to run, and to unpack into */
    uint32_t setup_len;
    uint8_t setup[MF_SETUP_MAX];
};

/*
 * `fd` has `size` bytes. MF_E_IMAGE, field `kernel`: a setup header that cannot be used: truncated,
 * an old protocol, a 32-bit kernel, a zImage. MF_E_IO.
 */
enum mf_status linux_examine(int fd, uint64_t size, struct linux_kernel *k, struct problem *p);

/*
 * Unpacks the payload into a memfd, sealed against changes: *out. More than unpacked_max is not
 * unpacked: whoever calls has compared that with the guest's RAM. MF_E_IMAGE with the field
 * `kernel` (corrupt, truncated, too large, packed in a way that is not known), MF_E_IO. Takes long:
 * not for the loop's thread. Uses nothing but its arguments.
 */
enum mf_status linux_unpack(int fd, const struct linux_kernel *k, int *out, struct problem *p);

/*
 * The command line of a Linux guest: the options of linux_options() that `user` does not set, then
 * `user`. Options that would make it longer than `max` bytes are left out. False: no memory.
 */
bool linux_cmdline(const char *user, uint32_t max, struct buf *out);

struct linux_option {
    const char *word; /* as it is added */
    const char *key;  /* left out where the user has this word, or this and "=" */
    const char *why;  /* for people */
};
/* The options that are added; ends with a NULL word. */
const struct linux_option *linux_options(void);

#endif
