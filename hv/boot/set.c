#include "hv/boot/set.h"

#include <stdlib.h>
#include <string.h>

/* Appends a string to the set's text. */
static const char *keep(struct boot_set *s, const char *from, uint32_t len)
{
    char *to = s->text + s->text_len;

    memcpy(to, from, len);
    to[len] = 0;
    s->text_len += len + 1;
    return to;
}

struct boot_set *boot_set_create(const char *text, uint32_t cmdline_len, unsigned nr_modules,
                                 const uint32_t *module_len)
{
    size_t bytes = (size_t)cmdline_len + 1;
    struct boot_set *s;

    for (unsigned i = 0; i < nr_modules; i++)
        bytes += (size_t)module_len[i] + 1;
    s = calloc(1, sizeof *s + bytes);
    if (!s)
        return NULL;
    s->cmdline = keep(s, text, cmdline_len);
    text += cmdline_len;
    for (unsigned i = 0; i < nr_modules; i++) {
        s->module_cmdline[i] = keep(s, text, module_len[i]);
        text += module_len[i];
    }
    s->nr_modules = nr_modules;
    return s;
}

void boot_set_destroy(struct boot_set *s, struct boot_cache *c)
{
    if (!s)
        return;
    boot_image_put(c, s->kernel);
    for (unsigned i = 0; i < s->nr_modules; i++)
        boot_image_put(c, s->module[i]);
    free(s);
}
