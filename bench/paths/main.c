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
    { "file.write", "engine to files of 32 MiB (fs); limit: bare writes and renames",
      bench_file_write },
    { "file.read", "files of 32 MiB to the pool, verified; limit: bare reads",
      bench_file_read },
    { "file.read.threads", "the same without io_uring", bench_file_read_threads },
    { "file.cpu", "CPU of file.read above that of bare reads", bench_file_cpu },
    { "file.retrieve", "CPU of files to blocks, verified, above bare reads and a scatter",
      bench_file_retrieve },
    { "engine.store_file", "CPU of file.write above that of bare writes and a copy",
      bench_store_file },
    { "cpu.store", "paged KV to host memory, evicting; limit: memcpy",
      bench_cpu_store },
    { "cpu.retrieve", "host memory to paged KV; limit: memcpy by as many threads",
      bench_cpu_retrieve },
    { "cpu.store.paged", "cpu.store of a KV cache in pieces of 256 bytes",
      bench_cpu_store_paged },
    { "cpu.retrieve.paged", "cpu.retrieve to a KV cache in pieces of 256 bytes",
      bench_cpu_retrieve_paged },
    { "lookup.builtin", "hash and look up a million tokens; limit: hashing alone",
      bench_lookup_builtin },
    { "lookup.sha256_cbor", "the same with the other chunk hash",
      bench_lookup_sha256 },
    { "index.bytes", "resident bytes a chunk of an index of 10^7 chunks; limit: 64",
      bench_index },
    { "index.find", "find a chunk of 10^7, 32 at a time; limit: a bare table", bench_index },
    { "index.store", "enter a chunk into a full index, evicting; limit: a bare insert",
      bench_index },
    { "index.processes", "stores a second of 64 processes into an index; limit: of one",
      bench_index },
    { "open.index", "open 100,000 chunks with their index; limit: mapping it",
      bench_open_index },
    { "scan.warm", "the same without it; limit: bare getdents and statx",
      bench_scan_warm },
    { "scan.cold", "the same with empty caches (as root: they are dropped)",
      bench_scan_cold },
    { "gds.write", "file.write to gds_path, without a GPU", bench_gds_write },
    { "gds.read", "file.read from gds_path, without a GPU", bench_gds_read },
    { "gds.scan", "open 100,000 chunks in four directories of gds_path without index",
      bench_gds_scan },
    { "gds.scan.cold", "the same with empty caches (as root)", bench_gds_scan_cold },
    { "gds.gpu.write", "a GPU's KV to files (gds_path); limit: slower of bus, bare writes",
      bench_gpu },
    { "gds.gpu.read", "the same back, verified; limit: slower of bus and bare reads",
      bench_gpu },
    { "gpu.gather.nhd", "a GPU's KV to chunks there, with CRC; limit: a plain copy there",
      bench_gpu },
    { "gpu.gather.hnd", "the same of KV in which a block's heads are apart", bench_gpu },
    { "gpu.scatter.nhd", "chunks on a GPU to KV there, with CRC; limit: a plain copy there",
      bench_gpu },
    { "gpu.scatter.hnd", "the same to KV in which a block's heads are apart", bench_gpu },
    { "gpu.store.nhd", "KV on a GPU that computes to the pool, with CRC; limit: the bus",
      bench_gpu },
    { "gpu.store.hnd", "the same of KV in which a block's heads are apart", bench_gpu },
    { "gpu.load.nhd", "the pool to KV on a GPU that computes; limit: the bus", bench_gpu },
    { "gpu.load.hnd", "the same to KV in which a block's heads are apart", bench_gpu },
    { "s3.get", "CPU of 8 GETs at a time of 32 MiB, verified; limit: bare recv()",
      bench_s3_get },
    { "s3.put", "CPU of 8 PUTs at a time of 32 MiB; limit: bare send()", bench_s3_put },
    { "s3.get.tls", "s3.get over TLS; limit: bare SSL_read()", bench_s3_get_tls },
    { "s3.put.tls", "s3.put over TLS; limit: bare SSL_write()", bench_s3_put_tls },
    { "s3.get.rate", "s3.get by the clock; limit: bare recv()", bench_s3_get_rate },
    { "s3.head", "1,000 HEADs, 64 at a time, each answered after 5 ms; limit: bare ones",
      bench_s3_head },
    { "s3.memory", "beyond the buffers of 64 GETs over TLS; limit: what it may be",
      bench_s3_memory },
    { "hf3fs.write", "engine to files of 32 MiB in 3FS; limit: bare ring, all under way",
      bench_hf3fs_write },
    { "hf3fs.read", "the same files to the pool, verified; limit: bare ring",
      bench_hf3fs_read },
    { "hf3fs.cpu.write", "CPU of hf3fs.write above that of a bare ring and a copy",
      bench_hf3fs_cpu_write },
    { "hf3fs.cpu.read", "CPU of hf3fs.read above that of a bare ring",
      bench_hf3fs_cpu_read },
    { "hf3fs.rate", "hf3fs.read where each I/O has 100 MiB/s; limit: LMCache's pattern",
      bench_hf3fs_rate },
    { "hf3fs.exists", "10,000 chunks asked for, 64 at a time; limit: one by one",
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

static void
print_json(const struct bench_case *c, const struct bench_result *r)
{
    json_t *line = bench_result_json(c->name, r);

    json_dumpf(line, stdout, JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(line);
}

static void
print_more(const char *name, const json_t *value)
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

    printf("%-20s %8.3f %-9s %8.3f %6.3f\n", c->name, r->value, r->unit, r->limit,
           r->ratio);
    printf("    %u thread%s", r->threads, r->threads == 1 ? "" : "s");
    json_object_foreach(r->more, name, value)
        print_more(name, value);
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
            printf("%-20s %s\n", cases[i].name, cases[i].text);
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
        print_json(c, &result);
    else if (!code)
        print_row(c, &result);
    fflush(stdout);
    bench_result_free(&result);
    return code == BENCH_LEFT_OUT ? 0 : code;
}

static int
run_cases(const bool *wanted, const struct bench *where, bool json)
{
    int code = 0;

    bench_catch_interrupts();
    kvt_set_log(NULL, NULL, KVT_LOG_WARN); /* log lines of lower levels would break the table */
    if (!json)
        printf("%-20s %8s %-9s %8s %6s\n", "case", "value", "unit", "limit", "ratio");
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
    "Measures each data path of kvtier against a baseline: a minimal loop of system calls (or\n"
    "the named limit) in the same process with as many threads. Prints value, unit, limit and\n"
    "ratio of each case; at ratio 1 kvtier costs nothing.\n"
    "\n"
    "The files of a case and of its baseline (up to 2 GiB) are in a new directory, which the\n"
    "program deletes at the end. Because the speed of a disk varies, kvtier and the baseline\n"
    "take turns, and ratio is the median over the pairs. The user's configuration has no effect.\n"
    "KVTIER_BENCH_FILES sets the number of files of the cases that open 100,000 chunks.\n"
    "\n"
    "The gpu cases use the first GPU of CUDA's driver, or else of HIP's (select with\n"
    "CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES), with 1 GiB of chunks or as many as fit in\n"
    "the GPU's memory. Without a GPU the cases are left out.\n"
    "\n"
    "  --case PATTERN  run only the cases that match a shell pattern, such as 's3.*' (in\n"
    "                  quotes); may be repeated\n"
    "  --list          list the cases\n"
    "  --dir DIR       measure in DIR (default: $TMPDIR, or /var/tmp)\n"
    "  --server SERVER server of the s3 cases: a program to start (default: http-sink of the\n"
    "                  tests in the build directory), or the URL of a running server,\n"
    "                  http://ADDRESS:PORT/BUCKET, with objects object-0 to object-7 of 32 MiB\n"
    "                  (s3.get, s3.put, s3.get.rate)\n"
    "  --daemon PROGRAM  daemon of the hf3fs cases: usrbiod of the tests, which serves a\n"
    "                  directory below --dir as a mount of 3FS. Default: if --dir is on a mount\n"
    "                  of 3FS, no daemon, without hf3fs.rate and hf3fs.exists; else usrbiod of\n"
    "                  the build directory. The baseline uses libhf3fs_api_shared.so of the\n"
    "                  dynamic loader (LD_LIBRARY_PATH), else of the tests. kvtier uses its own\n"
    "                  client, or the client in HF3FS_CLIENT. Takes up to 1 GiB of /dev/shm.\n"
    "  --quick         use tiny sizes: shows that the cases run; the figures mean nothing\n"
    "  --json          print one JSON object a line for each case\n"
    "  --help          print this text\n"
    "\n"
    "Exit codes: 0 done, 1 wrong bytes, 2 usage, 3 the environment.\n";

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
