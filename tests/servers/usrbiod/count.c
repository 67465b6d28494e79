/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters of operations, and of I/Os in flight over time. */
#include <pthread.h>

#include "usrbiod.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    unsigned long long jobs, largest_job, ios[2], bytes[2], errors, lookups, posts;
    unsigned now_lookups, max_lookups; /* concurrent lookups */
    int stuck; /* stuck jobs and requests */
    size_t in_flight, max_in_flight;
    int64_t since_ns;         /* time of the last change of in_flight */
    int64_t busy_ns;          /* time with I/Os in flight */
    double in_flight_times_s; /* integral of in_flight over time */
    uint64_t bytes_in_flight;
    double bytes_times_s;
} c;

/* Add the time since the last change to the integrals. */
static void
advance_locked(void)
{
    int64_t now = now_ns();

    if (c.in_flight) {
        double s = (double)(now - c.since_ns) / 1e9;

        c.busy_ns += now - c.since_ns;
        c.in_flight_times_s += (double)c.in_flight * s;
        c.bytes_times_s += (double)c.bytes_in_flight * s;
    }
    c.since_ns = now;
}

void
count_lookup_begins(void)
{
    pthread_mutex_lock(&lock);
    c.lookups++;
    if (++c.now_lookups > c.max_lookups)
        c.max_lookups = c.now_lookups;
    pthread_mutex_unlock(&lock);
}

void
count_lookup_ends(void)
{
    pthread_mutex_lock(&lock);
    c.now_lookups--;
    pthread_mutex_unlock(&lock);
}

void
count_post(void)
{
    pthread_mutex_lock(&lock);
    c.posts++;
    pthread_mutex_unlock(&lock);
}

void
count_stuck(int more)
{
    pthread_mutex_lock(&lock);
    c.stuck += more;
    pthread_mutex_unlock(&lock);
}

/* Return the bytes that a job requests, independent of the result. */
static uint64_t
bytes_of(const struct job *job)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < job->n; i++)
        bytes += job->io[i].bytes;
    return bytes;
}

void
count_taken(const struct job *job)
{
    size_t n = job->n;

    pthread_mutex_lock(&lock);
    advance_locked();
    c.in_flight += n;
    c.bytes_in_flight += bytes_of(job);
    if (c.in_flight > c.max_in_flight)
        c.max_in_flight = c.in_flight;
    c.jobs++;
    if (n > c.largest_job)
        c.largest_job = n;
    pthread_mutex_unlock(&lock);
}

void
count_done(const struct job *job, bool for_read)
{
    unsigned long long bytes = 0, errors = 0;

    for (size_t i = 0; i < job->n; i++)
        if (job->io[i].result < 0)
            errors++;
        else
            bytes += (unsigned long long)job->io[i].result;
    pthread_mutex_lock(&lock);
    advance_locked();
    c.in_flight -= job->n;
    c.bytes_in_flight -= bytes_of(job);
    c.ios[for_read] += job->n;
    c.bytes[for_read] += bytes;
    c.errors += errors;
    pthread_mutex_unlock(&lock);
}

size_t
count_in_flight(void)
{
    pthread_mutex_lock(&lock);
    size_t n = c.in_flight;
    pthread_mutex_unlock(&lock);
    return n;
}

void
count_reset(void)
{
    pthread_mutex_lock(&lock);
    size_t in_flight = c.in_flight;
    uint64_t bytes_in_flight = c.bytes_in_flight;
    unsigned lookups = c.now_lookups;
    int stuck = c.stuck;
    c = (__typeof__(c)){ .in_flight = in_flight, .max_in_flight = in_flight,
                         .bytes_in_flight = bytes_in_flight,
                         .stuck = stuck, .now_lookups = lookups, .max_lookups = lookups,
                         .since_ns = now_ns() };
    pthread_mutex_unlock(&lock);
}

void
count_print(FILE *to)
{
    size_t iovs, rings, n_open = nodes_open();

    table_count(&iovs, &rings);
    pthread_mutex_lock(&lock);
    advance_locked();
    double busy_s = (double)c.busy_ns / 1e9;
    double mean = c.busy_ns ? c.in_flight_times_s / busy_s : 0;
    double mean_bytes = c.busy_ns ? c.bytes_times_s / busy_s : 0;
    fprintf(to, "{\"iovs\": %zu, \"rings\": %zu, \"live_inodes\": %zu, \"reads\": %llu, "
            "\"writes\": %llu, \"read_bytes\": %llu, \"write_bytes\": %llu, "
            "\"errors\": %llu, \"jobs\": %llu, \"largest_job\": %llu, ",
            iovs, rings, n_open, c.ios[1], c.ios[0], c.bytes[1], c.bytes[0], c.errors,
            c.jobs, c.largest_job);
    fprintf(to, "\"in_flight\": %zu, \"max_in_flight\": %zu, \"mean_in_flight\": %.3f, "
            "\"mean_bytes_in_flight\": %.0f, \"busy_s\": %.6f, \"lookups\": %llu, "
            "\"max_lookups\": %u, \"posts\": %llu, \"stuck\": %d}\n",
            c.in_flight, c.max_in_flight, mean, mean_bytes, busy_s, c.lookups,
            c.max_lookups, c.posts, c.stuck);
    pthread_mutex_unlock(&lock);
    fflush(to);
}
