/*
 * Bytes of guest memory, which other vCPUs may use at the same time. A load or store of 1, 2, 4 or
 * 8 bytes is one access of the host: whole when the guest aligned it, and in the order that an
 * x86-64 host keeps, which is the guest's. What a guest does unordered is the guest's own race and
 * no fault of the engine: the thread sanitizer does not look here.
 */
#ifndef MAYFLY_CPU_SOFT_GUEST_MEM_H
#define MAYFLY_CPU_SOFT_GUEST_MEM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __SANITIZE_THREAD__
#define GUEST_FN static inline __attribute__((no_sanitize("thread"), unused))
#else
#define GUEST_FN static inline
#endif

typedef uint16_t __attribute__((may_alias, aligned(1))) guest_u16;
typedef uint32_t __attribute__((may_alias, aligned(1))) guest_u32;
typedef uint64_t __attribute__((may_alias, aligned(1))) guest_u64;

GUEST_FN uint64_t host_load(const uint8_t *p, unsigned size)
{
    switch (size) {
    case 1:
        return *(const volatile uint8_t *)p;
    case 2:
        return *(const volatile guest_u16 *)(const void *)p;
    case 4:
        return *(const volatile guest_u32 *)(const void *)p;
    default:
        return *(const volatile guest_u64 *)(const void *)p;
    }
}

GUEST_FN void host_store(uint8_t *p, unsigned size, uint64_t v)
{
    switch (size) {
    case 1:
        *(volatile uint8_t *)p = (uint8_t)v;
        break;
    case 2:
        *(volatile guest_u16 *)(void *)p = (uint16_t)v;
        break;
    case 4:
        *(volatile guest_u32 *)(void *)p = (uint32_t)v;
        break;
    default:
        *(volatile guest_u64 *)(void *)p = v;
        break;
    }
}

/* The ranges may overlap as those of memmove. */
GUEST_FN void guest_copy(void *to, const void *from, uint64_t n)
{
#ifdef __SANITIZE_THREAD__
    volatile uint8_t *t = to;
    const volatile uint8_t *f = from;

    if (t <= f)
        for (uint64_t i = 0; i < n; i++)
            t[i] = f[i];
    else
        for (uint64_t i = n; i-- > 0;)
            t[i] = f[i];
#else
    if (n == 8)
        *(volatile guest_u64 *)to = *(const volatile guest_u64 *)from;
    else if (n == 4)
        *(volatile guest_u32 *)to = *(const volatile guest_u32 *)from;
    else if (n == 2)
        *(volatile guest_u16 *)to = *(const volatile guest_u16 *)from;
    else
        memmove(to, from, n);
#endif
}

GUEST_FN void guest_fill(uint8_t *p, uint8_t v, uint64_t n)
{
#ifdef __SANITIZE_THREAD__
    for (volatile uint8_t *q = p; n--; q++)
        *q = v;
#else
    memset(p, v, n);
#endif
}

GUEST_FN bool guest_same(const uint8_t *ours, const uint8_t *guest, uint64_t n)
{
#ifdef __SANITIZE_THREAD__
    for (uint64_t i = 0; i < n; i++)
        if (ours[i] != ((const volatile uint8_t *)guest)[i])
            return false;
    return true;
#else
    return !memcmp(ours, guest, n);
#endif
}

#endif
