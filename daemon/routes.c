/* The routes: the same list as in proto/openapi.json, which a test compares. */
#include "daemon/hvd.h"

const struct route routes[] = {
    {"GET", "/v1/vms", api_vms_list, BODY_NONE},
    {"POST", "/v1/vms", api_vms_post, BODY_DEF},
    {"GET", "/v1/vms/{vm}", api_vm_get, BODY_NONE},
    {"PUT", "/v1/vms/{vm}", api_vm_put, BODY_DEF},
    {"DELETE", "/v1/vms/{vm}", api_vm_delete, BODY_NONE},
    {"POST", "/v1/vms/{vm}/start", api_vm_start, BODY_NONE},
    {"POST", "/v1/vms/{vm}/pause", api_vm_pause, BODY_NONE},
    {"POST", "/v1/vms/{vm}/resume", api_vm_resume, BODY_NONE},
    {"POST", "/v1/vms/{vm}/reset", api_vm_reset, BODY_NONE},
    {"POST", "/v1/vms/{vm}/shutdown", api_vm_shutdown, BODY_NONE},
    {"POST", "/v1/vms/{vm}/destroy", api_vm_destroy, BODY_NONE},
    {"GET", "/v1/vms/{vm}/stats", api_vm_stats, BODY_NONE},
    {"GET", "/v1/vms/{vm}/console", api_console_get, BODY_NONE},
    {"POST", "/v1/vms/{vm}/console", api_console_post, BODY_RAW},
    {"PUT", "/v1/vms/{vm}/teardown", api_vm_teardown, BODY_JSON},
    {"POST", "/v1/run", api_run, BODY_JSON},
    {"GET", "/v1/host", api_host, BODY_NONE},
    {"GET", "/v1/host/heap", api_heap, BODY_NONE},
    {"GET", "/v1/host/heap/audit", api_heap_audit, BODY_NONE},
    {"PUT", "/v1/host/allocator", api_host_allocator, BODY_JSON},
    {"PUT", "/v1/host/teardown", api_host_teardown, BODY_JSON},
    {"GET", "/v1/strategies", api_strategies_list, BODY_NONE},
    {"POST", "/v1/strategies", api_strategies_load, BODY_JSON},
    {"GET", "/v1/strategies/{kind}/{name}", api_strategy_get, BODY_NONE},
    {"DELETE", "/v1/strategies/{kind}/{name}", api_strategy_delete, BODY_NONE},
    {"GET", "/v1/events", api_events, BODY_NONE},
    {"GET", "/v1/version", api_version, BODY_NONE},
    {"GET", "/v1/openapi.json", api_openapi, BODY_NONE},
    {"GET", "/metrics", api_metrics, BODY_NONE},
};

const size_t nr_routes = sizeof routes / sizeof routes[0];
