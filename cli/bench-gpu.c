/* SPDX-License-Identifier: Apache-2.0
 *
 * The gpu family, and what goes between a GPU and files: measured by a program of its own,
 * kvtier-bench-gpu, which sees the copies from inside, loads a driver and makes a context.
 * It takes a case and a directory, and says what it has found in one line of JSON. */
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "bench.h"
#include "cli.h"

#define HELPER "kvtier-bench-gpu"

static int
find(char *out, size_t size)
{
    if (bench_program_beside(HELPER, out, size) ||
        bench_program_beside(CLI_HELPERS "/" HELPER, out, size))
        return 0;
    fprintf(stderr, "kvtier bench: the gpu cases need " HELPER ", which is neither beside "
            "this program nor at %s: left out.\n", out);
    return BENCH_LEFT_OUT;
}

/* What it ended with, if it said nothing. */
static int
ended(const char *name, int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

    if (code == BENCH_GPU_LEFT_OUT)
        return BENCH_LEFT_OUT;
    if (code && code != 127) /* it has said why */
        return code;
    if (!bench_interrupted())
        fprintf(stderr, "kvtier bench: %s: " HELPER " ended without an answer (%s %d)\n",
                name, WIFSIGNALED(status) ? "signal" : "exit code",
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
        fprintf(stderr, "kvtier bench: start %s: %s\n", path, strerror(err));
        return CLI_ENVIRONMENT;
    }
    json_t *line = bench_program_hear(&program);
    if (!line && bench_interrupted())
        kill(program.pid, SIGTERM); /* it cleans up */
    int status = bench_program_end(&program);
    if (line && !status)
        return bench_result_take(line, out) ? 0 : ended(bench->name, 0);
    json_decref(line);
    return ended(bench->name, status);
}

/* Where one is left out the others would be, for the same reason. */
int
bench_gpu(const struct bench *bench, struct bench_result *out)
{
    static bool none;
    char path[4200];

    if (none)
        return BENCH_LEFT_OUT;
    int code = find(path, sizeof path);
    if (!code)
        code = run(bench, path, out);
    none = code == BENCH_LEFT_OUT;
    return code;
}
