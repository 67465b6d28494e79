/* SPDX-License-Identifier: Apache-2.0
 *
 * Deletion of many chunks, for kvtier rm --prefix and kvtier clear --older-than. */
#ifndef KVT_CLI_DELETE_H
#define KVT_CLI_DELETE_H

#include <stdbool.h>
#include <stdint.h>

#include "common.h"

struct cli_delete {
    const struct cli_command *command;
    const struct cli_common *common;
    const char *prefix; /* delete the chunks whose keys begin with prefix */
    const char *tier;   /* name of a tier such as "s3"; NULL: all tiers */
    int64_t before_ns;  /* delete only chunks with an earlier kvt_listed.mtime_ns */
    bool dry_run;       /* print the chunks and delete none */
};

/* Return the exit code for the status of a delete: CLI_NEGATIVE for a chunk that is in use; else
 * cli_code(). */
int cli_delete_code(int status);

/* Open the configured store, delete the selected chunks and print the counts.  Return an exit
 * code: CLI_NEGATIVE if a chunk is in use and stays.  Blocks. */
int cli_delete(const struct cli_delete *options);

#endif
