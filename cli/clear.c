/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier clear: delete the chunks in shared host memory and return the memory to the host. */
#include <errno.h>
#include <inttypes.h>

#include "common.h"
#include "shared.h"

static int
report(const struct cli_common *c, const struct kvt_tier_info *before, uint64_t n_left,
       int err)
{
    char size[24];

    if (c->json) {
        json_t *o = json_pack("{s:I, s:I, s:b}", "deleted_chunks",
                              (json_int_t)(before->n_chunks - n_left), "freed_bytes",
                              err ? (json_int_t)0 : (json_int_t)before->allocated_bytes,
                              "in_use", err == -EBUSY);
        if (err)
            json_object_set_new(o, "error", cli_json_text(kvt_last_error()));
        cli_print_json(o);
    } else {
        printf("%" PRIu64 " chunks deleted", before->n_chunks - n_left);
        if (n_left)
            printf(", %" PRIu64 " chunks are stored at this moment and stay", n_left);
        if (!err)
            printf(", %s returned to the host", cli_size_text(before->allocated_bytes, size));
        printf("\n");
        if (err)
            (void)cli_fail(err);
    }
    return !err ? CLI_DONE : err == -EBUSY ? CLI_NO : CLI_ENVIRONMENT;
}

static int
clear_memory(const struct cli_common *c, struct kvt_store *store)
{
    struct kvt_tier_info before, after;

    cli_shared_info(store, &before);
    int err = kvt_store_clear(store);
    cli_shared_info(store, &after);
    uint64_t n_left = after.n_chunks < before.n_chunks ? after.n_chunks : before.n_chunks;
    return report(c, &before, n_left, err);
}

static int
clear_run(int argc, char **argv)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    static const struct kvt_tier_info nothing;
    struct kvt_store *store;
    struct cli_common c;
    int code = cli_parse(&cli_clear, argc, argv, NULL, 0, 0, &c);

    if (code)
        return code;
    sources.file = c.config_file;
    sources.settings = c.settings;
    int err = cli_shared_open(&sources, &store);
    if (err == -ENOENT)
        return report(&c, &nothing, 0, 0);
    if (err == -ENOTSUP)
        return cli_usage(&cli_clear, "shared_cpu is false; add --set shared_cpu=true");
    if (err)
        return cli_error(err == -EINVAL ? CLI_USAGE : CLI_ENVIRONMENT, "%s", kvt_last_error());
    code = clear_memory(&c, store);
    kvt_store_close(store);
    return code;
}

const struct cli_command cli_clear = {
    .name = "clear",
    .usage = "[OPTIONS]",
    .summary = "delete the chunks in shared host memory and return the memory",
    .help = "Deletes all chunks in the shared host memory of this host (shared_cpu). If no\n"
            "other process has the memory open, the memory returns to the host; else the\n"
            "exit code is 1. Chunks in storage stay: 'kvtier rm' deletes these. Chunks in\n"
            "the private memory of running engines stay too.\n\n"
            CLI_COMMON_HELP,
    .no = "another process has the memory open; the chunks were deleted",
    .run = clear_run,
};
