/* Resets the machine by the keyboard controller, once its input buffer is empty. */
#include "lib/guest.h"

void guest_main(const struct start_info *si)
{
    (void)si;
    print("reset by the keyboard controller\n");
    for (unsigned i = 0; i < 1000 && (inb(0x64) & 2); i++)
        ;
    outb(0x64, 0xfe);
    guest_halt();
}
