/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier bench: measure the configured storage. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common.h"
#include "file.h"

#define MAX_TIERS 16
#define MIB ((uint64_t)1 << 20)

struct arguments {
    struct cli_common common;
    struct bench_plan plan;
    uint64_t size_mib;
    const char *concurrency, *tier, *html;
};

/* Parse a list of concurrencies such as "1,4,16".  Return 0 or CLI_USAGE. */
static int
read_concurrency(const char *text, struct bench_plan *plan)
{
    const char *at = text;

    for (plan->n_levels = 0; plan->n_levels < BENCH_MAX_LEVELS;) {
        char *end;
        unsigned long n = strtoul(at, &end, 10);

        if (*at < '0' || *at > '9' || !n || n > BENCH_MAX_CONCURRENCY)
            break;
        plan->concurrency[plan->n_levels++] = (unsigned)n;
        if (!*end)
            return 0;
        if (*end != ',')
            break;
        at = end + 1;
    }
    return cli_usage(&cli_bench, "--concurrency needs at most %d numbers from 1 to %d with "
                     "commas between, not '%s'", BENCH_MAX_LEVELS, BENCH_MAX_CONCURRENCY, text);
}

static int
parse(int argc, char **argv, struct arguments *a)
{
    const struct cli_option own[] = {
        { .name = "size", .number = &a->size_mib, .max = 4096 },
        { .name = "count", .number = &a->plan.n_chunks, .max = 1000000 },
        { .name = "concurrency", .text = &a->concurrency },
        { .name = "tier", .text = &a->tier },
        { .name = "html", .text = &a->html },
        { .name = NULL },
    };

    *a = (struct arguments){ .size_mib = 16, .plan.n_chunks = 32, .concurrency = "1,4,16" };
    int code = cli_parse(&cli_bench, argc, argv, own, 0, 0, &a->common);
    if (!code)
        code = read_concurrency(a->concurrency, &a->plan);
    a->plan.chunk_bytes = a->size_mib * MIB;
    return code;
}

/* ------------------------------------------------------------------ tiers */

/* Return true if all chunks of a measurement fit in the tier without an eviction; else print an
 * error. */
static bool
has_room(const struct kvt_tier_info *t, const struct bench_plan *plan)
{
    char used[24], limit[24];

    if (!t->limit_bytes ||
        t->used_bytes + plan->n_chunks * (plan->chunk_bytes + 4096) <= t->limit_bytes)
        return true;
    cli_error(CLI_NEGATIVE, "bench: %s %s is left out: %s of %s are used, and %" PRIu64
              " chunks of %" PRIu64 " MiB would evict chunks; lower --count or --size.",
              t->tier, t->url, cli_size_text(t->used_bytes, used),
              cli_size_text(t->limit_bytes, limit), plan->n_chunks, plan->chunk_bytes / MIB);
    return false;
}

struct result {
    struct bench_row rows[MAX_TIERS * BENCH_MAX_LEVELS * BENCH_N_STEPS];
    size_t n;
};

/* Print the rows of a measurement.  Return the highest exit code of the failures in the rows. */
static int
report(const struct arguments *a, const struct bench_row *rows)
{
    int code = 0;

    for (int i = 0; i < BENCH_N_STEPS; i++) {
        int one = cli_code(rows[i].status);

        if (a->common.json)
            bench_print_json(&rows[i]);
        else
            bench_print_row(&rows[i]);
        code = one > code ? one : code;
    }
    if (rows[BENCH_DELETE].n_failed)
        cli_error(code, "bench: %" PRIu64 " chunks may remain in %s; 'kvtier rm --prefix "
                  "kvtier-bench@' deletes the chunks.", rows[BENCH_DELETE].n_failed,
                  rows->tier.url);
    return code;
}

static int
measure_tier(struct kvt_store *store, size_t tier, const struct arguments *a, struct result *r)
{
    int worst = 0;

    for (size_t i = 0; i < a->plan.n_levels && !bench_interrupted(); i++) {
        struct bench_row *rows = r->rows + r->n;
        int code = bench_measure(store, tier, &a->plan, a->plan.concurrency[i], rows);

        r->n += BENCH_N_STEPS;
        if (code)
            return code;
        code = report(a, rows);
        worst = code > worst ? code : worst;
    }
    return worst;
}

