/*
 * hvbench lifecycle: whole lives of a guest inside the core, one after the other, no socket
 * between: create, load, run to its end, unreachable, memory returned, deleted. One worker: the
 * caller.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hv/call/core.h"
#include "hv/host/log.h"
#include "tests/bench/bench.h"

#define LIVES_MAX 10000000u
#define ROWS_MAX  16u

enum { PH_CREATE, PH_START, PH_RUN, PH_UNREACHABLE, PH_RETURNED, PH_LIFE, PHASES };
static const char *const phase_names[PHASES] = {"create",      "start",    "run",
                                                "unreachable", "returned", "life"};

struct options {
    const char *guest, *allocator;
    const char *teardowns[ROWS_MAX];
    unsigned nr_teardowns;
    unsigned n;
    uint64_t ram;
    bool json;
};

struct spread {
    uint64_t p50, p99, max;
};

struct row {
    struct spread phase[PHASES];
    uint64_t total_ns, instructions, frames;
};

static struct core core;

static bool fail(const char *what, const struct mf_error *e)
{
    fprintf(stderr, "hvbench: %s: %s%s%s\n", what, e->field, e->field[0] ? ": " : "", e->text);
    return false;
}

static bool load_plugin(const char *kind, const char *name)
{
    char path[512];
    struct mf_error e;

    snprintf(path, sizeof path, "%s/%s_%s.so", bench_plugin_dir(), kind, name);
    return !strategies_load_file(&core.strategies, path, &e) || fail(path, &e);
}

/* One life from a file; how long each part took goes to sample[phase]. */
static bool live(const struct options *o, int fd, const char *teardown, uint64_t *sample,
                 struct mf_end_report *report)
{
    struct mf_args_vm_create c = {
        .name = "bench", .memory = o->ram, .vcpus = 1, .flags = MF_VM_RESET_ENDS};
    struct boot_ram ram = boot_ram_layout(o->ram);
    uint64_t t0 = host_now_ns(), t1;
    struct boot_image *img = NULL;
    struct boot_read read;
    struct boot_set *set;
    struct mf_error e = {{0}, {0}};
    enum mf_status st;
    struct vm *vm;

