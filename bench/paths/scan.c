/* SPDX-License-Identifier: Apache-2.0
 *
 * The scan family: open a directory with 100,000 small chunks, with and without the saved index;
 * and open four directories of gds_path, in which each chunk has two files.  The baseline is the
 * system calls that read the same information. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"
#include "common.h"

#define N_FILES 100000u
#define QUICK_FILES 200u
#define N_ROUNDS 7
#define QUICK_ROUNDS 2
#define PAYLOAD_BYTES (4096u - 28u - 64u) /* header, payload and trailer are 4 KiB */
#define LOOKUP_TOKENS 2560u
#define ENTRY_BYTES 60u /* bytes of the index for each file */

static const struct cli_shape shape = { 1, 1, 8 };

#define MAX_PATHS 4u
#define METADATA_SUFFIX ".metadata" /* suffix of the second file of each chunk of gds_path */

struct scan {
    char paths[MAX_PATHS][4096 + 16];
    size_t n_paths;
    char storage[MAX_PATHS * (4096 + 16) + 16]; /* the setting that names the paths */
    const char *settings[3];
    size_t n_files, n_rounds;
    bool cold;
    uint32_t role; /* role of the engine */
    int32_t tokens[LOOKUP_TOKENS];
    double longest_call, longest_lookup; /* seconds, while the engine reads the directory */
};

static int
fail(const char *what)
{
    fprintf(stderr, "kvtier-bench: %s: %s\n", what, strerror(errno));
    return CLI_ENVIRONMENT;
}

/* ------------------------------------------------------------------- the files */

static int
store_files(struct kvt_store *store, const struct scan *scan)
{
    size_t n = scan->n_files;
    static char payload[PAYLOAD_BYTES];
    struct kvt_op op = KVT_INIT(struct kvt_op);
    char key[64];

    op.kind = KVT_OP_PUT;
    op.key = key;
    op.buf = payload;
    op.bytes = sizeof payload;
    for (size_t i = 0; i < n; i++) {
        /* The factor is odd, so all hashes differ.  Each rank has one path. */
        snprintf(key, sizeof key, "bench@%zu@%zu@%" PRIx64 "@bfloat16", scan->n_paths,
                 i % scan->n_paths, (i + 1) * UINT64_C(0x9e3779b97f4a7c15));
        cli_progress("scan: files made", i, n);
        int err = bench_interrupted() ? -EINTR : kvt_store_run(store, &op);
        if (err)
            return bench_interrupted() ? CLI_ENVIRONMENT : cli_fail(err);
    }
    cli_progress_end();
    return 0;
}

/* Create the files.  Open an engine first: the engine creates the index for the chunk size. */
static int
make_files(const struct scan *scan)
{
    struct kvt_engine *engine;
    struct kvt_store *store;
    int code = bench_engine_open(NULL, scan->settings, KVT_ROLE_WORKER, &shape, &engine);

    if (code)
        return code;
    kvt_engine_close(engine);
    code = bench_store_open_settings(scan->settings, &store);
    if (code)
        return code;
    code = store_files(store, scan);
    kvt_store_close(store);
    return code;
}

/* ---------------------------------------------------------------- baseline system calls */

struct baseline {
    uint64_t n, bytes;
};

static bool
is_metadata(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot && !strcmp(dot, METADATA_SUFFIX);
}

/* Read the name and the size of each file of a directory, and of its subdirectories with names of
 * at most two characters.  Add the number of chunks and the bytes to *baseline. */
static void
list_baseline_below(int dirfd, const char *name, struct baseline *baseline)
{
    int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct statx st;
    struct dirent *e;

    while (d && (e = readdir(d))) {
        if (e->d_type == DT_DIR && strlen(e->d_name) <= 2 && e->d_name[0] != '.')
            list_baseline_below(fd, e->d_name, baseline);
        if (e->d_type == DT_DIR ||
            statx(fd, e->d_name, AT_SYMLINK_NOFOLLOW,
                  STATX_TYPE | STATX_BLOCKS | STATX_MTIME, &st) || !S_ISREG(st.stx_mode))
            continue;
        baseline->n += !is_metadata(e->d_name);
        baseline->bytes += st.stx_blocks * 512;
    }
    if (d)
        closedir(d);
}

static int
list_baseline(void *ctx, struct bench_cost *out)
{
    const struct scan *scan = ctx;
    struct baseline baseline = { 0 };

    bench_start(out);
    for (size_t i = 0; i < scan->n_paths; i++)
        list_baseline_below(AT_FDCWD, scan->paths[i], &baseline);
    bench_stop(out);
    if (baseline.n == scan->n_files && baseline.bytes)
        return 0;
    fprintf(stderr, "kvtier-bench: %" PRIu64 " of %zu files are in %s\n", baseline.n,
            scan->n_files, scan->paths[0]);
    return CLI_ENVIRONMENT;
}

