/*
 * Bitmap allocator, thread safe: bit fields in two levels with a reservation for each CPU.
 *
 *   group   2 MiB; a 16-bit word counts the frames *in use*, or says that it is one whole
 *   bits    one for each frame, set while it is in use; only read in groups that are neither empty
 *           nor whole
 *   full    a hint, one bit for each group: it had no free frame when it was last looked at; and
 *           one bit for each 64 of them
 *
 * Counting what is in use makes zeroed metadata a valid heap with everything free: adding all of
 * memory writes one page, whatever its size.
 *
 * An allocation first raises the group's count, then finds its bits; a free clears the bits, then
 * lowers the count. So a group whose count is zero has no bit set and can be taken whole by one
 * compare-and-swap. Nothing ever waits but for a group whose bits are being written out.
 *
 * A CPU reserves up to 64 frames, one word of bits, and gives single frames from there; frames that
 * are freed into one other word are collected and go back together. Nobody else touches that, since
 * calls with the same `cpu` never run at once.
 *
 * Reservations are made as low in memory as possible, each CPU counting from a place of its own.
 * So the groups that are low fill up and those above run empty, whatever is freed.
 */
#include <stdatomic.h>

#include "proto/plugin.h"

#define GROUP       512u
#define WORDS       8u /* of 64 bits in a group */
#define GROUP_ORDER 9u
#define COUNT       0x03ffu
#define WHOLE       0x8000u /* all in use, the bits are stale (zero) */
#define WRITING     0x4000u /* the bits of a whole group are being written out */
#define FRAMES_MAX  (UINT64_C(1) << 36)
#define CPUS_MAX    4096u
#define NO_WORD     UINT64_MAX

/* One CPU's. All masks are of frames whose bits are set: to everybody else they are in use. */
struct slot {
    _Alignas(128) uint64_t mask; /* reserved, to be given */
    uint64_t base;               /* the first frame of their word, NO_WORD: none yet */
    uint64_t back;               /* freed and collected */
    uint64_t back_base;
    uint64_t huge;  /* a whole group that was freed last and is given next; NO_WORD: none */
    uint64_t start; /* group where it begins to look */
    uint64_t large; /* where it begins to look for whole groups */
};

struct bitmap {
    uint64_t groups;
    _Atomic uint32_t added; /* 0: no frame was ever added; the groups mean nothing yet */
    _Atomic uint16_t *group;
    _Atomic uint64_t *full;
    _Atomic uint64_t *full64;
    _Atomic uint64_t *bits;
    struct slot *slot;
};

static inline struct bitmap *of(const struct mf_alloc_env *env)
{
    return env->meta;
}

static uint64_t up128(uint64_t n)
{
    return (n + 127) & ~UINT64_C(127);
}

static uint64_t layout(uint64_t nr_frames, uint32_t nr_cpus, struct bitmap *b)
{
    uint64_t groups = (nr_frames + GROUP - 1) / GROUP, at = up128(sizeof *b);
    uint8_t *base = (uint8_t *)b;

    if (b)
        b->slot = (struct slot *)(void *)(base + at);
    at += nr_cpus * sizeof(struct slot);
    if (b)
        b->full = (_Atomic uint64_t *)(void *)(base + at);
    at += up128((groups + 63) / 64 * 8);
    if (b)
        b->full64 = (_Atomic uint64_t *)(void *)(base + at);
    at += up128((groups + 4095) / 4096 * 8);
    if (b)
        b->group = (_Atomic uint16_t *)(void *)(base + at);
    at += up128(groups * 2);
    if (b)
        b->bits = (_Atomic uint64_t *)(void *)(base + at);
    at += groups * WORDS * 8;
    if (b)
        b->groups = groups;
    return (at + 4095) & ~UINT64_C(4095);
}

static uint64_t bitmap_meta_size(uint64_t nr_frames, uint32_t nr_cpus)
{
    if (!nr_frames || nr_frames > FRAMES_MAX || !nr_cpus || nr_cpus > CPUS_MAX)
        return 0;
    return layout(nr_frames, nr_cpus, NULL);
}

