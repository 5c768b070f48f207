#include "hv/boot/acpi.h"

#include <pthread.h>
#include <string.h>

/* The machine's addresses, told to guests here and nowhere else. tests/unit/vm/test_acpi.c compares
 * them with hv/dev. */
#define PM1_EVT      0x600u
#define PM1_CNT      0x604u
#define PM_TMR       0x608u
#define RESET_PORT   0xcf9u
#define RESET_VALUE  0x06u
#define SCI          9u
#define LAPIC_AT     0xfee00000u
#define IOAPIC_AT    0xfec00000u
#define CMOS_CENTURY 0x32u

#define HEADER   36u
#define RSDP_LEN 36u
#define XSDT_LEN (HEADER + 2 * 8)
#define FADT_LEN 244u
#define FACS_LEN 64u
#define MADT_LEN (HEADER + 8 + 12 + 2 * 10 + 6) /* and 8 a processor */

/* Bytes of AML that name each length once; the definitions follow ACPI chapter 20. */
#define AML_NAME        0x08
#define AML_BYTE        0x0a
#define AML_DWORD       0x0c
#define AML_STRING      0x0d
#define AML_SCOPE       0x10
#define AML_BUFFER      0x11
#define AML_PACKAGE     0x12
#define AML_DEVICE      0x5b, 0x82
#define IO_PORTS(at, n) 0x47, 0x01, (at)&0xff, (at) >> 8, (at)&0xff, (at) >> 8, 0x01, (n)
#define IRQ_MASK(n)     0x22, (1u << (n)) & 0xff, (1u << (n)) >> 8
#define END_TAG         0x79, 0x00

/* clang-format off */
static const uint8_t aml[] = {
    /* Name (\_S5, Package () { 5, 5, 0, 0 }) */
    AML_NAME, '_', 'S', '5', '_', AML_PACKAGE, 8, 4, AML_BYTE, 5, AML_BYTE, 5, 0, 0,
    /* Scope (\_SB): 7 bytes, then 52 and 41 of the devices: 100, as 4 + 6 * 16 */
    AML_SCOPE, 0x44, 0x06, '\\', '_', 'S', 'B', '_',
    /* Device (COM1): 5 bytes, _HID 10, _UID 6, _STA 7, _CRS 22 */
    AML_DEVICE, 50, 'C', 'O', 'M', '1',
    AML_NAME, '_', 'H', 'I', 'D', AML_DWORD, 0x41, 0xd0, 0x05, 0x01,
    AML_NAME, '_', 'U', 'I', 'D', 0x01,
    AML_NAME, '_', 'S', 'T', 'A', AML_BYTE, 0x0f,
    AML_NAME, '_', 'C', 'R', 'S', AML_BUFFER, 16, AML_BYTE, 13,
    IO_PORTS(0x3f8, 8), IRQ_MASK(4), END_TAG,
    /* Device (PEVT): 5 bytes, _HID 15, _CRS 19 */
    AML_DEVICE, 39, 'P', 'E', 'V', 'T',
    AML_NAME, '_', 'H', 'I', 'D', AML_STRING, 'Q', 'E', 'M', 'U', '0', '0', '0', '1', 0,
    AML_NAME, '_', 'C', 'R', 'S', AML_BUFFER, 13, AML_BYTE, 10,
    IO_PORTS(0x505, 1), END_TAG,
};
/* clang-format on */

/* Offsets of the tables from the base. */
#define AT_RSDP 0u
#define AT_XSDT 0x30u
#define AT_FACS 0x70u /* or up to 48 bytes behind: it is aligned to 64 */
#define AT_FADT 0xe0u
#define AT_DSDT 0x1e0u
#define AT_MADT (AT_DSDT + ((HEADER + sizeof aml + 15) & ~15u))
_Static_assert(AT_XSDT + XSDT_LEN <= AT_FACS, "XSDT");
_Static_assert(AT_FACS + 48 + FACS_LEN <= AT_FADT, "FACS");
_Static_assert(AT_FADT + FADT_LEN <= AT_DSDT, "FADT");

#define LEN_MAX (AT_MADT + MADT_LEN + ACPI_CPUS_MAX * 8u)

static void put(uint8_t *p, unsigned at, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        p[at + i] = (uint8_t)(v >> (8 * i));
}

static void checksum(uint8_t *p, uint32_t len, unsigned at)
{
    unsigned sum = 0;

    p[at] = 0;
    for (uint32_t i = 0; i < len; i++)
        sum += p[i];
    p[at] = (uint8_t)(0u - sum);
}

static void header(uint8_t *p, const char *signature, uint32_t len, uint8_t revision)
{
    memcpy(p, signature, 4);
    put(p, 4, len, 4);
    p[8] = revision;
    memcpy(p + 10, "MAYFLYMACHINE \0", 14);
    put(p, 24, 1, 4);
    memcpy(p + 28, "MFLY", 4);
    put(p, 32, 1, 4);
}

/* Generic address of an I/O port; `access` 1, 2, 3: byte, word, double word. */
static void port_at(uint8_t *p, unsigned at, unsigned bits, unsigned access, uint32_t port)
{
    p[at] = 1;
    p[at + 1] = (uint8_t)bits;
    p[at + 3] = (uint8_t)access;
    put(p, at + 4, port, 8);
}

static void make_rsdp(uint8_t *t, uint64_t base)
{
    uint8_t *p = t + AT_RSDP;

    memcpy(p, "RSD PTR ", 8);
    memcpy(p + 9, "MAYFLY", 6);
    p[15] = 2;
    put(p, 20, RSDP_LEN, 4);
    put(p, 24, base + AT_XSDT, 8);
    checksum(p, 20, 8);
    checksum(p, RSDP_LEN, 32);
}

