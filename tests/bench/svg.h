/*
 * Draws rows of a benchmark as grouped bars: one group a row, one bar a value.
 */
#ifndef MAYFLY_BENCH_SVG_H
#define MAYFLY_BENCH_SVG_H

#include "tests/bench/bench_out.h"

#define SVG_VALUES_MAX 6u

struct svg_value {
    const char *key;    /* of the cell */
    const char *legend; /* what it is, for people */
};

struct svg_spec {
    const char *title;
    const char *label, *label2; /* keys of the cells that name a row; label2 may be NULL */
    const char *axis;           /* what the values are; with ns their unit is chosen by size */
    bool ns;                    /* values are nanoseconds */
    struct svg_value value[SVG_VALUES_MAX]; /* up to the first without a key */
};

/*
 * Writes the plot of `o` to the file `path`. The axis is logarithmic when the values span more than
 * a factor of 30. False, with a message, when there is nothing to draw or it cannot be written.
 */
bool svg_write(const char *path, const struct bench_out *o, const struct svg_spec *spec);

#endif
