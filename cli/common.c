/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_BYTES (UINT64_C(64) << 20) /* size of the first buffer; few chunks are larger */
#define OWN 256 /* getopt value of the command's first own option, above all characters */

/* Parse the value of an own option of the command.  Return 0 or CLI_USAGE. */
static int
set_own(const struct cli_command *command, const struct cli_option *own, const char *text)
{
    char *end;

    if (own->flag) {
        *own->flag = true;
        return 0;
    }
    if (own->text) {
        *own->text = text;
        return 0;
    }
    errno = 0;
    *own->number = strtoull(text, &end, 10);
    if (*text >= '0' && *text <= '9' && !*end && !errno && *own->number &&
        *own->number <= own->max)
        return 0;
    return cli_usage(command, "--%s needs a whole number from 1 to %" PRIu64, own->name,
                     own->max);
}

static void
list_options(const struct cli_option *own, struct option *out)
{
    *out++ = (struct option){ "config", required_argument, NULL, 'c' };
    *out++ = (struct option){ "set", required_argument, NULL, 's' };
    *out++ = (struct option){ "json", no_argument, NULL, 'j' };
    for (int i = 0; own && own[i].name; i++)
        *out++ = (struct option){
            own[i].name, own[i].flag ? no_argument : required_argument, NULL, OWN + i };
    *out = (struct option){ 0 };
}

int
cli_parse(const struct cli_command *command, int argc, char **argv,
          const struct cli_option *own, int min_args, int max_args, struct cli_common *out)
{
    struct option options[CLI_MAX_OPTIONS + 4];
    int c, code = 0;

    *out = (struct cli_common){ 0 };
    list_options(own, options);
    opterr = 0;
    optind = 1;
    while (!code && (c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 'c')
            out->config_file = optarg;
        else if (c == 's' && out->n_settings == CLI_MAX_SETTINGS)
            code = cli_usage(command, "more than %d --set", CLI_MAX_SETTINGS);
        else if (c == 's')
            out->settings[out->n_settings++] = optarg;
        else if (c == 'j')
            out->json = true;
        else if (c >= OWN)
            code = set_own(command, &own[c - OWN], optarg);
        else
            code = cli_usage(command, "unknown option or missing value: %s",
                             argv[optind - 1]);
    }
    if (code)
        return code;
    out->n_args = argc - optind;
    out->args = argv + optind;
    if (out->n_args < min_args)
        return cli_usage(command, "an argument is missing");
    if (max_args >= 0 && out->n_args > max_args)
        return cli_usage(command, "too many arguments: '%s'", out->args[max_args]);
    return 0;
}

int
cli_open_store(const struct cli_common *common, struct kvt_store **out)
{
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *config;

    sources.file = common->config_file;
    sources.settings = common->settings;
    if (kvt_config_open(&sources, &config))
        return cli_error(CLI_USAGE, "%s", kvt_last_error());
    int err = kvt_store_open(config, out);
    kvt_config_free(config);
    if (!err)
        return 0;
    /* Do not use cli_code(): here -ENOENT is a missing directory or bucket, not a missing
     * chunk. */
    return cli_error(err == -EINVAL ? CLI_USAGE : CLI_ENVIRONMENT, "%s", kvt_last_error());
}

/* Free op->buf, allocate `room` bytes and run the GET into the new buffer.  Return CLI_DONE, or an
 * exit code if the allocation failed. */
static int
read_into(struct kvt_store *store, struct kvt_op *op, uint64_t room)
{
    free(op->buf);
    op->buf = malloc(room);
    op->bytes = room;
    if (!op->buf)
        return cli_error(CLI_ENVIRONMENT, "no memory for a chunk of %" PRIu64 " bytes", room);
    (void)!kvt_store_run(store, op);
    return CLI_DONE;
}

int
cli_read_chunk(struct kvt_store *store, const char *key, struct kvt_op *op)
{
    *op = (struct kvt_op)KVT_INIT(struct kvt_op);
    op->kind = KVT_OP_GET;
    op->flags = KVT_OP_LISTED;
    op->key = key;
    int code = read_into(store, op, FIRST_BYTES);
    if (!code && op->status == -EMSGSIZE) /* found_bytes has the size */
        code = read_into(store, op, op->found_bytes);
    return code;
}

static void
print_result_json(const struct kvt_op *op)
{
    json_t *o = json_pack("{s:o, s:b}", "key", cli_json_text(op->key), "done", !op->status);

    if (op->status)
        json_object_set_new(o, "error", cli_json_text(op->why));
    else if (op->kind != KVT_OP_DELETE)
        json_object_set_new(o, "bytes", json_integer((json_int_t)(
            op->kind == KVT_OP_PUT ? op->bytes : op->found_bytes)));
    if (!op->status && op->kind == KVT_OP_GET)
        json_object_set_new(o, "has_checksum",
                            json_boolean(op->found & KVT_FOUND_CHECKED));
    cli_print_json(o);
}

int
cli_print_result(const struct cli_common *common, const struct kvt_op *op)
{
    if (common->json)
        print_result_json(op);
    else if (op->status)
        cli_error(0, "%s", op->why);
    return cli_code(op->status);
}

void
cli_id_text(const uint8_t id[16], char out[33])
{
    for (int i = 0; i < 16; i++)
        sprintf(out + 2 * i, "%02x", id[i]);
}

const char *
cli_size_text(uint64_t bytes, char out[24])
{
    static const char *const units[] = { "kB", "MB", "GB", "TB", "PB" };
    double value = (double)bytes / 1e3;
    size_t unit = 0;

    if (bytes < 1000) {
        sprintf(out, "%" PRIu64 " B", bytes);
        return out;
    }
    while (value >= 999.5 && unit < 4) {
        value /= 1e3;
        unit++;
    }
    snprintf(out, 24, "%.*f %s", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value,
             units[unit]);
    return out;
}

const char *
cli_prefill_text(const struct kvt_tier_info *tier, const struct kvt_prefill_info *prefill,
                 char out[CLI_PREFILL_BYTES])
{
    const double n = 8192;
    double seconds = (prefill->ns_per_token * n + prefill->ns_per_position * n * n / 2) / 1e9;
    char model[sizeof prefill->model], from[80];

    for (size_t i = 0; i < sizeof model; i++) /* another program may have written the index */
        model[i] = prefill->model[i] && !isprint((unsigned char)prefill->model[i])
            ? '?' : prefill->model[i];
    model[sizeof model - 1] = '\0';
    if (!tier->load_bytes_per_s)
        strcpy(from, "loads are not measured");
    else if (!prefill->break_even_tokens)
        strcpy(from, "loads are slower at each length");
    else if (prefill->break_even_tokens == 1)
        strcpy(from, "loads are faster at each length");
    else
        snprintf(from, sizeof from, "loads are faster from %" PRIu64 " tokens on",
                 prefill->break_even_tokens);
    snprintf(out, CLI_PREFILL_BYTES, "%s computes 8192 tokens in %.2f s; %s", model, seconds, from);
    return out;
}
