/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between key texts, spaces and names of an index. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/private.h"

int
kvt__level_text(const struct kvt__level *level, const struct kvt__space *space,
                char out[KVT__TABLE_TEXT_MAX + 1])
{
    bool adds = kvt__level_is_own(level) && !space->is_key;
    int n = snprintf(out, KVT__TABLE_TEXT_MAX + 1, "%s%s%s%s%s", space->text,
                     !adds ? "" : space->opaque ? "-" : "@", adds && !space->opaque
                     ? KVT__KEY_OWN_TAG : "", level->is_inexact && adds ? KVT__INEXACT : "",
                     adds ? kvt__serde_name(level->serde) : "");

    return n >= 0 && n <= KVT__TABLE_TEXT_MAX
        ? 0 : kvt__fail(ENAMETOOLONG, "the key of '%s' with the encoding %s", space->text,
                        kvt__serde_name(level->serde));
}

int
kvt__level_spell(const struct kvt__level *level, const struct kvt__space *space,
                 char out[KVT__TABLE_TEXT_MAX + 1])
{
    int err = kvt__level_text(level, space, out);

    for (char *at = out; !err && (at = strchr(at, '/')); at++)
        *at = level->tier->slash;
    return err;
}

int
kvt__level_describe(const struct kvt__level *level, struct kvt__store_req *req)
{
    char text[KVT__TABLE_TEXT_MAX + 1];
    int err = kvt__level_text(level, req->space, text);

    if (!err)
        err = kvt__space_key(text, &req->hash, req->key, sizeof req->key);
    req->object.opaque = req->space->opaque || kvt__level_is_own(level);
    req->object.shape = req->shape;
    return err;
}

/* Insert "@tags" before kvtier's own tag. */
static int
insert_tags(struct kvt__space *space, const char *tags)
{
    size_t n = strlen(tags), rest = strlen(space->text + space->own_tag) + 1;

    assert(space->own_tag + rest <= sizeof space->text);
    if (!n)
        return 0;
    if (space->own_tag + 1 + n + rest > sizeof space->text)
        return kvt__fail(ENAMETOOLONG, "the key of '%s' with tags '%s'", space->text, tags);
    memmove(space->text + space->own_tag + 1 + n, space->text + space->own_tag, rest);
    space->text[space->own_tag] = '@';
    memcpy(space->text + space->own_tag + 1, tags, n);
    space->own_tag += 1 + n;
    return 0;
}

int
kvt__store_set_tags(const struct kvt__store *store, struct kvt__space *space,
                    const char *tags)
{
    char text[KVT__TABLE_TEXT_MAX + 1];
    int err = insert_tags(space, tags);

    for (size_t i = 0; !err && i < store->n_levels; i++) {
        err = kvt__level_spell(&store->levels[i], space, text);
        space->digests[i] = kvt__table_digest(text);
    }
    return err;
}

int
kvt__space_from_key(const char *key, struct kvt__space *space, struct kvt__hash *hash)
{
    struct kvt__key_parts parts;
    const char *at = key;
    int err = kvt__key_parse(key, &parts);

    if (err)
        return err;
    for (int i = 0; i < 3; i++)
        at = strchr(at, '@') + 1; /* kvt__key_parse() has found three '@' */
    const char *rest = strchr(at, '@');
    if ((size_t)(at - key) + strlen(rest) >= sizeof space->text)
        return kvt__fail(ENAMETOOLONG, "key '%s'", key);
    *space = (struct kvt__space){ .opaque = kvt__key_is_opaque(rest), .is_key = true,
                                  .rank = (uint32_t)parts.worker_id };
    memcpy(space->text, key, (size_t)(at - key));
    strcpy(space->text + (at - key), rest);
    space->own_tag = strlen(space->text);
    *hash = parts.hash;
    return 0;
}

enum kvt__serde
kvt__serde_of_key(const char *key)
{
    const char *tag = strstr(key, "@" KVT__KEY_OWN_TAG);
    enum kvt__serde serde;

    if (!tag)
        return KVT__SERDE_NAIVE;
    const char *value = tag + sizeof "@" KVT__KEY_OWN_TAG - 1;
    const char *dash = strrchr(value, '-'); /* "lossless", "0123456789abcdef-inexact-lossless" */
    return kvt__serde_from_name(dash ? dash + 1 : value, &serde) ? serde : KVT__SERDE_NAIVE;
}
