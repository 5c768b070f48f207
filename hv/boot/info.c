#include "hv/boot/info.h"

#include <string.h>

#define START_MAGIC 0x336ec578u

struct start_info {
    uint32_t magic, version, flags, nr_modules;
    uint64_t modules, cmdline, rsdp, memmap;
    uint32_t memmap_entries, reserved;
};
struct start_module {
    uint64_t addr, size, cmdline, reserved;
};
_Static_assert(sizeof(struct start_info) == 56, "hvm_start_info");
_Static_assert(sizeof(struct boot_map_entry) == 24, "hvm_memmap_table_entry");
_Static_assert(BOOT_AT_INFO + sizeof(struct start_info) <= BOOT_AT_MAP, "start_info");
_Static_assert(BOOT_AT_MAP + BOOT_MAP_MAX * sizeof(struct boot_map_entry) <= BOOT_AT_MODULES,
               "memory map");
_Static_assert(BOOT_AT_MODULES + MF_MODULES_MAX * sizeof(struct start_module) <= BOOT_AT_MB_MAP,
               "modules");

enum mf_status boot_info_pvh(const struct boot_load *l, struct stage2 *s2)
{
    const struct boot_plan *p = &l->plan;
    struct start_info info = {
        .magic = START_MAGIC,
        .version = 1,
        .nr_modules = l->set->nr_modules,
        .modules = l->set->nr_modules ? p->area + BOOT_AT_MODULES : 0,
        .cmdline = p->cmdline,
        .rsdp = p->tables,
        .memmap = p->area + BOOT_AT_MAP,
        .memmap_entries = p->map.n,
    };
    struct start_module mod[MF_MODULES_MAX] = {{0, 0, 0, 0}};
    uint8_t block[BOOT_AT_MB_MAP - BOOT_AT_INFO] = {0};

    for (unsigned i = 0; i < l->set->nr_modules; i++)
        mod[i] = (struct start_module){
            .addr = p->module[i], .size = l->set->module[i]->size, .cmdline = p->module_cmdline[i]};
    memcpy(block, &info, sizeof info);
    memcpy(block + (BOOT_AT_MAP - BOOT_AT_INFO), p->map.e, sizeof p->map.e);
    memcpy(block + (BOOT_AT_MODULES - BOOT_AT_INFO), mod, sizeof mod);
    return stage2_write(s2, gpa(p->area + BOOT_AT_INFO), block, sizeof block);
}

/* ---- multiboot */

#define MB_MEMORY  0x001u
#define MB_CMDLINE 0x004u
#define MB_MODULES 0x008u
#define MB_MAP     0x040u
#define MB_LOADER  0x200u

struct mb_info {
    uint32_t flags, mem_lower, mem_upper, boot_device, cmdline, mods_count, mods_addr, syms[4];
    uint32_t mmap_length, mmap_addr, drives_length, drives_addr, config_table, loader_name;
};
struct mb_module {
    uint32_t start, end, string, reserved;
};
struct mb_map_entry {
    uint32_t size; /* of what follows */
    uint32_t addr[2], len[2], type;
};
static const char loader_name[] = "Mayfly";
_Static_assert(sizeof(struct mb_info) + sizeof loader_name <= BOOT_AT_MAP - BOOT_AT_INFO,
               "mb_info");
_Static_assert(BOOT_AT_MB_MAP + BOOT_MAP_MAX * sizeof(struct mb_map_entry) <= BOOT_AT_STRINGS,
               "multiboot's map");

static void split(uint64_t v, uint32_t out[2])
{
    out[0] = (uint32_t)v;
    out[1] = (uint32_t)(v >> 32);
}

static uint32_t kib(uint64_t bytes)
{
    return (uint32_t)(bytes >> 10);
}

enum mf_status boot_info_multiboot(const struct boot_load *l, struct stage2 *s2)
{
    const struct boot_plan *p = &l->plan;
    uint64_t low = l->ram.low, at = p->area + BOOT_AT_INFO;
    struct mb_info info = {
        .flags = MB_MEMORY | MB_MAP | MB_LOADER | (p->cmdline ? MB_CMDLINE : 0) |
                 (l->set->nr_modules ? MB_MODULES : 0),
        .mem_lower = kib(low < BOOT_HOLE_FROM ? low : BOOT_HOLE_FROM),
        .mem_upper = low > BOOT_HOLE_END ? kib(low - BOOT_HOLE_END) : 0,
        .cmdline = (uint32_t)p->cmdline,
        .mods_count = l->set->nr_modules,
        .mods_addr = (uint32_t)(p->area + BOOT_AT_MODULES),
        .mmap_length = p->map.n * (uint32_t)sizeof(struct mb_map_entry),
        .mmap_addr = (uint32_t)(p->area + BOOT_AT_MB_MAP),
        .loader_name = (uint32_t)(at + sizeof info),
    };
    uint8_t block[BOOT_AT_STRINGS - BOOT_AT_INFO] = {0};

