/*
 * Page heap: the front end against a model, against callers that err and allocators that lie.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define OWNER OWNER_VM(3)

static const char *const allocators[] = {MM_TEST_ALLOCATORS};
#define ALLOCATORS (sizeof allocators / sizeof allocators[0])

static mfn_t get(struct mm_testenv *e, unsigned order, uint32_t owner)
{
    mfn_t m;

    assert_int_equal(heap_alloc(e->heap, 0, order, owner, FRAME_T_RAM, HEAP_ZERO, &m), MF_OK);
    return m;
}

static struct heap_info info_of(struct mm_testenv *e)
{
    struct heap_info i;

    heap_get_info(e->heap, &i);
    return i;
}

/* A missing plugin is said clearly and hidden by nothing. */
static void test_no_allocator(void **state)
{
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, 64, 1);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &m), MF_E_NO_ALLOCATOR);
    assert_int_equal(heap_free(e.heap, 0, mfn(3), 0, OWNER), MF_E_DOUBLE_FREE);
    assert_int_equal(info_of(&e).largest_free_order, -1);
    assert_int_equal(info_of(&e).free, 64);
    mm_testenv_fini(&e);
}

/* Order from the caller unbounded: shift truncated, total + 2^order wrapping. */
static void test_arguments(void **state)
{
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, 4096, 1);
    mm_testenv_select(&e, "buddy-lazy");
    assert_int_equal(heap_alloc(e.heap, 0, 19, OWNER, FRAME_T_RAM, 0, &m), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, 0, 32, OWNER, FRAME_T_RAM, 0, &m), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, 0, 64, OWNER, FRAME_T_RAM, 0, &m), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, 0, UINT32_MAX, OWNER, FRAME_T_RAM, 0, &m), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER_NONE, FRAME_T_RAM, 0, &m), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_NONE, 0, &m), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, (enum frame_type)4, 0, &m), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0x80, &m), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, 0, 18, OWNER, FRAME_T_RAM, 0, &m), MF_E_NO_MEMORY);
    assert_int_equal(heap_free(e.heap, 0, mfn(4096), 0, OWNER), MF_E_RANGE);
    assert_int_equal(heap_free(e.heap, 0, mfn(UINT64_MAX), 0, OWNER), MF_E_RANGE);
    assert_int_equal(heap_free(e.heap, 0, mfn(1), 1, OWNER), MF_E_RANGE);
    assert_int_equal(heap_free(e.heap, 0, mfn(0), 64, OWNER), MF_E_RANGE);
    assert_int_equal(heap_free(e.heap, 0, mfn(0), 18, OWNER), MF_E_RANGE);
    assert_int_equal(heap_alloc(e.heap, UINT32_MAX, 0, OWNER, FRAME_T_CORE, 0, &m), MF_OK);
    assert_int_equal(heap_free(e.heap, 12345, m, 0, OWNER), MF_OK);
    assert_null(heap_frame(e.heap, mfn(4096)));
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* Double free corrupting lists silently; frees at a wrong order, of an inner frame, by a stranger.
 */
