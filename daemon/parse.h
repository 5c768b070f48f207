/* The small grammars of the control plane: sizes, names, uuids, numbers. No state. */
#ifndef MAYFLY_DAEMON_PARSE_H
#define MAYFLY_DAEMON_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

#define UUID_TEXT 37 /* with the zero */

/* A run of decimal digits, nothing else. MF_E_MALFORMED, or MF_E_RANGE above 2^64-1. */
enum mf_status parse_u64(const char *text, uint64_t *out);

/*
 * Digits, then nothing, K, M, G or T (powers of 1024), each also with iB. MF_E_MALFORMED, or
 * MF_E_RANGE when the product is above 2^64-1.
 */
enum mf_status parse_size(const char *text, uint64_t *bytes);

/* The same with the unit apart, as domain XML writes it (b, bytes, k, KiB, M, MiB, G, GiB, T, TiB).
 */
enum mf_status parse_size_unit(const char *digits, const char *unit, uint64_t *bytes);

/* NULL when `name` can be a VM's name, else why not (static text that follows "the name "). */
const char *parse_vm_name(const char *name);

/* The same for a strategy: [a-z][a-z0-9-]*, at most MF_NAME_MAX - 1. */
const char *parse_strategy_name(const char *name);

/* 8-4-4-4-12 hexadecimal digits. */
bool parse_uuid(const char *text, uint8_t uuid[16]);
void uuid_format(const uint8_t uuid[16], char text[UUID_TEXT]);
bool uuid_is_zero(const uint8_t uuid[16]);

/*
 * NULL when the text can stand in an XML document and on one line (valid UTF-8, no control
 * characters, no U+FFFE or U+FFFF), else why not.
 */
const char *parse_one_line(const char *text);

#endif
