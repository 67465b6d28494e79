/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier codec: measure the codecs on chunks of a store, and on files that were copied out of a
 * store. */
#include "codec.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "batch.h"
#include "bench.h"
#include "common.h"
#include "file.h"

struct run {
    struct cli_common common;
    const char *html;
    bool prints_each;
    uint64_t sample; /* chunks of the store to measure, besides the arguments */
    struct cli_chunks listed;
    struct kvt_store *store; /* opened for the first key */
    struct codec_report total;
    struct codec_report *chunks;
    size_t n, n_all; /* measured chunks; chunks to measure */
    int code; /* highest exit code of the chunks */
};

/* ---------------------------------------------------------------------- results */

/* Return the row of a codec in a report; NULL: the report has no room. */
static struct codec_row *
row_of(struct codec_report *report, const char *codec)
{
    for (size_t i = 0; i < report->n_rows; i++)
        if (!strcmp(report->rows[i].codec, codec))
            return &report->rows[i];
    if (report->n_rows == CODEC_MAX)
        return NULL;
    report->rows[report->n_rows].codec = codec;
    return &report->rows[report->n_rows++];
}

static void
on_codec(void *ctx, const struct kvt_codec_chunk *chunk, const struct kvt_codec_result *result)
{
    struct codec_report *report = ctx;
    struct codec_row *row = row_of(report, result->codec);

    report->encoding = chunk->encoding;
    report->dtype = chunk->dtype;
    report->bytes = chunk->bytes;
    report->n_lossy = chunk->is_lossy != 0;
    report->n_estimated = !chunk->has_layout && !strcmp(chunk->encoding, "naive");
    if (row && result->status) {
        row->n_left_out = 1;
        snprintf(row->why, sizeof row->why, "%s", result->why);
    } else if (row) {
        row->n = 1;
        row->bytes = chunk->bytes;
        row->encoded_bytes = result->encoded_bytes;
        row->decoded_bytes = result->decode_ns ? chunk->bytes : 0;
        row->encode_s = (double)result->encode_ns / 1e9;
        row->decode_s = (double)result->decode_ns / 1e9;
        row->square_sum = result->rms_error * result->rms_error * (double)chunk->bytes;
        row->max_error = result->max_error;
    }
}

static void
add_row(struct codec_report *total, const struct codec_row *row)
{
    struct codec_row *sum = row_of(total, row->codec);

    if (!sum)
        return;
    if (!sum->n_left_out)
        memcpy(sum->why, row->why, sizeof sum->why);
    sum->n += row->n;
    sum->n_left_out += row->n_left_out;
    sum->bytes += row->bytes;
    sum->encoded_bytes += row->encoded_bytes;
    sum->decoded_bytes += row->decoded_bytes;
    sum->encode_s += row->encode_s;
    sum->decode_s += row->decode_s;
    sum->square_sum += row->square_sum;
    sum->max_error = row->max_error > sum->max_error ? row->max_error : sum->max_error;
}

static void
add_report(struct codec_report *total, const struct codec_report *chunk)
{
    total->n_chunks += chunk->n_chunks;
    total->n_failed += chunk->n_failed;
    total->n_lossy += chunk->n_lossy;
    total->n_estimated += chunk->n_estimated;
    total->bytes += chunk->bytes;
    for (size_t i = 0; i < chunk->n_rows; i++)
        add_row(total, &chunk->rows[i]);
}

/* ----------------------------------------------------------------------- chunks */

/* Return true if the argument is a file: the path exists, or cannot be a key. */
static bool
is_file(const char *name)
{
    struct stat st;

    return !stat(name, &st) || (errno != ENOENT && errno != ENAMETOOLONG) || !strchr(name, '@');
}

/* Read a chunk from a file.  Return 0; or an exit code, with a sentence in report->why. */
static int
read_file(const char *path, struct kvt_op *op, struct codec_report *report)
{
    /* The measurement allocates three times the bytes of the chunk, and the read up to twice. */
    uint64_t available = kvt_memory_available();
    unsigned char *buf;
    size_t n;
    int err = cli_file_read(path, available / 5, &buf, &n);

    *op = (struct kvt_op)KVT_INIT(struct kvt_op);
    if (err) {
        snprintf(report->why, sizeof report->why, "codec: read %s: %s", path,
                 err == -EFBIG ? "the file does not fit in memory" : strerror(-err));
        return CLI_ENVIRONMENT;
    }
    op->key = path;
    op->buf = buf;
    op->bytes = n;
    err = kvt_file_parse(op);
    if (err)
        snprintf(report->why, sizeof report->why, "%s", kvt_last_error());
    return cli_code(err);
}

/* Read a chunk from the store.  Return as read_file(). */
static int
read_key(const struct run *run, const char *key, struct kvt_op *op, struct codec_report *report)
{
    int code = cli_read_chunk(run->store, key, op);

    if (code)
        snprintf(report->why, sizeof report->why, "%s: not enough memory", key);
    else if (op->status)
        snprintf(report->why, sizeof report->why, "%s", op->why);
    return code ? code : cli_code(op->status);
}

/* Measure chunk number i: the chunk of an argument, or a listed chunk.  The listed chunks are at
 * equal distances in the listing. */
static void
measure(struct run *run, size_t i, struct codec_report *report)
{
    size_t n_args = (size_t)run->common.n_args;
    bool is_listed = i >= n_args;
    const char *name = is_listed
        ? run->listed.chunks[(i - n_args) * run->listed.n / (run->n_all - n_args)].key
        : run->common.args[i];
    struct kvt_op op;
    int code = !is_listed && is_file(name) ? read_file(name, &op, report)
                                           : read_key(run, name, &op, report);

    report->name = strdup(name);
    if (!code) {
        int err = kvt_codec_measure(&op, on_codec, report);

        /* A chunk whose elements are unknown is no error in the arguments. */
        code = err == -ENOTSUP ? CLI_NEGATIVE : cli_code(err);
        if (err)
            snprintf(report->why, sizeof report->why, "%s", kvt_last_error());
    }
    report->n_chunks = !code;
    report->n_failed = !!code;
    free(op.buf);
    run->code = code > run->code ? code : run->code;
    if (code)
        report->n_rows = 0;
}

