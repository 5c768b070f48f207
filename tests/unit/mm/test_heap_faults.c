/*
 * Page heap: faults that allocators of this kind had, each test named after the condition that
 * brought it out. Where the condition needs what Mayfly does not have (zones, NUMA nodes), the
 * nearest one that it has is tested, and the test says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

#define OWNER OWNER_VM(3)
#define OTHER OWNER_VM(4)

static const char *const allocators[] = {MM_TEST_ALLOCATORS};
#define ALLOCATORS (sizeof allocators / sizeof allocators[0])

/* One allocator without a heap, with metadata of its own. */
struct alone {
    const struct mf_allocator_ops *ops;
    struct mf_alloc_env env;
};

static void alone_init(struct alone *a, const char *name, uint64_t frames)
{
    a->ops = mm_test_allocator(name);
    a->env = (struct mf_alloc_env){.size = sizeof a->env, .nr_cpus = 2, .nr_frames = frames};
    a->env.meta_size = a->ops->meta_size(frames, 2);
    a->env.meta = aligned_alloc(FRAME_SIZE, a->env.meta_size);
    assert_non_null(a->env.meta);
    memset(a->env.meta, 0, a->env.meta_size);
    assert_int_equal(a->ops->init(&a->env), MF_PL_OK);
}

static void alone_fini(struct alone *a)
{
    a->ops->fini(&a->env);
    free(a->env.meta);
}

static struct mf_alloc_stats alone_stats(struct alone *a)
{
    struct mf_alloc_stats st = {.size = sizeof st};

    a->ops->stats(&a->env, &st);
    return st;
}

static mfn_t get(struct mm_testenv *e, unsigned order, uint32_t owner)
{
    mfn_t m;

    assert_int_equal(heap_alloc(e->heap, 0, order, owner, FRAME_T_RAM, HEAP_ZERO, &m), MF_OK);
    return m;
}

static void put(struct mm_testenv *e, mfn_t m, unsigned order, uint32_t owner)
{
    assert_int_equal(heap_free(e->heap, 0, m, order, owner), MF_OK);
}

static struct heap_info info_of(struct mm_testenv *e)
{
    struct heap_info i;

    heap_get_info(e->heap, &i);
    return i;
}

/* Looks at eight bytes in each 512: data is written to whole frames here. */
static bool reads_zero(struct mm_testenv *e, mfn_t m, unsigned order)
{
    const uint64_t *p = heap_ptr(e->heap, m);
    uint64_t any = 0;

    for (uint64_t i = 0; i < (FRAME_SIZE << order) / 8; i += 64)
        any |= p[i];
    return !any;
}

/* No zones or nodes here: what comes in two ranges with a hole between them is never one block. */
static void test_range_that_spans_two_zones(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct alone a;
        uint64_t m;

        alone_init(&a, allocators[i], 8192);
        assert_int_equal(a.ops->add(&a.env, 0, 4095), MF_PL_OK);
        assert_int_equal(a.ops->add(&a.env, 4096, 4096), MF_PL_OK);
        assert_int_equal(alone_stats(&a).free_frames, 8191);
        assert_int_equal(a.ops->alloc(&a.env, 0, 13, &m), MF_PL_NO_MEMORY);
        assert_int_equal(a.ops->alloc(&a.env, 0, 12, &m), MF_PL_OK);
        assert_int_equal(m, 4096);
        assert_int_equal(a.ops->alloc(&a.env, 0, 12, &m), MF_PL_NO_MEMORY);
        assert_int_equal(a.ops->alloc(&a.env, 0, 11, &m), MF_PL_OK);
        assert_int_equal(m, 0);
        alone_fini(&a);
    }
}

/* A range that ends where the next begins may be one block: that is what merging is for. */
static void test_ranges_that_touch_are_one(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct alone a;
        uint64_t m;

        alone_init(&a, allocators[i], 8192);
        assert_int_equal(a.ops->add(&a.env, 0, 1000), MF_PL_OK);
        assert_int_equal(a.ops->add(&a.env, 3000, 5192), MF_PL_OK);
        assert_int_equal(a.ops->add(&a.env, 1000, 2000), MF_PL_OK);
        assert_int_equal(a.ops->alloc(&a.env, 0, 13, &m), MF_PL_OK);
        assert_int_equal(m, 0);
        alone_fini(&a);
    }
}

