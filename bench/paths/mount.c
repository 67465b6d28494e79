/* SPDX-License-Identifier: Apache-2.0
 *
 * The mount of the hf3fs family: the daemon of the tests serves a directory of the case as a
 * mount of 3FS, on half of the cores; or the case uses an existing mount. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "hf3fs.h"
#include "cli.h"

struct bench_cores {
    cpu_set_t set;
};

/* ------------------------------------------------------------------------ cores */

/* Select the first or the second half of the cores of `all`. */
static void
half(const cpu_set_t *all, bool second, cpu_set_t *out)
{
    int n = CPU_COUNT(all), seen = 0;

    CPU_ZERO(out);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, all) && (seen++ >= n / 2) == second)
            CPU_SET(i, out);
}

/* Restrict the calling thread, and the threads and processes that the thread starts later, to
 * one half of the cores.  Return false if there is only one core or the kernel refuses. */
static bool
use_half(const struct bench_mount *m, bool second)
{
    cpu_set_t set;

    if (!m->cores || CPU_COUNT(&m->cores->set) < 2)
        return false;
    half(&m->cores->set, second, &set);
    return !sched_setaffinity(0, sizeof set, &set);
}

static void
find_cores(struct bench_mount *m)
{
    m->cores = calloc(1, sizeof *m->cores);
    if (m->cores && sched_getaffinity(0, sizeof m->cores->set, &m->cores->set))
        CPU_ZERO(&m->cores->set);
}

/* ------------------------------------------------------------------- the daemon */

#define LEFT_OUT "kvtier-bench: the hf3fs cases need a mount of 3FS, "

static int
check_named(const struct bench *bench)
{
    if (!bench->daemon || !access(bench->daemon, X_OK))
        return 0;
    fprintf(stderr, LEFT_OUT "and %s is no daemon that can be started: %s\n", bench->daemon,
            strerror(errno));
    return CLI_ENVIRONMENT;
}

