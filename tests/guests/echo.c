/*
 * Gives back what comes in on COM1 until 'q', then switches the power off. Yields between looks,
 * unless the command line says `noyield` (where there are no hypercalls).
 */
#include "lib/hypercall.h"

void guest_main(const struct start_info *si)
{
    bool yields = !cmdline_has("noyield");
    (void)si;
    print("echo: ready\n");
    for (;;) {
        int c = serial_getc();
        if (c >= 0)
            serial_putc((char)c);
        else if (yields)
            guest_yield();
        else
            __asm__ volatile("pause");
        if (c == 'q')
            break;
    }
    print("\necho: bye\n");
}
