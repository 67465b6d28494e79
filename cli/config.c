/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier config: check a configuration, show the effective settings, describe the keys. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "config-keys.h"
#include "config-memory.h"
#include "kvtier.h"

/* Parse the options of check or show.  The argument FILE or --config names the configuration file.
 * Return 0 or CLI_USAGE. */
static int
parse(int argc, char **argv, const struct cli_option *own, struct cli_common *common,
      struct kvt_config_sources *sources)
{
    int code = cli_parse(&cli_config, argc, argv, own, 0, 1, common);

    if (!code && common->n_args && common->config_file)
        code = cli_usage(&cli_config, "FILE '%s' beside --config", common->args[0]);
    sources->file = common->n_args ? common->args[0] : common->config_file;
    sources->settings = common->settings;
    return code;
}

/* Print kvt_last_error() and return the exit code for err.  A missing configuration file, or a
 * directory in place of the file, is an error of usage. */
static int
fail(int err)
{
    return cli_error(err == -ENOENT || err == -EISDIR ? CLI_USAGE : cli_code(err), "%s",
                     kvt_last_error());
}

/* ------------------------------------------------------------------- check */

/* The problems that check has found. */
struct checked {
    json_t *problems; /* array of the problems; NULL: print each problem at once */
    unsigned n_errors, n_warnings;
};

static json_t *
text_or_null(const char *text)
{
    return text ? cli_json_text(text) : json_null();
}

static void
on_problem(void *ctx, const struct kvt_config_problem *problem)
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
            json_pack("{ss so so so}", "severity", severity, "key",
                      text_or_null(problem->key), "origin", text_or_null(problem->origin),
                      "text", cli_json_text(problem->text)));
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
    return cli_error(CLI_ENVIRONMENT, "config: the JSON text could not be written.");
}

static void
print_count(unsigned n, const char *noun)
{
    printf("%u %s%s", n, noun, n == 1 ? "" : "s");
}

/* Check the addresses of the storage.  Invalid addresses are counted in `checked`. */
static int
check_storage(const struct kvt_config_sources *sources, struct checked *checked)
{
    struct kvt_config *config;

    cli_set_log(KVT_LOG_ERROR); /* kvt_config_check() has reported the warnings */
    int err = kvt_config_open(sources, &config);
    cli_set_log(KVT_LOG_DEFAULT);
    if (err)
        return fail(err);
    (void)!kvt_config_check_storage(config, on_problem, checked);
    kvt_config_free(config);
    return CLI_DONE;
}

static int
check_memory(const struct kvt_config_sources *sources, struct cli_memory *memory,
             struct checked *checked)
{
    memory->on_problem = on_problem;
    memory->ctx = checked;
    cli_set_log(KVT_LOG_ERROR); /* kvt_config_check() has reported the warnings */
    int err = cli_config_memory(sources, memory);
    cli_set_log(KVT_LOG_DEFAULT);
    return err ? fail(err) : CLI_DONE;
}

static int
print_summary(const struct checked *checked, json_t *memory)
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
    struct cli_memory memory = { .n_workers = 1 };
    struct checked checked = { 0 };
    struct cli_common common;
    const struct cli_option own[] = {
        { "bytes-per-token", .number = &memory.bytes_per_token,
          .max = CLI_MAX_BYTES_PER_TOKEN },
        { "tp", .number = &memory.n_workers, .max = CLI_MAX_WORKERS },
        { 0 },
    };

    int status = parse(argc, argv, own, &common, &sources);
    if (status)
        return status;
    if (common.json)
        checked.problems = json_array();
    int err = kvt_config_check(&sources, on_problem, &checked);
    if (err && !checked.n_errors)
        status = fail(err);
    if (!err)
        status = check_storage(&sources, &checked);
    if (!err && !status) {
        memory.json = common.json ? json_object() : NULL;
        status = check_memory(&sources, &memory, &checked);
    }
    if (!status)
        status = print_summary(&checked, memory.json);
    json_decref(memory.json);
    json_decref(checked.problems);
    return status ? status : checked.n_errors ? CLI_NEGATIVE : CLI_DONE;
}

/* -------------------------------------------------------------------- show */

static void
remove_defaults(json_t *all)
{
    const char *key;
    json_t *one;
    void *tmp;

    json_object_foreach_safe(all, tmp, key, one)
        if (!strcmp(json_string_value(json_object_get(one, "origin")), "default"))
            json_object_del(all, key);
}

/* Print the settings as lines of YAML, each with the setting's origin as a YAML comment. */
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
        printf("# No source sets a key; --all shows the defaults.\n");
    return CLI_DONE;
}

