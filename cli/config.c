/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier config: is a configuration right, what counts, what can be set. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "config-keys.h"
#include "config-memory.h"
#include "kvtier.h"

struct arguments {
    bool json, all, markdown;
    uint64_t bytes_per_token, tp; /* 0: not given */
    char **names; /* what is no option */
    int n_names;
};

/* An option that is there or not, or one with a whole number from 1 to most. */
struct option {
    const char *name;
    bool *flag;
    uint64_t *number;
    uint64_t most;
};

static bool
to_number(const char *text, const struct option *option)
{
    char *end;

    errno = 0;
    *option->number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno && *option->number &&
           *option->number <= option->most;
}

/* The option argv[*i], with its value behind it.  false: it is none (said). */
static bool
parse_option(int argc, char **argv, int *i, const struct option *options)
{
    const char *arg = argv[*i];
    const struct option *option = options;

    while (option->name && strcmp(option->name, arg))
        option++;
    if (!option->name) {
        cli_usage(&cli_config, "no option '%s' here", arg);
        return false;
    }
    if (option->flag) {
        *option->flag = true;
        return true;
    }
    if (++*i < argc && to_number(argv[*i], option))
        return true;
    cli_usage(&cli_config, "%s needs a whole number from 1 to %" PRIu64, arg, option->most);
    return false;
}

/* Sort the arguments; false: one of them is no option (said). */
static bool
parse(int argc, char **argv, const struct option *options, struct arguments *out)
{
    bool only_names = false;

    out->names = argv;
    for (int i = 0; i < argc; i++) {
        if (!only_names && !strcmp(argv[i], "--"))
            only_names = true;
        else if (only_names || argv[i][0] != '-')
            out->names[out->n_names++] = argv[i];
        else if (!parse_option(argc, argv, &i, options))
            return false;
    }
    return true;
}

/* At most one file. */
static int
parse_file(int argc, char **argv, const struct option *options, struct arguments *out,
           struct kvt_config_sources *sources)
{
    if (!parse(argc, argv, options, out))
        return CLI_USAGE;
    if (out->n_names > 1)
        return cli_usage(&cli_config, "one FILE, not '%s' too", out->names[1]);
    sources->file = out->n_names ? out->names[0] : NULL;
    return CLI_DONE;
}

/* A configuration file that is not there is a matter of usage. */
static int
fail(int err)
{
    int status = cli_fail(err);

    return err == -ENOENT || err == -EISDIR ? CLI_USAGE : status;
}

/* ------------------------------------------------------------------- check */

struct checked {
    json_t *problems; /* NULL: print them */
    unsigned n_errors, n_warnings;
};

static void
see_problem(void *ctx, const struct kvt_config_problem *problem)
{
    const char *severity = problem->is_error ? "error" : "warning";
    struct checked *checked = ctx;

    if (problem->is_error)
        checked->n_errors++;
    else
        checked->n_warnings++;
    if (!checked->problems)
        printf("%s: %s\n", severity, problem->text);
    else
        json_array_append_new(checked->problems,
            json_pack("{ss ss? ss? ss}", "severity", severity, "key", problem->key,
                      "origin", problem->origin, "text", problem->text));
}

static int
print_json(json_t *json)
{
    int err = json ? json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15))
                   : -1;

    json_decref(json);
    putchar('\n');
    if (!err)
        return CLI_DONE;
    fprintf(stderr, "kvtier config: the JSON text could not be written.\n");
    return CLI_ENVIRONMENT;
}

static void
print_count(unsigned n, const char *what)
{
    printf("%u %s%s", n, what, n == 1 ? "" : "s");
}

/* into: see struct cli_memory. */
static int
check_memory(const struct kvt_config_sources *sources, const struct arguments *args,
             struct checked *checked, json_t *into)
{
    const struct cli_memory memory = {
        .bytes_per_token = args->bytes_per_token,
        .n_workers = args->tp ? args->tp : 1,
        .into = into,
        .see = see_problem,
        .ctx = checked,
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR); /* its warnings are told already */
    int err = cli_config_memory(sources, &memory);
    return err ? fail(err) : CLI_DONE;
}

static int
tell_checked(const struct checked *checked, json_t *memory)
{
    if (!checked->problems) {
        print_count(checked->n_errors, "error");
        printf(", ");
        print_count(checked->n_warnings, "warning");
        putchar('\n');
        return CLI_DONE;
    }
    json_t *all = json_pack("{sb si si sO}", "ok", !checked->n_errors, "errors",
                            (int)checked->n_errors, "warnings", (int)checked->n_warnings,
                            "problems", checked->problems);
    if (json_object_size(memory))
        json_object_set(all, "memory", memory);
    return print_json(all);
}

static int
check(int argc, char **argv)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct arguments args = { 0 };
    struct checked checked = { 0 };
    json_t *memory = NULL;
    const struct option options[] = {
        { "--json", .flag = &args.json },
        { "--bytes-per-token", .number = &args.bytes_per_token,
          .most = CLI_MOST_BYTES_PER_TOKEN },
        { "--tp", .number = &args.tp, .most = CLI_MOST_WORKERS },
        { 0 },
    };

    int status = parse_file(argc, argv, options, &args, &sources);
    if (status)
        return status;
    if (args.json)
        checked.problems = json_array();
    int err = kvt_config_check(&sources, see_problem, &checked);
    if (err && !checked.n_errors)
        status = fail(err);
    if (!err) {
        memory = args.json ? json_object() : NULL;
        status = check_memory(&sources, &args, &checked, memory);
    }
    if (!status)
        status = tell_checked(&checked, memory);
    json_decref(memory);
    json_decref(checked.problems);
    return status ? status : checked.n_errors ? CLI_NO : CLI_DONE;
}

