/*
 * Writes each of `pages=` (256) pages from `base=` (4M) on once for each 'w' on its console, in an
 * order that jumps (`step=` (97), without a common divisor with `pages`), with `pause=` (0) turns
 * of idling between two; prints "round N" when it has. Each page holds its round and number. 'c'
 * checks them all, 'q' ends.
 */
#include "lib/balloon.h"

static uint64_t first, pages;

static uint64_t value_of(uint64_t round, uint64_t i)
{
    return round << 32 | i;
}

static void write_all(uint64_t round)
{
    uint64_t step = cmdline_number("step", 97), at = 0, pause = cmdline_number("pause", 0);

    for (uint64_t i = 0; i < pages; i++) {
        *word_of(first + at) = value_of(round, at);
        at = (at + step) % pages;
        for (uint64_t k = 0; k < pause; k++)
            __asm__ volatile("");
    }
    print("round %lu\n", round);
}

static void check_all(uint64_t round)
{
    for (uint64_t i = 0; i < pages; i++)
        if (*word_of(first + i) != value_of(round, i))
            guest_panic("a page lost what was written to it");
    print("checked %lu\n", round);
}

void guest_main(const struct start_info *si)
{
    uint64_t round = 0;
    int c = 0;

    (void)si;
    first = cmdline_number("base", UINT64_C(4) << 20) / PAGE_BYTES;
    pages = cmdline_number("pages", 256);
    print("ready\n");
    while (c != 'q') {
        c = serial_getc();
        if (c == 'w')
            write_all(++round);
        else if (c == 'c')
            check_all(round);
        else
            guest_yield();
    }
    guest_poweroff();
}
