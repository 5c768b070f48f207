/* Domain XML to definition and back. */
#include <inttypes.h>
#include <libxml/parser.h>
#include <libxml/relaxng.h>
#include <libxml/tree.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/def.h"
#include "daemon/embed.h"
#include "daemon/parse.h"

#define MAYFLY_NS   "urn:mayfly:domain:1"
#define CAP_PERIOD  100000u /* microseconds: a quota of 1000 is a percent */
#define CAP_PERCENT (CAP_PERIOD / 100u)

/* The schema, parsed once; read only afterwards. */
static xmlRelaxNGPtr schema;

static void drop_error(void *arg, xmlErrorPtr e)
{
    (void)arg;
    (void)e;
}

bool def_xml_init(void)
{
    LIBXML_TEST_VERSION
    xmlRelaxNGParserCtxtPtr ctx =
        xmlRelaxNGNewMemParserCtxt(embed_domain_rng, (int)embed_domain_rng_len);
    if (ctx == NULL)
        return false;
    xmlRelaxNGSetParserStructuredErrors(ctx, (xmlStructuredErrorFunc)drop_error, NULL);
    schema = xmlRelaxNGParse(ctx);
    xmlRelaxNGFreeParserCtxt(ctx);
    return schema != NULL;
}

void def_xml_fini(void)
{
    xmlRelaxNGFree(schema);
    schema = NULL;
    xmlCleanupParser();
}

/* ---- before the parser sees anything */

/*
 * Refuses what could make the parser read or grow anything but this text. The words are looked for
 * everywhere, also inside comments: no need to agree with the parser about what a comment is.
 */
static enum mf_status prescan(const char *text, size_t len, struct problem *p)
{
    if (len > DEF_TEXT_MAX)
        return problem_set(p, MF_E_TOO_BIG, NULL, "the text is longer than %u bytes", DEF_TEXT_MAX);
    if (memchr(text, '\0', len) != NULL)
        return problem_set(p, MF_E_MALFORMED, NULL, "the XML is not UTF-8 text: it has zero bytes");
    if (memmem(text, len, "<!DOCTYPE", 9) != NULL)
        return problem_set(p, MF_E_MALFORMED, "DOCTYPE",
                           "a document type declaration is not accepted");
    if (memmem(text, len, "<!ENTITY", 8) != NULL)
        return problem_set(p, MF_E_MALFORMED, "ENTITY", "an entity declaration is not accepted");
    for (size_t i = 0; i < len; i++)
        if (memchr(" \t\r\n", text[i], 4) == NULL)
            return MF_OK;
    return problem_set(p, MF_E_MALFORMED, NULL, "the body is empty: a domain element is needed");
}

static int message_length(const char *message)
{
    return (int)strcspn(message, "\r\n");
}

static xmlDocPtr parse_text(const char *text, size_t len, struct problem *p)
{
    xmlParserCtxtPtr ctx = xmlNewParserCtxt();

    if (ctx == NULL) {
        problem_nomem(p);
        return NULL;
    }
    /* The encoding is ours, whatever the text declares: the scan above was for UTF-8. */
    xmlDocPtr doc = xmlCtxtReadMemory(ctx, text, (int)len, NULL, "UTF-8",
                                      XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING);
    if (doc == NULL) {
        const xmlError *e = &ctx->lastError;
        if (e->code == XML_ERR_NO_MEMORY)
            problem_nomem(p);
        else if (e->message != NULL)
            problem_set(p, MF_E_MALFORMED, NULL, "line %d: %.*s", e->line,
                        message_length(e->message), e->message);
        else
            problem_set(p, MF_E_MALFORMED, NULL, "the text is not XML");
    } else if (doc->intSubset != NULL || doc->extSubset != NULL) {
        problem_set(p, MF_E_MALFORMED, "DOCTYPE", "a document type declaration is not accepted");
    }
    xmlFreeParserCtxt(ctx);
    return doc;
}

/* ---- structure */

static bool is_ours(const xmlNode *n)
{
    return n->ns != NULL && strcmp((const char *)n->ns->href, MAYFLY_NS) == 0;
}

