/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier ls: list the chunks in the store. */
#include <inttypes.h>
#include <time.h>

#include "common.h"

struct listing {
    bool json;
    uint64_t n, bytes;
};

static int
print_one(void *ctx, const struct kvt_listed *x)
{
    struct listing *l = ctx;
    time_t written = (time_t)(x->mtime_ns / 1000000000);
    struct tm tm;
    char when[32] = "", size[24];

    l->n++;
    l->bytes += x->stored_bytes;
    if (l->json) {
        json_t *o = json_pack("{s:o, s:s, s:I, s:f}", "key", cli_json_text(x->key), "tier", x->tier,
                              "stored_bytes", (json_int_t)x->stored_bytes, "written",
                              (double)x->mtime_ns / 1e9);
        cli_print_json(o);
        return 0;
    }
    if (localtime_r(&written, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
    printf("%-8s %10s  %s  ", x->tier, cli_size_text(x->stored_bytes, size), when);
    cli_print_text(stdout, x->key);
    return ferror(stdout);
}

static int
ls_run(int argc, char **argv)
{
    struct cli_common c;
    struct listing l = { 0 };
    struct kvt_store *store;
    char size[24];
    int code = cli_parse(&cli_ls, argc, argv, NULL, 0, 1, &c);

    if (code)
        return code;
    l.json = c.json;
    code = cli_open_store(&c, &store);
    if (code)
        return code;
    int err = kvt_store_list(store, c.n_args ? c.args[0] : "", print_one, &l);
    code = err ? cli_fail(err) : CLI_DONE;
    kvt_store_close(store);
    if (!code && !l.json)
        printf("%" PRIu64 " chunks, %s\n", l.n, cli_size_text(l.bytes, size));
    return code;
}

const struct cli_command cli_ls = {
    .name = "ls",
    .usage = "[OPTIONS] [PREFIX]",
    .summary = "list the chunks in the store",
    .help = "Prints tier, size on disk, time of writing and key of each chunk whose key begins\n"
            "with PREFIX (for example a model's name); with --json an object for each line.\n"
            "Names in s3 have '_' in place of '/', names in local_disk '-'; PREFIX may contain\n"
            "either, and get, stat, rm and verify accept the printed keys.\n\n"
            CLI_COMMON_HELP,
    .negative = "does not occur",
    .run = ls_run,
};
