/*
 * The page heap: life, allocation, free, information. Swapping is in heap_swap.c, owners in
 * heap_owner.c, scrubbing in heap_scrub.c, the walk over the table in heap_audit.c.
 */
#include <string.h>

#include "hv/mm/heap_impl.h"

static uint64_t round_page(uint64_t n)
{
    return (n + FRAME_SIZE - 1) & ~(FRAME_SIZE - 1);
}

/* Lays the arrays out behind the structure; the offsets when `base` is NULL. */
static uint64_t heap_layout(struct heap *h, uint8_t *base, uint64_t frames)
{
    uint64_t groups = (frames + GROUP_FRAMES - 1) / GROUP_FRAMES;
    uint64_t at = round_page(sizeof *h), rounded = groups * GROUP_FRAMES;
    const uint64_t bytes[] = {rounded * sizeof(struct frame),
                              rounded / 8,
                              rounded / 8,
                              groups * sizeof(uint32_t),
                              rounded * HEAP_TRACK_WORDS * sizeof(uint64_t),
                              HEAP_OWNERS * sizeof(struct heap_owner)};
    uint64_t offset[6];

    for (unsigned i = 0; i < 6; i++) {
        offset[i] = at;
        at += round_page(bytes[i]);
    }
    if (base) {
        h->ft.frames = frames;
        h->ft.groups = groups;
        h->ft.rec = (void *)(base + offset[0]);
        h->ft.used = (void *)(base + offset[1]);
        h->ft.dirty = (void *)(base + offset[2]);
        h->ft.group = (void *)(base + offset[3]);
        h->track = (void *)(base + offset[4]);
        h->owners = (void *)(base + offset[5]);
    }
    return at;
}

struct heap *heap_create(const struct mm_env *env, const struct mm_arena *arena, unsigned cpus,
                         enum mf_status *st)
{
    uint64_t bytes;
    struct heap *h;

    *st = MF_E_RANGE;
    if (!arena->base || !arena->frames || arena->frames > UINT64_C(1) << 40 || !cpus)
        return NULL;
    bytes = heap_layout(NULL, NULL, arena->frames);
    *st = MF_E_NO_MEMORY;
    h = env->reserve(env->arg, bytes);
    if (!h)
        return NULL;
    heap_layout(h, (uint8_t *)h, arena->frames);
    h->env = env;
    h->arena = arena;
    h->reserved = bytes;
    h->cpus = cpus;
    h->slots = 1;
    while (h->slots < cpus && h->slots < HEAP_SLOTS_MAX)
        h->slots *= 2;
    for (unsigned i = 0; i < HEAP_SLOTS_MAX; i++)
        mm_lock_init(&h->slot[i].lock);
    mm_lock_init(&h->scrub_lock);
    mm_lock_init(&h->owner_lock);
    *st = MF_OK;
    return h;
}

void heap_destroy(struct heap *h)
{
    const struct mm_env *env;

    if (!h)
        return;
    env = h->env;
    if (h->alloc.ops) {
        h->alloc.ops->fini(&h->alloc.env);
        env->release(env->arg, h->alloc.env.meta, h->alloc.env.meta_size);
    }
    env->release(env->arg, h, h->reserved);
}

void heap_lock_all(struct heap *h)
{
    for (unsigned i = 0; i < h->slots; i++)
        mm_lock_take(&h->slot[i].lock, h->env);
}

void heap_unlock_all(struct heap *h)
{
    for (unsigned i = h->slots; i--;)
        mm_lock_drop(&h->slot[i].lock);
}

static void log_refusal(struct heap *h, const char *what, uint64_t m, unsigned order,
                        uint32_t owner)
{
    struct mm_line l = {0};

    mm_line_str(&l, what);
    mm_line_str(&l, ": frame ");
    mm_line_num(&l, m);
    mm_line_str(&l, " order ");
    mm_line_num(&l, order);
    mm_line_str(&l, " owner ");
    mm_line_num(&l, owner);
    mm_log(h->env, MM_LOG_ERROR, &l);
}

/* ---- allocation */

struct taken {
    uint64_t first;
    struct ft_dirty dirty;
    bool own; /* dirty with the data of this very owner */
};

