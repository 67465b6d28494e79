/* SPDX-License-Identifier: Apache-2.0
 *
 * The families gpu, index and codec, which helper programs measure.  The helper programs call
 * internal functions of src/.  kvtier-bench-gpu also loads a driver and creates a context;
 * kvtier-bench-index fills memory with an index.  The arguments of a helper program are a case
 * and a directory; the program prints the result as one line of JSON. */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "bench.h"
#include "cli.h"

/* Write the path of a family's helper program. */
static int
find_program(const char *family, char *out, size_t size)
{
    char name[32];

    snprintf(name, sizeof name, "kvtier-bench-%s", family);
    if (bench_program_path(name, out, size))
        return 0;
    fprintf(stderr, "kvtier-bench: the %s cases need %s: skipped.\n", family, out);
    return BENCH_SKIPPED;
}

/* Return the code of a case whose helper program ended without a result. */
static int
code_of_status(const char *name, int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

    if (code == BENCH_HELPER_SKIPPED)
        return BENCH_SKIPPED;
    if (code && code != 127) /* the program printed a message */
        return code;
    if (!bench_interrupted())
        fprintf(stderr, "kvtier-bench: %s: the helper program ended without a result "
                "(%s %d)\n", name, WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : code);
    return CLI_ENVIRONMENT;
}

static int
run_program(const struct bench *bench, char *path, struct bench_result *out)
{
    struct bench_program program = BENCH_NO_PROGRAM;
    char name[64], dir[4096];
    char *args[] = { path, name, dir, bench->quick ? (char[]){ "--quick" } : NULL, NULL };

    snprintf(name, sizeof name, "%s", bench->name);
    snprintf(dir, sizeof dir, "%s", bench->dir);
    int err = bench_program_start(&program, args);
    if (err) {
        fprintf(stderr, "kvtier-bench: start %s: %s\n", path, strerror(err));
        return CLI_ENVIRONMENT;
    }
    json_t *line = bench_program_read_json(&program);
    if (!line && bench_interrupted())
        kill(program.pid, SIGTERM); /* ask the program to clean up and end */
    int status = bench_program_end(&program);
    if (line && !status)
        return bench_result_from_json(line, out) ? 0 : code_of_status(bench->name, 0);
    json_decref(line);
    return code_of_status(bench->name, status);
}

/* Run a case.  If a case is skipped, set *skips_family: later cases of the family have the same
 * reason and are skipped without a second message. */
static int
run_case(const char *family, bool *skips_family, const struct bench *bench,
        struct bench_result *out)
{
    char path[4200];

    if (*skips_family)
        return BENCH_SKIPPED;
    int code = find_program(family, path, sizeof path);
    if (!code)
        code = run_program(bench, path, out);
    *skips_family = code == BENCH_SKIPPED;
    return code;
}

int
bench_gpu(const struct bench *bench, struct bench_result *out)
{
    static bool skips_family;

    return run_case("gpu", &skips_family, bench, out);
}

int
bench_index(const struct bench *bench, struct bench_result *out)
{
    static bool skips_family;

    return run_case("index", &skips_family, bench, out);
}

int
bench_codec(const struct bench *bench, struct bench_result *out)
{
    static bool skips_family;

    return run_case("codec", &skips_family, bench, out);
}
