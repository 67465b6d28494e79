/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between key texts, spaces and names of an index. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/private.h"

void
kvt__level_spell(const struct kvt__level *level, const char *text,
                 char out[KVT__KEY_TEXT_MAX + 1])
{
    snprintf(out, KVT__KEY_TEXT_MAX + 1, "%s", text);
    for (char *at = out; (at = strchr(at, '/')); at++)
        *at = level->tier->slash;
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
    char text[KVT__KEY_TEXT_MAX + 1];
    int err = insert_tags(space, tags);

    for (size_t i = 0; !err && i < store->n_levels; i++) {
        kvt__level_spell(&store->levels[i], space->text, text);
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
    *space = (struct kvt__space){ .opaque = kvt__key_is_opaque(rest),
                                  .rank = (uint32_t)parts.worker_id };
    memcpy(space->text, key, (size_t)(at - key));
    strcpy(space->text + (at - key), rest);
    space->own_tag = strlen(space->text);
    *hash = parts.hash;
    return 0;
}
