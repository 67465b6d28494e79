/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier verify: read chunks, a few at a time, and compare each chunk with the chunk's checksum
 * and identity. */
#include <inttypes.h>

#include "batch.h"
#include "common.h"

struct totals {
    bool json;
    uint64_t n, good, unchecked, bad, bytes;
    uint64_t n_failed; /* chunks that could not be read: neither good nor bad */
    int code;          /* highest exit code of the chunks */
};

static void
on_verified(void *ctx, const struct cli_chunk *chunk, const struct kvt_op *op)
{
    struct totals *t = ctx;
    int code = cli_code(op->status);

    (void)chunk;
    t->code = code > t->code ? code : t->code;
    t->n++;
    t->bytes += op->found_bytes;
    if (!op->status && op->found & KVT_FOUND_CHECKED)
        t->good++;
    else if (!op->status)
        t->unchecked++;
    else if (code == CLI_NEGATIVE)
        t->bad++;
    else
        t->n_failed++;
    if (op->status && !t->json) {
        cli_progress_end();
        printf("%s: ", code == CLI_NEGATIVE ? "bad" : "not read");
        cli_print_text(stdout, op->why);
    } else if (op->status) {
        cli_print_json(json_pack("{s:o, s:o}", "key", cli_json_text(op->key), "error",
                                 cli_json_text(op->why)));
    }
}

static void
print_totals(const struct totals *t)
{
    char size[24];

    if (!t->json) {
        printf("%" PRIu64 " chunks, %s: %" PRIu64 " good, %" PRIu64
               " without checksum, %" PRIu64 " bad", t->n,
               cli_size_text(t->bytes, size), t->good, t->unchecked, t->bad);
        if (t->n_failed)
            printf(", %" PRIu64 " not read", t->n_failed);
        printf("\n");
        return;
    }
    cli_print_json(json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "chunks", (json_int_t)t->n, "bytes",
                          (json_int_t)t->bytes, "good", (json_int_t)t->good,
                          "without_checksum", (json_int_t)t->unchecked, "bad",
                          (json_int_t)t->bad, "failed", (json_int_t)t->n_failed));
}

static int
verify_chunks(struct kvt_store *store, const struct cli_common *c, struct cli_chunks *chunks)
{
    struct totals totals = { .json = c->json };
    int code = 0;

    for (int i = 0; !code && i < c->n_args; i++)
        code = cli_chunks_add(chunks, &(const struct cli_chunk){ .key = c->args[i] });
    if (!c->n_args)
        code = cli_chunks_list(store, "", chunks);
    if (!code)
        code = cli_chunks_run(store, KVT_OP_VERIFY, chunks, "verified", on_verified, &totals);
    if (code)
        return code;
    print_totals(&totals);
    return totals.code;
}

static int
verify_run(int argc, char **argv)
{
    struct cli_common c;
    struct kvt_store *store;
    struct cli_chunks chunks = { 0 };
    int code = cli_parse(&cli_verify, argc, argv, NULL, 0, -1, &c);

    if (!code)
        code = cli_open_store(&c, &store);
    if (code)
        return code;
    code = verify_chunks(store, &c, &chunks);
    kvt_store_close(store);
    cli_chunks_free(&chunks);
    return code;
}

const struct cli_command cli_verify = {
    .name = "verify",
    .usage = "[OPTIONS] [KEY...]",
    .summary = "read chunks and check every byte",
    .help = "Reads each KEY (without KEY: all chunks) and compares the bytes with checksum and\n"
            "identity. Also decodes encoded chunks (remote_serde), and compares the decoded bytes\n"
            "with their checksum. Prints the corrupt chunks and changes nothing. Chunks of\n"
            "LMCache, and chunks in shared host memory, have no checksum and are counted\n"
            "separately.\n\n"
            CLI_COMMON_HELP,
    .negative = "a chunk is missing or corrupt",
    .run = verify_run,
};