/* The buddy of the block at frame 0 must not be looked for below it or beyond the end. */
static void test_block_at_frame_0_merging_across_a_boundary(void **state)
{
    static const uint64_t sizes[] = {1, 2, 3, 511, 512, 513, 1023, 4096, 4097};

    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        for (unsigned k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            struct mm_testenv e;

            mm_testenv_init(&e, sizes[k], 1);
            mm_testenv_select(&e, allocators[i]);
            for (uint64_t m = 0; m < sizes[k]; m++)
                get(&e, 0, OWNER);
            put(&e, mfn(0), 0, OWNER);
            mm_testenv_audit(&e, sizes[k] - 1);
            assert_int_equal(info_of(&e).largest_free_order, 0);
            for (uint64_t m = 1; m < sizes[k]; m++)
                put(&e, mfn(m), 0, OWNER);
            mm_testenv_audit(&e, 0);
            mm_testenv_fini(&e);
        }
    }
}

/* Frames that are free but out of use beside a chunk that is freed stay out of the merged block. */
static void test_freed_chunk_merging_with_reserved_free_frames(void **state)
{
    struct heap_offline_report r;

    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct mm_testenv e;
        mfn_t m, n;

        mm_testenv_init(&e, 1024, 1);
        mm_testenv_select(&e, allocators[i]);
        m = get(&e, 9, OWNER);
        assert_int_equal(heap_offline(e.heap, mfn(m.v ^ 512), 1, &r), MF_OK);
        assert_int_equal(r.changed, 1);
        put(&e, m, 9, OWNER);
        assert_int_equal(info_of(&e).free, 1023);
        assert_int_equal(heap_alloc(e.heap, 0, 10, OWNER, FRAME_T_RAM, 0, &n), MF_E_NO_MEMORY);
        for (unsigned k = 0; k < 1023; k++)
            assert_int_not_equal(get(&e, 0, OWNER).v, m.v ^ 512);
        assert_int_equal(heap_alloc(e.heap, 0, 0, OWNER, FRAME_T_RAM, 0, &n), MF_E_NO_MEMORY);
        mm_testenv_fini(&e);
    }
}

/* Everything of `e` that is free, taken in blocks as large as possible: aligned, none twice. */
static uint64_t take_all(struct mm_testenv *e, uint8_t *seen)
{
    uint64_t n = 0;
    mfn_t m;

    for (unsigned order = 13; order < 14; order--) {
        while (heap_alloc(e->heap, 0, order, OTHER, FRAME_T_RAM, HEAP_ZERO, &m) == MF_OK) {
            assert_int_equal(m.v & ((1u << order) - 1), 0);
            assert_true(reads_zero(e, m, order));
            for (uint64_t i = 0; i < 1u << order; i++)
                assert_int_equal(seen[m.v + i]++, 0);
            n += 1u << order;
        }
    }
    return n;
}

/* The rest of the block is neither lost nor misaligned nor handed out twice. */
static void test_offlined_frame_inside_a_block(void **state)
{
    static const unsigned orders[] = {0, 1, 3, 6, 8, 9, 11};

    (void)state;
    for (unsigned i = 0; i < ALLOCATORS * 7; i++) {
        unsigned order = orders[i / ALLOCATORS], bad;
        struct heap_offline_report r;
        struct mm_testenv e;
        uint8_t *seen = calloc(1, 4096);
        mfn_t m;

        mm_testenv_init(&e, 4096, 2);
        mm_testenv_select(&e, allocators[i % ALLOCATORS]);
        get(&e, 0, OWNER);
        m = get(&e, order, OWNER);
        memset(heap_ptr(e.heap, m), 0x77, FRAME_SIZE << order);
        bad = (1u << order) * 5 / 7;
        assert_int_equal(heap_offline(e.heap, mfn(m.v + bad), 1, &r), MF_OK);
        assert_int_equal(r.waiting, 1);
        assert_int_equal(heap_frame_use(e.heap, mfn(m.v + bad)), HEAP_FRAME_WAITING);
        assert_int_equal(info_of(&e).offline_waiting, 1);
        put(&e, m, order, OWNER);
        assert_int_equal(heap_frame_use(e.heap, mfn(m.v + bad)), HEAP_FRAME_OFFLINE);
        assert_int_equal(info_of(&e).offline_waiting, 0);
        assert_int_equal(info_of(&e).offline, 1);
        assert_int_equal(info_of(&e).free, 4094);
        assert_int_equal(info_of(&e).dirty, (1u << order) - 1);
        assert_int_equal(heap_free(e.heap, 0, mfn(m.v + bad), 0, OWNER), MF_E_WRONG_OWNER);
        mm_testenv_select(&e, allocators[(i + 1) % ALLOCATORS]);
        assert_int_equal(take_all(&e, seen), 4094);
        assert_int_equal(seen[m.v + bad], 0);
        mm_testenv_fini(&e);
        free(seen);
    }
}

