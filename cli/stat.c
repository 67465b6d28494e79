/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier stat: describe the tiers or a chunk. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "common.h"

static json_t *
op_json(const struct kvt_op *op)
{
    char id[33];
    json_t *o = json_pack("{s:o, s:I, s:b, s:s}", "key", cli_json_text(op->key), "bytes",
                          (json_int_t)op->found_bytes, "has_checksum",
                          (op->found & KVT_FOUND_ID) != 0, "encoding",
                          kvt_key_encoding(op->key));

    if (op->found & KVT_FOUND_ID) {
        cli_id_text(op->id, id);
        json_object_set_new(o, "identity", json_string(id));
        json_object_set_new(o, "tokens", json_integer(op->tokens));
    }
    if (op->expires_ns)
        json_object_set_new(o, "expires", json_real((double)op->expires_ns / 1e9));
    return o;
}

#define TIME_BYTES 32

/* Write a time of the wall clock in local time. */
static const char *
time_text(int64_t ns, char out[TIME_BYTES])
{
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm tm;

    if (!localtime_r(&seconds, &tm) || !strftime(out, TIME_BYTES, "%Y-%m-%d %H:%M:%S", &tm))
        strcpy(out, "unknown");
    return out;
}

static int
stat_key(struct kvt_store *store, const struct cli_common *c, const char *key)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);
    char id[33], when[TIME_BYTES];

    op.kind = KVT_OP_STAT;
    op.key = key;
    if (kvt_store_run(store, &op))
        return cli_print_result(c, &op);
    if (c->json) {
        cli_print_json(op_json(&op));
        return CLI_DONE;
    }
    printf("key       ");
    cli_print_text(stdout, key);
    printf("bytes     %" PRIu64 "\nencoding  %s\n", op.found_bytes, kvt_key_encoding(key));
    if (op.found & KVT_FOUND_ID) {
        cli_id_text(op.id, id);
        printf("identity  %s\n", id);
        if (op.tokens)
            printf("tokens    %u\n", op.tokens);
    } else {
        printf("identity  none: written by LMCache, no checksum\n");
    }
    if (op.expires_ns)
        printf("expires   %s\n", time_text(op.expires_ns, when));
    return CLI_DONE;
}

static bool
is_memory(const struct kvt_tier_info *t)
{
    return !strcmp(t->tier, "shared_cpu");
}

static void
print_memory(const struct kvt_tier_info *t)
{
    char allocated[24], limit[24], when[TIME_BYTES];

    printf("  memory  %s of %s allocated, last use: %s\n",
           cli_size_text(t->allocated_bytes, allocated),
           cli_size_text(t->limit_bytes, limit),
           t->last_use_ns ? time_text(t->last_use_ns, when) : "never");
}

/* Print the measured speed of loads, and the times of the models. */
static void
print_speed(struct kvt_store *store, size_t i, const struct kvt_tier_info *t)
{
    struct kvt_prefill_info prefill = KVT_INIT(struct kvt_prefill_info);
    char text[CLI_PREFILL_BYTES], rate[24];

    if (t->load_bytes_per_s)
        printf("  load    %s/s, latency %.2f ms\n", cli_size_text(t->load_bytes_per_s, rate),
               (double)t->load_latency_ns / 1e6);
    for (size_t j = 0; !kvt_store_prefill(store, i, j, &prefill); j++)
        printf("  prefill %s\n", cli_prefill_text(t, &prefill, text));
}

static void
print_tier(const struct kvt_tier_info *t)
{
    char used[24], limit[24];

    printf("%s  %s\n  chunks  %" PRIu64 "\n  used    %s of %s\n  index   %s, at most %" PRIu64
           " chunks\n", t->tier, t->url, t->n_chunks, cli_size_text(t->used_bytes, used),
           t->limit_bytes ? cli_size_text(t->limit_bytes, limit) : "no limit",
           t->index_shared ? "shared" : "private to this process", t->n_entries);
    if (is_memory(t))
        print_memory(t);
    else
        printf("  serde   %s%s%s\n", t->serde, *t->serde_reason ? ": " : "", t->serde_reason);
}

