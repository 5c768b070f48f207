/*
 * The log of written guest frames. The marks are the dirty bits of the second stage, which is where
 * every writer leaves them; a fetch moves those of a range to a bitmap of the VM, waits until no
 * vCPU holds a translation from before, and takes them from there. So a fetch that nobody waits for
 * any more loses nothing.
 */
#include "hv/vm/vm.h"

#include <stdlib.h>
#include <string.h>

static struct s2_region region(struct vm *vm, unsigned i)
{
    struct boot_ram ram = vm_ram(vm);

    if (!i)
        return (struct s2_region){gfn(0), ram.low >> FRAME_SHIFT};
    return (struct s2_region){gpa_to_gfn(gpa(BOOT_HIGH_BASE)), ram.high >> FRAME_SHIFT};
}

uint64_t vm_ram_frames(struct vm *vm)
{
    return vm->config.memory >> FRAME_SHIFT;
}

uint64_t vm_ram_index(struct vm *vm, uint64_t g)
{
    struct s2_region low = region(vm, 0), high = region(vm, 1);

    return g < low.frames ? g : low.frames + (g - high.first.v);
}

/* The guest frame with number `index`; *run: how many follow in the same region, it included. */
static uint64_t guest_frame(struct vm *vm, uint64_t index, uint64_t *run)
{
    struct s2_region low = region(vm, 0), high = region(vm, 1);

    if (index < low.frames) {
        *run = low.frames - index;
        return index;
    }
    *run = low.frames + high.frames - index;
    return high.first.v + (index - low.frames);
}

/* ---- bits, from any bit on; n up to 64 */

static uint64_t bits_get(const uint64_t *b, uint64_t at, unsigned n)
{
    uint64_t v = b[at / 64] >> at % 64;

    if (at % 64 && at % 64 + n > 64)
        v |= b[at / 64 + 1] << (64 - at % 64);
    return n < 64 ? v & ((UINT64_C(1) << n) - 1) : v;
}

/* Sets those of `v`, or clears them. */
static void bits_put(uint64_t *b, uint64_t at, uint64_t v, bool set)
{
    uint64_t lo = v << at % 64, hi = at % 64 ? v >> (64 - at % 64) : 0;

    if (set)
        b[at / 64] |= lo;
    else
        b[at / 64] &= ~lo;
    if (hi && set)
        b[at / 64 + 1] |= hi;
    else if (hi)
        b[at / 64 + 1] &= ~hi;
}

static uint64_t mask(uint64_t n)
{
    return n < 64 ? (UINT64_C(1) << n) - 1 : ~UINT64_C(0);
}

/* ---- control thread */

enum mf_status vm_dirty_start(struct vm *vm, struct mf_error *e)
{
    uint64_t *bits;
    enum mf_status st;

    if (vm->engine.ops->kind != ENGINE_SOFT)
        return error_set(e, MF_E_NOT_SUPPORTED, NULL,
                         "the VM's engine, %s, does not log written frames", vm->engine.ops->name);
    bits = calloc((vm_ram_frames(vm) + 63) / 64, sizeof *bits);
    if (!bits)
        return error_set(e, MF_E_NO_MEMORY, NULL, "no host memory for the log");
    pthread_mutex_lock(&vm->lock);
    st = vm->part.dirty ? error_set(e, MF_E_STATE, NULL, "a log of written frames is on already")
                        : vm_part_ask_locked(vm, VM_PART_LOG_START, 0, vm_ram_frames(vm), e);
    if (st == MF_BLOCKED) {
        vm->part.dirty = bits;
        bits = NULL;
    }
    pthread_mutex_unlock(&vm->lock);
    free(bits);
    return st;
}

enum mf_status vm_dirty_stop(struct vm *vm, struct mf_error *e)
{
    enum mf_status st = MF_OK;

    pthread_mutex_lock(&vm->lock);
    if (!vm->part.dirty) {
        st = error_set(e, MF_E_STATE, NULL, "no log of written frames is on");
    } else if (vm->part.control.state != VM_PART_FREE) {
        st = error_set(e, MF_E_BUSY, NULL, "another call works on this VM's memory");
    } else {
        free(vm->part.dirty);
        vm->part.dirty = NULL;
    }
    pthread_mutex_unlock(&vm->lock);
    return st;
}

uint64_t vm_dirty_take(struct vm *vm, uint64_t first, uint64_t frames, uint64_t *bits)
{
    uint64_t at = vm_ram_index(vm, first), set = 0;

    memset(bits, 0, (frames + 63) / 64 * sizeof *bits);
    pthread_mutex_lock(&vm->lock);
    for (uint64_t i = 0; vm->part.dirty && i < frames; i += 64) {
        unsigned n = frames - i < 64 ? (unsigned)(frames - i) : 64;

        bits[i / 64] = bits_get(vm->part.dirty, at + i, n);
        bits_put(vm->part.dirty, at + i, bits[i / 64], false);
        set += (unsigned)__builtin_popcountll(bits[i / 64]);
    }
    pthread_mutex_unlock(&vm->lock);
    return set;
}

void vm_part_fini(struct vm_part *p)
{
    free(p->dirty);
}

/* ---- the job */

void vm_dirty_mark(struct vm *vm, uint64_t first, uint64_t frames)
{
    uint64_t at = vm_ram_index(vm, first);

    pthread_mutex_lock(&vm->lock);
    for (uint64_t i = 0; vm->part.dirty && i < frames; i += 64)
        bits_put(vm->part.dirty, at + i, mask(frames - i), true);
    pthread_mutex_unlock(&vm->lock);
}

static void keep(struct vm *vm, uint64_t at, uint64_t n, const uint64_t *bits)
{
    pthread_mutex_lock(&vm->lock);
    for (uint64_t i = 0; vm->part.dirty && i < n; i += 64)
        if (bits[i / 64])
            bits_put(vm->part.dirty, at + i, bits[i / 64], true);
    pthread_mutex_unlock(&vm->lock);
}

enum mf_status vm_dirty_step(struct vm *vm, const struct vm_part_request *r)
{
    uint64_t begin = r->op == VM_PART_LOG_START ? 0 : vm_ram_index(vm, r->first);
    uint64_t bits[VM_PART_FETCH_STEP / 64], run, g, n = begin + r->frames - vm->part.at;
    struct vm_part *p = &vm->part;
    enum mf_status st;

    if (!n && p->root + 1 < stage2_roots(vm->s2)) {
        p->root++;
        p->at = begin;
        return MF_AGAIN;
    }
    if (!n)
        return vm_part_flush(vm, p->epoch);
    g = guest_frame(vm, p->at, &run);
    n = n < run ? n : run;
    n = n < VM_PART_FETCH_STEP ? n : VM_PART_FETCH_STEP;
    st = stage2_dirty_fetch(vm->s2, p->root, gfn(g), n, bits, &p->epoch);
    if (st)
        return st;
    if (r->op == VM_PART_LOG_FETCH)
        keep(vm, p->at, n, bits);
    p->at += n;
    return MF_AGAIN;
}
