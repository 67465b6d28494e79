/* SPDX-License-Identifier: Apache-2.0
 *
 * The case index.processes: 64 processes store into one full index in shared memory. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "index.h"

#define WRITERS 64u
#define ROUNDS 3

/* Memory that the parent shares with the writers. */
struct run {
    atomic_uint n_ready;    /* writers that have opened the index */
    atomic_bool starts;     /* writers store chunks */
    atomic_bool stops;      /* writers exit */
    atomic_ullong n_stores; /* stores of all writers */
};

struct setup {
    char shm[32]; /* new directory in /dev/shm */
    struct run *run;
    struct kvt__table_params params;
    int dirfd;
    uint64_t digest, n; /* n: chunks in the index before the stores */
};

static void
sleep_1_ms(void)
{
    nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
}

/* Store chunks until the run stops.  Each writer has a distinct range of chunk numbers. */
static int
write_chunks(const struct setup *s, struct kvt__table *table, uint64_t number)
{
    struct kvt__record victims[KVT__TABLE_VICTIMS];
    uint64_t n = 0, first = s->n + (number << 32);
    size_t n_victims = 0;
    int err = 0;

    while (!err && !atomic_load(&s->run->stops)) {
        err = index_store(table, s->digest, first + n, victims, &n_victims);
        n += !err;
        if (err == -ENOSPC || err == -ETIMEDOUT)
            err = 0;
    }
    atomic_fetch_add(&s->run->n_stores, n);
    return err;
}

/* Run a writer in a child process, and exit.  The kernel kills the writer when the parent ends.
 * Exit status: 0, or 1 on a failure. */
static void
run_writer(const struct setup *s, uint64_t number, pid_t parent)
{
    struct kvt__table *table;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || kvt__table_open(&s->params, s->dirfd, &table) ||
        !kvt__table_is_shared(table))
        _exit(1);
    atomic_fetch_add(&s->run->n_ready, 1);
    while (!atomic_load(&s->run->starts))
        sleep_1_ms();
    int err = write_chunks(s, table, number);
    kvt__table_close(table);
    _exit(err ? 1 : 0);
}

/* Return true if a child process has exited or was killed.  The child can still be waited for. */
static bool
has_child_ended(void)
{
    siginfo_t info = { .si_pid = 0 };

    return !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid;
}

/* Wait for n child processes.  Return the number that failed. */
static unsigned
wait_for_children(const pid_t *pids, unsigned n)
{
    unsigned n_failed = 0;

    for (unsigned i = 0; i < n; i++) {
        int status = 0;

        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
            continue;
        n_failed += status != 0;
    }
    return n_failed;
}

/* Measure n writers for this number of seconds, and write their stores a second.  first: number of
 * the first writer.  Return 0 or an exit code. */
static int
run(struct setup *s, unsigned n, uint64_t first, double seconds, double *rate)
{
    pid_t pids[WRITERS], self = getpid();
    unsigned started = 0;

    memset(s->run, 0, sizeof *s->run);
    for (; started < n; started++) {
        pids[started] = fork();
        if (!pids[started])
            run_writer(s, first + started, self);
        if (pids[started] < 0)
            break;
    }
    while (atomic_load(&s->run->n_ready) < started && !has_child_ended() &&
           !bench_interrupted())
        sleep_1_ms();
    double began = bench_now();
    atomic_store(&s->run->starts, true);
    while (bench_now() - began < seconds && !bench_interrupted())
        sleep_1_ms();
    atomic_store(&s->run->stops, true);
    double took = bench_now() - began;
    unsigned n_failed = n - started + wait_for_children(pids, started);
    *rate = (double)atomic_load(&s->run->n_stores) / took;
    if (bench_interrupted())
        return CLI_ENVIRONMENT;
    if (!n_failed)
        return 0;
    fprintf(stderr, "kvtier-bench: %u of %u processes could not write to the index\n", n_failed,
            n);
    return CLI_ENVIRONMENT;
}

/* Alternate between one writer and WRITERS writers, and fill in the result. */
static int
measure(struct setup *s, double seconds, struct bench_result *out)
{
    double one[ROUNDS], many[ROUNDS];
    uint64_t first = 0;
    int code = 0;

    for (int round = 0; !code && round < ROUNDS; round++) {
        code = run(s, 1, first++, seconds, &one[round]);
        if (!code)
            code = run(s, WRITERS, first, seconds, &many[round]);
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
skip_private_index(void)
{
    fprintf(stderr, "kvtier-bench: index.processes needs an index in shared memory: "
            "skipped.\n");
    return BENCH_SKIPPED;
}

int
case_processes(const struct bench *bench, struct bench_result *out)
{
    struct setup s = { .n = index_n_chunks(bench), .digest = kvt__table_digest(INDEX_TEXT) };
    struct kvt__table *table;
    int code;

    snprintf(s.shm, sizeof s.shm, "/dev/shm/kvtier-bench-XXXXXX");
    if (!mkdtemp(s.shm)) {
        fprintf(stderr, "kvtier-bench: index.processes needs a directory in /dev/shm (%s): "
                "skipped.\n", strerror(errno));
        return BENCH_SKIPPED;
    }
    s.params = (struct kvt__table_params){ .limit_bytes = s.n * INDEX_CHUNK_BYTES,
                                           .writer = true, .shm = s.shm };
    s.run = mmap(NULL, sizeof *s.run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                  -1, 0);
    s.dirfd = open(bench->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s.run == MAP_FAILED || s.dirfd < 0) {
        fprintf(stderr, "kvtier-bench: open %s: %s\n", bench->dir, strerror(errno));
        rmdir(s.shm);
        return CLI_ENVIRONMENT;
    }
    int err = kvt__table_open(&s.params, s.dirfd, &table);
    code = err ? cli_fail(err) : 0;
    if (!code) {
        code = kvt__table_is_shared(table) ? index_fill(table, s.digest, 0, s.n)
                                           : skip_private_index();
        if (!code)
            code = measure(&s, bench->quick ? 0.05 : 1, out);
        kvt__table_close(table);
    }
    unlinkat(s.dirfd, "lock", 0);
    bench_remove_tree(s.shm);
    close(s.dirfd);
    munmap(s.run, sizeof *s.run);
    return code;
}
