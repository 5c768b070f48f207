#include "tests/bench/svg.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"

#define LEFT       96.0 /* room for the axis' labels */
#define RIGHT      24.0
#define TOP        104.0 /* title, conditions, legend */
#define PLOT_H     320.0
#define BAR_W      34.0
#define GROUP_GAP  34.0
#define LOG_FACTOR 30.0

static const char *const colours[SVG_VALUES_MAX] = {"#4477aa", "#ee6677", "#228833",
                                                    "#ccbb44", "#66ccee", "#aa3377"};

struct plot {
    FILE *f;
    const struct bench_out *o;
    const struct svg_spec *spec;
    unsigned series;
    double width, lo, hi; /* range of the axis */
    double bar, step;
    bool log;
};

static const struct bench_cell *cell_of(const struct bench_row *r, const char *key)
{
    for (unsigned i = 0; key && i < r->n; i++)
        if (!strcmp(r->cell[i].key, key))
            return &r->cell[i];
    return NULL;
}

/* The value of a bar; negative when the row has none. */
static double value_of(const struct plot *p, unsigned row, unsigned series)
{
    const struct bench_cell *c = cell_of(&p->o->row[row], p->spec->value[series].key);

    return c ? strtod(c->json, NULL) : -1.0;
}

/* Text of a value: three digits, and for times the unit that fits. */
static void text_of(const struct plot *p, double v, char *out, size_t n)
{
    static const char *const units[] = {"ns", "\xc2\xb5s", "ms", "s"};
    unsigned u = 0;

    for (; p->spec->ns && v >= 999.5 && u < 3; u++)
        v /= 1000.0;
    snprintf(out, n, "%.*f%s%s", v < 10.0 && v != floor(v) ? 1 : 0, v, p->spec->ns ? " " : "",
             p->spec->ns ? units[u] : "");
}

static void escaped(FILE *f, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            fputs("&lt;", f);
        else if (*s == '&')
            fputs("&amp;", f);
        else
            fputc(*s, f);
    }
}

static void text(const struct plot *p, double x, double y, const char *attributes, const char *s)
{
    fprintf(p->f, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attributes);
    escaped(p->f, s);
    fprintf(p->f, "</text>\n");
}

static double y_of(const struct plot *p, double v)
{
    double part;

    if (p->log)
        part = v <= p->lo ? 0.0 : log(v / p->lo) / log(p->hi / p->lo);
    else
        part = v / p->hi;
    return TOP + PLOT_H * (1.0 - part);
}

/* 1, 2 or 5 times a power of ten that is not below v. */
static double round_up(double v)
{
    double e = pow(10.0, floor(log10(v)));

    return v <= e ? e : v <= 2.0 * e ? 2.0 * e : v <= 5.0 * e ? 5.0 * e : 10.0 * e;
}

static bool find_range(struct plot *p)
{
    double min = HUGE_VAL, max = 0.0;

    for (unsigned i = 0; i < p->o->nr_rows; i++) {
        for (unsigned k = 0; k < p->series; k++) {
            double v = value_of(p, i, k);

            if (v > max)
                max = v;
            if (v > 0.0 && v < min)
                min = v;
        }
    }
    if (max <= 0.0)
        return false;
    p->log = max > min * LOG_FACTOR;
    if (p->log) {
        p->lo = pow(10.0, floor(log10(min * 0.7)));
        p->hi = pow(10.0, ceil(log10(max * 1.2)));
    } else {
        p->step = round_up(max / 6.0);
        p->hi = p->step * ceil(max * 1.08 / p->step);
    }
    return true;
}

static void grid_line(const struct plot *p, double v)
{
    char s[32];

    text_of(p, v, s, sizeof s);
    fprintf(p->f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#d0d0d0\"/>\n",
            LEFT, y_of(p, v), p->width - RIGHT, y_of(p, v));
    text(p, LEFT - 8.0, y_of(p, v) + 4.0, "text-anchor=\"end\"", s);
}

static void draw_axis(const struct plot *p)
{
    char s[160];

    if (p->log) {
        for (double v = p->lo; v <= p->hi * 1.001; v *= 10.0)
            grid_line(p, v);
    } else {
        for (double v = 0.0; v <= p->hi * 1.001; v += p->step)
            grid_line(p, v);
    }
    snprintf(s, sizeof s, "%s%s", p->spec->axis, p->log ? " (logarithmic)" : "");
    fprintf(p->f, "<g transform=\"translate(20 %.1f) rotate(-90)\">\n", TOP + PLOT_H / 2.0);
    text(p, 0.0, 0.0, "text-anchor=\"middle\"", s);
    fprintf(p->f, "</g>\n");
}

