/* SPDX-License-Identifier: Apache-2.0
 *
 * The program kvtier: find the subcommand and run the subcommand. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "kvtier.h"

static const struct cli_command *const commands[] = {
#define KVT_COMMAND(name) &cli_##name,
#include "commands.def"
#undef KVT_COMMAND
};

#define N_COMMANDS (sizeof commands / sizeof *commands)

static bool in_json; /* --json is among the arguments, also if the command has no --json */

static void
print_log(void *ctx, enum kvt_log_level level, const char *line)
{
    static const char *const names[] = {
        [KVT_LOG_ERROR] = "error", [KVT_LOG_WARN] = "warning", [KVT_LOG_INFO] = "note",
        [KVT_LOG_DEBUG] = "debug", [KVT_LOG_TRACE] = "trace" };

    (void)ctx;
    flockfile(stderr);
    fprintf(stderr, "kvtier: %s: ", names[level]);
    cli_print_text(stderr, line);
    funlockfile(stderr);
}

void
cli_set_log(enum kvt_log_level max_level)
{
    kvt_set_log(print_log, NULL, max_level);
}

/* Print a line "kvtier NAME ARGUMENTS" for each line of the command's usage. */
static void
print_usage(FILE *out, const struct cli_command *command)
{
    const char *line = command->usage;
    const char *lead = "Usage:";

    do {
        size_t len = strcspn(line, "\n");

        fprintf(out, "%-6s kvtier %s%s%.*s\n", lead, command->name, len ? " " : "",
                (int)len, line);
        line += len + (line[len] == '\n');
        lead = "";
    } while (*line);
}

int
cli_help(const struct cli_command *command)
{
    print_usage(stdout, command);
    printf("\n%s\nExit code 1: %s.\n", command->help, command->negative);
    return CLI_DONE;
}

int
cli_usage(const struct cli_command *command, const char *fmt, ...)
{
    va_list ap;
    char text[512];

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cli_error(CLI_USAGE, "%s: %s.", command->name, text);
    if (!in_json) {
        print_usage(stderr, command);
        fprintf(stderr, "See 'kvtier %s --help'.\n", command->name);
    }
    return CLI_USAGE;
}

static int
print_help(void)
{
    printf("kvtier stores the KV cache of language models outside the inference engine.\n"
           "\n"
           "Usage: kvtier COMMAND [ARGUMENTS]\n"
           "       kvtier COMMAND --help (or: kvtier help COMMAND)\n"
           "\n"
           "  -v   also print endpoints, the source of keys, retries and redirects, with reasons\n"
           "  -vv  also print each request, with result and duration; never a secret\n"
           "\n"
           "Commands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-10s %s\n", commands[i]->name, commands[i]->summary);
    printf("\n"
           "The configuration is a YAML file that KVTIER_CONFIG_FILE or LMCACHE_CONFIG_FILE\n"
           "names; KVTIER_* and LMCACHE_* variables override settings of the file. Engines\n"
           "use the same sources. To check a configuration:\n"
           "\n"
           "  kvtier config check lmcache.yaml   report errors and warnings\n"
           "  kvtier config show lmcache.yaml    print the settings and their sources\n"
           "  kvtier config keys                 list all settings\n"
           "\n"
           "Exit codes:\n"
           "  0  success\n"
           "  1  a negative result: missing, corrupt, a failed check\n"
           "  2  wrong usage or configuration\n"
           "  3  the environment: unreachable, no permission, full\n"
           "\n"
           "'kvtier help COMMAND' explains exit code 1 of the command.\n");
    return CLI_DONE;
}

/* Return the number of letters to delete and insert to turn a into b.  A typing error yields a
 * small number.  If b has 32 letters or more, return the length of both texts. */
