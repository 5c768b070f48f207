/*
 * Gives ranges of its memory back by hypercall and takes them again: what was given back reads as
 * zero, what lies beside it is untouched, code in it is the new one. `base=` (4M) is where its
 * playground of `pages=` (1024) pages begins, `outside=` (1T) lies above RAM. Ends by
 * guest_shutdown with code= (0).
 */
#include "lib/balloon.h"

static unsigned failures;

static void expect(const char *what, long got, long want)
{
    if (got == want)
        return;
    failures++;
    print("FAIL %s: %ld, want %ld\n", what, got, want);
}

static void fill(uint64_t first, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        word_of(first + i)[0] = 0x1000 + i;
        word_of(first + i)[511] = ~i;
    }
}

/* Frames first + from ... first + to - 1 read as zero, the others as filled. */
static void look(const char *what, uint64_t first, uint64_t n, uint64_t from, uint64_t to)
{
    for (uint64_t i = 0; i < n; i++) {
        bool given = i >= from && i < to;

        expect(what, (long)word_of(first + i)[0], given ? 0 : (long)(0x1000 + i));
        expect(what, (long)word_of(first + i)[511], given ? 0 : (long)~i);
    }
}

static void ranges(uint64_t first, uint64_t n)
{
    fill(first, n);
    expect("give in the middle", balloon_give(first + 100, 200), 200);
    expect("give it again", balloon_give(first + 100, 200), 0);
    look("middle", first, n, 100, 300);
    fill(first, n);
    expect("give one frame", balloon_give(first, 1), 1);
    look("first", first, n, 0, 1);
    fill(first, n);
    expect("give the end", balloon_give(first + n - 3, 3), 3);
    expect("take one of the end", balloon_take(first + n - 2, 1) > 0, 1);
    expect("take it again", balloon_take(first + n - 2, 1), 0);
    look("end", first, n, n - 3, n);
    fill(first, n);
    expect("give all", balloon_give(first, n), (long)n);
    expect("take all", balloon_take(first, n), (long)n);
    look("all", first, n, 0, n);
}

/* The same address, another code: nothing decoded before may run. */
static void code(uint64_t first)
{
    static const uint8_t one[] = {0xb8, 1, 0, 0, 0, 0xc3}, two[] = {0xb8, 2, 0, 0, 0, 0xc3};
    int (*fn)(void) = (int (*)(void))(uintptr_t)(first * PAGE_BYTES);

    memcpy((void *)word_of(first), one, sizeof one);
    expect("code before", fn(), 1);
    expect("give code", balloon_give(first, 1), 1);
    expect("code gone", (long)*word_of(first), 0);
    memcpy((void *)word_of(first), two, sizeof two);
    expect("code after", fn(), 2);
}

static void bad(uint64_t first)
{
    uint64_t outside = cmdline_number("outside", UINT64_C(1) << 40) / PAGE_BYTES;

    word_of(first)[0] = 7;
    expect("nothing", balloon_give(first, 0), -MF_E_RANGE);
    expect("outside", balloon_give(outside, 1), -MF_E_RANGE);
    expect("partly outside", balloon_give(first, outside - first + 1), -MF_E_RANGE);
    expect("too many", balloon_give(first, MF_PART_FRAMES_MAX + 1), -MF_E_RANGE);
    expect("wrapping", balloon_give(first, ~UINT64_C(0)), -MF_E_RANGE);
    expect("wrapping in bytes", balloon_give(first + (UINT64_C(1) << 52), 1), -MF_E_RANGE);
    expect("last frame of all", balloon_give(~UINT64_C(0), 1), -MF_E_RANGE);
    expect("take nothing", balloon_take(first, 0), -MF_E_RANGE);
    expect("take outside", balloon_take(outside, 1), -MF_E_RANGE);
    expect("untouched", (long)word_of(first)[0], 7);
}

void guest_main(const struct start_info *si)
{
    uint64_t first = cmdline_number("base", UINT64_C(4) << 20) / PAGE_BYTES;
    uint64_t n = cmdline_number("pages", 1024);

    (void)si;
    ranges(first, n);
    code(first + n / 2);
    bad(first);
    if (failures)
        guest_panic("ballooning did not do what it should");
    print("done\n");
    hypercall_vmmcall(MF_CALL_GUEST_SHUTDOWN, cmdline_number("code", 0), 0, 0, 0);
    guest_panic("guest_shutdown came back");
}
