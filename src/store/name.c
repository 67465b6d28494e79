/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of keys in a space, and the entries of chunks that are known by their
 * name alone. */
#include <errno.h>
#include <string.h>

#include "base/sha256.h"
#include "store/private.h"

void
kvt__name_id(const char *key, struct kvt__id *out)
{
    struct kvt__sha256 sha;
    uint8_t digest[KVT__SHA256_BYTES];

    kvt__sha256_init(&sha);
    kvt__sha256_add(&sha, "N", 1);
    kvt__sha256_add(&sha, key, strlen(key));
    kvt__sha256_end(&sha, digest);
    memcpy(out->b, digest, sizeof out->b);
}

void
kvt__level_forget_name(struct kvt__level *level, const char *key)
{
    struct kvt__index_totals totals;
    struct kvt__id id;

    kvt__index_get_totals(level->index, &totals);
    if (!totals.n_unread)
        return;
    kvt__name_id(key, &id);
    kvt__level_drop(level, &id, false);
}

int
kvt__space_key(const char *space_text, int64_t hash, bool is_unsigned, char *out,
               size_t size)
{
    char digits[18];
    const char *gap = strstr(space_text, "@@");

    if (!gap)
        return kvt__fail(EINVAL, "space '%s' has no place for a hash.", space_text);
    kvt__key_hash_text(hash, is_unsigned, digits);
    size_t head = (size_t)(gap + 1 - space_text);
    size_t n = strlen(space_text) + strlen(digits);
    if (n >= size)
        return kvt__fail(ENAMETOOLONG, "key in space '%s'", space_text);
    memcpy(out, space_text, head);
    strcpy(out + head, digits);
    strcat(out, space_text + head);
    return 0;
}
