/*
 * The page heap: life, allocation, free, information. Swapping is in heap_swap.c, owners in
 * heap_owner.c, scrubbing in heap_scrub.c, the walk over the table in heap_audit.c.
 */
#include <string.h>

#include "hv/mm/heap_impl.h"

/* Kept out of the way of an allocation or a free that has nothing special about it. */
#define SLOW_PATH __attribute__((noinline, cold))

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
                              groups * sizeof(struct frame),
                              rounded,
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
        h->ft.group_rec = (void *)(base + offset[1]);
        h->ft.mark = base + offset[2];
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
    atomic_store(&h->avail, (int64_t)arena->frames);
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

void heap_set_helper(struct heap *h, heap_helper fn, void *arg)
{
    h->helper_arg = arg;
    h->helper = fn;
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

struct heap_slot *heap_keep_one(struct heap *h, unsigned cpu, bool *shared)
{
    struct heap_slot *s = heap_slot_of(h, cpu, shared);

    for (unsigned i = h->slots; i--;)
        if (&h->slot[i] != s)
            mm_lock_drop(&h->slot[i].lock);
    return s;
}

static SLOW_PATH void log_refusal(struct heap *h, const char *what, uint64_t m, unsigned order,
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
    uint64_t first, last; /* last: what the record said about who freed it */
    int64_t claimed;      /* frames that the owner's claim paid for */
    bool wait;            /* the background scrub is at work in it */
    bool all_dirty;       /* one group, dirty in all its frames, without marks */
    uint64_t large_dirty; /* frames, of a block of order >= 9 */
    struct ft_dirty dirty;
};

/*
 * Takes a block from the allocator and claims it in the frame table. Slot locked. A block that the
 * table does not know as free stays whose it is; the allocator has lost the right to it.
 */
static inline enum mf_status take_block(struct heap *h, struct heap_slot *s, bool shared,
                                        unsigned cpu, unsigned order, struct taken *t)
{
    const struct heap_allocator *a = &h->alloc;
    int rc;

    if (!a->ops)
        return MF_E_NO_ALLOCATOR;
    t->first = UINT64_MAX;
    rc = a->ops->alloc(&a->env, cpu, order, &t->first);
    if (rc == MF_PL_NO_MEMORY)
        return MF_E_NO_MEMORY;
    if (rc == MF_PL_OK && ft_block_ok(&h->ft, t->first, order) &&
        (order < GROUP_ORDER ? ft_claim(&h->ft, t->first, order, shared, &t->dirty)
                             : ft_claim_large(&h->ft, t->first, order, shared, &t->all_dirty)))
        return MF_OK;
    s->refused[REFUSED_PLUGIN]++;
    return MF_E_PLUGIN;
}

/* Free memory may lie in the caches of other CPUs: drains them, alone, and asks again. */
static SLOW_PATH enum mf_status take_drained(struct heap *h, struct heap_slot **s, bool *shared,
                                             unsigned cpu, unsigned order, struct taken *t)
{
    const struct heap_allocator *a = &h->alloc;
    enum mf_status st;

    heap_leave(*s);
    heap_lock_all(h);
    if (a->ops->drain)
        a->ops->drain(&a->env);
    *s = heap_slot_of(h, cpu, shared);
    st = take_block(h, *s, *shared, cpu, order, t);
    *s = heap_keep_one(h, cpu, shared);
    return st;
}

/* Writes the record and counts. Slot locked, block claimed. */
static inline void settle_block(struct heap *h, struct heap_slot *s, unsigned order, uint32_t owner,
                                enum frame_type type, struct taken *t)
{
    struct frame *f = heap_rec(h, mfn(t->first));
    union frame_head head = {
        .f = {.owner = owner, .order = (uint8_t)order, .type = (uint8_t)type, .state = FRAME_USED}};

    t->wait = heap_scrub_overlaps(h, t->first, ft_frames(order));
    t->last = frame_word_load(f);
    frame_word_store(f, 0);
    frame_head_store(f, head);
    s->used[type] += (int64_t)ft_frames(order);
    s->changes++;
    if (order < GROUP_ORDER) {
        s->dirty -= t->dirty.n;
    } else {
        t->large_dirty = t->all_dirty ? GROUP_FRAMES : heap_dirty_large(h, t->first, order);
        s->dirty -= (int64_t)t->large_dirty;
    }
}

/* What is left to do for a dirty block without the lock: makes it clean. */
static SLOW_PATH void clean_block(struct heap *h, unsigned order, uint32_t owner, unsigned flags,
                                  const struct taken *t)
{
    uint32_t same = flags & HEAP_ZERO ? OWNER_NONE : owner;

    if (t->wait)
        heap_scrub_wait(h, t->first, ft_frames(order));
    if (order == GROUP_ORDER && t->all_dirty) {
        if (same == OWNER_NONE || t->last != same)
            heap_scrub_frames(h, t->first, GROUP_FRAMES);
    } else if (order >= GROUP_ORDER && t->large_dirty)
        heap_scrub_large(h, t->first, order, same, t->last);
    else if (order < GROUP_ORDER && t->dirty.n && (order || same == OWNER_NONE || t->last != same))
        heap_scrub_small(h, t->first, &t->dirty);
}

/* A block that is paid for, claimed and settled; or the credit is back. */
static enum mf_status alloc_block(struct heap *h, unsigned cpu, unsigned order, uint32_t owner,
                                  enum frame_type type, struct taken *t)
{
    int64_t n = (int64_t)ft_frames(order);
    enum mf_status st = MF_OK;
    struct heap_slot *s;
    bool shared;

    s = heap_enter(h, cpu, &shared);
    t->claimed = 0;
    if (!heap_credit_take(s, owner, n))
        s = heap_credit_find(h, s, cpu, &shared, owner, n, &t->claimed, &st);
    if (st == MF_OK) {
        st = take_block(h, s, shared, cpu, order, t);
        if (st == MF_E_NO_MEMORY)
            st = take_drained(h, &s, &shared, cpu, order, t);
        if (st == MF_OK)
            settle_block(h, s, order, owner, type, t);
        else
            heap_credit_refund(h, s, owner, n, t->claimed);
    }
    heap_leave(s);
    return st;
}

enum mf_status heap_alloc(struct heap *h, unsigned cpu, unsigned order, uint32_t owner,
                          enum frame_type type, unsigned flags, mfn_t *out)
{
    struct taken t;
    enum mf_status st;
    unsigned tries = 0;

    if (order > ORDER_MAX || type < FRAME_T_RAM || type > FRAME_T_CORE || flags & ~HEAP_ZERO ||
        owner == OWNER_NONE || owner == HEAP_OWNER_GONE)
        return MF_E_RANGE;
    if (cpu >= h->cpus)
        cpu %= h->cpus;
    do {
        t.dirty.n = 0;
        t.large_dirty = 0;
        st = alloc_block(h, cpu, order, owner, type, &t);
    } while (st == MF_E_NO_MEMORY && h->helper && h->helper(h->helper_arg, tries++));
    if (st == MF_OK) {
        if (t.wait || t.dirty.n || t.large_dirty)
            clean_block(h, order, owner, flags, &t);
        *out = mfn(t.first);
    } else if (st == MF_E_PLUGIN) {
        log_refusal(h, "allocator gave a block that is not free", t.first, order, owner);
    }
    return st;
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

/* Remembers who freed a block of which parts may come back to the same owner as they are. */
static inline void note_last(struct heap *h, struct frame *f, uint64_t m, union frame_head head,
                             bool clean)
{
    bool noted = !clean && (!head.f.order || head.f.order >= GROUP_ORDER);

    frame_word_store(f, noted ? head.f.owner : 0);
    if (head.f.order > GROUP_ORDER)
        for (uint64_t i = GROUP_FRAMES; i < ft_frames(head.f.order); i += GROUP_FRAMES)
            frame_word_store(ft_rec(&h->ft, m + i), noted ? head.f.owner : 0);
}

/* One free with the slot locked. `clean`: the frames are known to be zero. */
static inline enum mf_status free_block(struct heap *h, struct heap_slot *s, bool shared,
                                        unsigned cpu, uint64_t m, union frame_head head, bool clean)
{
    const struct heap_allocator *a = &h->alloc;
    struct frame *f = heap_rec(h, mfn(m));
    unsigned order = head.f.order;
    int64_t n = (int64_t)ft_frames(order), given = n;
    bool lost = false;

    if (!frame_head_change(f, head, (union frame_head){0}, shared)) {
        s->refused[REFUSED_DOUBLE]++;
        return MF_E_DOUBLE_FREE;
    }
    /* The marks still keep the block from everybody else. */
    note_last(h, f, m, head, clean);
    s->used[head.f.type] -= n;
    s->changes++;
    if (heap_has_leaving(h, m, order)) {
        given = (int64_t)heap_free_leaving(h, s, shared, cpu, m, order, clean, &lost);
    } else {
        ft_release(&h->ft, m, order, !clean, shared);
        lost = a->ops->free(&a->env, cpu, m, order) != MF_PL_OK;
    }
    s->dirty += clean ? 0 : given;
    heap_credit_give(h, s, head.f.owner, n, given);
    s->refused[REFUSED_PLUGIN] += lost;
    return lost ? MF_E_PLUGIN : MF_OK;
}

static SLOW_PATH void count_refusal(struct heap_slot *s, enum mf_status st)
{
    if (st == MF_E_DOUBLE_FREE)
        s->refused[REFUSED_DOUBLE]++;
    else if (st == MF_E_WRONG_ORDER)
        s->refused[REFUSED_ORDER]++;
    else if (st == MF_E_WRONG_OWNER)
        s->refused[REFUSED_OWNER]++;
}

/* Blocks up to this order are scrubbed by who frees them, when that is the policy. */
#define SCRUB_FREE_ORDER GROUP_ORDER

/*
 * Scrubs a block that is on its way out, without the lock: its record says LEAVING, so that nobody
 * frees it a second time meanwhile. False when it no longer was what *head says.
 */
static SLOW_PATH bool scrub_leaving(struct heap *h, uint64_t m, union frame_head *head)
{
    union frame_head to = *head;

    to.f.state = FRAME_LEAVING;
    if (!frame_head_change(heap_rec(h, mfn(m)), *head, to, true))
        return false;
    heap_scrub_frames(h, m, ft_frames(head->f.order));
    *head = to;
    return true;
}

static enum mf_status free_checked(struct heap *h, unsigned cpu, uint64_t m, unsigned order,
                                   uint32_t owner, bool clean)
{
    union frame_head head;
    struct heap_slot *s;
    enum mf_status st;
    bool shared;

    if (order > ORDER_MAX || !ft_block_ok(&h->ft, m, order))
        return MF_E_RANGE;
    if (cpu >= h->cpus)
        cpu %= h->cpus;
    s = heap_enter(h, cpu, &shared);
    head = frame_head_load(heap_rec(h, mfn(m)));
    st = check_free(h, m, head, order, owner, FRAME_USED);
    if (st == MF_OK && !clean && order <= SCRUB_FREE_ORDER &&
        atomic_load_explicit(&h->scrub, memory_order_relaxed) == HEAP_SCRUB_FREE) {
        heap_leave(s);
        clean = scrub_leaving(h, m, &head);
        s = heap_enter(h, cpu, &shared);
        st = clean ? MF_OK : MF_E_DOUBLE_FREE;
    }
    if (st == MF_OK)
        st = free_block(h, s, shared, cpu, m, head, clean);
    else
        count_refusal(s, st);
    heap_leave(s);
    if (st != MF_OK)
        log_refusal(h, mf_status_text(st), m, order, owner);
    return st;
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

/* One block of a chain; returns its frames, 0 when it is refused. */
static uint64_t free_retired(struct heap *h, unsigned cpu, uint64_t m, uint32_t owner)
{
    union frame_head f = frame_head_load(heap_rec(h, mfn(m)));
    enum mf_status st = check_free(h, m, f, f.f.order, owner, FRAME_RETIRED);
    bool shared,
        clean = f.f.type == FRAME_T_TABLE ? f.f.level != FRAME_STALE : f.f.level == FRAME_CLEAN;
    struct heap_slot *s;

    if (st == MF_OK && !clean && f.f.order <= SCRUB_FREE_ORDER &&
        atomic_load_explicit(&h->scrub, memory_order_relaxed) == HEAP_SCRUB_FREE) {
        heap_scrub_frames(h, m, ft_frames(f.f.order)); /* nobody else has it */
        clean = true;
    }
    s = heap_enter(h, cpu, &shared);
    if (st == MF_OK)
        st = free_block(h, s, shared, cpu, m, f, clean);
    else
        count_refusal(s, st);
    heap_leave(s);
    return st == MF_OK ? ft_frames(f.f.order) : 0;
}

uint64_t heap_free_chain(struct heap *h, unsigned cpu, uint64_t head, uint32_t owner)
{
    uint64_t frames = 0;

    if (cpu >= h->cpus)
        cpu %= h->cpus;
    while (head) {
        uint64_t m = head - 1;

        head = frame_word_load(heap_rec(h, mfn(m)));
        frames += free_retired(h, cpu, m, owner);
    }
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
        for (unsigned t = FRAME_T_NONE; t <= FRAME_T_CORE; t++)
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
    int64_t used[4] = {0}, dirty = 0, claimed = atomic_load(&h->claimed);

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
    out->offline = (uint64_t)used[FRAME_T_NONE];
    out->dirty = (uint64_t)dirty;
    out->claimed = (uint64_t)claimed;
    out->free = h->ft.frames - out->used_ram - out->used_table - out->used_core - out->offline;
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
    out->offline_waiting = atomic_load_explicit(&h->waiting, memory_order_relaxed);
    out->scrubbed = atomic_load_explicit(&h->scrubbed, memory_order_relaxed);
    out->punched = atomic_load_explicit(&h->punched, memory_order_relaxed);
    out->scrub = (enum heap_scrub)atomic_load_explicit(&h->scrub, memory_order_relaxed);
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
