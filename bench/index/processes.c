/* SPDX-License-Identifier: Apache-2.0
 *
 * The case index.processes: 64 processes store into one full index in shared memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "index.h"

#define WRITERS 64u
#define ROUNDS 3

/* Memory that the parent shares with the writers. */
struct race {
    atomic_uint n_ready, n_failed; /* writers */
    atomic_bool runs, ends; /* the writers start; the writers stop */
    atomic_ullong n_stores; /* stores of all writers */
};

struct field {
    char shm[32]; /* new directory in /dev/shm */
    struct race *race;
    struct kvt__table_params params;
    int dirfd;
    uint64_t digest, n; /* n: chunks in the index before the stores */
};

static void
nap(void)
{
    nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
}

/* Store chunks until the race ends.  Each writer has a distinct range of chunk numbers. */
static int
write_chunks(const struct field *f, struct kvt__table *table, uint64_t number)
{
    struct kvt__record victims[KVT__TABLE_VICTIMS];
    uint64_t n = 0, first = f->n + (number << 32);
    size_t n_victims = 0;
    int err = 0;

    while (!err && !atomic_load(&f->race->ends)) {
        err = index_store(table, f->digest, first + n, victims, &n_victims);
        n += !err;
        if (err == -ENOSPC || err == -ETIMEDOUT)
            err = 0;
    }
    atomic_fetch_add(&f->race->n_stores, n);
    return err;
}

/* Run a writer in a child process, and exit. */
static void
be_writer(const struct field *f, uint64_t number)
{
    struct kvt__table *table;
    int err = kvt__table_open(&f->params, f->dirfd, &table);

    if (err || !kvt__table_is_shared(table))
        atomic_fetch_add(&f->race->n_failed, 1);
    atomic_fetch_add(&f->race->n_ready, 1);
    while (!atomic_load(&f->race->runs))
        nap();
    if (!err && write_chunks(f, table, number))
        atomic_fetch_add(&f->race->n_failed, 1);
    if (!err)
        kvt__table_close(table);
    _exit(0);
}

/* Measure n writers for this number of seconds, and write their stores a second.  first: number of
 * the first writer.  Return 0 or an exit code. */
static int
race(struct field *f, unsigned n, uint64_t first, double seconds, double *rate)
{
    pid_t pids[WRITERS];
    unsigned started = 0;

    memset(f->race, 0, sizeof *f->race);
    for (; started < n; started++) {
        pids[started] = fork();
        if (!pids[started])
            be_writer(f, first + started);
        if (pids[started] < 0)
            break;
    }
    while (atomic_load(&f->race->n_ready) < started && !bench_interrupted())
        nap();
    double began = bench_now();
    atomic_store(&f->race->runs, true);
    while (bench_now() - began < seconds && !bench_interrupted())
        nap();
    atomic_store(&f->race->ends, true);
    double took = bench_now() - began;
    for (unsigned i = 0; i < started; i++)
        waitpid(pids[i], NULL, 0);
    *rate = (double)atomic_load(&f->race->n_stores) / took;
    if (started == n && !atomic_load(&f->race->n_failed) && !bench_interrupted())
        return 0;
    fprintf(stderr, "kvtier-bench: %u of %u processes could not write to the index\n",
            n - started + atomic_load(&f->race->n_failed), n);
    return CLI_ENVIRONMENT;
}

/* Alternate between one writer and WRITERS writers, and fill in the result. */
static int
measure(struct field *f, double seconds, struct bench_result *out)
{
    double one[ROUNDS], many[ROUNDS];
    uint64_t first = 0;
    int code = 0;

    for (int round = 0; !code && round < ROUNDS; round++) {
        code = race(f, 1, first++, seconds, &one[round]);
        if (!code)
            code = race(f, WRITERS, first, seconds, &many[round]);
        first += WRITERS;
    }
    if (code)
        return code;
    out->threads = WRITERS;
    out->value = bench_median(many, ROUNDS);
    out->limit = bench_median(one, ROUNDS);
    out->unit = "1/s";
    out->ratio = out->value / out->limit;
    return 0;
}

/* Report that the index is not in shared memory, as the case requires. */
static int
not_shared(void)
{
    fprintf(stderr, "kvtier-bench: index.processes needs an index in shared memory: left "
            "out.\n");
    return BENCH_INSIDE_LEFT_OUT;
}

int
case_processes(const struct bench *bench, struct bench_result *out)
{
    struct field f = { .n = index_many(bench), .digest = kvt__table_digest(INDEX_TEXT) };
    struct kvt__table *table;
    int code;

    snprintf(f.shm, sizeof f.shm, "/dev/shm/kvtier-bench-XXXXXX");
    if (!mkdtemp(f.shm)) {
        fprintf(stderr, "kvtier-bench: index.processes needs a directory in /dev/shm (%s): "
                "left out.\n", strerror(errno));
        return BENCH_INSIDE_LEFT_OUT;
    }
    f.params = (struct kvt__table_params){ .limit_bytes = f.n * INDEX_CHUNK_BYTES,
                                           .writer = true, .shm = f.shm };
    f.race = mmap(NULL, sizeof *f.race, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                  -1, 0);
    f.dirfd = open(bench->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f.race == MAP_FAILED || f.dirfd < 0) {
        fprintf(stderr, "kvtier-bench: open %s: %s\n", bench->dir, strerror(errno));
        rmdir(f.shm);
        return CLI_ENVIRONMENT;
    }
    code = kvt__table_open(&f.params, f.dirfd, &table) ? CLI_ENVIRONMENT : 0;
    if (!code) {
        code = kvt__table_is_shared(table) ? index_fill(table, f.digest, 0, f.n)
                                           : not_shared();
        if (!code)
            code = measure(&f, bench->quick ? 0.05 : 1, out);
        kvt__table_close(table);
    }
    unlinkat(f.dirfd, "lock", 0);
    bench_remove_tree(f.shm);
    close(f.dirfd);
    munmap(f.race, sizeof *f.race);
    return code;
}
