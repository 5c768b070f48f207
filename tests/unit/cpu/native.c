#include "tests/unit/cpu/native.h"

#include <string.h>
#include <sys/mman.h>

#define SLOT 16u

static uint8_t *page;
static uint8_t *slot;
static void *data_page;
static uint64_t data_bytes;

static uint8_t *put(uint8_t *p, const char *bytes, unsigned n)
{
    while (n--)
        *p++ = (uint8_t)*bytes++;
    return p;
}
#define PUT(p, bytes) put(p, bytes, sizeof(bytes) - 1)

/* mov reg, [rdi + 8 * reg] (0x8b) or the reverse (0x89) */
static uint8_t *move(uint8_t *p, uint8_t opcode, unsigned reg)
{
    *p++ = (uint8_t)(0x48 | (reg & 8) >> 1);
    *p++ = opcode;
    *p++ = (uint8_t)(0x47 | (reg & 7) << 3);
    *p++ = (uint8_t)(reg * 8);
    return p;
}

static void build(uint8_t *p)
{
    p = PUT(p, "\x53\x55\x41\x54\x41\x55\x41\x56\x41\x57"); /* push rbx rbp r12 ... r15 */
    p = PUT(p, "\x57");                                     /* push rdi */
    p = PUT(p, "\xff\xb7\x80\x00\x00\x00\x9d");             /* push [rdi + 128]; popfq */
    for (unsigned r = 0; r < 16; r++)
        if (r != 4 && r != 7)
            p = move(p, 0x8b, r);
    p = move(p, 0x8b, 7);
    slot = p;
    memset(p, 0x90, SLOT);
    p += SLOT;
    p = PUT(p, "\x57\x48\x8b\x7c\x24\x08"); /* push rdi; mov rdi, [rsp + 8] */
    p = PUT(p, "\x8f\x47\x38");             /* pop [rdi + 56] */
    for (unsigned r = 0; r < 16; r++)
        if (r != 4 && r != 7)
            p = move(p, 0x89, r);
    p = PUT(p, "\x9c\x8f\x87\x80\x00\x00\x00"); /* pushfq; pop [rdi + 128] */
    p = PUT(p, "\x5f");
    PUT(p, "\x41\x5f\x41\x5e\x41\x5d\x41\x5c\x5d\x5b\xc3");
}

bool native_init(uint64_t data, uint64_t bytes)
{
    void *want = NULL;

    memcpy(&want, &data, sizeof want);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_page = mmap(want, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    data_bytes = bytes;
    if (page == MAP_FAILED || data_page != want)
        return false;
    build(page);
    return true;
}

void native_fini(void)
{
    munmap(page, 4096);
    munmap(data_page, data_bytes);
}

void native_run(const uint8_t *code, unsigned len, struct native_regs *r)
{
    void (*fn)(struct native_regs *);

    memcpy(slot, code, len);
    memset(slot + len, 0x90, SLOT - len);
    memcpy(&fn, &page, sizeof fn);
    r->flags = (r->flags & NATIVE_FLAGS) | 0x202;
    fn(r);
    r->flags &= NATIVE_FLAGS;
}
