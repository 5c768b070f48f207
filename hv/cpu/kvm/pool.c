/*
 * The pool of shells. A shell that comes back is reset, and a surplus one closed, by a thread of
 * the pool, so that neither stands in a life's way:
 *
 *   get <- ready <- [ reset ] <- used <- put          surplus -> [ close ]
 *
 * With size 0 there is no pool and no thread: a shell is made for each life and closed at its end.
 */
#include <stdlib.h>
#include <string.h>

#include "hv/cpu/kvm/kvm.h"

#define SURPLUS_MAX 64u /* that wait to be closed; beyond it whoever gives one back closes it */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t work;
    /* under lock */
    bool started, quit;
    pthread_t thread;
    unsigned size, nr_ready, nr_used, nr_surplus;
    struct kvm_shell *ready, *used, *surplus;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

static void push(struct kvm_shell **list, struct kvm_shell *s)
{
    s->next = *list;
    *list = s;
}

static struct kvm_shell *pop(struct kvm_shell **list)
{
    struct kvm_shell *s = *list;

    *list = s->next;
    s->next = NULL;
    return s;
}

/* What it shows of its CPUs cannot be changed any more, so it must be what this VM wants. */
static bool fits(const struct kvm_shell *s, const struct engine_vm *vm)
{
    struct kvm_cpuid_entry2 want[KVM_CPUID_MAX];
    unsigned n;

    if (s->nr_cpus != vm->nr_vcpus)
        return false;
    for (unsigned i = 0; i < s->nr_cpus; i++) {
        memset(want, 0, sizeof want);
        kvm_cpuid_make(vm->vcpus[i], want, &n);
        if (n != s->cpus[i].nr_cpuid || memcmp(want, s->cpus[i].cpuid, n * sizeof want[0]) != 0)
            return false;
    }
    return true;
}

static struct kvm_shell *take_fitting(struct kvm_shell **list, const struct engine_vm *vm)
{
    for (; *list; list = &(*list)->next)
        if (fits(*list, vm))
            return pop(list);
    return NULL;
}

enum mf_status kvm_pool_get(struct engine_vm *vm, struct kvm_shell **out)
{
    struct kvm_shell *s, *broken = NULL;

    pthread_mutex_lock(&pool.lock);
    s = take_fitting(&pool.ready, vm);
    if (s) {
        pool.nr_ready--;
    } else if ((s = take_fitting(&pool.used, vm))) {
        /* Its reset is still less work than another shell. */
        pool.nr_used--;
        pthread_mutex_unlock(&pool.lock);
        if (!kvm_shell_reset(s)) {
            broken = s;
            s = NULL;
        }
        pthread_mutex_lock(&pool.lock);
    }
    pthread_mutex_unlock(&pool.lock);
    kvm_shell_destroy(broken);
    if (s) {
        *out = s;
        return MF_OK;
    }
    return kvm_shell_create(vm, out);
}

void kvm_pool_put(struct kvm_shell *s)
{
    pthread_mutex_lock(&pool.lock);
    if (pool.started && !pool.quit) {
        if (!s->broken && pool.nr_ready + pool.nr_used < pool.size) {
            push(&pool.used, s);
            pool.nr_used++;
            s = NULL;
        } else if (pool.nr_surplus < SURPLUS_MAX) {
            push(&pool.surplus, s);
            pool.nr_surplus++;
            s = NULL;
        }
        pthread_cond_signal(&pool.work);
    }
    pthread_mutex_unlock(&pool.lock);
    kvm_shell_destroy(s);
}

/* One shell's reset or end. With the lock, which is dropped meanwhile. */
static void work_one(void)
{
    struct kvm_shell *s;
    bool used = pool.used != NULL, keep;

    if (used) {
        s = pop(&pool.used);
    } else {
        s = pop(&pool.surplus);
        pool.nr_surplus--;
    }
    pthread_mutex_unlock(&pool.lock);
    keep = used && kvm_shell_reset(s);
    if (!keep)
        kvm_shell_destroy(s);
    pthread_mutex_lock(&pool.lock);
    /* Counted as used all the time, so that the pool does not grow beyond its size meanwhile. */
    pool.nr_used -= used;
    if (keep) {
        push(&pool.ready, s);
        pool.nr_ready++;
    }
}

static void *worker(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&pool.lock);
    while (!pool.quit) {
        if (pool.used || pool.surplus) {
            work_one();
            continue;
        }
        pthread_cond_wait(&pool.work, &pool.lock);
    }
    pthread_mutex_unlock(&pool.lock);
    return NULL;
}

void kvm_pool_setup(unsigned size)
{
    pthread_mutex_lock(&pool.lock);
    pool.size = size;
    if (size && !pool.started) {
        pool.quit = false;
        pool.started = !pthread_create(&pool.thread, NULL, worker, NULL);
    }
    pthread_mutex_unlock(&pool.lock);
}

static void destroy_list(struct kvm_shell *list)
{
    while (list)
        kvm_shell_destroy(pop(&list));
}

void kvm_pool_drain(void)
{
    struct kvm_shell *a, *b, *c;
    bool started;

    pthread_mutex_lock(&pool.lock);
    started = pool.started;
    pool.quit = true;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
    if (started)
        pthread_join(pool.thread, NULL);
    pthread_mutex_lock(&pool.lock);
    a = pool.ready;
    b = pool.used;
    c = pool.surplus;
    pool.ready = pool.used = pool.surplus = NULL;
    pool.nr_ready = pool.nr_used = pool.nr_surplus = pool.size = 0;
    pool.started = false;
    pthread_mutex_unlock(&pool.lock);
    destroy_list(a);
    destroy_list(b);
    destroy_list(c);
    kvm_fresh_forget();
}
