/* Log lines on stderr: `<ISO time> <level> <text>`. */
#ifndef MAYFLY_DAEMON_LOG_H
#define MAYFLY_DAEMON_LOG_H

#include <stddef.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* Lines below `level` are not written. */
void log_level(enum log_level level);
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Now, as RFC 3339 has it, UTC, with milliseconds. */
#define LOG_TIME_TEXT 32
void log_time(char text[LOG_TIME_TEXT]);

#endif
