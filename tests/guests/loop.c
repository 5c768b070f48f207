/* Never ends by itself: interrupts off, one jump to itself. */
#include "lib/guest.h"

void guest_main(const struct start_info *si)
{
    (void)si;
    print("looping\n");
    __asm__ volatile("cli\n1: jmp 1b");
}
