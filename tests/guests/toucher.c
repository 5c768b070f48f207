/*
 * Touches pages at random until it is asked to end. A page of its playground (`pages=` from `base=`
 * on) holds what this guest wrote there or, when somebody gave it back, zero; anything else is
 * memory that it should not see, and a panic. With `give` it gives ranges back itself. `seed=`
 * tells guests apart.
 */
#include "lib/balloon.h"

static uint64_t first, pages, seed, state;

static uint64_t random_below(uint64_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

static void touch(uint64_t i)
{
    volatile uint64_t *w = word_of(first + i) + random_below(2) * 511;
    uint64_t mine = seed << 32 | (i + 1), v = *w;

    if (v && v != mine) {
        print("page %lu holds 0x%lx, mine is 0x%lx\n", i, v, mine);
        guest_panic("a page holds what this guest did not write");
    }
    *w = mine;
}

static void give(void)
{
    uint64_t i = random_below(pages), n = 1 + random_below(64);

    n = n < pages - i ? n : pages - i;
    if (balloon_give(first + i, n) < 0)
        guest_panic("a give was refused");
    if (*word_of(first + i) || *(word_of(first + i + n - 1) + 511))
        guest_panic("a page that was given back is not zero");
    if (random_below(2) && balloon_take(first + i, n) < 0)
        guest_panic("a take was refused");
}

void guest_main(const struct start_info *si)
{
    bool gives = cmdline_has("give");

    (void)si;
    first = cmdline_number("base", UINT64_C(4) << 20) / PAGE_BYTES;
    pages = cmdline_number("pages", 512);
    seed = cmdline_number("seed", 1);
    state = seed * 0x9e3779b97f4a7c15 + 1;
    print("touching\n");
    while (!(guest_yield() & MF_GUEST_EVENT_SHUTDOWN)) {
        for (unsigned k = 0; k < 200; k++)
            touch(random_below(pages));
        if (gives)
            give();
    }
    hypercall_vmmcall(MF_CALL_GUEST_SHUTDOWN, 0, 0, 0, 0);
    guest_panic("guest_shutdown came back");
}