/* In the middle of a large free block, over its ends, twice; and back again. */
static void test_free_frames_offline_and_online(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct heap_offline_report r;
        struct heap_audit a = {0};
        struct mm_testenv e;
        mfn_t m;

        mm_testenv_init(&e, 8192 + 5, 2);
        mm_testenv_select(&e, allocators[i]);
        assert_int_equal(heap_offline(e.heap, mfn(500), 1100, &r), MF_OK);
        assert_int_equal(r.changed, 1100);
        assert_int_equal(heap_offline(e.heap, mfn(1000), 700, &r), MF_OK);
        assert_int_equal(r.changed, 100);
        assert_int_equal(r.already, 600);
        assert_int_equal(heap_offline(e.heap, mfn(8196), 1, &r), MF_OK);
        assert_int_equal(heap_offline(e.heap, mfn(8196), 2, &r), MF_E_RANGE);
        assert_int_equal(heap_offline(e.heap, mfn(0), 0, &r), MF_E_RANGE);
        assert_int_equal(heap_offline(e.heap, mfn(UINT64_MAX), 2, &r), MF_E_RANGE);
        assert_int_equal(heap_online(e.heap, mfn(1), UINT64_MAX, &r), MF_E_RANGE);
        for (unsigned k = 1; k <= ALLOCATORS; k++) {
            assert_int_equal(info_of(&e).offline, 1201);
            assert_int_equal(info_of(&e).free, 8197 - 1201);
            mm_testenv_select(&e, allocators[(i + k) % ALLOCATORS]);
        }
        while (heap_audit_step(e.heap, &a, 1000) == MF_AGAIN)
            ;
        assert_int_equal(a.offline, 1201);
        assert_int_equal(a.bad_records + a.lost + a.overlaps + a.listed_in_use, 0);
        m = get(&e, 11, OWNER);
        assert_true(m.v >= 2048);
        assert_int_equal(heap_online(e.heap, mfn(0), 8197, &r), MF_OK);
        assert_int_equal(r.changed, 1201);
        assert_int_equal(r.already, 8197 - 1201);
        put(&e, m, 11, OWNER);
        mm_testenv_audit(&e, 0);
        m = get(&e, 13, OWNER);
        assert_true(reads_zero(&e, m, 13));
        mm_testenv_fini(&e);
    }
}

/* An allocator that cannot let single frames go is started anew; when that fails nothing is lost.
 */
static void test_offline_without_the_operation_for_it(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct mf_allocator_ops ops = *mm_test_allocator(allocators[i]);
        struct heap_offline_report r;
        struct mm_testenv e;
        mfn_t m;

        ops.size = offsetof(struct mf_allocator_ops, take);
        mm_testenv_init(&e, 4096, 1);
        assert_int_equal(heap_offline(e.heap, mfn(0), 1, &r), MF_E_NO_ALLOCATOR);
        assert_int_equal(heap_select(e.heap, "old", &ops, NULL, NULL), MF_OK);
        m = get(&e, 9, OWNER);
        e.fail_reserve = 1;
        assert_int_equal(heap_offline(e.heap, mfn(m.v ^ 512), 100, &r), MF_E_NO_MEMORY);
        e.fail_reserve = 0;
        mm_testenv_audit(&e, 512);
        assert_int_equal(heap_offline(e.heap, mfn((m.v ^ 512) & ~1023ul), 1024, &r), MF_OK);
        assert_int_equal(r.changed, 512);
        assert_int_equal(r.waiting, 512);
        put(&e, m, 9, OWNER);
        assert_int_equal(info_of(&e).offline, 1024);
        assert_int_equal(info_of(&e).free, 3072);
        mm_testenv_select(&e, allocators[i]);
        assert_int_equal(heap_online(e.heap, mfn(0), 4096, &r), MF_OK);
        mm_testenv_audit(&e, 0);
        mm_testenv_fini(&e);
    }
}