static int bitmap_init(const struct mf_alloc_env *env)
{
    struct bitmap *b = of(env);

    if (env->meta_size < bitmap_meta_size(env->nr_frames, env->nr_cpus))
        return MF_PL_NO_MEMORY;
    layout(env->nr_frames, env->nr_cpus, b);
    /* Each CPU begins in a part of its own, so that they meet late. */
    for (uint32_t i = 0; i < env->nr_cpus; i++) {
        b->slot[i].base = b->slot[i].back_base = b->slot[i].huge = NO_WORD;
        b->slot[i].start = b->slot[i].large = b->groups / env->nr_cpus * i;
    }
    return MF_PL_OK;
}

/* ---- groups */

static uint64_t run_mask(unsigned n)
{
    return n >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1;
}

static inline void mark_full(struct bitmap *b, uint64_t g)
{
    uint64_t bit = UINT64_C(1) << g % 64;

    atomic_fetch_or(&b->full[g / 64], bit);
    /* A free that came between did not see the mark: look again. */
    if ((atomic_load(&b->group[g]) & COUNT) < GROUP)
        atomic_fetch_and(&b->full[g / 64], ~bit);
}

static inline void unmark_full(struct bitmap *b, uint64_t g)
{
    uint64_t bit = UINT64_C(1) << g % 64;

    if (!(atomic_load(&b->full[g / 64]) & bit))
        return;
    atomic_fetch_and(&b->full[g / 64], ~bit);
    bit = UINT64_C(1) << g / 64 % 64;
    if (atomic_load(&b->full64[g / 4096]) & bit)
        atomic_fetch_and(&b->full64[g / 4096], ~bit);
}

/* All 64 groups of word w are marked full: notes that, unless one was unmarked meanwhile. */
static void mark_full64(struct bitmap *b, uint64_t w)
{
    uint64_t bit = UINT64_C(1) << w % 64;

    atomic_fetch_or(&b->full64[w / 64], bit);
    if (atomic_load(&b->full[w]) != ~UINT64_C(0))
        atomic_fetch_and(&b->full64[w / 64], ~bit);
}

/* Raises the count by n if that many frames are free; they are then somewhere in the group. */
static inline bool count_up(struct bitmap *b, uint64_t g, unsigned n)
{
    uint16_t w = atomic_load_explicit(&b->group[g], memory_order_relaxed);

    do {
        if (w & (WHOLE | WRITING) || (w & COUNT) + n > GROUP)
            return false;
    } while (!atomic_compare_exchange_weak(&b->group[g], &w, (uint16_t)(w + n)));
    return true;
}

static inline void count_down(struct bitmap *b, uint64_t g, unsigned n)
{
    atomic_fetch_sub(&b->group[g], (uint16_t)n);
    unmark_full(b, g);
}

/* Takes an empty group as one whole. */
static bool take_group(struct bitmap *b, uint64_t g)
{
    uint16_t zero = 0;

    return atomic_compare_exchange_strong(&b->group[g], &zero, (uint16_t)(WHOLE | GROUP));
}

/* Turns a whole group into one with all bits set, so that parts of it can be freed. */
static void write_out(struct bitmap *b, uint64_t g)
{
    uint16_t w = WHOLE | GROUP;

    if (atomic_compare_exchange_strong(&b->group[g], &w, (uint16_t)(WRITING | GROUP))) {
        for (unsigned i = 0; i < WORDS; i++)
            atomic_store_explicit(&b->bits[g * WORDS + i], ~UINT64_C(0), memory_order_relaxed);
        atomic_store(&b->group[g], (uint16_t)GROUP);
        return;
    }
    while (atomic_load(&b->group[g]) & WRITING)
        __builtin_ia32_pause();
}

/* The lowest aligned run of n free frames in a word, n at most 64; 64 when there is none. */
static unsigned find_run(uint64_t used, unsigned order)
{
    static const uint64_t aligned[7] = {UINT64_C(0xffffffffffffffff), UINT64_C(0x5555555555555555),
                                        UINT64_C(0x1111111111111111), UINT64_C(0x0101010101010101),
                                        UINT64_C(0x0001000100010001), UINT64_C(0x0000000100000001),
                                        UINT64_C(0x0000000000000001)};
    uint64_t f = ~used;

    for (unsigned k = 0; k < order; k++)
        f &= f >> (1u << k);
    f &= aligned[order];
    return f ? (unsigned)__builtin_ctzll(f) : 64;
}

