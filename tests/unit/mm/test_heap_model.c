/*
 * Page heap against a model of every frame: random allocations, frees, splits, offlining, claims,
 * swaps and bad calls, over all allocators. With a number as argument that many operations are done
 * (`test_mm_heap_model 100000000` takes minutes), otherwise a few.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/mm/mm_testenv.h"

static const char *const allocators[] = {MM_TEST_ALLOCATORS};
#define ALLOCATORS (sizeof allocators / sizeof allocators[0])

#define FRAMES (32768u + 77u)
#define BLOCKS 6000u
#define OWNERS 4u
#define CPUS   5u
#define SHORT  (UINT64_C(60000) * ALLOCATORS)

static uint64_t operations = SHORT;

enum { M_FREE, M_USED, M_OFFLINE, M_WAITING };

struct block {
    uint64_t first;
    unsigned order, owner;
    bool used;
    bool written; /* with a pattern that must be found again */
    bool dirty;   /* came with data of its owner's own */
};

struct model {
    struct mm_testenv e;
    const struct mf_allocator_ops *ops[ALLOCATORS];
    uint64_t seed;
    uint8_t frame[FRAMES];
    uint64_t count[4]; /* frames by what they are */
    uint64_t claim[OWNERS];
    struct block block[BLOCKS];
};

static uint64_t rnd(struct model *m, uint64_t n)
{
    return mm_test_random(&m->seed) % n;
}

static void set(struct model *m, uint64_t f, uint8_t what)
{
    m->count[m->frame[f]]--;
    m->count[what]++;
    m->frame[f] = what;
}

static uint64_t claims(const struct model *m)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < OWNERS; i++)
        n += m->claim[i];
    return n;
}

static uint8_t *data_of(struct model *m, const struct block *b)
{
    return heap_ptr(m->e.heap, mfn(b->first));
}

/* Mostly single frames; a few of each order. */
static unsigned some_order(struct model *m)
{
    uint64_t r = rnd(m, 4096);

    return r < 3000 ? 0 : r < 4064 ? (unsigned)(r % 6) : (unsigned)(r % 12);
}

static void do_alloc(struct model *m, struct block *b)
{
    unsigned order = some_order(m), owner = (unsigned)rnd(m, OWNERS);
    bool zero = !rnd(m, 64),
         enough = m->count[M_FREE] && (m->claim[owner] || m->count[M_FREE] > claims(m));
    uint64_t n = UINT64_C(1) << order, used;
    enum mf_status st;
    mfn_t out;

    st = heap_alloc(m->e.heap, (unsigned)rnd(m, CPUS), order, OWNER_VM(owner), FRAME_T_RAM,
                    zero ? HEAP_ZERO : 0, &out);
    if (st != MF_OK) {
        assert_int_equal(st, MF_E_NO_MEMORY);
        assert_false(!order && enough); /* a single frame is refused when there is none only */
        return;
    }
    assert_true(order || enough);
    assert_int_equal(out.v & (n - 1), 0);
    assert_true(out.v < FRAMES && n <= FRAMES - out.v);
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(m->frame[out.v + i], M_FREE);
        set(m, out.v + i, M_USED);
    }
    used = m->claim[owner] < n ? m->claim[owner] : n;
    m->claim[owner] -= used;
    *b = (struct block){.first = out.v, .order = order, .owner = owner, .used = true};
    if (zero) {
        assert_int_equal(data_of(m, b)[0] | data_of(m, b)[(FRAME_SIZE << order) - 1], 0);
        memset(data_of(m, b), 1 + (int)owner, 64);
        data_of(m, b)[(FRAME_SIZE << order) - 1] = 7;
        b->written = true;
    } else {
        b->dirty = data_of(m, b)[0] | data_of(m, b)[(FRAME_SIZE << order) - 1];
        assert_true(!b->dirty || !order || order >= 9); /* what may come back unscrubbed */
    }
}

/* What is not this block's must be refused and change nothing. */
static void bad_frees(struct model *m, const struct block *b)
{
    struct heap *h = m->e.heap;
    unsigned cpu = (unsigned)rnd(m, CPUS);

    assert_int_equal(heap_free(h, cpu, mfn(b->first), b->order, OWNER_VM(b->owner + 1)),
                     MF_E_WRONG_OWNER);
    if (b->order)
        assert_int_equal(heap_free(h, cpu, mfn(b->first), b->order - 1, OWNER_VM(b->owner)),
                         MF_E_WRONG_ORDER);
}

static void do_free(struct model *m, struct block *b)
{
    enum mf_status st;
    unsigned cpu = (unsigned)rnd(m, CPUS);

    if (!rnd(m, 1000))
        bad_frees(m, b);
    if (b->written)
        assert_int_equal(data_of(m, b)[63], 1 + b->owner);
    if (b->written || b->dirty) {
        st = heap_free(m->e.heap, cpu, mfn(b->first), b->order, OWNER_VM(b->owner));
    } else {
        st = heap_free_clean(m->e.heap, cpu, mfn(b->first), b->order, OWNER_VM(b->owner));
    }
    assert_int_equal(st, MF_OK);
    for (uint64_t f = b->first; f < b->first + (UINT64_C(1) << b->order); f++)
        set(m, f, m->frame[f] == M_WAITING ? M_OFFLINE : M_FREE);
    b->used = false;
}

/* Halves of a block; the second one takes a place of its own. */
static void do_split(struct model *m, struct block *b, struct block *other)
{
    if (!b->order || other->used || b->written || b->dirty)
        return;
    assert_int_equal(
        heap_split(m->e.heap, 0, mfn(b->first), b->order, b->order - 1, OWNER_VM(b->owner)), MF_OK);
    b->order--;
    *other = *b;
    other->first += UINT64_C(1) << b->order;
}

