/* SPDX-License-Identifier: Apache-2.0
 *
 * The layouts: LMCache's fs connector and its local disk back end. */
#include "tier/file/layout/layout.h"

#include <errno.h>
#include <string.h>

/* ------------------------------------------------------------------- names */

int
kvt__layout_name(const struct kvt__layout *layout, const char *key, char *out,
                 size_t size)
{
    size_t suffix = strlen(layout->suffix);
    int n = kvt__key_encode(key, layout->names, out, size);

    if (n < 0)
        return n;
    if ((size_t)n + suffix + 1 > size)
        return kvt__fail(ENAMETOOLONG, "file name of key '%s'", key);
    memcpy(out + n, layout->suffix, suffix + 1);
    return 0;
}

/* local_disk's names lose the slashes of a model's name.  Without them they are a key
 * text that has the same name. */
static int
decode(const struct kvt__layout *layout, const char *stem, char *out, size_t size)
{
    if (layout->names != KVT__KEY_DISK)
        return kvt__key_decode(stem, layout->names, out, size);
    return kvt__key_encode(stem, layout->names, out, size);
}

int
kvt__layout_key(const struct kvt__layout *layout, const char *name, char *out,
                size_t size, struct kvt__key_parts *parts)
{
    char stem[256];
    size_t len = strlen(name), suffix = strlen(layout->suffix);

    if (len <= suffix || len >= sizeof stem ||
        strcmp(name + len - suffix, layout->suffix))
        return -EINVAL;
    memcpy(stem, name, len - suffix);
    stem[len - suffix] = '\0';
    int n = decode(layout, stem, out, size);
    return n < 0 ? n : kvt__key_parse(out, parts);
}

/* ------------------------------------------------------------------- forms */

uint64_t
kvt__layout_payload(const struct kvt__layout *layout, uint64_t file_bytes,
                    const unsigned char start[KVT__FS_HEADER_BYTES])
{
    if (layout->headers && file_bytes > KVT__FS_HEADER_BYTES &&
        kvt__fs_header_get(start) == (int64_t)(file_bytes - KVT__FS_HEADER_BYTES))
        return file_bytes - KVT__FS_HEADER_BYTES;
    return file_bytes;
}

bool
kvt__layout_form_of(const struct kvt__layout *layout, uint64_t file_bytes,
                    uint64_t payload_bytes, struct kvt__form *form)
{
    static const struct kvt__form forms[] = {
        { 0, KVT__TRAILER_BYTES },
        { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES },
        { 0, 0 },
        { KVT__FS_HEADER_BYTES, 0 },
    };

    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (file_bytes == payload_bytes + forms[i].header_bytes +
                              forms[i].trailer_bytes &&
            (layout->headers || !forms[i].header_bytes)) {
            *form = forms[i];
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------ places */

int
kvt__share_of(const struct kvt__places *places, uint32_t rank, struct kvt__share *out)
{
    size_t n = places->n, workers = places->local_ranks;
    size_t local_rank = workers ? rank % workers : rank;

    if (!places->by_local_rank || workers >= n || !workers) {
        *out = (struct kvt__share){ local_rank % n, 1 };
        if (places->by_local_rank && workers % n)
            return kvt__fail(EINVAL, "local_disk_path_sharding: by_local_rank cannot "
                             "share %zu directories among %zu workers evenly; take "
                             "another number of directories, or by_gpu.", n, workers);
        return 0;
    }
    out->first = local_rank * n / workers;
    out->n = (local_rank + 1) * n / workers - out->first;
    return 0;
}

static size_t
place_by_hash(const struct kvt__places *places, const struct kvt__object *object)
{
    return kvt__key_fs_path(&object->hash, places->n);
}

static size_t
place_by_rank(const struct kvt__places *places, const struct kvt__object *object)
{
    struct kvt__share share;

    (void)kvt__share_of(places, object->rank, &share); /* was tried at open */
    return share.first + kvt__key_sharder_path(&object->hash, share.n);
}

const struct kvt__layout kvt__layout_fs = {
    .suffix = ".data",
    .names = KVT__KEY_FS,
    .headers = true,
    .place = place_by_hash,
};

const struct kvt__layout kvt__layout_local_disk = {
    .suffix = ".pt",
    .names = KVT__KEY_DISK,
    .place = place_by_rank,
};
