/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier-bench-index CASE DIR [--quick]: run a case of the index family and print the
 * result as one line of JSON.  Exit code: as kvtier, or BENCH_HELPER_SKIPPED. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "index.h"

static const struct {
    const char *name;
    int (*run)(const struct bench *bench, struct bench_result *out);
} cases[] = {
    { "index.bytes", case_bytes },
    { "index.find", case_find },
    { "index.store", case_store },
    { "index.processes", case_processes },
};

static int
print_result(const char *name, const struct bench_result *result)
{
    json_t *line = bench_result_json(name, result);
    int bad = json_dumpf(line, stdout, JSON_REAL_PRECISION(6)) || putchar('\n') < 0 ||
              fflush(stdout);

    json_decref(line);
    return bad ? CLI_ENVIRONMENT : 0;
}

int
main(int argc, char **argv)
{
    struct bench bench = { .quick = argc > 3 };
    struct bench_result result = { 0 };

    if (argc >= 3 && argc <= 4 && (argc == 3 || !strcmp(argv[3], "--quick")))
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (!strcmp(cases[i].name, argv[1])) {
                bench.name = argv[1];
                bench.dir = argv[2];
                bench_catch_interrupts();
                int code = cases[i].run(&bench, &result);
                code = code ? code : print_result(argv[1], &result);
                bench_result_free(&result);
                return code == BENCH_SKIPPED ? BENCH_HELPER_SKIPPED : code;
            }
    fprintf(stderr, "Usage: kvtier-bench-index CASE DIR [--quick]\n"
            "kvtier-bench starts this program.\n");
    return CLI_USAGE;
}
