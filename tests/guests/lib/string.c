#include "lib/guest.h"

void *memset(void *to, int c, size_t n)
{
    void *d = to;
    __asm__ volatile("rep stosb" : "+D"(d), "+c"(n) : "a"(c) : "memory");
    return to;
}

void *memcpy(void *to, const void *from, size_t n)
{
    void *d = to;
    __asm__ volatile("rep movsb" : "+D"(d), "+S"(from), "+c"(n) : : "memory");
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}

size_t strlen(const char *s)
{
    size_t n = 0;
    while (s[n])
        n++;
    return n;
}
