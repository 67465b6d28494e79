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
#define MAX_TIERS 32

enum { FROM, TO };

/* The copy of a chunk: look up the chunk in each target, read the chunk from FROM, write the chunk
 * to each target that lacks the chunk. */
struct transfer {
    struct kvt_op op;
    struct kvt_op source; /* the completed GET: identity, tokens and shape of the chunk */
    const struct cli_chunk *chunk;
    char *key; /* key in TO; owned */
    size_t target;   /* number of the target of the lookup or write in progress */
    uint32_t lacking; /* a bit for each target that lacks the chunk */
    unsigned char *payload;
    uint64_t room; /* size of payload */
    bool is_free;  /* the transfer has no chunk */
};

struct copy {
    struct cli_common common;
    const char *config[N_STORES], *prefix, *model;
    struct kvt_store *stores[N_STORES];
    uint32_t targets[MAX_TIERS]; /* values of kvt_op.tier: the storage of TO that takes chunks */
    size_t n_targets;
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

/* Make the first SIGINT, SIGTERM or SIGHUP set interrupted.  A second signal ends the process. */
static void
catch_interrupts(void)
{
    struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND };
    struct sigaction before;

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (!sigaction(SIGHUP, NULL, &before) && before.sa_handler != SIG_IGN) /* not with nohup */
        sigaction(SIGHUP, &action, NULL);
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
    (void)cli_print_result(&c->common, &op);
    c->n_failed++;
    c->code = code > c->code ? code : c->code;
    end(c, t);
}

/* Start the transfer's next request: of this kind, in store FROM, or in t->target of TO. */
static void
submit(struct copy *c, struct transfer *t, int store, uint32_t kind)
{
    struct kvt_op *op = &t->op;

    op->kind = kind;
    op->user = t;
    op->key = store == TO ? t->key : t->chunk->key;
    op->tier = store == TO ? c->targets[t->target] : t->chunk->tier;
    if (kvt_store_submit(c->stores[store], &op, 1))
        fail(c, t, CLI_ENVIRONMENT, kvt_last_error());
}

static void
look_up(struct copy *c, struct transfer *t)
{
    t->op = (struct kvt_op)KVT_INIT(struct kvt_op);
    submit(c, t, TO, KVT_OP_STAT);
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
    submit(c, t, FROM, KVT_OP_GET);
}

static void
on_lookup_done(struct copy *c, struct transfer *t)
{
    if (t->op.status == -ENOENT || t->op.status == -EBADMSG) {
        t->lacking |= UINT32_C(1) << t->target;
    } else if (t->op.status) {
        fail(c, t, cli_code(t->op.status), t->op.why);
        return;
    }
    if (++t->target < c->n_targets) {
        look_up(c, t);
    } else if (t->lacking) {
        read_chunk(c, t, t->chunk->stored_bytes);
    } else {
        c->n_skipped++;
        end(c, t);
    }
}

/* Write the chunk to the next target that lacks the chunk.  Without such a target, end. */
static void
write_chunk(struct copy *c, struct transfer *t)
{
    if (!t->lacking) {
        c->n_copied++;
        c->bytes += t->source.found_bytes;
        end(c, t);
        return;
    }
    t->target = (size_t)__builtin_ctz(t->lacking);
    t->lacking &= t->lacking - 1;
    t->op = t->source;
    t->op.flags = KVT_OP_WITH_ID;
    t->op.bytes = t->source.found_bytes;
    submit(c, t, TO, KVT_OP_PUT);
}

static void
on_read_done(struct copy *c, struct transfer *t)
{
    const uint32_t verified = KVT_FOUND_ID | KVT_FOUND_CHECKED;
    char why[sizeof t->op.why];

    if (t->op.status == -EMSGSIZE) {
        read_chunk(c, t, t->op.found_bytes);
    } else if (t->op.status) {
        fail(c, t, cli_code(t->op.status), t->op.why);
    } else if ((t->op.found & verified) != verified) {
        snprintf(why, sizeof why, "%s: the chunk has no checksum and was not copied", t->op.key);
        fail(c, t, CLI_NEGATIVE, why);
    } else if (t->op.expires_ns) { /* the copy would live longer */
        c->n_skipped++;
        end(c, t);
    } else {
        t->source = t->op;
        write_chunk(c, t);
    }
}

