#include <stddef.h>

#include "conform/conform.h"

static const struct {
    const char *name, *text;
    char kind;
} rules[] = {
#define RULE(symbol, name, kind, text) {name, text, #kind[0]},
#include "conform/rules.def"
#undef RULE
};

const char *conform_rule_name(enum conform_rule r)
{
    return (unsigned)r < CONFORM_RULES ? rules[r].name : "?";
}

const char *conform_rule_text(enum conform_rule r)
{
    return (unsigned)r < CONFORM_RULES ? rules[r].text : "?";
}

bool conform_rule_concerns(enum conform_rule r, uint32_t kind)
{
    char c = (unsigned)r < CONFORM_RULES ? rules[r].kind : 0;

    return c == 'B' || (c == 'A' && kind == MF_PLUGIN_ALLOCATOR) ||
           (c == 'T' && kind == MF_PLUGIN_TEARDOWN);
}