static void do_offline(struct model *m, bool online)
{
    uint64_t first = rnd(m, FRAMES), n = 1 + rnd(m, 90), changed = 0, waiting = 0;
    struct heap_offline_report r;

    n = n < FRAMES - first ? n : FRAMES - first;
    if (!online && m->count[M_OFFLINE] + m->count[M_WAITING] > 2000)
        return;
    for (uint64_t f = first; f < first + n; f++) {
        uint8_t was = m->frame[f];

        changed += was == (online ? M_OFFLINE : M_FREE);
        waiting += was == (online ? M_WAITING : M_USED);
        if (online)
            set(m, f, was == M_OFFLINE ? M_FREE : was == M_WAITING ? M_USED : was);
        else
            set(m, f, was == M_FREE ? M_OFFLINE : was == M_USED ? M_WAITING : was);
    }
    if (online)
        assert_int_equal(heap_online(m->e.heap, mfn(first), n, &r), MF_OK);
    else
        assert_int_equal(heap_offline(m->e.heap, mfn(first), n, &r), MF_OK);
    assert_int_equal(r.changed, changed);
    assert_int_equal(r.waiting, waiting);
    assert_int_equal(r.already, n - changed - waiting);
}

static void do_claim(struct model *m)
{
    unsigned o = (unsigned)rnd(m, OWNERS);
    uint64_t n = rnd(m, 3000);
    bool ok = m->count[M_FREE] >= claims(m) && m->count[M_FREE] - claims(m) >= n;

    if (rnd(m, 2)) {
        assert_int_equal(heap_claim_release(m->e.heap, OWNER_VM(o)), m->claim[o]);
        m->claim[o] = 0;
        return;
    }
    assert_int_equal(heap_claim(m->e.heap, OWNER_VM(o), n, NULL), ok ? MF_OK : MF_E_NO_MEMORY);
    m->claim[o] += ok ? n : 0;
}

/* Everything that the heap says about itself, against the model. */
static void compare(struct model *m)
{
    struct heap_audit a = {0};
    struct heap_info i;

    heap_get_info(m->e.heap, &i);
    assert_int_equal(i.free, m->count[M_FREE]);
    assert_int_equal(i.offline, m->count[M_OFFLINE]);
    assert_int_equal(i.offline_waiting, m->count[M_WAITING]);
    assert_int_equal(i.used_ram, m->count[M_USED] + m->count[M_WAITING]);
    assert_int_equal(i.claimed, claims(m));
    assert_int_equal(i.refused_plugin, 0);
    while (heap_audit_step(m->e.heap, &a, 5000) == MF_AGAIN)
        ;
    assert_int_equal(a.bad_records + a.overlaps + a.lost + a.listed_in_use, 0);
    assert_int_equal(a.listed_free, m->count[M_FREE]);
    assert_int_equal(a.offline, m->count[M_OFFLINE]);
}

static void rarely(struct model *m, uint64_t step)
{
    unsigned next = (unsigned)rnd(m, ALLOCATORS);

    if (step % 512 == 0)
        heap_scrub_step(m->e.heap, rnd(m, 100));
    if (step % 1024 == 1)
        do_offline(m, rnd(m, 2));
    if (step % 2048 == 2)
        do_claim(m);
    if (step % 65536 == 3)
        assert_int_equal(heap_set_scrub(m->e.heap, (enum heap_scrub)rnd(m, HEAP_SCRUB_KINDS)),
                         MF_OK);
    if (step % 32768 == 4)
        compare(m);
    if (step % 32768 == 5)
        assert_int_equal(heap_select(m->e.heap, allocators[next], m->ops[next], NULL, NULL), MF_OK);
}

static void run(unsigned first, uint64_t steps)
{
    struct model *m = calloc(1, sizeof *m);
    uint64_t step;

    assert_non_null(m);
    m->seed = 1000003 * (first + 1);
    m->count[M_FREE] = FRAMES;
    mm_testenv_init(&m->e, FRAMES, CPUS);
    for (unsigned i = 0; i < ALLOCATORS; i++)
        m->ops[i] = mm_test_allocator(allocators[i]);
    mm_testenv_select(&m->e, allocators[first]);
    for (unsigned i = 0; i < OWNERS; i++)
        assert_int_equal(heap_owner_begin(m->e.heap, OWNER_VM(i), FRAMES), MF_OK);
    for (step = 0; step < steps; step++) {
        struct block *b = &m->block[rnd(m, BLOCKS)];

        if (!b->used)
            do_alloc(m, b);
        else if (rnd(m, 16))
            do_free(m, b);
        else
            do_split(m, b, &m->block[rnd(m, BLOCKS)]);
        rarely(m, step);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        if (m->block[i].used)
            do_free(m, &m->block[i]);
    compare(m);
    for (unsigned i = 0; i < OWNERS; i++)
        assert_int_equal(heap_owner_end(m->e.heap, OWNER_VM(i)), 0);
    mm_testenv_fini(&m->e);
    free(m);
}

/* Nothing is handed out twice, lost, leaked or miscounted, whatever comes in which order. */
static void test_model_of_every_frame(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ALLOCATORS; i++)
        run(i, operations / ALLOCATORS);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_of_every_frame),
    };

    if (argc > 1)
        operations = strtoull(argv[1], NULL, 10);
    printf("%llu operations\n", (unsigned long long)operations);
    return cmocka_run_group_tests_name("heap_model", tests, NULL, NULL);
}
