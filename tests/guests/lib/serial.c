#include <stdarg.h>

#include "lib/guest.h"

#define COM1_DATA 0x3f8
#define COM1_LSR  0x3fd
#define LSR_DR    0x01u
#define LSR_THRE  0x20u

void serial_putc(char c)
{
    while (!(inb(COM1_LSR) & LSR_THRE))
        ;
    outb(COM1_DATA, (uint8_t)c);
}

int serial_getc(void)
{
    if (!(inb(COM1_LSR) & LSR_DR))
        return -1;
    return inb(COM1_DATA);
}

static void put_text(const char *s)
{
    while (*s)
        serial_putc(*s++);
}

static void put_number(unsigned long v, unsigned base, unsigned width)
{
    char digits[24];
    unsigned n = 0;
    do {
        digits[n++] = "0123456789abcdef"[v % base];
        v /= base;
    } while (v && n < sizeof digits);
    for (; width > n; width--)
        serial_putc('0');
    while (n)
        serial_putc(digits[--n]);
}

void print(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    for (; *fmt; fmt++) {
        unsigned width = 0;
        bool is_long = false;
        long v;
        if (*fmt != '%') {
            serial_putc(*fmt);
            continue;
        }
        for (fmt++; *fmt >= '0' && *fmt <= '9'; fmt++)
            width = width * 10 + (unsigned)(*fmt - '0');
        for (; *fmt == 'l'; fmt++)
            is_long = true;
        switch (*fmt) {
        case 's':
            put_text(va_arg(ap, const char *));
            break;
        case 'c':
            serial_putc((char)va_arg(ap, int));
            break;
        case 'd':
            v = is_long ? va_arg(ap, long) : va_arg(ap, int);
            if (v < 0)
                serial_putc('-');
            put_number(v < 0 ? 0 - (unsigned long)v : (unsigned long)v, 10, width);
            break;
        case 'u':
        case 'x':
            put_number(is_long ? va_arg(ap, unsigned long) : va_arg(ap, unsigned),
                       *fmt == 'u' ? 10 : 16, width);
            break;
        default:
            serial_putc(*fmt);
        }
    }
    va_end(ap);
}
