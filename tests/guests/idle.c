/* One line, then halted with interrupts off for ever. */
#include "lib/guest.h"

void guest_main(const struct start_info *si)
{
    (void)si;
    print("idle\n");
    guest_halt();
}
