/*
 * Second stage: life of the object, viewers and retired frames. Maps and faults are in s2_map.c,
 * copies in s2_copy.c, the used-entry bitmaps in s2_track.c.
 */
#include <string.h>

#include "hv/mm/stage2_impl.h"

/* ---- life */

static bool config_ok(const struct s2_config *c)
{
    uint64_t at = 0;

    if (!c->roots || c->roots > S2_ROOTS_MAX || c->nr_regions > S2_REGIONS_MAX ||
        (c->fault_order != ORDER_4K && c->fault_order != ORDER_2M))
        return false;
    for (unsigned i = 0; i < c->nr_regions; i++) {
        const struct s2_region *r = &c->regions[i];

        if (r->first.v < at || r->first.v >= S2_GFN_END || !r->frames ||
            r->frames > S2_GFN_END - r->first.v)
            return false;
        at = r->first.v + r->frames;
    }
    return true;
}

void s2_set_table(struct stage2 *s2, mfn_t m, unsigned root, unsigned level, uint64_t base)
{
    struct frame *f = heap_rec(s2->heap, m);
    union s2_tab_word w = {.t = {.root = root & 63u, .base = (uint32_t)(base >> 9)}};
    union frame_head h = frame_head_load(f);

    frame_word_store(f, w.v);
    h.f.level = (uint8_t)level;
    frame_head_store(f, h);
}

/* Gives the object's own frame back. It is left zeroed, so the next VM's needs no scrub. */
static void free_self(struct stage2 *s2)
{
    struct heap *h = s2->heap;
    mfn_t self = s2->self;
    uint32_t owner = s2->owner;

    memset(s2, 0, sizeof *s2);
    heap_free_clean(h, owner, self, 0, owner);
}

enum mf_status stage2_create(struct heap *h, const struct s2_config *c, struct stage2 **out)
{
    struct stage2 *s2;
    enum mf_status st;
    mfn_t self;

    if (!config_ok(c))
        return MF_E_RANGE;
    st = heap_alloc(h, c->owner, 0, c->owner, FRAME_T_CORE, HEAP_ZERO, &self);
    if (st != MF_OK)
        return st;
    s2 = heap_ptr(h, self);
    s2->heap = h;
    s2->self = self;
    s2->owner = c->owner;
    s2->nr_regions = c->nr_regions;
    s2->fault_order = c->fault_order;
    s2->track = c->track ? S2_TRACK_ON : S2_TRACK_OFF;
    memcpy(s2->regions, c->regions, sizeof s2->regions);
    mm_lock_init(&s2->lock);
    mm_lock_init(&s2->pool_lock);
    for (unsigned i = 0; i < c->nr_regions; i++)
        s2->ram_total += c->regions[i].frames;
    for (; s2->roots < c->roots; s2->roots++) {
        st = s2_alloc_table(s2, &s2->root[s2->roots]);
        if (st != MF_OK)
            goto undo;
        s2_set_table(s2, s2->root[s2->roots], s2->roots, S2_LEVELS, 0);
    }
    s2->frames_table = s2->roots;
    s2->arena = c->arena; /* the roots are in no chunk */
    *out = s2;
    return MF_OK;
undo:
    while (s2->roots)
        s2_free_table(s2, s2->root[--s2->roots]);
    free_self(s2);
    return st;
}

static bool is_empty(const struct stage2 *s2)
{
    if (s2->frames_ram || s2->frames_table > s2->roots)
        return false;
    for (unsigned r = 0; r < s2->roots; r++)
        if (s2_root_count(s2, r))
            return false;
    return true;
}

static uint64_t retired_now(const struct stage2 *s2)
{
    return s2->retired_in - atomic_load(&s2->retired_back);
}

enum mf_status stage2_destroy(struct stage2 *s2)
{
    if (!s2)
        return MF_OK;
    s2_lock(s2);
    for (unsigned i = 0; i < s2->nr_viewers; i++)
        if (atomic_load(&s2->viewer[i]->inside))
            goto busy;
    if (!is_empty(s2) || retired_now(s2) || s2->teardown)
        goto busy;
    s2->closed = true;
    for (unsigned i = 0; i < s2->nr_viewers; i++)
        s2->viewer[i]->s2 = NULL;
    s2_unlock(s2);
    s2_arena_end(s2);
    for (unsigned r = 0; r < s2->roots; r++)
        s2_free_table(s2, s2->root[r]);
    free_self(s2);
    return MF_OK;
busy:
    s2_unlock(s2);
    return MF_E_STATE;
}

void stage2_close(struct stage2 *s2)
{
    s2_lock(s2);
    s2->closed = true;
    s2_unlock(s2);
}

enum mf_status stage2_reopen(struct stage2 *s2)
{
    enum mf_status st = MF_E_STATE;

    s2_lock(s2);
    if (is_empty(s2) && !s2->teardown && !s2_drop_left(s2)) {
        s2->closed = s2->dropping = false;
        st = MF_OK;
    }
    s2_unlock(s2);
    return st;
}