/*
 * Takes a block from the allocator and claims it in the frame table. Slot locked. A block that the
 * table does not know as free stays whose it is; the allocator has lost the right to it.
 */
static enum mf_status take_block(struct heap *h, struct heap_slot *s, bool shared, unsigned cpu,
                                 unsigned order, struct taken *t)
{
    const struct heap_allocator *a = &h->alloc;
    int rc;

    if (!a->ops)
        return MF_E_NO_ALLOCATOR;
    t->first = UINT64_MAX;
    rc = a->ops->alloc(&a->env, cpu, order, &t->first);
    if (rc == MF_PL_NO_MEMORY)
        return MF_E_NO_MEMORY;
    if (rc != MF_PL_OK || !ft_block_ok(&h->ft, t->first, order) ||
        !ft_claim(&h->ft, t->first, order, shared)) {
        s->refused[REFUSED_PLUGIN]++;
        return MF_E_PLUGIN;
    }
    return MF_OK;
}

/* Takes the dirty marks off a block of order below 9. Slot locked, block claimed. */
static void take_dirty(struct heap *h, struct heap_slot *s, bool shared, unsigned order,
                       struct taken *t)
{
    if (order >= GROUP_ORDER)
        return;
    ft_take_dirty(&h->ft, t->first, order, shared, &t->dirty);
    s->dirty -= t->dirty.n;
}

/* Writes the record and counts. Slot locked, block claimed. */
static void settle_block(struct heap *h, struct heap_slot *s, unsigned order, uint32_t owner,
                         enum frame_type type, struct taken *t)
{
    struct frame *f = heap_rec(h, mfn(t->first));
    union frame_head head = {
        .f = {.owner = owner, .order = (uint8_t)order, .type = (uint8_t)type, .state = FRAME_USED}};

    t->dirty.n = 0;
    t->own = !order && frame_word_load(f) == owner;
    frame_word_store(f, 0);
    frame_head_store(f, head);
    s->used[type] += (int64_t)ft_frames(order);
    s->changes++;
}

/* What is left to do for a block without the lock: makes it clean. */
static void clean_block(struct heap *h, unsigned cpu, unsigned order, unsigned flags, bool wait,
                        struct taken *t)
{
    struct heap_slot *s;
    bool shared;

    if (wait) {
        heap_scrub_wait(h, t->first, ft_frames(order));
        s = heap_enter(h, cpu, &shared);
        take_dirty(h, s, shared, order, t);
        heap_leave(s);
    }
    if (order >= GROUP_ORDER) {
        uint64_t n = heap_scrub_large(h, t->first, order);

        if (n) {
            s = heap_enter(h, cpu, &shared);
            s->dirty -= (int64_t)n;
            heap_leave(s);
        }
    } else if (t->dirty.n && (!t->own || flags & HEAP_ZERO)) {
        heap_scrub_small(h, t->first, &t->dirty);
    }
}

enum mf_status heap_alloc(struct heap *h, unsigned cpu, unsigned order, uint32_t owner,
                          enum frame_type type, unsigned flags, mfn_t *out)
{
    struct heap_owner *o;
    struct heap_slot *s;
    struct taken t;
    enum mf_status st;
    bool shared, wait = false;

    if (order > ORDER_MAX || type < FRAME_T_RAM || type > FRAME_T_CORE || flags & ~HEAP_ZERO ||
        owner == OWNER_NONE || owner == HEAP_OWNER_GONE)
        return MF_E_RANGE;
    if (cpu >= h->cpus)
        cpu %= h->cpus;
    o = heap_owner_find(h, owner);
    if (o && !heap_owner_charge(o, ft_frames(order)))
        return MF_E_QUOTA;
    s = heap_enter(h, cpu, &shared);
    st = take_block(h, s, shared, cpu, order, &t);
    if (st == MF_OK) {
        settle_block(h, s, order, owner, type, &t);
        wait = heap_scrub_overlaps(h, t.first, ft_frames(order));
        if (!wait)
            take_dirty(h, s, shared, order, &t);
    }
    heap_leave(s);
    if (st != MF_OK) {
        if (o)
            heap_owner_uncharge(o, ft_frames(order));
        if (st == MF_E_PLUGIN)
            log_refusal(h, "allocator gave a block that is not free", t.first, order, owner);
        return st;
    }
    clean_block(h, cpu, order, flags, wait, &t);
    *out = mfn(t.first);
    return MF_OK;
}

