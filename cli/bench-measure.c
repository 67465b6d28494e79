/* SPDX-License-Identifier: Apache-2.0
 *
 * A measurement of kvtier bench: operations on chunks of a tier at a given concurrency. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "common.h"

#define STAMP_BYTES 4096 /* distance from a stamp to the next stamp in a payload */

static volatile sig_atomic_t interrupted;

static void
on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

bool
bench_interrupted(void)
{
    return interrupted;
}

void
bench_catch_interrupts(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
    struct sigaction before;

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (!sigaction(SIGHUP, NULL, &before) && before.sa_handler != SIG_IGN) /* not with nohup */
        sigaction(SIGHUP, &action, NULL);
}

const char *
bench_step_name(enum bench_step step)
{
    static const char *const names[] = { "write", "exists", "read", "delete" };

    return names[step];
}

void
bench_row_free(struct bench_row *row)
{
    free(row->latency_ms);
    row->latency_ms = NULL;
}

double
bench_percentile(const struct bench_row *row, double share)
{
    uint64_t at = (uint64_t)(share * (double)row->n_done);

    return row->n_done ? row->latency_ms[at < row->n_done ? at : row->n_done - 1] : 0;
}

double
bench_rate(const struct bench_row *row)
{
    return row->seconds > 0 ? (double)row->n_done * (double)row->chunk_bytes / row->seconds : 0;
}

/* ------------------------------------------------------------------ time */

static double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Return the CPU seconds of all threads of the process. */
static double
cpu_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ------------------------------------------------------------------ operations */

/* An operation in progress and the operation's payload. */
struct slot {
    struct kvt_op op;
    char key[128];
    uint64_t chunk; /* number of the chunk */
    double begin;
    unsigned char *payload;
};

enum state {
    ABSENT,
    UNCERTAIN, /* a write has started, and has not succeeded: the tier may hold the chunk */
    WRITTEN,
};

struct measurement {
    struct kvt_store *store;
    size_t tier;
    uint64_t chunk_bytes, n_chunks;
    unsigned concurrency;
    uint64_t run;          /* random: makes the keys of this process unique */
    struct slot *slots;
    unsigned char *memory; /* payloads of all slots */
    enum state *states;    /* of each of n_chunks chunks */
};

static void
format_key(const struct measurement *m, uint64_t chunk, char out[128])
{
    snprintf(out, 128, "kvtier-bench@1@0@%08" PRIx64 "%08" PRIx64 "@bfloat16", m->run, chunk);
}

/* Write the run and the chunk's number into the payload, so that no two chunks are equal. */
static void
stamp(const struct measurement *m, struct slot *s)
{
    uint64_t words[2] = { m->run, s->chunk };

    for (uint64_t at = 0; at + sizeof words <= m->chunk_bytes; at += STAMP_BYTES)
        memcpy(s->payload + at, words, sizeof words);
}

static void
prepare(struct measurement *m, struct slot *s, enum bench_step step, uint64_t chunk)
{
    static const uint32_t kinds[] = { KVT_OP_PUT, KVT_OP_STAT, KVT_OP_GET, KVT_OP_DELETE };

    s->chunk = chunk;
    format_key(m, chunk, s->key);
    s->op = (struct kvt_op)KVT_INIT(struct kvt_op);
    s->op.kind = kinds[step];
    s->op.key = s->key;
    s->op.tier = (uint32_t)m->tier + 1;
    s->op.buf = s->payload;
    s->op.bytes = m->chunk_bytes;
    s->op.user = s;
    if (step == BENCH_WRITE) {
        stamp(m, s);
        m->states[chunk] = UNCERTAIN;
    }
}

/* Record the result of a completed operation in m and row.  The row does not count the delete of an
 * absent chunk whose write failed. */
static void
end_operation(struct measurement *m, const struct slot *s, enum bench_step step,
              struct bench_row *row)
{
    enum state *state = &m->states[s->chunk];
    int status = s->op.status;

    if (step == BENCH_DELETE && *state == UNCERTAIN && status == -ENOENT)
        return;
    if (step == BENCH_WRITE && !status)
        *state = WRITTEN;
    if (!status) {
        row->latency_ms[row->n_done++] = (now() - s->begin) * 1e3;
        return;
    }
    if (!row->n_failed++) {
        row->status = status;
        snprintf(row->why, sizeof row->why, "%s", s->op.why);
    }
}

/* Return the lowest number from `chunk` on of a chunk that the step handles: a write handles all
 * chunks, a delete also handles chunks whose write failed, the other steps handle only written
 * chunks.  n_chunks: no chunk is left. */
static uint64_t
next_chunk(const struct measurement *m, enum bench_step step, uint64_t chunk)
{
    enum state least = step == BENCH_WRITE ? ABSENT : step == BENCH_DELETE ? UNCERTAIN : WRITTEN;

    while (chunk < m->n_chunks && m->states[chunk] < least)
        chunk++;
    return chunk;
}

/* Run a step for all chunks.  After an interrupt only deletes continue.  Return 0, or a negative
 * errno if a request could not be started; all started requests have completed. */