void stage2_get_info(struct stage2 *s2, struct s2_info *out)
{
    s2_lock(s2);
    *out = (struct s2_info){.frames_ram = s2->frames_ram,
                            .frames_table = s2->frames_table,
                            .faults = s2->faults,
                            .retired = retired_now(s2)};
    out->epoch = atomic_load(&s2->epoch);
    out->spare = s2_arena_spare(s2);
    memcpy(out->leaves, s2->leaves, sizeof out->leaves);
    s2_unlock(s2);
}

unsigned stage2_roots(const struct stage2 *s2)
{
    return s2->roots;
}

struct heap *stage2_heap(const struct stage2 *s2)
{
    return s2->heap;
}

/* ---- tables and entries */

unsigned s2_root_count(const struct stage2 *s2, unsigned root)
{
    union s2_tab_word w = {.v = frame_word_load(heap_rec(s2->heap, s2->root[root]))};

    return w.t.count;
}

/* Counts an entry that came or went and keeps the table's bitmap. */
static union s2_tab_word count_entry(struct stage2 *s2, mfn_t tab, unsigned index, bool used)
{
    struct frame *f = heap_rec(s2->heap, tab);
    union s2_tab_word w = {.v = frame_word_load(f)};

    w.t.count = (w.t.count + (used ? 1u : 0xffffu)) & 0xffffu;
    w.t.sum ^= index & (MF_PT_ENTRIES - 1);
    if (s2->track == S2_TRACK_OFF)
        w.t.kept = 0;
    else if (w.t.kept || w.t.count == 2)
        s2_track_entry(s2, tab, index, used, &w);
    frame_word_store(f, w.v);
    return w;
}

/* Tells a teardown under way that something came into its scope. */
static void note_added(struct stage2 *s2, union s2_tab_word w, unsigned level, unsigned index)
{
    uint64_t first = ((uint64_t)w.t.base << 9) + index * s2_span(level);

    if (s2->teardown && w.t.root >= s2->td_root && w.t.root < s2->td_root_end &&
        first <= s2->td_last && first + s2_span(level) > s2->td_first)
        s2->td_added = true;
}

void s2_set_entry(struct stage2 *s2, mfn_t tab, unsigned index, uint64_t pte)
{
    union frame_head h = frame_head_load(heap_rec(s2->heap, tab));
    union s2_tab_word w = count_entry(s2, tab, index, true);
    unsigned level = h.f.level;

    if (s2_is_leaf(pte, level)) {
        s2->leaves[level - 1]++;
    } else {
        uint64_t base = ((uint64_t)w.t.base << 9) + index * s2_span(level);

        s2_set_table(s2, s2_target(pte), w.t.root, level - 1, base);
        s2->frames_table++;
    }
    if (s2->teardown)
        note_added(s2, w, level, index);
    atomic_store_explicit(&s2_table(s2, tab)[index], pte, memory_order_release);
}

uint64_t s2_clear_entry(struct stage2 *s2, mfn_t tab, unsigned index)
{
    uint64_t old = atomic_exchange(&s2_table(s2, tab)[index], 0);

    count_entry(s2, tab, index, false);
    return old;
}

uint64_t s2_remove_leaf(struct stage2 *s2, mfn_t tab, unsigned index, unsigned level)
{
    uint64_t old = s2_clear_entry(s2, tab, index);
    mfn_t m = s2_target(old);
    struct frame *f = heap_rec(s2->heap, m), was = {.u.word = frame_word_load(f)};

    s2->harvested_accessed += (old & MF_PTE_ACCESSED) != 0;
    s2->harvested_dirty += (old & MF_PTE_DIRTY) != 0;
    s2->leaves[level - 1]--;
    was.u.ram.maps--;
    if (was.u.ram.maps) {
        frame_word_store(f, was.u.word);
        return 0;
    }
    s2->frames_ram -= s2_span(level);
    s2_retire(s2, m, s2_span(level));
    return s2_span(level);
}

/* ---- retired frames */

void s2_retire(struct stage2 *s2, mfn_t m, uint64_t frames)
{
    struct frame *f = heap_rec(s2->heap, m);
    union frame_head h = frame_head_load(f);
    struct s2_batch *b = &s2->open;

    frame_word_store(f, 0);
    h.f.state = FRAME_RETIRED;
    frame_head_store(f, h);
    if (b->tail)
        frame_word_store(heap_rec(s2->heap, mfn(b->tail - 1)), m.v + 1);
    else
        b->head = m.v + 1;
    b->tail = m.v + 1;
    b->entries++;
    b->frames += frames;
    s2->retired_in += frames;
}

