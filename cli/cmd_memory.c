/* Memory of a live VM, and the host's frames. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/hvctl.h"

#define PIECE (UINT64_C(1) << 30) /* of a range: what one request takes */

/* "4M", "0x400000", "4194304"; hexadecimal without a unit. */
static bool parse_bytes(const char *text, uint64_t *v)
{
    static const char units[] = "KMGT";
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *s = hex ? text + 2 : text;
    uint64_t n = 0, base = hex ? 16 : 10;
    size_t digits = strspn(s, hex ? "0123456789abcdefABCDEF" : "0123456789");

    if (!digits)
        return false;
    for (size_t i = 0; i < digits; i++) {
        char c = s[i];
        uint64_t d = (uint64_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);

        if (n > (UINT64_MAX - d) / base)
            return false;
        n = n * base + d;
    }
    s += digits;
    if (*s) {
        const char *unit = hex ? NULL : strchr(units, *s);
        unsigned shift = unit ? 10u * (unsigned)(unit - units + 1) : 0;

        if (!unit || n > UINT64_MAX >> shift || (s[1] && strcmp(s + 1, "iB") != 0))
            return false;
        n <<= shift;
    }
    *v = n;
    return true;
}

/* Arguments 2 and 3 of a command: a range. False after a message. */
static bool range_args(struct cli *cli, uint64_t *address, uint64_t *size)
{
    if (!parse_bytes(cli->args[2], address)) {
        cli_usage(cli, "'%s' is no address: bytes, with K, M, G or T, or 0x...", cli->args[2]);
        return false;
    }
    if (!parse_bytes(cli->args[3], size)) {
        cli_usage(cli, "'%s' is no size: bytes, with K, M, G or T, or 0x...", cli->args[3]);
        return false;
    }
    if (*size > UINT64_MAX - *address) {
        cli_usage(cli, "address and size go beyond 2^64");
        return false;
    }
    return true;
}

static struct json_object *range_body(uint64_t address, uint64_t size)
{
    struct json_object *o = json_object_new_object();

    json_object_object_add(o, "address", json_object_new_uint64(address));
    json_object_object_add(o, "size", json_object_new_uint64(size));
    return o;
}

/* ---- balloon */

struct balloon {
    uint64_t frames, tables, splits, ns;
};

static enum cli_exit balloon_piece(struct cli *cli, const char *path, uint64_t address,
                                   uint64_t size, struct balloon *sum)
{
    struct json_object *body = range_body(address, size), *o = NULL;
    enum cli_exit code;

    json_object_object_add(body, "op", json_object_new_string(cli->args[0]));
    code = api_call(cli, "POST", path, body, &o);
    json_object_put(body);
    if (!code) {
        sum->frames += member_u64(o, "frames");
        sum->tables += member_u64(o, "tables");
        sum->splits += member_u64(o, "splits");
        sum->ns += member_u64(o, "total_ns");
    }
    if (!code && cli->json)
        api_print_json(cli);
    json_object_put(o);
    return code;
}

enum cli_exit cmd_balloon(struct cli *cli)
{
    bool give = strcmp(cli->args[0], "give") == 0;
    char bytes[UNIT_SIZE], ns[UNIT_SIZE];
    uint64_t address, size, done = 0;
    enum cli_exit code = CLI_OK;
    struct balloon sum = {0};
    char *path;

    if (!give && strcmp(cli->args[0], "take") != 0)
        return cli_usage(cli, "balloon takes 'give' or 'take', not '%s'", cli->args[0]);
    if (!range_args(cli, &address, &size))
        return CLI_USAGE;
    path = api_vm_path(cli->args[1], "/balloon");
    do {
        uint64_t n = size - done < PIECE ? size - done : PIECE;

        code = path ? balloon_piece(cli, path, address + done, n, &sum) : CLI_INTERNAL;
        done += n;
    } while (!code && done < size);
    free(path);
    if (cli->json || (code && !sum.frames))
        return code;
    printf("%s %s in %s: %llu frames, %llu tables, %llu splits\n", give ? "gave back" : "took",
           unit_bytes(sum.frames * 4096, bytes), unit_ns(sum.ns, ns),
           (unsigned long long)sum.frames, (unsigned long long)sum.tables,
           (unsigned long long)sum.splits);
    return code;
}

