/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier version: print the version of the library. */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "kvtier.h"

static int
run(int argc, char **argv)
{
    if (argc == 1) {
        printf("kvtier %s\n", kvt_version());
        return CLI_DONE;
    }
    if (argc == 2 && !strcmp(argv[1], "--json")) {
        printf("{\"version\": \"%s\"}\n", kvt_version());
        return CLI_DONE;
    }
    return cli_usage(&cli_version, "unexpected argument '%s'", argv[1]);
}

const struct cli_command cli_version = {
    .name = "version",
    .usage = "[--json]",
    .summary = "print the version of the library",
    .help = "Prints the version of the loaded libkvtier.\n",
    .negative = "does not occur",
    .run = run,
};