void s2_close_batch(struct stage2 *s2)
{
    struct s2_batch *o = &s2->open, *b;

    if (!o->head)
        return;
    heap_note_retired(s2->heap, (int64_t)o->frames);
    o->target = atomic_fetch_add(&s2->epoch, 1) + 1;
    if (s2->batch_count < S2_BATCHES) {
        s2->batch[(s2->batch_first + s2->batch_count++) % S2_BATCHES] = *o;
    } else {
        /* Join the newest: those before wait for a later flush than they need, never for less. */
        b = &s2->batch[(s2->batch_first + S2_BATCHES - 1) % S2_BATCHES];
        frame_word_store(heap_rec(s2->heap, mfn(b->tail - 1)), o->head);
        b->tail = o->tail;
        b->entries += o->entries;
        b->frames += o->frames;
        b->target = o->target;
    }
    memset(o, 0, sizeof *o);
}

uint64_t s2_retired_entries(const struct stage2 *s2)
{
    uint64_t n = s2->open.entries;

    for (unsigned i = 0; i < s2->batch_count; i++)
        n += s2->batch[(s2->batch_first + i) % S2_BATCHES].entries;
    return n;
}

bool s2_viewers_passed(const struct stage2 *s2, uint64_t target)
{
    for (unsigned i = 0; i < s2->nr_viewers; i++)
        if (atomic_load(&s2->viewer[i]->inside) && atomic_load(&s2->viewer[i]->seen) < target)
            return false;
    return true;
}

#define REAP_PER_LOCK 256u

/* Takes a part of the oldest batch whose time has come: at most `max` entries. Lock held. */
static uint64_t take_reapable(struct stage2 *s2, uint64_t max, uint64_t *taken)
{
    struct s2_batch *b = &s2->batch[s2->batch_first];
    uint64_t head, at, n;

    if (!s2->batch_count || !s2_viewers_passed(s2, b->target))
        return 0;
    head = at = b->head;
    *taken = b->entries;
    if (b->entries <= max) {
        s2->batch_first = (s2->batch_first + 1) % S2_BATCHES;
        s2->batch_count--;
        return head;
    }
    for (n = 1; n < max; n++)
        at = frame_word_load(heap_rec(s2->heap, mfn(at - 1)));
    b->head = frame_word_load(heap_rec(s2->heap, mfn(at - 1)));
    frame_word_store(heap_rec(s2->heap, mfn(at - 1)), 0);
    b->entries -= max;
    *taken = max;
    return head;
}

static enum mf_status reap_status(const struct stage2 *s2)
{
    if (!retired_now(s2))
        return MF_OK;
    if (!s2->batch_count)
        return MF_AGAIN; /* on their way back just now, by another caller */
    return s2_viewers_passed(s2, s2->batch[s2->batch_first].target) ? MF_AGAIN : MF_BLOCKED;
}

enum mf_status stage2_reap(struct stage2 *s2, uint64_t budget)
{
    enum mf_status st;

    s2_lock(s2);
    s2_close_batch(s2);
    while (budget) {
        uint64_t n, taken = 0, head;

        head = take_reapable(s2, budget < REAP_PER_LOCK ? budget : REAP_PER_LOCK, &taken);
        if (!head)
            break;
        s2_unlock(s2);
        n = heap_free_chain(s2->heap, s2_hint(s2), head, s2->owner);
        heap_note_retired(s2->heap, -(int64_t)n);
        s2_lock(s2);
        atomic_fetch_add(&s2->retired_back, n);
        budget -= taken;
    }
    st = reap_status(s2);
    s2_unlock(s2);
    return st;
}

/* ---- viewers */

enum mf_status s2_viewer_add(struct stage2 *s2, struct s2_viewer *v)
{
    enum mf_status st = MF_E_LIMIT;

    s2_lock(s2);
    if (s2->nr_viewers < S2_VIEWERS_MAX) {
        atomic_store(&v->inside, 0);
        atomic_store(&v->seen, atomic_load(&s2->epoch));
        v->s2 = s2;
        v->epoch = &s2->epoch;
        s2->viewer[s2->nr_viewers++] = v;
        st = MF_OK;
    }
    s2_unlock(s2);
    return st;
}

void s2_viewer_remove(struct s2_viewer *v)
{
    struct stage2 *s2 = v->s2;

    if (!s2)
        return;
    s2_lock(s2);
    for (unsigned i = 0; i < s2->nr_viewers; i++)
        if (s2->viewer[i] == v)
            s2->viewer[i--] = s2->viewer[--s2->nr_viewers];
    v->s2 = NULL;
    s2_unlock(s2);
}

/*
 * First inside, then the epoch: a reaper that still saw this viewer outside has moved the epoch
 * before, so the load below sees it and the entries it cleared.
 */
bool s2_viewer_enter(struct s2_viewer *v)
{
    uint64_t now, was = atomic_load_explicit(&v->seen, memory_order_relaxed);

    atomic_store(&v->inside, 1);
    now = atomic_load(&v->s2->epoch);
    if (now == was)
        return false;
    atomic_store_explicit(&v->seen, now, memory_order_release);
    return true;
}

void s2_viewer_leave(struct s2_viewer *v)
{
    atomic_store_explicit(&v->inside, 0, memory_order_release);
}

void s2_viewer_ack(struct s2_viewer *v)
{
    atomic_store_explicit(&v->seen, atomic_load(&v->s2->epoch), memory_order_release);
}
