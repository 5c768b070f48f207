/* Definitions on disk: whole or not at all. The host's calls are wrapped to fail or to die. */
#include "tests/unit/daemon/cm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/store.h"

static char dir[] = "/tmp/mayfly-store-XXXXXX";
static char vms[64];

/* Which call fails next, and how. */
static enum { NEVER, AT_OPEN, AT_WRITE, AT_FSYNC, AT_RENAME, AT_FSYNC_DIR, AT_UNLINK } fault;
static bool die;
static unsigned fsyncs;

static bool fails(int at, int e)
{
    if ((int)fault != at)
        return false;
    if (die)
        _exit(0);
    errno = e;
    return true;
}

int __real_renameat(int a, const char *b, int c, const char *d);
int __wrap_renameat(int a, const char *b, int c, const char *d);
int __wrap_renameat(int a, const char *b, int c, const char *d)
{
    return fails(AT_RENAME, EIO) ? -1 : __real_renameat(a, b, c, d);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    fsyncs++;
    return fails(fsyncs == 1 ? AT_FSYNC : AT_FSYNC_DIR, EIO) ? -1 : __real_fsync(fd);
}

/* Half is written when it fails: as a full disk does it. */
ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    if (fault == AT_WRITE && n > 100)
        return __real_write(fd, p, n / 2);
    return fails(AT_WRITE, ENOSPC) ? -1 : __real_write(fd, p, n);
}

static struct vm_def make(const char *name, uint64_t memory)
{
    struct vm_def d;

    def_init(&d, DEF_DEFINE);
    snprintf(d.name, sizeof d.name, "%s", name);
    memset(d.uuid, name[0], 16);
    d.memory = memory;
    d.kernel = strdup("/k");
    return d;
}

struct loaded {
    unsigned n, bad;
    uint64_t memory;
    char why[256];
};

static void take(void *arg, struct vm_def *d)
{
    struct loaded *l = arg;

    l->n++;
    l->memory = d->memory;
    def_fini(d);
}

static void left_out(void *arg, const char *file, const char *why)
{
    struct loaded *l = arg;

    l->bad++;
    snprintf(l->why, sizeof l->why, "%s: %s", file, why);
}

static struct loaded load(struct store *s)
{
    struct loaded l = {0};
    struct problem p = {0};

    assert_int_equal(store_load(s, take, left_out, &l, &p), MF_OK);
    return l;
}

static unsigned files(void)
{
    char cmd[160];
    unsigned n = 0;

    snprintf(cmd, sizeof cmd, "find %s -type f | wc -l", vms);
    FILE *f = popen(cmd, "r");
    assert_int_equal(fscanf(f, "%u", &n), 1);
    pclose(f);
    return n;
}

static void put(const char *file, const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", vms, file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int fresh(void **state)
{
    static unsigned nr;
    static struct store s;
    struct problem p = {0};

    fault = NEVER;
    die = false;
    snprintf(vms, sizeof vms, "%s/%u/deep", dir, nr++);
    *state = &s;
    return store_init(&s, vms, &p) == MF_OK ? 0 : -1;
}

static int close_store(void **state)
{
    fault = NEVER;
    store_fini(*state);
    return 0;
}

/* What was saved is found again, and replaced by the next save. */
static void test_save_load(void **state)
{
    struct vm_def d = make("one", 65536);
    struct problem p = {0};

    assert_int_equal(store_save(*state, &d, &p), MF_OK);
    assert_int_equal(load(*state).memory, 65536);
    d.memory = 131072;
    assert_int_equal(store_save(*state, &d, &p), MF_OK);
    struct loaded l = load(*state);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.memory, 131072);
    assert_int_equal(files(), 1);
    assert_int_equal(store_remove(*state, "one", &p), MF_OK);
    assert_int_equal(load(*state).n, 0);
    assert_int_equal(store_remove(*state, "one", &p), MF_E_NOT_FOUND);
    def_fini(&d);
}

/* A save that fails at any step leaves the old definition, and no litter. */
static void test_failures(void **state)
{
    static const int at[] = {AT_WRITE, AT_FSYNC, AT_RENAME};
    struct vm_def d = make("one", 65536);
    struct problem p = {0};

    assert_int_equal(store_save(*state, &d, &p), MF_OK);
    d.memory = 131072;
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        p = (struct problem){0};
        fault = at[i];
        fsyncs = 0;
        assert_int_equal(store_save(*state, &d, &p), MF_E_IO);
        assert_true(p.detail[0] != '\0');
        fault = NEVER;
        assert_int_equal(files(), 1);
        assert_int_equal(load(*state).memory, 65536);
    }
    p = (struct problem){0};
    assert_int_equal(store_save(*state, &d, &p), MF_OK);
    def_fini(&d);
}

/* A process that dies at any step leaves the old definition; what it began is cleared away. */
static void test_crash(void **state)
{
    static const int at[] = {AT_WRITE, AT_FSYNC, AT_RENAME, AT_FSYNC_DIR};
    struct vm_def d = make("one", 65536);
    struct problem p = {0};

    assert_int_equal(store_save(*state, &d, &p), MF_OK);
    d.memory = 131072;
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            fault = at[i];
            die = true;
            fsyncs = 0;
            store_save(*state, &d, &p);
            _exit(9); /* it should have died */
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        struct loaded l = load(*state);
        assert_int_equal(l.n, 1);
        assert_int_equal(l.bad, 0);
        assert_int_equal(files(), 1);
        /* Behind the rename it is the new one. */
        assert_int_equal(l.memory, at[i] == AT_FSYNC_DIR ? 131072 : 65536);
    }
    def_fini(&d);
}

/* A file that cannot be used is told and stays; the others are loaded. */
static void test_bad_files(void **state)
{
    struct vm_def d = make("good", 65536);
    struct problem p = {0};
    struct loaded l;

    assert_int_equal(store_save(*state, &d, &p), MF_OK);
    def_fini(&d);
    put("empty.xml", "");
    put("cut.xml", "<domain type='mayfly'><name>cut</na");
    put("entity.xml", "<!DOCTYPE d [<!ENTITY a 'b'>]><domain/>");
    put("other.xml", "<domain type='mayfly'><name>x</name>"
                     "<uuid>0c80c3ff-25e3-4312-9557-278613256d56</uuid><memory>64</memory>"
                     "<os><type>hvm</type><kernel>/k</kernel></os></domain>");
    put("note.txt", "not ours");
    char link[160];
    snprintf(link, sizeof link, "%s/link.xml", vms);
    assert_int_equal(symlink("good.xml", link), 0);
    char sub[160];
    snprintf(sub, sizeof sub, "%s/dir.xml", vms);
    assert_int_equal(mkdir(sub, 0700), 0);
    l = load(*state);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.bad, 6);
    assert_int_equal(files(), 6);
}

static int group_setup(void **state)
{
    (void)state;
    return mkdtemp(dir) != NULL && def_xml_init() ? 0 : -1;
}

static int group_teardown(void **state)
{
    char cmd[64];

    (void)state;
    def_xml_fini();
    snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_save_load, fresh, close_store),
        cmocka_unit_test_setup_teardown(test_failures, fresh, close_store),
        cmocka_unit_test_setup_teardown(test_crash, fresh, close_store),
        cmocka_unit_test_setup_teardown(test_bad_files, fresh, close_store),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
