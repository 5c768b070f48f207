#include "daemon/jsonr.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/def.h"

static enum mf_status syntax_problem(struct json_tokener *tok, struct problem *p)
{
    enum json_tokener_error e = json_tokener_get_error(tok);
    size_t at = json_tokener_get_parse_end(tok);

    if (e == json_tokener_error_depth)
        return problem_set(p, MF_E_MALFORMED, NULL, "JSON nested deeper than %d, at byte %zu",
                           DEF_JSON_DEPTH, at);
    if (e == json_tokener_continue)
        return problem_set(p, MF_E_MALFORMED, NULL, "the JSON text ends in the middle");
    return problem_set(p, MF_E_MALFORMED, NULL, "not JSON, at byte %zu: %s", at,
                       json_tokener_error_desc(e));
}

static bool blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (memchr(" \t\r\n", text[i], 4) == NULL)
            return false;
    return true;
}

enum mf_status json_read_object(const char *text, size_t len, struct json_object **out,
                                struct problem *p)
{
    if (len > DEF_TEXT_MAX)
        return problem_set(p, MF_E_TOO_BIG, NULL, "the text is longer than %u bytes", DEF_TEXT_MAX);
    if (len == 0 || blank(text, len))
        return problem_set(p, MF_E_MALFORMED, NULL, "the body is empty: a JSON object is needed");
    struct json_tokener *tok = json_tokener_new_ex(DEF_JSON_DEPTH);
    if (tok == NULL)
        return problem_nomem(p);
    json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    struct json_object *o = json_tokener_parse_ex(tok, text, (int)len);
    size_t end = json_tokener_get_parse_end(tok);
    if (json_tokener_get_error(tok) != json_tokener_success)
        syntax_problem(tok, p);
    else if (!blank(text + end, len - end))
        problem_set(p, MF_E_MALFORMED, NULL, "text behind the JSON value, at byte %zu", end);
    else if (!json_object_is_type(o, json_type_object))
        problem_set(p, MF_E_MALFORMED, NULL, "a JSON object is needed");
    json_tokener_free(tok);
    if (p->status != MF_OK) {
        json_object_put(o);
        o = NULL;
    }
    *out = o;
    return p->status;
}

enum mf_status json_read_one(const char *text, size_t len, const char *want, char **out,
                             struct problem *p)
{
    struct json_object *o;
    struct json_object *v;

    *out = NULL;
    if (json_read_object(text, len, &o, p) != MF_OK)
        return p->status;
    json_object_object_foreach(o, key, value)
    {
        (void)value;
        if (strcmp(key, want) != 0)
            problem_set(p, MF_E_MALFORMED, key, "there is no member of this name");
    }
    if (p->status == MF_OK && !json_object_object_get_ex(o, want, &v))
        problem_set(p, MF_E_MALFORMED, want, "the member is missing");
    else if (p->status == MF_OK && !json_object_is_type(v, json_type_string))
        problem_set(p, MF_E_MALFORMED, want, "%s must be a string", want);
    else if (p->status == MF_OK &&
             strlen(json_object_get_string(v)) != (size_t)json_object_get_string_len(v))
        problem_set(p, MF_E_RANGE, want, "%s has a zero character", want);
    else if (p->status == MF_OK && (*out = strdup(json_object_get_string(v))) == NULL)
        problem_nomem(p);
    json_object_put(o);
    return p->status;
}
