/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory check of kvtier config check, which follows the calculation in LMCache's
 * documentation.  In kvtier, requests to S3 use memory of max_local_cpu_size and no memory of
 * /dev/shm.  So the check has three parts:
 *   - Each worker's memory must hold the chunks of all concurrent requests to S3.
 *   - The host's memory must hold the memory of all workers and, once, the shared host memory.
 *   - The shared host memory, and the memory shared with 3FS's daemon, must each fit on the tmpfs
 *     that contains the memory. */
#include "config-memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "shared.h"

#define GIB ((double)(1 << 30))

/* The memory that the configuration needs. */
struct needs {
    const struct cli_memory *memory;
    const json_t *all;      /* all settings, from kvt_config_json() */
    uint64_t chunk_tokens;
    uint64_t chunk_bytes;   /* bytes of a chunk in each worker */
    uint64_t requests;      /* concurrent requests to S3 of each worker; 0: no tier is in S3 */
    const char *limit;      /* name of the setting that limits requests */
    uint64_t worker_bytes, all_bytes; /* max_local_cpu_size of a worker, of all workers */
    uint64_t host_bytes;    /* shared host memory, once for all workers; 0: shared_cpu is off */
    uint64_t host_missing;  /* the part of host_bytes that is not allocated yet */
    uint64_t hf3fs_bytes;   /* bytes of /dev/shm that each worker shares with 3FS's daemon; 0: no
                             * tier is in 3FS */
    uint64_t available;     /* kvt_memory_available(); UINT64_MAX: unknown */
};

static const json_t *
value_of(const json_t *all, const char *name)
{
    return json_object_get(json_object_get(all, name), "value");
}

/* Return true if remote_url or a remote storage plugin is of this kind, such as "s3". */
static bool
has(const json_t *all, const char *kind)
{
    const char *url = json_string_value(value_of(all, "remote_url"));
    const json_t *plugins = value_of(all, "remote_storage_plugins");
    size_t n = strlen(kind);

    if (url && !strncmp(url, kind, n) && !strncmp(url + n, "://", 3))
        return true;
    for (size_t i = 0; i < json_array_size(plugins); i++) {
        const char *plugin = json_string_value(json_array_get(plugins, i));

        if (plugin && !strncmp(plugin, kind, n) && (!plugin[n] || plugin[n] == '.'))
            return true;
    }
    return false;
}

/* Set requests and limit: the lowest limit among the settings counts; without a limit, 64
 * requests. */
static void
find_requests(struct needs *n)
{
    static const char *const limits[] = { "s3_num_io_threads", "s3_max_io_concurrency",
                                          "s3_max_inflight_reqs" };

    if (!has(n->all, "s3"))
        return;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        uint64_t limit = (uint64_t)json_integer_value(value_of(n->all, limits[i]));

        if (!limit || (n->limit && limit >= n->requests))
            continue;
        n->requests = limit;
        n->limit = limits[i];
    }
    if (!n->limit) {
        n->requests = 64;
        n->limit = limits[0];
    }
}

/* Set host_bytes and host_missing.  An existing shared host memory of another size is no special
 * case: an engine replaces the memory and frees the allocated bytes, or uses the memory
 * unchanged. */
static void
find_host_bytes(struct needs *n, const struct kvt_config_sources *sources)
{
    double gib = json_number_value(value_of(n->all, "max_shared_cpu_size"));
    struct kvt_tier_info info;
    struct kvt_store *store;

    if (!json_is_true(value_of(n->all, "shared_cpu")))
        return;
    n->host_bytes = n->host_missing = (uint64_t)(gib * GIB);
    if (cli_shared_open(sources, &store))
        return;
    cli_shared_info(store, &info);
    kvt_store_close(store);
    n->host_missing -= info.allocated_bytes < n->host_bytes ? info.allocated_bytes
                                                            : n->host_bytes;
}

static void
find_needs(struct needs *n)
{
    double gib = json_number_value(value_of(n->all, "max_local_cpu_size"));
    uint64_t workers = n->memory->n_workers;

    n->chunk_tokens = (uint64_t)json_integer_value(value_of(n->all, "chunk_size"));
    n->chunk_bytes = (n->memory->bytes_per_token * n->chunk_tokens + workers - 1) / workers;
    find_requests(n);
    n->worker_bytes = (uint64_t)(gib * GIB);
    n->all_bytes = n->worker_bytes * workers;
    n->available = kvt_memory_available();
}