static void test_bad_frees_are_refused(void **state)
{
    struct heap_info i;
    struct mm_testenv e;
    mfn_t m, big;

    (void)state;
    mm_testenv_init(&e, 4096, 1);
    mm_testenv_select(&e, "buddy-lazy");
    m = get(&e, 3, OWNER);
    big = get(&e, 10, OWNER);
    assert_int_equal(heap_free(e.heap, 0, m, 3, OWNER + 1), MF_E_WRONG_OWNER);
    assert_int_equal(heap_free(e.heap, 0, m, 2, OWNER), MF_E_WRONG_ORDER);
    assert_int_equal(heap_free(e.heap, 0, mfn(m.v + 1), 0, OWNER), MF_E_WRONG_ORDER);
    assert_int_equal(heap_free(e.heap, 0, mfn(big.v + 512), 9, OWNER), MF_E_WRONG_ORDER);
    assert_int_equal(heap_free(e.heap, 0, mfn(big.v + 5), 0, OWNER), MF_E_WRONG_ORDER);
    mm_testenv_audit(&e, 8 + 1024);
    assert_int_equal(heap_free(e.heap, 0, m, 3, OWNER), MF_OK);
    assert_int_equal(heap_free(e.heap, 0, m, 3, OWNER), MF_E_DOUBLE_FREE);
    assert_int_equal(heap_free(e.heap, 0, m, 0, OWNER), MF_E_DOUBLE_FREE);
    assert_int_equal(heap_free(e.heap, 0, big, 10, OWNER), MF_OK);
    assert_int_equal(heap_free(e.heap, 0, big, 10, OWNER), MF_E_DOUBLE_FREE);
    heap_get_info(e.heap, &i);
    assert_int_equal(i.refused_double, 3);
    assert_int_equal(i.refused_order, 4);
    assert_int_equal(i.refused_owner, 1);
    assert_int_equal(e.log_lines, 8);
    assert_non_null(strstr(e.last_line, "already free"));
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* An owner's limit holds for every order; forgetting an owner tells what it still held. */
static void test_quota(void **state)
{
    struct mm_testenv e;
    mfn_t m, n;

    (void)state;
    mm_testenv_init(&e, 4096, 1);
    mm_testenv_select(&e, "buddy-lazy");
    assert_int_equal(heap_owner_begin(e.heap, OWNER, 9), MF_OK);
    assert_int_equal(heap_owner_begin(e.heap, OWNER, 9), MF_E_EXISTS);
    assert_int_equal(heap_owner_begin(e.heap, OWNER_NONE, 9), MF_E_RANGE);
    m = get(&e, 3, OWNER);
    assert_int_equal(heap_alloc(e.heap, 0, 1, OWNER, FRAME_T_RAM, 0, &n), MF_E_QUOTA);
    assert_int_equal(heap_alloc(e.heap, 0, 18, OWNER, FRAME_T_RAM, 0, &n), MF_E_QUOTA);
    n = get(&e, 0, OWNER);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &n), MF_E_QUOTA);
    assert_int_equal(heap_free(e.heap, 0, m, 3, OWNER), MF_OK);
    assert_int_equal(heap_owner_end(e.heap, OWNER), 1);
    m = get(&e, 4, OWNER); /* unknown again: no limit */
    assert_int_equal(heap_free(e.heap, 0, m, 4, OWNER), MF_OK);
    assert_int_equal(heap_free(e.heap, 0, n, 0, OWNER), MF_OK);
    assert_int_equal(heap_owner_begin(e.heap, OWNER, 5000), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 13, OWNER, FRAME_T_RAM, 0, &n), MF_E_QUOTA);
    assert_int_equal(heap_alloc(e.heap, 0, 12, OWNER, FRAME_T_RAM, 0, &m), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &n), MF_E_NO_MEMORY);
    assert_int_equal(heap_free(e.heap, 0, m, 12, OWNER), MF_OK);
    assert_int_equal(heap_owner_end(e.heap, OWNER), 0);
    assert_int_equal(heap_owner_end(e.heap, OWNER), 0);
    mm_testenv_fini(&e);
}

/* Owners come and go by the hundred thousand; their table must not fill up with what is gone. */
static void test_owner_table(void **state)
{
    struct mm_testenv e;

    (void)state;
    mm_testenv_init(&e, 64, 1);
    for (uint32_t i = 0; i < 400000; i++) {
        assert_int_equal(heap_owner_begin(e.heap, OWNER_VM(i), i), MF_OK);
        if (i >= 100)
            assert_int_equal(heap_owner_end(e.heap, OWNER_VM(i - 100)), 0);
    }
    /* The same place for many: a clear refusal, and the others are still found. */
    for (uint32_t i = 0; i < HEAP_OWNER_PROBE; i++)
        assert_int_equal(heap_owner_begin(e.heap, 500 + (i + 10) * HEAP_OWNERS, 1), MF_OK);
    assert_int_equal(heap_owner_begin(e.heap, 500 + 99 * HEAP_OWNERS, 1), MF_E_LIMIT);
    assert_int_equal(heap_owner_end(e.heap, 500 + 10 * HEAP_OWNERS), 0);
    assert_int_equal(heap_owner_begin(e.heap, 500 + 11 * HEAP_OWNERS, 1), MF_E_EXISTS);
    assert_int_equal(heap_owner_begin(e.heap, 500 + 99 * HEAP_OWNERS, 1), MF_OK);
    mm_testenv_fini(&e);
}