    memcpy(block, &info, sizeof info);
    memcpy(block + sizeof info, loader_name, sizeof loader_name);
    for (unsigned i = 0; i < l->set->nr_modules; i++) {
        struct mb_module m = {.start = (uint32_t)p->module[i],
                              .end = (uint32_t)(p->module[i] + l->set->module[i]->size),
                              .string = (uint32_t)p->module_cmdline[i]};

        memcpy(block + (BOOT_AT_MODULES - BOOT_AT_INFO) + i * sizeof m, &m, sizeof m);
    }
    for (unsigned i = 0; i < p->map.n; i++) {
        const struct boot_map_entry *from = &p->map.e[i];
        struct mb_map_entry e = {.size = sizeof e - sizeof e.size, .type = from->type};

        split(from->addr, e.addr);
        split(from->size, e.len);
        memcpy(block + (BOOT_AT_MB_MAP - BOOT_AT_INFO) + i * sizeof e, &e, sizeof e);
    }
    return stage2_write(s2, gpa(at), block, sizeof block);
}

/* ---- Linux; offsets in boot_params as Documentation/arch/x86/zero-page.rst and boot.rst list them
 */

#define PARAMS_BYTES  4096u
#define P_RSDP        0x070u
#define P_E820_COUNT  0x1e8u
#define P_SENTINEL    0x1efu
#define P_BOOT_FLAG   0x1feu
#define P_HEADER      0x202u
#define P_VERSION     0x206u
#define P_LOADER      0x210u
#define P_LOADFLAGS   0x211u
#define P_RAMDISK     0x218u
#define P_RAMDISK_LEN 0x21cu
#define P_CMDLINE     0x228u
#define P_SETUP_DATA  0x250u
#define P_E820        0x2d0u

#define HDR_MAGIC       0x53726448u /* "HdrS" */
#define HDR_VERSION     0x020fu
#define LOADER_OTHER    0xffu /* no number assigned */
#define FLAG_LOADED_HI  0x01u
#define FLAG_HEAP       0x80u
#define E820_ENTRY_SIZE 20u

static void put(uint8_t *b, unsigned at, uint64_t v, unsigned bytes)
{
    memcpy(b + at, &v, bytes);
}

/* A header for images that came without their own. */
static void put_header(uint8_t *b, const struct boot_set *set)
{
    if (set->setup_len) {
        memcpy(b + MF_SETUP_OFFSET, set->setup, set->setup_len);
        return;
    }
    put(b, P_BOOT_FLAG, 0xaa55, 2);
    put(b, P_HEADER, HDR_MAGIC, 4);
    put(b, P_VERSION, HDR_VERSION, 2);
}

enum mf_status boot_info_linux(const struct boot_load *l, struct stage2 *s2)
{
    const struct boot_plan *p = &l->plan;
    uint8_t b[PARAMS_BYTES] = {0};

    put_header(b, l->set);
    b[P_SENTINEL] = 0;
    b[P_LOADER] = LOADER_OTHER;
    b[P_LOADFLAGS] = (uint8_t)((b[P_LOADFLAGS] | FLAG_LOADED_HI) & ~FLAG_HEAP);
    put(b, P_SETUP_DATA, 0, 8);
    put(b, P_RSDP, p->tables, 8);
    put(b, P_CMDLINE, p->cmdline, 4);
    put(b, P_RAMDISK, l->set->nr_modules ? p->module[0] : 0, 4);
    put(b, P_RAMDISK_LEN, l->set->nr_modules ? l->set->module[0]->size : 0, 4);
    b[P_E820_COUNT] = (uint8_t)p->map.n;
    for (unsigned i = 0; i < p->map.n; i++)
        memcpy(b + P_E820 + i * E820_ENTRY_SIZE, &p->map.e[i], E820_ENTRY_SIZE);
    return stage2_write(s2, gpa(p->params), b, sizeof b);
}