/* ---- dirty */

static void print_ranges(struct json_object *list)
{
    for (size_t i = 0; i < array_length(list); i++) {
        struct json_object *r = json_object_array_get_idx(list, i);

        printf("0x%llx 0x%llx\n",
               (unsigned long long)json_object_get_uint64(json_object_array_get_idx(r, 0)),
               (unsigned long long)json_object_get_uint64(json_object_array_get_idx(r, 1)));
    }
}

static enum cli_exit dirty_fetch(struct cli *cli, const char *path)
{
    uint64_t address, size, done = 0;
    enum cli_exit code = CLI_OK;

    if (!range_args(cli, &address, &size))
        return CLI_USAGE;
    do {
        uint64_t n = size - done < PIECE ? size - done : PIECE;
        struct json_object *body = range_body(address + done, n), *o = NULL;

        code = api_call(cli, "POST", path, body, &o);
        json_object_put(body);
        if (!code && cli->json)
            api_print_json(cli);
        else if (!code)
            print_ranges(member(o, "ranges"));
        json_object_put(o);
        done += n;
    } while (!code && done < size);
    return code;
}

enum cli_exit cmd_dirty(struct cli *cli)
{
    const char *what = cli->args[0];
    bool fetch = strcmp(what, "fetch") == 0, start = strcmp(what, "start") == 0;
    enum cli_exit code;
    char *path;

    if (!fetch && !start && strcmp(what, "stop") != 0)
        return cli_usage(cli, "dirty takes 'start', 'stop' or 'fetch', not '%s'", what);
    if (cli->nr_args != (fetch ? 4u : 2u))
        return cli_usage(cli, "dirty %s takes a VM%s", what,
                         fetch ? ", an address and a size" : "");
    path = api_vm_path(cli->args[1], "/dirty");
    if (!path)
        return CLI_INTERNAL;
    code =
        fetch ? dirty_fetch(cli, path) : api_call(cli, start ? "PUT" : "DELETE", path, NULL, NULL);
    free(path);
    return code;
}

/* ---- heap */

static enum cli_exit heap_frames(struct cli *cli)
{
    bool offline = strcmp(cli->args[0], "offline") == 0;
    struct json_object *body, *o = NULL;
    uint64_t first, frames;
    enum cli_exit code;

    if (cli->nr_args != 3 || !parse_number(cli->args[1], UINT64_MAX, &first) ||
        !parse_number(cli->args[2], UINT64_MAX, &frames))
        return cli_usage(cli, "heap %s takes the first frame and how many", cli->args[0]);
    body = json_object_new_object();
    json_object_object_add(body, "first", json_object_new_uint64(first));
    json_object_object_add(body, "frames", json_object_new_uint64(frames));
    code =
        api_call(cli, "POST", offline ? "/v1/host/heap/offline" : "/v1/host/heap/online", body, &o);
    json_object_put(body);
    if (!code && cli->json)
        api_print_json(cli);
    else if (!code)
        printf("%llu frames are %s now, %llu %s, %llu were already\n",
               (unsigned long long)member_u64(o, "changed"), offline ? "out of use" : "in use",
               (unsigned long long)member_u64(o, "waiting"),
               offline ? "go when they are freed" : "stay where they are",
               (unsigned long long)member_u64(o, "already"));
    json_object_put(o);
    return code;
}

static enum cli_exit heap_scrub(struct cli *cli)
{
    struct json_object *body;
    enum cli_exit code;

    if (cli->nr_args != 2)
        return cli_usage(cli, "heap scrub takes background, free or alloc");
    body = json_object_new_object();
    json_object_object_add(body, "policy", json_object_new_string(cli->args[1]));
    code = api_call(cli, "PUT", "/v1/host/heap/scrub", body, NULL);
    json_object_put(body);
    return code;
}

enum cli_exit cmd_heap_change(struct cli *cli)
{
    const char *what = cli->args[0];

    if (strcmp(what, "scrub") == 0)
        return heap_scrub(cli);
    if (strcmp(what, "offline") == 0 || strcmp(what, "online") == 0)
        return heap_frames(cli);
    return cli_usage(cli, "heap takes audit, scrub, offline, online or nothing, not '%s'", what);
}
