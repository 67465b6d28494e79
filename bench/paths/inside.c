/* SPDX-License-Identifier: Apache-2.0
 *
 * The families gpu and index, which helper programs measure.  The helper programs call internal
 * functions of src/.  kvtier-bench-gpu also loads a driver and creates a context;
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
find(const char *family, char *out, size_t size)
{
    char name[32];

    snprintf(name, sizeof name, "kvtier-bench-%s", family);
    if (bench_program_beside(name, out, size))
        return 0;
    fprintf(stderr, "kvtier-bench: the %s cases need %s: left out.\n", family, out);
    return BENCH_LEFT_OUT;
}

/* Return the code of a case whose helper program ended without a result. */
static int
ended(const char *name, int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

    if (code == BENCH_INSIDE_LEFT_OUT)
        return BENCH_LEFT_OUT;
    if (code && code != 127) /* the program printed a message */
        return code;
    if (!bench_interrupted())
        fprintf(stderr, "kvtier-bench: %s: the helper program ended without a result "
                "(%s %d)\n", name, WIFSIGNALED(status) ? "signal" : "exit code",
                WIFSIGNALED(status) ? WTERMSIG(status) : code);
    return CLI_ENVIRONMENT;
}

static int
run(const struct bench *bench, char *path, struct bench_result *out)
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
    json_t *line = bench_program_hear(&program);
    if (!line && bench_interrupted())
        kill(program.pid, SIGTERM); /* ask the program to clean up and end */
    int status = bench_program_end(&program);
    if (line && !status)
        return bench_result_take(line, out) ? 0 : ended(bench->name, 0);
    json_decref(line);
    return ended(bench->name, status);
}

/* Run a case.  If a case is left out, set *none, so that later cases of the family are left out
 * without a second message: the reason is the same for all. */
static int
measure(const char *family, bool *none, const struct bench *bench,
        struct bench_result *out)
{
    char path[4200];

    if (*none)
        return BENCH_LEFT_OUT;
    int code = find(family, path, sizeof path);
    if (!code)
        code = run(bench, path, out);
    *none = code == BENCH_LEFT_OUT;
    return code;
}

int
bench_gpu(const struct bench *bench, struct bench_result *out)
{
    static bool none;

    return measure("gpu", &none, bench, out);
}

int
bench_index(const struct bench *bench, struct bench_result *out)
{
    static bool none;

    return measure("index", &none, bench, out);
}