static bool element_known(const xmlNode *n)
{
    static const char *const names[] = {"domain",    "name",    "uuid",   "memory", "vcpu",
                                        "os",        "type",    "kernel", "initrd", "cmdline",
                                        "on_reboot", "cputune", "shares", "period", "quota"};

    if (n->ns != NULL)
        return is_ours(n) && (strcmp((const char *)n->name, "strategy") == 0 ||
                              strcmp((const char *)n->name, "module") == 0 ||
                              strcmp((const char *)n->name, "ram") == 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp((const char *)n->name, names[i]) == 0)
            return true;
    return false;
}

static const xmlNode *first_element(const xmlNode *n)
{
    while (n != NULL && n->type != XML_ELEMENT_NODE)
        n = n->next;
    return n;
}

/* The element behind `n` in document order; *depth follows. */
static const xmlNode *next_element(const xmlNode *n, unsigned *depth)
{
    const xmlNode *to = first_element(n->children);

    if (to != NULL) {
        ++*depth;
        return to;
    }
    while (n != NULL && (to = first_element(n->next)) == NULL) {
        n = n->parent != NULL && n->parent->type == XML_ELEMENT_NODE ? n->parent : NULL;
        --*depth;
    }
    return to;
}

/* Unknown elements get an error of their own: the validator's does not name them well. */
static enum mf_status check_elements(const xmlNode *root, struct problem *p)
{
    unsigned depth = 1;

    for (const xmlNode *n = root; n != NULL; n = next_element(n, &depth)) {
        const char *name = (const char *)n->name;
        if (depth > DEF_XML_DEPTH)
            return problem_set(p, MF_E_MALFORMED, name, "line %ld: elements nested deeper than %d",
                               xmlGetLineNo(n), DEF_XML_DEPTH);
        if (!element_known(n))
            return problem_set(p, MF_E_MALFORMED, name, "line %ld: element <%.60s> is not known",
                               xmlGetLineNo(n), name);
    }
    return MF_OK;
}

/* The last element of this name: of two where one may be, the second is the one too many. */
static const xmlNode *last_named(const xmlNode *root, const char *name)
{
    const xmlNode *found = NULL;
    unsigned depth = 1;

    for (const xmlNode *n = root; n != NULL; n = next_element(n, &depth))
        if (strcmp((const char *)n->name, name) == 0)
            found = n;
    return found;
}

struct validation {
    const xmlNode *root;
    struct problem *p;
};

/* The validator's first complaint; where it does not say where, its element is looked for. */
static void validation_error(void *arg, xmlErrorPtr e)
{
    struct validation *v = arg;
    const xmlNode *n = e->node;
    const char *message = e->message == NULL ? "not valid" : e->message;

    if (e->line == 0 && e->str1 != NULL)
        n = last_named(v->root, e->str1);
    while (n != NULL && n->type != XML_ELEMENT_NODE)
        n = n->parent;
    if (n == NULL)
        n = v->root;
    if (strstr(message, "Extra element") != NULL)
        message = "it is there twice, not where it belongs, or has a value that is not possible";
    problem_set(v->p, MF_E_MALFORMED, (const char *)n->name, "line %ld: element <%.60s>: %.*s",
                xmlGetLineNo(n), (const char *)n->name, message_length(message), message);
}

static enum mf_status validate(xmlDocPtr doc, struct problem *p)
{
    xmlRelaxNGValidCtxtPtr ctx = xmlRelaxNGNewValidCtxt(schema);
    struct validation v = {xmlDocGetRootElement(doc), p};

    if (ctx == NULL)
        return problem_nomem(p);
    xmlRelaxNGSetValidStructuredErrors(ctx, (xmlStructuredErrorFunc)validation_error, &v);
    int r = xmlRelaxNGValidateDoc(ctx, doc);
    xmlRelaxNGFreeValidCtxt(ctx);
    if (r != 0)
        problem_set(p, MF_E_MALFORMED, NULL, "the document does not follow the schema");
    return p->status;
}

/* ---- content */

