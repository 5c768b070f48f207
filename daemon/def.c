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

void def_fini(struct vm_def *d)
{
    free(d->kernel);
    free(d->cmdline);
    d->kernel = NULL;
    d->cmdline = NULL;
}

bool def_copy(struct vm_def *to, const struct vm_def *from)
{
    *to = *from;
    to->kernel = from->kernel == NULL ? NULL : strdup(from->kernel);
    to->cmdline = from->cmdline == NULL ? NULL : strdup(from->cmdline);
    if ((from->kernel != NULL && to->kernel == NULL) ||
        (from->cmdline != NULL && to->cmdline == NULL)) {
        def_fini(to);
        return false;
    }
    return true;
}

static bool text_equal(const char *a, const char *b)
{
    return strcmp(a == NULL ? "" : a, b == NULL ? "" : b) == 0;
}

bool def_equal(const struct vm_def *a, const struct vm_def *b)
{
    return strcmp(a->name, b->name) == 0 && memcmp(a->uuid, b->uuid, 16) == 0 &&
           a->memory == b->memory && a->vcpus == b->vcpus && a->engine == b->engine &&
           a->reset_ends == b->reset_ends && a->weight == b->weight && a->cap == b->cap &&
           strcmp(a->teardown, b->teardown) == 0 && text_equal(a->kernel, b->kernel) &&
           text_equal(a->cmdline, b->cmdline);
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

static enum mf_status check_kernel(const struct vm_def *d, struct problem *p)
{
    if (d->kernel == NULL)
        return problem_set(p, MF_E_MALFORMED, "kernel", "the kernel is missing");
    if (d->kernel[0] != '/')
        return problem_set(p, MF_E_RANGE, "kernel", "the kernel is not an absolute path");
    if (strlen(d->kernel) >= DEF_KERNEL_MAX)
        return problem_set(p, MF_E_RANGE, "kernel", "the path is longer than %u bytes",
                           DEF_KERNEL_MAX - 1);
    const char *why = parse_one_line(d->kernel);
    if (why != NULL)
        return problem_set(p, MF_E_RANGE, "kernel", "the path %s", why);
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
        check_kernel(d, p) != MF_OK || check_cmdline(d, p) != MF_OK)
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