/* A mark that is taken off again leaves no trace. */
static void test_offline_taken_back_before_the_free(void **state)
{
    struct heap_offline_report r;
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, 2048, 1);
    mm_testenv_select(&e, "buddy-lazy");
    m = get(&e, 10, OWNER);
    assert_int_equal(heap_offline(e.heap, mfn(m.v + 3), 600, &r), MF_OK);
    assert_int_equal(r.waiting, 600);
    assert_int_equal(heap_offline(e.heap, mfn(m.v + 3), 600, &r), MF_OK);
    assert_int_equal(r.already, 600);
    assert_int_equal(heap_split(e.heap, 0, m, 10, 5, OWNER), MF_OK);
    assert_int_equal(heap_join(e.heap, 0, m, 10, 5, OWNER), MF_OK);
    assert_int_equal(info_of(&e).offline_waiting, 600);
    assert_int_equal(heap_online(e.heap, m, 1024, &r), MF_OK);
    assert_int_equal(r.waiting, 600);
    put(&e, m, 10, OWNER);
    assert_int_equal(info_of(&e).offline, 0);
    assert_int_equal(info_of(&e).offline_waiting, 0);
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* Half of the block is clean, half dirty: merged, then split again, the dirt is where it was. */
static void test_clean_block_merged_with_a_dirty_one(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS * 11; i++) {
        unsigned order = i / ALLOCATORS;
        struct mm_testenv e;
        mfn_t a, b, both;

        mm_testenv_init(&e, 2u << order, 1);
        mm_testenv_select(&e, allocators[i % ALLOCATORS]);
        a = get(&e, order, OWNER);
        b = get(&e, order, OWNER);
        memset(heap_ptr(e.heap, a), 0xee, FRAME_SIZE << order);
        put(&e, a, order, OWNER);
        assert_int_equal(heap_free_clean(e.heap, 0, b, order, OWNER), MF_OK);
        mm_testenv_audit(&e, 0); /* drains: now they are one */
        assert_int_equal(info_of(&e).dirty, 1u << order);
        assert_int_equal(info_of(&e).largest_free_order, order + 1);
        both = get(&e, order + 1, OTHER);
        assert_int_equal(both.v, 0);
        assert_true(reads_zero(&e, both, order + 1));
        assert_int_equal(info_of(&e).dirty, 0);
        mm_testenv_fini(&e);
    }
}

/* An owner that takes its own data back unscrubbed and frees it again leaves it dirty for others.
 */
static void test_no_scrub_allocation_clearing_the_dirty_mark(void **state)
{
    static const unsigned orders[] = {0, 9, 10};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        unsigned order = orders[i];
        struct mm_testenv e;
        mfn_t m, n;

        mm_testenv_init(&e, 1u << order, 1);
        mm_testenv_select(&e, "buddy-lazy");
        m = get(&e, order, OWNER);
        memset(heap_ptr(e.heap, m), 0x3c, FRAME_SIZE << order);
        put(&e, m, order, OWNER);
        assert_int_equal(heap_alloc(e.heap, 0, order, OWNER, FRAME_T_RAM, 0, &n), MF_OK);
        assert_false(reads_zero(&e, n, order)); /* it was not scrubbed: that is the condition */
        put(&e, n, order, OWNER);
        assert_int_equal(info_of(&e).dirty, 1u << order);
        assert_int_equal(heap_alloc(e.heap, 0, order, OTHER, FRAME_T_RAM, 0, &n), MF_OK);
        assert_true(reads_zero(&e, n, order));
        mm_testenv_fini(&e);
    }
}

