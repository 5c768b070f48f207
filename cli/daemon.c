/* Where the daemon, its socket and our guests are, and how the daemon is started. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/hvctl.h"

#define START_WAIT_MS  20000
#define LOSER_WAIT_MS  5000 /* another start won the race: its daemon gets so long */
#define START_STEP_MS  2
#define LOG_TAIL_BYTES 512

static bool fits(int n, size_t size)
{
    return n >= 0 && (size_t)n < size;
}

bool daemon_runtime_dir(char *path, size_t size)
{
    const char *dir = getenv("MAYFLY_RUNTIME_DIR"), *xdg = getenv("XDG_RUNTIME_DIR");
    uid_t uid = getuid();
    bool shared = false;
    struct stat st;
    int n;
    if (dir && *dir)
        n = snprintf(path, size, "%s", dir);
    else if (uid == 0)
        n = snprintf(path, size, "/run/mayfly");
    else if (xdg && *xdg)
        n = snprintf(path, size, "%s/mayfly", xdg);
    else {
        n = snprintf(path, size, "/tmp/mayfly-%u", (unsigned)uid);
        shared = true;
    }
    if (!fits(n, size)) {
        cli_error(
            "the runtime directory's name is too long; set MAYFLY_RUNTIME_DIR to a short one");
        return false;
    }
    /* Below a directory that others may write into, ours could be somebody else's. */
    if (shared && lstat(path, &st) == 0 &&
        (!S_ISDIR(st.st_mode) || st.st_uid != uid || st.st_mode & 022)) {
        cli_error("%s is not a directory that only you can write to; set MAYFLY_RUNTIME_DIR", path);
        return false;
    }
    return true;
}

/* The directory of this program, without a slash at its end. */
static bool own_dir(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    char *slash;
    if (n <= 0)
        return false;
    path[n] = '\0';
    slash = strrchr(path, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

void program_path(const char *name, const char *env, const char *near, char *path, size_t size)
{
    const char *const places[] = {".", near};
    const char *given = getenv(env);
    char dir[4096];
    if (given && *given) {
        snprintf(path, size, "%s", given);
        return;
    }
    if (own_dir(dir, sizeof dir))
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
            if (fits(snprintf(path, size, "%s/%s/%s", dir, places[i], name), size) &&
                is_program(path))
                return;
    snprintf(path, size, "%s", name);
}

bool guest_path(const char *file, char *path, size_t size)
{
    static const char *const places[] = {"../tests/guests", "../share/mayfly/guests"};
    const char *given = getenv("MAYFLY_GUESTS");
    char dir[4096];
    if (given && *given) {
        if (fits(snprintf(path, size, "%s/%s", given, file), size) && access(path, R_OK) == 0)
            return true;
        cli_error("%s is not in MAYFLY_GUESTS (%s)", file, given);
        return false;
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0] && own_dir(dir, sizeof dir); i++)
        if (fits(snprintf(path, size, "%s/%s/%s", dir, places[i], file), size) &&
            access(path, R_OK) == 0)
            return true;
    if (fits(snprintf(path, size, "%s/%s", MAYFLY_GUESTS_DIR, file), size) &&
        access(path, R_OK) == 0)
        return true;
    cli_error("the guest %s is neither beside this program nor in %s; set MAYFLY_GUESTS", file,
              MAYFLY_GUESTS_DIR);
    return false;
}

bool daemon_answers(const char *socket_path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 10};
    bool good;
    if (fd < 0)
        return false;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s", socket_path);
    good = connect(fd, (const struct sockaddr *)&addr, sizeof addr) == 0;
    close(fd);
    return good;
}

/* In the child: a session of its own, nothing of ours open, messages into the log. */
static void become_daemon(const char *program, const char *log, int error_fd)
{
    int null = open("/dev/null", O_RDWR);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setsid();
    if (null >= 0 && out >= 0 && dup2(null, 0) >= 0 && dup2(out, 1) >= 0 && dup2(out, 2) >= 0 &&
        chdir("/") == 0) {
        if (error_fd > 3)
            close_range(3, (unsigned)error_fd - 1, 0);
        close_range((unsigned)error_fd + 1, ~0u, 0);
        execlp(program, "hvd", (char *)NULL);
    }
    {
        int error = errno;
        if (write(error_fd, &error, sizeof error) < 0)
            _exit(126);
    }
    _exit(127);
}

/* Forks and executes; the process, or -1 after a message. */
static pid_t spawn(const char *program, const char *log)
{
    int fds[2], error = 0;
    ssize_t n;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) < 0) {
        cli_error("cannot start hvd: %s", strerror(errno));
        return -1;
    }
    pid = fork();
    if (pid == 0)
        become_daemon(program, log, fds[1]);
    close(fds[1]);
    n = pid < 0 ? 0 : read(fds[0], &error, sizeof error);
    close(fds[0]);
    if (pid < 0 || n == (ssize_t)sizeof error) {
        cli_error("cannot start %s: %s; set MAYFLY_HVD to the daemon's path", program,
                  strerror(pid < 0 ? errno : error));
        if (pid > 0)
            waitpid(pid, NULL, 0);
        return -1;
    }
    return pid;
}

static uint64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* The last line of the daemon's log, for a message. */
static void last_words(const char *log)
{
    char text[LOG_TAIL_BYTES + 1], *line;
    FILE *f = fopen(log, "re");
    size_t n;
    if (!f)
        return;
    if (fseek(f, -LOG_TAIL_BYTES, SEEK_END) != 0)
        rewind(f);
    n = fread(text, 1, LOG_TAIL_BYTES, f);
    fclose(f);
    while (n && text[n - 1] == '\n')
        n--;
    text[n] = '\0';
    line = strrchr(text, '\n');
    if (n)
        cli_note("its last words: %s", line ? line + 1 : text);
}

static enum cli_exit wait_ready(pid_t pid, const char *socket_path, const char *log)
{
    uint64_t end = now_ms() + START_WAIT_MS;
    bool gone = false;
    int status = 0;
    while (!daemon_answers(socket_path)) {
        struct timespec step = {0, START_STEP_MS * 1000000L};
        uint64_t now = now_ms();
        if (!gone && waitpid(pid, &status, WNOHANG) == pid) {
            gone = true;
            if (end > now + LOSER_WAIT_MS)
                end = now + LOSER_WAIT_MS;
        }
        if (now >= end) {
            if (gone)
                cli_error("hvd was started and ended again (status %d); see %s",
                          WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), log);
            else
                cli_error("hvd was started but does not answer on %s after %d s; see %s",
                          socket_path, START_WAIT_MS / 1000, log);
            last_words(log);
            return CLI_UNAVAILABLE;
        }
        nanosleep(&step, NULL);
    }
    return CLI_OK;
}

enum cli_exit daemon_start(const char *socket_path)
{
    char program[4096 + 32], dir[HTTP_SOCKET_MAX], log[HTTP_SOCKET_MAX + 16];
    pid_t pid;
    if (!daemon_runtime_dir(dir, sizeof dir))
        return CLI_UNAVAILABLE;
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        cli_error("cannot make the runtime directory %s: %s", dir, strerror(errno));
        return CLI_UNAVAILABLE;
    }
    snprintf(log, sizeof log, "%s/hvd.log", dir);
    program_path("hvd", "MAYFLY_HVD", "../daemon", program, sizeof program);
    pid = spawn(program, log);
    if (pid < 0)
        return CLI_UNAVAILABLE;
    return wait_ready(pid, socket_path, log);
}