/* ---- scrubbing */

static bool is_zero(const void *p, size_t n)
{
    const uint8_t *b = p;

    return !b[0] && !memcmp(b, b + 1, n - 1);
}

/* Old data reaching another owner, at every order and after splits and merges. */
static void test_no_data_leaks(void **state)
{
    (void)state;
    for (unsigned order = 0; order <= 13; order++) {
        struct mm_testenv e;
        mfn_t a, b, c;

        mm_testenv_init(&e, 8192, 1);
        mm_testenv_select(&e, "buddy-lazy");
        a = get(&e, order, OWNER);
        memset(heap_ptr(e.heap, a), 0xa5, FRAME_SIZE << order);
        assert_int_equal(heap_free(e.heap, 0, a, order, OWNER), MF_OK);
        assert_int_equal(info_of(&e).dirty, 1u << order);
        /* Merged: one block over all of it. */
        assert_int_equal(heap_alloc(e.heap, 0, 13, OWNER + 1, FRAME_T_RAM, 0, &b), MF_OK);
        assert_true(is_zero(heap_ptr(e.heap, b), FRAME_SIZE << 13));
        assert_int_equal(info_of(&e).dirty, 0);
        memset(heap_ptr(e.heap, b), 0x5a, FRAME_SIZE << 13);
        assert_int_equal(heap_free(e.heap, 0, b, 13, OWNER + 1), MF_OK);
        assert_int_equal(info_of(&e).dirty, 8192);
        /* Split: frame by frame. */
        for (unsigned i = 0; i < 100; i++) {
            c = get(&e, 0, OWNER);
            assert_true(is_zero(heap_ptr(e.heap, c), FRAME_SIZE));
        }
        assert_int_equal(info_of(&e).dirty, 8192 - 100);
        mm_testenv_fini(&e);
    }
}

/* A frame that its owner freed alone, then another's in a larger block, must not come back as is.
 */
static void test_own_data_is_told_apart(void **state)
{
    struct mm_testenv e;
    mfn_t a, b;

    (void)state;
    mm_testenv_init(&e, 8, 1);
    mm_testenv_select(&e, "buddy-lazy");
    a = get(&e, 0, OWNER);
    memset(heap_ptr(e.heap, a), 1, FRAME_SIZE);
    assert_int_equal(heap_free(e.heap, 0, a, 0, OWNER), MF_OK);
    /* Its own, without HEAP_ZERO: may come as it is; with it: not. */
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &b), MF_OK);
    assert_int_equal(a.v, b.v);
    assert_int_equal(heap_free(e.heap, 0, b, 0, OWNER), MF_OK);
    b = get(&e, 0, OWNER);
    assert_true(is_zero(heap_ptr(e.heap, b), FRAME_SIZE));
    assert_int_equal(heap_free(e.heap, 0, b, 0, OWNER), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 3, OWNER + 1, FRAME_T_RAM, 0, &b), MF_OK);
    memset(heap_ptr(e.heap, b), 2, FRAME_SIZE * 8);
    assert_int_equal(heap_free(e.heap, 0, b, 3, OWNER + 1), MF_OK);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &a), MF_OK);
        assert_true(is_zero(heap_ptr(e.heap, a), FRAME_SIZE));
    }
    mm_testenv_fini(&e);
}

