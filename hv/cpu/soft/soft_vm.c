#include "hv/cpu/soft/soft_vm.h"

#include <string.h>

#include "hv/cpu/soft/code.h"
#include "hv/cpu/soft/lazy.h"
#include "hv/cpu/soft/mmu.h"

#define POOL_MAX 64u

/* VMs without a guest: the map is large, and all zero here. */
static struct {
    pthread_mutex_t lock;
    struct soft_vm *first; /* under lock */
    unsigned count;        /* under lock */
    uint64_t serial;       /* under lock */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct soft_vm *create(void)
{
    struct soft_vm *s = lazy_alloc(sizeof *s);

    if (!s)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->cond, NULL);
    return s;
}

struct soft_vm *soft_vm_get(void)
{
    struct soft_vm *s;
    uint64_t serial;

    pthread_mutex_lock(&pool.lock);
    serial = ++pool.serial;
    s = pool.first;
    if (s) {
        pool.first = s->next_free;
        pool.count--;
    }
    pthread_mutex_unlock(&pool.lock);
    if (!s)
        s = create();
    if (s)
        s->serial = serial;
    return s;
}

static void map_clear(struct soft_vm *s)
{
    for (unsigned i = 0; s->nr_watched > CODE_MAP_LIST && i < sizeof s->map / sizeof s->map[0]; i++)
        atomic_store_explicit(&s->map[i], 0, memory_order_relaxed);
    for (unsigned i = 0; i < s->nr_watched && i < CODE_MAP_LIST; i++) {
        uint64_t n = s->watched[i] & ((1u << CODE_MAP_BITS) - 1);

        atomic_store_explicit(&s->map[n / 64], 0, memory_order_relaxed);
    }
}

void soft_vm_put(struct soft_vm *s)
{
    bool kept;

    map_clear(s);
    s->smp = false;
    s->cpus = s->alone = NULL;
    s->nr_watched = 0;
    pthread_mutex_lock(&pool.lock);
    kept = pool.count < POOL_MAX;
    if (kept) {
        s->next_free = pool.first;
        pool.first = s;
        pool.count++;
    }
    pthread_mutex_unlock(&pool.lock);
    if (kept)
        return;
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->cond);
    lazy_free(s, sizeof *s);
}

void soft_vm_add(struct soft_vm *s, struct cpu *c)
{
    pthread_mutex_lock(&s->lock);
    s->smp = s->cpus != NULL;
    c->next_free = s->cpus;
    s->cpus = c;
    c->svm = s;
    atomic_store(&c->watch_seen, UINT64_MAX);
    pthread_mutex_unlock(&s->lock);
}

void soft_vm_remove(struct soft_vm *s, struct cpu *c)
{
    struct cpu **p;

    pthread_mutex_lock(&s->lock);
    for (p = &s->cpus; *p != c; p = &(*p)->next_free)
        ;
    *p = c->next_free;
    pthread_mutex_unlock(&s->lock);
}

static void tell(struct cpu *c, uint32_t what)
{
    atomic_fetch_or_explicit(&c->told, what, memory_order_seq_cst);
}

/* ---- code */

uint64_t soft_vm_watch(struct cpu *c, uint64_t g)
{
    struct soft_vm *s = c->svm;
    uint64_t n = g & ((1u << CODE_MAP_BITS) - 1), bit = UINT64_C(1) << (n % 64), gen;

    if (atomic_fetch_or(&s->map[n / 64], bit) & bit)
        return atomic_load(&s->watch_gen);
    pthread_mutex_lock(&s->lock);
    if (s->nr_watched < CODE_MAP_LIST)
        s->watched[s->nr_watched] = g;
    if (s->nr_watched <= CODE_MAP_LIST)
        s->nr_watched++;
    pthread_mutex_unlock(&s->lock);
    gen = atomic_fetch_add(&s->watch_gen, 1) + 1;
    for (struct cpu *o = s->cpus; s->smp && o; o = o->next_free)
        if (o != c)
            tell(o, TOLD_WATCH);
    return gen;
}

