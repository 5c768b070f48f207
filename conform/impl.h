/*
 * Inside of the conformance kit: what parent and child share, and what the checks stand on.
 */
#ifndef MAYFLY_CONFORM_IMPL_H
#define MAYFLY_CONFORM_IMPL_H

#include <stdatomic.h>
#include <stddef.h>

#include "conform/conform.h"

/* Memory that parent and child share. The child writes, the parent reads while it waits. */
struct conform_shared {
    struct conform_verdict v;
    _Atomic bool said;         /* v is a verdict */
    _Atomic uint64_t calls;    /* made into the plugin; odd: inside one */
    _Atomic uint64_t cpu_ns;   /* the child's CPU time when the call began */
    _Atomic(const char *) now; /* static string: the op, the same address in both */
};

extern struct conform_shared *conform_shared; /* in the child */

/* ---- child.c */

/* The child's whole life; never returns. */
void conform_child(int fd, const struct conform_options *o) __attribute__((noreturn));
/* A finding: ends the child. Any thread. */
void conform_fail(enum conform_rule r, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 2, 3)));
/* Findings that follow are breaches of `r`, but for crashes and the like; CONFORM_RULES: no more.
 */
void conform_blame(enum conform_rule r);
void conform_kept(enum conform_rule r);
void conform_not_claimed(enum conform_rule r);
/* Brackets a call into the plugin. Other threads than the first do without. */
void conform_enter(const char *op);
void conform_leave(void);
/* Inside of a bracket that is around many calls: one of them came back. The first thread only. */
void conform_alive(void);

/*
 * `bytes` of zeroed memory, page aligned, with inaccessible pages before and behind; a fault in
 * those is a breach of `rule`. `what` is a static string.
 */
struct conform_area {
    uint8_t *at;
    size_t bytes, mapped;
};
void conform_area_make(struct conform_area *a, size_t bytes, enum conform_rule rule,
                       const char *what);
void conform_area_drop(struct conform_area *a);
/* A structure that ends where accessible memory ends, so that reading behind it is noticed. */
void *conform_area_tail(struct conform_area *a, size_t bytes);
/* Registers [at, at + bytes): a fault there is a breach of `rule`. */
void conform_fault_is(const void *at, size_t bytes, enum conform_rule rule, const char *what);
/* Of that area: a fault when reading is a breach of another rule. */
void conform_fault_read_is(const void *at, enum conform_rule rule, const char *what);
void conform_fault_forget(const void *at);

/* A second thread runs fn(arg); made before the plugin is loaded, because later nothing may. */
void conform_beside(void (*fn)(void *arg), void *arg);
void conform_beside_wait(void);

/* ---- the checks; they return when every rule of theirs is kept */

struct conform_rng {
    uint64_t s;
};
/* splitmix64 (Steele, Lea, Flood 2014): every seed gives a full sequence. */
static inline uint64_t conform_random(struct conform_rng *r)
{
    uint64_t z = r->s += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
/* 0 to n - 1, n at least 1. */
static inline uint64_t conform_below(struct conform_rng *r, uint64_t n)
{
    return conform_random(r) % n;
}
static inline bool conform_chance(struct conform_rng *r, unsigned percent)
{
    return conform_below(r, 100) < percent;
}

void conform_allocator(const struct mf_allocator_ops *ops, const struct conform_options *o);
void conform_teardown(const struct mf_teardown_ops *ops, const struct conform_options *o);
/* One model operation was done. */
void conform_count(uint64_t n);

#endif