static bool
lies_on_mount(const struct bench *bench, const struct kvt__usrbio_api *api)
{
    int fd = open(bench->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_there = fd >= 0 && api->is_hf3fs(fd);

    if (fd >= 0)
        close(fd);
    return is_there;
}

/* Write the path of the daemon to start, or "" if the case's directory is on a mount of 3FS. */
static int
choose(const struct bench *bench, const struct kvt__usrbio_api *api, char *out,
       size_t size)
{
    *out = '\0';
    if (bench->daemon)
        snprintf(out, size, "%s", bench->daemon);
    else if (!lies_on_mount(bench, api) &&
             !bench_program_find("servers/usrbiod", out, size)) {
        fprintf(stderr, LEFT_OUT "and there is no daemon at %s: left out.\nBuild it (ninja "
                "-C build tests/servers/usrbiod), say where it is (--daemon), or let --dir "
                "lie on a mount.\n", out);
        return BENCH_LEFT_OUT;
    }
    return 0;
}

static int
make_dirs(const struct bench *bench, char *backing, size_t size, struct bench_mount *m)
{
    snprintf(backing, size, "%s/backing", bench->dir);
    if (snprintf(m->point, sizeof m->point, "%s/mount", bench->dir) >=
        (int)sizeof m->point) {
        fprintf(stderr, "kvtier-bench: --dir: too long for a mount point of 3FS: %s\n",
                bench->dir);
        return CLI_USAGE;
    }
    snprintf(m->dir, sizeof m->dir, "%s/chunks", m->point);
    if (!mkdir(backing, 0700) && !mkdir(m->point, 0700))
        return 0;
    fprintf(stderr, "kvtier-bench: make directories in %s: %s\n", bench->dir,
            strerror(errno));
    return CLI_ENVIRONMENT;
}

static int
start_daemon(const struct bench *bench, const struct bench_mount_params *params,
             char *program, struct bench_mount *m)
{
    char backing[4200], rate[32], delay[32], workers[16];
    int n_cores = m->cores ? CPU_COUNT(&m->cores->set) : 0;
    int code = make_dirs(bench, backing, sizeof backing, m);
    char *args[] = { program, (char[]){ "--workers" }, workers, (char[]){ "--rate" }, rate,
                     (char[]){ "--delay-us" }, delay, backing, m->point, NULL };

    if (code)
        return code;
    snprintf(workers, sizeof workers, "%d", n_cores > 4 ? n_cores / 2 : 2);
    snprintf(rate, sizeof rate, "%" PRIu64, params->rate);
    snprintf(delay, sizeof delay, "%u", params->delay_us);
    m->split = params->split && use_half(m, false);
    int err = bench_program_start(&m->daemon, args);
    m->split = m->split && use_half(m, true);
    json_t *ready = err ? NULL : bench_program_hear(&m->daemon);
    bool is_ready = json_object_get(ready, "submit_ios");
    json_decref(ready);
    if (is_ready && !mkdir(m->dir, 0700))
        return 0;
    fprintf(stderr, LEFT_OUT "and %s cannot make one here: left out.\n", program);
    return bench->daemon ? CLI_ENVIRONMENT : BENCH_LEFT_OUT;
}

/* Check the free space of /dev/shm.  The kernel reserves no pages of /dev/shm: without free space,
 * the first access to a page ends the process with SIGBUS. */
static int
check_room(uint64_t bytes)
{
    struct statvfs fs;

    if (!statvfs("/dev/shm", &fs) &&
        (!fs.f_blocks || fs.f_bavail > bytes / fs.f_frsize))
        return 0;
    fprintf(stderr, "kvtier-bench: the hf3fs cases need room in /dev/shm, this one %" PRIu64
            " MiB: left out (docker run --shm-size).\n", bytes >> 20);
    return BENCH_LEFT_OUT;
}

/* -------------------------------------------------------------- an existing mount */

static int
take_mount(const struct bench *bench, const struct bench_mount_params *params,
           struct bench_mount *m)
{
    if (params->rate || params->delay_us) {
        fprintf(stderr, LEFT_OUT "this one with a daemon that can be slow: left out where "
                "--dir lies on one already.\n");
        return BENCH_LEFT_OUT;
    }
    snprintf(m->dir, sizeof m->dir, "%s", bench->dir);
    if (m->api->extract_mount_point(m->point, sizeof m->point, bench->dir) > 0)
        return 0;
    fprintf(stderr, "kvtier-bench: %s: its mount point cannot be found\n", bench->dir);
    return CLI_ENVIRONMENT;
}

/* ------------------------------------------------------------------ open and close */

int
bench_mount_open(const struct bench *bench, const struct bench_mount_params *params,
                 struct bench_mount *m)
{
    char program[4096];

    *m = (struct bench_mount){ .daemon = BENCH_NO_PROGRAM };
    int code = check_named(bench);
    if (!code)
        code = bench_library_open(&m->api);
    if (!code)
        code = choose(bench, m->api, program, sizeof program);
    if (!code)
        code = check_room(params->shm_bytes);
    if (code)
        return code;
    find_cores(m);
    return *program ? start_daemon(bench, params, program, m)
                    : take_mount(bench, params, m);
}

void
bench_mount_close(struct bench_mount *m)
{
    if (m->daemon.pid > 0 && bench_program_end(&m->daemon))
        while (!umount2(m->point, MNT_DETACH)) /* the daemon failed and left the mount */
            continue;
    if (m->split)
        sched_setaffinity(0, sizeof m->cores->set, &m->cores->set);
    free(m->cores);
    m->cores = NULL;
}

void
bench_mount_settings(const struct bench_mount *mount, uint64_t iov_bytes,
                     struct bench_mount_settings *out)
{
    snprintf(out->path, sizeof out->path, "hf3fs_base_path=%s", mount->dir);
    snprintf(out->iov, sizeof out->iov, "hf3fs_iov_size=%" PRIu64, iov_bytes);
    out->list[0] = "remote_storage_plugins=hf3fs";
    out->list[1] = out->path;
    out->list[2] = out->iov;
    out->list[3] = NULL;
}

/* ----------------------------------------------------------------------- counts */

static json_t *
ask(const struct bench_mount *m, const char *line)
{
    if (dprintf(m->daemon.in, "%s\n", line) < 0)
        return NULL;
    return bench_program_hear(&m->daemon);
}

static int
answered(json_t *answer, bool good)
{
    json_decref(answer);
    if (good)
        return 0;
    fprintf(stderr, "kvtier-bench: the daemon does not say what it did\n");
    return CLI_ENVIRONMENT;
}

int
bench_mount_reset(const struct bench_mount *mount)
{
    json_t *answer = ask(mount, "reset");

    return answered(answer, json_is_true(json_object_get(answer, "ok")));
}

int
bench_mount_counts(const struct bench_mount *mount, double *mean_in_flight,
                   double *mean_bytes_in_flight)
{
    json_t *answer = ask(mount, "stats");

    return answered(answer, !json_unpack(answer, "{s:F, s:F}", "mean_in_flight",
                                         mean_in_flight, "mean_bytes_in_flight",
                                         mean_bytes_in_flight));
}
