/* The host, its heap, the daemon itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/embed.h"
#include "daemon/hvd.h"

struct host_ask {
    struct hvd *d;
    struct req *r;
    enum mf_call_nr nr; /* MF_CALL_BATCH: host and heap */
};

static void heap_json(struct jsonw *w, const struct mf_reply_heap_info *h)
{
    char name[MF_NAME_MAX];

    snprintf(name, sizeof name, "%.*s", MF_NAME_MAX - 1, h->allocator);
    jsonw_object(w);
    jsonw_ku64(w, "frames", h->frames);
    jsonw_ku64(w, "free", h->free);
    jsonw_ku64(w, "cached", h->cached);
    jsonw_ku64(w, "dirty", h->dirty);
    jsonw_ku64(w, "used_ram", h->used_ram);
    jsonw_ku64(w, "used_table", h->used_table);
    jsonw_ku64(w, "used_core", h->used_core);
    jsonw_ku64(w, "retired", h->retired);
    jsonw_ku64s(w, "free_blocks", h->free_blocks, MF_ORDERS);
    jsonw_ku64(w, "refused_double", h->refused_double);
    jsonw_ku64(w, "refused_order", h->refused_order);
    jsonw_ku64(w, "refused_owner", h->refused_owner);
    jsonw_ku64(w, "refused_plugin", h->refused_plugin);
    jsonw_ku64(w, "init_ns", h->init_ns);
    jsonw_ku64(w, "swaps", h->swaps);
    jsonw_ku64(w, "swap_pause_ns", h->swap_pause_ns);
    jsonw_ku64(w, "meta_bytes", h->meta_bytes);
    jsonw_key(w, "largest_free_order");
    jsonw_i64(w, h->largest_free_order);
    jsonw_kstr(w, "allocator", name);
    jsonw_kstr(w, "scrub", scrub_word(h->scrub));
    jsonw_ku64(w, "claimed", h->claimed);
    jsonw_ku64(w, "offline", h->offline);
    jsonw_ku64(w, "offline_waiting", h->offline_waiting);
    jsonw_ku64(w, "scrubbed", h->scrubbed);
    jsonw_ku64(w, "punched", h->punched);
    jsonw_object_end(w);
}

static void audit_json(struct jsonw *w, const struct mf_reply_heap_audit *a)
{
    jsonw_object(w);
    jsonw_ku64(w, "frames", a->frames);
    jsonw_ku64(w, "free", a->free);
    jsonw_ku64(w, "used_ram", a->used_ram);
    jsonw_ku64(w, "used_table", a->used_table);
    jsonw_ku64(w, "used_core", a->used_core);
    jsonw_ku64(w, "retired", a->retired);
    jsonw_ku64(w, "overlaps", a->overlaps);
    jsonw_ku64(w, "bad_records", a->bad_records);
    jsonw_ku64(w, "listed_free", a->listed_free);
    jsonw_ku64(w, "listed_in_use", a->listed_in_use);
    jsonw_ku64(w, "lost", a->lost);
    jsonw_ku64(w, "offline", a->offline);
    jsonw_object_end(w);
}

static void engine_json(struct jsonw *w, const char *name, bool usable, const char *why)
{
    jsonw_key(w, name);
    jsonw_object(w);
    jsonw_kbool(w, "usable", usable);
    if (why[0] != '\0')
        jsonw_kstr(w, "why", why);
    jsonw_object_end(w);
}

static void core_json(struct jsonw *w, const struct core *c)
{
    char hex[33];

    for (int i = 0; i < 16; i++)
        snprintf(hex + 2 * i, 3, "%02x", c->instance[i]);
    jsonw_key(w, "core");
    jsonw_object(w);
    jsonw_ku64(w, "pid", c->pid);
    jsonw_kstr(w, "instance", hex);
    jsonw_object_end(w);
}

