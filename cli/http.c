#include "cli/http.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

void http_init(struct http *h)
{
    memset(h, 0, sizeof *h);
}

void http_reply_fini(struct http_reply *reply)
{
    free(reply->body);
    memset(reply, 0, sizeof *reply);
}

static bool reply_append(struct http *h, const char *bytes, size_t n)
{
    struct http_reply *r = h->reply;
    if (n > HTTP_BODY_MAX - r->size) {
        h->too_big = true;
        return false;
    }
    if (r->size + n + 1 > r->room) {
        size_t room = r->room ? r->room : 1024;
        char *body;
        while (room < r->size + n + 1)
            room *= 2;
        body = realloc(r->body, room);
        if (!body) {
            h->no_memory = true;
            return false;
        }
        r->body = body;
        r->room = room;
    }
    memcpy(r->body + r->size, bytes, n);
    r->size += n;
    r->body[r->size] = '\0';
    return true;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
    struct http *h = arg;
    long status = 0;
    n *= size;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (h->request->sink && status >= 200 && status < 300) {
        if (h->request->sink(h->request->sink_arg, bytes, n))
            return n;
        h->stopped = true;
        return 0;
    }
    return reply_append(h, bytes, n) ? n : 0;
}

static struct curl_slist *add_header(struct curl_slist *list, bool *good, const char *name,
                                     const char *value)
{
    char line[128];
    struct curl_slist *longer;
    snprintf(line, sizeof line, "%s: %s", name, value);
    longer = curl_slist_append(list, line);
    if (!longer)
        *good = false;
    return longer ? longer : list;
}

static struct curl_slist *headers_of(const struct http_request *q, bool *good)
{
    struct curl_slist *list = NULL;
    list = add_header(list, good, "Accept", q->accept ? q->accept : "application/json");
    if (q->body) {
        list = add_header(list, good, "Content-Type", q->type ? q->type : "application/json");
        list = add_header(list, good, "Expect", "");
    }
    return list;
}

/* Options that stay the same for every request of a handle. */
static bool handle_make(struct http *h)
{
    CURL *c;
    if (h->curl)
        return true;
    curl_global_init(CURL_GLOBAL_NOTHING);
    h->curl = c = curl_easy_init();
    if (!c)
        return false;
    curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, h->socket);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L); /* ".." is a wrong name, not a way up */
    curl_easy_setopt(c, CURLOPT_PROXY, "");      /* whatever the environment says */
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http");
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->error);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(c, CURLOPT_PRIVATE, NULL);
    return true;
}

static bool set_url(CURL *c, const char *path)
{
    static const char base[] = "http://localhost";
    size_t n = sizeof base + strlen(path);
    char *url = malloc(n);
    CURLcode code;
    if (!url)
        return false;
    snprintf(url, n, "%s%s", base, path);
    code = curl_easy_setopt(c, CURLOPT_URL, url);
    free(url);
    return code == CURLE_OK;
}

/* The header list of the last transfer hangs at the handle, since curl does not copy it. */
static void drop_headers(CURL *c)
{
    char *old = NULL;
    curl_easy_getinfo(c, CURLINFO_PRIVATE, &old);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, NULL);
    curl_easy_setopt(c, CURLOPT_PRIVATE, NULL);
    curl_slist_free_all((struct curl_slist *)(void *)old);
}

void http_fini(struct http *h)
{
    if (h->curl) {
        drop_headers(h->curl);
        curl_easy_cleanup(h->curl);
    }
    h->curl = NULL;
}

void *http_prepare(struct http *h, const struct http_request *q, struct http_reply *reply)
{
    struct curl_slist *headers;
    bool good = true;
    CURL *c;
    if (!handle_make(h) || !set_url(h->curl, q->path))
        return NULL;
    c = h->curl;
    drop_headers(c); /* a transfer that was given up was not finished */
    headers = headers_of(q, &good);
    h->request = q;
    h->reply = reply;
    h->stopped = h->too_big = h->no_memory = false;
    h->error[0] = '\0';
    reply->status = 0;
    reply->size = 0;
    reply->type[0] = '\0';
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_PRIVATE, headers);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, q->timeout_ms < 0 ? HTTP_TIMEOUT_MS : q->timeout_ms);
    /* A custom method stays until it is taken back; POST with a size of zero sends no body. */
    if (q->body || strcmp(q->method, "POST") == 0) {
        curl_easy_setopt(c, CURLOPT_POST, 1L);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->size);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, q->body ? q->body : "");
    } else {
        curl_easy_setopt(c, CURLOPT_HTTPGET, 1L);
    }
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, q->method);
    if (good)
        return c;
    drop_headers(c);
    return NULL;
}

static enum http_result connect_result(struct http *h)
{
    long error = 0;
    curl_easy_getinfo(h->curl, CURLINFO_OS_ERRNO, &error);
    return error == EACCES || error == EPERM ? HTTP_DENIED : HTTP_NO_DAEMON;
}

enum http_result http_finish(struct http *h, int curl_code)
{
    struct http_reply *r = h->reply;
    char *type = NULL;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &r->status);
    if (curl_easy_getinfo(h->curl, CURLINFO_CONTENT_TYPE, &type) == CURLE_OK && type)
        snprintf(r->type, sizeof r->type, "%s", type);
    drop_headers(h->curl);
    if (!r->body && !reply_append(h, "", 0))
        return HTTP_NO_MEMORY;
    r->body[r->size] = '\0';
    switch (curl_code) {
    case CURLE_OK:
        return HTTP_OK;
    case CURLE_COULDNT_CONNECT:
        return connect_result(h);
    case CURLE_OPERATION_TIMEDOUT:
        return HTTP_TIMED_OUT;
    case CURLE_OUT_OF_MEMORY:
        return HTTP_NO_MEMORY;
    case CURLE_WRITE_ERROR:
        return h->too_big ? HTTP_TOO_BIG : h->no_memory ? HTTP_NO_MEMORY : HTTP_STOPPED;
    default:
        return HTTP_LOST;
    }
}

enum http_result http_perform(struct http *h, const struct http_request *q,
                              struct http_reply *reply)
{
    CURL *c = http_prepare(h, q, reply);
    if (!c)
        return HTTP_NO_MEMORY;
    return http_finish(h, (int)curl_easy_perform(c));
}