/* What stands in the element, without blanks around it; freed by xmlFree. NULL: no memory. */
static xmlChar *trimmed(const xmlNode *n)
{
    xmlChar *s = xmlNodeGetContent(n);

    if (s == NULL)
        return NULL;
    size_t from = strspn((char *)s, " \t\r\n");
    size_t len = strlen((char *)s + from);
    memmove(s, s + from, len + 1);
    while (len > 0 && memchr(" \t\r\n", s[len - 1], 4) != NULL)
        s[--len] = '\0';
    return s;
}

static enum mf_status number(const xmlNode *n, const char *field, const char *s, uint32_t *out,
                             struct problem *p)
{
    uint64_t v;

    if (parse_u64(s, &v) != MF_OK || v > UINT32_MAX)
        return problem_set(p, MF_E_RANGE, field, "line %ld: \"%.40s\" is out of range",
                           xmlGetLineNo(n), s);
    *out = (uint32_t)v;
    return MF_OK;
}

static enum mf_status read_name(struct vm_def *d, const xmlNode *n, const char *s,
                                struct problem *p)
{
    const char *why = parse_vm_name(s);

    if (why != NULL)
        return problem_set(p, MF_E_NAME, "name", "line %ld: the name %s", xmlGetLineNo(n), why);
    memcpy(d->name, s, strlen(s) + 1);
    return MF_OK;
}

static enum mf_status read_uuid(struct vm_def *d, const xmlNode *n, const char *s,
                                struct problem *p)
{
    if (!parse_uuid(s, d->uuid) || uuid_is_zero(d->uuid))
        return problem_set(p, MF_E_RANGE, "uuid",
                           "line %ld: not a uuid of the form 8-4-4-4-12 hexadecimal digits",
                           xmlGetLineNo(n));
    return MF_OK;
}

static enum mf_status read_memory(struct vm_def *d, const xmlNode *n, const char *s,
                                  struct problem *p)
{
    xmlChar *unit = xmlGetNoNsProp(n, (const xmlChar *)"unit");
    const char *u = unit == NULL ? "KiB" : (const char *)unit; /* as libvirt has it */

    if (parse_size_unit(s, u, &d->memory) != MF_OK)
        problem_set(p, MF_E_RANGE, "memory", "line %ld: \"%.40s\" %s is more than 2^64-1 bytes",
                    xmlGetLineNo(n), s, u);
    xmlFree(unit);
    return p->status;
}

static enum mf_status read_vcpu(struct vm_def *d, const xmlNode *n, const char *s,
                                struct problem *p)
{
    return number(n, "vcpus", s, &d->vcpus, p);
}

static enum mf_status read_reboot(struct vm_def *d, const xmlNode *n, const char *s,
                                  struct problem *p)
{
    (void)n;
    (void)p;
    d->reset_ends = strcmp(s, "destroy") == 0;
    return MF_OK;
}

static enum mf_status read_shares(struct vm_def *d, const xmlNode *n, const char *s,
                                  struct problem *p)
{
    return number(n, "weight", s, &d->weight, p);
}

static enum mf_status read_quota(struct vm_def *d, const xmlNode *n, const char *s,
                                 struct problem *p)
{
    uint32_t quota = 0;

    if (number(n, "cap", s, &quota, p) != MF_OK)
        return p->status;
    if (quota < CAP_PERCENT || quota > CAP_PERIOD || quota % CAP_PERCENT != 0)
        return problem_set(p, MF_E_RANGE, "cap",
                           "line %ld: a quota of %" PRIu32 ": possible are multiples of %u to %u",
                           xmlGetLineNo(n), quota, CAP_PERCENT, CAP_PERIOD);
    d->cap = quota / CAP_PERCENT;
    return MF_OK;
}

static enum mf_status read_strategy(struct vm_def *d, const xmlNode *n, const char *s,
                                    struct problem *p)
{
    xmlChar *teardown = xmlGetNoNsProp(n, (const xmlChar *)"teardown");
    xmlChar *engine = xmlGetNoNsProp(n, (const xmlChar *)"engine");

