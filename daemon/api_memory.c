/*
 * Memory as its users steer it: ranges of a live VM (balloon, log of written pages), the host's
 * frames (out of use, scrubbing). A range of a VM is one call of the core, so that it is checked
 * whole before anything is done.
 */
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/hvd.h"
#include "daemon/jsonr.h"
#include "daemon/parse.h"

#define RANGE_MAX (MF_PART_FRAMES_MAX * MF_PAGE_SIZE)

/* ---- bodies */

enum member_kind { MEMBER_NUMBER, MEMBER_SIZE, MEMBER_WORD };

struct member {
    const char *key;
    enum member_kind kind;
    uint64_t *number;
    char *word; /* MF_NAME_MAX bytes */
    bool seen;
};

static enum mf_status read_number(struct json_object *v, struct member *m, struct problem *p)
{
    const char *s = json_object_get_string(v);
    enum mf_status st;

    if (json_object_is_type(v, json_type_int)) {
        if (s[0] == '-')
            return problem_set(p, MF_E_RANGE, m->key, "%s cannot be negative", m->key);
        st = parse_u64(s, m->number);
    } else if (m->kind == MEMBER_SIZE && json_object_is_type(v, json_type_string) &&
               strlen(s) == (size_t)json_object_get_string_len(v)) {
        st = parse_size(s, m->number);
    } else {
        return problem_set(p, MF_E_MALFORMED, m->key, "%s must be a whole number%s", m->key,
                           m->kind == MEMBER_SIZE ? " of bytes or a string such as \"64M\"" : "");
    }
    if (st == MF_E_RANGE)
        return problem_set(p, st, m->key, "\"%.40s\" is more than 2^64-1", s);
    if (st != MF_OK)
        return problem_set(p, st, m->key, "\"%.40s\" is not a number with K, M, G or T behind it",
                           s);
    return MF_OK;
}

static enum mf_status read_word(struct json_object *v, struct member *m, struct problem *p)
{
    if (!json_object_is_type(v, json_type_string))
        return problem_set(p, MF_E_MALFORMED, m->key, "%s must be a string", m->key);
    snprintf(m->word, MF_NAME_MAX, "%.*s", MF_NAME_MAX - 1, json_object_get_string(v));
    return MF_OK;
}

/* All of these members, each once, and no others. False: answered. */
static bool read_body(struct req *r, struct member *m, size_t n)
{
    struct json_object *o = NULL;
    struct problem p = {0};

    if (json_read_object(r->body.p == NULL ? "" : r->body.p, r->body.len, &o, &p) == MF_OK) {
        json_object_object_foreach(o, key, value)
        {
            size_t i = 0;
            while (i < n && strcmp(key, m[i].key) != 0)
                i++;
            if (i == n) {
                problem_set(&p, MF_E_MALFORMED, key, "there is no member of this name");
                continue;
            }
            m[i].seen = true;
            if (m[i].kind == MEMBER_WORD)
                read_word(value, &m[i], &p);
            else
                read_number(value, &m[i], &p);
        }
        for (size_t i = 0; i < n; i++)
            if (!m[i].seen)
                problem_set(&p, MF_E_MALFORMED, m[i].key, "the member is missing");
    }
    json_object_put(o);
    if (p.status != MF_OK)
        req_problem(r, &p);
    return p.status == MF_OK;
}

/* ---- ranges of a VM */

struct work {
    struct req *r;
    uint32_t op; /* of a balloon */
    uint64_t first, frames;
};

static void work_fail(struct work *k, const struct link_reply *reply)
{
    const char *field = NULL;
    struct problem p = {0};

    /* The core counts in frames from `first` on, our members are address and size. */
    if (strcmp(reply->err->field, "first") == 0)
        field = "address";
    else if (strcmp(reply->err->field, "frames") == 0)
        field = "size";
    core_problem(reply, field, &p);
    req_problem(k->r, &p);
    free(k);
}

static void on_balloon(void *arg, const struct link_reply *reply)
{
    const struct mf_reply_balloon *b = reply->body;
    struct jsonw w = {.comma = false};
    struct work *k = arg;
    char name[MF_NAME_MAX];

    if (reply->status != MF_OK) {
        work_fail(k, reply);
        return;
    }
    snprintf(name, sizeof name, "%.*s", MF_NAME_MAX - 1, b->teardown);
    jsonw_object(&w);
    jsonw_kstr(&w, "op", k->op == MF_BALLOON_GIVE ? "give" : "take");
    jsonw_ku64(&w, "frames", b->frames);
    jsonw_ku64(&w, "tables", b->tables);
    jsonw_ku64(&w, "splits", b->splits);
    jsonw_ku64(&w, "loops", b->loops);
    jsonw_ku64(&w, "steps", b->steps);
    jsonw_ku64(&w, "step_max_ns", b->step_max_ns);
    jsonw_ku64(&w, "total_ns", b->total_ns);
    jsonw_kstr(&w, "teardown", name);
    jsonw_object_end(&w);
    req_json(k->r, 200, &w);
    free(k);
}