/* Sets the bits of a run of up to 64 frames in one word. */
static bool take_in_word(_Atomic uint64_t *p, unsigned order, unsigned *at)
{
    uint64_t w = atomic_load_explicit(p, memory_order_relaxed);

    do {
        *at = find_run(w, order);
        if (*at == 64)
            return false;
    } while (!atomic_compare_exchange_weak(p, &w, w | run_mask(1u << order) << *at));
    return true;
}

/* Sets n whole words or none. */
static bool take_words(_Atomic uint64_t *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t zero = 0;

        if (atomic_compare_exchange_strong(&p[i], &zero, ~UINT64_C(0)))
            continue;
        while (i--)
            atomic_store(&p[i], 0);
        return false;
    }
    return true;
}

/* A block of order below 9 out of one group. */
static bool take_small(struct bitmap *b, uint64_t g, unsigned order, uint64_t *first)
{
    unsigned n = 1u << order, step = order > 6 ? 1u << (order - 6) : 1;

    if (!count_up(b, g, n))
        return false;
    for (unsigned i = 0; i < WORDS; i += step) {
        _Atomic uint64_t *p = &b->bits[g * WORDS + i];
        unsigned at = 0;

        if (step > 1 ? take_words(p, step) : take_in_word(p, order, &at)) {
            *first = g * GROUP + 64u * i + at;
            return true;
        }
    }
    count_down(b, g, n); /* free frames there are, but not in one piece */
    return false;
}

static void give_small(struct bitmap *b, uint64_t first, unsigned order)
{
    uint64_t g = first / GROUP;
    _Atomic uint64_t *p = &b->bits[first / 64];

    if (atomic_load(&b->group[g]) & (WHOLE | WRITING))
        write_out(b, g);
    if (order >= 6)
        for (unsigned i = 0; i < 1u << (order - 6); i++)
            atomic_store(&p[i], 0);
    else
        atomic_fetch_and(p, ~(run_mask(1u << order) << first % 64));
    count_down(b, g, 1u << order);
}

/*
 * A whole group comes back: as it was taken, or with all its bits set. A plain store: should
 * another CPU mark the group full at this very moment, the mark is wrong until memory runs short.
 */
static void give_group(struct bitmap *b, uint64_t g)
{
    if (!(atomic_load_explicit(&b->group[g], memory_order_relaxed) & WHOLE))
        for (unsigned i = 0; i < WORDS; i++)
            atomic_store_explicit(&b->bits[g * WORDS + i], 0, memory_order_relaxed);
    atomic_store_explicit(&b->group[g], 0, memory_order_release);
    unmark_full(b, g);
}

/* ---- search */

/* The next word of `full` from w on that is not known to be all ones. */
static uint64_t next_word(const struct bitmap *b, uint64_t w)
{
    uint64_t words = (b->groups + 63) / 64;

    while (w < words) {
        uint64_t v = ~atomic_load_explicit(&b->full64[w / 64], memory_order_relaxed) >> w % 64;

        if (v)
            return w + (unsigned)__builtin_ctzll(v);
        w = (w / 64 + 1) * 64;
    }
    return words;
}

/* The next group from g on that is not marked full; `groups` or more when there is none. */
static uint64_t next_group(struct bitmap *b, uint64_t g)
{
    while (g < b->groups) {
        uint64_t all = ~atomic_load_explicit(&b->full[g / 64], memory_order_relaxed);

        if (all >> g % 64)
            return g + (unsigned)__builtin_ctzll(all >> g % 64);
        if (!all)
            mark_full64(b, g / 64);
        g = next_word(b, g / 64 + 1) * 64;
    }
    return g;
}

/* Takes a small block from the lowest group in [from, to) that has one. */
static bool search(struct bitmap *b, uint64_t from, uint64_t to, unsigned order, uint64_t *first)
{
    for (uint64_t g = next_group(b, from); g < to; g = next_group(b, g + 1)) {
        uint16_t w = atomic_load_explicit(&b->group[g], memory_order_relaxed);

        if ((w & COUNT) == GROUP)
            mark_full(b, g);
        else if (take_small(b, g, order, first))
            return true;
    }
    return false;
}

