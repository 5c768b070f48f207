/*
 * Uses the guest hypercalls by both instructions, with good and bad arguments, prints what it got
 * and ends by guest_shutdown with code= (0). `outside=` is an address above RAM (1 TiB).
 */
#include "lib/hypercall.h"

typedef long (*call_fn)(long, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static long by_vmcall(long nr, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
    return hypercall_vmcall(nr, a, b, c, d);
}

static long by_vmmcall(long nr, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
    return hypercall_vmmcall(nr, a, b, c, d);
}

static const char greeting[] = "written by hypercall\n";
static char big[2 * MF_GUEST_WRITE_MAX];

static unsigned failures;

static void expect(const char *what, long got, long want)
{
    bool ok = got == want;
    if (!ok)
        failures++;
    print("%s %s: %ld", ok ? "ok" : "FAIL", what, got);
    if (!ok)
        print(" (want %ld)", want);
    serial_putc('\n');
}

static void refused(const char *what, long got)
{
    if (got >= 0)
        failures++;
    print("%s %s: %ld\n", got < 0 ? "ok" : "FAIL", what, got);
}

/* The last bytes of a buffer that crosses a page border must come out in order too. */
static void write_across_pages(call_fn call)
{
    char *at = big + 4096 - 8 - ((uintptr_t)big & 4095);
    if (at < big)
        at += 4096;
    memcpy(at, "across the border\n", 18);
    expect("write across a page border", call(MF_CALL_GUEST_CONSOLE_WRITE, (uintptr_t)at, 18, 0, 0),
           18);
}

static void bad_arguments(call_fn call)
{
    uintptr_t outside = cmdline_number("outside", UINT64_C(1) << 40);
    uintptr_t text = (uintptr_t)greeting;
    refused("write from outside RAM", call(MF_CALL_GUEST_CONSOLE_WRITE, outside, 8, 0, 0));
    refused("write wrapping around", call(MF_CALL_GUEST_CONSOLE_WRITE, ~(uintptr_t)0 - 3, 8, 0, 0));
    refused("write of too much",
            call(MF_CALL_GUEST_CONSOLE_WRITE, (uintptr_t)big, MF_GUEST_WRITE_MAX + 1, 0, 0));
    refused("write of 2^63 bytes",
            call(MF_CALL_GUEST_CONSOLE_WRITE, text, UINT64_C(1) << 63, 0, 0));
    refused("unknown call", call(MF_CALL_END_ + 1000, 0, 0, 0, 0));
    refused("control call", call(MF_CALL_VM_CREATE, 0, 0, 0, 0));
    refused("number of 64 bits",
            call((long)(UINT64_C(1) << 32 | MF_CALL_GUEST_VERSION), 0, 0, 0, 0));
    refused("shutdown with code 256", call(MF_CALL_GUEST_SHUTDOWN, 256, 0, 0, 0));
}

static void round_of(const char *name, call_fn call)
{
    size_t n = sizeof greeting - 1;
    print("by %s\n", name);
    expect("version", call(MF_CALL_GUEST_VERSION, 0, 0, 0, 0), MF_ABI_VERSION);
    expect("console write", call(MF_CALL_GUEST_CONSOLE_WRITE, (uintptr_t)greeting, n, 0, 0),
           (long)n);
    expect("write of nothing", call(MF_CALL_GUEST_CONSOLE_WRITE, (uintptr_t)greeting, 0, 0, 0), 0);
    expect("yield", call(MF_CALL_GUEST_YIELD, 0, 0, 0, 0), 0);
    write_across_pages(call);
    bad_arguments(call);
}

void guest_main(const struct start_info *si)
{
    (void)si;
    round_of("vmcall", by_vmcall);
    round_of("vmmcall", by_vmmcall);
    if (failures)
        guest_panic("a hypercall did not do what it should");
    print("done\n");
    hypercall_vmmcall(MF_CALL_GUEST_SHUTDOWN, cmdline_number("code", 0), 0, 0, 0);
    guest_panic("guest_shutdown came back");
}