/* ------------------------------------------------- problems and numbers */

static void report_excess(const struct needs *n, const char *key, uint64_t bytes,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Report an error of setting `key`, whose value is `bytes`: fmt gives the reason and the remedy.
 * The report names only this setting, also if a change of another setting helps too. */
static void
report_excess(const struct needs *n, const char *key, uint64_t bytes, const char *fmt, ...)
{
    const json_t *origin = json_object_get(json_object_get(n->all, key), "origin");
    char why[320], text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    snprintf(text, sizeof text, "%s is %.2f GiB (%s), %s", key, (double)bytes / GIB,
             json_string_value(origin), why);
    n->memory->on_problem(n->memory->ctx, &(struct kvt_config_problem){
        .key = key, .origin = json_string_value(origin), .text = text, .is_error = 1 });
}

/* Round to two decimals.  A recommended upper limit is rounded down and a recommended lower limit
 * is rounded up, so that the printed value suffices. */
static double
round_down(double gib)
{
    return (double)(uint64_t)(gib * 100) / 100;
}

static double
round_up(double gib)
{
    double down = round_down(gib);

    return down < gib ? down + 0.01 : down;
}

static void
check_worker(const struct needs *n)
{
    double need = (double)(n->requests ? n->requests : 1) * (double)n->chunk_bytes / GIB;
    uint64_t fit = n->worker_bytes / n->chunk_bytes;
    double enough = round_up(need);

    if (!fit)
        report_excess(n, "max_local_cpu_size", n->worker_bytes,
                 "less than a chunk in each worker: raise it to %.2f, or lower "
                 "chunk_size.", enough);
    else if (fit < n->requests)
        report_excess(n, "max_local_cpu_size", n->worker_bytes,
                 "%" PRIu64 " requests to S3 at the same time need %.2f GiB in each "
                 "worker: raise it to %.2f, or lower %s to %" PRIu64 ".", n->requests, need,
                 enough, n->limit, fit);
}

static void
check_machine(const struct needs *n)
{
    double available = (double)n->available / GIB;

    if (n->available != UINT64_MAX && n->all_bytes > n->available)
        report_excess(n, "max_local_cpu_size", n->worker_bytes,
                 "%.2f GiB for all workers, and %.2f GiB of memory are available: lower "
                 "it to %.2f.", (double)n->all_bytes / GIB, available,
                 round_down(available / (double)n->memory->n_workers));
    else if (n->available != UINT64_MAX && n->host_missing > n->available - n->all_bytes)
        report_excess(n, "max_shared_cpu_size", n->host_bytes,
                 "%.2f GiB of it must be allocated beside %.2f GiB for all workers, and "
                 "%.2f GiB of memory are available: lower it or max_local_cpu_size.",
                 (double)n->host_missing / GIB, (double)n->all_bytes / GIB, available);
}

static void
print_needs(const struct needs *n)
{
    printf("memory: a chunk of %" PRIu64 " tokens is %.2f MiB in each of %" PRIu64
           " worker%s\n", n->chunk_tokens, (double)n->chunk_bytes / (1 << 20),
           n->memory->n_workers, n->memory->n_workers == 1 ? "" : "s");
    if (n->requests)
        printf("memory: %" PRIu64 " requests to S3 at the same time are %.2f GiB of the "
               "%.2f GiB of a worker (%s, max_local_cpu_size)\n", n->requests,
               (double)n->requests * (double)n->chunk_bytes / GIB,
               (double)n->worker_bytes / GIB, n->limit);
    printf("memory: all workers take %.2f GiB", (double)n->all_bytes / GIB);
    if (n->host_bytes)
        printf(" and share %.2f GiB (max_shared_cpu_size)", (double)n->host_bytes / GIB);
    if (n->available == UINT64_MAX)
        printf(", the system does not report the available memory\n");
    else
        printf(", %.2f GiB are available\n", (double)n->available / GIB);
}

static void
add_needs(const struct needs *n)
{
    json_t *json = n->memory->json;

    json_object_set_new(json, "chunk_bytes", json_integer((json_int_t)n->chunk_bytes));
    json_object_set_new(json, "s3_requests", json_integer((json_int_t)n->requests));
    json_object_set_new(json, "worker_bytes", json_integer((json_int_t)n->worker_bytes));
    json_object_set_new(json, "all_bytes", json_integer((json_int_t)n->all_bytes));
    json_object_set_new(json, "available_bytes",
                        n->available == UINT64_MAX
                            ? json_null() : json_integer((json_int_t)n->available));
}

/* ------------------------------------------------------------- shared memory */

/* Set *bytes to the free bytes of the tmpfs at path; UINT64_MAX: the tmpfs has no limit.  Return
 * false if the directory is unavailable; *bytes is unchanged. */
static bool
find_room(const char *path, uint64_t *bytes)
{
    struct statvfs shm;

    if (statvfs(path, &shm))
        return false;
    *bytes = shm.f_blocks ? (uint64_t)shm.f_bavail * shm.f_frsize : UINT64_MAX;
    return true;
}

static void
add_room(json_t *json, const char *need_key, uint64_t need, const char *room_key,
         uint64_t room)
{
    json_object_set_new(json, need_key, json_integer((json_int_t)need));
    json_object_set_new(json, room_key, room == UINT64_MAX
                            ? json_null() : json_integer((json_int_t)room));
}

static void
print_room(bool there, uint64_t room)
{
    if (!there)
        printf("which does not exist\n");
    else if (room == UINT64_MAX)
        printf("which has no limit\n");
    else
        printf("%.2f GiB are free there\n", (double)room / GIB);
}

static void
check_3fs(const struct needs *n)
{
    uint64_t need = n->hf3fs_bytes * n->memory->n_workers, room = 0;
    bool there = find_room("/dev/shm", &room), one = n->memory->n_workers == 1;

    if (n->memory->json) {
        add_room(n->memory->json, "shared_bytes", need, "shared_available_bytes", room);
    } else {
        printf("memory: %" PRIu64 " worker%s share%s %.2f GiB of /dev/shm with 3FS's "
               "daemon, ", n->memory->n_workers, one ? "" : "s", one ? "s" : "",
               (double)need / GIB);
        print_room(there, room);
    }
    if (need > room)
        report_excess(n, "hf3fs_iov_size",
                 (uint64_t)json_integer_value(value_of(n->all, "hf3fs_iov_size")),
                 "%.2f GiB of /dev/shm for all workers, which has %.2f GiB free: give it "
                 "more (docker: --shm-size), or lower it.",
                 (double)need / GIB, (double)room / GIB);
}

static void
check_shared_cpu(const struct needs *n)
{
    const char *path = json_string_value(value_of(n->all, "shared_cpu_path"));
    uint64_t room = 0;

    if (!path)
        path = "/dev/shm";
    bool there = find_room(path, &room);
    if (n->memory->json) {
        add_room(n->memory->json, "shared_cpu_bytes", n->host_bytes,
                 "shared_cpu_available_bytes", room);
    } else {
        printf("memory: shared host memory takes %.2f GiB of %s, ",
               (double)n->host_bytes / GIB, path);
        print_room(there, room);
    }
    if (n->host_missing > room)
        report_excess(n, "max_shared_cpu_size", n->host_bytes,
                 "and %.2f GiB of it must be allocated in %s, which has %.2f GiB free: give "
                 "%s more (docker: --shm-size), or lower max_shared_cpu_size.",
                 (double)n->host_missing / GIB, path, (double)room / GIB, path);
}

int
cli_config_memory(const struct kvt_config_sources *sources,
                  const struct cli_memory *memory)
{
    struct kvt_config *config;
    struct needs n = { .memory = memory };

    int err = kvt_config_open(sources, &config);
    if (err)
        return err;
    char *text = kvt_config_json(config);
    json_t *all = text ? json_loads(text, 0, NULL) : NULL;
    kvt_free(text);
    n.hf3fs_bytes = kvt_config_shm_bytes(config);
    kvt_config_free(config);
    if (!all)
        return -ENOMEM;
    n.all = all;
    find_host_bytes(&n, sources);
    if (memory->bytes_per_token) {
        find_needs(&n);
        if (memory->json)
            add_needs(&n);
        else
            print_needs(&n);
        check_worker(&n);
        check_machine(&n);
    }
    if (n.hf3fs_bytes)
        check_3fs(&n);
    if (n.host_bytes)
        check_shared_cpu(&n);
    json_decref(all);
    return 0;
}
