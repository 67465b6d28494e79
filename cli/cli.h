/* SPDX-License-Identifier: Apache-2.0
 *
 * Declarations for all subcommands of kvtier.  A subcommand is a file that defines a struct
 * cli_command, and a line in commands.def. */
#ifndef KVT_CLI_H
#define KVT_CLI_H

#include <stdio.h>

#include "kvtier.h"

/* Exit codes. */
enum {
    CLI_DONE = 0,
    CLI_NEGATIVE = 1,    /* the command ran: a chunk is missing or corrupt, or a check failed */
    CLI_USAGE = 2,       /* the arguments or the configuration are wrong */
    CLI_ENVIRONMENT = 3, /* storage is unreachable or full, or a permission is missing */
};

struct cli_command {
    const char *name;
    const char *usage;   /* arguments after the name; each line is a form of the command */
    const char *summary; /* a line for `kvtier --help`, without a full stop */
    const char *help;    /* text of `kvtier NAME --help` between usage and exit code 1 */
    const char *negative; /* meaning of exit code 1, without a full stop */
    int (*run)(int argc, char **argv); /* argv[0] is the name; returns an exit code */
};

#define KVT_COMMAND(name) extern const struct cli_command cli_##name;
#include "commands.def"
#undef KVT_COMMAND

/* Print the command's help to the standard output.  Return CLI_DONE. */
int cli_help(const struct cli_command *command);

/* Print an error in the arguments with cli_error(), and without --json also the usage.  The text
 * has no full stop.  Return CLI_USAGE. */
int cli_usage(const struct cli_command *command, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Make later calls of cli_error() print JSON. */
void cli_use_json(void);

/* Print an error and return code.  The error is a line on the standard error; after
 * cli_use_json() the error is a JSON object {"error": "..."} on the standard output. */
int cli_error(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Return the exit code for the status of a request or of a call: 0 or a negative errno. */
int cli_code(int status);

/* Print kvt_last_error() with cli_error().  err: a negative errno.  Return cli_code(err). */
int cli_fail(int err);

/* Print the text as a line.  Control characters appear as \xNN: keys and messages of a store may
 * contain the commands of a terminal. */
void cli_print_text(FILE *out, const char *text);

/* Print log lines of max_level and below to standard error; as for kvt_set_log(). */
void cli_set_log(enum kvt_log_level max_level);

#endif