/* One run of pages as [address, bytes]. */
static void put_run(struct jsonw *w, uint64_t first, uint64_t n)
{
    if (n == 0)
        return;
    jsonw_array(w);
    jsonw_u64(w, first * MF_PAGE_SIZE);
    jsonw_u64(w, n * MF_PAGE_SIZE);
    jsonw_array_end(w);
}

static void dirty_json(struct jsonw *w, const struct work *k, const uint64_t *bits)
{
    uint64_t run = 0, pages = 0;

    jsonw_object(w);
    jsonw_key(w, "ranges");
    jsonw_array(w);
    for (uint64_t i = 0; i < k->frames; i++) {
        if (bits[i / 64] >> i % 64 & 1) {
            run++;
            pages++;
            continue;
        }
        put_run(w, k->first + i - run, run);
        run = 0;
    }
    put_run(w, k->first + k->frames - run, run);
    jsonw_array_end(w);
    jsonw_ku64(w, "pages", pages);
    jsonw_object_end(w);
}

static void on_dirty(void *arg, const struct link_reply *reply)
{
    const struct mf_reply_dirty_fetch *f = reply->body;
    struct jsonw w = {.comma = false};
    struct work *k = arg;

    if (reply->status != MF_OK) {
        work_fail(k, reply);
        return;
    }
    if (reply->len < sizeof *f + (k->frames + 63) / 64 * sizeof(uint64_t)) {
        req_fail(k->r, MF_E_INTERNAL, NULL, "the core's bitmap is too short");
    } else {
        dirty_json(&w, k, (const uint64_t *)(const void *)(f + 1));
        req_json(k->r, 200, &w);
    }
    free(k);
}

/* What can be known of a range without the core. False: answered. */
static bool check_range(struct req *r, uint64_t address, uint64_t size)
{
    if (address % MF_PAGE_SIZE != 0)
        req_fail(r, MF_E_ALIGN, "address", "%" PRIu64 " is not a multiple of %u", address,
                 MF_PAGE_SIZE);
    else if (size == 0)
        req_fail(r, MF_E_RANGE, "size", "the range is empty");
    else if (size % MF_PAGE_SIZE != 0)
        req_fail(r, MF_E_ALIGN, "size", "%" PRIu64 " is not a multiple of %u", size, MF_PAGE_SIZE);
    else if (size > RANGE_MAX)
        req_fail(r, MF_E_RANGE, "size", "%" PRIu64 " bytes: a request works on at most %" PRIu64,
                 size, RANGE_MAX);
    else
        return true;
    return false;
}

static bool is_live(struct req *r, const struct vm *vm)
{
    if (vm->id != 0)
        return true;
    req_fail(r, MF_E_STATE, NULL, "the VM is %s: only a running or paused one has memory",
             vm_state_text(vm->state));
    return false;
}

