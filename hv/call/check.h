/*
 * Decodes a request and checks everything about it that does not depend on the core's state:
 * header, number, door, exact size, reserved fields, strings. Pure; hostile input.
 */
#ifndef MAYFLY_CALL_CHECK_H
#define MAYFLY_CALL_CHECK_H

#include <stdbool.h>

#include "hv/host/error.h"

struct call_request {
    struct mf_msg msg;
    const struct mf_call_row *row; /* NULL: no such call */
    const void *args;              /* row->args_size bytes, 8-byte aligned when the message is */
    const uint8_t *tail;
    uint32_t tail_len;
};

/*
 * `bytes` is 8-byte aligned. On an error *out holds as much of the header as there was, so that a
 * reply can name the call. MF_E_MALFORMED, MF_E_SIZE, MF_E_RESERVED, MF_E_UNKNOWN_CALL, MF_E_PERM
 * (guest door), MF_E_NAME.
 */
enum mf_status call_check(const uint8_t *bytes, size_t n, struct call_request *out,
                          struct mf_error *e);

/* 1 to 63 of [A-Za-z0-9._-], first alphanumeric, not all digits, no "..". */
bool call_vm_name_ok(const char *name);

#endif
