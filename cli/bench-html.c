/* SPDX-License-Identifier: Apache-2.0
 *
 * The page of kvtier bench --html: plots as inline SVG and a table.  The page refers to no other
 * file, so the page works without a network. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "bench.h"
#include "html.h"

/* The plot area of a chart in SVG units. */
#define LEFT 62.0
#define TOP 14.0
#define WIDTH 400.0
#define HEIGHT 190.0
#define N_TICKS 4
#define N_POINTS 48 /* points of a latency curve */

static const char *const colours[BENCH_N_STEPS] = { "#c2410c", "#6d28d9", "#0369a1", "#4d7c0f" };

/* ------------------------------------------------------------------ charts */

struct chart {
    FILE *out;
    double low_x, high_x, high_y; /* ranges; x is logarithmic, y begins at 0 */
};

static double
x_of(const struct chart *c, double x)
{
    double range = log(c->high_x / c->low_x);

    return LEFT + (range > 0 ? log(x / c->low_x) / range : 0.5) * WIDTH;
}

static double
y_of(const struct chart *c, double y)
{
    return TOP + HEIGHT - (c->high_y > 0 ? y / c->high_y : 0) * HEIGHT;
}

/* Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is at least x. */
static double
round_up(double x)
{
    static const double steps[] = { 1, 2, 2.5, 5 };
    double power = x > 0 ? pow(10, floor(log10(x))) : 1;

    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (x <= steps[i] * power)
            return steps[i] * power;
    return 10 * power;
}

static void
begin_chart(struct chart *c, const char *title, const char *x_name, const char *y_name)
{
    fprintf(c->out, "<figure><figcaption>%s</figcaption>\n"
            "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n", title,
            LEFT + WIDTH + 20, TOP + HEIGHT + 46, title);
    for (int i = 0; i <= N_TICKS; i++) {
        double value = c->high_y * i / N_TICKS, y = y_of(c, value);

        fprintf(c->out, "<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g%s</text>\n", LEFT,
                LEFT + WIDTH, y, y, LEFT - 6, y + 4, value >= 1e4 ? value / 1e3 : value,
                value >= 1e4 ? "k" : "");
    }
    fprintf(c->out, "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>"
            "<text transform=\"translate(12 %g) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
            LEFT + WIDTH / 2, TOP + HEIGHT + 38, x_name, TOP + HEIGHT / 2, y_name);
}

static void
put_x_tick(const struct chart *c, double x)
{
    fprintf(c->out, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%.3g</text>\n",
            x_of(c, x), TOP + HEIGHT + 18, x);
}

static void
end_chart(const struct chart *c, const bool *shown)
{
    fputs("</svg><p class=\"legend\">", c->out);
    for (int step = 0; step < BENCH_N_STEPS; step++)
        if (shown[step])
            fprintf(c->out, "<span style=\"color:%s\">&#9632;</span> %s ", colours[step],
                    bench_step_name((enum bench_step)step));
    fputs("</p></figure>\n", c->out);
}

static double
value_of(const struct bench_row *row, bool bytes)
{
    if (bytes)
        return bench_rate(row) / 1e6;
    return row->seconds > 0 ? (double)row->n_done / row->seconds : 0;
}

/* Return true if a chart of rates shows the row's step: a chart of bytes shows writes and reads, a
 * chart of operations shows lookups and deletes. */
static bool
is_shown(const struct bench_row *row, bool bytes)
{
    return bytes == (row->step == BENCH_WRITE || row->step == BENCH_READ);
}

/* Plot the rate of a tier's rows over the concurrency. */
static void
plot_rates(FILE *out, const struct bench_row *rows, size_t n, bool bytes)
{
    struct chart c = { .out = out, .low_x = BENCH_MAX_CONCURRENCY, .high_x = 1 };
    bool shown[BENCH_N_STEPS] = { false };

    for (size_t i = 0; i < n; i++) {
        c.low_x = fmin(c.low_x, rows[i].concurrency);
        c.high_x = fmax(c.high_x, rows[i].concurrency);
        if (is_shown(&rows[i], bytes))
            c.high_y = fmax(c.high_y, value_of(&rows[i], bytes));
    }
    c.high_y = N_TICKS * round_up(c.high_y / N_TICKS);
    begin_chart(&c, bytes ? "Throughput" : "Lookups and deletes", "concurrency",
                bytes ? "MB/s" : "operations/s");
    for (size_t i = 0; i < n; i += BENCH_N_STEPS)
        put_x_tick(&c, rows[i].concurrency);
    for (int step = 0; step < BENCH_N_STEPS; step++) {
        shown[step] = is_shown(&rows[step], bytes);
        if (!shown[step])
            continue;
        fprintf(out, "<polyline stroke=\"%s\" points=\"", colours[step]);
        for (size_t i = (size_t)step; i < n; i += BENCH_N_STEPS)
            fprintf(out, "%.1f,%.1f ", x_of(&c, rows[i].concurrency),
                    y_of(&c, value_of(&rows[i], bytes)));
        fputs("\"/>\n", out);
        for (size_t i = (size_t)step; i < n; i += BENCH_N_STEPS)
            fprintf(out, "<circle fill=\"%s\" r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>\n",
                    colours[step], x_of(&c, rows[i].concurrency),
                    y_of(&c, value_of(&rows[i], bytes)));
    }
    end_chart(&c, shown);
}

