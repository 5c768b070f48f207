#include "lib/guest.h"

#define POWER_PORT 0x604
#define POWER_OFF  0x2000
#define DEBUG_EXIT 0xf4

void guest_halt(void)
{
    for (;;)
        __asm__ volatile("cli; hlt");
}

void guest_poweroff(void)
{
    outw(POWER_PORT, POWER_OFF);
    guest_halt();
}

void guest_debug_exit(uint8_t code)
{
    outb(DEBUG_EXIT, code);
    guest_halt();
}

void guest_triple_fault(void)
{
    struct {
        uint16_t limit;
        uintptr_t base;
    } __attribute__((packed)) none = {0, 0};
    __asm__ volatile("lidt %0; int3" : : "m"(none));
    guest_halt();
}

void guest_panic(const char *why)
{
    print("panic: %s\n", why);
    guest_debug_exit(99);
}
