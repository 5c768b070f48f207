/* Resets the machine by the reset control register: choose a hard reset, then strike it. */
#include "lib/guest.h"

void guest_main(const struct start_info *si)
{
    (void)si;
    print("reset by port cf9\n");
    outb(0xcf9, 0x02);
    outb(0xcf9, 0x06);
    guest_halt();
}
