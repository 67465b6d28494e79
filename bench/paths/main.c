/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier-bench: benchmarks each data path of kvtier against a baseline loop of system calls in
 * the same run. */
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli.h"

/* ------------------------------------------------------------------------ cases */

struct bench_case {
    const char *name;
    const char *text; /* description of value and limit, for --list */
    int (*run)(const struct bench *bench, struct bench_result *out);
};

static const struct bench_case cases[] = {
    { "file.write", "throughput of stores to files of 32 MiB (fs); limit: write and rename",
      bench_file_write },
    { "file.read", "throughput of verified loads of files of 32 MiB into the pool; limit: read",
      bench_file_read },
    { "file.read.threads", "file.read with io_uring unavailable; limit: read with blocking calls",
      bench_file_read_threads },
    { "file.cpu", "CPU time of file.read beyond the limit: read", bench_file_cpu },
    { "file.retrieve",
      "CPU time of verified loads into KV blocks beyond the limit: read and memcpy",
      bench_file_retrieve },
    { "engine.store_file", "CPU time of file.write beyond the limit: write, rename and memcpy",
      bench_store_file },
    { "cpu.store", "throughput of stores to host memory that evict; limit: memcpy",
      bench_cpu_store },
    { "cpu.retrieve", "throughput of loads from host memory with 4 threads; limit: memcpy",
      bench_cpu_retrieve },
    { "cpu.store.paged", "cpu.store from KV whose contiguous pieces have 256 bytes; limit: memcpy",
      bench_cpu_store_paged },
    { "cpu.retrieve.paged",
      "cpu.retrieve to KV whose contiguous pieces have 256 bytes; limit: memcpy",
      bench_cpu_retrieve_paged },
    { "lookup.builtin", "time to hash (builtin) and look up 1,000,000 tokens; limit: hash only",
      bench_lookup_builtin },
    { "lookup.sha256_cbor",
      "time to hash (sha256_cbor) and look up 1,000,000 tokens; limit: hash only",
      bench_lookup_sha256 },
    { "index.bytes", "resident memory of a chunk in an index of 10^7 chunks; limit: 64 bytes",
      bench_index },
    { "index.find", "time to find one of 10^7 chunks, in batches of 32; limit: a hash table",
      bench_index },
    { "index.store", "time to evict and insert a chunk in a full index; limit: a hash table",
      bench_index },
    { "index.processes", "stores per second of 64 processes into one index; limit: of one process",
      bench_index },
    { "codec.lossless.size",
      "raw over encoded bytes of a chunk of KV; limit: the entropy of each plane's exponents",
      bench_codec },
    { "codec.lossless.encode", "throughput of one core, in decoded bytes; limit: memcpy",
      bench_codec },
    { "codec.lossless.decode", "throughput of one core, in decoded bytes; limit: memcpy",
      bench_codec },
    { "codec.kv8.encode", "throughput of one core, in decoded bytes; limit: memcpy", bench_codec },
    { "codec.kv8.decode", "throughput of one core, in decoded bytes; limit: memcpy", bench_codec },
    { "codec.kv4.encode", "throughput of one core, in decoded bytes; limit: memcpy", bench_codec },
    { "codec.kv4.decode", "throughput of one core, in decoded bytes; limit: memcpy", bench_codec },
    { "codec.cachegen.size",
      "how many times smaller a chunk becomes; limit: entropy of the symbols of each plane",
      bench_codec },
    { "codec.cachegen.encode", "throughput of one core, in decoded bytes; limit: memcpy",
      bench_codec },
    { "codec.cachegen.decode", "throughput of one core, in decoded bytes; limit: memcpy",
      bench_codec },
    { "open.index", "time to open 100,000 chunks with a saved index; limit: map the index",
      bench_open_index },
    { "scan.warm", "time to list 100,000 chunks without a saved index; limit: getdents and statx",
      bench_scan_warm },
    { "scan.cold", "scan.warm with empty caches (needs root); limit: getdents and statx",
      bench_scan_cold },
    { "gds.write", "file.write to gds_path, KV in host memory; limit: write and rename",
      bench_gds_write },
    { "gds.read", "file.read from gds_path, KV in host memory; limit: read", bench_gds_read },
    { "gds.scan", "scan.warm in 4 directories of gds_path; limit: getdents and statx",
      bench_gds_scan },
    { "gds.scan.cold", "gds.scan with empty caches (needs root); limit: getdents and statx",
      bench_gds_scan_cold },
    { "gds.gpu.write",
      "throughput of stores from a GPU to gds_path; limit: slower of bus and write", bench_gpu },
    { "gds.gpu.read", "throughput of loads from gds_path to a GPU; limit: slower of bus and read",
      bench_gpu },
    { "gpu.gather.nhd",
      "throughput from NHD blocks to chunks on a GPU, with CRC; limit: device copy", bench_gpu },
    { "gpu.gather.hnd",
      "throughput from HND blocks to chunks on a GPU, with CRC; limit: device copy", bench_gpu },
    { "gpu.scatter.nhd",
      "throughput from chunks to NHD blocks on a GPU, with CRC; limit: device copy", bench_gpu },
    { "gpu.scatter.hnd",
      "throughput from chunks to HND blocks on a GPU, with CRC; limit: device copy", bench_gpu },
    { "gpu.store.nhd",
      "throughput of stores from NHD blocks of a busy GPU to the pool; limit: the bus",
      bench_gpu },
    { "gpu.store.hnd",
      "throughput of stores from HND blocks of a busy GPU to the pool; limit: the bus",
      bench_gpu },
    { "gpu.load.nhd",
      "throughput of loads from the pool to NHD blocks of a busy GPU; limit: the bus", bench_gpu },
    { "gpu.load.hnd",
      "throughput of loads from the pool to HND blocks of a busy GPU; limit: the bus", bench_gpu },
    { "s3.get", "CPU time of verified GETs of 32 MiB, 8 in flight; limit: recv", bench_s3_get },
    { "s3.put", "CPU time of PUTs of 32 MiB with a checksum, 8 in flight; limit: send",
      bench_s3_put },
    { "s3.get.tls", "s3.get over TLS; limit: SSL_read", bench_s3_get_tls },
    { "s3.put.tls", "s3.put over TLS; limit: SSL_write", bench_s3_put_tls },
    { "s3.get.rate", "throughput of the requests of s3.get; limit: recv", bench_s3_get_rate },
    { "s3.head", "time of 1,000 HEADs with a delay of 5 ms, 64 in flight; limit: send and recv",
      bench_s3_head },
    { "s3.memory", "memory of 64 GETs over TLS besides the buffers; limit: 16 MiB + 64 x 300 KiB",
      bench_s3_memory },
    { "hf3fs.write", "throughput of stores to 3FS files of 32 MiB; limit: one ring, all in flight",
      bench_hf3fs_write },
    { "hf3fs.read", "throughput of verified loads of 3FS files; limit: one ring, all in flight",
      bench_hf3fs_read },
    { "hf3fs.cpu.write", "CPU time of hf3fs.write beyond the limit: one ring and memcpy",
      bench_hf3fs_cpu_write },
    { "hf3fs.cpu.read", "CPU time of hf3fs.read beyond the limit: one ring", bench_hf3fs_cpu_read },
    { "hf3fs.rate", "hf3fs.read with 100 MiB/s for each I/O; limit: an I/O a thread, as LMCache",
      bench_hf3fs_rate },
    { "hf3fs.exists", "time to check 10,000 chunks of 3FS, 64 in flight; limit: one at a time",
      bench_hf3fs_exists },
};

