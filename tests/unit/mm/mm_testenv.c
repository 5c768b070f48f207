#include "tests/unit/mm/mm_testenv.h"

#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

static uint64_t test_now(void *arg)
{
    struct timespec ts;

    (void)arg;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void test_relax(void *arg, unsigned n)
{
    (void)arg;
    if (n > 20)
        sched_yield();
}

static void *map(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static void *test_reserve(void *arg, uint64_t bytes)
{
    struct mm_testenv *t = arg;
    void *p;

    if (t->fail_reserve && !--t->fail_reserve)
        return NULL;
    p = map(bytes);
    if (p)
        t->reserves++;
    return p;
}

static void test_release(void *arg, void *p, uint64_t bytes)
{
    struct mm_testenv *t = arg;

    t->reserves--;
    munmap(p, bytes);
}

static enum mf_status test_punch(void *arg, uint64_t offset, uint64_t bytes)
{
    struct mm_testenv *t = arg;

    t->punches++;
    return madvise(t->arena.base + offset, bytes, MADV_DONTNEED) ? MF_E_IO : MF_OK;
}

static void test_log(void *arg, enum mm_log_level level, const char *line)
{
    struct mm_testenv *t = arg;

    (void)level;
    __atomic_fetch_add(&t->log_lines, 1, __ATOMIC_RELAXED);
    snprintf(t->last_line, sizeof t->last_line, "%s", line);
}

void mm_testenv_init(struct mm_testenv *t, uint64_t frames, unsigned cpus)
{
    enum mf_status st;

    memset(t, 0, sizeof *t);
    t->env = (struct mm_env){.arg = t,
                             .now_ns = test_now,
                             .relax = test_relax,
                             .reserve = test_reserve,
                             .release = test_release,
                             .punch = test_punch,
                             .log = test_log};
    t->arena.frames = frames;
    t->arena.base = map(frames << FRAME_SHIFT);
    assert_non_null(t->arena.base);
    t->heap = heap_create(&t->env, &t->arena, cpus, &st);
    assert_int_equal(st, MF_OK);
    assert_non_null(t->heap);
}

void mm_testenv_fini(struct mm_testenv *t)
{
    heap_destroy(t->heap);
    assert_int_equal(t->reserves, 0);
    munmap(t->arena.base, t->arena.frames << FRAME_SHIFT);
}

const struct mf_plugin *mm_test_plugin(const char *kind, const char *name)
{
    const struct mf_plugin *p;
    char path[512];
    void *so;

    snprintf(path, sizeof path, "%s/%s_%s.so", MM_TEST_PLUGINS, kind, name);
    so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        fail_msg("%s", dlerror());
    p = dlsym(so, MF_PLUGIN_SYMBOL);
    assert_non_null(p);
    assert_string_equal(p->name, name);
    assert_int_equal(p->abi, MF_PLUGIN_ABI);
    return p;
}

const struct mf_allocator_ops *mm_test_allocator(const char *name)
{
    return mm_test_plugin("allocator", name)->ops.allocator;
}

const struct mf_teardown_ops *mm_test_teardown(const char *name)
{
    return mm_test_plugin("teardown", name)->ops.teardown;
}

void mm_testenv_select(struct mm_testenv *t, const char *name)
{
    const char *why = NULL;
    enum mf_status st = heap_select(t->heap, name, mm_test_allocator(name), NULL, &why);

    if (st != MF_OK)
        fail_msg("select %s: %s (%s)", name, mf_status_code(st), why ? why : "");
}

void mm_testenv_audit(struct mm_testenv *t, uint64_t used)
{
    struct heap_audit a = {0};
    enum mf_status st;

    while ((st = heap_audit_step(t->heap, &a, 1000)) == MF_AGAIN)
        ;
    assert_int_equal(st, MF_OK);
    assert_true(a.stable);
    assert_int_equal(a.bad_records, 0);
    assert_int_equal(a.overlaps, 0);
    assert_int_equal(a.lost, 0);
    assert_int_equal(a.listed_in_use, 0);
    assert_int_equal(a.used_ram + a.used_table + a.used_core, used);
    assert_int_equal(a.free, t->arena.frames - used);
    assert_int_equal(a.listed_free, t->arena.frames - used);
}

void mm_test_end_stage2(struct stage2 *s2, const struct mf_teardown_ops *ops)
{
    struct teardown *t = malloc(sizeof *t);
    enum mf_status st;

    assert_non_null(t);
    stage2_close(s2);
    assert_int_equal(teardown_begin_whole(t, s2, ops), MF_OK);
    while ((st = teardown_step(t, TEARDOWN_BUDGET)) == MF_AGAIN || st == MF_BLOCKED)
        stage2_reap(s2, 4096);
    assert_int_equal(st, MF_OK);
    teardown_end(t);
    while ((st = stage2_reap(s2, 4096)) == MF_AGAIN)
        ;
    assert_int_equal(st, MF_OK);
    assert_int_equal(stage2_destroy(s2), MF_OK);
    free(t);
}

static void touch(struct stage2 *s2, unsigned l3, unsigned l2, unsigned l1)
{
    struct s2_leaf leaf;
    gfn_t g = gfn((uint64_t)l3 << 18 | l2 << 9 | l1);

    assert_int_equal(stage2_fault(s2, 0, g, S2_WRITE, &leaf), MF_OK);
}

void mm_test_reference_tree(struct stage2 *s2)
{
    struct s2_walk w;

    touch(s2, 0, 102, 123);
    touch(s2, 0, 190, 7);
    touch(s2, 3, 303, 432);
    /* The middle leaf goes again: its table stays, empty. */
    s2_walk(s2, 0, 190u << 9 | 7, 1, &w);
    assert_int_equal(w.level, 1);
    s2_lock(s2);
    s2_remove_leaf(s2, w.mfn, w.index, 1);
    s2_unlock(s2);
    assert_int_equal(stage2_reap(s2, 16), MF_OK);
}