/* Whose data is in a 2 MiB block is forgotten as soon as a part of it is another's. */
static void test_large_block_with_data_of_two_owners(void **state)
{
    struct mm_testenv e;
    mfn_t m, s, n;

    (void)state;
    mm_testenv_init(&e, 512, 1);
    mm_testenv_select(&e, "buddy-lazy");
    m = get(&e, 9, OWNER);
    memset(heap_ptr(e.heap, m), 0x3c, FRAME_SIZE << 9);
    put(&e, m, 9, OWNER);
    s = get(&e, 3, OTHER);
    memset(heap_ptr(e.heap, s), 0x55, FRAME_SIZE << 3);
    put(&e, s, 3, OTHER);
    assert_int_equal(heap_alloc(e.heap, 0, 9, OWNER, FRAME_T_RAM, 0, &n), MF_OK);
    for (unsigned i = 0; i < 8; i++)
        assert_true(reads_zero(&e, mfn(s.v + i), 0));
    put(&e, n, 9, OWNER);
    assert_int_equal(heap_alloc(e.heap, 0, 9, OTHER, FRAME_T_RAM, 0, &n), MF_OK);
    assert_true(reads_zero(&e, n, 9));
    mm_testenv_fini(&e);
}

/* What heap_alloc returns is clean already, at every order, policy and history. */
static void test_frame_assigned_before_scrubbed(void **state)
{
    (void)state;
    for (unsigned policy = 0; policy < HEAP_SCRUB_KINDS; policy++) {
        for (unsigned i = 0; i < ALLOCATORS; i++) {
            uint64_t seed = 12 + policy;
            struct mm_testenv e;

            mm_testenv_init(&e, 4096, 2);
            mm_testenv_select(&e, allocators[i]);
            assert_int_equal(heap_set_scrub(e.heap, (enum heap_scrub)policy), MF_OK);
            for (unsigned k = 0; k < 150; k++) {
                uint64_t r = mm_test_random(&seed);
                unsigned order = (unsigned)(r % 12);
                uint32_t owner = OWNER_VM(r >> 8 & 3);
                mfn_t m = get(&e, order, owner);

                assert_true(reads_zero(&e, m, order));
                memset(heap_ptr(e.heap, m), 0x11 + (int)(owner & 3), FRAME_SIZE << order);
                put(&e, m, order, owner);
                if (r >> 20 & 1)
                    heap_scrub_step(e.heap, r >> 21 & 63);
            }
            mm_testenv_audit(&e, 0);
            mm_testenv_fini(&e);
        }
    }
}

struct slow_punch {
    struct mm_testenv *e;
    uint64_t largest, calls;
    bool locked;
};
static struct slow_punch punch_seen;

/* Looks from inside the scrub whether the heap still serves others. */
static enum mf_status punch_while_serving(void *arg, uint64_t offset, uint64_t bytes)
{
    struct mm_testenv *e = punch_seen.e;
    mfn_t m;

    (void)arg;
    if (bytes > punch_seen.largest)
        punch_seen.largest = bytes;
    punch_seen.calls++;
    for (unsigned i = 0; i < e->heap->slots; i++)
        if (!mm_lock_try(&e->heap->slot[i].lock))
            punch_seen.locked = true;
        else
            mm_lock_drop(&e->heap->slot[i].lock);
    if (!punch_seen.locked && heap_alloc(e->heap, 1, 0, OTHER, FRAME_T_RAM, HEAP_ZERO, &m) == MF_OK)
        heap_free_clean(e->heap, 1, m, 0, OTHER);
    return madvise(e->arena.base + offset, bytes, MADV_DONTNEED) ? MF_E_IO : MF_OK;
}

