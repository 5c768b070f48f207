/*
 * The core's log: one line each, `<ISO time> <level> <text>`, to stderr or a file. Any thread.
 */
#ifndef MAYFLY_HOST_LOG_H
#define MAYFLY_HOST_LOG_H

#include <stdbool.h>

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

/* Appends to `path` from here on. False (errno is set) when it cannot be opened. */
bool log_open(const char *path);
/* Lines above this level are dropped. The start value is LOG_INFO. */
void log_set_level(enum log_level max);
/*
 * `hook` gets each line of level warning and error, without time and level, on the thread that
 * logs; it must not log. NULL takes it away.
 */
void log_set_hook(void (*hook)(void *arg, enum log_level level, const char *text), void *arg);
__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *fmt, ...);

#endif
