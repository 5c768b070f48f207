/* Definitions in domain XML. */
#include "tests/unit/daemon/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/def.h"

#define NS "xmlns:mayfly='urn:mayfly:domain:1'"

static enum mf_status read_def(const char *text, struct vm_def *d, struct problem *p)
{
    *p = (struct problem){0};
    def_init(d, DEF_DEFINE);
    if (def_from_xml(d, text, strlen(text), p) == MF_OK)
        def_check(d, DEF_DEFINE, UINT64_C(4) << 30, p);
    return p->status;
}

static void refused(const char *text, enum mf_status st, const char *field, const char *word)
{
    struct problem p;
    struct vm_def d;

    read_def(text, &d, &p);
    if (p.status != st || (field != NULL && strcmp(p.field, field) != 0) ||
        strstr(p.detail, word) == NULL)
        fail_msg("%.200s: status %d, field '%s', %s", text, p.status, p.field, p.detail);
    def_fini(&d);
}

#define OS         "<os><type>hvm</type><kernel>/k</kernel></os>"
#define DOM(inner) "<domain type='mayfly'>" inner "</domain>"
#define GOOD(inner)                                                                                \
    "<domain type='mayfly' " NS "><name>a</name><memory unit='MiB'>64</memory>" OS inner "</"      \
    "domain>"

/* Everything that the format has, in any order. */
static void test_good(void **state)
{
    struct problem p;
    struct vm_def d;

    (void)state;
    assert_int_equal(
        read_def("<?xml version='1.0' encoding='UTF-8'?>\n<!-- a comment -->\n"
                 "<domain type='mayfly' " NS ">\n <vcpu> 2 </vcpu><on_reboot>destroy</on_reboot>\n"
                 " <uuid>0c80c3ff-25e3-4312-9557-278613256d56</uuid>\n <name>web</name>\n"
                 " <memory unit='MiB'>64</memory>\n"
                 " <cputune><quota>50000</quota><shares>7</shares><period>100000</period></cputune>"
                 " <os><cmdline> a &lt;b&gt; &amp; &#x41; </cmdline>"
                 "<type arch='x86_64'>hvm</type><kernel>/boot/k</kernel></os>\n"
                 " <mayfly:strategy teardown='scan' engine='soft'/>\n</domain>\n",
                 &d, &p),
        MF_OK);
    assert_string_equal(d.name, "web");
    assert_int_equal(d.vcpus, 2);
    assert_true(d.reset_ends);
    assert_true(d.memory == UINT64_C(64) << 20);
    assert_int_equal(d.weight, 7);
    assert_int_equal(d.cap, 50);
    assert_string_equal(d.cmdline, " a <b> & A ");
    assert_string_equal(d.kernel, "/boot/k");
    assert_string_equal(d.teardown, "scan");
    assert_int_equal(d.engine, MF_ENGINE_SOFT);
    def_fini(&d);
    /* Without a unit memory is in KiB, as the format has it elsewhere. */
    assert_int_equal(read_def(DOM("<name>a</name><memory>64</memory>" OS), &d, &p), MF_OK);
    assert_true(d.memory == 65536);
    def_fini(&d);
}

/* Document types and entities are refused by themselves, wherever they stand. */
static void test_doctype(void **state)
{
    (void)state;
    refused("<!DOCTYPE domain>" GOOD(""), MF_E_MALFORMED, "DOCTYPE", "document type");
    refused("<?xml version='1.0'?><!DOCTYPE domain SYSTEM 'file:///etc/passwd'>" GOOD(""),
            MF_E_MALFORMED, "DOCTYPE", "document type");
    refused("<!DOCTYPE d [<!ENTITY a 'aaa'><!ENTITY b '&a;&a;&a;'>]>" DOM("<name>&b;</name>"),
            MF_E_MALFORMED, "DOCTYPE", "document type");
    refused("<!DOCTYPE this is not even XML", MF_E_MALFORMED, "DOCTYPE", "document type");
    refused("garbage <!ENTITY x 'y'>", MF_E_MALFORMED, "ENTITY", "entity");
    refused(GOOD("<!-- <!DOCTYPE a> -->"), MF_E_MALFORMED, "DOCTYPE", "document type");
    refused(DOM("<name>&undeclared;</name>"), MF_E_MALFORMED, NULL, "line 1");
}

/* Another encoding cannot hide from the scan. */
static void test_encodings(void **state)
{
    static const char wide[] = "\xff\xfe<\0!\0D\0O\0C\0T\0Y\0P\0E\0 \0a\0>\0";
    struct problem p = {0};
    struct vm_def d;

    (void)state;
    def_init(&d, DEF_DEFINE);
    assert_int_equal(def_from_xml(&d, wide, sizeof wide - 1, &p), MF_E_MALFORMED);
    def_fini(&d);
    refused("<?xml version='1.0' encoding='UTF-7'?>+ADwAIQ-DOCTYPE d+AD4-" GOOD(""), MF_E_MALFORMED,
            NULL, "");
    refused(DOM("<name>\xff</name>"), MF_E_MALFORMED, NULL, "line 1");
}