/* A big block is scrubbed in steps of bounded size, with no lock held: others go on. */
static void test_big_scrub_blocking_everything(void **state)
{
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, (1u << 18) + 2048, 2);
    mm_testenv_select(&e, "buddy-lazy");
    e.env.punch = punch_while_serving;
    punch_seen = (struct slow_punch){.e = &e};
    m = get(&e, 18, OWNER);
    memset(heap_ptr(e.heap, mfn(m.v + 99999)), 1, FRAME_SIZE);
    put(&e, m, 18, OWNER);
    m = get(&e, 18, OTHER);
    assert_true(reads_zero(&e, mfn(m.v + 99999), 0));
    assert_true(punch_seen.calls >= 2);
    assert_true(punch_seen.largest <= UINT64_C(64) << 20);
    assert_false(punch_seen.locked);
    assert_int_equal(info_of(&e).punched, 1u << 18);
    assert_int_equal(heap_free_clean(e.heap, 0, m, 18, OTHER), MF_OK);
    mm_testenv_audit(&e, 0);
    m = get(&e, 11, OWNER);
    put(&e, m, 11, OWNER);
    assert_int_equal(info_of(&e).dirty, 2048);
    /* In the background: never more than the budget and one word of marks. */
    while (info_of(&e).dirty) {
        uint64_t before = info_of(&e).dirty;

        heap_scrub_step(e.heap, 100);
        assert_true(before - info_of(&e).dirty < 100 + 64);
    }
    mm_testenv_fini(&e);
}

/* Order from the caller: a shift that is cut off at 32 would make a large request a small one. */
static void test_unbounded_order(void **state)
{
    static const unsigned orders[] = {19, 31, 32, 33, 63, 64, 65, 256, UINT32_MAX};

    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        struct mm_testenv e;
        uint64_t first;
        mfn_t m;

        mm_testenv_init(&e, 4096, 1);
        mm_testenv_select(&e, allocators[i]);
        for (unsigned k = 0; k < sizeof orders / sizeof orders[0]; k++) {
            assert_int_equal(heap_alloc(e.heap, 0, orders[k], OWNER, FRAME_T_RAM, 0, &m),
                             MF_E_RANGE);
            assert_int_equal(heap_free(e.heap, 0, mfn(0), orders[k], OWNER), MF_E_RANGE);
            assert_int_equal(e.heap->alloc.ops->alloc(&e.heap->alloc.env, 0, orders[k], &first),
                             MF_PL_NO_MEMORY);
            assert_int_not_equal(e.heap->alloc.ops->free(&e.heap->alloc.env, 0, 0, orders[k]),
                                 MF_PL_OK);
        }
        mm_testenv_audit(&e, 0);
        mm_testenv_fini(&e);
    }
}

/* An owner near its limit, a limit or a claim near the largest number: sums must not wrap. */
static void test_total_plus_order_wrapping(void **state)
{
    struct heap_shortage w;
    struct mm_testenv e;
    mfn_t m;

    (void)state;
    mm_testenv_init(&e, 4096, 1);
    mm_testenv_select(&e, "buddy-lazy");
    assert_int_equal(heap_owner_begin(e.heap, OWNER, UINT64_MAX), MF_OK);
    assert_int_equal(heap_claim(e.heap, OWNER, UINT64_MAX, &w), MF_E_NO_MEMORY);
    assert_int_equal(heap_claim(e.heap, OWNER, UINT64_MAX / 2 + 1, &w), MF_E_NO_MEMORY);
    assert_int_equal(w.free, 4096);
    assert_int_equal(heap_claim(e.heap, OWNER, 4096, &w), MF_OK);
    assert_int_equal(heap_claim(e.heap, OWNER, UINT64_MAX, &w), MF_E_QUOTA);
    assert_int_equal(heap_claim_release(e.heap, OWNER), 4096);
    m = get(&e, 12, OWNER);
    assert_int_equal(heap_claim(e.heap, OWNER, UINT64_MAX - 4095, &w), MF_E_QUOTA);
    put(&e, m, 12, OWNER);
    assert_int_equal(heap_owner_end(e.heap, OWNER), 0);
    assert_int_equal(heap_owner_begin(e.heap, OWNER, 2), MF_OK);
    assert_int_equal(heap_alloc(e.heap, 0, 18, OWNER, FRAME_T_RAM, 0, &m), MF_E_QUOTA);
    assert_int_equal(heap_claim(e.heap, OWNER, UINT64_MAX, &w), MF_E_QUOTA);
    mm_testenv_audit(&e, 0);
    mm_testenv_fini(&e);
}

