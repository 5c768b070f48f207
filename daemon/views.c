/* What VMs look like in JSON, and what definitions look like in calls. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/hvd.h"

void vm_stats_json(struct jsonw *w, const struct mf_vm_info *i)
{
    jsonw_object(w);
    jsonw_ku64(w, "frames_ram", i->frames_ram);
    jsonw_ku64(w, "frames_table", i->frames_table);
    jsonw_ku64(w, "instructions", i->instructions);
    jsonw_ku64(w, "stage2_faults", i->stage2_faults);
    jsonw_ku64(w, "exits", i->exits);
    jsonw_ku64(w, "halted", i->halted);
    jsonw_ku64s(w, "leaves", i->leaves, 3);
    jsonw_ku64(w, "frames_given", i->frames_given);
    jsonw_ku64(w, "frames_taken", i->frames_taken);
    jsonw_ku64(w, "claim_left", i->claim_left);
    jsonw_kbool(w, "dirty_log", i->dirty_log != 0);
    jsonw_object_end(w);
}

void end_json(struct jsonw *w, uint32_t reason, uint64_t code, const char *word, const char *text)
{
    jsonw_object(w);
    jsonw_kstr(w, "reason", word != NULL ? word : end_reason_word(reason));
    jsonw_ku64(w, "code", code);
    jsonw_kstr(w, "text", text != NULL && text[0] != '\0' ? text : end_reason_text(reason));
    jsonw_object_end(w);
}

void end_report_json(struct jsonw *w, const struct mf_end_report *r, const char *reason)
{
    jsonw_object(w);
    jsonw_kstr(w, "reason", reason != NULL ? reason : end_reason_word(r->reason));
    jsonw_ku64(w, "code", r->code);
    jsonw_ku64(w, "create_ns", r->create_ns);
    jsonw_ku64(w, "start_ns", r->start_ns);
    jsonw_ku64(w, "run_ns", r->run_ns);
    jsonw_ku64(w, "unreachable_ns", r->unreachable_ns);
    jsonw_ku64(w, "returned_ns", r->returned_ns);
    jsonw_ku64(w, "instructions", r->instructions);
    jsonw_ku64(w, "loops", r->loops);
    jsonw_ku64s(w, "loops_per_pass", r->loops_per_pass, 4);
    jsonw_ku64(w, "entries_removed", r->entries_removed);
    jsonw_ku64(w, "tables_freed", r->tables_freed);
    jsonw_ku64(w, "roots_freed", r->roots_freed);
    jsonw_ku64(w, "frames_returned", r->frames_returned);
    jsonw_ku64(w, "steps", r->steps);
    jsonw_ku64(w, "step_max_ns", r->step_max_ns);
    jsonw_kstr(w, "engine", r->engine == MF_ENGINE_KVM ? "kvm" : "soft");
    jsonw_ku64(w, "kernel_ns", r->kernel_ns);
    jsonw_kstr(w, "teardown", r->teardown);
    jsonw_kstr(w, "detail", r->detail);
    jsonw_object_end(w);
}

static void end_members(struct jsonw *w, const struct vm *vm)
{
    const struct mf_end_report *e = &vm->info.end;

    jsonw_key(w, "end");
    if (vm_has_end(vm))
        end_json(w, e->reason, e->code, NULL, e->detail);
    else
        jsonw_null(w);
    jsonw_key(w, "report");
    if (vm_has_end(vm) && e->reason != MF_END_CORE_LOST)
        end_report_json(w, e, NULL);
    else
        jsonw_null(w);
}

void vm_json(struct jsonw *w, const struct vm *vm)
{
    bool there = vm->id != 0 && vm->has_info;

    jsonw_object(w);
    def_to_json(&vm->def, w);
    jsonw_kbool(w, "transient", !vm->defined);
    jsonw_key(w, "id");
    if (vm->id != 0)
        jsonw_u64(w, vm->id);
    else
        jsonw_null(w);
    jsonw_kstr(w, "state", vm_state_text(vm_shown_state(vm)));
    jsonw_key(w, "teardown_active");
    if (there)
        jsonw_str(w, vm->info.teardown);
    else
        jsonw_null(w);
    jsonw_key(w, "stats");
    if (there)
        vm_stats_json(w, &vm->info);
    else
        jsonw_null(w);
    jsonw_ku64(w, "console_end", there ? vm->info.console_end : 0);
    jsonw_ku64(w, "starts", there ? vm->info.starts : 0);
    end_members(w, vm);
    jsonw_object_end(w);
}

void def_to_create(const struct vm_def *d, struct mf_args_vm_create *a)
{
    *a = (struct mf_args_vm_create){.memory = d->memory,
                                    .vcpus = d->vcpus,
                                    .engine = (uint32_t)d->engine,
                                    .flags = (d->reset_ends ? MF_VM_RESET_ENDS : 0) |
                                             (d->claim ? MF_VM_CLAIM : 0) |
                                             (d->large_pages ? MF_VM_LARGE_PAGES : 0),
                                    .weight = d->weight,
                                    .cap = d->cap};
    snprintf(a->name, sizeof a->name, "%s", d->name);
    snprintf(a->teardown, sizeof a->teardown, "%s", d->teardown);
    memcpy(a->uuid, d->uuid, 16);
}

/* The command line as the guest gets it. */
static enum mf_status put_cmdline(struct buf *b, const struct vm_def *def,
                                  const struct linux_kernel *k, struct problem *p)
{
    const char *user = def->cmdline == NULL ? "" : def->cmdline;
    uint32_t max = MF_CMDLINE_MAX - 1;

    if (k->form != LINUX_NOT && k->cmdline_max < max)
        max = k->cmdline_max;
    if (strlen(user) > max)
        return problem_set(p, MF_E_RANGE, "cmdline",
                           "the command line has %zu bytes, this kernel takes %" PRIu32,
                           strlen(user), max);
    if (k->form == LINUX_NOT)
        buf_str(b, user);
    else
        linux_cmdline(user, max, b);
    return b->failed ? problem_nomem(p) : MF_OK;
}

