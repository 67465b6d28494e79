/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier config keys: a list of the keys, the description of a key, and the page
 * docs/configuration.md. */
#include "config-keys.h"

#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "kvtier.h"

static void
append(json_t *into, const struct kvt_param_info *param)
{
    json_array_append_new(into, json_pack(
        "{ss ss ss ss? ss ss ss sb sb}", "key", param->name, "section", param->section,
        "type", param->type, "default", param->fallback, "allowed", param->allowed, "text",
        param->text, "older_names", param->old_names, "has_effect", param->has_effect,
        "in_extra_config", param->in_extra_config));
}

static void
print_list(void)
{
    const char *section = "";
    struct kvt_param_info param;

    for (size_t i = 0; !kvt_param(i, &param); i++) {
        if (!param.has_effect)
            continue;
        if (strcmp(section, param.section))
            printf("%s%s\n", i ? "\n" : "", param.section);
        section = param.section;
        printf("  %-34s %-8s %s\n", param.name, param.type,
               param.fallback ? param.fallback : "-");
    }
    printf("\nThe columns are key, type and default ('-': unset). Keys of LMCache without\n"
           "effect are left out. 'kvtier config keys KEY' describes a key.\n");
}

void
cli_config_list(json_t *into)
{
    struct kvt_param_info param;

    if (!into)
        print_list();
    for (size_t i = 0; into && !kvt_param(i, &param); i++)
        append(into, &param);
}

bool
cli_config_describe(const char *name, json_t *into)
{
    struct kvt_param_info param;
    size_t i = 0;

    while (!kvt_param(i, &param) && strcmp(param.name, name))
        i++;
    if (kvt_param(i, &param))
        return false;
    if (into) {
        append(into, &param);
        return true;
    }
    printf("%s\n  %s\n", param.name, param.text);
    if (!param.has_effect)
        printf("  No effect: kvtier does not %s.\n", param.not_done);
    printf("  Value: %s\n  Default: %s\n", param.allowed,
           param.fallback ? param.fallback : "unset");
    if (param.in_extra_config)
        printf("  Place: inside extra_config, or beside it\n");
    if (*param.old_names)
        printf("  Older names: %s\n", param.old_names);
    return true;
}

static const char page_head[] =
    "# Configuration\n"
    "\n"
    "<!-- Made by scripts/make-config-docs from src/conf/params.def. -->\n"
    "\n"
    "You configure kvtier with a YAML file, environment variables or arguments of the\n"
    "engine. A complete file:\n"
    "\n"
    "```yaml\n"
    "chunk_size: 256\n"
    "max_local_cpu_size: 5.0                  # GiB of host memory for each worker\n"
    "remote_url: \"fs:///var/cache/kvtier\"     # storage\n"
    "```\n"
    "\n"
    "`kvtier config check FILE` reports all problems. `kvtier config show FILE` prints\n"
    "the effective values and their sources.\n"
    "\n"
    "The keys are those of LMCache: the same YAML keys, the same `LMCACHE_*` variables,\n"
    "the same `extra_config`. If several sources contain a setting, the last source in\n"
    "this list wins:\n"
    "\n"
    "1. the default;\n"
    "2. the YAML file, named by `KVTIER_CONFIG_FILE` or else `LMCACHE_CONFIG_FILE`;\n"
    "3. `LMCACHE_<KEY>` variables, the key in upper case;\n"
    "4. `KVTIER_<KEY>` variables;\n"
    "5. the engine's `kv_connector_extra_config`: `lmcache.<key>`, `kvtier.<key>` or\n"
    "   the bare key;\n"
    "6. explicit arguments.\n"
    "\n"
    "`extra_config` is a map of further keys. kvtier does not merge several maps: the\n"
    "last source with an `extra_config` replaces the whole map. In a variable the map\n"
    "is JSON. kvtier also accepts the keys of `extra_config` at the top level.\n"
    "\n"
    "An unknown key causes a warning with the nearest known name; with\n"
    "`strict_config: true`, and for `kvtier config check`, an unknown key is an error.\n"
    "A value of the wrong type or out of range is always an error. Truth values are\n"
    "`true`, `false`, `yes`, `no`, `on`, `off`, `1` and `0`; the text `\"false\"` is\n"
    "false. A list is a YAML list, a single value, or text with commas. An empty value\n"
    "and `null` mean the default.\n";

static const char page_tail[] =
    "\n"
    "## Variables that are no keys\n"
    "\n"
    "| Variable | What it does |\n"
    "|---|---|\n"
    "| `KVTIER_CONFIG_FILE`, `LMCACHE_CONFIG_FILE` | The YAML file; `KVTIER_CONFIG_FILE` "
    "wins. |\n"
    "| `KVTIER_LOG_LEVEL`, `LMCACHE_LOG_LEVEL` | Log level of engines and of the command "
    "line: `ERROR`, `WARNING`, `INFO` (the default), `DEBUG` (as `-v`) or `TRACE` (as `-vv`); "
    "`CRITICAL`: nothing. |\n"
    "| `PYTHONHASHSEED` | See `hash_seed`. |\n"
    "| `AWS_REGION`, `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, "
    "`AWS_CA_BUNDLE` | See `s3_region`, `s3_endpoint_url` and `s3_ca_file`. |\n"
    "| `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_PROFILE` "
    "and the other variables of AWS's usual chain | Keys for S3, if the configuration "
    "has none. |\n"
    "| `HF3FS_CLIENT` | The client of 3FS's daemon: `library`, the site's "
    "`libhf3fs_api_shared.so`, or `own`, kvtier's client; not set: the library if the "
    "loader finds the library. |\n"
    "| `KVTIER_REPLACE_LMCACHE` | `1`: vLLM's connector `LMCacheConnectorV1` is kvtier "
    "even where LMCache is installed; `0`: never. |\n"
    "| `KVTIER_LIBRARY` | Path of the `libkvtier.so` for the Python package, instead of "
    "the package's own. |\n";

/* Print a text in a cell of a Markdown table: escape '|'. */
static void
print_cell(const char *text)
{
    for (; *text; text++)
        printf(*text == '|' ? "\\|" : "%c", *text);
}

static void
print_row(const struct kvt_param_info *param)
{
    printf("| `%s` | ", param->name);
    if (param->fallback)
        printf("`%s`", param->fallback);
    printf(" | ");
    print_cell(param->allowed);
    printf(" | ");
    print_cell(param->text);
    if (!param->has_effect)
        printf(" No effect: kvtier does not %s.", param->not_done);
    if (param->in_extra_config)
        printf(" In `extra_config`.");
    if (*param->old_names)
        printf(" Older names: %s.", param->old_names);
    printf(" |\n");
}

int
cli_config_page(void)
{
    const char *section = "";
    struct kvt_param_info param;

    fputs(page_head, stdout);
    for (size_t i = 0; !kvt_param(i, &param); i++) {
        if (strcmp(section, param.section))
            printf("\n## %s\n\n| Key | Default | Value | What it does |\n"
                   "|---|---|---|---|\n", param.section);
        section = param.section;
        print_row(&param);
    }
    fputs(page_tail, stdout);
    return CLI_DONE;
}