/* Refused at every order; nothing of it reaches the allocator's lists. */
static void test_double_free(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS * 12; i++) {
        unsigned order = i / ALLOCATORS;
        struct mm_testenv e;
        mfn_t m;

        mm_testenv_init(&e, 4096, 1);
        mm_testenv_select(&e, allocators[i % ALLOCATORS]);
        m = get(&e, order, OWNER);
        put(&e, m, order, OWNER);
        assert_int_equal(heap_free(e.heap, 0, m, order, OWNER), MF_E_DOUBLE_FREE);
        assert_int_equal(heap_free_clean(e.heap, 0, m, order, OWNER), MF_E_DOUBLE_FREE);
        assert_int_equal(info_of(&e).refused_double, 2);
        assert_int_equal(info_of(&e).free, 4096);
        mm_testenv_audit(&e, 0);
        mm_testenv_fini(&e);
    }
}

/* The last frame of a range that ends at no boundary is the last one that is given. */
static void test_unaligned_range_end_rounded_up(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        for (uint64_t frames = 1; frames < 3000; frames = frames * 3 + 2) {
            struct alone a;
            uint64_t m, n = 0;

            alone_init(&a, allocators[i], 4096);
            assert_int_equal(a.ops->add(&a.env, 7, frames), MF_PL_OK);
            assert_int_equal(alone_stats(&a).free_frames, frames);
            while (a.ops->alloc(&a.env, 0, 0, &m) == MF_PL_OK) {
                assert_true(m >= 7 && m < 7 + frames);
                n++;
            }
            assert_int_equal(n, frames);
            assert_int_equal(a.ops->add(&a.env, 4090, 7), MF_PL_RANGE);
            assert_int_equal(a.ops->add(&a.env, 2, UINT64_MAX), MF_PL_RANGE);
            alone_fini(&a);
        }
    }
}

/*
 * A block of several words of marks, some late one of which is taken: the claim is refused and the
 * earlier words are as before. In the table, and in `bitmap`, which has such words of its own.
 */
static void test_multi_word_change_failing_midway_without_undo(void **state)
{
    struct ft_dirty d;
    struct mm_testenv e;

    (void)state;
    mm_testenv_init(&e, 4096, 1);
    for (unsigned order = 4; order <= 11; order++) {
        struct frame_table *ft = &e.heap->ft;
        uint64_t last = (1u << order) - 1;
        bool all;

        for (unsigned shared = 0; shared < 2; shared++) {
            assert_true(ft_claim(ft, 1, 0, shared, &d)); /* dirt in the first word */
            ft_release(ft, 1, 0, true, shared);
            assert_true(ft_claim(ft, last, 0, shared, &d));
            assert_false(order < GROUP_ORDER ? ft_claim(ft, 0, order, shared, &d)
                                             : ft_claim_large(ft, 0, order, shared, &all));
            assert_false(ft_any_used(ft, 0, last));
            assert_int_equal(ft_mark(ft, 1), MARK_DIRTY);
            ft_release(ft, last, 0, false, shared);
            assert_true(order < GROUP_ORDER ? ft_claim(ft, 0, order, shared, &d)
                                            : ft_claim_large(ft, 0, order, shared, &all));
            if (order >= GROUP_ORDER)
                heap_scrub_large(e.heap, 0, order, OWNER_NONE, 0);
            ft_release(ft, 0, order, false, shared);
            assert_false(ft_any_used(ft, 0, 4096));
        }
    }
    mm_testenv_fini(&e);
    for (unsigned order = 7; order <= 12; order++) {
        struct alone a;
        uint64_t m, last = (1u << order) - 1;

        alone_init(&a, "bitmap", 1u << order);
        assert_int_equal(a.ops->add(&a.env, 0, last), MF_PL_OK); /* all but the last */
        assert_int_equal(a.ops->alloc(&a.env, 0, order, &m), MF_PL_NO_MEMORY);
        assert_int_equal(alone_stats(&a).free_frames, last);
        assert_int_equal(a.ops->add(&a.env, last, 1), MF_PL_OK);
        assert_int_equal(a.ops->alloc(&a.env, 0, order, &m), MF_PL_OK);
        alone_fini(&a);
    }
}

