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
    size_t beside = layout->beside ? strlen(layout->beside) : 0;
    char above[KVT__SPREAD_BYTES] = "";

    if (layout->spread)
        kvt__layout_spread(hash, above);
    size_t at = strlen(above);
    if (at >= size)
        return kvt__fail(ENAMETOOLONG, "file name of key '%s'", key);
    memcpy(out, above, at);
    int n = kvt__key_encode(key, layout->names, out + at, size - at);
    if (n < 0)
        return n;
    size_t whole = (size_t)n + suffix;
    if (at + whole + 1 > size || whole + beside > NAME_MAX)
        return kvt__fail(ENAMETOOLONG, "the file name of key '%.160s' is longer than %d "
                         "bytes; use a shorter model name or tag.", key, NAME_MAX);
    memcpy(out + at + n, layout->suffix, suffix + 1);
    return 0;
}

bool
kvt__beside(const struct kvt__layout *layout, const char *name,
            char out[KVT__BESIDE_BYTES])
{
    return layout->beside &&
           snprintf(out, KVT__BESIDE_BYTES, "%s%s", name, layout->beside) <
               (int)KVT__BESIDE_BYTES;
}

/* Write a key text for the name of a file.  local_disk's names have no slashes of a model's name:
 * the result is a key text without these slashes, which has the same file name. */
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

enum kvt__other
kvt__layout_other(const struct kvt__layout *layout, const char *name,
                  char chunk[KVT__FILE_NAME_BYTES])
{
    char left[KVT__BESIDE_BYTES], key[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;

    if (!layout->beside || strlen(name) >= sizeof left)
        return KVT__NEITHER;
    strcpy(left, name);
    bool unfinished = cut_unfinished(left), beside = cut_ending(left, layout->beside);
    if ((!unfinished && !beside) || kvt__layout_key(layout, left, key, sizeof key, &parts))
        return KVT__NEITHER;
    if (chunk)
        strcpy(chunk, left); /* fits: the name of a chunk's file is not longer */
    return unfinished ? KVT__UNFINISHED : KVT__BESIDE;
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

/* ------------------------------------------------------------------ places */

int
kvt__share_of(const struct kvt__places *places, uint32_t rank, struct kvt__share *out)
{
    size_t n = places->n, workers = places->local_ranks;
    size_t local_rank = workers ? rank % workers : rank;
    size_t device = atomic_load(&places->device);

    assert(n);
    if (!places->by_local_rank && device) {
        *out = (struct kvt__share){ (device - 1) % n, 1 };
        return 0;
    }
    if (!places->by_local_rank || workers >= n || !workers) {
        *out = (struct kvt__share){ local_rank % n, 1 };
        if (places->by_local_rank && workers % n)
            return kvt__fail(EINVAL, "%s: by_local_rank cannot share %zu directories "
                             "among %zu workers evenly; take another number of "
                             "directories, or by_gpu.", places->setting, n, workers);
        return 0;
    }
    out->first = local_rank * n / workers;
    out->n = (local_rank + 1) * n / workers - out->first;
    return 0;
}

size_t
kvt__place_by_hash(const struct kvt__places *places, const struct kvt__object *object)
{
    return kvt__key_fs_path(&object->hash, places->n);
}

size_t
kvt__place_by_rank(const struct kvt__places *places, const struct kvt__object *object)
{
    struct kvt__share share;

    (void)kvt__share_of(places, object->rank, &share); /* cannot fail: open() has checked the
                                                        * setting */
    assert(share.n && share.first + share.n <= places->n);
    return share.first + kvt__key_sharder_path(&object->hash, share.n);
}