static bool alloc_small(struct bitmap *b, const struct slot *s, unsigned order, uint64_t *first)
{
    return search(b, s->start, b->groups, order, first) || search(b, 0, s->start, order, first);
}

/* Whole groups, aligned: all of them or none. */
static bool take_groups(struct bitmap *b, uint64_t g, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (take_group(b, g + i))
            continue;
        while (i--)
            give_group(b, g + i);
        return false;
    }
    return true;
}

static bool alloc_large(struct bitmap *b, struct slot *s, unsigned order, uint64_t *first)
{
    unsigned shift = order - GROUP_ORDER;
    uint64_t runs = b->groups >> shift, run = s->large >> shift, n = UINT64_C(1) << shift;

    for (uint64_t i = 0; i < runs; i++, run++) {
        uint64_t g;

        run = run < runs ? run : 0;
        g = run << shift;
        if (atomic_load_explicit(&b->group[g], memory_order_relaxed) || !take_groups(b, g, n))
            continue;
        *first = g * GROUP;
        s->large = g + n;
        return true;
    }
    return false;
}

/* ---- reservations */

/* Clears the bits of frames in one word, which then are free for all. */
static void give_word(struct bitmap *b, uint64_t base, uint64_t mask)
{
    if (!mask)
        return;
    if (atomic_load(&b->group[base / GROUP]) & (WHOLE | WRITING))
        write_out(b, base / GROUP);
    atomic_fetch_and(&b->bits[base / 64], ~mask);
    count_down(b, base / GROUP, (unsigned)__builtin_popcountll(mask));
}

static void slot_empty(struct bitmap *b, struct slot *s)
{
    give_word(b, s->base, s->mask);
    give_word(b, s->back_base, s->back);
    if (s->huge != NO_WORD)
        give_group(b, s->huge);
    s->mask = s->back = 0;
    s->base = s->back_base = s->huge = NO_WORD;
}

/* Reserves what is free in the first word of the group that has something. */
static bool reserve_in(struct bitmap *b, struct slot *s, uint64_t g)
{
    for (unsigned i = 0; i < WORDS; i++) {
        _Atomic uint64_t *p = &b->bits[g * WORDS + i];
        uint64_t mask = ~atomic_load_explicit(p, memory_order_relaxed), got;
        unsigned n = (unsigned)__builtin_popcountll(mask);

        if (!n || !count_up(b, g, n))
            continue;
        got = mask & ~atomic_fetch_or(p, mask);
        if (got != mask)
            count_down(b, g, n - (unsigned)__builtin_popcountll(got));
        if (!got)
            continue;
        s->base = g * GROUP + 64u * i;
        s->mask = got;
        return true;
    }
    return false;
}

static bool reserve_between(struct bitmap *b, struct slot *s, uint64_t from, uint64_t to)
{
    for (uint64_t g = next_group(b, from); g < to; g = next_group(b, g + 1)) {
        uint16_t w = atomic_load_explicit(&b->group[g], memory_order_relaxed);

        if ((w & COUNT) == GROUP)
            mark_full(b, g);
        else if (reserve_in(b, s, g))
            return true;
    }
    return false;
}

/* Empty: reserves a word; when there is none, what was freed last is used again. */
static bool slot_fill(struct bitmap *b, struct slot *s)
{
    if (reserve_between(b, s, s->start, b->groups) || reserve_between(b, s, 0, s->start))
        return true;
    s->mask = s->back;
    s->base = s->back_base;
    s->back = 0;
    s->back_base = NO_WORD;
    return s->mask != 0;
}

static inline bool alloc_one(struct bitmap *b, struct slot *s, uint64_t *first)
{
    if (!s->mask && !slot_fill(b, s))
        return false;
    *first = s->base + (unsigned)__builtin_ctzll(s->mask);
    s->mask &= s->mask - 1;
    return true;
}

/* Before the first frame is added: nothing is free. */
static void none_free(struct bitmap *b)
{
    for (uint64_t g = 0; g < b->groups; g++)
        atomic_store_explicit(&b->group[g], (uint16_t)(WHOLE | GROUP), memory_order_relaxed);
}

/* A frame comes back before any was added: all are in use, of a former allocator. */
static inline void expect_added(struct bitmap *b)
{
    if (!atomic_load_explicit(&b->added, memory_order_relaxed)) {
        none_free(b);
        atomic_store(&b->added, 1);
    }
}

