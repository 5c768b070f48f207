/* Ends by the debug-exit port with code= (7). */
#include "lib/guest.h"

void guest_main(const struct start_info *si)
{
    (void)si;
    guest_debug_exit((uint8_t)cmdline_number("code", 7));
}