/* The background scrub takes every free dirty frame and nothing that is in use. */
static void test_background_scrub(void **state)
{
    struct mm_testenv e;
    mfn_t keep, big, m[300];

    (void)state;
    mm_testenv_init(&e, 4096, 1);
    mm_testenv_select(&e, "buddy-lazy");
    for (unsigned i = 0; i < 300; i++) {
        m[i] = get(&e, i % 3, OWNER);
        memset(heap_ptr(e.heap, m[i]), 3, FRAME_SIZE << i % 3);
    }
    keep = get(&e, 0, OWNER);
    big = get(&e, 9, OWNER);
    memset(heap_ptr(e.heap, keep), 4, FRAME_SIZE);
    memset(heap_ptr(e.heap, big), 4, FRAME_SIZE << 9);
    for (unsigned i = 0; i < 300; i++)
        assert_int_equal(heap_free(e.heap, 0, m[i], i % 3, OWNER), MF_OK);
    assert_int_equal(info_of(&e).dirty, 700);
    assert_int_equal(heap_scrub_step(e.heap, 64), MF_AGAIN);
    assert_true(info_of(&e).dirty < 700);
    while (heap_scrub_step(e.heap, 64) == MF_AGAIN)
        ;
    assert_int_equal(info_of(&e).dirty, 0);
    for (unsigned i = 0; i < 300; i++)
        assert_true(is_zero(heap_ptr(e.heap, m[i]), FRAME_SIZE << i % 3));
    assert_int_equal(*(uint8_t *)heap_ptr(e.heap, keep), 4);
    assert_int_equal(*(uint8_t *)heap_ptr(e.heap, big), 4);
    mm_testenv_audit(&e, 513);
    mm_testenv_fini(&e);
}

/* ---- allocators that lie */

static uint64_t lie;
static int lie_alloc(const struct mf_alloc_env *env, uint32_t cpu, uint32_t order, uint64_t *first)
{
    (void)env;
    (void)cpu;
    (void)order;
    *first = lie;
    return MF_PL_OK;
}

static int lie_error(const struct mf_alloc_env *env, uint32_t cpu, uint32_t order, uint64_t *first)
{
    (void)env;
    (void)cpu;
    (void)order;
    (void)first;
    return -5;
}

static void select_lie(struct mm_testenv *e, struct mf_allocator_ops *ops)
{
    const char *why;

    *ops = *mm_test_allocator("buddy-lazy");
    ops->alloc = lie_alloc;
    assert_int_equal(heap_select(e->heap, "liar", ops, NULL, &why), MF_OK);
}

/* A block handed out twice, in part or whole, misaligned, out of range: refused and counted. */
static void test_lying_allocator(void **state)
{
    struct mf_allocator_ops ops;
    struct mm_testenv e;
    mfn_t m, s, b, n;

    (void)state;
    mm_testenv_init(&e, 5000, 1);
    mm_testenv_select(&e, "buddy-lazy");
    m = get(&e, 4, OWNER);
    b = get(&e, 9, OWNER);
    s = get(&e, 0, OWNER);
    select_lie(&e, &ops);
    const struct {
        uint64_t first;
        unsigned order;
    } bad[] = {
        {m.v, 4},
        {m.v + 3, 0},
        {m.v & ~31ul, 5},
        {b.v, 9},
        {b.v + 5, 0},
        {b.v + 64, 6},
        {b.v & ~1023ul, 10},
        {s.v, 0},
        {s.v & ~511ul, 9},
        {5000, 0},
        {UINT64_MAX, 0},
        {4096, 10},
        {1, 1},
        {3, 2},
        {4096, 12},
        {UINT64_MAX - 15, 4},
        {s.v & ~63ul, 6},
        {s.v & ~255ul, 8},
    };
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        lie = bad[i].first;
        assert_int_equal(heap_alloc(e.heap, 0, bad[i].order, OWNER + 1, FRAME_T_RAM, 0, &n),
                         MF_E_PLUGIN);
        assert_int_equal(info_of(&e).refused_plugin, i + 1);
    }
    ops.alloc = lie_error;
    assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER + 1, FRAME_T_RAM, 0, &n), MF_E_PLUGIN);
    mm_testenv_audit(&e, 16 + 512 + 1);
    assert_int_equal(heap_free(e.heap, 0, m, 4, OWNER), MF_OK);
    assert_int_equal(heap_free(e.heap, 0, b, 9, OWNER), MF_OK);
    assert_int_equal(heap_free(e.heap, 0, s, 0, OWNER), MF_OK);
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

