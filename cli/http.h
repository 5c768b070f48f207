/* HTTP over a Unix socket: one handle, one kept-alive connection. */
#ifndef MAYFLY_CLI_HTTP_H
#define MAYFLY_CLI_HTTP_H

#include <stdbool.h>
#include <stddef.h>

#define HTTP_SOCKET_MAX 108u        /* of a Unix socket's path, with the zero */
#define HTTP_BODY_MAX   (1u << 28u) /* bytes of an answer that we keep */
#define HTTP_TIMEOUT_MS 120000L

enum http_result {
    HTTP_OK,
    HTTP_NO_DAEMON, /* nobody listens on the socket */
    HTTP_DENIED,    /* somebody does, but not for us */
    HTTP_LOST,      /* the connection broke, or the answer is no HTTP */
    HTTP_TIMED_OUT,
    HTTP_STOPPED, /* by the sink */
    HTTP_TOO_BIG,
    HTTP_NO_MEMORY,
};

/* Takes bytes as they come; false stops the transfer. */
typedef bool (*http_sink)(void *arg, const char *bytes, size_t n);

struct http_request {
    const char *method;
    const char *path;   /* encoded, with its query */
    const char *type;   /* of the body */
    const char *accept; /* NULL: JSON */
    const void *body;   /* NULL: none */
    size_t size;
    long timeout_ms; /* 0: none, -1: HTTP_TIMEOUT_MS */
    http_sink sink;  /* NULL: the whole answer goes into the reply */
    void *sink_arg;
};

struct http_reply {
    long status;
    char *body; /* zero-terminated, owned; also an error's when there is a sink */
    size_t size, room;
    char type[64];
};

struct http {
    void *curl; /* CURL *, made by the first request */
    char socket[HTTP_SOCKET_MAX];
    char error[256];
    struct http_reply *reply; /* of the transfer under way */
    const struct http_request *request;
    bool stopped, too_big, no_memory;
};

void http_init(struct http *h);
void http_fini(struct http *h);
enum http_result http_perform(struct http *h, const struct http_request *request,
                              struct http_reply *reply);
/*
 * For a transfer that the caller drives by a multi handle: sets the handle up (CURL * or NULL).
 * The request must stay until http_finish, which judges curl's result code.
 */
void *http_prepare(struct http *h, const struct http_request *request, struct http_reply *reply);
enum http_result http_finish(struct http *h, int curl_code);
void http_reply_fini(struct http_reply *reply);

#endif
