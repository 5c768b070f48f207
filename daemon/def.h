/*
 * The definition of a VM: what a user asked for. Read from JSON or domain XML, written as both,
 * kept as XML. Readers are strict: whatever they do not know is an error that names it.
 */
#ifndef MAYFLY_DAEMON_DEF_H
#define MAYFLY_DAEMON_DEF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/jsonw.h"
#include "daemon/problem.h"
#include "proto/hypercall.h"

#define DEF_KERNEL_MAX     4096u /* bytes of a path, with the zero */
#define DEF_RUN_MEMORY     (UINT64_C(16) << 20)
#define DEF_TIMEOUT_MS     60000u
#define DEF_TIMEOUT_MS_MAX 86400000u
#define DEF_JSON_DEPTH     8
#define DEF_XML_DEPTH      16
#define DEF_TEXT_MAX       (1u << 20) /* bytes of a definition's text */

/* A file that is loaded beside the kernel. */
struct def_module {
    char *file;    /* owned; never NULL */
    char *cmdline; /* owned; NULL: empty */
};

struct vm_def {
    char name[MF_VM_NAME_MAX];
    uint8_t uuid[16]; /* zero: none given */
    uint64_t memory;  /* bytes; 0: none given */
    uint32_t vcpus;
    enum mf_engine engine;
    bool reset_ends;
    bool claim;                 /* the RAM is promised at the start, or it is refused */
    bool large_pages;           /* RAM is backed by 2 MiB where possible */
    uint32_t weight;            /* 1 to 10000 */
    uint32_t cap;               /* percent, 0 for none */
    char teardown[MF_NAME_MAX]; /* empty: the default */
    char *kernel;               /* owned; NULL: none given */
    char *cmdline;              /* owned; NULL: empty */
    char *initrd;               /* owned; NULL: none. In front of the modules */
    unsigned nr_modules;
    struct def_module module[MF_MODULES_MAX];
};

enum def_use {
    DEF_DEFINE, /* POST and PUT of a VM */
    DEF_RUN,    /* POST /v1/run: no name needed, other defaults, timeout_ms */
};

/* Defaults of `use`; owns nothing yet. */
void def_init(struct vm_def *d, enum def_use use);
void def_fini(struct vm_def *d);
/* `to` is uninitialised. False when out of memory, `to` then owns nothing. */
bool def_copy(struct vm_def *to, const struct vm_def *from);
/* Forgets what it owns, which somebody else has taken over. */
void def_taken(struct vm_def *d);
/* Appends a module; the texts are copied, `cmdline` may be NULL. MF_E_RANGE, MF_E_NO_MEMORY. */
enum mf_status def_add_module(struct vm_def *d, const char *file, const char *cmdline,
                              struct problem *p);
bool def_equal(const struct vm_def *a, const struct vm_def *b);

/*
 * Both fill an initialised `d`; `text` need not be zero terminated. On failure `d` may be partly
 * filled (def_fini it). MF_E_MALFORMED, MF_E_RANGE, MF_E_ALIGN, MF_E_NAME, MF_E_TOO_BIG,
 * MF_E_NO_MEMORY. `timeout_ms` is set for DEF_RUN only and may be NULL otherwise.
 */
enum mf_status def_from_json(struct vm_def *d, enum def_use use, const char *text, size_t len,
                             uint32_t *timeout_ms, struct problem *p);
enum mf_status def_from_xml(struct vm_def *d, const char *text, size_t len, struct problem *p);

/*
 * The checks that both forms share: what is required, names, ranges. `arena` is the machine memory
 * of the core in bytes, 0 when it is not known.
 */
enum mf_status def_check(const struct vm_def *d, enum def_use use, uint64_t arena,
                         struct problem *p);

/* The members of the definition, into an open JSON object. */
void def_to_json(const struct vm_def *d, struct jsonw *w);
/* The whole document. */
void def_to_xml(const struct vm_def *d, struct buf *b);

const char *def_engine_word(enum mf_engine e);
bool def_engine_parse(const char *word, enum mf_engine *e);

/*
 * The XML library's global state: once each, before the first and after the last use. init: false
 * when the schema that is built in cannot be used.
 */
bool def_xml_init(void);
void def_xml_fini(void);

#endif
