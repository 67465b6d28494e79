/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier verify: reads chunks and checks them, a few at a time. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

#define AT_ONCE 8

struct keys {
    char **keys;
    size_t n, max;
};

struct totals {
    uint64_t n, good, unchecked, bad, bytes;
};

static int
add_key(struct keys *k, const char *key)
{
    if (k->n == k->max) {
        size_t max = k->max ? k->max * 2 : 256;
        char **grown = realloc(k->keys, max * sizeof *grown);
        if (!grown)
            return -ENOMEM;
        k->keys = grown;
        k->max = max;
    }
    k->keys[k->n] = strdup(key);
    return k->keys[k->n++] ? 0 : -ENOMEM;
}

static int
add_listed(void *ctx, const struct kvt_listed *listed)
{
    return add_key(ctx, listed->key);
}

static void
tell(const struct kvt_op *op, const struct cli_common *c, struct totals *t)
{
    t->n++;
    t->bytes += op->found_bytes;
    if (!op->status && op->found & KVT_FOUND_CHECKED)
        t->good++;
    else if (!op->status)
        t->unchecked++;
    else
        t->bad++;
    if (op->status && !c->json) {
        cli_progress_end();
        printf("bad: %s\n", op->why);
    } else if (op->status) {
        cli_print_json(json_pack("{s:o, s:o}", "key", cli_json_text(op->key), "error",
                                 cli_json_text(op->why)));
    }
}

/* ops, AT_ONCE of them: in use until the store is closed, if this fails. */
static int
verify_keys(struct kvt_store *store, const struct cli_common *c, const struct keys *k,
            struct kvt_op *ops, struct totals *t)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(store), .events = POLLIN };
    struct kvt_op *done[AT_ONCE];
    size_t started = 0, n_free = AT_ONCE;
    struct kvt_op *free_ops[AT_ONCE];

    for (size_t i = 0; i < AT_ONCE; i++)
        free_ops[i] = &ops[i];
    while (t->n < k->n) {
        while (n_free && started < k->n) {
            struct kvt_op *op = free_ops[--n_free];

            *op = (struct kvt_op)KVT_INIT(struct kvt_op);
            op->kind = KVT_OP_VERIFY;
            op->key = k->keys[started++];
            int err = kvt_store_submit(store, &op, 1);
            if (err)
                return cli_fail(err);
        }
        poll(&fd, 1, 1000);
        size_t n = kvt_store_poll(store, done, AT_ONCE);
        for (size_t i = 0; i < n; i++) {
            tell(done[i], c, t);
            free_ops[n_free++] = done[i];
        }
        cli_progress("verified", t->n, k->n);
    }
    cli_progress_end();
    return t->bad ? CLI_NO : CLI_DONE;
}

static void
print_totals(const struct cli_common *c, const struct totals *t)
{
    char size[24];

    if (!c->json) {
        printf("%" PRIu64 " chunks, %s: %" PRIu64 " good, %" PRIu64
               " without checksum, %" PRIu64 " bad\n", t->n,
               cli_size_text(t->bytes, size), t->good, t->unchecked, t->bad);
        return;
    }
    cli_print_json(json_pack("{s:I, s:I, s:I, s:I, s:I}", "chunks", (json_int_t)t->n, "bytes",
                          (json_int_t)t->bytes, "good", (json_int_t)t->good,
                          "without_checksum", (json_int_t)t->unchecked, "bad",
                          (json_int_t)t->bad));
}

static int
verify_run(int argc, char **argv)
{
    struct cli_common c;
    struct kvt_store *store;
    struct keys keys = { 0 };
    struct totals totals = { 0 };
    struct kvt_op ops[AT_ONCE];
    int err = 0, code = cli_parse(&cli_verify, argc, argv, NULL, 0, -1, &c);

    if (!code)
        code = cli_open_store(&c, &store);
    if (code)
        return code;
    for (int i = 0; !err && i < c.n_args; i++)
        err = add_key(&keys, c.args[i]);
    if (!c.n_args)
        err = kvt_store_list(store, "", add_listed, &keys);
    code = err ? cli_fail(err) : verify_keys(store, &c, &keys, ops, &totals);
    kvt_store_close(store);
    if (!err)
        print_totals(&c, &totals);
    for (size_t i = 0; i < keys.n; i++)
        free(keys.keys[i]);
    free(keys.keys);
    return code;
}

const struct cli_command cli_verify = {
    .name = "verify",
    .usage = "[OPTIONS] [KEY...]",
    .summary = "read chunks and check every byte",
    .help = "Reads each KEY (without any: all chunks in the store) and compares it with\n"
            "its checksum and identity. Prints the bad chunks and changes nothing. Chunks\n"
            "that LMCache wrote, and chunks in shared host memory, carry no checksum; the\n"
            "command counts these chunks apart.\n\n"
            CLI_COMMON_HELP,
    .no = "a chunk is missing or corrupt",
    .run = verify_run,
};
