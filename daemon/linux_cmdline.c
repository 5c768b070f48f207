/* What is put in front of a Linux guest's command line. */
#include <string.h>

#include "daemon/linux.h"

static const struct linux_option options[] = {
    {"console=ttyS0", "console", "the only console there is"},
    {"panic=-1", "panic", "a kernel that panicked resets at once, so that its end is told"},
    {"reboot=k", "reboot", "by the keyboard controller, which is there: no other way is tried"},
    {"cryptomgr.notests", "cryptomgr.notests",
     "two thirds of a boot's instructions would be self-tests"},
    {"tsc=reliable", "tsc", "no watchdog that takes a busy host for a broken clock"},
    {NULL, NULL, NULL},
};

const struct linux_option *linux_options(void)
{
    return options;
}

/* The user's line has the word `key`, or one that begins with it and "=". */
static bool has_key(const char *line, const char *key)
{
    size_t n = strlen(key);

    for (const char *w = line; *w != '\0';) {
        w += strspn(w, " ");
        if (strncmp(w, key, n) == 0 && strchr(" =", w[n]) != NULL)
            return true;
        w += strcspn(w, " ");
    }
    return false;
}

bool linux_cmdline(const char *user, uint32_t max, struct buf *out)
{
    size_t room = max > strlen(user) ? max - strlen(user) : 0;

    for (const struct linux_option *o = options; o->word != NULL; o++) {
        size_t n = strlen(o->word) + 1;
        if (n > room || has_key(user, o->key))
            continue;
        room -= n;
        buf_str(out, o->word);
        buf_str(out, " ");
    }
    if (user[0] == '\0' && out->len > 0)
        out->p[--out->len] = '\0';
    buf_str(out, user);
    return !out->failed;
}
