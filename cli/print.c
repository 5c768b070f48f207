/* Tables and numbers for people. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/hvctl.h"

void table_init(struct table *t, const char *const *heads, unsigned columns)
{
    memset(t, 0, sizeof *t);
    t->columns = columns;
    for (unsigned c = 0; c < columns; c++) {
        t->right[c] = heads[c][0] == '>';
        t->heads[c] = heads[c] + t->right[c];
    }
}

void table_fini(struct table *t)
{
    for (unsigned i = 0; i < t->nr_cells; i++)
        free(t->cells[i]);
    free(t->cells);
}

void clean_text(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

/* A table without memory for one more stays as it is. */
void table_cell(struct table *t, const char *fmt, ...)
{
    va_list ap;
    char *text;
    int n;
    if (t->nr_cells == t->room) {
        unsigned room = t->room ? 2 * t->room : 64;
        char **cells = realloc(t->cells, room * sizeof *cells);
        if (!cells)
            return;
        t->cells = cells;
        t->room = room;
    }
    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    clean_text(text);
    t->cells[t->nr_cells++] = text;
}

/* Columns on the terminal: bytes that do not continue a UTF-8 sequence. */
static int width(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_cell(const struct table *t, unsigned column, const char *text, int columns)
{
    int pad = columns - width(text);
    bool last = column + 1 == t->columns;
    if (t->right[column])
        printf("%*s%s", pad, "", text);
    else
        printf("%s%*s", text, last ? 0 : pad, "");
    fputs(last ? "\n" : "  ", stdout);
}

void table_print(struct table *t)
{
    int widths[TABLE_COLUMNS_MAX];
    for (unsigned c = 0; c < t->columns; c++)
        widths[c] = width(t->heads[c]);
    for (unsigned i = 0; i < t->nr_cells; i++) {
        int w = width(t->cells[i]);
        if (w > widths[i % t->columns])
            widths[i % t->columns] = w;
    }
    for (unsigned c = 0; c < t->columns; c++)
        print_cell(t, c, t->heads[c], widths[c]);
    for (unsigned i = 0; i < t->nr_cells; i++)
        print_cell(t, i % t->columns, t->cells[i], widths[i % t->columns]);
}

/* Three significant digits of n / unit. */
static const char *scaled(uint64_t n, uint64_t unit, const char *name, char *out)
{
    double v = (double)n / (double)unit;
    int digits = v < 10 ? 2 : v < 100 ? 1 : 0;
    snprintf(out, UNIT_SIZE, "%.*f %s", digits, v, name);
    return out;
}

const char *unit_ns(uint64_t ns, char *out)
{
    if (ns < 1000) {
        snprintf(out, UNIT_SIZE, "%llu ns", (unsigned long long)ns);
        return out;
    }
    if (ns < 1000000)
        return scaled(ns, 1000, "µs", out);
    if (ns < 1000000000)
        return scaled(ns, 1000000, "ms", out);
    return scaled(ns, 1000000000, "s", out);
}

const char *unit_bytes(uint64_t bytes, char *out)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned u = 0;
    while (u < 6 && bytes >> (10 * (u + 1)))
        u++;
    if (bytes & ((UINT64_C(1) << (10 * u)) - 1))
        return scaled(bytes, UINT64_C(1) << (10 * u), names[u], out);
    snprintf(out, UNIT_SIZE, "%llu %s", (unsigned long long)(bytes >> (10 * u)), names[u]);
    return out;
}

const char *unit_count(uint64_t n, char *out)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    char *to = out;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return out;
}

void print_clean(const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return;
    clean_text(copy);
    fputs(copy, stdout);
    free(copy);
}

void print_field(const char *name, const char *fmt, ...)
{
    va_list ap;
    char *text;
    int n;
    va_start(ap, fmt);
    n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    printf("%-18s ", name);
    print_clean(text);
    putchar('\n');
    free(text);
}
