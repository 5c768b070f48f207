/*
 * What our C guests share: ports, console, strings, command line, ways to end. Freestanding, one
 * CPU, identity map, no interrupts.
 */
#ifndef GUEST_H
#define GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PVH_MAGIC 0x336ec578u

#define MEMMAP_RAM 1u

/* The start information of the PVH boot protocol. */
struct start_info {
    uint32_t magic;
    uint32_t version;
    uint32_t flags;
    uint32_t nr_modules;
    uint64_t modlist;
    uint64_t cmdline;
    uint64_t rsdp;
    uint64_t memmap; /* from version 1 on */
    uint32_t memmap_entries;
    uint32_t reserved;
};

struct memmap_entry {
    uint64_t addr;
    uint64_t size;
    uint32_t type;
    uint32_t reserved;
};

/* Each guest's own; `si` is NULL when the loader gave none. Its return switches the power off. */
void guest_main(const struct start_info *si);

/* Of the linker script: the image's first byte and the first one behind it. */
extern char guest_first[], guest_end[];

static inline void outb(uint16_t port, uint8_t v)
{
    __asm__ volatile("outb %0, %1" : : "a"(v), "Nd"(port) : "memory");
}

static inline void outw(uint16_t port, uint16_t v)
{
    __asm__ volatile("outw %0, %1" : : "a"(v), "Nd"(port) : "memory");
}

static inline uint8_t inb(uint16_t port)
{
    uint8_t v;
    __asm__ volatile("inb %1, %0" : "=a"(v) : "Nd"(port) : "memory");
    return v;
}

/* ---- string.c */
void *memset(void *to, int c, size_t n);
void *memcpy(void *to, const void *from, size_t n);
int memcmp(const void *a, const void *b, size_t n);
size_t strlen(const char *s);

/* ---- serial.c */
void serial_putc(char c);
int serial_getc(void); /* -1: nothing there */
/* %s %c %d %u %x, with l for long; a width of digits, zero-padded, is understood for %x. */
void print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* ---- cmdline.c: words of the form key or key=value, separated by blanks */
void cmdline_init(const struct start_info *si);
const char *cmdline_text(void);
/* The value of `key` (its length in *len), NULL when it is not there; an empty one for a bare key.
 */
const char *cmdline_find(const char *key, size_t *len);
bool cmdline_has(const char *key);
/* A number, decimal or 0x..., with an optional K, M or G. */
uint64_t cmdline_number(const char *key, uint64_t otherwise);
/* Whether `word` is an element of the comma list that is `key`'s value. */
bool cmdline_lists(const char *key, const char *word);

/* ---- end.c */
void guest_poweroff(void) __attribute__((noreturn));
void guest_debug_exit(uint8_t code) __attribute__((noreturn));
void guest_halt(void) __attribute__((noreturn)); /* interrupts off, for ever */
void guest_triple_fault(void) __attribute__((noreturn));
void guest_panic(const char *why) __attribute__((noreturn)); /* prints, debug exit 99 */

#endif
