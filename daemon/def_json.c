/* JSON to definition and back. */
#include <inttypes.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/def.h"
#include "daemon/jsonr.h"
#include "daemon/parse.h"

struct reader {
    struct vm_def *d;
    enum def_use use;
    uint32_t *timeout_ms;
    struct problem *p;
    const char *key; /* of the member being read */
};

static enum mf_status wrong_type(struct reader *r, const char *want)
{
    return problem_set(r->p, MF_E_MALFORMED, r->key, "%s must be %s", r->key, want);
}

/* The string's bytes, or NULL with the problem set. */
static const char *get_text(struct reader *r, struct json_object *v)
{
    if (!json_object_is_type(v, json_type_string)) {
        wrong_type(r, "a string");
        return NULL;
    }
    const char *s = json_object_get_string(v);
    if (strlen(s) != (size_t)json_object_get_string_len(v)) {
        problem_set(r->p, MF_E_RANGE, r->key, "%s has a zero character", r->key);
        return NULL;
    }
    return s;
}

/* A number from `lo` to `hi`. */
static enum mf_status get_number(struct reader *r, struct json_object *v, uint64_t lo, uint64_t hi,
                                 uint32_t *out)
{
    if (!json_object_is_type(v, json_type_int))
        return wrong_type(r, "a whole number");
    int64_t n = json_object_get_int64(v);
    uint64_t u = json_object_get_uint64(v);
    if (n < 0 || u < lo || u > hi)
        return problem_set(r->p, MF_E_RANGE, r->key, "%s: possible are %" PRIu64 " to %" PRIu64,
                           json_object_get_string(v), lo, hi);
    *out = (uint32_t)u;
    return MF_OK;
}

static enum mf_status get_dup(struct reader *r, struct json_object *v, char **out)
{
    const char *s = get_text(r, v);

    if (s == NULL)
        return r->p->status;
    free(*out);
    *out = strdup(s);
    return *out == NULL ? problem_nomem(r->p) : MF_OK;
}

static enum mf_status read_name(struct reader *r, struct json_object *v)
{
    const char *s = get_text(r, v);

    if (s == NULL)
        return r->p->status;
    const char *why = parse_vm_name(s);
    if (why != NULL)
        return problem_set(r->p, MF_E_NAME, r->key, "the name %s", why);
    memcpy(r->d->name, s, strlen(s) + 1);
    return MF_OK;
}

static enum mf_status read_uuid(struct reader *r, struct json_object *v)
{
    const char *s = get_text(r, v);

    if (s == NULL)
        return r->p->status;
    if (!parse_uuid(s, r->d->uuid) || uuid_is_zero(r->d->uuid))
        return problem_set(r->p, MF_E_RANGE, r->key,
                           "not a uuid of the form 8-4-4-4-12 hexadecimal digits");
    return MF_OK;
}

static enum mf_status read_memory(struct reader *r, struct json_object *v)
{
    if (json_object_is_type(v, json_type_int)) {
        if (json_object_get_int64(v) < 0)
            return problem_set(r->p, MF_E_RANGE, r->key, "memory cannot be negative");
        r->d->memory = json_object_get_uint64(v);
        return MF_OK;
    }
    if (!json_object_is_type(v, json_type_string))
        return wrong_type(r, "a whole number of bytes or a string such as \"64M\"");
    const char *s = get_text(r, v);
    if (s == NULL)
        return r->p->status;
    enum mf_status st = parse_size(s, &r->d->memory);
    if (st == MF_E_RANGE)
        return problem_set(r->p, st, r->key, "\"%.40s\" is more than 2^64-1 bytes", s);
    if (st != MF_OK)
        return problem_set(r->p, st, r->key,
                           "\"%.40s\" is not a number with K, M, G or T behind it", s);
    return MF_OK;
}

static enum mf_status read_vcpus(struct reader *r, struct json_object *v)
{
    return get_number(r, v, 1, MF_VCPUS_MAX, &r->d->vcpus);
}

static enum mf_status read_kernel(struct reader *r, struct json_object *v)
{
    return get_dup(r, v, &r->d->kernel);
}