/* Create a file in memory with the size of an index of all files.  Return the descriptor or -1. */
static int
make_index(size_t bytes)
{
    static const char page[4096] = { 1 };
    int fd = memfd_create("kvtier-bench", MFD_CLOEXEC);

    for (size_t at = 0; fd >= 0 && at < bytes; at += sizeof page)
        if (write(fd, page, sizeof page) != sizeof page) {
            close(fd);
            return -1;
        }
    return fd;
}

/* Map a file of the size of the index, and read from every page. */
static int
map_baseline(void *ctx, struct bench_cost *out)
{
    const struct scan *scan = ctx;
    size_t n = scan->n_files * ENTRY_BYTES;
    int fd = make_index(n);
    unsigned sum = 0;

    if (fd < 0)
        return fail("memfd_create");
    bench_start(out);
    volatile const unsigned char *map = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return fail("mmap");
    for (size_t at = 0; at < n; at += 4096)
        sum += map[at];
    munmap((void *)map, n);
    bench_stop(out);
    return sum ? 0 : CLI_ENVIRONMENT;
}

/* ------------------------------------------------------------------------- kvtier */

static uint64_t
n_indexed(const struct kvt_store *store)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);

    return kvt_store_tier(store, 0, &info) ? 0 : info.n_chunks;
}

static void
update_longest(double *longest, double since)
{
    double seconds = bench_now() - since;

    if (seconds > *longest)
        *longest = seconds;
}

/* Look up a prompt that is not stored.  Record the longest call and the longest lookup. */
static int
look_up(struct scan *scan, struct kvt_engine *engine)
{
    struct kvt_seq *seq;
    uint64_t hit;
    int err = kvt_seq_new(engine, scan->tokens, LOOKUP_TOKENS, NULL, &seq);

    if (err)
        return cli_fail(err);
    double start = bench_now();
    do {
        double call = bench_now();

        err = kvt_engine_lookup(engine, seq, 0, LOOKUP_TOKENS, &hit);
        update_longest(&scan->longest_call, call);
    } while (err == -EAGAIN && !usleep(50));
    update_longest(&scan->longest_lookup, start);
    kvt_engine_release(engine, seq);
    kvt_seq_free(seq);
    return err ? cli_fail(err) : 0;
}

/* Wait until the index has all files.  Look up a prompt repeatedly during the wait. */
static int
wait_until_indexed(struct scan *scan, struct kvt_engine *engine)
{
    double deadline = bench_now() + 120;
    struct kvt_store *store;
    uint64_t n;
    int code = bench_store_open_settings(scan->settings, &store);

    if (code)
        return code;
    while (!code && (n = n_indexed(store)) < scan->n_files) {
        code = look_up(scan, engine);
        usleep(500);
        if (!code && (bench_interrupted() || bench_now() > deadline)) {
            fprintf(stderr, "kvtier-bench: %" PRIu64 " of %zu chunks are known\n", n,
                    scan->n_files);
            code = CLI_ENVIRONMENT;
        }
    }
    kvt_store_close(store);
    return code;
}

/* Open an engine and wait until the index has all files. */
static int
open_engine(void *ctx, struct bench_cost *out)
{
    struct scan *scan = ctx;
    struct kvt_engine *engine;

    bench_start(out);
    int code = bench_engine_open(NULL, scan->settings, scan->role, &shape, &engine);
    if (code)
        return code;
    code = wait_until_indexed(scan, engine);
    bench_stop(out);
    kvt_engine_close(engine);
    return code;
}

/* ---------------------------------------------------------------------- the cases */

static int
drop_caches(void)
{
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    sync();
    int err = write(fd, "3\n", 2) == 2 ? 0 : -errno;
    close(fd);
    return err;
}

static int
list_baseline_cold(void *ctx, struct bench_cost *out)
{
    struct scan *scan = ctx;

    return scan->cold && drop_caches() ? fail("drop_caches") : list_baseline(ctx, out);
}

static int
scan_files(void *ctx, struct bench_cost *out)
{
    static const char *const names[] = { "snapshot", "lock" };
    struct scan *scan = ctx;
    char path[4096 + 64];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/.kvtier/%s", scan->paths[0], names[i]);
        if (unlink(path) < 0 && errno != ENOENT)
            return fail(path);
    }
    return scan->cold && drop_caches() ? fail("drop_caches") : open_engine(ctx, out);
}

