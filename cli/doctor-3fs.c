/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier doctor: what storage in 3FS needs of this machine.  A daemon that hangs holds
 * whoever asks it anything, beyond every signal, and the site's library may end the
 * process: so a child does the asking, and is waited for no longer than it answers. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"
#include "config-memory.h"
#include "doctor.h"

#define PATIENCE_MS 15000 /* a GPU's library is given 10 s to find what it is asked for */
#define GIB ((double)(1 << 30))

/* ------------------------------------------------------------------- the child */

static void
send_finding(void *ctx, const char *about, int status, const char *text)
{
    json_t *finding = json_pack("{s:s, s:b, s:s}", "about", about, "bad", status != 0,
                                "text", text);

    json_dumpf(finding, ctx, JSON_COMPACT);
    fprintf(ctx, "\n");
    fflush(ctx);
    json_decref(finding);
}

static pid_t
start_child(const struct kvt_config *config, int *from)
{
    int ends[2];

    if (pipe(ends))
        return -1;
    pid_t pid = fork();
    if (!pid) {
        FILE *to = fdopen(ends[1], "w");

        _exit(!to || kvt_store_look(config, send_finding, to));
    }
    close(ends[1]);
    *from = ends[0];
    if (pid < 0)
        close(ends[0]);
    return pid;
}

/* ------------------------------------------------------------ what it has found */

static void
take_finding(struct findings *f, const char *line, size_t n)
{
    json_t *finding = json_loadb(line, n, 0, NULL);
    const char *about, *text;
    int bad;

    if (!json_unpack(finding, "{s:s, s:b, s:s}", "about", &about, "bad", &bad, "text",
                     &text))
        take_look(f, about, bad, text);
    json_decref(finding);
}

/* Until its end, true, or until it has said nothing for too long. */
static bool
take_findings(struct findings *f, int from)
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

            take_finding(f, buffer, line);
            used -= line;
            memmove(buffer, end + 1, used);
        }
        if (used == sizeof buffer)
            used = 0;
    }
}

/* A setting with a place of 3FS in it: which of them hangs is not told by who hangs. */
static const char *
place_of(json_t *all)
{
    static const char end[] = ".base_path";
    const char *key, *place = NULL;
    json_t *setting;

    json_object_foreach(all, key, setting) {
        const char *value = json_string_value(json_object_get(setting, "value"));
        size_t n = strlen(key);

        if (value && (!strcmp(key, "hf3fs_mount_point") ||
                      !strcmp(key, "hf3fs_base_path") ||
                      (!strcmp(key, "remote_url") && !strncmp(value, "hf3fs:", 6)) ||
                      (!strncmp(key, "remote_storage_plugin.hf3fs", 27) &&
                       n > sizeof end && !strcmp(key + n - sizeof end + 1, end))))
            place = value;
    }
    return place ? place : "3FS";
}

static void
look(struct findings *f, const struct kvt_config *config, json_t *all)
{
    int from, status = 0;
    pid_t pid = start_child(config, &from);

    if (pid < 0) {
        say(f, BAD, "3fs", "no process to look at it: %s", strerror(errno));
        return;
    }
    bool ended = take_findings(f, from);
    close(from);
    say_gpus(f);
    if (!ended) {
        kill(pid, SIGKILL); /* it may be beyond that: it is not waited for */
        say(f, BAD, "3fs daemon", "%s: no answer for %d seconds: the daemon of this mount "
            "hangs; start it again", place_of(all), PATIENCE_MS / 1000);
        return;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFSIGNALED(status))
        say(f, BAD, "3fs", "looking at it ended the process (%s); with the site's library "
            "in use, try HF3FS_CLIENT=own", strsignal(WTERMSIG(status)));
}

/* ---------------------------------------------------------------------- limits */

static void
look_at_shared_memory(struct findings *f, uint64_t need)
{
    uint64_t room = 0;
    bool there = cli_shared_room(&room);

    if (!there)
        say(f, BAD, "3fs memory", "a worker shares %.2f GiB of /dev/shm with the daemon, "
            "and there is no /dev/shm: mount it, the daemon's in a container",
            (double)need / GIB);
    else if (need > room)
        say(f, BAD, "3fs memory", "a worker shares %.2f GiB of /dev/shm with the daemon, "
            "and %.2f GiB are free there: give it more (docker: --shm-size), or lower "
            "hf3fs_iov_size", (double)need / GIB, (double)room / GIB);
    else if (room == UINT64_MAX)
        say(f, OK, "3fs memory", "a worker shares %.2f GiB of /dev/shm with the daemon, "
            "which has no limit", (double)need / GIB);
    else
        say(f, OK, "3fs memory", "a worker shares %.2f GiB of /dev/shm with the daemon, "
            "and %.2f GiB are free there ('kvtier config check --tp N': for N workers)",
            (double)need / GIB, (double)room / GIB);
}

static void
look_at_memlock(struct findings *f)
{
    struct rlimit limit;
    char size[24] = "none";

    if (getrlimit(RLIMIT_MEMLOCK, &limit))
        return;
    if (limit.rlim_cur != RLIM_INFINITY)
        cli_size_text(limit.rlim_cur, size);
    say(f, OK, "3fs memlock", "limit: %s; it matters only where shared memory is pinned "
        "for a GPU", size);
}

/* ----------------------------------------------------------------- all of them */

bool
doctor_3fs(struct findings *f, const struct kvt_config *config)
{
    char *text = kvt_config_json(config);
    json_t *all = text ? json_loads(text, 0, NULL) : NULL;
    uint64_t need = cli_shared_bytes(all);
    int n_bad = f->n_bad;

    if (need) {
        look(f, config, all);
        look_at_shared_memory(f, need);
        look_at_memlock(f);
    }
    json_decref(all);
    kvt_free(text);
    if (f->n_bad > n_bad)
        say(f, WARN, "tiers", "not opened: 3FS is not ready");
    return f->n_bad == n_bad;
}
