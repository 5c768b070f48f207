#include "daemon/def.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/parse.h"

void def_init(struct vm_def *d, enum def_use use)
{
    *d = (struct vm_def){.vcpus = 1, .weight = 100};
    if (use == DEF_RUN) {
        d->memory = DEF_RUN_MEMORY;
        d->reset_ends = true;
    }
}

void def_taken(struct vm_def *d)
{
    d->kernel = d->cmdline = d->initrd = NULL;
    d->nr_modules = 0;
}

void def_fini(struct vm_def *d)
{
    free(d->kernel);
    free(d->cmdline);
    free(d->initrd);
    for (unsigned i = 0; i < d->nr_modules; i++) {
        free(d->module[i].file);
        free(d->module[i].cmdline);
    }
    def_taken(d);
}

/* A copy of a text that may be NULL. */
static bool copy_text(char **to, const char *from)
{
    *to = from == NULL ? NULL : strdup(from);
    return from == NULL || *to != NULL;
}

bool def_copy(struct vm_def *to, const struct vm_def *from)
{
    *to = *from;
    def_taken(to);
    bool good = copy_text(&to->kernel, from->kernel) && copy_text(&to->cmdline, from->cmdline) &&
                copy_text(&to->initrd, from->initrd);
    for (unsigned i = 0; good && i < from->nr_modules; i++) {
        struct problem p = {0};
        good = def_add_module(to, from->module[i].file, from->module[i].cmdline, &p) == MF_OK;
    }
    if (!good)
        def_fini(to);
    return good;
}

enum mf_status def_add_module(struct vm_def *d, const char *file, const char *cmdline,
                              struct problem *p)
{
    if (d->nr_modules == MF_MODULES_MAX)
        return problem_set(p, MF_E_RANGE, "modules", "more than %u modules", MF_MODULES_MAX);
    struct def_module *m = &d->module[d->nr_modules];
    if (!copy_text(&m->file, file) || !copy_text(&m->cmdline, cmdline)) {
        free(m->file);
        return problem_nomem(p);
    }
    d->nr_modules++;
    return MF_OK;
}

static bool text_equal(const char *a, const char *b)
{
    return strcmp(a == NULL ? "" : a, b == NULL ? "" : b) == 0;
}

static bool modules_equal(const struct vm_def *a, const struct vm_def *b)
{
    if (a->nr_modules != b->nr_modules)
        return false;
    for (unsigned i = 0; i < a->nr_modules; i++)
        if (!text_equal(a->module[i].file, b->module[i].file) ||
            !text_equal(a->module[i].cmdline, b->module[i].cmdline))
            return false;
    return true;
}

bool def_equal(const struct vm_def *a, const struct vm_def *b)
{
    return strcmp(a->name, b->name) == 0 && memcmp(a->uuid, b->uuid, 16) == 0 &&
           a->memory == b->memory && a->vcpus == b->vcpus && a->engine == b->engine &&
           a->reset_ends == b->reset_ends && a->claim == b->claim &&
           a->large_pages == b->large_pages && a->weight == b->weight && a->cap == b->cap &&
           strcmp(a->teardown, b->teardown) == 0 && text_equal(a->kernel, b->kernel) &&
           text_equal(a->cmdline, b->cmdline) && text_equal(a->initrd, b->initrd) &&
           modules_equal(a, b);
}

static const char *const engine_words[] = {
    [MF_ENGINE_AUTO] = "auto", [MF_ENGINE_SOFT] = "soft", [MF_ENGINE_KVM] = "kvm"};

const char *def_engine_word(enum mf_engine e)
{
    return (unsigned)e < sizeof engine_words / sizeof engine_words[0] ? engine_words[e] : "auto";
}

bool def_engine_parse(const char *word, enum mf_engine *e)
{
    for (unsigned i = 0; i < sizeof engine_words / sizeof engine_words[0]; i++)
        if (strcmp(word, engine_words[i]) == 0) {
            *e = (enum mf_engine)i;
            return true;
        }
    return false;
}

static enum mf_status check_name(const struct vm_def *d, enum def_use use, struct problem *p)
{
    if (d->name[0] == '\0') {
        if (use == DEF_RUN)
            return MF_OK;
        return problem_set(p, MF_E_MALFORMED, "name", "the name is missing");
    }
    const char *why = parse_vm_name(d->name);
    if (why != NULL)
        return problem_set(p, MF_E_NAME, "name", "the name %s", why);
    return MF_OK;
}