bool soft_vm_settled(const struct cpu *c, uint64_t gen)
{
    const struct soft_vm *s = c->svm;

    for (const struct cpu *o = s->cpus; s->smp && o; o = o->next_free)
        if (o != c && atomic_load(&o->watch_seen) < gen)
            return false;
    return true;
}

void soft_vm_written(struct soft_vm *s, const struct cpu *by, uint64_t g)
{
    if (by && !s->smp)
        return;
    pthread_mutex_lock(&s->lock);
    for (struct cpu *o = s->cpus; o; o = o->next_free) {
        if (o == by)
            continue;
        if (o->nr_told < TOLD_GFNS)
            o->told_gfn[o->nr_told] = g;
        if (o->nr_told <= TOLD_GFNS)
            o->nr_told++;
        tell(o, TOLD_CODE);
    }
    pthread_mutex_unlock(&s->lock);
}

static void take_code(struct cpu *c)
{
    uint64_t gfns[TOLD_GFNS];
    unsigned n;

    pthread_mutex_lock(&c->svm->lock);
    n = c->nr_told;
    memcpy(gfns, c->told_gfn, sizeof gfns);
    c->nr_told = 0;
    pthread_mutex_unlock(&c->svm->lock);
    if (n > TOLD_GFNS) {
        code_doubt_all(c);
        return;
    }
    while (n--)
        code_doubt(c, gfns[n]);
}

static void take_watch(struct cpu *c)
{
    uint64_t gen = atomic_load(&c->svm->watch_gen);

    mmu_unwrite_watched(c);
    atomic_store(&c->watch_seen, gen);
}

/* ---- one at a time */

/* Waits while another vCPU is alone. Under s->lock. */
static void park(struct cpu *c)
{
    struct soft_vm *s = c->svm;

    c->running = false;
    pthread_cond_broadcast(&s->cond);
    while (s->alone && s->alone != c)
        pthread_cond_wait(&s->cond, &s->lock);
    c->running = true;
}

void soft_vm_alone(struct cpu *c)
{
    struct soft_vm *s = c->svm;

    if (!s->smp)
        return;
    pthread_mutex_lock(&s->lock);
    if (s->alone)
        park(c);
    s->alone = c;
    for (struct cpu *o = s->cpus; o; o = o->next_free) {
        if (o == c)
            continue;
        tell(o, TOLD_STOP);
        while (o->running)
            pthread_cond_wait(&s->cond, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
}

void soft_vm_together(struct cpu *c)
{
    struct soft_vm *s = c->svm;

    if (!s->smp)
        return;
    pthread_mutex_lock(&s->lock);
    s->alone = NULL;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
}

void soft_vm_serve(struct cpu *c)
{
    uint32_t told = atomic_exchange(&c->told, 0);

    if (told & TOLD_STOP) {
        pthread_mutex_lock(&c->svm->lock);
        if (c->svm->alone)
            park(c);
        pthread_mutex_unlock(&c->svm->lock);
    }
    if (told & TOLD_WATCH)
        take_watch(c);
    if (told & TOLD_CODE)
        take_code(c);
}

void soft_vm_enter(struct cpu *c)
{
    struct soft_vm *s = c->svm;

    if (!s->smp)
        return;
    pthread_mutex_lock(&s->lock);
    park(c);
    pthread_mutex_unlock(&s->lock);
    take_watch(c);
    mmu_unwrite_watched(c); /* what began to be watched between the two halves of the above */
}

void soft_vm_leave(struct cpu *c)
{
    struct soft_vm *s = c->svm;

    if (!s->smp)
        return;
    atomic_store(&c->watch_seen, UINT64_MAX);
    pthread_mutex_lock(&s->lock);
    c->running = false;
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->lock);
}
