/* GET /metrics: the Prometheus text format. */
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/hvd.h"

static const double bounds[RUN_BUCKETS - 1] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.05,
                                               0.1,    0.5,   1,     5,     10};

void metrics_run(struct hvd *d, uint64_t wall_ns)
{
    double s = (double)wall_ns / 1e9;
    int i = 0;

    while (i < RUN_BUCKETS - 1 && s > bounds[i])
        i++;
    d->run_seconds[i]++;
    d->run_sum += s;
}

static void metric(struct buf *b, const char *name, const char *type, const char *help, uint64_t v)
{
    buf_fmt(b, "# HELP %s %s\n# TYPE %s %s\n%s %" PRIu64 "\n", name, help, name, type, name, v);
}

static void put_vms(struct buf *b, const struct hvd *d)
{
    uint64_t n[MF_VM_CRASHED + 1] = {0};

    for (const struct vm *vm = d->vms.first; vm != NULL; vm = vm->next)
        if (!vm->hidden && (unsigned)vm->state <= MF_VM_CRASHED)
            n[vm->state]++;
    buf_str(b, "# HELP mayfly_vms VMs by state.\n# TYPE mayfly_vms gauge\n");
    for (unsigned i = 0; i <= MF_VM_CRASHED; i++)
        buf_fmt(b, "mayfly_vms{state=\"%s\"} %" PRIu64 "\n", vm_state_text((enum mf_vm_state)i),
                n[i]);
}

static void put_http(struct buf *b, const struct hvd *d)
{
    buf_str(b, "# HELP mayfly_http_requests_total Requests answered, by class of the status.\n"
               "# TYPE mayfly_http_requests_total counter\n");
    for (int i = 2; i < 6; i++)
        buf_fmt(b, "mayfly_http_requests_total{class=\"%dxx\"} %" PRIu64 "\n", i,
                d->http.answered[i]);
    metric(b, "mayfly_http_connections", "gauge", "Connections that are open.", d->http.nr_conns);
}

static void put_runs(struct buf *b, const struct hvd *d)
{
    const char *name = "mayfly_run_seconds";
    uint64_t n = 0;

    metric(b, "mayfly_runs_total", "counter", "One-shot runs that were asked for.", d->nr_runs);
    buf_fmt(b, "# HELP %s Wall time of one-shot runs.\n# TYPE %s histogram\n", name, name);
    for (int i = 0; i < RUN_BUCKETS; i++) {
        n += d->run_seconds[i];
        if (i < RUN_BUCKETS - 1)
            buf_fmt(b, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], n);
    }
    buf_fmt(b, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum %g\n%s_count %" PRIu64 "\n", name, n,
            name, d->run_sum, name, n);
}

static void put_heap(struct buf *b, const struct mf_reply_heap_info *h)
{
    metric(b, "mayfly_heap_frames", "gauge", "Frames of machine memory, 4 KiB each.", h->frames);
    metric(b, "mayfly_heap_free_frames", "gauge", "Free frames.", h->free);
    metric(b, "mayfly_heap_dirty_frames", "gauge", "Free frames that await scrubbing.", h->dirty);
    metric(b, "mayfly_heap_retired_frames", "gauge", "Frames waiting for a flush.", h->retired);
    buf_str(b, "# HELP mayfly_heap_used_frames Frames in use, by what for.\n"
               "# TYPE mayfly_heap_used_frames gauge\n");
    buf_fmt(b, "mayfly_heap_used_frames{for=\"ram\"} %" PRIu64 "\n", h->used_ram);
    buf_fmt(b, "mayfly_heap_used_frames{for=\"table\"} %" PRIu64 "\n", h->used_table);
    buf_fmt(b, "mayfly_heap_used_frames{for=\"core\"} %" PRIu64 "\n", h->used_core);
    buf_str(b, "# HELP mayfly_heap_refused_total Frees refused by the frame table.\n"
               "# TYPE mayfly_heap_refused_total counter\n");
    buf_fmt(b, "mayfly_heap_refused_total{why=\"double\"} %" PRIu64 "\n", h->refused_double);
    buf_fmt(b, "mayfly_heap_refused_total{why=\"order\"} %" PRIu64 "\n", h->refused_order);
    buf_fmt(b, "mayfly_heap_refused_total{why=\"owner\"} %" PRIu64 "\n", h->refused_owner);
    buf_fmt(b, "mayfly_heap_refused_total{why=\"plugin\"} %" PRIu64 "\n", h->refused_plugin);
    metric(b, "mayfly_heap_swaps_total", "counter", "Swaps of the allocator.", h->swaps);
}

struct scrape {
    struct hvd *d;
    struct req *r;
};

/* A core that is down is a fact to report, not an error. */
static void on_heap(void *arg, const struct link_reply *reply)
{
    struct scrape *s = arg;
    struct hvd *d = s->d;
    struct buf b = {0};

    metric(&b, "mayfly_core_up", "gauge", "1 when the hypervisor core can be reached.",
           reply->status == MF_OK);
    metric(&b, "mayfly_core_starts_total", "counter", "Cores started by this daemon.",
           d->core.starts);
    metric(&b, "mayfly_core_losses_total", "counter", "Cores that died.", d->core.losses);
    metric(&b, "mayfly_events_total", "counter", "Events of this daemon.", d->hub.seq);
    metric(&b, "mayfly_event_clients", "gauge", "Clients on the event stream.", d->hub.nr_clients);
    put_vms(&b, d);
    put_runs(&b, d);
    put_http(&b, d);
    if (reply->status == MF_OK)
        put_heap(&b, reply->body);
    req_reply(s->r, 200, "text/plain; version=0.0.4", &b);
    free(s);
}

void api_metrics(struct hvd *d, struct req *r)
{
    struct scrape *s = malloc(sizeof *s);

    if (s == NULL) {
        req_fail(r, MF_E_NO_MEMORY, NULL, "the daemon is out of memory");
        return;
    }
    *s = (struct scrape){d, r};
    if (d->core.state != CORE_UP)
        on_heap(s, &(struct link_reply){.status = MF_E_UNAVAILABLE});
    else
        link_call(&d->core.link,
                  &(struct link_request){.nr = MF_CALL_HEAP_INFO, .fn = on_heap, .arg = s});
}
