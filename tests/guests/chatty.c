/*
 * Prints `lines=` numbered lines (100), each with `width=` letters (0). With `pace=N` it yields N
 * times between lines; with `stay` it goes on yielding behind the last one instead of ending.
 */
#include "lib/hypercall.h"

void guest_main(const struct start_info *si)
{
    uint64_t lines = cmdline_number("lines", 100);
    uint64_t width = cmdline_number("width", 0);
    uint64_t pace = cmdline_number("pace", 0);
    (void)si;
    for (uint64_t i = 1; i <= lines; i++) {
        print("line %lu", i);
        if (width)
            serial_putc(' ');
        for (uint64_t w = 0; w < width; w++)
            serial_putc((char)('a' + (i + w) % 26));
        serial_putc('\n');
        for (uint64_t p = 0; p < pace; p++)
            guest_yield();
    }
    while (cmdline_has("stay"))
        guest_yield();
}