/* ---- free */

/* Why the block must not be freed, MF_OK when it may. `f` is inside the table. */
static enum mf_status check_free(struct heap *h, uint64_t m, union frame_head head, unsigned order,
                                 uint32_t owner, enum frame_state state)
{
    if (head.f.state == FRAME_FREE)
        return ft_any_used(&h->ft, m, 1) ? MF_E_WRONG_ORDER : MF_E_DOUBLE_FREE;
    if (head.f.owner != owner)
        return MF_E_WRONG_OWNER;
    if (head.f.state != state)
        return MF_E_DOUBLE_FREE;
    return head.f.order == order ? MF_OK : MF_E_WRONG_ORDER;
}

/* One free with the slot locked. `clean`: the frames are known to be zero. */
static enum mf_status free_block(struct heap *h, struct heap_slot *s, bool shared, unsigned cpu,
                                 uint64_t m, union frame_head head, bool clean)
{
    const struct heap_allocator *a = &h->alloc;
    struct frame *f = heap_rec(h, mfn(m));
    unsigned order = head.f.order;
    uint64_t n = ft_frames(order);

    if (!frame_head_clear(f, head)) {
        s->refused[REFUSED_DOUBLE]++;
        return MF_E_DOUBLE_FREE;
    }
    /* The used bits still keep the block from everybody else. */
    frame_word_store(f, clean || order ? 0 : head.f.owner);
    ft_release(&h->ft, m, order, !clean, shared);
    s->used[head.f.type] -= (int64_t)n;
    s->dirty += clean ? 0 : (int64_t)n;
    s->changes++;
    if (a->ops->free(&a->env, cpu, m, order) == MF_PL_OK)
        return MF_OK;
    s->refused[REFUSED_PLUGIN]++;
    return MF_E_PLUGIN;
}

static void count_refusal(struct heap_slot *s, enum mf_status st)
{
    if (st == MF_E_DOUBLE_FREE)
        s->refused[REFUSED_DOUBLE]++;
    else if (st == MF_E_WRONG_ORDER)
        s->refused[REFUSED_ORDER]++;
    else if (st == MF_E_WRONG_OWNER)
        s->refused[REFUSED_OWNER]++;
}

static enum mf_status free_checked(struct heap *h, unsigned cpu, uint64_t m, unsigned order,
                                   uint32_t owner, bool clean)
{
    struct heap_slot *s;
    struct heap_owner *o;
    union frame_head head;
    enum mf_status st;
    bool shared;

    if (order > ORDER_MAX || !ft_block_ok(&h->ft, m, order))
        return MF_E_RANGE;
    if (cpu >= h->cpus)
        cpu %= h->cpus;
    s = heap_enter(h, cpu, &shared);
    head = frame_head_load(heap_rec(h, mfn(m)));
    st = check_free(h, m, head, order, owner, FRAME_USED);
    if (st == MF_OK)
        st = free_block(h, s, shared, cpu, m, head, clean);
    else
        count_refusal(s, st);
    heap_leave(s);
    if (st != MF_OK) {
        log_refusal(h, mf_status_text(st), m, order, owner);
        return st;
    }
    o = heap_owner_find(h, owner);
    if (o)
        heap_owner_uncharge(o, ft_frames(order));
    return MF_OK;
}

enum mf_status heap_free(struct heap *h, unsigned cpu, mfn_t m, unsigned order, uint32_t owner)
{
    return free_checked(h, cpu, m.v, order, owner, false);
}

enum mf_status heap_free_clean(struct heap *h, unsigned cpu, mfn_t m, unsigned order,
                               uint32_t owner)
{
    return free_checked(h, cpu, m.v, order, owner, true);
}

#define CHAIN_PER_LOCK 16u

