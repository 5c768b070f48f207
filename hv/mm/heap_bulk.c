/*
 * Many single frames of one owner back into one block, whatever their records say beside that: for
 * an owner that ends and has no use for them any more.
 */
#include "hv/mm/heap_impl.h"

/* True when each frame is a block of its own, in use by `owner`, of `type`. */
static bool all_single(const struct heap *h, uint64_t m, uint64_t n, uint32_t owner,
                       enum frame_type type, struct heap_bulk *out)
{
    for (uint64_t i = 0; i < n; i++) {
        const struct frame *f = heap_rec(h, mfn(m + i));
        union frame_head head = frame_head_load(f);
        struct frame r = {.u.word = frame_word_load(f)};

        if (head.f.state != FRAME_USED || head.f.owner != owner || head.f.type != type ||
            head.f.order)
            return false;
        if (type == FRAME_T_RAM) {
            out->maps += r.u.ram.maps;
            out->mapped += r.u.ram.maps != 0;
        } else {
            out->mapped += head.f.level != 0;
        }
    }
    return true;
}

bool heap_join_bulk(struct heap *h, unsigned cpu, mfn_t m, unsigned order, uint32_t owner,
                    enum frame_type type, struct heap_bulk *out)
{
    union frame_head head = {.f = {.owner = owner,
                                   .order = (uint8_t)order,
                                   .type = (uint8_t)type,
                                   .state = FRAME_USED,
                                   .level = type == FRAME_T_TABLE ? FRAME_STALE : 0}};
    uint64_t n = ft_frames(order);
    struct heap_slot *s;
    bool shared, ok;

    *out = (struct heap_bulk){0};
    /* From 2 MiB on the marks would have to change too. */
    if (order >= GROUP_ORDER || !ft_block_ok(&h->ft, m.v, order))
        return false;
    s = heap_enter(h, cpu, &shared);
    ok = all_single(h, m.v, n, owner, type, out);
    for (uint64_t i = 1; ok && i < n; i++) {
        struct frame *f = heap_rec(h, mfn(m.v + i));

        frame_word_store(f, 0);
        frame_head_store(f, (union frame_head){0});
    }
    if (ok) {
        frame_word_store(heap_rec(h, m), 0);
        frame_head_store(heap_rec(h, m), head);
        s->changes++;
    }
    heap_leave(s);
    return ok;
}