static struct {
    uint64_t first, n;
} lie_ranges[8];
static void lie_list(const struct mf_alloc_env *env, mf_alloc_range_fn fn, void *arg)
{
    (void)env;
    for (unsigned i = 0; i < 8 && lie_ranges[i].n; i++)
        if (!fn(arg, lie_ranges[i].first, lie_ranges[i].n))
            return;
}

static int refuse_init(const struct mf_alloc_env *env)
{
    (void)env;
    return MF_PL_NO_MEMORY;
}

static int refuse_add(const struct mf_alloc_env *env, uint64_t first, uint64_t n)
{
    (void)env;
    (void)first;
    (void)n;
    return MF_PL_NO_MEMORY;
}

static int forget_add(const struct mf_alloc_env *env, uint64_t first, uint64_t n)
{
    return n > 1 ? mm_test_allocator("buddy-lazy")->add(env, first, n - 1) : MF_PL_OK;
}

static uint64_t no_meta(uint64_t frames, uint32_t cpus)
{
    (void)frames;
    (void)cpus;
    return 0;
}

static uint64_t huge_meta(uint64_t frames, uint32_t cpus)
{
    (void)cpus;
    return frames << 20;
}

static void expect_swap(struct mm_testenv *e, const struct mf_allocator_ops *to, enum mf_status st,
                        const char *text)
{
    const char *why = NULL;
    char before[MF_NAME_MAX];

    memcpy(before, info_of(e).allocator, sizeof before);
    assert_int_equal(heap_select(e->heap, "next", to, NULL, &why), st);
    assert_non_null(why);
    if (!strstr(why, text))
        fail_msg("\"%s\" does not say \"%s\"", why, text);
    assert_string_equal(info_of(e).allocator, before);
    assert_int_equal(info_of(e).swaps, 0);
}

/* A swap that fails at any point changes nothing and says why. */
static void test_swap_rolls_back(void **state)
{
    struct mf_allocator_ops good, from, ops;
    const char *why;
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, 4096, 1);
    good = *mm_test_allocator("buddy-lazy");
    from = good;
    assert_int_equal(heap_select(e.heap, "first", &from, NULL, &why), MF_OK);
    m = get(&e, 9, OWNER);
    assert_int_equal(m.v, 0);

    ops = good, ops.size = 16;
    expect_swap(&e, &ops, MF_E_PLUGIN, "too short");
    ops = good, ops.list = NULL;
    expect_swap(&e, &ops, MF_E_PLUGIN, "holes");
    ops = good, ops.meta_size = no_meta;
    expect_swap(&e, &ops, MF_E_PLUGIN, "that many");
    ops = good, ops.meta_size = huge_meta;
    expect_swap(&e, &ops, MF_E_PLUGIN, "too much");
    ops = good, ops.init = refuse_init;
    expect_swap(&e, &ops, MF_E_PLUGIN, "start");
    ops = good, ops.add = refuse_add;
    expect_swap(&e, &ops, MF_E_PLUGIN, "refuses");
    ops = good, ops.add = forget_add;
    expect_swap(&e, &ops, MF_E_PLUGIN, "lost frames");
    for (unsigned i = 1; i <= 2; i++) {
        e.fail_reserve = i;
        expect_swap(&e, &good, MF_E_NO_MEMORY, "no memory");
        e.fail_reserve = 0;
    }
    assert_int_equal(heap_select(e.heap, "", &good, NULL, &why), MF_E_NAME);
    assert_int_equal(
        heap_select(e.heap, "a-name-that-is-longer-than-names-may-be", &good, NULL, &why),
        MF_E_NAME);
    mm_testenv_audit(&e, 512);

    from.list = lie_list;
    const struct {
        uint64_t first, n, first2, n2;
        const char *text;
    } lies[] = {
        {512, 3584, 0, 1, "in use"},        {512, 3585, 0, 0, "outside"},
        {512, 3584, 5000, 1, "outside"},    {512, 3583, 0, 0, "every free"},
        {512, 3584, 700, 1, "twice"},       {512, 600, 512, 2984, "twice"},
        {700, 3396, 512, 189, "twice"},     {0, 4096, 0, 0, "in use"},
        {512, UINT64_MAX, 0, 0, "outside"}, {UINT64_MAX, 2, 0, 0, "outside"},
    };
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        memset(lie_ranges, 0, sizeof lie_ranges);
        lie_ranges[0].first = lies[i].first, lie_ranges[0].n = lies[i].n;
        lie_ranges[1].first = lies[i].first2, lie_ranges[1].n = lies[i].n2;
        expect_swap(&e, &good, MF_E_PLUGIN, lies[i].text);
    }
    from.list = good.list;
    mm_testenv_audit(&e, 512);
    assert_int_equal(heap_free(e.heap, 0, m, 9, OWNER), MF_OK);
    mm_testenv_select(&e, "buddy-page");
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* No metadata at the start: a clean refusal. */
static void test_create_without_memory(void **state)
{
    struct mm_testenv e;
    enum mf_status st;

    (void)state;
    mm_testenv_init(&e, 64, 1);
    e.fail_reserve = 1;
    assert_null(heap_create(&e.env, &e.arena, 1, &st));
    assert_int_equal(st, MF_E_NO_MEMORY);
    assert_null(heap_create(&e.env, &e.arena, 0, &st));
    assert_int_equal(st, MF_E_RANGE);
    mm_testenv_fini(&e);
    heap_destroy(NULL);
}

