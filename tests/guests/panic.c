/* Ends as Linux does when it panics: a line on the console, then a reset by the keyboard
 * controller. */
#include "lib/guest.h"

void guest_main(const struct start_info *si)
{
    (void)si;
    print("[    1.234567] %s\n", cmdline_has("quietly")
                                     ? "nothing is wrong"
                                     : "Kernel panic - not syncing: Attempted to kill init!");
    outb(0x64, 0xfe);
    guest_halt();
}
