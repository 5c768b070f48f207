/*
 * Results of a benchmark: one JSON object
 *   {"bench": ..., "conditions": {...}, "rows": [{"strategy": ..., ...}, ...]}
 * or a table for people. Cells keep the order in which they are given.
 */
#ifndef MAYFLY_BENCH_OUT_H
#define MAYFLY_BENCH_OUT_H

#include <stdbool.h>
#include <stdint.h>

#define BENCH_CELLS_MAX 24u
#define BENCH_ROWS_MAX  64u

struct bench_cell {
    char key[32];
    char json[96];  /* the value as JSON */
    char human[64]; /* the value as a table shows it; durations with a unit */
};

struct bench_row {
    unsigned n;
    struct bench_cell cell[BENCH_CELLS_MAX];
};

struct bench_out {
    const char *bench;
    struct bench_row conditions;
    unsigned nr_rows;
    struct bench_row row[BENCH_ROWS_MAX];
};

/* NULL without memory. Free it with free(). */
struct bench_out *bench_out_new(const char *bench);
/* The next row; the last one again when there are too many. */
struct bench_row *bench_out_row(struct bench_out *o);
/* Keys that end in "_ns" are nanoseconds. */
void bench_put_u64(struct bench_row *r, const char *key, uint64_t v);
/* A value in tenths. */
void bench_put_tenths(struct bench_row *r, const char *key, uint64_t tenths);
void bench_put_str(struct bench_row *r, const char *key, const char *v);
void bench_put_array(struct bench_row *r, const char *key, const uint64_t *v, unsigned n);
void bench_out_print(const struct bench_out *o, bool json);

#endif
