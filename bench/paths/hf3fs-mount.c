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
use_half(const struct bench_hf3fs_mount *m, bool second)
{
    cpu_set_t set;

    if (!m->cores || CPU_COUNT(&m->cores->set) < 2)
        return false;
    half(&m->cores->set, second, &set);
    return !sched_setaffinity(0, sizeof set, &set);
}

static void
find_cores(struct bench_hf3fs_mount *m)
{
    m->cores = calloc(1, sizeof *m->cores);
    if (m->cores && sched_getaffinity(0, sizeof m->cores->set, &m->cores->set))
        CPU_ZERO(&m->cores->set);
}

/* ------------------------------------------------------------------- the daemon */

#define NEEDS_MOUNT "kvtier-bench: the hf3fs cases need a mount of 3FS, "

static int
check_daemon(const struct bench *bench)
{
    if (!bench->daemon || !access(bench->daemon, X_OK))
        return 0;
    fprintf(stderr, NEEDS_MOUNT "and %s cannot be executed: %s\n", bench->daemon,
            strerror(errno));
    return CLI_ENVIRONMENT;
}

static bool
is_on_mount(const struct bench *bench, const struct kvt__usrbio_api *api)
{
    int fd = open(bench->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool is_mount = fd >= 0 && api->is_hf3fs(fd);

    if (fd >= 0)
        close(fd);
    return is_mount;
}

/* Write the path of the daemon to start, or "" if the case's directory is on a mount of 3FS. */
static int
find_daemon(const struct bench *bench, const struct kvt__usrbio_api *api, char *out,
       size_t size)
{
    *out = '\0';
    if (bench->daemon)
        snprintf(out, size, "%s", bench->daemon);
    else if (!is_on_mount(bench, api) &&
             !bench_program_test_path("servers/usrbiod", out, size)) {
        fprintf(stderr, NEEDS_MOUNT "and there is no daemon at %s: skipped.\nBuild the daemon "
                "(ninja -C build tests/servers/usrbiod), name a daemon (--daemon), or choose a "
                "--dir on a mount.\n", out);
        return BENCH_SKIPPED;
    }
    return 0;
}

static int
make_dirs(const struct bench *bench, char *backing, size_t size, struct bench_hf3fs_mount *m)
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
start_daemon(const struct bench *bench, const struct bench_hf3fs_mount_params *params,
             char *program, struct bench_hf3fs_mount *m)
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
    json_t *ready = err ? NULL : bench_program_read_json(&m->daemon);
    bool is_ready = json_object_get(ready, "submit_ios");
    json_decref(ready);
    if (is_ready && !mkdir(m->dir, 0700))
        return 0;
    fprintf(stderr, NEEDS_MOUNT "and %s cannot mount 3FS: skipped.\n", program);
    return bench->daemon ? CLI_ENVIRONMENT : BENCH_SKIPPED;
}

/* Check the free space of /dev/shm.  The kernel reserves no pages of /dev/shm: without free space,
 * the first access to a page ends the process with SIGBUS. */
static int
check_shm_space(uint64_t bytes)
{
    struct statvfs fs;

    if (!statvfs("/dev/shm", &fs) &&
        (!fs.f_blocks || fs.f_bavail > bytes / fs.f_frsize))
        return 0;
    fprintf(stderr, "kvtier-bench: the case needs %" PRIu64 " MiB of free space in /dev/shm: "
            "skipped (docker run --shm-size).\n", bytes >> 20);
    return BENCH_SKIPPED;
}

/* -------------------------------------------------------------- an existing mount */

static int
use_existing_mount(const struct bench *bench, const struct bench_hf3fs_mount_params *params,
           struct bench_hf3fs_mount *m)
{
    if (params->rate || params->delay_us) {
        fprintf(stderr, NEEDS_MOUNT "and this case needs a daemon with a limited "
                "speed: skipped, because --dir is on an existing mount.\n");
        return BENCH_SKIPPED;
    }
    snprintf(m->dir, sizeof m->dir, "%s", bench->dir);
    if (m->api->extract_mount_point(m->point, sizeof m->point, bench->dir) > 0)
        return 0;
    fprintf(stderr, "kvtier-bench: %s: no mount point found\n", bench->dir);
    return CLI_ENVIRONMENT;
}

/* ------------------------------------------------------------------ open and close */

int
bench_hf3fs_mount_open(const struct bench *bench, const struct bench_hf3fs_mount_params *params,
                 struct bench_hf3fs_mount *m)
{
    char program[4096];

    *m = (struct bench_hf3fs_mount){ .daemon = BENCH_NO_PROGRAM };
    int code = check_daemon(bench);
    if (!code)
        code = bench_hf3fs_library(&m->api);
    if (!code)
        code = find_daemon(bench, m->api, program, sizeof program);
    if (!code)
        code = check_shm_space(params->shm_bytes);
    if (code)
        return code;
    find_cores(m);
    return *program ? start_daemon(bench, params, program, m)
                    : use_existing_mount(bench, params, m);
}

void
bench_hf3fs_mount_close(struct bench_hf3fs_mount *m)
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
bench_hf3fs_settings(const struct bench_hf3fs_mount *mount, uint64_t iov_bytes,
                     struct bench_hf3fs_settings *out)
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
request(const struct bench_hf3fs_mount *m, const char *line)
{
    if (dprintf(m->daemon.in, "%s\n", line) < 0)
        return NULL;
    return bench_program_read_json(&m->daemon);
}

static int
check_response(json_t *response, bool good)
{
    json_decref(response);
    if (good)
        return 0;
    fprintf(stderr, "kvtier-bench: the daemon did not report its statistics\n");
    return CLI_ENVIRONMENT;
}

int
bench_hf3fs_reset_stats(const struct bench_hf3fs_mount *mount)
{
    json_t *response = request(mount, "reset");

    return check_response(response, json_is_true(json_object_get(response, "ok")));
}

int
bench_hf3fs_read_stats(const struct bench_hf3fs_mount *mount, double *mean_in_flight,
                   double *mean_bytes_in_flight)
{
    json_t *response = request(mount, "stats");

    return check_response(response, !json_unpack(response, "{s:F, s:F}", "mean_in_flight",
                                         mean_in_flight, "mean_bytes_in_flight",
                                         mean_bytes_in_flight));
}
