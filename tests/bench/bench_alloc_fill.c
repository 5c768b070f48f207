/*
 * hvbench alloc: patterns in which it matters where free memory lies.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench_alloc.h"

void alloc_shuffle(uint64_t *m, uint64_t n)
{
    uint64_t s = 88172645463325252u;

    for (uint64_t i = n; i > 1; i--) {
        uint64_t k = alloc_random(&s) % i, x = m[k];

        m[k] = m[i - 1];
        m[i - 1] = x;
    }
}

/* Takes all there is, in random order in m; how many blocks. */
static uint64_t take_everything(struct alloc_run *r, uint64_t *m)
{
    uint64_t n = 0;

    while (n < r->frames >> r->order && r->way->alloc(r, (unsigned)(n % r->threads), &m[n]))
        n++;
    alloc_shuffle(m, n);
    return n;
}

static uint64_t huge_permille(struct alloc_run *r)
{
    uint64_t free_frames, huge;

    r->way->count(r, &free_frames, &huge);
    return free_frames ? huge * 1000 / free_frames : 0;
}

bool alloc_frag(struct alloc_run *r, uint64_t *before, uint64_t *after)
{
    uint64_t *m = malloc((r->frames >> r->order) * sizeof *m), n, seed = 100;
    bool ok = m != NULL;

    if (!ok)
        return false;
    n = take_everything(r, m);
    for (uint64_t half = n / 2; ok && n > half; n--)
        ok = r->way->free(r, (unsigned)(n % r->threads), m[n - 1]);
    *before = huge_permille(r);
    for (uint64_t i = 0; ok && i < ALLOC_ROUNDS * (n / 10); i++) {
        uint64_t k = alloc_random(&seed) % n;

        ok = r->way->free(r, (unsigned)(i % r->threads), m[k]) &&
             r->way->alloc(r, (unsigned)(i % r->threads), &m[k]);
    }
    *after = huge_permille(r);
    free(m);
    return ok;
}

#define FILLING_MAX 20000u /* allocations measured at a level */

bool alloc_filling(struct alloc_run *r, uint64_t out[ALLOC_LEVELS])
{
    static const unsigned percent[ALLOC_LEVELS] = {0, 50, 90, 99};
    uint64_t *m = malloc((r->frames >> r->order) * sizeof *m), all, n;
    bool ok = m != NULL;

    if (!ok)
        return false;
    n = all = take_everything(r, m);
    /* From the fullest level down: at each, some are taken and given back again. */
    for (unsigned level = ALLOC_LEVELS; ok && level--;) {
        uint64_t keep = all * percent[level] / 100, got, t0;

        while (ok && n > keep)
            ok = r->way->free(r, 0, m[--n]);
        t0 = thread_ns();
        for (got = 0; ok && got < FILLING_MAX && n + got < all; got++)
            ok = r->way->alloc(r, 0, &m[n + got]);
        out[level] = got ? (thread_ns() - t0) * 10 / got : 0;
        while (ok && got)
            ok = r->way->free(r, 0, m[n + --got]);
    }
    free(m);
    return ok;
}
