/* Arithmetic with known results, the CPU's own words, and ways not to end. */
#include "kernel/kernel.h"

/* ---- SHA-256 (FIPS 180-4): long integer work whose result anyone can check */

static const uint32_t sha_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t ror(uint32_t v, unsigned n)
{
    return v >> n | v << (32 - n);
}

static void sha_block(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], s[8];
    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (unsigned i = 16; i < 64; i++)
        w[i] = w[i - 16] + (ror(w[i - 15], 7) ^ ror(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (ror(w[i - 2], 17) ^ ror(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, h, sizeof s);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t t1 = s[7] + (ror(s[4], 6) ^ ror(s[4], 11) ^ ror(s[4], 25)) +
                      ((s[4] & s[5]) ^ (~s[4] & s[6])) + sha_k[i] + w[i];
        uint32_t t2 = (ror(s[0], 2) ^ ror(s[0], 13) ^ ror(s[0], 22)) +
                      ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (unsigned k = 7; k > 0; k--)
            s[k] = s[k - 1];
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (unsigned i = 0; i < 8; i++)
        h[i] += s[i];
}

static void sha256(const uint8_t *p, uint64_t n, uint32_t h[8])
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[128] = {0};
    uint64_t rest = n % 64, tail = rest < 56 ? 64 : 128;
    memcpy(h, first, sizeof first);
    for (uint64_t at = 0; at + 64 <= n; at += 64)
        sha_block(h, p + at);
    memcpy(last, p + n - rest, rest);
    last[rest] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        last[tail - 1 - i] = (uint8_t)(n * 8 >> 8 * i);
    for (uint64_t at = 0; at < tail; at += 64)
        sha_block(h, last + at);
}

static void print_sha(const char *name, const uint32_t h[8])
{
    print("sha256 %s ", name);
    for (unsigned i = 0; i < 8; i++)
        print("%08x", h[i]);
    print("\n");
}

/* Bytes of a linear congruence: state = state * 1103515245 + 12345, bits 16 to 23. */
static void fill(uint8_t *p, uint64_t n)
{
    uint32_t state = 1;
    for (uint64_t i = 0; i < n; i++) {
        state = state * 1103515245u + 12345u;
        p[i] = (uint8_t)(state >> 16);
    }
}

static void wide_arithmetic(void)
{
    uint64_t lo, hi, quotient, rest;
    __asm__("mulq %3"
            : "=a"(lo), "=d"(hi)
            : "0"(0xfedcba9876543210), "r"(0x123456789abcdef1)
            : "cc");
    check(hi == 0x121fa00ad77d7423 && lo == 0x224a4396cc6d0110, "multiply to 128 bits");
    __asm__("divq %4"
            : "=a"(quotient), "=d"(rest)
            : "0"(lo), "1"(hi), "r"(0x123456789abcdef1)
            : "cc");
    check(quotient == 0xfedcba9876543210 && rest == 0, "divide 128 bits");
    __asm__("idivq %4" : "=a"(quotient), "=d"(rest) : "0"(-7L), "1"(-1L), "r"(2L) : "cc");
    check((long)quotient == -3 && (long)rest == -1, "divide signed");
}

static void odd_instructions(void)
{
    static uint64_t cell;
    uint64_t v = 0x0123456789abcdef, old = 5;
    uint8_t zero;
    __asm__("bswapq %0" : "+r"(v));
    check(v == 0xefcdab8967452301, "byte swap");
    __asm__("shldq $12, %1, %0" : "+r"(v) : "r"(0xabc0000000000000) : "cc");
    check(v == 0xdab8967452301abc, "double shift");
    cell = 5;
    __asm__ volatile("lock cmpxchgq %3, %1\n\tsetz %2"
                     : "+a"(old), "+m"(cell), "=q"(zero)
                     : "r"(9L)
                     : "memory", "cc");
    check(zero && cell == 9, "compare and exchange");
    v = 1;
    __asm__ volatile("lock xaddq %0, %1" : "+r"(v), "+m"(cell) : : "memory", "cc");
    check(v == 9 && cell == 10, "exchange and add");
    __asm__("bsrq %1, %0" : "=r"(v) : "r"(UINT64_C(1) << 41 | 77) : "cc");
    check(v == 41, "bit scan");
    __asm__("stc\n\trclb $3, %b0" : "+q"(v) : : "cc"); /* 0x29 through carry: 0x4c */
    check((v & 0xff) == 0x4c, "rotate through carry");
}

void mode_compute(void)
{
    uint64_t n = cmdline_number("bytes", 2048), rounds = cmdline_number("rounds", 1);
    static uint8_t buffer[65536];
    uint32_t h[8];
    wide_arithmetic();
    odd_instructions();
    sha256((const uint8_t *)"abc", 3, h);
    check(h[0] == 0xba7816bf && h[7] == 0xf20015ad, "SHA-256 of abc");
    if (n > sizeof buffer)
        n = sizeof buffer;
    fill(buffer, n);
    for (uint64_t i = 0; i < rounds; i++)
        sha256(buffer, n, h);
    print_sha("buffer", h);
}

void mode_cpuid(void)
{
    uint32_t o[4], leaf[] = {0, 1, 7, 0x40000000, 0x80000000, 0x80000001, 0x80000008};
    for (unsigned i = 0; i < sizeof leaf / sizeof leaf[0]; i++) {
        cpuid(leaf[i], o);
        print("cpuid %08x: %08x %08x %08x %08x\n", leaf[i], o[0], o[1], o[2], o[3]);
    }
}

void mode_spin(void)
{
    print("spinning\n");
    for (;;)
        __asm__ volatile("" ::: "memory");
}

void mode_halt(void)
{
    print("halting\n");
    guest_halt();
}
