#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "hv/boot/acpi.h"
#include "hv/dev/chipset.h"
#include "hv/dev/endports.h"

static uint8_t t[4096];

static uint64_t get(const uint8_t *p, unsigned at, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)p[at + i] << (8 * i);
    return v;
}

static unsigned sum(const uint8_t *p, uint64_t n)
{
    unsigned s = 0;

    while (n--)
        s += *p++;
    return s & 0xff;
}

/* The table that guest-physical `at` names: inside what was made, signed, its checksum right. */
static const uint8_t *table(uint64_t base, uint32_t len, uint64_t at, const char *signature)
{
    const uint8_t *p;

    assert_true(at >= base && at + 36 <= base + len);
    p = t + (at - base);
    assert_memory_equal(p, signature, 4);
    assert_true(at + get(p, 4, 4) <= base + len);
    if (strcmp(signature, "FACS") != 0)
        assert_int_equal(sum(p, get(p, 4, 4)), 0);
    return p;
}

static const uint8_t *from_xsdt(uint64_t base, uint32_t len, const char *signature)
{
    const uint8_t *x = table(base, len, get(t, 24, 8), "XSDT");

    for (unsigned i = 36; i < get(x, 4, 4); i += 8)
        if (!memcmp(t + (get(x, i, 8) - base), signature, 4))
            return table(base, len, get(x, i, 8), signature);
    fail_msg("no %s", signature);
    return NULL;
}

static uint32_t make(unsigned cpus, uint64_t base)
{
    memset(t, 0xcc, sizeof t);
    return acpi_tables_make(cpus, base, t, sizeof t);
}

/* Protects the chain from the RSDP to every table, at any base and number of processors. */
static void chain(void **state)
{
    static const uint64_t bases[] = {0x1000, 0x1390, 0x13a0, 0x13b0, 0x7ffe0, 0xfffffff0 - 8192};
    static const unsigned cpus[] = {1, 2, 64};

    (void)state;
    for (unsigned i = 0; i < 18; i++) {
        uint64_t base = bases[i % 6], facs;
        uint32_t len = make(cpus[i / 6], base);
        const uint8_t *f;

        assert_true(len && len <= 4096);
        assert_int_equal(t[len], 0xcc);
        assert_memory_equal(t, "RSD PTR ", 8);
        assert_int_equal(sum(t, 20), 0);
        assert_int_equal(sum(t, 36), 0);
        f = from_xsdt(base, len, "FACP");
        facs = get(f, 132, 8);
        assert_int_equal(facs % 64, 0);
        assert_int_equal(facs, get(f, 36, 4));
        table(base, len, facs, "FACS");
        assert_int_equal(get(f, 140, 8), get(f, 40, 4));
        table(base, len, get(f, 140, 8), "DSDT");
        from_xsdt(base, len, "APIC");
    }
}

/* Protects callers: the size does not depend on the base, and nothing is written that does not fit.
 */
static void sizes(void **state)
{
    uint32_t len = make(3, 0x1000);

    (void)state;
    assert_int_equal(acpi_tables_make(3, 0, NULL, 0), len);
    memset(t, 0xcc, sizeof t);
    assert_int_equal(acpi_tables_make(3, 0x2000, t, len - 1), len);
    assert_int_equal(t[0], 0xcc);
    assert_int_equal(acpi_tables_make(3, 0x2000, t, len), len);
    assert_int_equal(t[0], 'R');
}

/* Protects that the tables name the devices where they are. */
static void names_the_devices(void **state)
{
    uint32_t len = make(2, 0x1000);
    const uint8_t *f = from_xsdt(0x1000, len, "FACP"), *m = from_xsdt(0x1000, len, "APIC");

    (void)state;
    assert_int_equal(get(f, 46, 2), IRQ_SCI);
    assert_int_equal(get(f, 56, 4), ACPI_PM1_EVT);
    assert_int_equal(get(f, 64, 4), ACPI_PM1_CNT);
    assert_int_equal(get(f, 76, 4), ACPI_PM_TMR);
    assert_int_equal(get(f, 152, 8), ACPI_PM1_EVT);
    assert_int_equal(get(f, 176, 8), ACPI_PM1_CNT);
    assert_int_equal(get(f, 212, 8), ACPI_PM_TMR);
    assert_int_equal(get(f, 120, 8), PORT_RESET);
    assert_int_equal(f[128] & 4, 4);
    assert_int_equal(get(m, 36, 4), LAPIC_BASE);
}

/* Protects the MADT: a LAPIC for each vCPU, the IOAPIC, the timer's other input, the level of SCI.
 */
static void madt(void **state)
{
    unsigned lapics = 0, ioapics = 0, timer = 0, sci = 0;
    uint32_t len = make(4, 0x1000);
    const uint8_t *m = from_xsdt(0x1000, len, "APIC");

    (void)state;
    for (unsigned i = 44; i < get(m, 4, 4); i += m[i + 1]) {
        assert_true(m[i + 1] >= 6);
        if (m[i] == 0) {
            assert_int_equal(m[i + 3], lapics++);
            assert_int_equal(m[i + 4] & 1, 1);
        }
        ioapics += m[i] == 1 && get(m, i + 4, 4) == IOAPIC_BASE && get(m, i + 8, 4) == 0;
        timer += m[i] == 2 && m[i + 3] == 0 && get(m, i + 4, 4) == 2;
        sci += m[i] == 2 && m[i + 3] == IRQ_SCI && get(m, i + 8, 2) == 0xd;
    }
    assert_int_equal(lapics, 4);
    assert_int_equal(ioapics, 1);
    assert_int_equal(timer, 1);
    assert_int_equal(sci, 1);
}

/* Protects the AML: \_S5 with the sleep type of power-off, and packages whose lengths add up. */
static void aml(void **state)
{
    static const uint8_t s5[] = {0x08, '_', 'S', '5', '_', 0x12, 8, 4, 0x0a, ACPI_SLEEP_S5};
    uint32_t len = make(1, 0x1000);
    const uint8_t *f = from_xsdt(0x1000, len, "FACP");
    const uint8_t *d = table(0x1000, len, get(f, 140, 8), "DSDT"), *scope = d + 36 + 14, *p;
    uint64_t end = get(d, 4, 4);

    (void)state;
    assert_memory_equal(d + 36, s5, sizeof s5);
    assert_int_equal(scope[0], 0x10);
    assert_int_equal((scope[1] & 15) | scope[2] << 4, d + end - scope - 1);
    for (p = scope + 8; p < d + end; p += 2 + p[2]) {
        assert_int_equal(p[0], 0x5b);
        assert_int_equal(p[1], 0x82);
        assert_true(p[2] < 64);                  /* a length of one byte */
        assert_int_equal(p[2 + p[2] - 1], 0x00); /* ends with the end tag's checksum */
        assert_int_equal(p[2 + p[2] - 2], 0x79);
    }
    assert_ptr_equal(p, d + end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chain), cmocka_unit_test(sizes), cmocka_unit_test(names_the_devices),
        cmocka_unit_test(madt),  cmocka_unit_test(aml),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
