/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier cp: copy chunks from the storage of a configuration to the storage of another
 * configuration. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "common.h"
#include "cp-keys.h"

#define AT_ONCE 8
#define N_STORES 2

enum { FROM, TO };

/* The copy of a chunk: look up the chunk in TO, read the chunk from FROM, write the chunk to TO. */
struct transfer {
    struct kvt_op op;
    const struct cli_chunk *chunk;
    char *key; /* key in TO; owned */
    unsigned char *payload;
    uint64_t room; /* size of payload */
    bool is_free;  /* the transfer has no chunk */
};

struct copy {
    struct cli_common common;
    const char *config[N_STORES], *prefix, *model;
    struct kvt_store *stores[N_STORES];
    struct cli_chunks chunks;
    struct transfer transfers[AT_ONCE];
    size_t n_started, n_done;
    uint64_t n_copied, bytes, n_skipped, n_failed;
    int code;
};

static volatile sig_atomic_t interrupted;

static void
on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

/* Make the first SIGINT or SIGTERM set interrupted.  A second signal ends the process. */
static void
catch_interrupts(void)
{
    struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

/* ----------------------------------------------------------- transfer of a chunk */

static void
end(struct copy *c, struct transfer *t)
{
    free(t->key);
    t->key = NULL;
    t->is_free = true;
    c->n_done++;
}

static void
fail(struct copy *c, struct transfer *t, int code, const char *why)
{
    struct kvt_op op = t->op;

    cli_progress_end();
    op.status = -EIO;
    op.key = t->chunk->key;
    snprintf(op.why, sizeof op.why, "%s", why);
    (void)cli_tell(&c->common, &op);
    c->n_failed++;
    c->code = code > c->code ? code : c->code;
    end(c, t);
}

/* Start the transfer's next request: of this kind, in store FROM or TO. */
static void
submit(struct copy *c, struct transfer *t, int store, uint32_t kind)
{
    struct kvt_op *op = &t->op;

    op->kind = kind;
    op->key = store == TO ? t->key : t->chunk->key;
    op->tier = store == TO ? 0 : t->chunk->tier;
    if (kvt_store_submit(c->stores[store], &op, 1))
        fail(c, t, CLI_ENVIRONMENT, kvt_last_error());
}

static void
read_chunk(struct copy *c, struct transfer *t, uint64_t bytes)
{
    if (t->room < bytes) {
        free(t->payload);
        t->payload = malloc(bytes);
        t->room = t->payload ? bytes : 0;
    }
    if (t->room < bytes) {
        fail(c, t, CLI_ENVIRONMENT, "not enough memory for the chunk");
        return;
    }
    t->op = (struct kvt_op)KVT_INIT(struct kvt_op);
    t->op.flags = KVT_OP_LISTED;
    t->op.buf = t->payload;
    t->op.bytes = t->room;
    t->op.user = t;
    submit(c, t, FROM, KVT_OP_GET);
}

static void
on_looked(struct copy *c, struct transfer *t)
{
    if (!t->op.status) {
        c->n_skipped++;
        end(c, t);
    } else if (t->op.status == -ENOENT || t->op.status == -EBADMSG) {
        read_chunk(c, t, t->chunk->stored_bytes);
    } else {
        fail(c, t, cli_code(t->op.status), t->op.why);
    }
}

static void
on_read(struct copy *c, struct transfer *t)
{
    const uint32_t verified = KVT_FOUND_ID | KVT_FOUND_CHECKED;
    char why[sizeof t->op.why];

    if (t->op.status == -EMSGSIZE) {
        read_chunk(c, t, t->op.found_bytes);
    } else if (t->op.status) {
        fail(c, t, cli_code(t->op.status), t->op.why);
    } else if ((t->op.found & verified) != verified) {
        snprintf(why, sizeof why, "%s: the chunk has no checksum and was not copied", t->op.key);
        fail(c, t, CLI_NO, why);
    } else {
        t->op.flags = KVT_OP_WITH_ID;
        t->op.bytes = t->op.found_bytes;
        submit(c, t, TO, KVT_OP_PUT);
    }
}

static void
on_written(struct copy *c, struct transfer *t)
{
    if (t->op.status) {
        fail(c, t, cli_code(t->op.status), t->op.why);
        return;
    }
    c->n_copied++;
    c->bytes += t->op.bytes;
    end(c, t);
}

/* ------------------------------------------------------------- all chunks */

/* Start transfers until all transfers are in use or all chunks are started.  After an interrupt,
 * or a failure with exit code CLI_USAGE or CLI_ENVIRONMENT, start none: a full disk, for example,
 * fails all further chunks too. */
static void
start(struct copy *c)
{
    for (size_t i = 0; i < AT_ONCE; i++) {
        struct transfer *t = &c->transfers[i];

        if (!t->is_free || c->n_started == c->chunks.n || interrupted ||
            c->code >= CLI_USAGE)
            continue;
        t->is_free = false;
        t->chunk = &c->chunks.chunks[c->n_started++];
        t->key = cp_key(t->chunk->key, c->model);
        t->op = (struct kvt_op)KVT_INIT(struct kvt_op);
        t->op.user = t;
        if (t->key)
            submit(c, t, TO, KVT_OP_STAT);
        else
            fail(c, t, CLI_ENVIRONMENT, "not enough memory for the key");
    }
}

static void
take(struct copy *c)
{
    struct pollfd fds[N_STORES];
    struct kvt_op *done[AT_ONCE];

    for (int i = 0; i < N_STORES; i++)
        fds[i] = (struct pollfd){ .fd = kvt_store_eventfd(c->stores[i]), .events = POLLIN };
    poll(fds, N_STORES, 1000);
    for (int i = 0; i < N_STORES; i++) {
        size_t n = kvt_store_poll(c->stores[i], done, AT_ONCE);

        for (size_t j = 0; j < n; j++) {
            if (done[j]->kind == KVT_OP_STAT)
                on_looked(c, done[j]->user);
            else if (done[j]->kind == KVT_OP_GET)
                on_read(c, done[j]->user);
            else
                on_written(c, done[j]->user);
        }
    }
}

static void
print_counts(const struct copy *c)
{
    char size[24];

    if (c->common.json) {
        cli_print_json(json_pack("{s:I, s:I, s:I, s:I, s:b}", "copied_chunks",
                                 (json_int_t)c->n_copied, "copied_bytes",
                                 (json_int_t)c->bytes, "skipped_chunks",
                                 (json_int_t)c->n_skipped, "failed_chunks",
                                 (json_int_t)c->n_failed, "complete",
                                 c->n_done == c->chunks.n));
        return;
    }
    printf("%" PRIu64 " chunks, %s copied, %" PRIu64 " skipped, %" PRIu64 " failed",
           c->n_copied, cli_size_text(c->bytes, size), c->n_skipped, c->n_failed);
    if (c->n_done < c->chunks.n)
        printf(", %zu left: the same command goes on", c->chunks.n - c->n_done);
    printf("\n");
}

static int
copy_chunks(struct copy *c)
{
    int code = cli_chunks_list(c->stores[FROM], c->prefix, &c->chunks);

    if (!code)
        code = cp_select(c->stores[FROM], c->model, &c->chunks);
    if (code)
        return code;
    for (size_t i = 0; i < AT_ONCE; i++)
        c->transfers[i].is_free = true;
    catch_interrupts();
    start(c);
    while (c->n_done < c->n_started) {
        take(c);
        start(c);
        cli_progress("copied", c->n_done, c->chunks.n);
    }
    cli_progress_end();
    print_counts(c);
    for (size_t i = 0; i < AT_ONCE; i++)
        free(c->transfers[i].payload);
    return c->code || c->n_done == c->chunks.n ? c->code : CLI_NO;
}

static int
cp_run(int argc, char **argv)
{
    struct copy c = { .prefix = "" };
    int code = cli_parse(&cli_cp, argc, argv, (const struct cli_option[]){
        { "from", .text = &c.config[FROM] }, { "to", .text = &c.config[TO] },
        { "prefix", .text = &c.prefix }, { "model", .text = &c.model }, { 0 } },
        0, 0, &c.common);

    if (!code && (!c.config[FROM] || !c.config[TO]))
        code = cli_usage(&cli_cp, "--from FILE and --to FILE are needed");
    if (!code && (c.common.config_file || c.common.n_settings))
        code = cli_usage(&cli_cp, "--config and --set name one configuration; cp has --from "
                         "and --to");
    for (int i = 0; !code && i < N_STORES; i++) {
        struct cli_common store = { .config_file = c.config[i] };
        code = cli_open_store(&store, &c.stores[i]);
    }
    if (!code)
        code = copy_chunks(&c);
    for (int i = 0; i < N_STORES; i++)
        kvt_store_close(c.stores[i]);
    cli_chunks_free(&c.chunks);
    return code;
}

const struct cli_command cli_cp = {
    .name = "cp",
    .usage = "--from FILE --to FILE [--prefix PREFIX] [--model NAME] [--json]",
    .summary = "copy chunks to the storage of another configuration",
    .help =
        "Copies the chunks in the storage of the configuration --from to the storage of the\n"
        "configuration --to, for example from a disk to S3, at most 8 chunks at a time. An\n"
        "engine with the second configuration hits the copies. The command verifies the\n"
        "checksum of each chunk: a corrupt chunk, and a chunk of LMCache, which has no\n"
        "checksum, is reported and not copied. Chunks in shared host memory are no storage.\n"
        "\n"
        "A chunk that --to has already is skipped, so after Ctrl-C or a failure the same\n"
        "command goes on. LMCache cannot read a copy in a file with a header (gds_path, and fs\n"
        "unless save_chunk_meta is false): the shape of the KV is lost.\n"
        "\n"
        "  --from FILE      configuration of the present storage\n"
        "  --to FILE        configuration of the new storage\n"
        "  --prefix PREFIX  only the chunks whose keys begin with PREFIX, as in 'kvtier ls'\n"
        "  --model NAME     only the chunks of this model. Needed if a chunk's model has '_' in\n"
        "                   S3 or '-' in local_disk, because these replace '/' in names\n"
        "  --json           print JSON\n",
    .no = "a chunk is corrupt, has no checksum or was evicted after the listing, or the command "
          "was interrupted",
    .run = cp_run,
};
