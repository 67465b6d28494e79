/* SPDX-License-Identifier: Apache-2.0
 *
 * The cost of an operation as a sum of two parts, a * x + b * y, fitted to measured times.  Recent
 * measurements have more weight.  The caller locks. */
#ifndef KVT_BASE_FIT_H
#define KVT_BASE_FIT_H

struct kvt__fit {
    double a, b;  /* at least 0; both are 0 before the first measurement */
    double weight; /* sum of the weights of the measurements */
    double xx, xy, yy, xt, yt; /* weighted sums of products; t: the time */
};

/* Add a measurement of a time in ns, and fit a and b.  x at least 0; y and ns above 0.  If the time
 * and the earlier measurements have no common fit, the operation's cost has changed: the earlier
 * measurements no longer count.  keep: factor of the weight of the earlier measurements. */
void kvt__fit_add(struct kvt__fit *fit, double x, double y, double ns, double keep);

#endif
