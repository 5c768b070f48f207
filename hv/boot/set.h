/*
 * What a VM boots from: its kernel image, modules, command lines, and for Linux the setup header of
 * the file that the image was unpacked from.
 */
#ifndef MAYFLY_BOOT_SET_H
#define MAYFLY_BOOT_SET_H

#include "hv/boot/image.h"

struct boot_set {
    struct boot_image *kernel; /* one reference, as on each module */
    struct boot_image *module[MF_MODULES_MAX];
    unsigned nr_modules;
    const char *cmdline; /* zero terminated, below MF_CMDLINE_MAX, in `text` */
    const char *module_cmdline[MF_MODULES_MAX];
    uint32_t setup_len;          /* bytes of `setup`; 0: none */
    uint8_t setup[MF_SETUP_MAX]; /* as in a bzImage from MF_SETUP_OFFSET on */
    uint32_t text_len;
    char text[];
};

/*
 * A set without images. `text` is the command line and behind it the modules' as strings without a
 * zero, `module_len` their lengths. NULL: no memory. Sizes are the caller's to check.
 */
struct boot_set *boot_set_create(const char *text, uint32_t cmdline_len, unsigned nr_modules,
                                 const uint32_t *module_len);
/* Puts the images that it has. Takes NULL. */
void boot_set_destroy(struct boot_set *s, struct boot_cache *c);

#endif
