/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier-bench-gpu CASE DIR [--quick]: run one case of `kvtier-bench` on a GPU, and print the
 * result as a line of JSON.  Exit status: as kvtier, or BENCH_HELPER_SKIPPED. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"

static const struct gpu_case cases[] = {
    { "gds.gpu.write", case_files, true, false },
    { "gds.gpu.read", case_files, false, false },
    { "gpu.gather.nhd", case_copies, true, false },
    { "gpu.gather.hnd", case_copies, true, true },
    { "gpu.scatter.nhd", case_copies, false, false },
    { "gpu.scatter.hnd", case_copies, false, true },
    { "gpu.store.nhd", case_pool, true, false },
    { "gpu.store.hnd", case_pool, true, true },
    { "gpu.load.nhd", case_pool, false, false },
    { "gpu.load.hnd", case_pool, false, true },
};

static const struct gpu_case *
find_case(const char *name)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, name))
            return &cases[i];
    return NULL;
}

/* Redirect standard output to standard error, because the vendors' libraries print there.  Return a
 * descriptor of the original standard output, for the result, or -1. */
static int
redirect_output(void)
{
    int result_fd = dup(STDOUT_FILENO);

    if (result_fd < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        return -1;
    return result_fd;
}

static int
print_result(const struct gpu_case *c, const struct bench_result *result, int fd)
{
    json_t *line = bench_result_json(c->name, result);
    int bad = json_dumpfd(line, fd, JSON_REAL_PRECISION(6));

    json_decref(line);
    return bad || write(fd, "\n", 1) != 1 ? CLI_ENVIRONMENT : 0;
}

int
main(int argc, char **argv)
{
    const struct gpu_case *c = argc > 2 ? find_case(argv[1]) : NULL;
    struct bench bench = { .quick = argc > 3 };
    struct bench_result result = { 0 };
    struct machine m;

    if (!c || (argc > 3 && strcmp(argv[3], "--quick")) || argc > 4) {
        fprintf(stderr, "Usage: kvtier-bench-gpu CASE DIR [--quick]\n"
                "kvtier-bench starts this program.\n");
        return CLI_USAGE;
    }
    int result_fd = redirect_output();
    if (result_fd < 0)
        return CLI_ENVIRONMENT;
    bench.name = argv[1];
    bench.dir = argv[2];
    bench_catch_interrupts();
    int code = machine_open(&m);
    if (!code) {
        code = c->run(c, &bench, &m, &result);
        machine_close(&m);
    }
    if (!code)
        code = print_result(c, &result, result_fd);
    bench_result_free(&result);
    return code == BENCH_SKIPPED ? BENCH_HELPER_SKIPPED : code;
}
