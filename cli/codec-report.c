/* SPDX-License-Identifier: Apache-2.0
 *
 * The reports of kvtier codec on the terminal, as lines of JSON and as an HTML page. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>

#include "codec.h"
#include "common.h"
#include "html.h"

double
codec_ratio(const struct codec_row *row)
{
    return (double)row->bytes / (double)row->encoded_bytes;
}

double
codec_encode_rate(const struct codec_row *row)
{
    return row->encode_s > 0 ? (double)row->bytes / row->encode_s : 0;
}

double
codec_decode_rate(const struct codec_row *row)
{
    return row->decode_s > 0 ? (double)row->decoded_bytes / row->decode_s : 0;
}

double
codec_rms_error(const struct codec_row *row)
{
    return sqrt(row->square_sum / (double)row->bytes);
}

/* ------------------------------------------------------------------------ cells */

enum { N_CELLS = 7, CELL_BYTES = 24 };

static const char *const heads[N_CELLS] = { "ratio", "stored", "saved %", "rms error %",
                                            "max error %", "encode GB/s", "decode GB/s" };

/* Write the cells of a row behind the name of the codec; "-" without a figure. */
static void
fill_cells(const struct codec_row *row, char cells[N_CELLS][CELL_BYTES])
{
    for (int i = 0; i < N_CELLS; i++)
        snprintf(cells[i], CELL_BYTES, "-");
    if (!row->n)
        return;
    snprintf(cells[0], CELL_BYTES, "%.3f", codec_ratio(row));
    cli_size_text(row->encoded_bytes, cells[1]);
    snprintf(cells[2], CELL_BYTES, "%.1f", 100 - 100 / codec_ratio(row));
    snprintf(cells[3], CELL_BYTES, "%.3g", 100 * codec_rms_error(row));
    snprintf(cells[4], CELL_BYTES, "%.3g", 100 * row->max_error);
    snprintf(cells[5], CELL_BYTES, "%.2f", codec_encode_rate(row) / 1e9);
    if (row->decoded_bytes)
        snprintf(cells[6], CELL_BYTES, "%.2f", codec_decode_rate(row) / 1e9);
}

/* ------------------------------------------------------------------------ notes */

typedef void (*note_fn)(FILE *out, const char *text);

/* Call put for each sentence that explains the figures. */
static void
put_notes(FILE *out, const struct codec_report *r, note_fn put)
{
    char text[512];

    for (size_t i = 0; i < r->n_rows; i++)
        if (r->rows[i].n_left_out) {
            snprintf(text, sizeof text, "%s: %" PRIu64 " of %" PRIu64 " chunks left out: %s",
                     r->rows[i].codec, r->rows[i].n_left_out,
                     r->rows[i].n_left_out + r->rows[i].n, r->rows[i].why);
            put(out, text);
        }
    if (r->n_estimated) {
        snprintf(text, sizeof text, "%" PRIu64 " of %" PRIu64 " chunks have no known layout: an "
                 "engine may encode these chunks to fewer bytes.", r->n_estimated, r->n_chunks);
        put(out, text);
    }
    if (r->n_lossy) {
        snprintf(text, sizeof text, "%" PRIu64 " of %" PRIu64 " chunks are stored by a lossy "
                 "codec: their errors are relative to the decoded chunk.", r->n_lossy,
                 r->n_chunks);
        put(out, text);
    }
}

static void
put_line(FILE *out, const char *text)
{
    fprintf(out, "%s\n", text);
}

static void
put_paragraph(FILE *out, const char *text)
{
    fputs("<p>", out);
    html_put_text(out, text);
    fputs("</p>\n", out);
}

/* ------------------------------------------------------------------------ table */

void
codec_print_table(const struct codec_report *r)
{
    char cells[N_CELLS][CELL_BYTES], size[24];

    if (r->name) {
        cli_print_text(stdout, r->name);
        printf("%s, encoding %s, %s\n", r->dtype, r->encoding, cli_size_text(r->bytes, size));
    } else {
        printf("%" PRIu64 " chunks, %s", r->n_chunks, cli_size_text(r->bytes, size));
        if (r->n_failed)
            printf(", %" PRIu64 " failed", r->n_failed);
        printf("\n");
    }
    if (r->n_rows) {
        printf("%-10s %7s %9s %8s %12s %12s %12s %12s\n", "codec", heads[0], heads[1], heads[2],
               heads[3], heads[4], heads[5], heads[6]);
        for (size_t i = 0; i < r->n_rows; i++) {
            fill_cells(&r->rows[i], cells);
            printf("%-10s %7s %9s %8s %12s %12s %12s %12s\n", r->rows[i].codec, cells[0],
                   cells[1], cells[2], cells[3], cells[4], cells[5], cells[6]);
        }
    }
    put_notes(stdout, r, put_line);
    if (r->name)
        printf("\n");
}

/* ------------------------------------------------------------------------- JSON */

