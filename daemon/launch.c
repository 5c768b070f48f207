#include "daemon/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/hvd.h"
#include "daemon/log.h"
#include "daemon/paths.h"
#include "daemon/setup.h"

struct core_process {
    uv_process_t process;
    struct core *core; /* NULL: forgotten */
    int log_fd;
    off_t log_from; /* where this process's lines begin */
};

/* The last line that the process wrote to its log, "" when there is none. */
static void last_line(const struct core_process *l, char *out, size_t size)
{
    char text[1024];
    off_t end = lseek(l->log_fd, 0, SEEK_END);
    off_t from =
        end - l->log_from > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : l->log_from;
    ssize_t n = pread(l->log_fd, text, sizeof text - 1, from);

    out[0] = '\0';
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    if (n <= 0)
        return;
    text[n] = '\0';
    const char *line = strrchr(text, '\n');
    line = line == NULL ? text : line + 1;
    /* Without time and level, which would only stand in the way. */
    const char *words = strchr(line, ' ');
    words = words == NULL ? NULL : strchr(words + 1, ' ');
    snprintf(out, size, "%.*s", (int)size - 1, words == NULL ? line : words + 1);
}

static void describe(const struct core_process *l, int64_t status, int sig, char *out, size_t size)
{
    char line[160];

    last_line(l, line, sizeof line);
    if (sig != 0)
        snprintf(out, size, "the core was killed by signal %d", sig);
    else
        snprintf(out, size, "the core ended with status %" PRId64 "%s%s", status,
                 line[0] != '\0' ? ": " : "", line);
}

static void on_closed(uv_handle_t *h)
{
    struct core_process *l = h->data;

    close(l->log_fd);
    free(l);
}

static void on_exit_process(uv_process_t *p, int64_t status, int sig)
{
    struct core_process *l = p->data;
    char how[256];

    if (l->core != NULL) {
        describe(l, status, sig, how, sizeof how);
        core_process_ended(l->core, how);
    }
    uv_close((uv_handle_t *)p, on_closed);
}

bool launch_wait(struct core_process *l, char *how, size_t size)
{
    siginfo_t info = {0};

    if (waitid(P_PID, (id_t)l->process.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
        return false;
    bool exited = info.si_code == CLD_EXITED;
    describe(l, exited ? info.si_status : 0, exited ? 0 : info.si_status, how, size);
    return true;
}

void launch_forget(struct core_process *l)
{
    l->core = NULL;
    if (!uv_is_closing((uv_handle_t *)&l->process))
        uv_close((uv_handle_t *)&l->process, on_closed);
}

static int spawn(struct core_process *l, const char *file)
{
    struct core *c = l->core;
    char memory[32];
    uv_stdio_container_t io[3] = {{.flags = UV_IGNORE},
                                  {.flags = UV_INHERIT_FD, .data.fd = l->log_fd},
                                  {.flags = UV_INHERIT_FD, .data.fd = l->log_fd}};
    char *args[] = {(char *)(uintptr_t)file,
                    (char *)(uintptr_t) "--socket",
                    (char *)(uintptr_t)c->cfg.socket,
                    (char *)(uintptr_t) "--memory",
                    memory,
                    c->cfg.engine != NULL ? (char *)(uintptr_t) "--engine" : NULL,
                    (char *)(uintptr_t)c->cfg.engine,
                    NULL};
    uv_process_options_t o = {.exit_cb = on_exit_process,
                              .file = file,
                              .args = args,
                              .flags = UV_PROCESS_DETACHED,
                              .stdio_count = 3,
                              .stdio = io};

    snprintf(memory, sizeof memory, "%" PRIu64, c->cfg.memory);
    return uv_spawn(c->link.loop, &l->process, &o);
}

struct core_process *launch_start(struct core *c, struct problem *p)
{
    char *file = path_program("hv", "MAYFLY_HV", "../hv");
    struct core_process *l = file == NULL ? NULL : calloc(1, sizeof *l);

    if (l == NULL) {
        if (file == NULL)
            problem_set(p, MF_E_UNAVAILABLE, NULL, "the core's program hv is not found");
        else
            problem_nomem(p);
        free(file);
        return NULL;
    }
    l->core = c;
    l->process.data = l;
    l->log_fd = open(c->cfg.log_file, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->log_fd < 0) {
        problem_set(p, MF_E_IO, NULL, "%s cannot be opened: %s", c->cfg.log_file, strerror(errno));
        free(file);
        free(l);
        return NULL;
    }
    l->log_from = lseek(l->log_fd, 0, SEEK_END);
    int r = spawn(l, file);
    if (r != 0) {
        problem_set(p, MF_E_UNAVAILABLE, NULL, "%s cannot be started: %s", file, uv_strerror(r));
        uv_close((uv_handle_t *)&l->process, on_closed);
        l = NULL;
    } else {
        log_line(LOG_INFO, "core: started %s, process %d", file, l->process.pid);
        uv_unref((uv_handle_t *)&l->process);
    }
    free(file);
    return l;
}
