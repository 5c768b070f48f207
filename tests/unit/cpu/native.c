#include "tests/unit/cpu/native.h"

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define SLOT 16u

static uint8_t *page;
static uint8_t *slot, *fp_code, *fp_slot;
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

#define FX 144u
#define MX 656u
_Static_assert(offsetof(struct native_fp, fx) == FX, "the trampoline's offsets");
_Static_assert(offsetof(struct native_fp, host_mxcsr) == MX, "the trampoline's offsets");

static uint8_t *build(uint8_t *p, uint8_t **at, bool fp)
{
    p = PUT(p, "\x53\x55\x41\x54\x41\x55\x41\x56\x41\x57"); /* push rbx rbp r12 ... r15 */
    p = PUT(p, "\x57");                                     /* push rdi */
    if (fp) {
        p = PUT(p, "\x0f\xae\x9f\x90\x02\x00\x00");     /* stmxcsr [rdi + MX] */
        p = PUT(p, "\x48\x0f\xae\x8f\x90\x00\x00\x00"); /* fxrstor64 [rdi + FX] */
    }
    p = PUT(p, "\xff\xb7\x80\x00\x00\x00\x9d"); /* push [rdi + 128]; popfq */
    for (unsigned r = 0; r < 16; r++)
        if (r != 4 && r != 7)
            p = move(p, 0x8b, r);
    p = move(p, 0x8b, 7);
    *at = p;
    memset(p, 0x90, SLOT);
    p += SLOT;
    p = PUT(p, "\x57\x48\x8b\x7c\x24\x08"); /* push rdi; mov rdi, [rsp + 8] */
    p = PUT(p, "\x8f\x47\x38");             /* pop [rdi + 56] */
    for (unsigned r = 0; r < 16; r++)
        if (r != 4 && r != 7)
            p = move(p, 0x89, r);
    p = PUT(p, "\x9c\x8f\x87\x80\x00\x00\x00"); /* pushfq; pop [rdi + 128] */
    if (fp) {
        p = PUT(p, "\x48\x0f\xae\x87\x90\x00\x00\x00");     /* fxsave64 [rdi + FX] */
        p = PUT(p, "\xdb\xe3\x0f\xae\x97\x90\x02\x00\x00"); /* fninit; ldmxcsr [rdi + MX] */
    }
    p = PUT(p, "\x5f");
    return PUT(p, "\x41\x5f\x41\x5e\x41\x5d\x41\x5c\x5d\x5b\xc3");
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
    fp_code = build(page, &slot, false);
    build(fp_code, &fp_slot, true);
    return true;
}

/* ---- faults: what the signal frame says is the state at the instruction */

static sigjmp_buf back;
static struct native_fp caught;
static volatile int trap;

static const int signals[] = {SIGFPE, SIGSEGV, SIGBUS, SIGILL};
static struct sigaction former[4];
static bool catching, running;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    const ucontext_t *u = context;

    (void)info;
    if (!running) { /* not ours: once more, and to the end */
        signal(sig, SIG_DFL);
        return;
    }
    for (unsigned i = 0; i < 16; i++)
        caught.r.gpr[i] = (uint64_t)u->uc_mcontext.gregs[order[i]];
    caught.r.flags = (uint64_t)u->uc_mcontext.gregs[REG_EFL];
    memcpy(caught.fx, u->uc_mcontext.fpregs, sizeof caught.fx);
    trap = (int)u->uc_mcontext.gregs[REG_TRAPNO];
    siglongjmp(back, 1);
}

static void catch_faults(void)
{
    struct sigaction sa = {.sa_flags = SA_SIGINFO | SA_NODEFER};

    sa.sa_sigaction = on_fault;
    for (unsigned i = 0; i < 4; i++)
        sigaction(signals[i], &sa, catching ? NULL : &former[i]);
    catching = true;
}

int native_run_fp(const uint8_t *code, unsigned len, struct native_fp *s)
{
    void (*fn)(struct native_fp *);

    memcpy(fp_slot, code, len);
    memset(fp_slot + len, 0x90, SLOT - len);
    memcpy(&fn, &fp_code, sizeof fn);
    s->r.flags = (s->r.flags & NATIVE_FLAGS) | 0x202;
    catch_faults(); /* each time: the test library sets its own before each test */
    trap = -1;
    running = true;
    if (!sigsetjmp(back, 0)) {
        fn(s);
    } else {
        __asm__ volatile("fninit\n\tldmxcsr %0" : : "m"(s->host_mxcsr));
        s->r = caught.r;
        memcpy(s->fx, caught.fx, sizeof s->fx);
    }
    running = false;
    s->r.flags &= NATIVE_FLAGS;
    return trap;
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

void native_fini(void)
{
    for (unsigned i = 0; catching && i < 4; i++)
        sigaction(signals[i], &former[i], NULL);
    catching = false;
    munmap(page, 4096);
    munmap(data_page, data_bytes);
}