static enum mf_status check_memory(const struct vm_def *d, uint64_t arena, struct problem *p)
{
    if (d->memory < MF_RAM_MIN)
        return problem_set(p, MF_E_RANGE, "memory", "%" PRIu64 " bytes: at least %u are needed",
                           d->memory, MF_RAM_MIN);
    if (arena != 0 && d->memory > arena)
        return problem_set(p, MF_E_RANGE, "memory",
                           "%" PRIu64 " bytes: the machine memory has %" PRIu64, d->memory, arena);
    if (d->memory % MF_PAGE_SIZE != 0)
        return problem_set(p, MF_E_ALIGN, "memory", "%" PRIu64 " bytes: not a multiple of %u",
                           d->memory, MF_PAGE_SIZE);
    return MF_OK;
}

static enum mf_status check_path(const char *path, const char *field, struct problem *p)
{
    if (path[0] != '/')
        return problem_set(p, MF_E_RANGE, field, "the %s is not an absolute path", field);
    if (strlen(path) >= DEF_KERNEL_MAX)
        return problem_set(p, MF_E_RANGE, field, "the path is longer than %u bytes",
                           DEF_KERNEL_MAX - 1);
    const char *why = parse_one_line(path);
    if (why != NULL)
        return problem_set(p, MF_E_RANGE, field, "the path %s", why);
    return MF_OK;
}

static enum mf_status check_kernel(const struct vm_def *d, struct problem *p)
{
    if (d->kernel == NULL)
        return problem_set(p, MF_E_MALFORMED, "kernel", "the kernel is missing");
    return check_path(d->kernel, "kernel", p);
}

/* Initial RAM disk and modules; their command lines go to the core in one message. */
static enum mf_status check_modules(const struct vm_def *d, struct problem *p)
{
    size_t text = 0;

    if (d->initrd != NULL && check_path(d->initrd, "initrd", p) != MF_OK)
        return p->status;
    if (d->nr_modules + (d->initrd != NULL) > MF_MODULES_MAX)
        return problem_set(p, MF_E_RANGE, "modules",
                           "%u, and an initrd: together at most %u are possible", d->nr_modules,
                           MF_MODULES_MAX);
    for (unsigned i = 0; i < d->nr_modules; i++) {
        const char *cmdline = d->module[i].cmdline == NULL ? "" : d->module[i].cmdline;
        if (check_path(d->module[i].file, "modules", p) != MF_OK)
            return p->status;
        const char *why = parse_one_line(cmdline);
        if (why != NULL)
            return problem_set(p, MF_E_RANGE, "modules", "the command line %s", why);
        text += strlen(cmdline);
    }
    if (text >= MF_CMDLINE_MAX)
        return problem_set(p, MF_E_RANGE, "modules", "their command lines have more than %u bytes",
                           MF_CMDLINE_MAX - 1);
    return MF_OK;
}

static enum mf_status check_cmdline(const struct vm_def *d, struct problem *p)
{
    if (d->cmdline == NULL)
        return MF_OK;
    if (strlen(d->cmdline) >= MF_CMDLINE_MAX)
        return problem_set(p, MF_E_RANGE, "cmdline", "the command line is longer than %u bytes",
                           MF_CMDLINE_MAX - 1);
    const char *why = parse_one_line(d->cmdline);
    if (why != NULL)
        return problem_set(p, MF_E_RANGE, "cmdline", "the command line %s", why);
    return MF_OK;
}

enum mf_status def_check(const struct vm_def *d, enum def_use use, uint64_t arena,
                         struct problem *p)
{
    if (check_name(d, use, p) != MF_OK || check_memory(d, arena, p) != MF_OK ||
        check_kernel(d, p) != MF_OK || check_cmdline(d, p) != MF_OK || check_modules(d, p) != MF_OK)
        return p->status;
    if (d->vcpus < 1 || d->vcpus > MF_VCPUS_MAX)
        return problem_set(p, MF_E_RANGE, "vcpus", "%" PRIu32 ": possible are 1 to %u", d->vcpus,
                           MF_VCPUS_MAX);
    if (d->weight < 1 || d->weight > 10000)
        return problem_set(p, MF_E_RANGE, "weight", "%" PRIu32 ": possible are 1 to 10000",
                           d->weight);
    if (d->cap > 100)
        return problem_set(p, MF_E_RANGE, "cap", "%" PRIu32 ": possible are 0 to 100", d->cap);
    const char *why = d->teardown[0] == '\0' ? NULL : parse_strategy_name(d->teardown);
    if (why != NULL)
        return problem_set(p, MF_E_NAME, "teardown", "the name %s", why);
    return MF_OK;
}
