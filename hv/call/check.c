#include "hv/call/check.h"

#include <string.h>

#include "proto/plugin_note.h"

/* One number for each argument structure that hypercall.def names. */
enum args_id {
    ARGS_mf_args_none,
    ARGS_mf_args_hello,
    ARGS_mf_args_heap_scrub,
    ARGS_mf_args_heap_range,
    ARGS_mf_args_vm_create,
    ARGS_mf_args_vm_image,
    ARGS_mf_args_vm,
    ARGS_mf_args_vm_shutdown,
    ARGS_mf_args_vm_list,
    ARGS_mf_args_console_read,
    ARGS_mf_args_console_write,
    ARGS_mf_args_balloon,
    ARGS_mf_args_dirty_log,
    ARGS_mf_args_dirty_fetch,
    ARGS_mf_args_strategy,
    ARGS_mf_args_teardown_select,
    ARGS_mf_args_batch,
    ARGS_mf_args_subscribe,
    ARGS_mf_args_core_shutdown,
    ARGS_mf_args_guest,
};

enum rule {
    RULE_ZERO,          /* reserved */
    RULE_VM_NAME,       /* of a VM */
    RULE_STRATEGY,      /* name of a strategy */
    RULE_STRATEGY_NONE, /* the same, or empty */
};

struct field {
    enum args_id args;
    enum rule rule;
    uint16_t offset, size;
    const char *name;
};

#define FIELD(args, member, rule)                                                                  \
    {                                                                                              \
        ARGS_##args, rule, offsetof(struct args, member), sizeof(((struct args *)0)->member),      \
            #member                                                                                \
    }

static const struct field fields[] = {
    FIELD(mf_args_none, reserved, RULE_ZERO),
    FIELD(mf_args_hello, reserved, RULE_ZERO),
    FIELD(mf_args_heap_scrub, reserved, RULE_ZERO),
    FIELD(mf_args_vm_create, name, RULE_VM_NAME),
    FIELD(mf_args_vm_create, teardown, RULE_STRATEGY_NONE),
    FIELD(mf_args_vm_image, reserved, RULE_ZERO),
    FIELD(mf_args_vm, reserved, RULE_ZERO),
    FIELD(mf_args_vm_shutdown, reserved, RULE_ZERO),
    FIELD(mf_args_vm_list, reserved, RULE_ZERO),
    FIELD(mf_args_dirty_fetch, reserved, RULE_ZERO),
    FIELD(mf_args_strategy, reserved, RULE_ZERO),
    FIELD(mf_args_strategy, name, RULE_STRATEGY),
    FIELD(mf_args_teardown_select, reserved, RULE_ZERO),
    FIELD(mf_args_teardown_select, name, RULE_STRATEGY),
    FIELD(mf_args_batch, reserved, RULE_ZERO),
    FIELD(mf_args_subscribe, reserved, RULE_ZERO),
    FIELD(mf_args_core_shutdown, reserved, RULE_ZERO),
};

static enum args_id args_of(unsigned nr)
{
    switch (nr) {
#define MF_CALL(sym, num, name, args, reply, door, text)                                           \
    case num:                                                                                      \
        return ARGS_##args;
#include "proto/hypercall.def"
#undef MF_CALL
    default:
        return ARGS_mf_args_none;
    }
}

static bool has_tail(unsigned nr)
{
    return nr == MF_CALL_VM_IMAGE || nr == MF_CALL_CONSOLE_WRITE || nr == MF_CALL_BATCH;
}

bool call_vm_name_ok(const char *name)
{
    bool letters = false;
    size_t n = 0;

    for (; name[n]; n++) {
        char c = name[n];
        bool digit = c >= '0' && c <= '9';
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');

        if (!digit && !letter && (n == 0 || (c != '.' && c != '_' && c != '-')))
            return false;
        if (c == '.' && name[n - 1] == '.')
            return false;
        letters = letters || !digit;
    }
    return letters && n < MF_VM_NAME_MAX;
}

static enum mf_status check_zero(const struct field *f, const uint8_t *p, struct mf_error *e)
{
    for (unsigned i = 0; i < f->size; i++)
        if (p[i])
            return error_set(e, MF_E_RESERVED, f->name, "the reserved field %s is not zero",
                             f->name);
    return MF_OK;
}

