/* SPDX-License-Identifier: Apache-2.0
 *
 * Options, store, results and progress of the subcommands that work on a store. */
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

/* The parsed arguments of a subcommand.  All texts belong to argv. */
struct cli_common {
    const char *config_file;                    /* NULL: no --config */
    const char *settings[CLI_MAX_SETTINGS + 1]; /* "key=value", NULL-terminated */
    size_t n_settings;
    bool json;
    int n_args;
    char **args; /* arguments after the options */
};

#define CLI_COMMON_HELP \
    "  --config FILE    configuration, as for an engine\n" \
    "  --set KEY=VALUE  override a setting, e.g. remote_url=fs:///var/cache/kv\n" \
    "  --json           print JSON\n"

/* An option of a command.  Exactly one of flag, number and text is set: the destination. */
struct cli_option {
    const char *name; /* without the dashes; NULL: the end of the list */
    bool *flag;
    uint64_t *number;
    uint64_t max; /* the number is a whole number from 1 to max */
    const char **text;
};

#define CLI_MAX_OPTIONS 8 /* options of a command, without the common options */

/* Parse --config, --set, --json and the command's own options.  argv[0] is skipped; argv may be
 * reordered.  own: at most CLI_MAX_OPTIONS options, or NULL.  max_args < 0: any number of
 * arguments.  Return 0, or CLI_USAGE after printing the error. */
int cli_parse(const struct cli_command *command, int argc, char **argv,
              const struct cli_option *own, int min_args, int max_args,
              struct cli_common *out);

/* Report a completed operation on a chunk and return the operation's exit code.  Without --json, a
 * failure is printed to the standard error; with --json, each result is printed to the standard
 * output as an object. */
int cli_print_result(const struct cli_common *common, const struct kvt_op *op);

/* Open the configured store.  Return 0, or an exit code after printing the error.  The caller
 * closes *out with kvt_store_close().  Blocks. */
int cli_open_store(const struct cli_common *common, struct kvt_store **out);

/* Read the chunk of a key, also of a listed key, into allocated memory.  The caller frees op->buf,
 * also after an error.  op->status has the result of the read.  Return CLI_DONE, or an exit code
 * after printing the error: there is no memory.  Blocks. */
int cli_read_chunk(struct kvt_store *store, const char *key, struct kvt_op *op);

/* Return the text as a new JSON string.  If the text is not UTF-8, each byte above 127 becomes
 * '?'.  If the allocation fails, the result is a JSON null. */
json_t *cli_json_text(const char *text);

/* Print the object as a line and release the caller's reference to the object. */
void cli_print_json(json_t *object);

/* Write the identity as 32 hex digits to out. */
void cli_id_text(const uint8_t id[16], char out[33]);

/* Write the size as a text such as "12.3 MB" to out.  Return out. */
const char *cli_size_text(uint64_t bytes, char out[24]);

/* Write the measured computation of a model, and the shortest prompt that loads faster from the
 * tier, as a text to out.  Return out. */
#define CLI_PREFILL_BYTES 256
const char *cli_prefill_text(const struct kvt_tier_info *tier,
                             const struct kvt_prefill_info *prefill, char out[CLI_PREFILL_BYTES]);

/* Print a progress line to the standard error if the standard error is a terminal: at most once a
 * second, and when done is total.  label: the text before the counts.  total 0: the total is
 * unknown. */
void cli_progress(const char *label, uint64_t done, uint64_t total);

/* Erase the progress line. */
void cli_progress_end(void);

#endif
