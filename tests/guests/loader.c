/*
 * Says what its boot loader told it: entry protocol, command line, memory map, modules with a
 * checksum of their bytes. One body for three protocols: PVH (64-bit build), Linux's 64-bit entry
 * (LOADER_LINUX) and multiboot 1 (LOADER_MULTIBOOT, 32-bit build).
 */
#include "lib/guest.h"

static void say_cmdline(const char *text)
{
    print("cmdline \"%s\"\n", text);
}

static void say_map(uint64_t addr, uint64_t size, uint32_t type)
{
    print("map %08x%08x %08x%08x %u\n", (unsigned)(addr >> 32), (unsigned)addr,
          (unsigned)(size >> 32), (unsigned)size, type);
}

/* FNV-1a of the bytes. */
static void say_module(unsigned i, uint64_t addr, uint64_t size, const char *text)
{
    const uint8_t *b = (const uint8_t *)(uintptr_t)addr;
    uint32_t sum = 0x811c9dc5;
    for (uint64_t k = 0; k < size; k++)
        sum = (sum ^ b[k]) * 0x01000193u;
    print("module %u aligned %u bytes %u sum %08x \"%s\"\n", i, (addr & 0xfff) == 0, (unsigned)size,
          sum, text);
}

#ifdef LOADER_MULTIBOOT

#define MB_MAGIC 0x2badb002u

struct mb_info {
    uint32_t flags, mem_lower, mem_upper, boot_device, cmdline, mods_count, mods_addr, syms[4];
    uint32_t mmap_length, mmap_addr, drives[2], config, loader_name;
};
struct mb_module {
    uint32_t start, end, string, reserved;
};
struct mb_map {
    uint32_t size;
    uint64_t addr, len;
    uint32_t type;
} __attribute__((packed));

void multiboot_main(uint32_t magic, const struct mb_info *m);

void multiboot_main(uint32_t magic, const struct mb_info *m)
{
    if (magic != MB_MAGIC)
        guest_panic("no multiboot magic");
    print("loader: multiboot by %s\n", m->flags & 0x200 ? (const char *)m->loader_name : "?");
    print("memory %u %u\n", m->mem_lower, m->mem_upper);
    say_cmdline(m->flags & 4 ? (const char *)m->cmdline : "");
    for (uint32_t at = 0; m->flags & 0x40 && at < m->mmap_length;) {
        const struct mb_map *e = (const struct mb_map *)(m->mmap_addr + at);
        say_map(e->addr, e->len, e->type);
        at += e->size + 4;
    }
    for (uint32_t i = 0; m->flags & 8 && i < m->mods_count; i++) {
        const struct mb_module *d = (const struct mb_module *)m->mods_addr + i;
        say_module(i, d->start, d->end - d->start, (const char *)d->string);
    }
    print("done\n");
}

#elif defined(LOADER_LINUX)

void linux_main(const uint8_t *params);

static uint32_t word(const uint8_t *p, unsigned at)
{
    uint32_t v;
    memcpy(&v, p + at, sizeof v);
    return v;
}

void linux_main(const uint8_t *params)
{
    uint32_t initrd = word(params, 0x218), size = word(params, 0x21c);
    print("loader: linux %x header %x flag %x type %x\n", word(params, 0x206) & 0xffff,
          word(params, 0x202), word(params, 0x1fe) & 0xffff, params[0x210]);
    say_cmdline(word(params, 0x228) ? (const char *)(uintptr_t)word(params, 0x228) : "");
    for (unsigned i = 0; i < params[0x1e8]; i++) {
        const uint8_t *e = params + 0x2d0 + i * 20;
        uint64_t addr, len;
        memcpy(&addr, e, 8);
        memcpy(&len, e + 8, 8);
        say_map(addr, len, word(e, 16));
    }
    if (initrd)
        say_module(0, initrd, size, "");
    print("done\n");
}

#else

struct module_entry {
    uint64_t addr, size, cmdline, reserved;
};

void guest_main(const struct start_info *si)
{
    const struct memmap_entry *e = (const struct memmap_entry *)si->memmap;
    const struct module_entry *m = (const struct module_entry *)si->modlist;
    print("loader: pvh %u\n", si->version);
    say_cmdline(si->cmdline ? (const char *)si->cmdline : "");
    for (uint32_t i = 0; i < si->memmap_entries; i++)
        say_map(e[i].addr, e[i].size, e[i].type);
    for (uint32_t i = 0; i < si->nr_modules; i++)
        say_module(i, m[i].addr, m[i].size, m[i].cmdline ? (const char *)m[i].cmdline : "");
    print("done\n");
}

#endif