static void make_xsdt(uint8_t *t, uint64_t base)
{
    uint8_t *p = t + AT_XSDT;

    header(p, "XSDT", XSDT_LEN, 1);
    put(p, HEADER, base + AT_FADT, 8);
    put(p, HEADER + 8, base + AT_MADT, 8);
    checksum(p, XSDT_LEN, 9);
}

static uint64_t facs_at(uint64_t base)
{
    return (base + AT_FACS + 63) & ~UINT64_C(63);
}

static void make_facs(uint8_t *t, uint64_t base)
{
    uint8_t *p = t + (facs_at(base) - base);

    memcpy(p, "FACS", 4);
    put(p, 4, FACS_LEN, 4);
    p[32] = 2;
}

/* Boot flags: ISA devices, no VGA, no 8042 (there is nothing behind it), a CMOS RTC. Flags: WBINVD,
 * C1, no sleep button, RTC wakes not by fixed hardware, 32-bit PM timer, reset register. The power
 * button is fixed hardware. */
#define FADT_BOOT  0x0005u
#define FADT_FLAGS 0x00000565u

static void make_fadt(uint8_t *t, uint64_t base)
{
    uint8_t *p = t + AT_FADT;

    header(p, "FACP", FADT_LEN, 3);
    put(p, 36, facs_at(base), 4);
    put(p, 40, base + AT_DSDT, 4);
    put(p, 46, SCI, 2);
    put(p, 56, PM1_EVT, 4);
    put(p, 64, PM1_CNT, 4);
    put(p, 76, PM_TMR, 4);
    p[88] = 4; /* bytes of the blocks */
    p[89] = 2;
    p[91] = 4;
    put(p, 96, 0xfff, 2); /* no C2 and C3 */
    put(p, 98, 0xfff, 2);
    p[108] = CMOS_CENTURY;
    put(p, 109, FADT_BOOT, 2);
    put(p, 112, FADT_FLAGS, 4);
    port_at(p, 116, 8, 1, RESET_PORT);
    p[128] = RESET_VALUE;
    put(p, 132, facs_at(base), 8);
    put(p, 140, base + AT_DSDT, 8);
    port_at(p, 148, 32, 2, PM1_EVT);
    port_at(p, 172, 16, 2, PM1_CNT);
    port_at(p, 208, 32, 3, PM_TMR);
    checksum(p, FADT_LEN, 9);
}

static void make_dsdt(uint8_t *t)
{
    uint8_t *p = t + AT_DSDT;

    header(p, "DSDT", HEADER + sizeof aml, 2);
    memcpy(p + HEADER, aml, sizeof aml);
    checksum(p, HEADER + sizeof aml, 9);
}

/* An interrupt of the ISA bus that is another input of the IOAPIC, or of another kind. */
static unsigned override(uint8_t *p, unsigned at, uint8_t irq, uint32_t gsi, uint16_t flags)
{
    p[at] = 2;
    p[at + 1] = 10;
    p[at + 3] = irq;
    put(p, at + 4, gsi, 4);
    put(p, at + 8, flags, 2);
    return at + 10;
}

static uint32_t madt_len(unsigned cpus)
{
    return MADT_LEN + cpus * 8;
}

static void make_madt(uint8_t *t, unsigned cpus)
{
    uint8_t *p = t + AT_MADT;
    unsigned at = HEADER + 8;

    header(p, "APIC", madt_len(cpus), 3);
    put(p, HEADER, LAPIC_AT, 4);
    put(p, HEADER + 4, 1, 4); /* there is an 8259 pair too */
    for (unsigned i = 0; i < cpus; i++, at += 8) {
        p[at + 1] = 8;
        p[at + 2] = p[at + 3] = (uint8_t)i;
        p[at + 4] = 1;
    }
    p[at] = 1;
    p[at + 1] = 12;
    put(p, at + 4, IOAPIC_AT, 4);
    at = override(p, at + 12, 0, 2, 0);
    at = override(p, at, SCI, SCI, 0xd); /* active high, level */
    p[at] = 4;                           /* NMI at LINT1 of all */
    p[at + 1] = 6;
    p[at + 2] = 0xff;
    p[at + 5] = 1;
    checksum(p, madt_len(cpus), 9);
}

/* What was made last: VMs that start one after the other mostly want the same. */
static struct {
    pthread_mutex_t lock;
    /* under lock */
    uint64_t base;
    unsigned cpus; /* 0: nothing yet */
    uint8_t bytes[LEN_MAX];
} last = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void make_all(uint64_t base, unsigned cpus)
{
    memset(last.bytes, 0, sizeof last.bytes);
    make_rsdp(last.bytes, base);
    make_xsdt(last.bytes, base);
    make_facs(last.bytes, base);
    make_fadt(last.bytes, base);
    make_dsdt(last.bytes);
    make_madt(last.bytes, cpus);
    last.base = base;
    last.cpus = cpus;
}

uint32_t acpi_tables_make(unsigned cpus, uint64_t base, void *buf, uint32_t cap)
{
    uint32_t len = (uint32_t)AT_MADT + madt_len(cpus);

    if (len > cap)
        return len;
    pthread_mutex_lock(&last.lock);
    if (last.cpus != cpus || last.base != base)
        make_all(base, cpus);
    memcpy(buf, last.bytes, len);
    pthread_mutex_unlock(&last.lock);
    return len;
}