static void work_begin(struct hvd *d, struct req *r, struct vm *vm, uint32_t op, uint64_t address,
                       uint64_t size)
{
    struct mf_args_balloon b = {.vm = vm->id, .op = op};
    struct mf_args_dirty_fetch f = {.vm = vm->id};
    struct link_request q = {.nr = MF_CALL_VM_BALLOON, .args = &b, .fn = on_balloon};
    struct work *k;

    if (!check_range(r, address, size) || !is_live(r, vm))
        return;
    k = malloc(sizeof *k);
    if (k == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    *k = (struct work){r, op, address / MF_PAGE_SIZE, size / MF_PAGE_SIZE};
    b.first = f.first = k->first;
    b.frames = f.frames = k->frames;
    if (op == 0)
        q = (struct link_request){.nr = MF_CALL_VM_DIRTY_FETCH, .args = &f, .fn = on_dirty};
    q.arg = k;
    link_call(&d->core.link, &q);
}

void api_vm_balloon(struct hvd *d, struct req *r)
{
    char op[MF_NAME_MAX] = "";
    uint64_t address = 0, size = 0;
    struct member m[] = {{.key = "op", .kind = MEMBER_WORD, .word = op},
                         {.key = "address", .kind = MEMBER_SIZE, .number = &address},
                         {.key = "size", .kind = MEMBER_SIZE, .number = &size}};
    struct vm *vm = api_vm(d, r);

    if (vm == NULL || !read_body(r, m, 3))
        return;
    if (strcmp(op, "give") != 0 && strcmp(op, "take") != 0)
        req_fail(r, MF_E_RANGE, "op", "\"%.40s\": possible are give and take", op);
    else
        work_begin(d, r, vm, op[0] == 'g' ? MF_BALLOON_GIVE : MF_BALLOON_TAKE, address, size);
}

void api_vm_dirty_fetch(struct hvd *d, struct req *r)
{
    uint64_t address = 0, size = 0;
    struct member m[] = {{.key = "address", .kind = MEMBER_SIZE, .number = &address},
                         {.key = "size", .kind = MEMBER_SIZE, .number = &size}};
    struct vm *vm = api_vm(d, r);

    if (vm != NULL && read_body(r, m, 2))
        work_begin(d, r, vm, 0, address, size);
}

/* ---- calls whose answer has no body, or three numbers */

static void on_done(void *arg, const struct link_reply *reply)
{
    if (reply->status != MF_OK)
        api_core_failed(arg, reply);
    else
        req_empty(arg, 204);
}

static void dirty_log(struct hvd *d, struct req *r, uint32_t on)
{
    struct vm *vm = api_vm(d, r);

    if (vm == NULL || !is_live(r, vm))
        return;
    struct mf_args_dirty_log a = {.vm = vm->id, .on = on};
    link_call(&d->core.link, &(struct link_request){
                                 .nr = MF_CALL_VM_DIRTY_LOG, .args = &a, .fn = on_done, .arg = r});
}

void api_vm_dirty_start(struct hvd *d, struct req *r)
{
    dirty_log(d, r, 1);
}

void api_vm_dirty_stop(struct hvd *d, struct req *r)
{
    dirty_log(d, r, 0);
}

/* ---- the host's frames */

struct host_work {
    struct hvd *d;
    struct req *r;
    enum mf_call_nr nr;
    struct mf_args_heap_range range;
    struct mf_args_heap_scrub scrub;
};

static void on_range(void *arg, const struct link_reply *reply)
{
    const struct mf_reply_heap_range *h = reply->body;
    struct jsonw w = {.comma = false};

    if (reply->status != MF_OK) {
        api_core_failed(arg, reply);
        return;
    }
    jsonw_object(&w);
    jsonw_ku64(&w, "changed", h->changed);
    jsonw_ku64(&w, "waiting", h->waiting);
    jsonw_ku64(&w, "already", h->already);
    jsonw_object_end(&w);
    req_json(arg, 200, &w);
}

static void on_core(void *arg, const struct problem *why)
{
    struct host_work *k = arg;
    bool scrub = k->nr == MF_CALL_HEAP_SCRUB;

    if (why != NULL)
        req_problem(k->r, why);
    else
        link_call(&k->d->core.link, &(struct link_request){.nr = k->nr,
                                                           .args = scrub ? (const void *)&k->scrub
                                                                         : (const void *)&k->range,
                                                           .fn = scrub ? on_done : on_range,
                                                           .arg = k->r});
    free(k);
}

static void host_work(struct hvd *d, struct req *r, const struct host_work *what)
{
    struct host_work *k = malloc(sizeof *k);

    if (k == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    *k = *what;
    k->d = d;
    k->r = r;
    core_need(&d->core, on_core, k);
}

static void heap_range(struct hvd *d, struct req *r, enum mf_call_nr nr)
{
    struct host_work k = {.nr = nr};
    struct member m[] = {{.key = "first", .kind = MEMBER_NUMBER, .number = &k.range.first},
                         {.key = "frames", .kind = MEMBER_NUMBER, .number = &k.range.frames}};

    if (read_body(r, m, 2))
        host_work(d, r, &k);
}

void api_heap_offline(struct hvd *d, struct req *r)
{
    heap_range(d, r, MF_CALL_HEAP_OFFLINE);
}

void api_heap_online(struct hvd *d, struct req *r)
{
    heap_range(d, r, MF_CALL_HEAP_ONLINE);
}

static const char *const policies[] = {"background", "free", "alloc"};

const char *scrub_word(uint32_t policy)
{
    return policy < sizeof policies / sizeof policies[0] ? policies[policy] : "?";
}

void api_heap_scrub(struct hvd *d, struct req *r)
{
    char policy[MF_NAME_MAX] = "";
    struct host_work k = {.nr = MF_CALL_HEAP_SCRUB};
    struct member m[] = {{.key = "policy", .kind = MEMBER_WORD, .word = policy}};

    if (!read_body(r, m, 1))
        return;
    for (uint32_t i = 0; i < sizeof policies / sizeof policies[0]; i++)
        if (strcmp(policy, policies[i]) == 0) {
            k.scrub.policy = i;
            host_work(d, r, &k);
            return;
        }
    req_fail(r, MF_E_RANGE, "policy", "\"%.40s\": possible are background, free and alloc", policy);
}
