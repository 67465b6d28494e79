/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions for all layouts: file names, file sizes, and the sharing of directories. */
#include "tier/layout/layout.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------- names */

int
kvt__layout_name(const struct kvt__layout *layout, const char *key,
                 const struct kvt__hash *hash, char *out, size_t size)
{
    size_t suffix = strlen(layout->suffix);
    size_t sidecar = layout->sidecar_suffix ? strlen(layout->sidecar_suffix) : 0;
    char above[KVT__SPREAD_BYTES] = "";

    if (layout->spread)
        kvt__layout_spread(hash, above);
    size_t at = strlen(above);
    if (at >= size)
        return kvt__fail(ENAMETOOLONG, "file name of key '%s'", key);
    memcpy(out, above, at);
    int n = kvt__key_encode(key, layout->encoding, out + at, size - at);
    if (n < 0)
        return n;
    size_t whole = (size_t)n + suffix;
    if (at + whole + 1 > size || whole + sidecar > NAME_MAX)
        return kvt__fail(ENAMETOOLONG, "the file name of key '%.160s' is longer than %d "
                         "bytes; use a shorter model name or tag.", key, NAME_MAX);
    memcpy(out + at + n, layout->suffix, suffix + 1);
    return 0;
}

bool
kvt__layout_sidecar(const struct kvt__layout *layout, const char *name,
                    char out[KVT__SIDECAR_BYTES])
{
    return layout->sidecar_suffix &&
           snprintf(out, KVT__SIDECAR_BYTES, "%s%s", name, layout->sidecar_suffix) <
               (int)KVT__SIDECAR_BYTES;
}

/* Write a key text for the name of a file.  local_disk's names have no slashes of a model's name:
 * the result is a key text without these slashes, which has the same file name. */
static int
decode(const struct kvt__layout *layout, const char *stem, char *out, size_t size)
{
    if (layout->encoding != KVT__KEY_DISK)
        return kvt__key_decode(stem, layout->encoding, out, size);
    return kvt__key_encode(stem, layout->encoding, out, size);
}

int
kvt__layout_key(const struct kvt__layout *layout, const char *name, char *out,
                size_t size, struct kvt__key_parts *parts)
{
    char stem[NAME_MAX + 1], above[KVT__SPREAD_BYTES];
    const char *slash = layout->spread ? strrchr(name, '/') : NULL;
    const char *file = slash ? slash + 1 : name;
    size_t len = strlen(file), suffix = strlen(layout->suffix);

    if (len <= suffix || len >= sizeof stem ||
        strcmp(file + len - suffix, layout->suffix))
        return -EINVAL;
    memcpy(stem, file, len - suffix);
    stem[len - suffix] = '\0';
    int n = decode(layout, stem, out, size);
    int err = n < 0 ? n : kvt__key_parse(out, parts);
    if (err || !layout->spread)
        return err;
    /* The lookup of a key does not search other directories. */
    kvt__layout_spread(&parts->hash, above);
    size_t depth = (size_t)(file - name);
    return strlen(above) == depth && !memcmp(above, name, depth) ? 0 : -EINVAL;
}

/* Remove an ending from the text.  Return false if the text has another ending. */
static bool
cut_ending(char *text, const char *ending)
{
    size_t n = strlen(text), tail = strlen(ending);

    if (n < tail || strcmp(text + n - tail, ending))
        return false;
    text[n - tail] = '\0';
    return true;
}

/* Remove ".tmp" and 8 hexadecimal digits: LMCache's temporary files are in the directory of the
 * final files. */
static bool
cut_unfinished(char *text)
{
    size_t n = strlen(text);

    if (n < 12 || strspn(text + n - 8, "0123456789abcdef") != 8)
        return false;
    text[n - 8] = '\0';
    return cut_ending(text, ".tmp");
}

enum kvt__other_file
kvt__layout_other(const struct kvt__layout *layout, const char *name,
                  char chunk[KVT__FILE_NAME_BYTES])
{
    char left[KVT__SIDECAR_BYTES], key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;

    if (!layout->sidecar_suffix || strlen(name) >= sizeof left)
        return KVT__OTHER_NONE;
    strcpy(left, name);
    bool unfinished = cut_unfinished(left), sidecar = cut_ending(left, layout->sidecar_suffix);
    if ((!unfinished && !sidecar) || kvt__layout_key(layout, left, key, sizeof key, &parts))
        return KVT__OTHER_NONE;
    if (chunk)
        strcpy(chunk, left); /* fits: the name of a chunk's file is not longer */
    return unfinished ? KVT__OTHER_UNFINISHED : KVT__OTHER_SIDECAR;
}

/* ------------------------------------------------------------------- forms */

bool
kvt__layout_form_of(const struct kvt__layout *layout, uint64_t file_bytes,
                    uint64_t payload_bytes, struct kvt__form *form)
{
    for (size_t i = 0; i < layout->n_forms; i++) {
        const struct kvt__form *f = &layout->forms[i];

        if (file_bytes == payload_bytes + f->header_bytes + f->trailer_bytes) {
            *form = *f;
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------- sharding */

int
kvt__paths_of_rank(const struct kvt__sharding *sharding, uint32_t rank, struct kvt__path_range *out)
{
    size_t n = sharding->n_paths, workers = sharding->local_ranks;
    size_t local_rank = workers ? rank % workers : rank;
    size_t device = atomic_load(&sharding->device);

    assert(n);
    if (!sharding->by_local_rank && device) {
        *out = (struct kvt__path_range){ (device - 1) % n, 1 };
        return 0;
    }
    if (!sharding->by_local_rank || workers >= n || !workers) {
        *out = (struct kvt__path_range){ local_rank % n, 1 };
        if (sharding->by_local_rank && workers % n)
            return kvt__fail(EINVAL, "%s: by_local_rank cannot share %zu directories "
                             "among %zu workers evenly; take another number of "
                             "directories, or by_gpu.", sharding->setting, n, workers);
        return 0;
    }
    out->first = local_rank * n / workers;
    out->n = (local_rank + 1) * n / workers - out->first;
    return 0;
}

size_t
kvt__path_by_hash(const struct kvt__sharding *sharding, const struct kvt__object *object)
{
    return kvt__key_fs_path(&object->hash, sharding->n_paths);
}

size_t
kvt__path_by_rank(const struct kvt__sharding *sharding, const struct kvt__object *object)
{
    struct kvt__path_range range;

    /* Cannot fail: open() has checked the setting. */
    (void)kvt__paths_of_rank(sharding, object->rank, &range);
    assert(range.n && range.first + range.n <= sharding->n_paths);
    return range.first + kvt__key_sharder_path(&object->hash, range.n);
}
