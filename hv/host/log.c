#include "hv/host/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int log_fd = STDERR_FILENO;
static _Atomic int log_max = LOG_INFO;

static pthread_mutex_t hook_lock = PTHREAD_MUTEX_INITIALIZER;
/* under hook_lock */
static void (*hook_fn)(void *arg, enum log_level level, const char *text);
static void *hook_arg;

bool log_open(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return false;
    fd = atomic_exchange(&log_fd, fd);
    if (fd > STDERR_FILENO)
        close(fd);
    return true;
}

void log_set_level(enum log_level max)
{
    atomic_store(&log_max, (int)max);
}

void log_set_hook(void (*hook)(void *arg, enum log_level level, const char *text), void *arg)
{
    pthread_mutex_lock(&hook_lock);
    hook_fn = hook;
    hook_arg = arg;
    pthread_mutex_unlock(&hook_lock);
}

/* Control characters of a guest or a client must not forge lines or move a terminal's cursor. */
static void make_printable(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

void log_line(enum log_level level, const char *fmt, ...)
{
    static const char *const words[] = {"error", "warning", "info", "debug"};
    char text[768], line[832];
    struct timespec now;
    struct tm tm;
    va_list ap;

    if ((int)level > atomic_load_explicit(&log_max, memory_order_relaxed))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    make_printable(text);
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    int n = snprintf(line, sizeof line, "%04d-%02d-%02dT%02d:%02d:%02d.%06ldZ %s %s\n",
                     tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                     now.tv_nsec / 1000, words[level], text);
    if (n > 0 && (size_t)n < sizeof line && write(atomic_load(&log_fd), line, (size_t)n) < 0) {
        /* nowhere to say it */
    }
    if (level > LOG_WARNING)
        return;
    pthread_mutex_lock(&hook_lock);
    if (hook_fn)
        hook_fn(hook_arg, level, text);
    pthread_mutex_unlock(&hook_lock);
}
