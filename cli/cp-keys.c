/* SPDX-License-Identifier: Apache-2.0 */
#include "cp-keys.h"

#include <stdlib.h>
#include <string.h>

#include "common.h"

/* Return the character that the keys listed in the chunk's tier contain in place of '/'; 0: the
 * tier is shared host memory. */
static char
slash_of(const struct kvt_store *store, const struct cli_chunk *chunk)
{
    struct kvt_tier_info info = KVT_INIT(struct kvt_tier_info);

    (void)!kvt_store_tier(store, chunk->tier - 1, &info);
    if (!strcmp(info.tier, "shared_cpu"))
        return 0;
    return !strcmp(info.tier, "s3") ? '_' : !strcmp(info.tier, "local_disk") ? '-' : '/';
}

static size_t
model_length(const char *key)
{
    return strcspn(key, "@");
}

/* Return true if the listed key of the chunk begins with the model's name, with `slash` in place
 * of '/'. */
static bool
is_of_model(const struct cli_chunk *chunk, const char *model, char slash)
{
    size_t n = model_length(chunk->key);

    if (strlen(model) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (chunk->key[i] != (model[i] == '/' ? slash : model[i]))
            return false;
    return true;
}

/* Return CLI_DONE if the model's name in the listed key is certain; else print an error and return
 * CLI_USAGE. */
static int
check_certain(const struct cli_chunk *chunk, char slash)
{
    size_t n = model_length(chunk->key);

    if (!slash || slash == '/' || !memchr(chunk->key, slash, n))
        return CLI_DONE;
    return cli_usage(&cli_cp, "'%.*s' may stand for several models, because the storage "
                     "replaces '/' by '%c'; name the model with --model", (int)n, chunk->key,
                     slash);
}

int
cp_select(struct kvt_store *store, const char *model, struct cli_chunks *chunks)
{
    size_t n = 0;
    int code = CLI_DONE;

    for (size_t i = 0; !model && !code && i < chunks->n; i++)
        code = check_certain(&chunks->chunks[i], slash_of(store, &chunks->chunks[i]));
    for (size_t i = 0; !code && i < chunks->n; i++) {
        struct cli_chunk *chunk = &chunks->chunks[i];
        char slash = slash_of(store, chunk);

        if (slash && (!model || is_of_model(chunk, model, slash)))
            chunks->chunks[n++] = *chunk;
        else
            free(chunk->key);
    }
    chunks->n = code ? chunks->n : n;
    return code;
}

char *
cp_key(const char *listed, const char *model)
{
    char *key = strdup(listed);

    if (key && model)
        memcpy(key, model, strlen(model));
    return key;
}