/* Plot the distribution of the latencies of each step at a concurrency.  rows: BENCH_N_STEPS
 * rows. */
static void
plot_latency(FILE *out, const struct bench_row *rows)
{
    struct chart c = { .out = out, .low_x = HUGE_VAL, .high_x = 0, .high_y = 100 };
    bool shown[BENCH_N_STEPS] = { false };
    char title[64];

    for (int i = 0; i < BENCH_N_STEPS; i++)
        if (rows[i].n_done) {
            shown[i] = true;
            c.low_x = fmin(c.low_x, fmax(bench_percentile(&rows[i], 0), 1e-3));
            c.high_x = fmax(c.high_x, fmax(bench_percentile(&rows[i], 1), 2e-3));
        }
    if (c.high_x < c.low_x)
        return;
    snprintf(title, sizeof title, "Latency at concurrency %u", rows[0].concurrency);
    begin_chart(&c, title, "milliseconds", "% of operations");
    double decade = pow(10, ceil(log10(c.low_x)));
    if (decade > c.high_x) { /* no power of ten is in the range */
        put_x_tick(&c, c.low_x);
        put_x_tick(&c, c.high_x);
    }
    for (; decade <= c.high_x; decade *= 10)
        put_x_tick(&c, decade);
    for (int i = 0; i < BENCH_N_STEPS; i++) {
        if (!shown[i])
            continue;
        fprintf(out, "<polyline stroke=\"%s\" points=\"", colours[i]);
        for (int k = 0; k <= N_POINTS; k++)
            fprintf(out, "%.1f,%.1f ",
                    x_of(&c, fmax(bench_percentile(&rows[i], (double)k / N_POINTS), c.low_x)),
                    y_of(&c, 100.0 * k / N_POINTS));
        fputs("\"/>\n", out);
    }
    end_chart(&c, shown);
}

/* ------------------------------------------------------------------ table */

static void
put_row(FILE *out, const struct bench_row *r)
{
    bool bytes = is_shown(r, true);

    fprintf(out, "<tr><td>%s<td>%u<td>%" PRIu64 "<td>%" PRIu64, bench_step_name(r->step),
            r->concurrency, r->n_done, r->n_failed);
    if (bytes)
        fprintf(out, "<td>%.1f", value_of(r, true));
    else
        fputs("<td>-", out);
    fprintf(out, "<td>%.1f<td>%.2f<td>%.2f<td>%.2f<td>%.2f", value_of(r, false),
            bench_percentile(r, 0.5), bench_percentile(r, 0.9), bench_percentile(r, 0.99),
            bench_percentile(r, 1));
    if (bytes && r->n_done)
        fprintf(out, "<td>%.3f\n", r->cpu_seconds * 1e9 /
                                   ((double)r->n_done * (double)r->chunk_bytes));
    else
        fputs("<td>-\n", out);
}

static void
put_table(FILE *out, const struct bench_row *rows, size_t n)
{
    fputs("<table><tr><th>step<th>concurrency<th>done<th>failed<th>MB/s<th>operations/s"
          "<th>p50 ms<th>p90 ms<th>p99 ms<th>max ms<th>CPU s/GB\n", out);
    for (size_t i = 0; i < n; i++)
        put_row(out, &rows[i]);
    fputs("</table>\n", out);
    for (size_t i = 0; i < n; i++)
        if (rows[i].n_failed) {
            fprintf(out, "<p class=\"failed\">%s at concurrency %u: ",
                    bench_step_name(rows[i].step), rows[i].concurrency);
            html_put_text(out, rows[i].why);
            fputs("</p>\n", out);
        }
}

/* ------------------------------------------------------------------ page */

/* Return the number of leading rows that belong to the tier of rows[0].  The rows of a tier are
 * adjacent. */
static size_t
n_rows_of_tier(const struct bench_row *rows, size_t n)
{
    size_t same = 1;

    while (same < n && !strcmp(rows[same].tier.url, rows[0].tier.url))
        same++;
    return same;
}

void
bench_write_html(FILE *out, const struct bench_row *rows, size_t n)
{
    html_begin(out, "kvtier bench");
    fprintf(out, "<p>Chunks of %.3g MB.</p>\n", n ? (double)rows[0].chunk_bytes / 1e6 : 0);
    while (n) {
        size_t same = n_rows_of_tier(rows, n);

        fprintf(out, "<h2>%s: ", rows[0].tier.tier);
        html_put_text(out, rows[0].tier.url);
        fputs("</h2>\n", out);
        plot_rates(out, rows, same, true);
        plot_rates(out, rows, same, false);
        for (size_t i = 0; i + BENCH_N_STEPS <= same; i += BENCH_N_STEPS)
            plot_latency(out, rows + i);
        put_table(out, rows, same);
        rows += same;
        n -= same;
    }
    fputs("</html>\n", out);
}
