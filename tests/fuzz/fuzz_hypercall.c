/* The decoder of control calls: what it lets through is whole, sized and well formed. */
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "hv/call/check.h"
#include "proto/plugin_note.h"

size_t fuzz_seed(unsigned i, uint8_t *buf)
{
    static const struct mf_call_row rows[] = {
#define MF_CALL(sym, num, nm, args, reply, door_, txt)                                             \
    {num, MF_DOOR_##door_, 0, sizeof(struct args), sizeof(struct reply), nm, txt},
#include "proto/hypercall.def"
#undef MF_CALL
    };
    struct mf_msg m = {.magic = MF_MAGIC};

    if (i >= sizeof rows / sizeof rows[0])
        return 0;
    m.nr = rows[i].nr;
    m.size = (uint32_t)sizeof m + rows[i].args_size;
    memset(buf, 0, m.size);
    memcpy(buf, &m, sizeof m);
    if (m.nr == MF_CALL_VM_CREATE)
        memcpy(buf + sizeof m, "guest-1", 7);
    if (m.nr == MF_CALL_STRATEGY_UNLOAD || m.nr == MF_CALL_ALLOCATOR_SELECT ||
        m.nr == MF_CALL_TEARDOWN_SELECT)
        memcpy(buf + sizeof m + 8, "scan", 4);
    return m.size;
}

static void check_names(const struct call_request *r)
{
    const struct mf_args_vm_create *c = r->args;
    const struct mf_args_strategy *s = r->args;

    if (r->msg.nr == MF_CALL_VM_CREATE) {
        FUZZ_ASSERT(mf_note_string_ok(c->name, sizeof c->name));
        FUZZ_ASSERT(call_vm_name_ok(c->name));
        FUZZ_ASSERT(mf_note_string_ok(c->teardown, sizeof c->teardown));
    }
    if (r->msg.nr == MF_CALL_STRATEGY_UNLOAD || r->msg.nr == MF_CALL_ALLOCATOR_SELECT)
        FUZZ_ASSERT(mf_strategy_name_ok(s->name));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct call_request r;
    struct mf_error e;
    enum mf_status st;

    memset(&e, 0, sizeof e);
    st = call_check(data, size, &r, &e);
    if (st) {
        FUZZ_ASSERT(e.text[0] && memchr(e.text, 0, sizeof e.text));
        FUZZ_ASSERT(memchr(e.field, 0, sizeof e.field));
        return 0;
    }
    FUZZ_ASSERT(r.row && r.row->door == MF_DOOR_CONTROL);
    FUZZ_ASSERT(r.msg.size == size);
    FUZZ_ASSERT(sizeof r.msg + r.row->args_size + r.tail_len == size);
    FUZZ_ASSERT(r.tail + r.tail_len == data + size);
    check_names(&r);
    return 0;
}