#define N_CASES (sizeof cases / sizeof *cases)

/* -------------------------------------------------------------------- directory */

/* Create a new directory in dir, $TMPDIR or /var/tmp, and write the path. */
static int
make_dir(const char *dir, char *out, size_t size)
{
    if (!dir)
        dir = getenv("TMPDIR");
    if (!dir || !*dir)
        dir = "/var/tmp";
    char *real = realpath(dir, NULL);
    int n = real ? snprintf(out, size, "%s/kvtier-bench-XXXXXX", real) : -1;
    free(real);
    if (n >= 0 && (size_t)n < size && mkdtemp(out))
        return 0;
    fprintf(stderr, "kvtier-bench: make a directory in %s: %s\n", dir, strerror(errno));
    return CLI_ENVIRONMENT;
}

/* ----------------------------------------------------------------------- output */

static int
print_json(const struct bench_case *c, const struct bench_result *r)
{
    json_t *line = bench_result_json(c->name, r);

    if (!line) {
        fprintf(stderr, "kvtier-bench: %s: a figure is not a finite number\n", c->name);
        return CLI_ENVIRONMENT;
    }
    json_dumpf(line, stdout, JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(line);
    return 0;
}

static void
print_detail(const char *name, const json_t *value)
{
    if (json_is_string(value))
        printf(", %s: %s", name, json_string_value(value));
    else
        printf(json_is_integer(value) ? ", %s %.0f" : ", %s %.6g", name,
               json_number_value(value));
}

static void
print_row(const struct bench_case *c, const struct bench_result *r)
{
    const char *name;
    json_t *value;

    printf("%-22s %8.3f %-9s %8.3f %6.3f\n", c->name, r->value, r->unit, r->limit,
           r->ratio);
    printf("    %u thread%s", r->threads, r->threads == 1 ? "" : "s");
    json_object_foreach(r->details, name, value)
        print_detail(name, value);
    printf("\n");
}

static void
list_cases(bool json)
{
    for (size_t i = 0; i < N_CASES; i++) {
        if (json) {
            json_t *line = json_pack("{s:s, s:s}", "case", cases[i].name, "text",
                                     cases[i].text);
            json_dumpf(line, stdout, 0);
            printf("\n");
            json_decref(line);
        } else {
            printf("%-22s %s\n", cases[i].name, cases[i].text);
        }
    }
}

/* ------------------------------------------------------------------ the command */

/* Run a case in a new directory, print the result, and delete the directory. */
static int
run_case(const struct bench_case *c, const struct bench *where, bool json)
{
    struct bench_result result = { 0 };
    char path[4096];
    struct bench bench = *where;
    int code = make_dir(where->dir, path, sizeof path);

    if (code)
        return code;
    bench.dir = path;
    bench.name = c->name;
    code = c->run(&bench, &result);
    bench_remove_tree(path);
    if (bench_interrupted())
        fprintf(stderr, "kvtier-bench: interrupted\n");
    else if (!code && json)
        code = print_json(c, &result);
    else if (!code)
        print_row(c, &result);
    fflush(stdout);
    bench_result_free(&result);
    return code == BENCH_SKIPPED ? 0 : code;
}

static int
run_cases(const bool *wanted, const struct bench *where, bool json)
{
    int code = 0;

    bench_catch_interrupts();
    kvt_set_log(NULL, NULL, KVT_LOG_WARN); /* log lines of lower levels would break the table */
    if (!json)
        printf("%-22s %8s %-9s %8s %6s\n", "case", "value", "unit", "limit", "ratio");
    for (size_t i = 0; !code && i < N_CASES; i++)
        if (wanted[i])
            code = run_case(&cases[i], where, json);
    return code;
}

/* ------------------------------------------------------------------ command line */

static const char usage[] =
    "Usage: kvtier-bench [--case PATTERN]... [--dir DIR] [--server SERVER]\n"
    "                    [--daemon PROGRAM] [--quick] [--json]\n"
    "       kvtier-bench --list [--json]\n";

static const char help[] =
    "\n"
    "Measures each data path of kvtier against a baseline: a minimal loop of system calls with\n"
    "an equal number of threads. Prints value, unit, limit and ratio of each case. limit is the\n"
    "value of the baseline, or a fixed limit. ratio is value / limit for throughput and in the\n"
    "families s3 and index, limit / value for other times, and limit / total for CPU times that\n"
    "are reported beyond the limit. At ratio 1 kvtier costs nothing.\n"
    "\n"
    "The files of a case and of the baseline (up to 2 GiB) are in a new directory, which the\n"
    "program deletes at the end. The speed of a disk varies: kvtier and the baseline alternate,\n"
    "and ratio is the median over the pairs. The user's configuration has no effect.\n"
    "KVTIER_BENCH_FILES sets the number of files of the cases that open 100,000 chunks.\n"
    "\n"
    "The gpu cases use the first GPU of CUDA's driver, or else of HIP's (select with\n"
    "CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES), with 1 GiB of chunks or as many as fit in\n"
    "the GPU's memory. Without a GPU the gpu cases are skipped.\n"
    "\n"
    "  --case PATTERN  run only the cases that match a shell pattern, such as 's3.*' (in\n"
    "                  quotes); may be repeated\n"
    "  --list          list the cases\n"
    "  --dir DIR       measure in DIR (default: $TMPDIR, or /var/tmp)\n"
    "  --server SERVER server of the s3 cases: a program to start (default: http-sink of the\n"
    "                  tests in the build directory), or the URL of a running server,\n"
    "                  http://ADDRESS:PORT/BUCKET, with objects object-0 to object-7 of 32 MiB.\n"
    "                  With a URL only s3.get, s3.put and s3.get.rate run\n"
    "  --daemon PROGRAM  daemon of the hf3fs cases, which serves a directory below --dir as a\n"
    "                  mount of 3FS (default: usrbiod of the tests in the build directory).\n"
    "                  If --dir is on a mount of 3FS, the cases use the mount without a daemon,\n"
    "                  and hf3fs.rate and hf3fs.exists are skipped. The baseline loads\n"
    "                  libhf3fs_api_shared.so from LD_LIBRARY_PATH, or else from the tests'\n"
    "                  build directory. kvtier uses its own client, or the client that\n"
    "                  HF3FS_CLIENT names. The cases need up to 1 GiB of /dev/shm\n"
    "  --quick         use tiny sizes, to check that the cases run; the figures are meaningless\n"
    "  --json          print a JSON object for each case, one a line\n"
    "  --help          print this text\n"
    "\n"
    "Exit codes: 0 success, 1 wrong bytes, 2 usage, 3 failure of the environment.\n";

static int
fail_usage(const char *what, const char *argument)
{
    fprintf(stderr, "kvtier-bench: %s '%s'.\n%sSee 'kvtier-bench --help'.\n", what, argument,
            usage);
    return CLI_USAGE;
}

struct arguments {
    struct bench where;
    bool wanted[N_CASES], list, json, help;
};

/* Choose the cases that match a shell pattern. */
static int
choose(const char *pattern, struct arguments *a)
{
    bool any = false;

    for (size_t i = 0; i < N_CASES; i++)
        if (!fnmatch(pattern, cases[i].name, 0))
            any = a->wanted[i] = true;
    return any ? 0 : fail_usage("--list has no case", pattern);
}

static int
parse(int argc, char **argv, struct arguments *a)
{
    static const struct option options[] = {
        { "list", no_argument, NULL, 'l' },        { "case", required_argument, NULL, 'c' },
        { "dir", required_argument, NULL, 'd' },   { "server", required_argument, NULL, 's' },
        { "daemon", required_argument, NULL, 'm' }, { "quick", no_argument, NULL, 'q' },
        { "json", no_argument, NULL, 'j' },        { "help", no_argument, NULL, 'h' },
        { 0 },
    };
    bool any = false;
    int c;

    opterr = 0;
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c == 'c' && choose(optarg, a))
            return CLI_USAGE;
        any |= c == 'c';
        a->list |= c == 'l';
        a->json |= c == 'j';
        a->help |= c == 'h';
        a->where.quick |= c == 'q';
        a->where.dir = c == 'd' ? optarg : a->where.dir;
        a->where.server = c == 's' ? optarg : a->where.server;
        a->where.daemon = c == 'm' ? optarg : a->where.daemon;
        if (c == '?')
            return fail_usage("unknown option or missing value", argv[optind - 1]);
    }
    for (size_t i = 0; !any && i < N_CASES; i++)
        a->wanted[i] = true;
    return argc > optind ? fail_usage("too many arguments", argv[optind]) : 0;
}

int
main(int argc, char **argv)
{
    struct arguments a = { .list = false };
    int code = parse(argc, argv, &a);

    if (code)
        return code;
    if (a.help)
        printf("%s%s", usage, help);
    else if (a.list)
        list_cases(a.json);
    else
        code = run_cases(a.wanted, &a.where, a.json);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "kvtier-bench: standard output: %s\n", strerror(errno));
        return CLI_ENVIRONMENT;
    }
    return code;
}
