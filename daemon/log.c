#include "daemon/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

static enum log_level least = LOG_INFO;

void log_level(enum log_level level)
{
    least = level;
}

void log_time(char text[LOG_TIME_TEXT])
{
    struct timespec t;
    struct tm tm;
    char day[24];

    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text, LOG_TIME_TEXT, "%s.%03ldZ", day, t.tv_nsec / 1000000 % 1000);
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const words[] = {"debug", "info", "warning", "error"};
    char time_text[LOG_TIME_TEXT];
    char line[512];
    va_list ap;

    if (level < least)
        return;
    log_time(time_text);
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    /* What others wrote stays on its line. */
    for (char *s = line; *s != '\0'; s++)
        if ((unsigned char)*s < 0x20)
            *s = ' ';
    fprintf(stderr, "%s %s %s\n", time_text, words[level], line);
}
