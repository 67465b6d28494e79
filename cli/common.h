/* SPDX-License-Identifier: Apache-2.0
 *
 * What the subcommands that work on a store share: their options, the store
 * itself, progress. */
#ifndef KVT_CLI_COMMON_H
#define KVT_CLI_COMMON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cli.h"
#include "kvtier.h"

#define CLI_MAX_SETTINGS 16

struct cli_common {
    const char *config_file;
    const char *settings[CLI_MAX_SETTINGS + 1];
    size_t n_settings;
    bool json;
    int n_args;
    char **args; /* what is no option */
};

#define CLI_COMMON_HELP \
    "  --config FILE    configuration, as for an engine\n" \
    "  --set KEY=VALUE  one setting laid over it, e.g. remote_url=fs:///var/cache/kv\n" \
    "  --json           print JSON\n"

/* An option of a command: a flag, a whole number from 1 to most, or a text. */
struct cli_option {
    const char *name; /* without the dashes; NULL ends a list */
    bool *flag;
    uint64_t *number;
    uint64_t most;
    const char **text;
};

#define CLI_MAX_OPTIONS 8 /* of a command, without the common options */

/* Parse --config, --set, --json and the command's own options.  argv[0] is skipped.
 * own: at most CLI_MAX_OPTIONS options, or NULL.  max_args < 0: any number of arguments.
 * Return 0 or CLI_USAGE; then the reason was printed. */
int cli_parse(const struct cli_command *command, int argc, char **argv,
              const struct cli_option *own, int min_args, int max_args,
              struct cli_common *out);

/* Tell how an operation on one chunk ended: on the standard error why it failed, with
 * --json one object a chunk on the standard output.  Its exit code. */
int cli_tell(const struct cli_common *common, const struct kvt_op *op);

/* Open the configured store.  0 or an exit code, after saying why. */
int cli_open_store(const struct cli_common *common, struct kvt_store **out);

/* Return the text as a JSON string.  In a text that is not UTF-8 each byte above 127 becomes
 * '?'. */
json_t *cli_json_text(const char *text);

/* Print the object as one line and release the object. */
void cli_print_json(json_t *object);

/* Hex digits of an identity. */
void cli_id_text(const uint8_t id[16], char out[33]);

/* "12.3 MB" */
const char *cli_size_text(uint64_t bytes, char out[24]);

/* A line on a terminal that says how far it is; total 0: not known. */
void cli_progress(const char *what, uint64_t done, uint64_t total);
void cli_progress_end(void);

#endif