static enum mf_status read_cmdline(struct reader *r, struct json_object *v)
{
    return get_dup(r, v, &r->d->cmdline);
}

static enum mf_status read_initrd(struct reader *r, struct json_object *v)
{
    return get_dup(r, v, &r->d->initrd);
}

/* {"file": ..., "cmdline": ...} */
static enum mf_status read_module(struct reader *r, struct json_object *v)
{
    const char *file = NULL, *cmdline = NULL;

    if (!json_object_is_type(v, json_type_object))
        return wrong_type(r, "a list of objects");
    json_object_object_foreach(v, key, value)
    {
        const char **to = strcmp(key, "file") == 0      ? &file
                          : strcmp(key, "cmdline") == 0 ? &cmdline
                                                        : NULL;
        if (to == NULL)
            return problem_set(r->p, MF_E_MALFORMED, r->key,
                               "a module has no member \"%.40s\": possible are file and cmdline",
                               key);
        *to = get_text(r, value);
        if (*to == NULL)
            return r->p->status;
    }
    if (file == NULL)
        return problem_set(r->p, MF_E_MALFORMED, r->key, "a module's file is missing");
    return def_add_module(r->d, file, cmdline, r->p);
}

static enum mf_status read_modules(struct reader *r, struct json_object *v)
{
    if (!json_object_is_type(v, json_type_array))
        return wrong_type(r, "a list of objects");
    for (size_t i = 0; i < json_object_array_length(v); i++)
        if (read_module(r, json_object_array_get_idx(v, i)) != MF_OK)
            return r->p->status;
    return MF_OK;
}

static enum mf_status read_engine(struct reader *r, struct json_object *v)
{
    const char *s = get_text(r, v);

    if (s == NULL)
        return r->p->status;
    if (!def_engine_parse(s, &r->d->engine))
        return problem_set(r->p, MF_E_RANGE, r->key, "\"%.40s\": possible are auto, soft and kvm",
                           s);
    return MF_OK;
}

static enum mf_status read_teardown(struct reader *r, struct json_object *v)
{
    const char *s = get_text(r, v);

    if (s == NULL)
        return r->p->status;
    const char *why = parse_strategy_name(s);
    if (why != NULL)
        return problem_set(r->p, MF_E_NAME, r->key, "the name %s", why);
    memcpy(r->d->teardown, s, strlen(s) + 1);
    return MF_OK;
}

static enum mf_status read_on_reset(struct reader *r, struct json_object *v)
{
    const char *s = get_text(r, v);

    if (s == NULL)
        return r->p->status;
    if (strcmp(s, "restart") != 0 && strcmp(s, "end") != 0)
        return problem_set(r->p, MF_E_RANGE, r->key, "\"%.40s\": possible are restart and end", s);
    r->d->reset_ends = s[0] == 'e';
    return MF_OK;
}

static enum mf_status read_claim(struct reader *r, struct json_object *v)
{
    if (!json_object_is_type(v, json_type_boolean))
        return wrong_type(r, "true or false");
    r->d->claim = json_object_get_boolean(v);
    return MF_OK;
}

static enum mf_status read_pages(struct reader *r, struct json_object *v)
{
    const char *s = get_text(r, v);

    if (s == NULL)
        return r->p->status;
    if (strcmp(s, "4K") != 0 && strcmp(s, "2M") != 0)
        return problem_set(r->p, MF_E_RANGE, r->key, "\"%.40s\": possible are 4K and 2M", s);
    r->d->large_pages = s[0] == '2';
    return MF_OK;
}

static enum mf_status read_weight(struct reader *r, struct json_object *v)
{
    return get_number(r, v, 1, 10000, &r->d->weight);
}

static enum mf_status read_cap(struct reader *r, struct json_object *v)
{
    return get_number(r, v, 0, 100, &r->d->cap);
}

static enum mf_status read_timeout(struct reader *r, struct json_object *v)
{
    return get_number(r, v, 1, DEF_TIMEOUT_MS_MAX, r->timeout_ms);
}