/* Collects what is freed into another word from now on. */
static __attribute__((noinline)) void start_back(struct bitmap *b, struct slot *s, uint64_t base)
{
    expect_added(b);
    give_word(b, s->back_base, s->back);
    s->back_base = base;
    s->back = 0;
}

static inline void free_one(struct bitmap *b, struct slot *s, uint64_t first)
{
    uint64_t base = first & ~UINT64_C(63), bit = UINT64_C(1) << first % 64;

    if (base == s->base) {
        s->mask |= bit;
        return;
    }
    if (base != s->back_base)
        start_back(b, s, base);
    s->back |= bit;
}

/* Keeps the group for the next who wants one and gives the one kept before to all. */
static void free_huge(struct bitmap *b, struct slot *s, uint64_t g)
{
    expect_added(b);
    if (!(atomic_load_explicit(&b->group[g], memory_order_relaxed) & WHOLE)) {
        give_group(b, g); /* taken in parts */
        return;
    }
    if (s->huge != NO_WORD) {
        s->large = s->huge;
        give_group(b, s->huge);
    }
    s->huge = g;
}

static void bitmap_drain(const struct mf_alloc_env *env)
{
    struct bitmap *b = of(env);

    for (uint32_t i = 0; i < env->nr_cpus; i++)
        slot_empty(b, &b->slot[i]);
}

/* ---- operations */

static bool alloc_any(struct bitmap *b, struct slot *s, uint32_t order, uint64_t *first)
{
    if (!order)
        return alloc_one(b, s, first);
    if (order < GROUP_ORDER)
        return alloc_small(b, s, order, first);
    return alloc_large(b, s, order, first);
}

/* Forgets the hints: a last look at everything. */
static void forget_full(struct bitmap *b)
{
    for (uint64_t i = 0; i < (b->groups + 63) / 64; i++)
        if (atomic_load_explicit(&b->full[i], memory_order_relaxed))
            atomic_store(&b->full[i], 0);
    for (uint64_t i = 0; i < (b->groups + 4095) / 4096; i++)
        atomic_store(&b->full64[i], 0);
}

static __attribute__((noinline)) int alloc_searching(struct bitmap *b, struct slot *s,
                                                     uint32_t order, uint64_t *first)
{
    if (order > MF_ORDER_MAX || !atomic_load_explicit(&b->added, memory_order_relaxed))
        return MF_PL_NO_MEMORY;
    if (alloc_any(b, s, order, first))
        return MF_PL_OK;
    slot_empty(b, s);
    forget_full(b);
    return alloc_any(b, s, order, first) ? MF_PL_OK : MF_PL_NO_MEMORY;
}

static int bitmap_alloc(const struct mf_alloc_env *env, uint32_t cpu, uint32_t order,
                        uint64_t *first)
{
    struct bitmap *b = of(env);
    struct slot *s = &b->slot[cpu];

    if (!order && s->mask) {
        *first = s->base + (unsigned)__builtin_ctzll(s->mask);
        s->mask &= s->mask - 1;
        return MF_PL_OK;
    }
    if (order == GROUP_ORDER && s->huge != NO_WORD) {
        *first = s->huge * GROUP;
        s->huge = NO_WORD;
        return MF_PL_OK;
    }
    return alloc_searching(b, s, order, first);
}

static __attribute__((noinline)) void free_large(struct bitmap *b, struct slot *s, uint64_t first,
                                                 uint32_t order)
{
    expect_added(b);
    if (order < GROUP_ORDER) {
        give_small(b, first, order);
        return;
    }
    s->large = first / GROUP;
    for (uint64_t i = 0; i < UINT64_C(1) << (order - GROUP_ORDER); i++)
        give_group(b, first / GROUP + i);
}

static int bitmap_free(const struct mf_alloc_env *env, uint32_t cpu, uint64_t first, uint32_t order)
{
    struct bitmap *b = of(env);
    struct slot *s = &b->slot[cpu];

    if (order > MF_ORDER_MAX || first >= env->nr_frames)
        return MF_PL_RANGE;
    if (!order)
        free_one(b, s, first);
    else if (order == GROUP_ORDER)
        free_huge(b, s, first / GROUP);
    else
        free_large(b, s, first, order);
    return MF_PL_OK;
}