static size_t
difference(const char *a, const char *b)
{
    size_t n_a = strlen(a), n_b = strlen(b), common[32] = { 0 };

    if (n_b >= sizeof common / sizeof *common)
        return n_a + n_b;
    for (size_t i = 0; i < n_a; i++) {
        size_t diagonal = 0;

        for (size_t j = 1; j <= n_b; j++) {
            size_t above = common[j];

            if (a[i] == b[j - 1])
                common[j] = diagonal + 1;
            else if (common[j - 1] > above)
                common[j] = common[j - 1];
            diagonal = above;
        }
    }
    return n_a + n_b - 2 * common[n_b];
}

static int
unknown_command(const char *name)
{
    const char *nearest = NULL;
    size_t least = 4;

    for (size_t i = 0; i < N_COMMANDS; i++) {
        size_t d = difference(name, commands[i]->name);
        if (d < least) {
            least = d;
            nearest = commands[i]->name;
        }
    }
    if (nearest)
        return cli_error(CLI_USAGE, "there is no command '%s'. Did you mean '%s'? See "
                         "'kvtier --help'.", name, nearest);
    return cli_error(CLI_USAGE, "there is no command '%s'. See 'kvtier --help'.", name);
}

static int
run_command(int argc, char **argv)
{
    const char *name = argv[0];

    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, commands[i]->name))
            continue;
        for (int j = 1; j < argc && strcmp(argv[j], "--"); j++)
            if (!strcmp(argv[j], "--help") || !strcmp(argv[j], "-h"))
                return cli_help(commands[i]);
        return commands[i]->run(argc, argv);
    }
    return unknown_command(name);
}

static int
print_help_of(char *name)
{
    char help[] = "--help";
    char *args[] = { name, help, NULL };

    return run_command(2, args);
}

/* Remove each -v and -vv before "--" from argv, and set the log level that the options request.
 * Return the new number of arguments. */
static int
remove_verbosity(int argc, char **argv)
{
    int n = 1, at = 1, level = 0;

    for (; at < argc && strcmp(argv[at], "--"); at++) {
        if (!strcmp(argv[at], "-v"))
            level++;
        else if (!strcmp(argv[at], "-vv"))
            level += 2;
        else
            argv[n++] = argv[at];
    }
    while (at < argc)
        argv[n++] = argv[at++];
    argv[n] = NULL;
    if (level)
        setenv("KVTIER_LOG_LEVEL", level > 1 ? "TRACE" : "DEBUG", 1);
    return n;
}

/* Return true if an argument before "--" is --json. */
static bool
has_json(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--json"))
            return true;
    return false;
}

/* Open /dev/null for each closed standard descriptor.  Otherwise a file of the storage would get
 * the number, and a message would be written into the file.  The access mode is the opposite of the
 * stream's, so that each use of the stream fails with EBADF. */
static void
fill_standard_fds(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
            exit(CLI_ENVIRONMENT);
}

/* Write the buffered output.  Return the exit code: status, or CLI_ENVIRONMENT after a failed
 * write. */
static int
end_output(int status)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return status;
    /* Without --json, a command that failed has already printed the failure. */
    if (in_json || status != CLI_ENVIRONMENT)
        fprintf(stderr, "kvtier: standard output: %s\n",
                errno ? strerror(errno) : "a write failed");
    return CLI_ENVIRONMENT;
}

int
main(int argc, char **argv)
{
    char version[] = "version";
    int status;

    fill_standard_fds();
    argc = remove_verbosity(argc, argv);
    cli_set_log(KVT_LOG_DEFAULT);
    if (argc < 2)
        return cli_error(CLI_USAGE, "a command is missing. See 'kvtier --help'.");
    in_json = has_json(argc, argv);
    if (in_json)
        cli_use_json();
    if (!strcmp(argv[1], "--version"))
        argv[1] = version;
    if (!strcmp(argv[1], "help") && argc > 2)
        status = print_help_of(argv[2]);
    else if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
             !strcmp(argv[1], "help"))
        status = print_help();
    else
        status = run_command(argc - 1, argv + 1);
    return end_output(status);
}