static void
on_write_done(struct copy *c, struct transfer *t)
{
    if (t->op.status)
        fail(c, t, cli_code(t->op.status), t->op.why);
    else
        write_chunk(c, t);
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
        t->target = 0;
        t->lacking = 0;
        if (t->key)
            look_up(c, t);
        else
            fail(c, t, CLI_ENVIRONMENT, "not enough memory for the key");
    }
}

/* Wait at most 1 s for completed requests and continue their transfers. */
static void
poll_stores(struct copy *c)
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
                on_lookup_done(c, done[j]->user);
            else if (done[j]->kind == KVT_OP_GET)
                on_read_done(c, done[j]->user);
            else
                on_write_done(c, done[j]->user);
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
        printf(", %zu left: the same command continues", c->chunks.n - c->n_done);
    printf("\n");
}

/* Return true if FROM has a directory with this URL.  Buckets with equal URLs can be at different
 * endpoints. */
static bool
is_source(const struct copy *c, const struct kvt_tier_info *target)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);

    for (size_t i = 0; !kvt_store_tier(c->stores[FROM], i, &info); i++)
        if (!strcmp(info.url, target->url) && strcmp(info.tier, "s3"))
            return true;
    return false;
}

/* Find the targets.  Return 0, or CLI_USAGE after printing the error: TO has no target, or all
 * targets are sources. */
static int
find_targets(struct copy *c)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);
    bool differs = false;

    for (size_t i = 0; i < MAX_TIERS && !kvt_store_tier(c->stores[TO], i, &info); i++) {
        if (!info.takes_puts)
            continue;
        c->targets[c->n_targets++] = (uint32_t)i + 1;
        differs |= !is_source(c, &info);
    }
    if (!c->n_targets)
        return cli_usage(&cli_cp, "the configuration --to stores no chunk in storage; see "
                         "store_location");
    return differs ? 0 : cli_usage(&cli_cp, "--from and --to name the same storage; KVTIER_ and "
                                   "LMCACHE_ variables override both files");
}

static int
copy_chunks(struct copy *c)
{
    int code = find_targets(c);

    if (!code)
        code = cli_chunks_list(c->stores[FROM], c->prefix, &c->chunks);
    if (!code)
        code = cp_select(c->stores[FROM], c->model, &c->chunks);
    if (code)
        return code;
    for (size_t i = 0; i < AT_ONCE; i++)
        c->transfers[i].is_free = true;
    catch_interrupts();
    start(c);
    while (c->n_done < c->n_started) {
        poll_stores(c);
        start(c);
        cli_progress("copied", c->n_done, c->chunks.n);
    }
    cli_progress_end();
    print_counts(c);
    for (size_t i = 0; i < AT_ONCE; i++)
        free(c->transfers[i].payload);
    return c->code || c->n_done == c->chunks.n ? c->code : CLI_NEGATIVE;
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
        "Chunks with a time to live are skipped.\n"
        "\n"
        "The command skips a chunk that all storage of --to has, so after Ctrl-C or a failure\n"
        "the same command continues the copy. Between storage with the same format a copy is\n"
        "byte for byte the source. Objects in S3 and files of local_disk have no header with\n"
        "the shape of the KV, so LMCache cannot read their copies in files with a header\n"
        "(gds_path, and fs unless save_chunk_meta is false); engines with kvtier can.\n"
        "\n"
        "  --from FILE      configuration of the present storage\n"
        "  --to FILE        configuration of the new storage\n"
        "  --prefix PREFIX  only the chunks whose keys begin with PREFIX, as in 'kvtier ls'\n"
        "  --model NAME     only the chunks of this model. Needed if a chunk's model has '_' in\n"
        "                   S3 or '-' in local_disk, because these replace '/' in names\n"
        "  --json           print JSON\n",
    .negative = "a chunk is corrupt, has no checksum or was evicted after the listing, or the "
                "command was interrupted",
    .run = cp_run,
};
