/* Takes the machine over, then runs the modes that `mode=a,b,c` names, or the harmless ones. */
#include "kernel/kernel.h"

struct region ram[REGIONS_MAX];
unsigned nr_ram;

static struct start_info info;
static char cmdline_copy[2048];
static uint64_t boot_pages[8];
static unsigned nr_boot_pages, passed, failed;

static const struct mode {
    const char *name;
    void (*run)(void);
    bool by_default;
} modes[] = {
    {"cpuid", mode_cpuid, false}, {"fault", mode_fault, true},      {"pf", mode_pf, true},
    {"pt", mode_pt, true},        {"user", mode_user, true},        {"smc", mode_smc, true},
    {"zero", mode_zero, false},   {"compute", mode_compute, true},  {"touch", mode_touch, true},
    {"panic", mode_panic, false}, {"outside", mode_outside, false}, {"spin", mode_spin, false},
    {"halt", mode_halt, false},   {"pit", mode_pit, false},         {"apic", mode_apic, false},
    {"uart", mode_uart, false},   {"uartrx", mode_uartrx, false},   {"smp", mode_smp, false},
    {"clock", mode_clock, false}, {"acpi", mode_acpi, false},
};

void check(bool good, const char *what)
{
    print("%s %s\n", good ? "ok" : "FAIL", what);
    if (good)
        passed++;
    else
        failed++;
}

uint64_t boot_rsdp(void)
{
    return info.rsdp;
}

bool boot_data_at(uint64_t page)
{
    for (unsigned i = 0; i < nr_boot_pages; i++)
        if (boot_pages[i] == page)
            return true;
    return false;
}

static void note_boot_data(uint64_t first, uint64_t bytes)
{
    for (uint64_t p = first & ~(uint64_t)(PAGE - 1); p < first + bytes; p += PAGE)
        if (nr_boot_pages < sizeof boot_pages / sizeof boot_pages[0])
            boot_pages[nr_boot_pages++] = p;
}

static void take_memmap(const struct memmap_entry *e, uint32_t n)
{
    for (uint32_t i = 0; i < n && nr_ram < REGIONS_MAX; i++) {
        uint64_t first = (e[i].addr + PAGE - 1) & ~(uint64_t)(PAGE - 1);
        uint64_t end = (e[i].addr + e[i].size) & ~(uint64_t)(PAGE - 1);
        if (e[i].type != MEMMAP_RAM || first >= end)
            continue;
        ram[nr_ram++] = (struct region){first, end};
        print("ram %016lx-%016lx\n", first, end);
    }
}

/* All that the loader said is copied, so that its pages may be overwritten later. */
static void take_start_info(const struct start_info *si)
{
    if (!si)
        guest_panic("no start information");
    info = *si;
    note_boot_data((uint64_t)si, sizeof *si);
    if (si->cmdline) {
        size_t n = strlen((const char *)si->cmdline);
        if (n >= sizeof cmdline_copy)
            guest_panic("command line too long");
        memcpy(cmdline_copy, (const char *)si->cmdline, n);
        note_boot_data(si->cmdline, n + 1);
        info.cmdline = (uint64_t)cmdline_copy;
        cmdline_init(&info);
    }
    if (si->version < 1 || !si->memmap || !si->memmap_entries)
        guest_panic("no memory map");
    note_boot_data(si->memmap, si->memmap_entries * sizeof(struct memmap_entry));
    take_memmap((const struct memmap_entry *)si->memmap, si->memmap_entries);
    if (!nr_ram)
        guest_panic("no RAM in the memory map");
}

void guest_main(const struct start_info *si)
{
    size_t len;
    bool chosen = cmdline_find("mode", &len) != NULL;
    unsigned ran = 0;
    print("kernel: command line \"%s\"\n", cmdline_text());
    take_start_info(si);
    traps_init();
    paging_init();
    check(true, "own page tables, GDT, TSS, IDT");
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        if (chosen ? !cmdline_lists("mode", modes[i].name) : !modes[i].by_default)
            continue;
        modes[i].run();
        ran++;
    }
    if (chosen && !ran)
        guest_panic("no such mode");
    print("kernel: %u ok, %u failed\n", passed, failed);
    if (failed)
        guest_debug_exit(1);
    if (cmdline_has("exit"))
        guest_debug_exit((uint8_t)cmdline_number("exit", 0));
}