    memcpy(c.teardown, teardown, strnlen(teardown, sizeof c.teardown - 1));
    if (vm_create(&core.vmm, &c, &vm, &e))
        return fail("create", &e);
    t1 = host_now_ns();
    st = boot_read_begin(&read, &core.vmm.images, fd, BOOT_FILE_KERNEL, &ram, &img, &e);
    while (st == MF_AGAIN)
        st = boot_read_step(&read, &core.vmm.images, &img, &e);
    set = boot_set_create("", 0, 0, NULL);
    if (st || !set)
        return fail("image", &e);
    set->kernel = img;
    if (vm_set_boot(vm, set, host_now_ns() - t1, &e))
        return fail("image", &e);
    st = vm_start(vm, &e);
    if (st && st != MF_BLOCKED)
        return fail("start", &e);
    while (!vm_state_off(vm_get_state(vm)))
        if (!sched_step(&core.vmm.sched)) {
            fprintf(stderr, "hvbench: the guest halted instead of ending\n");
            return false;
        }
    sample[PH_LIFE] = host_now_ns() - t0;
    while (!vm->end.returned_ns && sched_step(&core.vmm.sched))
        ;
    *report = vm->end;
    sample[PH_CREATE] = report->create_ns;
    sample[PH_START] = report->start_ns;
    sample[PH_RUN] = report->run_ns;
    sample[PH_UNREACHABLE] = report->unreachable_ns;
    sample[PH_RETURNED] = report->returned_ns;
    return !vm_delete(vm, &e) || fail("delete", &e);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

static struct spread spread_of(uint64_t *v, unsigned n)
{
    qsort(v, n, sizeof *v, by_value);
    return (struct spread){v[n / 2], v[n - 1 - n / 100], v[n - 1]};
}

static bool run_row(const struct options *o, int fd, const char *teardown, struct row *row)
{
    uint64_t *samples = calloc(o->n, PHASES * sizeof *samples), t0, sample[PHASES];
    struct mf_end_report report;
    bool ok = samples;

    /* The image is read and checked once; its file must be old enough to be trusted (image.h). */
    for (unsigned i = 0; i < 3 && ok; i++)
        ok = live(o, fd, teardown, sample, &report);
    t0 = host_now_ns();
    for (unsigned i = 0; i < o->n && ok; i++) {
        ok = live(o, fd, teardown, sample, &report);
        for (unsigned p = 0; p < PHASES; p++)
            samples[(uint64_t)p * o->n + i] = sample[p];
    }
    row->total_ns = host_now_ns() - t0;
    for (unsigned p = 0; p < PHASES && ok; p++)
        row->phase[p] = spread_of(&samples[(uint64_t)p * o->n], o->n);
    row->instructions = report.instructions;
    row->frames = report.frames_returned;
    free(samples);
    return ok;
}

static void print_json(const struct options *o, const struct row *rows)
{
    printf("{\"bench\":\"lifecycle\",\"conditions\":{\"guest\":\"%s\",\"engine\":\"soft\","
           "\"allocator\":\"%s\",\"ram\":%llu,\"instructions\":%llu,\"frames\":%llu},\"rows\":[",
           o->guest, o->allocator, (unsigned long long)o->ram,
           (unsigned long long)rows[0].instructions, (unsigned long long)rows[0].frames);
    for (unsigned i = 0; i < o->nr_teardowns; i++) {
        const struct spread *life = &rows[i].phase[PH_LIFE];

        printf("%s{\"strategy\":\"%s\",\"n\":%u,\"total_ns\":%llu,\"p50_ns\":%llu,"
               "\"p99_ns\":%llu,\"max_ns\":%llu,\"phases\":{",
               i ? "," : "", o->teardowns[i], o->n, (unsigned long long)rows[i].total_ns,
               (unsigned long long)life->p50, (unsigned long long)life->p99,
               (unsigned long long)life->max);
        for (unsigned p = 0; p < PH_LIFE; p++) {
            const struct spread *s = &rows[i].phase[p];

            printf("%s\"%s\":{\"p50_ns\":%llu,\"p99_ns\":%llu,\"max_ns\":%llu}", p ? "," : "",
                   phase_names[p], (unsigned long long)s->p50, (unsigned long long)s->p99,
                   (unsigned long long)s->max);
        }
        printf("}}");
    }
    printf("]}\n");
}

static void print_table(const struct options *o, const struct row *rows)
{
    printf("%s, %u lives, %llu instructions and %llu frames each; microseconds\n", o->guest, o->n,
           (unsigned long long)rows[0].instructions, (unsigned long long)rows[0].frames);
    printf("%-10s %-12s %9s %9s %9s\n", "teardown", "phase", "p50", "p99", "max");
    for (unsigned i = 0; i < o->nr_teardowns; i++) {
        for (unsigned p = 0; p < PHASES; p++) {
            const struct spread *s = &rows[i].phase[p];

            printf("%-10s %-12s %9.2f %9.2f %9.2f\n", p ? "" : o->teardowns[i], phase_names[p],
                   (double)s->p50 / 1e3, (double)s->p99 / 1e3, (double)s->max / 1e3);
        }
        printf("%-10s %-12s %9.3f ms\n", "", "all", (double)rows[i].total_ns / 1e6);
    }
}

static bool parse(struct options *o, int argc, char **argv)
{
    static const struct option options[] = {
        {"guest", required_argument, NULL, 'g'},     {"json", no_argument, NULL, 'j'},
        {"allocator", required_argument, NULL, 'a'}, {"teardown", required_argument, NULL, 't'},
        {"memory", required_argument, NULL, 'm'},    {NULL, 0, NULL, 0}};
    static const char *const all[] = {"scan", "skip", "single", "tracked", "deferred", "arena"};
    bool good = true, given = false;
    int c;

    *o = (struct options){.allocator = "buddy-lazy", .n = 1000, .ram = 16u << 20};
    optind = 1;
    while ((c = getopt_long(argc, argv, "n:", options, NULL)) != -1) {
        if (c == 'g')
            o->guest = optarg;
        else if (c == 'j')
            o->json = true;
        else if (c == 'a')
            o->allocator = optarg;
        else if (c == 't' && o->nr_teardowns < ROWS_MAX)
            given = (o->teardowns[o->nr_teardowns++] = optarg);
        else if (c == 'n')
            good = bench_parse_count(optarg, LIVES_MAX, &o->n) && good;
        else if (c == 'm')
            good = bench_parse_size(optarg, &o->ram) && good;
        else
            good = false;
    }
    for (unsigned i = 0; !given && i < 4; i++)
        o->teardowns[o->nr_teardowns++] = all[i];
    return good && o->guest && o->n && optind == argc;
}

static bool run_all(const struct options *o, int fd, struct row *rows)
{
    struct mf_reply_swap swap;
    struct mf_error e;

    if (!load_plugin("allocator", o->allocator))
        return false;
    if (core_select_allocator(&core, o->allocator, &swap, &e))
        return fail("allocator", &e);
    for (unsigned i = 0; i < o->nr_teardowns; i++)
        if (!load_plugin("teardown", o->teardowns[i]) || !run_row(o, fd, o->teardowns[i], &rows[i]))
            return false;
    return true;
}

int bench_lifecycle(int argc, char **argv)
{
    struct row rows[ROWS_MAX] = {0};
    struct options o;
    struct mf_error e;
    bool ok;
    int fd;

    if (!parse(&o, argc, argv)) {
        fprintf(stderr, "usage: hvbench lifecycle --guest FILE [-n N] [--json] [--memory SIZE]\n"
                        "         [--allocator NAME] [--teardown NAME ...]\n");
        return BENCH_USAGE;
    }
    fd = open(o.guest, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "hvbench: %s: %s\n", o.guest, strerror(errno));
        return 1;
    }
    log_set_level(LOG_WARNING);
    if (!core_init(&core, UINT64_C(1) << 30, 0, &e)) {
        fail("core", &e);
        close(fd);
        return 1;
    }
    ok = run_all(&o, fd, rows);
    core_fini(&core);
    close(fd);
    if (ok && o.json)
        print_json(&o, rows);
    else if (ok)
        print_table(&o, rows);
    return ok ? 0 : 1;
}