uint64_t heap_free_chain(struct heap *h, unsigned cpu, uint64_t head, uint32_t owner)
{
    struct heap_owner *o = heap_owner_find(h, owner);
    uint64_t frames = 0;

    if (cpu >= h->cpus)
        cpu %= h->cpus;
    while (head) {
        bool shared;
        struct heap_slot *s = heap_enter(h, cpu, &shared);

        for (unsigned i = 0; head && i < CHAIN_PER_LOCK; i++) {
            uint64_t m = head - 1;
            union frame_head f = frame_head_load(heap_rec(h, mfn(m)));
            enum mf_status st = check_free(h, m, f, f.f.order, owner, FRAME_RETIRED);

            head = frame_word_load(heap_rec(h, mfn(m)));
            if (st == MF_OK)
                st = free_block(h, s, shared, cpu, m, f,
                                f.f.type == FRAME_T_TABLE || f.f.level == FRAME_CLEAN);
            else
                count_refusal(s, st);
            if (st == MF_OK)
                frames += ft_frames(f.f.order);
        }
        heap_leave(s);
    }
    if (o)
        heap_owner_uncharge(o, frames);
    return frames;
}

void heap_note_retired(struct heap *h, int64_t frames)
{
    atomic_fetch_add_explicit(&h->retired, (uint64_t)frames, memory_order_relaxed);
}

/* ---- information */

struct frame *heap_frame(struct heap *h, mfn_t m)
{
    return m.v < h->ft.frames ? heap_rec(h, m) : NULL;
}

const struct mm_arena *heap_arena(const struct heap *h)
{
    return h->arena;
}

const struct mm_env *heap_env(const struct heap *h)
{
    return h->env;
}

uint64_t heap_count_used(const struct heap *h)
{
    int64_t n = 0;

    for (unsigned i = 0; i < h->slots; i++)
        for (unsigned t = FRAME_T_RAM; t <= FRAME_T_CORE; t++)
            n += h->slot[i].used[t];
    return (uint64_t)n;
}

uint64_t heap_count_changes(const struct heap *h)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < h->slots; i++)
        n += h->slot[i].changes;
    return n;
}

static void info_counters(const struct heap *h, struct heap_info *out)
{
    int64_t used[4] = {0}, dirty = 0;

    for (unsigned i = 0; i < h->slots; i++) {
        const struct heap_slot *s = &h->slot[i];

        for (unsigned t = 0; t < 4; t++)
            used[t] += s->used[t];
        dirty += s->dirty;
        out->refused_double += s->refused[REFUSED_DOUBLE];
        out->refused_order += s->refused[REFUSED_ORDER];
        out->refused_owner += s->refused[REFUSED_OWNER];
        out->refused_plugin += s->refused[REFUSED_PLUGIN];
    }
    out->used_ram = (uint64_t)used[FRAME_T_RAM];
    out->used_table = (uint64_t)used[FRAME_T_TABLE];
    out->used_core = (uint64_t)used[FRAME_T_CORE];
    out->dirty = (uint64_t)dirty;
    out->free = h->ft.frames - out->used_ram - out->used_table - out->used_core;
}

void heap_get_info(struct heap *h, struct heap_info *out)
{
    struct mf_alloc_stats st = {.size = sizeof st};

    memset(out, 0, sizeof *out);
    out->frames = h->ft.frames;
    out->largest_free_order = -1;
    heap_lock_all(h);
    info_counters(h, out);
    out->retired = atomic_load_explicit(&h->retired, memory_order_relaxed);
    out->init_ns = h->init_ns;
    out->swaps = h->swaps;
    out->swap_pause_ns = h->swap_pause_ns;
    if (h->alloc.ops) {
        h->alloc.ops->stats(&h->alloc.env, &st);
        out->meta_bytes = h->alloc.env.meta_size;
        memcpy(out->allocator, h->alloc.name, sizeof out->allocator);
    }
    heap_unlock_all(h);
    out->cached = st.cached;
    for (unsigned k = 0; k <= ORDER_MAX; k++) {
        out->free_blocks[k] = st.free_blocks[k];
        if (st.free_blocks[k])
            out->largest_free_order = (int)k;
    }
}