static const struct member {
    const char *key;
    enum mf_status (*read)(struct reader *r, struct json_object *v);
    bool run_only;
} members[] = {
    {"name", read_name, false},         {"uuid", read_uuid, false},
    {"memory", read_memory, false},     {"vcpus", read_vcpus, false},
    {"kernel", read_kernel, false},     {"cmdline", read_cmdline, false},
    {"initrd", read_initrd, false},     {"modules", read_modules, false},
    {"engine", read_engine, false},     {"teardown", read_teardown, false},
    {"on_reset", read_on_reset, false}, {"weight", read_weight, false},
    {"claim", read_claim, false},       {"pages", read_pages, false},
    {"cap", read_cap, false},           {"timeout_ms", read_timeout, true},
};

static enum mf_status read_member(struct reader *r, const char *key, struct json_object *v)
{
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (strcmp(key, members[i].key) == 0 && (!members[i].run_only || r->use == DEF_RUN)) {
            r->key = members[i].key;
            return members[i].read(r, v);
        }
    return problem_set(r->p, MF_E_MALFORMED, key, "there is no member of this name");
}

/* A request that leaves out what it must have is told so by name, in the order of the members. */
static enum mf_status check_missing(struct json_object *o, enum def_use use, struct problem *p)
{
    static const char *const required[] = {"name", "memory", "kernel"};

    for (size_t i = use == DEF_RUN ? 2 : 0; i < 3; i++)
        if (!json_object_object_get_ex(o, required[i], NULL))
            return problem_set(p, MF_E_MALFORMED, required[i], "the member is missing");
    return MF_OK;
}

enum mf_status def_from_json(struct vm_def *d, enum def_use use, const char *text, size_t len,
                             uint32_t *timeout_ms, struct problem *p)
{
    struct json_object *o = NULL;
    struct reader r = {.d = d, .use = use, .timeout_ms = timeout_ms, .p = p};

    if (use == DEF_RUN)
        *timeout_ms = DEF_TIMEOUT_MS;
    if (json_read_object(text, len, &o, p) != MF_OK)
        return p->status;
    json_object_object_foreach(o, key, value)
    {
        if (read_member(&r, key, value) != MF_OK)
            goto out;
    }
    check_missing(o, use, p);
out:
    json_object_put(o);
    return p->status;
}

static void modules_to_json(const struct vm_def *d, struct jsonw *w)
{
    jsonw_key(w, "modules");
    jsonw_array(w);
    for (unsigned i = 0; i < d->nr_modules; i++) {
        jsonw_object(w);
        jsonw_kstr(w, "file", d->module[i].file);
        jsonw_kstr(w, "cmdline", d->module[i].cmdline == NULL ? "" : d->module[i].cmdline);
        jsonw_object_end(w);
    }
    jsonw_array_end(w);
}

void def_to_json(const struct vm_def *d, struct jsonw *w)
{
    char uuid[UUID_TEXT];

    uuid_format(d->uuid, uuid);
    jsonw_kstr(w, "name", d->name);
    jsonw_kstr(w, "uuid", uuid);
    jsonw_ku64(w, "memory", d->memory);
    jsonw_ku64(w, "vcpus", d->vcpus);
    jsonw_kstr(w, "kernel", d->kernel == NULL ? "" : d->kernel);
    jsonw_kstr(w, "cmdline", d->cmdline == NULL ? "" : d->cmdline);
    jsonw_key(w, "initrd");
    if (d->initrd == NULL)
        jsonw_null(w);
    else
        jsonw_str(w, d->initrd);
    modules_to_json(d, w);
    jsonw_kstr(w, "engine", def_engine_word(d->engine));
    jsonw_key(w, "teardown");
    if (d->teardown[0] == '\0')
        jsonw_null(w);
    else
        jsonw_str(w, d->teardown);
    jsonw_kstr(w, "on_reset", d->reset_ends ? "end" : "restart");
    jsonw_ku64(w, "weight", d->weight);
    jsonw_ku64(w, "cap", d->cap);
    jsonw_kbool(w, "claim", d->claim);
    jsonw_kstr(w, "pages", d->large_pages ? "2M" : "4K");
}