static int
show(int argc, char **argv)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct cli_common common;
    struct kvt_config *config;
    bool all_keys = false;

    int status = parse(argc, argv, (const struct cli_option[]){
        { "all", .flag = &all_keys }, { 0 } }, &common, &sources);
    if (status)
        return status;
    int err = kvt_config_open(&sources, &config);
    if (err)
        return fail(err);
    char *text = kvt_config_json(config);
    kvt_config_free(config);
    json_t *all = text ? json_loads(text, 0, NULL) : NULL;
    kvt_free(text);
    if (!all)
        return cli_error(CLI_ENVIRONMENT, "config: no memory.");
    if (!all_keys)
        remove_defaults(all);
    if (common.json)
        return print_json(all);
    status = print_settings(all);
    json_decref(all);
    return status;
}

/* -------------------------------------------------------------------- keys */

static int
keys(int argc, char **argv)
{
    struct cli_common common;
    bool markdown = false;
    int code = cli_parse(&cli_config, argc, argv, (const struct cli_option[]){
        { "markdown", .flag = &markdown }, { 0 } }, 0, -1, &common);

    if (code)
        return code;
    if (common.config_file || common.n_settings)
        return cli_usage(&cli_config, "keys reads no configuration");
    if (markdown && (common.n_args || common.json))
        return cli_usage(&cli_config, "--markdown describes all keys");
    if (markdown)
        return cli_config_page();
    json_t *all = common.json ? json_array() : NULL;
    for (int i = 0; i < common.n_args; i++)
        if (!cli_config_describe(common.args[i], all)) {
            json_decref(all);
            return cli_error(CLI_NEGATIVE, "config: there is no key '%s'.", common.args[i]);
        }
    if (!common.n_args)
        cli_config_list(all);
    return common.json ? print_json(all) : CLI_DONE;
}

static int
run(int argc, char **argv)
{
    if (argc < 2)
        return cli_usage(&cli_config, "check, show or keys is missing");
    if (!strcmp(argv[1], "check"))
        return check(argc - 1, argv + 1);
    if (!strcmp(argv[1], "show"))
        return show(argc - 1, argv + 1);
    if (!strcmp(argv[1], "keys"))
        return keys(argc - 1, argv + 1);
    return cli_usage(&cli_config, "there is no 'config %s'", argv[1]);
}

const struct cli_command cli_config = {
    .name = "config",
    .usage = "check [OPTIONS] [--bytes-per-token N] [--tp N] [FILE]\n"
             "show [OPTIONS] [--all] [FILE]\n"
             "keys [--json|--markdown] [KEY...]",
    .summary = "check a configuration, show the settings, explain keys",
    .help =
        "  check   Reports every error and every warning of the configuration. An\n"
        "          unknown key is an error here, and a warning for an engine unless\n"
        "          strict_config is set. An address of storage that an engine refuses is\n"
        "          an error too; the command does not access the storage.\n"
        "          With --bytes-per-token the command also checks the memory: of each\n"
        "          worker (max_local_cpu_size) for the chunks of all requests to S3, and\n"
        "          of this machine for all workers. N is the KV cache of a token in all\n"
        "          --tp workers (default: 1): layers * 2 * KV heads * head size * bytes\n"
        "          of a number, which is 131072 for Llama 3.1 8B in bfloat16.\n"
        "          With a tier of 3FS the command checks if /dev/shm has room for the\n"
        "          memory that all --tp workers share with 3FS's daemon, and with\n"
        "          shared_cpu if the tmpfs has room for the shared host memory, which\n"
        "          counts once.\n"
        "  show    Prints the settings that a source sets, each with the source; with\n"
        "          --all also the defaults. Secrets appear as ***.\n"
        "  keys    Lists the keys, or describes each KEY.\n"
        "\n"
        CLI_COMMON_HELP
        "\n"
        "FILE, like the file of --config, is a YAML file with the keys of LMCache. Without\n"
        "both, KVTIER_CONFIG_FILE, then LMCACHE_CONFIG_FILE names the file. Later sources\n"
        "win:\n"
        "\n"
        "  defaults, FILE, LMCACHE_<KEY> variables, KVTIER_<KEY> variables,\n"
        "  the engine's kv_connector_extra_config, explicit arguments and --set\n"
        "\n"
        "Examples:\n"
        "  kvtier config check lmcache.yaml\n"
        "  kvtier config check --bytes-per-token 327680 --tp 8 lmcache.yaml\n"
        "  KVTIER_CHUNK_SIZE=128 kvtier config show lmcache.yaml\n"
        "  kvtier config keys chunk_size max_local_cpu_size\n",
    .negative = "check: the configuration has errors; keys: there is no such key",
    .run = run,
};
