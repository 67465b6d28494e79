/* SPDX-License-Identifier: Apache-2.0
 *
 * Measure wall-clock and CPU time, compute medians, and alternate between steps. */
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "bench.h"
#include "common.h"

static volatile sig_atomic_t interrupted;

static void
interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

void
bench_catch_interrupts(void)
{
    struct sigaction action = { .sa_handler = interrupt, .sa_flags = SA_RESETHAND };

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool
bench_interrupted(void)
{
    return interrupted;
}

double
bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double
cpu_now(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

void
bench_start(struct bench_cost *cost)
{
    cost->cpu = cpu_now();
    cost->seconds = bench_now();
}

void
bench_stop(struct bench_cost *cost)
{
    cost->seconds = bench_now() - cost->seconds;
    cost->cpu = cpu_now() - cost->cpu;
}

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double
bench_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int
bench_alternate(const char *what, size_t n, const bench_step_fn *steps,
                size_t n_steps, void *ctx, struct bench_cost *costs)
{
    int code = 0;

    for (size_t round = 0; !code && round < n; round++) {
        cli_progress(what, round, n);
        for (size_t i = 0; !code && i < n_steps; i++) {
            size_t step = round % 2 ? n_steps - 1 - i : i;

            code = bench_interrupted() ? CLI_ENVIRONMENT
                : steps[step](ctx, &costs[step * n + round]);
        }
    }
    cli_progress_end();
    return code;
}
