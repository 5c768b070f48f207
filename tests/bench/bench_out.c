#include "tests/bench/bench_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench_out *bench_out_new(const char *bench)
{
    struct bench_out *o = calloc(1, sizeof *o);

    if (o)
        o->bench = bench;
    return o;
}

struct bench_row *bench_out_row(struct bench_out *o)
{
    if (o->nr_rows < BENCH_ROWS_MAX)
        o->nr_rows++;
    return &o->row[o->nr_rows - 1];
}

static struct bench_cell *put(struct bench_row *r, const char *key)
{
    struct bench_cell *c = &r->cell[r->n < BENCH_CELLS_MAX ? r->n++ : BENCH_CELLS_MAX - 1];

    snprintf(c->key, sizeof c->key, "%s", key);
    return c;
}

static void human_ns(char *out, size_t n, uint64_t ns)
{
    if (ns < 10000)
        snprintf(out, n, "%" PRIu64 " ns", ns);
    else if (ns < 10000000)
        snprintf(out, n, "%.1f us", (double)ns / 1e3);
    else
        snprintf(out, n, "%.1f ms", (double)ns / 1e6);
}

static void human_bytes(char *out, size_t n, uint64_t v)
{
    static const char units[] = " KMGT";
    unsigned u = 0;

    for (; v >= 1024 && v % 1024 == 0 && u < 4; u++)
        v /= 1024;
    if (u)
        snprintf(out, n, "%" PRIu64 " %ciB", v, units[u]);
    else
        snprintf(out, n, "%" PRIu64, v);
}

/* "memory", or what ends in "_bytes". */
static bool is_bytes(const char *key)
{
    size_t len = strlen(key);

    return !strcmp(key, "memory") || (len > 6 && !strcmp(key + len - 6, "_bytes"));
}

void bench_put_u64(struct bench_row *r, const char *key, uint64_t v)
{
    struct bench_cell *c = put(r, key);
    size_t len = strlen(key);

    snprintf(c->json, sizeof c->json, "%" PRIu64, v);
    if (len > 3 && !strcmp(key + len - 3, "_ns"))
        human_ns(c->human, sizeof c->human, v);
    else if (is_bytes(key))
        human_bytes(c->human, sizeof c->human, v);
    else
        snprintf(c->human, sizeof c->human, "%" PRIu64, v);
}

void bench_put_tenths(struct bench_row *r, const char *key, uint64_t tenths)
{
    struct bench_cell *c = put(r, key);

    snprintf(c->json, sizeof c->json, "%" PRIu64 ".%" PRIu64, tenths / 10, tenths % 10);
    memcpy(c->human, c->json, sizeof c->human - 1);
}

/* Quotes and backslashes do not occur in names; anything that would need an escape is dropped. */
void bench_put_str(struct bench_row *r, const char *key, const char *v)
{
    struct bench_cell *c = put(r, key);
    size_t n = 0;

    c->json[n++] = '"';
    for (; *v && n + 2 < sizeof c->human; v++)
        if ((unsigned char)*v >= ' ' && *v != '"' && *v != '\\')
            c->json[n++] = *v;
    memcpy(c->human, c->json + 1, n - 1);
    c->human[n - 1] = '\0';
    c->json[n++] = '"';
    c->json[n] = '\0';
}

void bench_put_array(struct bench_row *r, const char *key, const uint64_t *v, unsigned n)
{
    struct bench_cell *c = put(r, key);
    size_t j = (size_t)snprintf(c->json, sizeof c->json, "["), h = 0;

    c->human[0] = '\0';
    for (unsigned i = 0; i < n; i++) {
        if (j + 24 < sizeof c->json)
            j +=
                (size_t)snprintf(c->json + j, sizeof c->json - j, "%s%" PRIu64, i ? "," : "", v[i]);
        if (h + 24 < sizeof c->human)
            h += (size_t)snprintf(c->human + h, sizeof c->human - h, "%s%" PRIu64, i ? "/" : "",
                                  v[i]);
    }
    snprintf(c->json + j, sizeof c->json - j, "]");
}

static void print_object(const struct bench_row *r)
{
    putchar('{');
    for (unsigned i = 0; i < r->n; i++)
        printf("%s\"%s\":%s", i ? "," : "", r->cell[i].key, r->cell[i].json);
    putchar('}');
}

static void print_json(const struct bench_out *o)
{
    printf("{\"bench\":\"%s\",\"conditions\":", o->bench);
    print_object(&o->conditions);
    printf(",\"rows\":[");
    for (unsigned i = 0; i < o->nr_rows; i++) {
        if (i)
            putchar(',');
        print_object(&o->row[i]);
    }
    printf("]}\n");
}

static int column_width(const struct bench_out *o, unsigned col)
{
    size_t w = strlen(o->row[0].cell[col].key);

    for (unsigned i = 0; i < o->nr_rows; i++)
        if (strlen(o->row[i].cell[col].human) > w)
            w = strlen(o->row[i].cell[col].human);
    return (int)w;
}

static void print_table(const struct bench_out *o)
{
    printf("%s", o->bench);
    for (unsigned i = 0; i < o->conditions.n; i++)
        printf("%s %s %s", i ? "," : ":", o->conditions.cell[i].key, o->conditions.cell[i].human);
    putchar('\n');
    for (unsigned row = 0; row <= o->nr_rows && o->nr_rows; row++) {
        for (unsigned col = 0; col < o->row[0].n; col++) {
            const struct bench_cell *c = &o->row[row ? row - 1 : 0].cell[col];
            const char *text = row ? c->human : c->key;

            printf(col ? "  %*s" : "%-*s", column_width(o, col), text);
        }
        putchar('\n');
    }
}

void bench_out_print(const struct bench_out *o, bool json)
{
    if (json)
        print_json(o);
    else
        print_table(o);
}