static int
run_step(struct measurement *m, enum bench_step step, struct bench_row *row)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(m->store), .events = POLLIN };
    struct slot *unused[BENCH_MAX_CONCURRENCY];
    struct kvt_op *done[BENCH_MAX_CONCURRENCY];
    uint64_t chunk = next_chunk(m, step, 0);
    size_t n_unused = 0;
    int err = 0;

    while (n_unused < m->concurrency) {
        unused[n_unused] = &m->slots[n_unused];
        n_unused++;
    }
    for (;;) {
        bool stops = err || (bench_interrupted() && step != BENCH_DELETE);

        while (!stops && !err && n_unused && chunk < m->n_chunks) {
            struct slot *s = unused[n_unused - 1];
            struct kvt_op *op = &s->op;

            prepare(m, s, step, chunk);
            s->begin = now();
            err = kvt_store_submit(m->store, &op, 1);
            n_unused -= !err;
            chunk = next_chunk(m, step, chunk + 1);
        }
        if (n_unused == m->concurrency)
            return err;
        poll(&fd, 1, 1000);
        size_t n = kvt_store_poll(m->store, done, m->concurrency);
        for (size_t i = 0; i < n; i++) {
            end_operation(m, done[i]->user, step, row);
            unused[n_unused++] = done[i]->user;
        }
        cli_progress(bench_step_name(step), row->n_done + row->n_failed, m->n_chunks);
    }
}

static int
compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Run a step and fill the row.  Return 0 or a negative errno, as run_step() does. */
static int
measure_step(struct measurement *m, enum bench_step step, struct bench_row *row)
{
    double begin = now(), cpu = cpu_now();
    int err = run_step(m, step, row);

    row->seconds = now() - begin;
    row->cpu_seconds = cpu_now() - cpu;
    cli_progress_end();
    qsort(row->latency_ms, row->n_done, sizeof *row->latency_ms, compare);
    return err;
}

/* ------------------------------------------------------------------ memory */

/* Fill the memory with random bytes, which storage can neither compress nor deduplicate. */
static void
fill_random(unsigned char *memory, size_t bytes)
{
    uint64_t x = UINT64_C(0x9e3779b97f4a7c15);

    for (size_t at = 0; at + sizeof x <= bytes; at += sizeof x) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(memory + at, &x, sizeof x);
    }
}

static int
allocate(struct measurement *m, struct bench_row *rows)
{
    size_t stride = (m->chunk_bytes + STAMP_BYTES - 1) / STAMP_BYTES * STAMP_BYTES;
    bool fits = m->concurrency <= kvt_memory_available() / 2 / stride;

    m->slots = calloc(m->concurrency, sizeof *m->slots);
    m->states = calloc(m->n_chunks, sizeof *m->states);
    m->memory = fits ? aligned_alloc(STAMP_BYTES, m->concurrency * stride) : NULL;
    bool ok = m->slots && m->states && m->memory;
    for (int i = 0; i < BENCH_N_STEPS; i++) {
        rows[i].latency_ms = calloc(m->n_chunks, sizeof *rows[i].latency_ms);
        ok &= rows[i].latency_ms != NULL;
    }
    if (!ok)
        return cli_error(CLI_ENVIRONMENT, "bench: not enough memory for %u payloads of %"
                         PRIu64 " bytes; lower --size or --concurrency.", m->concurrency,
                         m->chunk_bytes);
    fill_random(m->memory, m->concurrency * stride);
    for (unsigned i = 0; i < m->concurrency; i++)
        m->slots[i].payload = m->memory + i * stride;
    return 0;
}

/* Return a random number for the keys of this process.  The highest bit is set because the hash
 * of a key text must not begin with 0. */
static uint64_t
random_run(void)
{
    uint32_t run;

    if (getentropy(&run, sizeof run))
        run = (uint32_t)getpid();
    return run | UINT32_C(1) << 31;
}

int
bench_measure(struct kvt_store *store, size_t tier, const struct bench_plan *plan,
              unsigned concurrency, struct bench_row *rows)
{
    struct measurement m = {
        .store = store, .tier = tier, .chunk_bytes = plan->chunk_bytes,
        .n_chunks = plan->n_chunks, .run = random_run(),
        .concurrency = concurrency < plan->n_chunks ? concurrency : (unsigned)plan->n_chunks };
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);
    int err = 0;

    (void)!kvt_store_tier(store, tier, &info);
    for (int i = 0; i < BENCH_N_STEPS; i++)
        rows[i] = (struct bench_row){ .tier = info, .chunk_bytes = plan->chunk_bytes,
                                      .step = (enum bench_step)i, .concurrency = concurrency };
    int code = allocate(&m, rows);
    for (int i = 0; !code && i < BENCH_N_STEPS; i++)
        if (!err || i == BENCH_DELETE) {
            int result = measure_step(&m, (enum bench_step)i, &rows[i]);
            err = err ? err : result;
        }
    if (err)
        code = cli_fail(err);
    free(m.memory);
    free(m.states);
    free(m.slots);
    return code;
}