static void draw_head(const struct plot *p)
{
    char s[600];
    double x = LEFT;
    size_t n = 0;

    text(p, LEFT, 26.0, "font-size=\"18\" font-weight=\"bold\"", p->spec->title);
    s[0] = '\0';
    for (unsigned i = 0; i < p->o->conditions.n && n + 1 < sizeof s; i++)
        n += (size_t)snprintf(s + n, sizeof s - n, "%s%s %s", i ? ", " : "",
                              p->o->conditions.cell[i].key, p->o->conditions.cell[i].human);
    text(p, LEFT, 46.0, "font-size=\"11\" fill=\"#505050\"", s);
    for (unsigned k = 0; k < p->series; k++) {
        const char *legend = p->spec->value[k].legend;

        fprintf(p->f, "<rect x=\"%.1f\" y=\"60\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                colours[k]);
        text(p, x + 17.0, 71.0, "", legend);
        x += 40.0 + 7.2 * (double)strlen(legend);
    }
}

static void draw_bar(const struct plot *p, double x, double v, unsigned series)
{
    char s[32];

    if (v < 0.0)
        return;
    text_of(p, v, s, sizeof s);
    if (v > 0.0)
        fprintf(p->f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                x, y_of(p, v), p->bar - 3.0, TOP + PLOT_H - y_of(p, v), colours[series]);
    text(p, x + (p->bar - 3.0) / 2.0, (v > 0.0 ? y_of(p, v) : TOP + PLOT_H) - 4.0,
         "text-anchor=\"middle\" font-size=\"10\"", s);
}

/* `before`: says what it is, as in "from buddy-lazy". */
static void draw_label(const struct plot *p, double x, const char *key, bool before, double y)
{
    char s[100];

    for (unsigned i = 0; key && i < p->o->nr_rows; i++) {
        const struct bench_cell *c = cell_of(&p->o->row[i], key);

        snprintf(s, sizeof s, "%s%s%s", before ? key : "", before ? " " : "", c ? c->human : "");
        text(p, x + ((double)p->series * p->bar + GROUP_GAP) * (double)i, y,
             "text-anchor=\"middle\" font-size=\"11\"", s);
    }
}

static void draw_groups(const struct plot *p)
{
    double group = (double)p->series * p->bar;

    for (unsigned i = 0; i < p->o->nr_rows; i++)
        for (unsigned k = 0; k < p->series; k++)
            draw_bar(p,
                     LEFT + GROUP_GAP / 2.0 + (group + GROUP_GAP) * (double)i + p->bar * (double)k,
                     value_of(p, i, k), k);
    draw_label(p, LEFT + (GROUP_GAP + group) / 2.0, p->spec->label, false, TOP + PLOT_H + 18.0);
    draw_label(p, LEFT + (GROUP_GAP + group) / 2.0, p->spec->label2, true, TOP + PLOT_H + 33.0);
    fprintf(p->f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#000000\"/>\n",
            LEFT, TOP + PLOT_H, p->width - RIGHT, TOP + PLOT_H);
}

/* Bars wide enough for their values, and for the longest name below a group. */
static void set_widths(struct plot *p)
{
    double widest = 0.0, head = 0.0;

    for (unsigned i = 0; i < p->o->nr_rows; i++) {
        const struct bench_cell *c = cell_of(&p->o->row[i], p->spec->label);
        const struct bench_cell *d = cell_of(&p->o->row[i], p->spec->label2);
        double n = c ? (double)strlen(c->human) : 0.0;

        if (d && (double)(strlen(d->human) + strlen(d->key) + 1) > n)
            n = (double)(strlen(d->human) + strlen(d->key) + 1);
        widest = n * 6.6 > widest ? n * 6.6 : widest;
    }
    p->bar = p->series > 1 ? BAR_W + 14.0 : BAR_W + 26.0;
    if (widest > (double)p->series * p->bar + GROUP_GAP - 6.0)
        p->bar = (widest + 6.0 - GROUP_GAP) / (double)p->series;
    p->width = LEFT + RIGHT + ((double)p->series * p->bar + GROUP_GAP) * (double)p->o->nr_rows;
    for (unsigned i = 0; i < p->o->conditions.n; i++)
        head += 6.0 * (double)(strlen(p->o->conditions.cell[i].key) +
                               strlen(p->o->conditions.cell[i].human) + 3);
    if (p->width < LEFT + head + RIGHT)
        p->width = LEFT + head + RIGHT;
}

bool svg_write(const char *path, const struct bench_out *o, const struct svg_spec *spec)
{
    struct plot p = {.o = o, .spec = spec};

    while (p.series < SVG_VALUES_MAX && spec->value[p.series].key)
        p.series++;
    if (!p.series || !find_range(&p)) {
        bench_error(path, "there is nothing to draw");
        return false;
    }
    set_widths(&p);
    p.f = fopen(path, "we");
    if (!p.f) {
        bench_error(path, strerror(errno));
        return false;
    }
    fprintf(p.f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            p.width, TOP + PLOT_H + 48.0);
    draw_head(&p);
    draw_axis(&p);
    draw_groups(&p);
    fprintf(p.f, "</svg>\n");
    if (ferror(p.f) | fclose(p.f)) {
        bench_error(path, "cannot be written");
        return false;
    }
    return true;
}
