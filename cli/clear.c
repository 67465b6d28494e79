/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier clear: delete the chunks in shared host memory and return the memory to the host, or
 * delete old chunks. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "common.h"
#include "delete.h"
#include "shared.h"

#define MAX_DAYS INT64_C(36500)

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
    return !err ? CLI_DONE : err == -EBUSY ? CLI_NEGATIVE : CLI_ENVIRONMENT;
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
clear_shared(const struct cli_common *c)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    static const struct kvt_tier_info nothing;
    struct kvt_store *store;

    sources.file = c->config_file;
    sources.settings = c->settings;
    int err = cli_shared_open(&sources, &store);
    if (err == -ENOENT)
        return report(c, &nothing, 0, 0);
    if (err == -ENOTSUP)
        return cli_usage(&cli_clear, "shared_cpu is false; add --set shared_cpu=true");
    if (err)
        return cli_error(err == -EINVAL ? CLI_USAGE : CLI_ENVIRONMENT, "%s", kvt_last_error());
    int code = clear_memory(c, store);
    kvt_store_close(store);
    return code;
}

/* Parse an age such as 12h.  Return the seconds, or 0 if the text is no age or the age exceeds
 * MAX_DAYS. */
static int64_t
read_age(const char *text)
{
    static const struct {
        char unit;
        int64_t seconds;
    } units[] = { { 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 } };
    char *end;

    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || errno || !n || n > MAX_DAYS * 86400)
        return 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (end[0] == units[i].unit && !end[1])
            return (int64_t)n <= MAX_DAYS * 86400 / units[i].seconds
                ? (int64_t)n * units[i].seconds : 0;
    return 0;
}

static int
clear_run(int argc, char **argv)
{
    struct cli_common c;
    struct cli_delete options = { .command = &cli_clear, .common = &c, .prefix = "" };
    const char *older_than = NULL;
    struct timespec now;
    int code = cli_parse(&cli_clear, argc, argv, (const struct cli_option[]){
        { "older-than", .text = &older_than }, { "tier", .text = &options.tier }, { 0 } },
        0, 0, &c);

    if (code)
        return code;
    if (options.tier && !older_than)
        return cli_usage(&cli_clear, "--tier needs --older-than");
    if (!older_than)
        return clear_shared(&c);
    int64_t age = read_age(older_than);
    if (!age)
        return cli_usage(&cli_clear, "--older-than '%s' is no age: write 30s, 10m, 12h or 7d, "
                         "at most %" PRId64 "d", older_than, MAX_DAYS);
    clock_gettime(CLOCK_REALTIME, &now);
    options.before_ns = (now.tv_sec - age) * INT64_C(1000000000) + now.tv_nsec;
    return cli_delete(&options);
}

const struct cli_command cli_clear = {
    .name = "clear",
    .usage = "[OPTIONS]\n"
             "[OPTIONS] --older-than T [--tier NAME]",
    .summary = "empty the shared host memory, or delete old chunks",
    .help = "Without --older-than: deletes all chunks in the shared host memory of this host\n"
            "(shared_cpu). If no other process has the memory open, the memory returns to\n"
            "the host. Chunks in storage stay.\n\n"
            "With --older-than: deletes, in all storage of the configuration and in shared\n"
            "host memory, the chunks that were written more than T ago; a use of a chunk in\n"
            "shared host memory counts as a write. Newer chunks and the memory stay.\n\n"
            "Chunks in the private memory of running engines always stay.\n\n"
            "  --older-than T   an age: a whole number and s, m, h or d, such as 12h or 7d\n"
            "  --tier NAME      only the tiers of this kind, such as s3 (default: all tiers)\n"
            CLI_COMMON_HELP,
    .negative = "another process has the memory open, and the chunks were deleted; with "
                "--older-than: a chunk is in use and stays",
    .run = clear_run,
};
