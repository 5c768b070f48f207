/*
 * Blocks in use cut into parts, and parts joined: only records and marks change, the allocator
 * hears of it when parts are freed.
 */
#include "hv/mm/heap_impl.h"

static enum mf_status check_args(const struct heap *h, mfn_t m, unsigned order, unsigned to)
{
    if (order > ORDER_MAX || to >= order || order - to > 9 || !ft_block_ok(&h->ft, m.v, order))
        return MF_E_RANGE;
    return MF_OK;
}

static enum mf_status check_block(struct heap *h, uint64_t m, unsigned order, uint32_t owner,
                                  union frame_head *head)
{
    *head = frame_head_load(heap_rec(h, mfn(m)));
    if (head->f.state == FRAME_FREE)
        return ft_any_used(&h->ft, m, 1) ? MF_E_WRONG_ORDER : MF_E_DOUBLE_FREE;
    if (head->f.owner != owner)
        return MF_E_WRONG_OWNER;
    if (head->f.state != FRAME_USED)
        return MF_E_DOUBLE_FREE;
    return head->f.order == order ? MF_OK : MF_E_WRONG_ORDER;
}

void heap_group_to_marks(struct heap *h, uint64_t first)
{
    ft_group_set(&h->ft, first, GROUP_TOUCHED);
    for (unsigned i = 0; i < GROUP_FRAMES; i += 8) {
        mark_word *w = ft_marks(&h->ft, first + i);
        uint64_t leaving = __atomic_load_n(w, __ATOMIC_RELAXED) & MARKS(MARK_LEAVING);

        __atomic_store_n(w, leaving | MARKS(MARK_USED), __ATOMIC_RELEASE);
    }
    ft_group_clear(&h->ft, first, GROUP_WHOLE);
}

void heap_group_to_whole(struct heap *h, uint64_t first)
{
    ft_group_set(&h->ft, first, GROUP_WHOLE);
    for (unsigned i = 0; i < GROUP_FRAMES; i += 8)
        __atomic_fetch_and(ft_marks(&h->ft, first + i), MARKS(MARK_LEAVING), __ATOMIC_ACQ_REL);
}

static void set_part(struct heap *h, uint64_t m, union frame_head head)
{
    frame_word_store(heap_rec(h, mfn(m)), 0);
    frame_head_store(heap_rec(h, mfn(m)), head);
}

enum mf_status heap_split(struct heap *h, unsigned cpu, mfn_t m, unsigned order, unsigned to,
                          uint32_t owner)
{
    enum mf_status st = check_args(h, m, order, to);
    union frame_head head;
    struct heap_slot *s;
    bool shared;

    if (st != MF_OK)
        return st;
    s = heap_enter(h, cpu, &shared);
    st = check_block(h, m.v, order, owner, &head);
    if (st == MF_OK) {
        if (order >= GROUP_ORDER && to < GROUP_ORDER)
            for (uint64_t i = 0; i < ft_frames(order); i += GROUP_FRAMES)
                heap_group_to_marks(h, m.v + i);
        head.f.order = (uint8_t)to;
        for (uint64_t i = 0; i < ft_frames(order); i += ft_frames(to))
            set_part(h, m.v + i, head);
        s->changes++;
    }
    heap_leave(s);
    return st;
}

enum mf_status heap_join(struct heap *h, unsigned cpu, mfn_t m, unsigned order, unsigned to,
                         uint32_t owner)
{
    enum mf_status st = check_args(h, m, order, to);
    union frame_head head, first = {0};
    struct heap_slot *s;
    bool shared;

    if (st != MF_OK)
        return st;
    s = heap_enter(h, cpu, &shared);
    for (uint64_t i = 0; st == MF_OK && i < ft_frames(order); i += ft_frames(to)) {
        st = check_block(h, m.v + i, to, owner, &head);
        first = i ? first : head;
        if (st == MF_OK && head.v != first.v)
            st = MF_E_WRONG_OWNER;
    }
    if (st == MF_OK) {
        for (uint64_t i = 0; i < ft_frames(order); i += ft_frames(to))
            set_part(h, m.v + i, (union frame_head){0});
        if (order >= GROUP_ORDER && to < GROUP_ORDER)
            for (uint64_t i = 0; i < ft_frames(order); i += GROUP_FRAMES)
                heap_group_to_whole(h, m.v + i);
        first.f.order = (uint8_t)order;
        set_part(h, m.v, first);
        s->changes++;
    }
    heap_leave(s);
    return st;
}