/* ---- against a model */

#define BLOCKS 600

struct block {
    mfn_t m;
    unsigned order;
    uint32_t owner;
    bool used;
    uint8_t fill;
};

static void model_alloc(struct mm_testenv *e, struct block *b, uint64_t *seed)
{
    uint64_t r = mm_test_random(seed);
    uint8_t *p;

    b->order = r % 8 ? (unsigned)(r >> 8) % 5 : (unsigned)(r >> 8) % 12;
    b->owner = OWNER + (uint32_t)(r >> 20) % 3;
    if (heap_alloc(e->heap, (unsigned)r & 3, b->order, b->owner, 1 + (r >> 24) % 3, HEAP_ZERO,
                   &b->m) != MF_OK)
        return;
    b->used = true;
    b->fill = (uint8_t)(1 + r % 255);
    p = heap_ptr(e->heap, b->m);
    /* The ends of the block show an overlap, and data left by another owner. */
    assert_int_equal(p[0] | p[(FRAME_SIZE << b->order) - 1], 0);
    p[0] = p[(FRAME_SIZE << b->order) - 1] = b->fill;
}

static void model_free(struct mm_testenv *e, struct block *b, uint64_t r)
{
    uint8_t *p = heap_ptr(e->heap, b->m);

    assert_int_equal(p[0], b->fill);
    assert_int_equal(p[(FRAME_SIZE << b->order) - 1], b->fill);
    assert_int_equal(heap_free(e->heap, (unsigned)r & 3, b->m, b->order, b->owner), MF_OK);
    b->used = false;
}

static void model_run(uint64_t frames, uint64_t seed, unsigned steps, unsigned first)
{
    static struct block block[BLOCKS];
    struct mm_testenv e;
    uint64_t used = 0;

    memset(block, 0, sizeof block);
    mm_testenv_init(&e, frames, 4);
    mm_testenv_select(&e, allocators[first]);
    for (unsigned i = 0; i < steps; i++) {
        uint64_t r = mm_test_random(&seed);
        struct block *b = &block[r % BLOCKS];

        if (b->used)
            model_free(&e, b, r >> 16);
        else
            model_alloc(&e, b, &seed);
        if (r >> 40 & 1)
            heap_scrub_step(e.heap, r >> 41 & 7);
        if (i % (steps / 20) == 0) {
            used = 0;
            for (unsigned k = 0; k < BLOCKS; k++)
                used += block[k].used ? UINT64_C(1) << block[k].order : 0;
            mm_testenv_audit(&e, used);
            mm_testenv_select(&e, allocators[(r >> 48) % ALLOCATORS]);
            mm_testenv_audit(&e, used);
        }
    }
    for (unsigned k = 0; k < BLOCKS; k++)
        if (block[k].used)
            model_free(&e, &block[k], k);
    mm_testenv_audit(&e, 0);
    assert_int_equal(info_of(&e).free, frames);
    assert_int_equal(info_of(&e).refused_plugin, 0);
    mm_testenv_fini(&e);
}

