/* SPDX-License-Identifier: Apache-2.0
 *
 * The measurement of the comparisons with libraries. */
#ifndef KVT_BENCH_LIBRARIES_MEASURE_H
#define KVT_BENCH_LIBRARIES_MEASURE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_ROUNDS 101

static int
compare_times(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* Return the CPU time of the calling thread in nanoseconds. */
static int64_t
cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Call run(ctx) N_ROUNDS times, and print the median and the least CPU time of one of n units. */
static void
measure(const char *name, void (*run)(void *ctx), void *ctx, size_t n, const char *unit)
{
    int64_t times[N_ROUNDS];

    for (size_t i = 0; i < N_ROUNDS; i++) {
        int64_t begin = cpu_ns();

        run(ctx);
        times[i] = cpu_ns() - begin;
    }
    qsort(times, N_ROUNDS, sizeof *times, compare_times);
    printf("%-52s median %7.1f ns, least %7.1f ns for each %s\n", name,
           (double)times[N_ROUNDS / 2] / (double)n, (double)times[0] / (double)n, unit);
}

#endif
