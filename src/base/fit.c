/* SPDX-License-Identifier: Apache-2.0
 *
 * A least-squares fit of two coefficients without a constant. */
#include "base/fit.h"

#include <stdbool.h>

#include "base/clock.h"

/* Differences below this time are noise of threads and clocks. */
#define NOISE_NS ((double)(2 * KVT__NS_PER_MS))
#define NOISE 1.5 /* ratio of a measured and an expected time */

static void
add_sums(struct kvt__fit *fit, double x, double y, double ns, double keep)
{
    fit->weight = keep * fit->weight + 1;
    fit->xx = keep * fit->xx + x * x;
    fit->xy = keep * fit->xy + x * y;
    fit->yy = keep * fit->yy + y * y;
    fit->xt = keep * fit->xt + x * ns;
    fit->yt = keep * fit->yt + y * ns;
}

static void
solve(struct kvt__fit *fit)
{
    double square = fit->xx * fit->yy, det = square - fit->xy * fit->xy;
    double a = fit->xt * fit->yy - fit->yt * fit->xy, b = fit->yt * fit->xx - fit->xt * fit->xy;
    /* Measurements of nearly equal shape do not separate the parts. */
    bool is_clear = det > square * 1e-3 && a >= 0 && b > 0;

    fit->a = is_clear ? a / det : 0;
    fit->b = is_clear ? b / det : fit->yt / fit->yy;
}

static bool
explains(const struct kvt__fit *fit, double x, double y, double ns)
{
    double expected = fit->a * x + fit->b * y;
    double difference = ns > expected ? ns - expected : expected - ns;

    return difference <= NOISE_NS || (ns <= NOISE * expected && expected <= NOISE * ns);
}

void
kvt__fit_add(struct kvt__fit *fit, double x, double y, double ns, double keep)
{
    /* a and b of an earlier process count as a measurement. */
    if (!fit->weight && (fit->a > 0 || fit->b > 0))
        add_sums(fit, x, y, fit->a * x + fit->b * y, keep);
    add_sums(fit, x, y, ns, keep);
    solve(fit);
    if (explains(fit, x, y, ns))
        return;
    *fit = (struct kvt__fit){ .a = 0 };
    add_sums(fit, x, y, ns, keep);
    solve(fit);
}
