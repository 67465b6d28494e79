/* SPDX-License-Identifier: Apache-2.0 */
#include "batch.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

#define AT_ONCE 8

int
cli_chunks_add(struct cli_chunks *c, const struct cli_chunk *chunk)
{
    if (c->n == c->max) {
        size_t max = c->max ? c->max * 2 : 256;
        struct cli_chunk *grown = realloc(c->chunks, max * sizeof *grown);
        if (!grown)
            return cli_error(CLI_ENVIRONMENT, "not enough memory for the list of chunks");
        c->chunks = grown;
        c->max = max;
    }
    c->chunks[c->n] = *chunk;
    c->chunks[c->n].key = strdup(chunk->key);
    if (!c->chunks[c->n].key)
        return cli_error(CLI_ENVIRONMENT, "not enough memory for the list of chunks");
    c->n++;
    return 0;
}

struct listing {
    struct cli_chunks *chunks;
    int code;
};

static int
add_listed(void *ctx, const struct kvt_listed *listed)
{
    struct listing *l = ctx;
    const struct cli_chunk chunk = {
        .key = (char *)listed->key, .tier = listed->tier_index + 1,
        .stored_bytes = listed->stored_bytes, .mtime_ns = listed->mtime_ns };

    l->code = cli_chunks_add(l->chunks, &chunk);
    return l->code;
}

int
cli_chunks_list(struct kvt_store *store, const char *prefix, struct cli_chunks *chunks)
{
    struct listing l = { .chunks = chunks };
    int err = kvt_store_list(store, prefix, add_listed, &l);

    return err ? cli_fail(err) : l.code;
}

void
cli_chunks_free(struct cli_chunks *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->chunks[i].key);
    free(c->chunks);
}

struct batch {
    struct kvt_store *store;
    enum kvt_op_kind kind;
    const struct cli_chunks *chunks;
    struct kvt_op ops[AT_ONCE];
    struct kvt_op *free_ops[AT_ONCE];
    size_t n_free, n_started, n_done;
};

/* Start requests until all ops are in use or all chunks have a request.  Return 0 or a negative
 * errno. */
static int
start(struct batch *b)
{
    int err = 0;

    while (!err && b->n_free && b->n_started < b->chunks->n) {
        struct cli_chunk *chunk = &b->chunks->chunks[b->n_started];
        struct kvt_op *op = b->free_ops[b->n_free - 1];

        *op = (struct kvt_op)KVT_INIT(struct kvt_op);
        op->kind = b->kind;
        op->key = chunk->key;
        op->tier = chunk->tier;
        op->user = chunk;
        err = kvt_store_submit(b->store, &op, 1);
        if (!err) {
            b->n_free--;
            b->n_started++;
        }
    }
    return err;
}

/* Wait at most 1 s for completed requests and call fn for each completed request. */
static void
poll_requests(struct batch *b, cli_chunk_fn fn, void *ctx)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(b->store), .events = POLLIN };
    struct kvt_op *done[AT_ONCE];

    poll(&fd, 1, 1000);
    size_t n = kvt_store_poll(b->store, done, AT_ONCE);
    for (size_t i = 0; i < n; i++) {
        fn(ctx, done[i]->user, done[i]);
        b->free_ops[b->n_free++] = done[i];
    }
    b->n_done += n;
}

int
cli_chunks_run(struct kvt_store *store, enum kvt_op_kind kind,
               const struct cli_chunks *chunks, const char *progress, cli_chunk_fn fn,
               void *ctx)
{
    struct batch b = { .store = store, .kind = kind, .chunks = chunks, .n_free = AT_ONCE };
    int err = 0;

    for (size_t i = 0; i < AT_ONCE; i++)
        b.free_ops[i] = &b.ops[i];
    while (b.n_done < b.n_started || (!err && b.n_started < chunks->n)) {
        if (!err)
            err = start(&b);
        if (b.n_done < b.n_started)
            poll_requests(&b, fn, ctx);
        cli_progress(progress, b.n_done, chunks->n);
    }
    cli_progress_end();
    return err ? cli_fail(err) : CLI_DONE;
}