/* The frames of [at, end) that lie in the word of `at`; *next is where the next word begins. */
static uint64_t mask_in_word(uint64_t at, uint64_t end, uint64_t *next)
{
    uint64_t n = 64 - at % 64;

    n = n < end - at ? n : end - at;
    *next = at + n;
    return run_mask((unsigned)n) << at % 64;
}

static int bitmap_take(const struct mf_alloc_env *env, uint64_t first, uint64_t n)
{
    struct bitmap *b = of(env);
    uint64_t end = first + n, next;

    if (!b->added || first >= env->nr_frames || n > env->nr_frames - first)
        return MF_PL_RANGE;
    for (uint64_t at = first; at < end; at = next) {
        uint64_t mask = mask_in_word(at, end, &next);

        if (atomic_load(&b->group[at / GROUP]) & WHOLE || atomic_load(&b->bits[at / 64]) & mask)
            return MF_PL_RANGE;
    }
    for (uint64_t at = first; at < end; at = next) {
        uint64_t mask = mask_in_word(at, end, &next);

        atomic_fetch_add(&b->group[at / GROUP], (uint16_t)__builtin_popcountll(mask));
        atomic_fetch_or(&b->bits[at / 64], mask);
    }
    return MF_PL_OK;
}

/* All is free, but for the frames that the last group does not have. */
static void all_free(struct bitmap *b, uint64_t nr_frames)
{
    unsigned have = (unsigned)(nr_frames % GROUP);

    if (!have)
        return;
    atomic_store(&b->group[b->groups - 1], (uint16_t)(GROUP - have));
    for (unsigned i = 0; i < WORDS; i++) {
        unsigned in_word = have > 64 * i ? have - 64 * i : 0;

        atomic_store(&b->bits[(b->groups - 1) * WORDS + i], ~run_mask(in_word));
    }
}

static int bitmap_add(const struct mf_alloc_env *env, uint64_t first, uint64_t n)
{
    struct bitmap *b = of(env);

    if (first > env->nr_frames || n > env->nr_frames - first)
        return MF_PL_RANGE;
    if (!atomic_load(&b->added)) {
        atomic_store(&b->added, 1);
        if (!first && n == env->nr_frames) {
            all_free(b, n);
            return MF_PL_OK;
        }
        none_free(b);
    }
    while (n) {
        unsigned order = 0;

        while (order < GROUP_ORDER && !(first >> order & 1) && n >> (order + 1))
            order++;
        if (order == GROUP_ORDER)
            give_group(b, first / GROUP);
        else
            give_small(b, first, order);
        first += UINT64_C(1) << order;
        n -= UINT64_C(1) << order;
    }
    return MF_PL_OK;
}

struct lister {
    mf_alloc_range_fn fn;
    void *arg;
    uint64_t first, n; /* the run being put together */
    bool stopped;
};

static void list_run(struct lister *l, uint64_t first, uint64_t n)
{
    if (l->n && l->first + l->n == first) {
        l->n += n;
        return;
    }
    if (l->n && !l->stopped)
        l->stopped = !l->fn(l->arg, l->first, l->n);
    l->first = first;
    l->n = n;
}

static void list_word(struct lister *l, uint64_t base, uint64_t free)
{
    while (free) {
        unsigned at = (unsigned)__builtin_ctzll(free);
        uint64_t rest = ~(free >> at);
        unsigned n = rest ? (unsigned)__builtin_ctzll(rest) : 64;

        list_run(l, base + at, n);
        free &= at + n >= 64 ? 0 : ~UINT64_C(0) << (at + n);
    }
}

static void bitmap_list(const struct mf_alloc_env *env, mf_alloc_range_fn fn, void *arg)
{
    struct lister l = {.fn = fn, .arg = arg};
    const struct bitmap *b = of(env);

    if (!atomic_load(&b->added))
        return;
    for (uint64_t g = 0; g < b->groups && !l.stopped; g++) {
        uint16_t w = atomic_load(&b->group[g]);

        if (!w)
            list_run(&l, g * GROUP, GROUP);
        else if ((w & COUNT) < GROUP)
            for (unsigned i = 0; i < WORDS; i++)
                list_word(&l, g * GROUP + 64u * i, ~atomic_load(&b->bits[g * WORDS + i]));
    }
    list_run(&l, UINT64_MAX, 0); /* the last one */
}

