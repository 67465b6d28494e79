/* SPDX-License-Identifier: Apache-2.0
 *
 * credential_process: a program that writes keys to standard output.  The program runs in a
 * separate process group, so that a kill reaches the program's children too. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/spawn.h"
#include "tier/s3/credentials/private.h"

#define MAX_OUTPUT ((size_t)64 << 10)
#define MAX_ERROR_TEXT 120
/* Time between checks for the program's end: a child of the program may keep a pipe open. */
#define POLL_MS 20

struct running {
    pid_t pid;
    int64_t deadline_ns;
    struct pollfd pipe[2]; /* standard output and standard error; fd -1: at end of file */
    size_t n;
    char *output;          /* MAX_OUTPUT + 1 bytes */
    size_t n_error_text;
    char error_text[MAX_ERROR_TEXT + 1];
};

/* ---------------------------------------------------------------------- start */

/* Make a pipe whose read end does not block.  O_NONBLOCK belongs to the open file of one end, so
 * the program's end stays blocking. */
static int
open_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) < 0)
        return errno;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return 0;
}

static int
start(struct running *run, char *const *words, const char *const *environment)
{
    int out[2], errors[2];
    int err = open_pipe(out);

    if (err)
        return kvt__fail(err, "credential_process: pipe");
    if ((err = open_pipe(errors))) {
        close(out[0]);
        close(out[1]);
        return kvt__fail(err, "credential_process: pipe");
    }
    err = kvt__spawn(words, environment, out[1], errors[1], &run->pid);
    close(out[1]);
    close(errors[1]);
    run->pipe[0] = (struct pollfd){ out[0], POLLIN, 0 };
    run->pipe[1] = (struct pollfd){ errors[0], POLLIN, 0 };
    return err ? kvt__fail(err, "credential_process: start %s", words[0]) : 0;
}

/* ------------------------------------------------------------------------ run */

/* Read a pipe to `at`, up to `room` bytes in total.  Return false if the pipe had more bytes; some
 * of these bytes are lost. */
static bool
read_pipe(struct pollfd *from, char *at, size_t room, size_t *n)
{
    char rest[4096];

    while (from->fd >= 0) {
        bool keep = *n < room;
        ssize_t got = read(from->fd, keep ? at + *n : rest,
                           keep ? room - *n : sizeof rest);

        if (got > 0 && !keep) {
            explicit_bzero(rest, (size_t)got);
            return false;
        }
        if (got > 0)
            *n += (size_t)got;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            break;
        if (got <= 0) {
            close(from->fd);
            from->fd = -1;
        }
    }
    return true;
}

/* Read both pipes.  Return false if the output exceeds the limit; excess error text is ignored. */
static bool
read_pipes(struct running *run)
{
    read_pipe(&run->pipe[1], run->error_text, MAX_ERROR_TEXT, &run->n_error_text);
    return read_pipe(&run->pipe[0], run->output, MAX_OUTPUT, &run->n);
}

/* Return true if the program has ended.  If another part of the process has reaped the program, the
 * exit status is lost: assume success. */
static bool
is_reaped(const struct running *run, int *status)
{
    pid_t got = waitpid(run->pid, status, WNOHANG);

    if (got < 0 && errno == ECHILD)
        *status = 0;
    return got == run->pid || (got < 0 && errno == ECHILD);
}

static void
kill_group(const struct running *run)
{
    kill(-run->pid, SIGKILL);
    while (waitpid(run->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
}

static int
check_status(struct running *run, int status)
{
    run->error_text[run->n_error_text] = '\0';
    kvt__s3_make_printable(run->error_text);
    const char *colon = *run->error_text ? ": " : "";

    if (WIFSIGNALED(status))
        return kvt__fail(EIO, "credential_process was ended by signal %d%s%s.",
                         WTERMSIG(status), colon, run->error_text);
    if (WEXITSTATUS(status))
        return kvt__fail(EIO, "credential_process exited with %d%s%s.",
                         WEXITSTATUS(status), colon, run->error_text);
    return 0;
}

/* Wait for the program's end.  Kill the program at the limit of output or time, and when *stop is
 * set. */
static int
wait_for_end(struct running *run, int64_t timeout_ms, const atomic_bool *stop)
{
    int status;

    for (;;) {
        poll(run->pipe, 2, POLL_MS);
        bool ended = is_reaped(run, &status);

        if (!read_pipes(run)) {
            if (!ended)
                kill_group(run);
            return kvt__fail(EMSGSIZE, "credential_process wrote more than %zu KiB.",
                             MAX_OUTPUT >> 10);
        }
        if (ended)
            return check_status(run, status);
        if (kvt__s3_is_stopped(stop)) {
            kill_group(run);
            return kvt__fail(ECANCELED, "credential_process was killed: the store is being "
                             "closed.");
        }
        if (kvt__now_ns() >= run->deadline_ns) {
            kill_group(run);
            return kvt__fail(ETIMEDOUT, "credential_process took longer than %g s.",
                             (double)timeout_ms / 1000);
        }
    }
}

int
kvt__s3_run_process(const char *command, const char *const *environment,
                    int64_t timeout_ms, const atomic_bool *stop, char **out,
                    size_t *n)
{
    struct running run = { .deadline_ns = kvt__now_ns() + timeout_ms * KVT__NS_PER_MS,
                           .pipe = { { .fd = -1 }, { .fd = -1 } } };
    char **words;
    int err = kvt__s3_split_words(command, &words);

    if (err)
        return kvt__fail(-err, err == -EINVAL   ? "credential_process: a quote is open."
                               : err == -ENOENT ? "credential_process is empty."
                                                : "credential_process");
    if (!(run.output = calloc(1, MAX_OUTPUT + 1))) {
        free(words);
        return kvt__fail(ENOMEM, "credential_process");
    }
    if (!(err = start(&run, words, environment)))
        err = wait_for_end(&run, timeout_ms, stop);
    free(words);
    for (int i = 0; i < 2; i++)
        if (run.pipe[i].fd >= 0)
            close(run.pipe[i].fd);
    if (err) {
        explicit_bzero(run.output, run.n);
        free(run.output);
        return err;
    }
    *out = run.output;
    *n = run.n;
    return 0;
}