static int
measure_tiers(struct kvt_store *store, const struct arguments *a, struct result *r)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);
    bool any = false;
    int worst = 0;

    for (size_t i = 0; i < MAX_TIERS && !kvt_store_tier(store, i, &info); i++) {
        if (a->tier && strcmp(a->tier, info.tier))
            continue;
        if (!any && !a->common.json)
            bench_print_head();
        any = true;
        int code = has_room(&info, &a->plan) ? measure_tier(store, i, a, r) : CLI_NEGATIVE;
        worst = code > worst ? code : worst;
    }
    return any ? worst : cli_usage(&cli_bench, "the configuration has no tier '%s'; 'kvtier "
                                   "stat' lists the tiers", a->tier ? a->tier : "");
}

/* ------------------------------------------------------------------ command */

/* Open the file of --html before the measurement: a wrong path costs no measurement. */
static int
open_page(const char *path, struct cli_file *page)
{
    int err = path ? cli_file_open(page, path) : 0;

    return err ? cli_error(CLI_ENVIRONMENT, "bench: write %s: %s", path, strerror(-err)) : 0;
}

/* Write and close the page.  Without rows no page is made. */
static int
write_page(const char *path, struct cli_file *page, const struct result *r)
{
    bool any = page->out && r && r->n;

    if (any)
        bench_write_html(page->out, r->rows, r->n);
    int err = cli_file_close(page, any);
    return err ? cli_error(CLI_ENVIRONMENT, "bench: write %s: %s", path, strerror(-err)) : 0;
}

static int
bench_run(int argc, char **argv)
{
    struct cli_file page = { .out = NULL };
    struct kvt_store *store;
    struct arguments a;
    int code = parse(argc, argv, &a);

    if (!code)
        code = open_page(a.html, &page);
    if (!code)
        code = cli_open_store(&a.common, &store);
    if (code) {
        cli_file_close(&page, false);
        return code;
    }
    struct result *r = calloc(1, sizeof *r);
    bench_catch_interrupts();
    if (r)
        code = measure_tiers(store, &a, r);
    else
        code = cli_error(CLI_ENVIRONMENT, "bench: not enough memory");
    kvt_store_close(store);
    if (bench_interrupted()) {
        cli_error(CLI_NEGATIVE, "bench: interrupted.");
        code = code ? code : CLI_NEGATIVE;
    }
    int page_code = write_page(a.html, &page, r);
    code = page_code ? page_code : code;
    for (size_t i = 0; r && i < r->n; i++)
        bench_row_free(&r->rows[i]);
    free(r);
    return code;
}

const struct cli_command cli_bench = {
    .name = "bench",
    .usage = "[OPTIONS]",
    .summary = "measure the configured storage",
    .help =
        "Writes, looks up, reads and deletes chunks in each configured tier, and prints\n"
        "throughput, latencies and CPU seconds per GB of each step. A read verifies the\n"
        "checksum. The command deletes the chunks that the command has written, also after\n"
        "Ctrl-C (a second Ctrl-C ends the command at once); the keys begin with\n"
        "kvtier-bench@. A tier whose limit has no room for the chunks is left out: the\n"
        "measurement evicts nothing.\n"
        "\n"
        "Files are read with O_DIRECT where the file system supports O_DIRECT; elsewhere the\n"
        "page cache serves the reads. Operations beyond disk_io_threads wait for a thread of\n"
        "the file tiers: raise the setting to measure a higher concurrency.\n"
        "\n"
        "  --size MIB       size of a chunk in MiB (default: 16)\n"
        "  --count N        chunks of each measurement (default: 32)\n"
        "  --concurrency LIST  operations at a time (default: 1,4,16)\n"
        "  --tier NAME      measure only this tier, such as s3 (default: all tiers)\n"
        "  --html FILE      also write a page with plots of throughput and latency\n"
        CLI_COMMON_HELP,
    .negative = "a chunk was missing or corrupt, a tier was left out, or the run was interrupted",
    .run = bench_run,
};