/* Counts the free blocks of a partly used group: pairs of free neighbours are merged by order. */
static void count_group(const struct bitmap *b, uint64_t g, struct mf_alloc_stats *out)
{
    static const uint64_t aligned[6] = {UINT64_C(0x5555555555555555), UINT64_C(0x1111111111111111),
                                        UINT64_C(0x0101010101010101), UINT64_C(0x0001000100010001),
                                        UINT64_C(0x0000000100000001), UINT64_C(1)};
    unsigned words = 0;

    for (unsigned i = 0; i < WORDS; i++) {
        uint64_t f = ~atomic_load(&b->bits[g * WORDS + i]);

        for (unsigned k = 0; k < 6; k++) {
            uint64_t pair = f & f >> (1u << k) & aligned[k];

            out->free_blocks[k] +=
                (uint64_t)(__builtin_popcountll(f) - 2 * __builtin_popcountll(pair));
            f = pair;
        }
        words |= (unsigned)(f & 1) << i;
    }
    for (unsigned k = 6; k < GROUP_ORDER; k++) {
        unsigned pair = words & words >> (1u << (k - 6)) & (k == 6 ? 0x55u : k == 7 ? 0x11u : 1u);

        out->free_blocks[k] += (uint64_t)(__builtin_popcount(words) - 2 * __builtin_popcount(pair));
        words = pair;
    }
}

/* Empty groups from g on, in aligned runs up to 1 GiB; returns how many were counted. */
static uint64_t count_empty(const struct bitmap *b, uint64_t g, struct mf_alloc_stats *out)
{
    uint64_t n = 1;
    unsigned order = GROUP_ORDER;

    while (order < MF_ORDER_MAX && !(g & n) && g + 2 * n <= b->groups) {
        for (uint64_t i = n; i < 2 * n; i++)
            if (atomic_load_explicit(&b->group[g + i], memory_order_relaxed))
                goto out;
        n *= 2;
        order++;
    }
out:
    out->free_blocks[order]++;
    return n;
}

static void bitmap_stats(const struct mf_alloc_env *env, struct mf_alloc_stats *out)
{
    const struct bitmap *b = of(env);

    if (out->size < sizeof *out)
        return;
    out->free_frames = out->cached = 0;
    for (unsigned k = 0; k <= MF_ORDER_MAX; k++)
        out->free_blocks[k] = 0;
    if (!atomic_load(&b->added))
        return;
    for (uint64_t g = 0, n; g < b->groups; g += n) {
        uint16_t w = atomic_load_explicit(&b->group[g], memory_order_relaxed);

        n = w ? 1 : count_empty(b, g, out);
        out->free_frames += w ? GROUP - (w & COUNT) : n * GROUP;
        if (w && (w & COUNT) < GROUP)
            count_group(b, g, out);
    }
    for (uint32_t i = 0; i < env->nr_cpus; i++)
        out->cached += (uint64_t)(__builtin_popcountll(b->slot[i].mask) +
                                  __builtin_popcountll(b->slot[i].back)) +
                       (b->slot[i].huge != NO_WORD ? GROUP : 0);
    out->free_frames += out->cached;
}

static void bitmap_fini(const struct mf_alloc_env *env)
{
    (void)env; /* all there is lies in the metadata, which is the core's */
}

static const struct mf_allocator_ops bitmap_ops = {
    .size = sizeof(struct mf_allocator_ops),
    .flags = MF_ALLOC_THREAD_SAFE | MF_ALLOC_MERGES,
    .meta_size = bitmap_meta_size,
    .init = bitmap_init,
    .add = bitmap_add,
    .alloc = bitmap_alloc,
    .free = bitmap_free,
    .drain = bitmap_drain,
    .list = bitmap_list,
    .stats = bitmap_stats,
    .fini = bitmap_fini,
    .take = bitmap_take,
};

MF_ALLOCATOR_PLUGIN("bitmap", "1.0", "bit fields with a reservation for each CPU, thread safe",
                    &bitmap_ops);
