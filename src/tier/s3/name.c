/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of objects: key text in the spelling of LMCache's connector, after the prefix;
 * docs/formats.md, Objects. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "tier/s3/s3.h"

/* Return true if a segment is empty, "." or "..": stores that keep objects as files cannot hold
 * such names. */
static bool
has_odd_segment(const char *name)
{
    for (size_t n; ; name += n + 1) {
        n = strcspn(name, "/");
        if (!n || (n == 1 && *name == '.') || (n == 2 && !memcmp(name, "..", 2)))
            return true;
        if (!name[n])
            return false;
    }
}

static int
plain_name(const char *name, char *out, size_t room)
{
    size_t n = strlen(name);

    if (has_odd_segment(name))
        return kvt__fail(EINVAL, "'%s' is not a valid object name: a part between slashes "
                         "is empty, '.' or '..'.", name);
    if (n >= room)
        return kvt__fail(ENAMETOOLONG, "object %.64s...", name);
    memcpy(out, name, n + 1);
    return (int)n;
}

int
kvt__s3_name(const struct s3_tier *t, const struct kvt__object *object, char *out,
             size_t room)
{
    size_t prefix = strlen(kvt__s3_address_of(t)->prefix);
    size_t opaque = object->opaque ? sizeof KVT__S3_OPAQUE_PREFIX - 1 : 0;
    size_t most = KVT__S3_KEY_MAX - prefix;

    assert(prefix + opaque < KVT__S3_KEY_MAX && opaque < room);
    room = room < most + 1 ? room : most + 1;
    if (object->is_name)
        return plain_name(object->key, out, room);
    memcpy(out, KVT__S3_OPAQUE_PREFIX, opaque);
    int n = kvt__key_encode(object->key, KVT__KEY_S3, out + opaque, room - opaque);
    return n < 0 ? n : n + (int)opaque;
}

/* Return true if the name begins or ends with white space.  kvt__key_parse() would skip the white
 * space, but such an object is not a chunk. */
static bool
has_outer_blanks(const char *name)
{
    size_t n = strlen(name);

    return n && ((unsigned char)*name <= ' ' || (unsigned char)name[n - 1] <= ' ');
}

int
kvt__s3_key_from_name(const char *name, char *out, size_t room, bool *opaque)
{
    struct kvt__key_parts parts;

    *opaque = !strncmp(name, KVT__S3_OPAQUE_PREFIX, sizeof KVT__S3_OPAQUE_PREFIX - 1);
    if (*opaque)
        name += sizeof KVT__S3_OPAQUE_PREFIX - 1;
    if (strlen(name) >= room || strchr(name, '/') || has_outer_blanks(name))
        return -EINVAL;
    strcpy(out, name);
    return kvt__key_parse(out, &parts) ? -EINVAL : 0;
}
