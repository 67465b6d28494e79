/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier bench: figures of this machine, each beside a bare loop of system calls
 * measured in the same run. */
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
    const char *text; /* what value and limit are */
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

/* A new directory in dir. */
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
    fprintf(stderr, "kvtier bench: make a directory in %s: %s\n", dir, strerror(errno));
    return CLI_ENVIRONMENT;
}

/* ---------------------------------------------------------------------- telling */

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

static int
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
    return CLI_DONE;
}

/* ------------------------------------------------------------------ the command */

/* Each case in a directory of its own. */
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
        fprintf(stderr, "kvtier bench: interrupted\n");
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
    kvt_set_log(NULL, NULL, KVT_LOG_WARN); /* notes would break the table */
    if (!json)
        printf("%-20s %8s %-9s %8s %6s\n", "case", "value", "unit", "limit", "ratio");
    for (size_t i = 0; !code && i < N_CASES; i++)
        if (wanted[i])
            code = run_case(&cases[i], where, json);
    return code;
}

/* Those that the shell pattern means: a name means itself. */
static int
choose(const char *pattern, bool *wanted)
{
    bool any = false;

    for (size_t i = 0; i < N_CASES; i++) {
        if (!fnmatch(pattern, cases[i].name, 0))
            any = wanted[i] = true;
    }
    return any ? 0 : cli_usage(&cli_bench, "there is no case '%s'; --list names them",
                               pattern);
}

static int
bench_run(int argc, char **argv)
{
    static const struct option options[] = {
        { "list", no_argument, NULL, 'l' },
        { "case", required_argument, NULL, 'c' },
        { "dir", required_argument, NULL, 'd' },
        { "server", required_argument, NULL, 's' },
        { "daemon", required_argument, NULL, 'm' },
        { "quick", no_argument, NULL, 'q' },
        { "json", no_argument, NULL, 'j' },
        { 0 },
    };
    bool wanted[N_CASES] = { false }, any = false, list = false, json = false;
    struct bench where = { 0 };
    int c;

    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'l':
            list = true;
            break;
        case 'c':
            if (choose(optarg, wanted))
                return CLI_USAGE;
            any = true;
            break;
        case 'd':
            where.dir = optarg;
            break;
        case 's':
            where.server = optarg;
            break;
        case 'm':
            where.daemon = optarg;
            break;
        case 'q':
            where.quick = true;
            break;
        case 'j':
            json = true;
            break;
        default:
            return cli_usage(&cli_bench, "unknown option or missing value: %s",
                             argv[optind - 1]);
        }
    }
    if (argc > optind)
        return cli_usage(&cli_bench, "too many arguments: '%s'", argv[optind]);
    if (list)
        return list_cases(json);
    for (size_t i = 0; !any && i < N_CASES; i++)
        wanted[i] = true;
    return run_cases(wanted, &where, json);
}

const struct cli_command cli_bench = {
    .name = "bench",
    .usage = "[--case PATTERN]... [--dir DIR] [--server WHAT] [--daemon PROGRAM]"
             " [--quick] [--json]\n"
             "--list [--json]",
    .summary = "measure this machine, beside what bare system calls reach",
    .help =
        "Runs the cases and prints for each value, unit, limit and ratio: limit is\n"
        "the bare loop, measured in the same run by the same program with the same\n"
        "number of threads; at ratio 1 kvtier costs nothing.\n"
        "\n"
        "The files of a case and of its bare loop (up to 2 GiB) lie in a new\n"
        "directory that is removed at the end. A disk changes its speed all the time:\n"
        "kvtier and the bare loop take turns, ratio is the median of those of the\n"
        "pairs. The user's configuration does not count. KVTIER_BENCH_FILES is the\n"
        "number of files of the cases that open 100,000 chunks.\n"
        "\n"
        "The gpu cases are measured on the first GPU that CUDA's driver shows, or else\n"
        "HIP's (choose by CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES), and left out\n"
        "where there is none: 1 GiB of chunks a turn, or what finds room in its memory.\n"
        "\n"
        "  --case PATTERN  only the cases that a shell pattern means, as 's3.*' (in\n"
        "               quotes) or a name; may be given several times\n"
        "  --list       name the cases\n"
        "  --dir DIR    where to measure (default: $TMPDIR, or /var/tmp)\n"
        "  --server WHAT  for the s3 cases: the program to start, http-sink of the\n"
        "               tests (default: where this program was built), or one that runs\n"
        "               already, http://ADDRESS:PORT/BUCKET, with objects of 32 MiB\n"
        "               named object-0 to object-7 (s3.get, s3.put, s3.get.rate)\n"
        "  --daemon PROGRAM  for the hf3fs cases: usrbiod of the tests, which shows a\n"
        "               directory below --dir as a mount of 3FS (default: no program if\n"
        "               --dir lies on such a mount, without hf3fs.rate and hf3fs.exists;\n"
        "               else where this program was built).  They measure beside\n"
        "               libhf3fs_api_shared.so: the one that the loader finds\n"
        "               (LD_LIBRARY_PATH), else the tests'.  kvtier itself uses its own\n"
        "               client, or what HF3FS_CLIENT says.  They take up to 1 GiB of\n"
        "               /dev/shm\n"
        "  --quick      tiny sizes: shows that it runs, the figures mean nothing\n"
        "  --json       one JSON object a line and case\n",
    .run = bench_run,
};