static int
run(struct scan *scan, const bench_step_fn *steps, struct bench_result *out)
{
    struct bench_cost costs[2 * N_ROUNDS];
    double baseline[N_ROUNDS], ours[N_ROUNDS], ratios[N_ROUNDS], cpu[N_ROUNDS];
    size_t n = scan->n_rounds;
    int code = make_files(scan);

    bench_tokens(scan->tokens, LOOKUP_TOKENS, 1);
    if (!code)
        code = bench_alternate("scan: rounds", n, steps, 2, scan, costs);
    if (code)
        return code;
    for (size_t i = 0; i < n; i++) {
        baseline[i] = costs[i].seconds;
        ours[i] = costs[n + i].seconds;
        ratios[i] = baseline[i] / ours[i];
        cpu[i] = costs[n + i].cpu;
    }
    out->value = bench_median(ours, n);
    out->limit = bench_median(baseline, n);
    out->ratio = bench_median(ratios, n);
    out->unit = "s";
    out->threads = 1;
    bench_add_figure(out, "worst", ours[n - 1]);
    bench_add_figure(out, "cpu_s", bench_median(cpu, n));
    bench_add_figure(out, "files", (double)scan->n_files);
    if (scan->longest_lookup > 0) {
        bench_add_figure(out, "lookup_call_max_ms", scan->longest_call * 1e3);
        bench_add_figure(out, "lookup_max_ms", scan->longest_lookup * 1e3);
    }
    return 0;
}

/* Return the number of files; KVTIER_BENCH_FILES=1000000 selects a larger directory. */
static size_t
n_files(const struct bench *bench)
{
    const char *wanted = getenv("KVTIER_BENCH_FILES");
    size_t n = wanted ? strtoul(wanted, NULL, 10) : 0;

    return bench->quick ? QUICK_FILES : n ? n : N_FILES;
}

/* Initialize a scan of one directory of the fs tier, or of several directories of gds_path. */
static void
scan_init(struct scan *scan, const struct bench *bench, size_t n_paths)
{
    char *to = scan->storage;
    size_t room = sizeof scan->storage;

    *scan = (struct scan){ .role = KVT_ROLE_BOTH, .n_paths = n_paths,
                           .n_files = n_files(bench),
                           .n_rounds = bench->quick ? QUICK_ROUNDS : N_ROUNDS };
    int n = snprintf(to, room, "%s", n_paths == 1 ? "remote_url=fs://" : "gds_path=");
    for (size_t i = 0; i < n_paths; i++) {
        snprintf(scan->paths[i], sizeof scan->paths[i], n_paths == 1 ? "%s" : "%s/%zu",
                 bench->dir, i);
        n += snprintf(to + n, room - (size_t)n, "%s%s", i ? "," : "", scan->paths[i]);
    }
    scan->settings[0] = "max_local_cpu_size=0.0625";
    scan->settings[1] = scan->storage;
}

int
bench_open_index(const struct bench *bench, struct bench_result *out)
{
    static const bench_step_fn steps[] = { map_baseline, open_engine };
    struct scan scan;

    scan_init(&scan, bench, 1);
    scan.role = KVT_ROLE_SCHEDULER; /* has lookups but, unlike a worker, no pool */
    return run(&scan, steps, out);
}

static int
run_scan(const struct bench *bench, const char *name, size_t n_paths, bool cold,
         struct bench_result *out)
{
    static const bench_step_fn steps[] = { list_baseline_cold, scan_files };
    struct scan scan;

    scan_init(&scan, bench, n_paths);
    scan.cold = cold && !bench->quick; /* --quick keeps the machine's page cache */
    if (scan.cold && drop_caches()) {
        fprintf(stderr, "kvtier-bench: %s: the page cache cannot be dropped (%s): "
                "skipped\n", name, strerror(errno));
        return BENCH_SKIPPED;
    }
    return run(&scan, steps, out);
}

int
bench_scan_warm(const struct bench *bench, struct bench_result *out)
{
    return run_scan(bench, "scan.warm", 1, false, out);
}

int
bench_scan_cold(const struct bench *bench, struct bench_result *out)
{
    return run_scan(bench, "scan.cold", 1, true, out);
}

int
bench_gds_scan(const struct bench *bench, struct bench_result *out)
{
    return run_scan(bench, "gds.scan", MAX_PATHS, false, out);
}

int
bench_gds_scan_cold(const struct bench *bench, struct bench_result *out)
{
    return run_scan(bench, "gds.scan.cold", MAX_PATHS, true, out);
}