/* -------------------------------------------------------------------- show */

static void
drop_defaults(json_t *all)
{
    const char *key;
    json_t *one;
    void *tmp;

    json_object_foreach_safe(all, tmp, key, one)
        if (!strcmp(json_string_value(json_object_get(one, "origin")), "default"))
            json_object_del(all, key);
}

/* Lines that are YAML themselves. */
static int
print_settings(const json_t *all)
{
    const char *key;
    json_t *one;

    json_object_foreach((json_t *)all, key, one) {
        char *value = json_dumps(json_object_get(one, "value"),
                                 JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        if (!value)
            return CLI_ENVIRONMENT;
        int n = printf("%s: %s", key, value);
        printf("%*s# %s\n", n < 46 ? 48 - n : 2, "",
               json_string_value(json_object_get(one, "origin")));
        free(value);
    }
    if (!json_object_size(all))
        printf("# Nothing is set; --all shows the defaults.\n");
    return CLI_DONE;
}

static int
show(int argc, char **argv)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct arguments args = { 0 };
    struct kvt_config *config;

    int status = parse_file(argc, argv, (const struct option[]){
        { "--json", .flag = &args.json }, { "--all", .flag = &args.all }, { 0 } }, &args,
        &sources);
    if (status)
        return status;
    int err = kvt_config_open(&sources, &config);
    if (err)
        return fail(err);
    char *text = kvt_config_json(config);
    kvt_config_free(config);
    json_t *all = text ? json_loads(text, 0, NULL) : NULL;
    kvt_free(text);
    if (!all) {
        fprintf(stderr, "kvtier config: no memory.\n");
        return CLI_ENVIRONMENT;
    }
    if (!args.all)
        drop_defaults(all);
    if (args.json)
        return print_json(all);
    status = print_settings(all);
    json_decref(all);
    return status;
}

/* -------------------------------------------------------------------- keys */

static int
keys(int argc, char **argv)
{
    struct arguments args = { 0 };

    if (!parse(argc, argv, (const struct option[]){ { "--json", .flag = &args.json },
               { "--markdown", .flag = &args.markdown }, { 0 } }, &args))
        return CLI_USAGE;
    if (args.markdown && (args.n_names || args.json))
        return cli_usage(&cli_config, "--markdown describes all keys");
    if (args.markdown)
        return cli_config_page();
    json_t *all = args.json ? json_array() : NULL;
    for (int i = 0; i < args.n_names; i++)
        if (!cli_config_describe(args.names[i], all)) {
            fprintf(stderr, "kvtier config: there is no key '%s'.\n", args.names[i]);
            json_decref(all);
            return CLI_NO;
        }
    if (!args.n_names)
        cli_config_list(all);
    return args.json ? print_json(all) : CLI_DONE;
}

static int
run(int argc, char **argv)
{
    if (argc < 2)
        return cli_usage(&cli_config, "check, show or keys?");
    if (!strcmp(argv[1], "check"))
        return check(argc - 2, argv + 2);
    if (!strcmp(argv[1], "show"))
        return show(argc - 2, argv + 2);
    if (!strcmp(argv[1], "keys"))
        return keys(argc - 2, argv + 2);
    return cli_usage(&cli_config, "there is no 'config %s'", argv[1]);
}

const struct cli_command cli_config = {
    .name = "config",
    .usage = "check [--json] [--bytes-per-token N] [--tp N] [FILE]\n"
             "show [--json] [--all] [FILE]\n"
             "keys [--json|--markdown] [KEY...]",
    .summary = "check a configuration, show what counts, explain keys",
    .help =
        "  check   Names every error and every warning of the configuration. An\n"
        "          unknown key is an error here; to an engine it is a warning, unless\n"
        "          strict_config is set. Exit code 1: there are errors.\n"
        "          With --bytes-per-token it also says whether the memory is enough: in\n"
        "          each worker (max_local_cpu_size) for the chunks of all requests to S3,\n"
        "          and in this machine for all workers. N is the KV cache of one token in\n"
        "          all --tp workers (1 unless given): layers * 2 * KV heads * head size *\n"
        "          bytes of one number, which is 131072 for Llama 3.1 8B in bfloat16.\n"
        "          With a tier of 3FS it says whether /dev/shm has the room that all\n"
        "          --tp workers share with 3FS's daemon.\n"
        "  show    The settings that somebody gave, each with its origin; with --all\n"
        "          the defaults too. Credentials are not shown.\n"
        "  keys    The keys in short, or all about some of them.\n"
        "\n"
        "FILE is a YAML file as LMCache has it. Without FILE it is the one that\n"
        "KVTIER_CONFIG_FILE, then LMCACHE_CONFIG_FILE names. A later source wins:\n"
        "\n"
        "  defaults, FILE, LMCACHE_<KEY> variables, KVTIER_<KEY> variables,\n"
        "  the engine's kv_connector_extra_config, explicit arguments\n"
        "\n"
        "Examples:\n"
        "  kvtier config check lmcache.yaml\n"
        "  kvtier config check --bytes-per-token 327680 --tp 8 lmcache.yaml\n"
        "  KVTIER_CHUNK_SIZE=128 kvtier config show lmcache.yaml\n"
        "  kvtier config keys chunk_size max_local_cpu_size\n",
    .run = run,
};
