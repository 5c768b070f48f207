#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fuzz_fail(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    abort();
}

#ifndef FUZZ_NO_MAIN

#define ROUNDS 200000ul

static uint64_t rnd_state = 0x9e3779b97f4a7c15u;

static uint64_t rnd(void)
{
    rnd_state ^= rnd_state << 13;
    rnd_state ^= rnd_state >> 7;
    rnd_state ^= rnd_state << 17;
    return rnd_state;
}

static void mutate(uint8_t *p, size_t *n)
{
    static const uint64_t edges[] = {0,         1,          0x7f,           0x80,
                                     0xff,      0xffff,     INT32_MAX,      UINT32_MAX,
                                     INT64_MAX, UINT64_MAX, UINT64_MAX - 7, 4096};
    size_t at = *n ? rnd() % *n : 0;

    switch (rnd() % 6) {
    case 0:
        if (*n)
            p[at] = (uint8_t)rnd();
        break;
    case 1:
        if (*n)
            p[at] ^= (uint8_t)(1u << rnd() % 8);
        break;
    case 2: {
        uint64_t v = edges[rnd() % (sizeof edges / sizeof edges[0])];
        size_t len = (size_t)1 << rnd() % 4;

        at &= ~(len - 1);
        if (at + len <= *n)
            memcpy(p + at, &v, len);
        break;
    }
    case 3:
        *n = at;
        break;
    case 4:
        if (*n + 8 <= FUZZ_MAX) {
            memset(p + *n, (int)rnd(), 8);
            *n += 8;
        }
        break;
    default:
        if (*n > 16) {
            size_t from = rnd() % (*n - 8);

            memmove(p + at - at % 8, p + from, at - at % 8 + 8 <= *n ? 8 : 0);
        }
    }
}

static void one(unsigned seeds)
{
    uint8_t buf[FUZZ_MAX], *exact;
    size_t n = fuzz_seed((unsigned)(rnd() % seeds), buf);

    for (uint64_t k = rnd() % 8; k; k--)
        mutate(buf, &n);
    /* Of exactly this size, so that a sanitizer sees the first byte read behind it. */
    exact = malloc(n ? n : 1);
    if (!exact)
        return;
    memcpy(exact, buf, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 0) : ROUNDS;
    uint8_t buf[FUZZ_MAX];
    unsigned seeds = 0;

    while (fuzz_seed(seeds, buf))
        seeds++;
    if (!seeds)
        return 1;
    for (unsigned long i = 0; i < rounds; i++)
        one(seeds);
    printf("%lu inputs from %u seeds\n", rounds, seeds);
    return 0;
}

#endif
