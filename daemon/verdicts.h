/*
 * What the conformance check said about plugin files, kept between starts of the daemon. A file is
 * known again by what cannot stay when it changes: device, inode, size and both times. Verdicts of
 * another checker program or another plugin ABI are forgotten.
 *
 * The file is private to its owner; one that anybody else could have written is not read. It holds
 * nothing that cannot be found out again, so a damaged one is as good as none.
 */
#ifndef MAYFLY_DAEMON_VERDICTS_H
#define MAYFLY_DAEMON_VERDICTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VERDICTS_MAX 256u /* the oldest go first */

struct verdict {
    bool ok;
    char rule[40]; /* the rule that is broken; empty when ok */
    char text[256];
    uint64_t seed;
};

/* Which bytes a name or descriptor stands for. Times in ns since the epoch. */
struct file_id {
    uint64_t dev, ino, size;
    int64_t mtime, ctime;
};

struct verdict_row {
    struct file_id file;
    struct verdict v;
};

struct verdicts {
    char *path; /* owned; NULL: kept in memory alone */
    struct file_id checker;
    struct verdict_row *row; /* the oldest first */
    size_t count;
};

/* False: errno. */
bool file_id_of(int fd, struct file_id *out);
bool file_id_same(const struct file_id *a, const struct file_id *b);

/*
 * Reads the file at `path`, which is taken over (malloc) and may be NULL. What is not sound in it
 * is as if it were not there.
 */
void verdicts_init(struct verdicts *v, char *path);
void verdicts_fini(struct verdicts *v);

/* From here on this program makes the verdicts; those of another are forgotten. */
void verdicts_by(struct verdicts *v, const struct file_id *checker);
const struct verdict *verdicts_find(const struct verdicts *v, const struct file_id *file);
/* Replaces an older one. Out of memory: it is not kept. */
void verdicts_put(struct verdicts *v, const struct file_id *file, const struct verdict *what);
/* Writes all, whole or not at all. False: errno. */
bool verdicts_save(const struct verdicts *v);

#endif
