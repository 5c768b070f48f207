/* The daemon: everything that lives as long as it does, and what its parts offer each other. */
#ifndef MAYFLY_DAEMON_HVD_H
#define MAYFLY_DAEMON_HVD_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/checker.h"
#include "daemon/core.h"
#include "daemon/http.h"
#include "daemon/hub.h"
#include "daemon/kernels.h"
#include "daemon/listen.h"
#include "daemon/store.h"
#include "daemon/vms.h"

struct run;
struct waiter;
struct follower;

/* Clients that follow consoles. */
struct consoles {
    struct hvd *d;
    struct follower *first;
    unsigned following; /* of them waiting for more output */
};

/* Something happened to this VM or on its console. */
void consoles_event(struct consoles *c, uint32_t id);
/* Nothing will come any more. */
void consoles_lost(struct consoles *c);

#define RUN_BUCKETS 12

struct hvd {
    uv_loop_t loop;
    struct listener listener;
    struct http http;
    struct core core;
    struct checker checker;
    enum check_mode check_mode; /* of plugins that are found; not of those that are posted */
    struct vms vms;
    struct hub hub;
    struct store store;
    struct kernels kernels;
    struct consoles consoles;
    struct run *runs;
    struct waiter *waiters;
    unsigned jobs; /* on the thread pool */
    uint64_t started;
    uint64_t nr_runs;
    uint64_t run_seconds[RUN_BUCKETS]; /* histogram of wall times, see metrics.c */
    double run_sum;
    bool quitting;
};

void metrics_run(struct hvd *d, uint64_t wall_ns);
/* Answer everybody who waits for something that will not come any more. */
void runs_quit(struct hvd *d);
void waits_quit(struct hvd *d);

/* ---- shared by the handlers (api_*.c) */

/* The VM that the request names; NULL: answered with 404. */
struct vm *api_vm(struct hvd *d, struct req *r);
/* Answers with the VM's object, as it is known; `status` 200 or 201. */
void api_vm_reply(struct hvd *d, struct req *r, unsigned status, struct vm *vm);
/* The same with fresh numbers of the core, where it is there. */
void api_vm_reply_fresh(struct hvd *d, struct req *r, unsigned status, struct vm *vm);
void api_core_failed(struct req *r, const struct link_reply *reply);

void vm_json(struct jsonw *w, const struct vm *vm);
void vm_stats_json(struct jsonw *w, const struct mf_vm_info *i);
void end_json(struct jsonw *w, uint32_t reason, uint64_t code, const char *word, const char *text);
void end_report_json(struct jsonw *w, const struct mf_end_report *r, const char *reason);

/* "background" and so on; "?" for no policy. */
const char *scrub_word(uint32_t policy);

/* The arguments of vm_create that a definition stands for. */
void def_to_create(const struct vm_def *d, struct mf_args_vm_create *a);
/*
 * Adds vm_image (for `id`) to a batch; the fds of `set` go with it. The kernel is prepared
 * (kernels_need). Errors of kernels_open; MF_E_RANGE with the field `cmdline`.
 */
enum mf_status add_image(struct hvd *d, struct link_batch *b, const struct vm_def *def, uint32_t id,
                         struct kernel_set *set, struct problem *p);
/*
 * Goes through the replies of a batch that may have made a VM: *id is its number (0: none), and
 * the first failure becomes the problem. An image's failure names the field `kernel`.
 */
enum mf_status batch_outcome(const struct link_reply *r, uint32_t *id, struct problem *p);

/* Handlers, one a route. */
void api_vms_list(struct hvd *d, struct req *r);
void api_vms_post(struct hvd *d, struct req *r);
void api_vm_get(struct hvd *d, struct req *r);
void api_vm_put(struct hvd *d, struct req *r);
void api_vm_delete(struct hvd *d, struct req *r);
void api_vm_start(struct hvd *d, struct req *r);
void api_vm_pause(struct hvd *d, struct req *r);
void api_vm_resume(struct hvd *d, struct req *r);
void api_vm_reset(struct hvd *d, struct req *r);
void api_vm_shutdown(struct hvd *d, struct req *r);
void api_vm_destroy(struct hvd *d, struct req *r);
void api_vm_stats(struct hvd *d, struct req *r);
void api_vm_teardown(struct hvd *d, struct req *r);
void api_vm_balloon(struct hvd *d, struct req *r);
void api_vm_dirty_start(struct hvd *d, struct req *r);
void api_vm_dirty_stop(struct hvd *d, struct req *r);
void api_vm_dirty_fetch(struct hvd *d, struct req *r);
void api_console_get(struct hvd *d, struct req *r);
void api_console_post(struct hvd *d, struct req *r);
void api_run(struct hvd *d, struct req *r);
void api_host(struct hvd *d, struct req *r);
void api_heap(struct hvd *d, struct req *r);
void api_heap_audit(struct hvd *d, struct req *r);
void api_heap_scrub(struct hvd *d, struct req *r);
void api_heap_offline(struct hvd *d, struct req *r);
void api_heap_online(struct hvd *d, struct req *r);
void api_host_allocator(struct hvd *d, struct req *r);
void api_host_teardown(struct hvd *d, struct req *r);
void api_strategies_list(struct hvd *d, struct req *r);
void api_strategies_load(struct hvd *d, struct req *r);
void api_strategy_get(struct hvd *d, struct req *r);
void api_strategy_delete(struct hvd *d, struct req *r);
void api_events(struct hvd *d, struct req *r);
void api_version(struct hvd *d, struct req *r);
void api_openapi(struct hvd *d, struct req *r);
void api_metrics(struct hvd *d, struct req *r);

#endif
