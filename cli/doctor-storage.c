/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier doctor: check the requirements of storage in a child process.  A hung file system daemon
 * blocks each process that calls the file system, and no signal ends a blocked process.  A vendor's
 * library may end the process.  So a child process runs the checks, and the doctor stops waiting if
 * the child reports nothing for PATIENCE_MS. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"
#include "doctor.h"

#define NO_STORAGE 2 /* exit code of the child if the configuration has no storage */
#define PATIENCE_MS 15000 /* longer than the 10 s of kvtier-gds-probe */

/* ------------------------------------------------------------------- the child */

static void
send_finding(void *ctx, const char *about, int status, const char *text)
{
    json_t *finding = json_pack("{s:s, s:i, s:o}", "about", about, "status", status,
                                "text", cli_json_text(text));

    json_dumpf(finding, ctx, JSON_COMPACT);
    fprintf(ctx, "\n");
    fflush(ctx);
    json_decref(finding);
}

/* Start the child.  *from: the end of a pipe that the caller reads and closes; the child writes
 * each finding as a line of JSON.  Return the child's pid, or -1 with errno set. */
static pid_t
start_child(const struct kvt_config *config, int *from)
{
    int ends[2];

    if (pipe(ends))
        return -1;
    pid_t pid = fork();
    if (!pid) {
        FILE *to = fdopen(ends[1], "w");

        int err = to ? kvt_store_look(config, send_finding, to) : -errno;
        _exit(err == -ENOENT ? NO_STORAGE : err != 0);
    }
    close(ends[1]);
    *from = ends[0];
    if (pid < 0)
        close(ends[0]);
    return pid;
}

/* ------------------------------------------------------------ findings */

/* Handle a finding that the child has reported.  A finding with a status above 0 becomes *pending;
 * every finding replaces the previous *pending. */
static void
handle_finding(struct findings *f, json_t **pending, const char *line, size_t n)
{
    json_t *finding = json_loadb(line, n, 0, NULL);
    const char *about, *text;
    int status;

    json_decref(*pending);
    *pending = NULL;
    if (json_unpack(finding, "{s:s, s:i, s:s}", "about", &about, "status", &status, "text",
                    &text)) {
        json_decref(finding);
    } else if (status > 0) {
        *pending = finding;
    } else {
        add_storage_finding(f, about, status != 0, text);
        json_decref(finding);
    }
}

/* Read findings.  Return true when the child closes the pipe, or false if the child reports nothing
 * for PATIENCE_MS.  *pending: the last finding if the finding announces a check that may block or
 * end the process; else NULL.  The caller releases *pending. */
static bool
read_findings(struct findings *f, int from, json_t **pending)
{
    char buffer[8192];
    size_t used = 0;

    for (;;) {
        struct pollfd p = { .fd = from, .events = POLLIN };
        int ready = poll(&p, 1, PATIENCE_MS);

        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t n = ready > 0 ? read(from, buffer + used, sizeof buffer - used) : -1;
        if (n <= 0)
            return !n;
        used += (size_t)n;
        for (char *end; (end = memchr(buffer, '\n', used));) {
            size_t line = (size_t)(end - buffer) + 1;

            handle_finding(f, pending, buffer, line);
            used -= line;
            memmove(buffer, end + 1, used);
        }
        if (used == sizeof buffer)
            used = 0;
    }
}

/* ----------------------------------------------------------------- the check */

/* Report a check that has not returned.  event: the event. */
static void
add_pending(struct findings *f, json_t *pending, const char *event)
{
    const char *about = json_string_value(json_object_get(pending, "about"));
    const char *text = json_string_value(json_object_get(pending, "text"));

    if (pending)
        add_finding(f, BAD, about, "%s (%s)", text, event);
    else
        add_finding(f, BAD, "storage", "%s", event);
}

bool
doctor_storage(struct findings *f, const struct kvt_config *config)
{
    int from, status = 0, n_bad = f->n_bad;
    json_t *pending = NULL;
    pid_t pid = start_child(config, &from);
    char event[96];

    if (pid < 0) {
        add_finding(f, BAD, "storage", "the process of the checks was not started: %s",
                    strerror(errno));
        return false;
    }
    bool ended = read_findings(f, from, &pending);
    close(from);
    print_gpu_findings(f);
    if (!ended) {
        kill(pid, SIGKILL); /* a blocked child does not end: do not wait */
        snprintf(event, sizeof event, "no result for %d seconds", PATIENCE_MS / 1000);
        add_pending(f, pending, event);
    } else {
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
        if (WIFSIGNALED(status)) {
            snprintf(event, sizeof event, "the check ended the process (%s)",
                     strsignal(WTERMSIG(status)));
            add_pending(f, pending, event);
        }
        f->no_storage = WIFEXITED(status) && WEXITSTATUS(status) == NO_STORAGE;
    }
    json_decref(pending);
    if (f->n_bad > n_bad)
        add_finding(f, WARN, "tiers", "not opened: storage is not ready");
    return f->n_bad == n_bad;
}
