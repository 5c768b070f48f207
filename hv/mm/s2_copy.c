/*
 * Copies between guest memory and the core, frame by frame with the lock held for one frame.
 */
#include <string.h>

#include "hv/mm/stage2_impl.h"

enum mf_status stage2_check(const struct stage2 *s2, gpa_t a, uint64_t n)
{
    uint64_t first = a.v >> FRAME_SHIFT, last, at;

    if (n > UINT64_MAX - a.v)
        return MF_E_RANGE;
    if (!n)
        return s2_in_regions(s2, first, 1) ? MF_OK : MF_E_RANGE;
    last = (a.v + n - 1) >> FRAME_SHIFT;
    /* Regions may touch: go from one to the next. */
    for (at = first; at <= last;) {
        unsigned i;

        for (i = 0; i < s2->nr_regions; i++)
            if (at >= s2->regions[i].first.v && at - s2->regions[i].first.v < s2->regions[i].frames)
                break;
        if (i == s2->nr_regions)
            return MF_E_RANGE;
        at = s2->regions[i].first.v + s2->regions[i].frames;
    }
    return MF_OK;
}

struct copy {
    const uint8_t *src; /* to the guest; NULL: fill */
    uint8_t *dst;       /* from the guest; NULL: to it */
    uint8_t byte;
};

static void copy_piece(const struct copy *c, uint8_t *guest, uint64_t done, uint64_t n)
{
    if (c->dst)
        memcpy(c->dst + done, guest, n);
    else if (c->src)
        memcpy(guest, c->src + done, n);
    else
        memset(guest, c->byte, n);
}

static enum mf_status copy_run(struct stage2 *s2, gpa_t a, uint64_t n, const struct copy *c)
{
    enum mf_status st = stage2_check(s2, a, n);

    for (uint64_t done = 0; st == MF_OK && done < n;) {
        uint64_t at = a.v + done, off = at & (FRAME_SIZE - 1), len = FRAME_SIZE - off;
        struct s2_leaf leaf;

        len = len < n - done ? len : n - done;
        s2_lock(s2);
        st =
            s2_get(s2, 0, at >> FRAME_SHIFT, c->dst ? S2_READ : S2_READ | S2_WRITE, !c->dst, &leaf);
        if (st == MF_OK) {
            copy_piece(c, (uint8_t *)heap_ptr(s2->heap, leaf.mfn) + off, done, len);
        } else if (st == MF_E_NOT_FOUND) {
            /* Not populated: reads as zero and stays so. */
            memset(c->dst + done, 0, len);
            st = MF_OK;
        }
        s2_unlock(s2);
        done += len;
    }
    return st;
}

enum mf_status stage2_write(struct stage2 *s2, gpa_t a, const void *src, uint64_t n)
{
    struct copy c = {.src = src};

    return n ? copy_run(s2, a, n, &c) : stage2_check(s2, a, 0);
}

enum mf_status stage2_read(struct stage2 *s2, gpa_t a, void *dst, uint64_t n)
{
    struct copy c = {.dst = dst};

    return n ? copy_run(s2, a, n, &c) : stage2_check(s2, a, 0);
}

enum mf_status stage2_fill(struct stage2 *s2, gpa_t a, uint8_t byte, uint64_t n)
{
    struct copy c = {.byte = byte};

    return copy_run(s2, a, n, &c);
}