    (void)s;
    if (teardown != NULL) {
        const char *why = parse_strategy_name((char *)teardown);
        if (why != NULL)
            problem_set(p, MF_E_NAME, "teardown", "line %ld: the name %s", xmlGetLineNo(n), why);
        else
            memcpy(d->teardown, teardown, strlen((char *)teardown) + 1);
    }
    if (engine != NULL && !def_engine_parse((char *)engine, &d->engine))
        problem_set(p, MF_E_RANGE, "engine", "line %ld: possible are auto, soft and kvm",
                    xmlGetLineNo(n));
    xmlFree(teardown);
    xmlFree(engine);
    return p->status;
}

/* The schema has checked the words. */
static enum mf_status read_ram(struct vm_def *d, const xmlNode *n, const char *s, struct problem *p)
{
    xmlChar *claim = xmlGetNoNsProp(n, (const xmlChar *)"claim");
    xmlChar *pages = xmlGetNoNsProp(n, (const xmlChar *)"pages");

    (void)s;
    (void)p;
    d->claim = claim != NULL && strcmp((char *)claim, "yes") == 0;
    d->large_pages = pages != NULL && strcmp((char *)pages, "2M") == 0;
    xmlFree(claim);
    xmlFree(pages);
    return MF_OK;
}

/* Paths and command lines count every character. */
static enum mf_status read_verbatim(char **to, const xmlNode *n, struct problem *p)
{
    xmlChar *s = xmlNodeGetContent(n);

    free(*to);
    *to = s == NULL ? NULL : strdup((char *)s);
    xmlFree(s);
    return *to == NULL ? problem_nomem(p) : MF_OK;
}

static enum mf_status read_module(struct vm_def *d, const xmlNode *n, const char *s,
                                  struct problem *p)
{
    xmlChar *file = xmlGetNoNsProp(n, (const xmlChar *)"file");
    xmlChar *cmdline = xmlGetNoNsProp(n, (const xmlChar *)"cmdline");

    (void)s;
    if (file == NULL)
        problem_nomem(p); /* the schema wants it */
    else
        def_add_module(d, (char *)file, (char *)cmdline, p);
    xmlFree(file);
    xmlFree(cmdline);
    return p->status;
}

static const struct element {
    const char *name;
    enum mf_status (*read)(struct vm_def *d, const xmlNode *n, const char *s, struct problem *p);
} elements[] = {
    {"name", read_name},        {"uuid", read_uuid},         {"memory", read_memory},
    {"vcpu", read_vcpu},        {"shares", read_shares},     {"quota", read_quota},
    {"on_reboot", read_reboot}, {"strategy", read_strategy}, {"module", read_module},
    {"ram", read_ram},
};

static enum mf_status read_element(struct vm_def *d, const xmlNode *n, struct problem *p)
{
    if (strcmp((const char *)n->name, "kernel") == 0)
        return read_verbatim(&d->kernel, n, p);
    if (strcmp((const char *)n->name, "initrd") == 0)
        return read_verbatim(&d->initrd, n, p);
    if (strcmp((const char *)n->name, "cmdline") == 0)
        return read_verbatim(&d->cmdline, n, p);
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++) {
        if (strcmp((const char *)n->name, elements[i].name) != 0)
            continue;
        xmlChar *s = trimmed(n);
        if (s == NULL)
            return problem_nomem(p);
        elements[i].read(d, n, (const char *)s, p);
        xmlFree(s);
        return p->status;
    }
    return MF_OK; /* only holds others */
}

enum mf_status def_from_xml(struct vm_def *d, const char *text, size_t len, struct problem *p)
{
    unsigned depth = 1;

    if (prescan(text, len, p) != MF_OK)
        return p->status;
    xmlDocPtr doc = parse_text(text, len, p);
    const xmlNode *root = doc == NULL ? NULL : xmlDocGetRootElement(doc);
    if (p->status != MF_OK || root == NULL)
        goto out;
    if (check_elements(root, p) != MF_OK || validate(doc, p) != MF_OK)
        goto out;
    for (const xmlNode *n = root; n != NULL; n = next_element(n, &depth))
        if (read_element(d, n, p) != MF_OK)
            break;
out:
    xmlFreeDoc(doc);
    return p->status;
}