static enum mf_status check_string(const struct field *f, const char *s, struct mf_error *e)
{
    if (!memchr(s, 0, f->size))
        return error_set(e, MF_E_NAME, f->name, "%s is longer than %u bytes", f->name,
                         f->size - 1u);
    if (!mf_note_string_ok(s, f->size))
        return error_set(e, MF_E_RESERVED, f->name, "%s is not padded with zeros", f->name);
    if (f->rule == RULE_STRATEGY_NONE && !s[0])
        return MF_OK;
    if (f->rule == RULE_VM_NAME && !call_vm_name_ok(s))
        return error_set(e, MF_E_NAME, f->name,
                         "'%s' is not a name: 1 to 63 of A-Z a-z 0-9 . _ -, the first a letter or "
                         "digit, not digits only, no '..'",
                         s);
    if (f->rule != RULE_VM_NAME && !mf_strategy_name_ok(s))
        return error_set(e, MF_E_NAME, f->name, "'%s' is not the name of a strategy", s);
    return MF_OK;
}

static enum mf_status check_fields(const struct call_request *r, struct mf_error *e)
{
    enum args_id id = args_of(r->msg.nr);

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const struct field *f = &fields[i];
        const uint8_t *p = (const uint8_t *)r->args + f->offset;
        enum mf_status st;

        if (f->args != id)
            continue;
        st = f->rule == RULE_ZERO ? check_zero(f, p, e) : check_string(f, (const char *)p, e);
        if (st)
            return st;
    }
    return MF_OK;
}

static enum mf_status check_header(const struct mf_msg *m, size_t n, struct mf_error *e)
{
    if (m->magic != MF_MAGIC)
        return error_set(e, MF_E_MALFORMED, "magic", "0x%x instead of 0x%x", m->magic, MF_MAGIC);
    if (m->size != n)
        return error_set(e, MF_E_SIZE, "size", "the header says %u bytes, the message has %zu",
                         m->size, n);
    if (m->flags & ~MF_MSG_NO_CONT)
        return error_set(e, MF_E_RESERVED, "flags", "unknown flags 0x%x",
                         m->flags & ~MF_MSG_NO_CONT);
    if (m->status)
        return error_set(e, MF_E_RESERVED, "status", "the status of a request is not zero");
    if (m->cont && !(m->flags & MF_MSG_NO_CONT))
        return error_set(e, MF_E_RESERVED, "cont", "a continuation without MF_MSG_NO_CONT");
    return MF_OK;
}

static enum mf_status check_size(struct call_request *r, size_t n, struct mf_error *e)
{
    size_t want = sizeof r->msg + r->row->args_size;

    if (n < want || (n > want && !has_tail(r->msg.nr)))
        return error_set(e, MF_E_SIZE, "size", "%s takes %s%zu bytes, the message has %zu",
                         r->row->name, has_tail(r->msg.nr) ? "at least " : "", want, n);
    r->tail_len = (uint32_t)(n - want);
    return MF_OK;
}

enum mf_status call_check(const uint8_t *bytes, size_t n, struct call_request *out,
                          struct mf_error *e)
{
    enum mf_status st;

    memset(out, 0, sizeof *out);
    if (n < sizeof out->msg)
        return error_set(e, MF_E_MALFORMED, "size", "%zu bytes are no header", n);
    memcpy(&out->msg, bytes, sizeof out->msg);
    st = check_header(&out->msg, n, e);
    if (st)
        return st;
    out->row = mf_call_row(out->msg.nr);
    if (!out->row)
        return error_set(e, MF_E_UNKNOWN_CALL, "nr", "there is no call %u", out->msg.nr);
    if (out->row->door != MF_DOOR_CONTROL)
        return error_set(e, MF_E_PERM, "nr", "%s is for guests", out->row->name);
    st = check_size(out, n, e);
    if (st)
        return st;
    out->args = bytes + sizeof out->msg;
    out->tail = bytes + sizeof out->msg + out->row->args_size;
    return check_fields(out, e);
}