static void host_json(struct jsonw *w, const struct core *c, const struct mf_reply_host_info *h,
                      const struct mf_reply_heap_info *heap)
{
    char text[96];

    jsonw_object(w);
    snprintf(text, sizeof text, "%.*s", (int)sizeof h->version - 1, h->version);
    jsonw_kstr(w, "version", text);
    jsonw_ku64(w, "abi", MF_ABI_VERSION);
    jsonw_ku64(w, "memory", h->memory);
    jsonw_ku64(w, "cpus", h->cpus);
    jsonw_ku64(w, "workers", h->workers);
    jsonw_ku64(w, "uptime_ns", h->now - h->started_at);
    jsonw_ku64(w, "vms", h->vms);
    jsonw_ku64(w, "vms_running", h->vms_running);
    jsonw_ku64(w, "vms_created", h->vms_created);
    jsonw_ku64(w, "slices", h->slices);
    jsonw_key(w, "engines");
    jsonw_object(w);
    engine_json(w, "soft", h->engine_soft != 0, "");
    snprintf(text, sizeof text, "%.*s", (int)sizeof h->engine_kvm_why - 1, h->engine_kvm_why);
    engine_json(w, "kvm", h->engine_kvm != 0, text);
    jsonw_object_end(w);
    snprintf(text, sizeof text, "%.*s", MF_NAME_MAX - 1, heap->allocator);
    jsonw_kstr(w, "allocator", text);
    snprintf(text, sizeof text, "%.*s", MF_NAME_MAX - 1, h->teardown_default);
    jsonw_kstr(w, "teardown_default", text);
    core_json(w, c);
    jsonw_object_end(w);
}

static bool host_reply_json(struct jsonw *w, const struct core *c, const struct link_reply *reply)
{
    struct link_reply host;
    struct link_reply heap;
    uint16_t nr;
    size_t at = 0;

    if (!link_batch_next(reply, &at, &nr, &host) || host.status != MF_OK ||
        !link_batch_next(reply, &at, &nr, &heap) || heap.status != MF_OK)
        return false;
    host_json(w, c, host.body, heap.body);
    return true;
}

static void on_host_reply(void *arg, const struct link_reply *reply)
{
    struct host_ask *a = arg;
    struct jsonw w = {.comma = false};
    bool ok = true;

    if (reply->status != MF_OK) {
        api_core_failed(a->r, reply);
        free(a);
        return;
    }
    if (a->nr == MF_CALL_HEAP_INFO)
        heap_json(&w, reply->body);
    else if (a->nr == MF_CALL_HEAP_AUDIT)
        audit_json(&w, reply->body);
    else
        ok = host_reply_json(&w, &a->d->core, reply);
    if (ok) {
        req_json(a->r, 200, &w);
    } else {
        jsonw_fini(&w);
        req_fail(a->r, MF_E_INTERNAL, NULL, "the core does not say what it is");
    }
    free(a);
}

static void on_core(void *arg, const struct problem *why)
{
    struct host_ask *a = arg;
    struct link_batch b;

    if (why != NULL) {
        req_problem(a->r, why);
        free(a);
        return;
    }
    if (a->nr != MF_CALL_BATCH) {
        link_call(&a->d->core.link,
                  &(struct link_request){.nr = a->nr, .fn = on_host_reply, .arg = a});
        return;
    }
    b.count = 0;
    b.len = 0;
    b.full = false;
    link_batch_add(&b, MF_CALL_HOST_INFO, NULL, NULL, 0);
    link_batch_add(&b, MF_CALL_HEAP_INFO, NULL, NULL, 0);
    link_batch_call(&a->d->core.link, &b, NULL, 0, on_host_reply, a);
}

static void ask_host(struct hvd *d, struct req *r, enum mf_call_nr nr)
{
    struct host_ask *a = malloc(sizeof *a);

    if (a == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    *a = (struct host_ask){d, r, nr};
    core_need(&d->core, on_core, a);
}

void api_host(struct hvd *d, struct req *r)
{
    ask_host(d, r, MF_CALL_BATCH);
}

void api_heap(struct hvd *d, struct req *r)
{
    ask_host(d, r, MF_CALL_HEAP_INFO);
}

void api_heap_audit(struct hvd *d, struct req *r)
{
    ask_host(d, r, MF_CALL_HEAP_AUDIT);
}

/* ---- the daemon */

void api_events(struct hvd *d, struct req *r)
{
    hub_stream(&d->hub, r, req_accepts(r, "text/event-stream"));
}

void api_version(struct hvd *d, struct req *r)
{
    struct jsonw w = {.comma = false};

    (void)d;
    jsonw_object(&w);
    jsonw_kstr(&w, "version", MAYFLY_VERSION);
    jsonw_ku64(&w, "abi", MF_ABI_VERSION);
    jsonw_ku64(&w, "plugin_abi", MF_PLUGIN_ABI);
    jsonw_kstr(&w, "api", "1");
    jsonw_object_end(&w);
    req_json(r, 200, &w);
}

void api_openapi(struct hvd *d, struct req *r)
{
    struct buf b = {0};

    (void)d;
    buf_add(&b, embed_openapi_json, embed_openapi_json_len);
    req_reply(r, 200, "application/json", &b);
}