static json_t *
prefill_json(struct kvt_store *store, size_t i)
{
    struct kvt_prefill_info prefill = KVT_INIT(struct kvt_prefill_info);
    json_t *all = json_array();

    for (size_t j = 0; !kvt_store_prefill(store, i, j, &prefill); j++)
        json_array_append_new(all, json_pack("{s:o, s:f, s:f, s:I, s:I}", "model",
            cli_json_text(prefill.model), "ns_per_token", prefill.ns_per_token,
            "ns_per_position", prefill.ns_per_position, "bytes_per_token",
            (json_int_t)prefill.bytes_per_token, "break_even_tokens",
            (json_int_t)prefill.break_even_tokens));
    return all;
}

static json_t *
tier_json(struct kvt_store *store, size_t i, const struct kvt_tier_info *t)
{
    json_t *o = json_pack("{s:s, s:o, s:I, s:I, s:I, s:I, s:b}", "tier", t->tier, "url",
                     cli_json_text(t->url), "chunks", (json_int_t)t->n_chunks, "used_bytes",
                     (json_int_t)t->used_bytes, "limit_bytes",
                     (json_int_t)t->limit_bytes, "index_places",
                     (json_int_t)t->n_entries, "index_shared", t->index_shared);

    if (is_memory(t)) {
        json_object_set_new(o, "allocated_bytes",
                            json_integer((json_int_t)t->allocated_bytes));
        json_object_set_new(o, "last_use", t->last_use_ns
                            ? json_real((double)t->last_use_ns / 1e9) : json_null());
    } else {
        json_object_set_new(o, "serde", json_string(t->serde));
        json_object_set_new(o, "load_latency_ns", json_integer((json_int_t)t->load_latency_ns));
        json_object_set_new(o, "load_bytes_per_s", json_integer((json_int_t)t->load_bytes_per_s));
        json_object_set_new(o, "prefill", prefill_json(store, i));
        if (*t->serde_reason)
            json_object_set_new(o, "serde_reason", json_string(t->serde_reason));
    }
    return o;
}

static int
stat_tiers(struct kvt_store *store, const struct cli_common *c)
{
    struct kvt_tier_info t = KVT_INIT(struct kvt_tier_info);
    json_t *all = json_array();

    for (size_t i = 0; !kvt_store_tier(store, i, &t); i++) {
        if (c->json) {
            json_array_append_new(all, tier_json(store, i, &t));
            continue;
        }
        print_tier(&t);
        if (!is_memory(&t))
            print_speed(store, i, &t);
    }
    if (c->json)
        cli_print_json(all);
    else
        json_decref(all);
    return CLI_DONE;
}

static int
stat_run(int argc, char **argv)
{
    struct cli_common c;
    struct kvt_store *store;
    int code = cli_parse(&cli_stat, argc, argv, NULL, 0, 1, &c);

    if (!code)
        code = cli_open_store(&c, &store);
    if (code)
        return code;
    code = c.n_args ? stat_key(store, &c, c.args[0]) : stat_tiers(store, &c);
    kvt_store_close(store);
    return code;
}

const struct cli_command cli_stat = {
    .name = "stat",
    .usage = "[OPTIONS] [KEY]",
    .summary = "describe the tiers or a chunk",
    .help = "Without KEY: each tier's address, limit, and chunks and bytes in its index.\n"
            "Shared host memory also has allocated bytes and the time of the last use.\n"
            "A new index has few chunks until a running engine has listed the storage;\n"
            "'kvtier ls' lists the storage. Engines measure the speed of loads and, with\n"
            "load_policy: faster, the time to compute a prompt. With KEY: the chunk's stored\n"
            "size, encoding, identity, tokens and end of the time to live.\n\n"
            CLI_COMMON_HELP,
    .negative = "KEY is missing or corrupt",
    .run = stat_run,
};