/* An unknown element is named with its line. */
static void test_unknown(void **state)
{
    (void)state;
    refused("<domain type='mayfly'>\n<name>a</name>\n<devices/>\n</domain>", MF_E_MALFORMED,
            "devices", "line 3");
    refused("<machine/>", MF_E_MALFORMED, "machine", "machine");
    refused(GOOD("<mayfly:plugin/>"), MF_E_MALFORMED, "plugin", "plugin");
    refused("<domain type='mayfly' xmlns:q='urn:other'>\n\n<q:name>a</q:name></domain>",
            MF_E_MALFORMED, "name", "line 3");
    refused(GOOD("<name>b</name>"), MF_E_MALFORMED, NULL, "line 1");
    refused("<domain type='kvm'/>", MF_E_MALFORMED, "domain", "line 1");
    refused("<domain/>", MF_E_MALFORMED, NULL, "line 1");
    refused(GOOD("<vcpu placement='static'>1</vcpu>"), MF_E_MALFORMED, NULL, "line 1");
    refused(GOOD("text"), MF_E_MALFORMED, NULL, "line 1");
    refused(GOOD("<mayfly:strategy other='x'/>"), MF_E_MALFORMED, NULL, "line 1");
    refused(DOM(""), MF_E_MALFORMED, NULL, "line 1");
    refused("", MF_E_MALFORMED, "", "empty");
    refused("   \n", MF_E_MALFORMED, "", "empty");
    refused("{}", MF_E_MALFORMED, NULL, "line 1");
}

/* Depth is limited whether the elements are known or not, and the parser's own stack is safe. */
static void test_depth(void **state)
{
    char *text = malloc(1u << 20);
    size_t at = 0;

    (void)state;
    for (int i = 0; i < 40; i++)
        at += (size_t)sprintf(text + at, "<os>");
    for (int i = 0; i < 40; i++)
        at += (size_t)sprintf(text + at, "</os>");
    refused(text, MF_E_MALFORMED, "os", "deeper");
    at = 0;
    while (at < (1u << 20) - 8)
        at += (size_t)sprintf(text + at, "<a>");
    refused(text, MF_E_MALFORMED, NULL, "");
    free(text);
}

static void test_values(void **state)
{
    (void)state;
#define NAME(n) DOM("<name>" n "</name><memory unit='MiB'>64</memory>" OS)
    refused(NAME(""), MF_E_NAME, "name", "empty");
    refused(NAME("123"), MF_E_NAME, "name", "digits");
    refused(NAME("a/b"), MF_E_NAME, "name", "character");
    refused(NAME("../../x"), MF_E_NAME, "name", "");
#undef NAME
#define MEM(u, n) DOM("<name>a</name><memory unit='" u "'>" n "</memory>" OS)
    refused(MEM("MiB", "9223372036854775808"), MF_E_RANGE, "memory", "2^64");
    refused(MEM("b", "99999999999999999999999"), MF_E_RANGE, "memory", "2^64");
    refused(MEM("MB", "64"), MF_E_MALFORMED, NULL, "line 1");
    refused(MEM("MiB", "-1"), MF_E_MALFORMED, NULL, "line 1");
    refused(MEM("MiB", "0"), MF_E_RANGE, "memory", "at least");
    refused(MEM("b", "512"), MF_E_RANGE, "memory", "at least");
    refused(MEM("b", "65537"), MF_E_ALIGN, "memory", "multiple");
    refused(MEM("GiB", "5"), MF_E_RANGE, "memory", "machine");
#undef MEM
    refused(GOOD("<vcpu>0</vcpu>"), MF_E_RANGE, "vcpus", "");
    refused(GOOD("<vcpu>9999</vcpu>"), MF_E_RANGE, "vcpus", "");
    refused(GOOD("<vcpu>99999999999</vcpu>"), MF_E_RANGE, "vcpus", "line 1");
    refused(GOOD("<uuid>x</uuid>"), MF_E_RANGE, "uuid", "line 1");
    refused(GOOD("<mayfly:strategy teardown='A'/>"), MF_E_NAME, "teardown", "line 1");
    refused(GOOD("<cputune><quota>55</quota></cputune>"), MF_E_RANGE, "cap", "line 1");
    refused(GOOD("<cputune><shares>0</shares></cputune>"), MF_E_RANGE, "weight", "");
    refused(GOOD("<on_reboot>preserve</on_reboot>"), MF_E_MALFORMED, NULL, "line 1");
}

/* What is written is read back equal, whatever the texts hold. */
static void test_round_trip(void **state)
{
    struct vm_def d;
    struct vm_def back;
    struct problem p = {0};
    struct buf b = {0};

    (void)state;
    def_init(&d, DEF_DEFINE);
    strcpy(d.name, "x.y_z-1");
    memset(d.uuid, 0xa5, 16);
    d.memory = UINT64_C(3) << 30;
    d.vcpus = 64;
    d.engine = MF_ENGINE_KVM;
    d.reset_ends = true;
    d.weight = 10000;
    d.cap = 100;
    strcpy(d.teardown, "single");
    d.kernel = strdup("/a <b> & 'c' \"d\" ]]> \xc3\xa4");
    d.cmdline = strdup("  lead & trail  ");
    d.initrd = strdup("/i <i>");
    assert_int_equal(def_add_module(&d, "/m 'n'", " a  \"b\" & c", &p), MF_OK);
    assert_int_equal(def_add_module(&d, "/o", NULL, &p), MF_OK);
    def_to_xml(&d, &b);
    assert_false(b.failed);
    assert_int_equal(read_def(b.p, &back, &p), MF_OK);
    assert_true(def_equal(&d, &back));
    def_fini(&back);
    buf_fini(&b);
    def_fini(&d);
}

static int setup(void **state)
{
    (void)state;
    return def_xml_init() ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    def_xml_fini();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),       cmocka_unit_test(test_doctype),
        cmocka_unit_test(test_encodings),  cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_depth),      cmocka_unit_test(test_values),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
