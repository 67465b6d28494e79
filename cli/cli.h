/* SPDX-License-Identifier: Apache-2.0
 *
 * What the subcommands of kvtier share.  Each is one file that defines one
 * struct cli_command and one line in commands.def. */
#ifndef KVT_CLI_H
#define KVT_CLI_H

/* Exit codes. */
enum {
    CLI_DONE = 0,
    CLI_NO = 1,          /* done, but the answer is no: missing, corrupt, failed */
    CLI_USAGE = 2,       /* usage or configuration */
    CLI_ENVIRONMENT = 3, /* unreachable, no permission, full */
};

struct cli_command {
    const char *name;
    const char *usage;   /* what follows the name, one form a line */
    const char *summary; /* one line without a full stop */
    const char *help;    /* all that `kvtier NAME --help` says after the usage */
    const char *no;      /* the meaning of exit code 1, without a full stop */
    int (*run)(int argc, char **argv); /* argv[0] is the name; an exit code */
};

#define KVT_COMMAND(name) extern const struct cli_command cli_##name;
#include "commands.def"
#undef KVT_COMMAND

/* Print the command's help to the standard output; returns CLI_DONE. */
int cli_help(const struct cli_command *command);

/* Print an error in the arguments by cli_error(), without JSON also the usage.  Return
 * CLI_USAGE. */
int cli_usage(const struct cli_command *command, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Make cli_error() print JSON. */
void cli_answer_in_json(void);

/* Print an error and return code.  The error is one line on the standard error; after
 * cli_answer_in_json() the error is a JSON object {"error": "..."} on the standard output. */
int cli_error(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Return the exit code for the status of a request or of a call. */
int cli_code(int status);

/* Print kvt_last_error() by cli_error() and return cli_code(err). */
int cli_fail(int err);

#endif