/* ---- writing */

static void put_escaped(struct buf *b, const char *s)
{
    for (; *s != '\0'; s++) {
        if (*s == '&')
            buf_str(b, "&amp;");
        else if (*s == '<')
            buf_str(b, "&lt;");
        else if (*s == '>')
            buf_str(b, "&gt;");
        else
            buf_char(b, *s);
    }
}

static void put_element(struct buf *b, const char *indent, const char *name, const char *text)
{
    buf_fmt(b, "%s<%s>", indent, name);
    put_escaped(b, text);
    buf_fmt(b, "</%s>\n", name);
}

/* A value between apostrophes; a parser would take blanks other than spaces for spaces. */
static void put_attribute(struct buf *b, const char *name, const char *text)
{
    buf_fmt(b, " %s='", name);
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            buf_str(b, "&apos;");
        else
            put_escaped(b, (const char[]){*text, '\0'});
    }
    buf_char(b, '\'');
}

static void put_ram(struct buf *b, const struct vm_def *d)
{
    if (!d->claim && !d->large_pages)
        return;
    buf_str(b, "  <mayfly:ram");
    if (d->claim)
        put_attribute(b, "claim", "yes");
    if (d->large_pages)
        put_attribute(b, "pages", "2M");
    buf_str(b, "/>\n");
}

static void put_modules(struct buf *b, const struct vm_def *d)
{
    for (unsigned i = 0; i < d->nr_modules; i++) {
        buf_str(b, "  <mayfly:module");
        put_attribute(b, "file", d->module[i].file);
        if (d->module[i].cmdline != NULL && d->module[i].cmdline[0] != '\0')
            put_attribute(b, "cmdline", d->module[i].cmdline);
        buf_str(b, "/>\n");
    }
}

/* Names of engines and strategies need no escapes. */
static void put_strategy(struct buf *b, const struct vm_def *d)
{
    if (d->teardown[0] == '\0' && d->engine == MF_ENGINE_AUTO)
        return;
    buf_str(b, "  <mayfly:strategy");
    if (d->teardown[0] != '\0')
        buf_fmt(b, " teardown='%s'", d->teardown);
    if (d->engine != MF_ENGINE_AUTO)
        buf_fmt(b, " engine='%s'", def_engine_word(d->engine));
    buf_str(b, "/>\n");
}

void def_to_xml(const struct vm_def *d, struct buf *b)
{
    char uuid[UUID_TEXT];

    uuid_format(d->uuid, uuid);
    buf_str(b, "<domain type='mayfly' xmlns:mayfly='" MAYFLY_NS "'>\n");
    put_element(b, "  ", "name", d->name);
    if (!uuid_is_zero(d->uuid))
        put_element(b, "  ", "uuid", uuid);
    buf_fmt(b, "  <memory unit='KiB'>%" PRIu64 "</memory>\n", d->memory / 1024);
    buf_fmt(b, "  <vcpu>%" PRIu32 "</vcpu>\n", d->vcpus);
    buf_fmt(b, "  <cputune>\n    <shares>%" PRIu32 "</shares>\n", d->weight);
    if (d->cap != 0)
        buf_fmt(b, "    <period>%u</period>\n    <quota>%" PRIu32 "</quota>\n", CAP_PERIOD,
                d->cap * CAP_PERCENT);
    buf_str(b, "  </cputune>\n  <os>\n    <type arch='x86_64'>hvm</type>\n");
    put_element(b, "    ", "kernel", d->kernel == NULL ? "" : d->kernel);
    if (d->initrd != NULL)
        put_element(b, "    ", "initrd", d->initrd);
    if (d->cmdline != NULL && d->cmdline[0] != '\0')
        put_element(b, "    ", "cmdline", d->cmdline);
    buf_str(b, "  </os>\n");
    put_element(b, "  ", "on_reboot", d->reset_ends ? "destroy" : "restart");
    put_strategy(b, d);
    put_ram(b, d);
    put_modules(b, d);
    buf_str(b, "</domain>\n");
}