static void
print_chunk(const struct run *run, const struct codec_report *report)
{
    if (report->n_failed && run->common.json) {
        cli_print_json(json_pack("{s:o, s:o}", "name", cli_json_text(report->name), "error",
                                 cli_json_text(report->why)));
    } else if (report->n_failed) {
        cli_progress_end();
        cli_error(0, "%s", report->why);
    } else if (run->common.json) {
        codec_print_json(report);
    } else if (run->prints_each) {
        cli_progress_end();
        codec_print_table(report);
    }
}

/* Open the store if an argument is a key, or if the store's chunks are measured; and list them. */
static int
open_store(struct run *run)
{
    bool needs_store = run->sample > 0;

    for (int i = 0; i < run->common.n_args; i++)
        needs_store |= !is_file(run->common.args[i]);
    int code = needs_store ? cli_open_store(&run->common, &run->store) : 0;
    if (!code && run->sample)
        code = cli_chunks_list(run->store, "", &run->listed);
    run->n_all = (size_t)run->common.n_args +
                 (run->listed.n < run->sample ? run->listed.n : (size_t)run->sample);
    return code;
}

static int
measure_all(struct run *run)
{
    int code = open_store(run);

    if (code)
        return code;
    run->chunks = calloc(run->n_all + 1, sizeof *run->chunks);
    if (!run->chunks)
        return cli_error(CLI_ENVIRONMENT, "codec: not enough memory");
    bench_catch_interrupts();
    while (run->n < run->n_all && !bench_interrupted()) {
        struct codec_report *report = &run->chunks[run->n];

        measure(run, run->n++, report);
        print_chunk(run, report);
        add_report(&run->total, report);
        cli_progress("measured", run->n, run->n_all);
    }
    cli_progress_end();
    if (run->common.json)
        codec_print_json(&run->total);
    else
        codec_print_table(&run->total);
    if (run->n < run->n_all) {
        cli_error(CLI_NEGATIVE, "codec: interrupted.");
        return run->code ? run->code : CLI_NEGATIVE;
    }
    return run->code;
}

/* ---------------------------------------------------------------------- command */

static int
report_page(int err, const char *path)
{
    return err ? cli_error(CLI_ENVIRONMENT, "codec: write %s: %s", path, strerror(-err)) : 0;
}

static int
codec_run(int argc, char **argv)
{
    struct run run = { .html = NULL };
    struct cli_file page = { .out = NULL };
    int code = cli_parse(&cli_codec, argc, argv, (const struct cli_option[]){
        { "html", .text = &run.html }, { "each", .flag = &run.prints_each },
        { "sample", .number = &run.sample, .max = 1000000 }, { 0 } }, 0, -1, &run.common);

    if (!code && !run.common.n_args && !run.sample)
        code = cli_usage(&cli_codec, "a FILE, a KEY or --sample is missing");
    if (!code && run.html)
        code = report_page(cli_file_open(&page, run.html), run.html);
    if (!code)
        code = measure_all(&run);
    if (page.out && run.n)
        codec_write_html(page.out, &run.total, run.chunks, run.n);
    int page_code = report_page(cli_file_close(&page, run.n > 0), run.html);
    kvt_store_close(run.store);
    for (size_t i = 0; i < run.n; i++)
        free(run.chunks[i].name);
    free(run.chunks);
    cli_chunks_free(&run.listed);
    return page_code ? page_code : code;
}

const struct cli_command cli_codec = {
    .name = "codec",
    .usage = "[OPTIONS] FILE|KEY...\n"
             "[OPTIONS] --sample N",
    .summary = "measure the encodings of remote_serde on chunks",
    .help =
        "Encodes and decodes each chunk with each codec, and prints for all chunks: how many\n"
        "times smaller the chunks become, the bytes that the store would hold, the errors of\n"
        "the decoded elements, and the speed, in decoded bytes per second on one thread of\n"
        "this machine. The command changes no chunk. An error is relative to the root mean\n"
        "square of the chunk's elements; rms is the root mean square of all errors.\n"
        "\n"
        "A KEY is read from the store. A FILE was copied out of a store of files (fs,\n"
        "local_disk, gds), or contains an encoded chunk that get wrote. An encoded chunk is\n"
        "decoded first; if its codec is lossy, errors are relative to the decoded chunk. The\n"
        "lossy codecs need the layout of the KV, from the header of a file or from an encoded\n"
        "chunk. Without the layout, as in S3, only lossless is measured, with the type in\n"
        "the key or in the name of the file.\n"
        "\n"
        "With --json the output is an object for each chunk and then an object for all chunks.\n"
        "Each has bytes, and in codecs the results: encoded_bytes, ratio, rms_error, max_error\n"
        "(1 is 100 %), encode_bytes_per_s, decode_bytes_per_s, chunks; left_out counts the\n"
        "chunks that the codec cannot measure, and why has the reason.\n"
        "\n"
        "  --sample N       measure up to N chunks of the store\n"
        "  --each           also print a table for each chunk\n"
        "  --html FILE      also write a page with tables and a chart\n"
        CLI_COMMON_HELP,
    .negative = "a chunk is missing or corrupt, a FILE is no chunk, or the command was interrupted",
    .run = codec_run,
};
