/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of keys in a space, the entries of chunks that are known by their name alone,
 * and keys that are known by a listing. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/sha256.h"
#include "store/public.h"

static void
tagged_id(const char *tag, const char *key, struct kvt__id *out)
{
    struct kvt__sha256 sha;
    uint8_t digest[KVT__SHA256_BYTES];

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, tag, 1);
    kvt__sha256_add(&sha, key, strlen(key));
    kvt__sha256_end(&sha, digest);
    memcpy(out->b, digest, sizeof out->b);
}

void
kvt__name_id(const char *key, struct kvt__id *out)
{
    tagged_id("N", key, out);
}

void
kvt__key_id(const char *key, struct kvt__id *out)
{
    tagged_id("K", key, out);
}

void
kvt__level_listed_key(const struct kvt__level *level, const char *key,
                      char out[KVT__KEY_TEXT_MAX + 1])
{
    const struct kvt__tier_ops *ops = level->tier->ops;

    snprintf(out, KVT__KEY_TEXT_MAX + 1, "%s", key);
    if (ops->listed_key)
        ops->listed_key(level->tier, out);
}

/* Whether a listing of the level may tell a key so that is another: with what stands for
 * its slashes. */
static bool
may_be_listed(const struct kvt__level *level, const char *key)
{
    char slash[] = "/";

    if (level->tier->ops->listed_key)
        level->tier->ops->listed_key(level->tier, slash);
    return *slash != '/' && !strchr(key, '/') && strchr(key, *slash);
}

int
kvt__op_check(const struct kvt_op *op, const struct kvt__level *level,
              const struct kvt__object *object, const struct kvt__found *found)
{
    bool listed = op->kind == KVT_OP_VERIFY || op->flags & KVT_OP_LISTED;

    if (!found->has_id || !found->id_of_key || kvt__id_equal(&found->id, &object->id) ||
        (listed && may_be_listed(level, object->key)))
        return 0;
    return kvt__fail(EBADMSG, "%s: was stored under another key.", object->key);
}

void
kvt__level_forget_name(struct kvt__level *level, const char *key)
{
    char listed[KVT__KEY_TEXT_MAX + 1];
    struct kvt__index_totals totals;
    struct kvt__id id;

    kvt__index_get_totals(level->index, &totals);
    if (!totals.n_unread)
        return;
    kvt__level_listed_key(level, key, listed);
    kvt__name_id(listed, &id);
    kvt__level_drop(level, &id, NULL);
}

int
kvt__space_text(const struct kvt__space *space, const char *tags,
                char out[KVT__INDEX_SPACE_TEXT_MAX + 1])
{
    size_t size = sizeof space->text;
    bool any = tags && *tags;
    int n = snprintf(out, size, "%.*s%s%s%s", (int)space->own_tag, space->text,
                     any ? "@" : "", any ? tags : "", space->text + space->own_tag);

    if (n < 0 || (size_t)n >= size)
        return kvt__fail(ENAMETOOLONG, "the key of '%s' with tags '%s'", space->text, tags);
    return 0;
}

int
kvt__space_key(const char *space_text, const struct kvt__hash *hash, char *out,
               size_t size)
{
    char digits[KVT__HASH_DIGITS + 1];
    const char *gap = strstr(space_text, "@@");

    if (!gap)
        return kvt__fail(EINVAL, "space '%s' has no place for a hash.", space_text);
    kvt__hash_text(hash, digits);
    size_t head = (size_t)(gap + 1 - space_text);
    size_t n = strlen(space_text) + strlen(digits);
    if (n >= size)
        return kvt__fail(ENAMETOOLONG, "key in space '%s'", space_text);
    memcpy(out, space_text, head);
    strcpy(out + head, digits);
    strcat(out, space_text + head);
    return 0;
}

int
kvt__space_of(const char *key, struct kvt__space *space, struct kvt__hash *hash)
{
    struct kvt__key_parts parts;
    const char *at = key;
    int err = kvt__key_parse(key, &parts);

    if (err)
        return err;
    for (int i = 0; i < 3; i++)
        at = strchr(at, '@') + 1; /* kvt__key_parse() saw them */
    const char *rest = strchr(at, '@');
    if ((size_t)(at - key) + strlen(rest) >= sizeof space->text)
        return kvt__fail(ENAMETOOLONG, "key '%s'", key);
    *space = (struct kvt__space){ .opaque = strstr(rest, "@kvt%") != NULL,
                                  .rank = (uint32_t)parts.worker_id };
    memcpy(space->text, key, (size_t)(at - key));
    strcpy(space->text + (at - key), rest);
    space->own_tag = strlen(space->text);
    *hash = parts.hash;
    return 0;
}
