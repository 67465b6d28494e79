/* SPDX-License-Identifier: Apache-2.0 */
#include "delete.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"

int
cli_delete_code(int status)
{
    return status == -EBUSY ? CLI_NEGATIVE : cli_code(status);
}

struct deletion {
    const struct cli_delete *options;
    uint64_t n, bytes;   /* deleted chunks and their bytes; in a dry run: selected chunks */
    uint64_t n_failed;
    int code;
};

/* Reduce the list to the chunks to delete.  Return false if no tier has the name options->tier. */
static bool
select_chunks(struct kvt_store *store, const struct cli_delete *options, struct cli_chunks *c)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);
    bool known = !options->tier;
    size_t n = 0;

    for (size_t i = 0; options->tier && !kvt_store_tier(store, i, &info); i++)
        known |= !strcmp(info.tier, options->tier);
    for (size_t i = 0; i < c->n; i++) {
        (void)!kvt_store_tier(store, c->chunks[i].tier - 1, &info);
        if (c->chunks[i].mtime_ns < options->before_ns &&
            (!options->tier || !strcmp(info.tier, options->tier)))
            c->chunks[n++] = c->chunks[i];
        else
            free(c->chunks[i].key);
    }
    c->n = n;
    return known;
}

/* Count a completed delete.  A chunk that was evicted after the listing (-ENOENT) counts neither as
 * deleted nor as failed. */
static void
on_deleted(void *ctx, const struct cli_chunk *chunk, const struct kvt_op *op)
{
    struct deletion *d = ctx;
    int code = cli_delete_code(op->status);

    if (!op->status) {
        d->n++;
        d->bytes += chunk->stored_bytes;
    } else if (op->status != -ENOENT) {
        cli_progress_end();
        (void)cli_print_result(d->options->common, op);
        d->n_failed++;
        d->code = code > d->code ? code : d->code;
    }
}

static void
print_chunk(const char *tier, const char *key)
{
    printf("%-8s ", tier);
    cli_print_text(stdout, key);
}

static void
print_chunks(struct kvt_store *store, const struct cli_chunks *c, struct deletion *d)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);

    for (size_t i = 0; i < c->n; i++) {
        (void)!kvt_store_tier(store, c->chunks[i].tier - 1, &info);
        if (d->options->common->json)
            cli_print_json(json_pack("{s:o, s:s}", "key", cli_json_text(c->chunks[i].key),
                                     "tier", info.tier));
        else
            print_chunk(info.tier, c->chunks[i].key);
        d->n++;
        d->bytes += c->chunks[i].stored_bytes;
    }
}

static void
print_counts(const struct deletion *d)
{
    bool dry_run = d->options->dry_run;
    char size[24];

    if (d->options->common->json) {
        cli_print_json(json_pack("{s:I, s:I, s:I, s:b}", "deleted_chunks",
                                 dry_run ? (json_int_t)0 : (json_int_t)d->n, "chunks",
                                 (json_int_t)(d->n + d->n_failed), "bytes",
                                 (json_int_t)d->bytes, "dry_run", dry_run));
        return;
    }
    printf("%" PRIu64 " chunks, %s%s", d->n, cli_size_text(d->bytes, size),
           dry_run ? " would be deleted" : " deleted");
    if (d->n_failed)
        printf(", %" PRIu64 " chunks were not deleted", d->n_failed);
    printf("\n");
}

static int
delete_listed(struct kvt_store *store, const struct cli_delete *options, struct cli_chunks *c)
{
    struct deletion d = { .options = options };
    int code = cli_chunks_list(store, options->prefix, c);

    if (code)
        return code;
    if (!select_chunks(store, options, c))
        return cli_usage(options->command, "the configuration has no tier '%s'; 'kvtier stat' "
                         "lists the tiers", options->tier);
    if (options->dry_run)
        print_chunks(store, c, &d);
    else
        code = cli_chunks_run(store, KVT_OP_DELETE, c, "deleted", on_deleted, &d);
    print_counts(&d);
    return code > d.code ? code : d.code;
}

int
cli_delete(const struct cli_delete *options)
{
    struct cli_chunks chunks = { 0 };
    struct kvt_store *store;
    int code = cli_open_store(options->common, &store);

    if (code)
        return code;
    code = delete_listed(store, options, &chunks);
    kvt_store_close(store);
    cli_chunks_free(&chunks);
    return code;
}