enum mf_status add_image(struct hvd *d, struct link_batch *b, const struct vm_def *def, uint32_t id,
                         struct kernel_set *set, struct problem *p)
{
    struct mf_args_vm_image a = {.vm = id};
    struct buf tail = {0};

    if (kernels_open(&d->kernels, def, set, p) != MF_OK ||
        put_cmdline(&tail, def, set->linux_, p) != MF_OK)
        goto out;
    a.cmdline_len = (uint32_t)tail.len;
    if (def->initrd != NULL)
        a.nr_modules++; /* without a command line */
    for (unsigned i = 0; i < def->nr_modules; i++) {
        const char *text = def->module[i].cmdline == NULL ? "" : def->module[i].cmdline;
        a.module_len[a.nr_modules++] = (uint32_t)strlen(text);
        buf_str(&tail, text);
    }
    a.setup_len = set->linux_->setup_len;
    buf_add(&tail, set->linux_->setup, a.setup_len);
    if (tail.failed)
        problem_nomem(p);
    else
        link_batch_add(b, MF_CALL_VM_IMAGE, &a, tail.p, tail.len);
out:
    buf_fini(&tail);
    return p->status;
}

enum mf_status batch_outcome(const struct link_reply *r, uint32_t *id, struct problem *p)
{
    struct link_reply sub;
    uint16_t nr;
    size_t at = 0;

    *id = 0;
    if (r->status != MF_OK) {
        core_problem(r, NULL, p);
        return p->status;
    }
    while (link_batch_next(r, &at, &nr, &sub)) {
        if (sub.status != MF_OK) {
            bool image = nr == MF_CALL_VM_IMAGE && sub.status == MF_E_IMAGE;
            core_problem(&sub, image ? "kernel" : NULL, p);
            return p->status;
        }
        if (nr == MF_CALL_VM_CREATE)
            *id = ((const struct mf_reply_vm *)sub.body)->vm;
    }
    return MF_OK;
}
