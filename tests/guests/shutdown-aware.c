/* Works until somebody asks it to end, then ends by guest_shutdown with code= (0). */
#include "lib/hypercall.h"

void guest_main(const struct start_info *si)
{
    long events = 0;
    (void)si;
    print("waiting for a shutdown request\n");
    while (!(events & MF_GUEST_EVENT_SHUTDOWN)) {
        events = guest_yield();
        if (events < 0)
            guest_panic("yield failed");
    }
    print("shutting down\n");
    hypercall_vmmcall(MF_CALL_GUEST_SHUTDOWN, cmdline_number("code", 0), 0, 0, 0);
    guest_panic("guest_shutdown came back");
}