static json_t *
row_json(const struct codec_row *row)
{
    json_t *o = json_pack("{s:s, s:I, s:I}", "codec", row->codec, "chunks", (json_int_t)row->n,
                          "left_out", (json_int_t)row->n_left_out);

    if (row->n_left_out)
        json_object_set_new(o, "why", cli_json_text(row->why));
    if (!row->n)
        return o;
    json_t *figures = json_pack("{s:I, s:I, s:f, s:f, s:f, s:f}", "bytes",
                                (json_int_t)row->bytes, "encoded_bytes",
                                (json_int_t)row->encoded_bytes, "ratio", codec_ratio(row),
                                "rms_error", codec_rms_error(row), "max_error", row->max_error,
                                "encode_bytes_per_s", codec_encode_rate(row));
    json_object_update(o, figures);
    json_decref(figures);
    json_object_set_new(o, "decode_bytes_per_s", row->decoded_bytes
                        ? json_real(codec_decode_rate(row)) : json_null());
    return o;
}

void
codec_print_json(const struct codec_report *r)
{
    json_t *rows = json_array(), *o;

    for (size_t i = 0; i < r->n_rows; i++)
        json_array_append_new(rows, row_json(&r->rows[i]));
    if (r->name)
        o = json_pack("{s:o, s:s, s:s, s:I, s:b, s:b, s:o}", "name", cli_json_text(r->name),
                      "dtype", r->dtype, "encoding", r->encoding, "bytes", (json_int_t)r->bytes,
                      "is_lossy", r->n_lossy > 0, "is_estimate", r->n_estimated > 0, "codecs",
                      rows);
    else
        o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "chunks", (json_int_t)r->n_chunks,
                      "failed", (json_int_t)r->n_failed, "bytes", (json_int_t)r->bytes, "lossy",
                      (json_int_t)r->n_lossy, "estimates", (json_int_t)r->n_estimated,
                      "codecs", rows);
    json_dumpf(o, stdout, JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(o);
}

/* ------------------------------------------------------------------------- HTML */

static void
put_html_rows(FILE *out, const struct codec_report *r)
{
    char cells[N_CELLS][CELL_BYTES];

    for (size_t i = 0; i < r->n_rows; i++) {
        fill_cells(&r->rows[i], cells);
        fprintf(out, "<tr><td>%s", r->rows[i].codec);
        for (int k = 0; k < N_CELLS; k++)
            fprintf(out, "<td>%s", cells[k]);
        fputs("\n", out);
    }
}

static void
put_html_table(FILE *out, const struct codec_report *r)
{
    fputs("<table><tr><th>codec", out);
    for (int k = 0; k < N_CELLS; k++)
        fprintf(out, "<th>%s", heads[k]);
    fputs("\n", out);
    put_html_rows(out, r);
    fputs("</table>\n", out);
    put_notes(out, r, put_paragraph);
}

/* Draw a bar for the stored bytes of each codec, in percent of the decoded chunks. */
static void
put_chart(FILE *out, const struct codec_report *r)
{
    const double left = 80, width = 340, step = 26;

    fprintf(out, "<figure><figcaption>Stored bytes, %% of the decoded chunks</figcaption>\n"
            "<svg viewBox=\"0 0 480 %g\" role=\"img\" aria-label=\"stored bytes\">\n",
            step * (double)r->n_rows + 4);
    for (size_t i = 0; i < r->n_rows; i++) {
        double share = r->rows[i].n ? 1 / codec_ratio(&r->rows[i]) : 0;
        double y = step * (double)i;

        fprintf(out, "<text x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>"
                "<rect class=\"grid\" fill=\"none\" x=\"%g\" y=\"%g\" width=\"%g\" "
                "height=\"18\"/>", left - 8, y + 14, r->rows[i].codec, left, y + 1, width);
        if (r->rows[i].n)
            fprintf(out, "<rect fill=\"#0369a1\" x=\"%g\" y=\"%g\" width=\"%.1f\" "
                    "height=\"18\"/><text x=\"%g\" y=\"%g\">%.1f</text>\n", left, y + 1,
                    share * width, left + width + 8, y + 14, 100 * share);
        else
            fprintf(out, "<text x=\"%g\" y=\"%g\">-</text>\n", left + width + 8, y + 14);
    }
    fputs("</svg></figure>\n", out);
}

static void
put_chunk(FILE *out, const struct codec_report *r)
{
    char size[24];

    fputs("<h2>", out);
    html_put_text(out, r->name);
    fputs("</h2>\n", out);
    if (r->n_failed) {
        fputs("<p class=\"failed\">", out);
        html_put_text(out, r->why);
        fputs("</p>\n", out);
        return;
    }
    fprintf(out, "<p>%s, encoding %s, %s</p>\n", r->dtype, r->encoding,
            cli_size_text(r->bytes, size));
    put_html_table(out, r);
}

void
codec_write_html(FILE *out, const struct codec_report *total, const struct codec_report *chunks,
                 size_t n)
{
    char size[24];

    html_begin(out, "kvtier codec");
    fprintf(out, "<p>%" PRIu64 " chunks, %s. Speeds are decoded bytes per second on one thread "
            "of this machine.</p>\n", total->n_chunks, cli_size_text(total->bytes, size));
    if (total->n_rows) {
        put_chart(out, total);
        put_html_table(out, total);
    }
    for (size_t i = 0; i < n; i++)
        put_chunk(out, &chunks[i]);
    fputs("</html>\n", out);
}
