/* Ends by a triple fault: an exception with no table of handlers. */
#include "lib/guest.h"

void guest_main(const struct start_info *si)
{
    (void)si;
    print("about to fault three times\n");
    guest_triple_fault();
}