/*
 * A new allocator of a heap in which nothing is free hears of no range; the first that it learns is
 * a block that comes back.
 */
static void test_first_frame_comes_by_a_free(void **state)
{
    static const unsigned orders[] = {0, 3, 9, 10};

    (void)state;
    for (unsigned i = 0; i < ALLOCATORS * 4; i++) {
        unsigned order = orders[i / ALLOCATORS];
        struct alone a;
        uint64_t m;

        alone_init(&a, allocators[i % ALLOCATORS], 4096);
        if (i & 1)
            assert_int_equal(a.ops->add(&a.env, 0, 0), MF_PL_OK);
        assert_int_equal(alone_stats(&a).free_frames, 0);
        assert_int_equal(a.ops->free(&a.env, 1, 2048, order), MF_PL_OK);
        a.ops->drain(&a.env);
        assert_int_equal(alone_stats(&a).free_frames, 1u << order);
        for (unsigned k = 0; k < 1u << order; k++) {
            assert_int_equal(a.ops->alloc(&a.env, 0, 0, &m), MF_PL_OK);
            assert_int_equal(m >> order, 2048u >> order);
        }
        assert_int_equal(a.ops->alloc(&a.env, 0, 0, &m), MF_PL_NO_MEMORY);
        alone_fini(&a);
    }
}

/* `take` out of free blocks against a model: exactly these frames are gone, or nothing. */
static void test_take_of_single_frames(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++) {
        uint64_t seed = 5 + i, left = 3000;
        uint8_t taken[3000] = {0};
        struct alone a;

        alone_init(&a, allocators[i], 3000);
        assert_int_equal(a.ops->add(&a.env, 0, 3000), MF_PL_OK);
        for (unsigned k = 0; k < 400; k++) {
            uint64_t first = mm_test_random(&seed) % 3000, n = 1 + mm_test_random(&seed) % 30;
            bool can = first + n <= 3000;

            for (uint64_t m = first; can && m < first + n; m++)
                can = !taken[m];
            assert_int_equal(a.ops->take(&a.env, first, n), can ? MF_PL_OK : MF_PL_RANGE);
            for (uint64_t m = first; can && m < first + n; m++)
                taken[m] = 1;
            left -= can ? n : 0;
            assert_int_equal(alone_stats(&a).free_frames, left);
        }
        for (uint64_t m; a.ops->alloc(&a.env, 0, 0, &m) == MF_PL_OK; left--)
            assert_int_equal(taken[m]++, 0);
        assert_int_equal(left, 0);
        alone_fini(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range_that_spans_two_zones),
        cmocka_unit_test(test_ranges_that_touch_are_one),
        cmocka_unit_test(test_block_at_frame_0_merging_across_a_boundary),
        cmocka_unit_test(test_freed_chunk_merging_with_reserved_free_frames),
        cmocka_unit_test(test_offlined_frame_inside_a_block),
        cmocka_unit_test(test_free_frames_offline_and_online),
        cmocka_unit_test(test_offline_without_the_operation_for_it),
        cmocka_unit_test(test_offline_taken_back_before_the_free),
        cmocka_unit_test(test_clean_block_merged_with_a_dirty_one),
        cmocka_unit_test(test_no_scrub_allocation_clearing_the_dirty_mark),
        cmocka_unit_test(test_large_block_with_data_of_two_owners),
        cmocka_unit_test(test_frame_assigned_before_scrubbed),
        cmocka_unit_test(test_big_scrub_blocking_everything),
        cmocka_unit_test(test_unbounded_order),
        cmocka_unit_test(test_total_plus_order_wrapping),
        cmocka_unit_test(test_double_free),
        cmocka_unit_test(test_unaligned_range_end_rounded_up),
        cmocka_unit_test(test_multi_word_change_failing_midway_without_undo),
        cmocka_unit_test(test_first_frame_comes_by_a_free),
        cmocka_unit_test(test_take_of_single_frames),
    };

    return cmocka_run_group_tests_name("heap_faults", tests, NULL, NULL);
}
