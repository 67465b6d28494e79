/* SPDX-License-Identifier: Apache-2.0
 *
 * A store over the server of the s3 cases, and runs of operations of one kind.  Each slot keeps
 * one operation in flight, and starts the next operation when an operation completes. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "s3.h"
#include "cli.h"

static size_t
memory_bytes(const struct bench_s3 *r)
{
    return r->n_slots * r->object_bytes;
}

/* ------------------------------------------------------------------ open and close */

/* Allocate the buffers and populate their pages. */
static int
map_buffers(struct bench_s3 *r)
{
    void *memory = mmap(NULL, memory_bytes(r), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    r->ops = calloc(r->n_slots, sizeof *r->ops);
    r->keys = calloc(r->n_slots, sizeof *r->keys);
    if (memory == MAP_FAILED || !r->ops || !r->keys) {
        fprintf(stderr, "kvtier-bench: buffers of %zu MiB: %s\n", memory_bytes(r) >> 20,
                strerror(errno));
        return CLI_ENVIRONMENT;
    }
    r->memory = memory;
    madvise(memory, memory_bytes(r), MADV_HUGEPAGE);
    memset(memory, 0x5a, memory_bytes(r));
    return 0;
}

int
bench_s3_open(struct bench_s3 *r, const struct bench *bench)
{
    struct bench_s3_server_params params = { .object_bytes = r->object_bytes, .tls = r->tls,
                                          .head_delay_ms = r->head_delay_ms };
    int code = bench_s3_server_open(bench, &params, &r->server);

    return code ? code : map_buffers(r);
}

int
bench_s3_open_store(struct bench_s3 *r)
{
    const struct bench_s3_server *server = &r->server;
    char url[128], endpoint[128], ca_file[4128];
    const char *settings[] = { url, endpoint, "s3_addressing=path", "s3_region=bench",
                               "aws_access_key_id=bench", "aws_secret_access_key=bench",
                               r->tls ? ca_file : NULL, NULL };

    snprintf(url, sizeof url, "remote_url=s3://%s", server->bucket);
    snprintf(endpoint, sizeof endpoint, "s3_endpoint_url=http%s://%s:%d",
             r->tls ? "s" : "", server->host, r->tls ? server->tls_port : server->port);
    snprintf(ca_file, sizeof ca_file, "s3_ca_file=%s", server->ca_file);
    int code = bench_store_open_settings(settings, &r->store);
    if (!code && r->server.program.pid)
        bench_index_dir_find(&r->index); /* the port is random: no later process uses the index */
    return code;
}

int
bench_s3_close(struct bench_s3 *r, uint64_t *n_connections)
{
    kvt_store_close(r->store);
    bench_index_dir_remove(&r->index);
    int code = bench_s3_server_close(&r->server, n_connections);
    if (r->memory)
        munmap(r->memory, memory_bytes(r));
    free(r->ops);
    free(r->keys);
    return code;
}

/* -------------------------------------------------------------------------- a run */

static bool
is_expected(const struct bench_s3 *r, const struct kvt_op *op)
{
    bool is_absent = strstr(op->key, ".miss");

    switch (r->kind) {
    case BENCH_GET:
        return !op->status && op->found_bytes == r->object_bytes &&
               (op->found & KVT_FOUND_CHECKED);
    case BENCH_HEAD:
        return op->status == (is_absent ? -ENOENT : 0);
    default:
        return !op->status;
    }
}

static int
check(const struct bench_s3 *r, const struct kvt_op *op)
{
    if (is_expected(r, op))
        return 0;
    fprintf(stderr, "kvtier-bench: %s: %s\n", op->key,
            *op->why ? op->why
                     : "the object was not verified: the response has no "
                       "x-amz-checksum-crc32c, or the length differs");
    return CLI_ENVIRONMENT;
}

static int
start_operation(struct bench_s3 *r, struct kvt_op *op)
{
    static const uint32_t kinds[] = { KVT_OP_GET, KVT_OP_PUT, KVT_OP_STAT };
    size_t slot = (size_t)(op - r->ops);
    bool is_absent = r->kind == BENCH_HEAD && (r->all_absent || r->n_started % 2);

    r->n_started++;
    snprintf(r->keys[slot], sizeof r->keys[slot], "object-%zu%s", slot,
             is_absent ? ".miss" : "");
    *op = (struct kvt_op){ .struct_size = sizeof *op, .kind = kinds[r->kind],
                           .flags = KVT_OP_NAME, .key = r->keys[slot],
                           .buf = r->memory + slot * r->object_bytes,
                           .bytes = r->object_bytes };
    int err = kvt_store_submit(r->store, &op, 1);
    return err ? cli_fail(err) : 0;
}

/* Check the completed operations and start an operation in each of their slots. */
static int
process_completions(struct bench_s3 *r)
{
    struct kvt_op *done[64];
    size_t n = kvt_store_poll(r->store, done, 64);
    int code = 0;

    for (size_t i = 0; !code && i < n; i++) {
        code = check(r, done[i]);
        r->n_done++;
        if (!code && r->n_started < r->n_objects)
            code = start_operation(r, done[i]);
    }
    return code;
}

int
bench_s3_run(struct bench_s3 *r, struct bench_cost *out)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(r->store), .events = POLLIN };
    int code = 0;

    r->n_started = r->n_done = 0;
    bench_start(out);
    for (size_t i = 0; !code && i < r->n_slots && i < r->n_objects; i++)
        code = start_operation(r, &r->ops[i]);
    while (!code && r->n_done < r->n_objects) {
        int ready = poll(&fd, 1, r->on_progress ? 2 : 1000);

        if (r->on_progress)
            r->on_progress(r);
        if (ready > 0)
            code = process_completions(r);
        if (bench_interrupted())
            code = CLI_ENVIRONMENT;
    }
    bench_stop(out);
    return code;
}