/* Random use with swaps in between: nothing handed out twice, nothing lost, no data leaked. */
static void test_random_against_model(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        model_run(16384, 77 + i, 20000, i);
        model_run(5003, 1234 + i, 20000, i); /* an end that is aligned to nothing */
        model_run(1, 99 + i, 200, i);
    }
}

/* A free block at frame 0 merging across the end; freed chunks merge into whole ones again. */
static void test_merges_completely(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct mm_testenv e;
        struct heap_info info;
        mfn_t *m = malloc(sizeof *m * 3000);
        unsigned n = 0;

        mm_testenv_init(&e, (1u << 18) + 2048 + 3, 1);
        mm_testenv_select(&e, allocators[i]);
        assert_int_equal(info_of(&e).free_blocks[18], 1);
        assert_int_equal(info_of(&e).free_blocks[11], 1);
        assert_int_equal(info_of(&e).free_blocks[1], 1);
        assert_int_equal(info_of(&e).free_blocks[0], 1);
        for (; n < 3000; n++)
            m[n] = get(&e, n % 7 ? 0 : 4, OWNER);
        for (unsigned k = 0; k < n; k++) /* in another order than given */
            assert_int_equal(heap_free(e.heap, 0, m[k * 1237 % n], k * 1237 % n % 7 ? 0 : 4, OWNER),
                             MF_OK);
        mm_testenv_audit(&e, 0);
        heap_get_info(e.heap, &info);
        assert_int_equal(info.free_blocks[18], 1);
        assert_int_equal(info.free_blocks[11], 1);
        assert_int_equal(info.largest_free_order, 18);
        mm_testenv_fini(&e);
        free(m);
    }
}

/* All of memory can be had, at every order, and then a clean refusal. */
static void test_exhaustion(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        for (unsigned order = 0; order <= 11; order++) {
            struct mm_testenv e;
            mfn_t m;

            mm_testenv_init(&e, 4096, 2);
            mm_testenv_select(&e, allocators[i]);
            for (unsigned k = 0; k < 4096u >> order; k++)
                get(&e, order, OWNER);
            assert_int_equal(heap_alloc(e.heap, 1, order, OWNER, FRAME_T_RAM, 0, &m),
                             MF_E_NO_MEMORY);
            assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &m), MF_E_NO_MEMORY);
            assert_int_equal(info_of(&e).free, 0);
            mm_testenv_audit(&e, 4096);
            for (unsigned k = 0; k < 4096u >> order; k++)
                assert_int_equal(heap_free(e.heap, 0, mfn((uint64_t)k << order), order, OWNER),
                                 MF_OK);
            mm_testenv_audit(&e, 0);
            mm_testenv_fini(&e);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_allocator),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_bad_frees_are_refused),
        cmocka_unit_test(test_quota),
        cmocka_unit_test(test_owner_table),
        cmocka_unit_test(test_no_data_leaks),
        cmocka_unit_test(test_own_data_is_told_apart),
        cmocka_unit_test(test_background_scrub),
        cmocka_unit_test(test_lying_allocator),
        cmocka_unit_test(test_swap_rolls_back),
        cmocka_unit_test(test_create_without_memory),
        cmocka_unit_test(test_random_against_model),
        cmocka_unit_test(test_merges_completely),
        cmocka_unit_test(test_exhaustion),
    };

    return cmocka_run_group_tests_name("heap", tests, NULL, NULL);
}
