/* SPDX-License-Identifier: Apache-2.0
 *
 * The layouts of LMCache's fs connector and of LMCache's local disk back end: LMCache's header if
 * the layout has a header, the payload, and kvtier's trailer. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "tier/layout/layout.h"

#define MAX_CODE 63u /* largest code: LMCache numbers formats and dtypes from 0 on */

void
kvt__fs_header_put(const struct kvt__shape *shape, uint64_t payload_bytes,
                   unsigned char out[KVT__FS_HEADER_BYTES])
{
    kvt__put_le32(out, (uint32_t)payload_bytes);
    kvt__put_le32(out + 4, shape->format);
    kvt__put_le32(out + 8, shape->dtype);
    for (int i = 0; i < 4; i++)
        kvt__put_le32(out + 12 + 4 * i, shape->dims[i]);
}

bool
kvt__fs_header_agrees(const unsigned char in[KVT__FS_HEADER_BYTES])
{
    uint64_t bytes = kvt__get_le32(in), product = 1;

    if (kvt__get_le32(in + 4) > MAX_CODE || kvt__get_le32(in + 8) > MAX_CODE)
        return false;
    for (int i = 0; i < 4; i++) {
        uint32_t dim = kvt__get_le32(in + 12 + 4 * i);

        if (dim > INT32_MAX || (dim && product > bytes / dim))
            return false;
        product *= dim ? dim : 1;
    }
    return product > 1 && (bytes == product || bytes == 2 * product ||
                           bytes == 4 * product || bytes == 8 * product);
}

int64_t
kvt__fs_header_get(const unsigned char in[KVT__FS_HEADER_BYTES])
{
    uint32_t bytes = kvt__get_le32(in);

    return bytes > INT32_MAX ? -1 : (int64_t)bytes;
}

/* Copy the shape from a header to *found. */
static void
copy_shape(const unsigned char in[KVT__FS_HEADER_BYTES], struct kvt__found *found)
{
    uint32_t dtype = kvt__get_le32(in + 8);

    found->has_shape = true;
    found->shape = (struct kvt__shape){ .format = kvt__get_le32(in + 4),
                                        .dtype = dtype == 1 ? 2 : dtype }; /* 1 and 2: half */
    for (int i = 0; i < 4; i++)
        found->shape.dims[i] = kvt__get_le32(in + 12 + 4 * i);
}

/* ----------------------------------------------------------------- writing */

static struct kvt__form
fs_form(const struct kvt__object *o, bool header)
{
    /* LMCache derives the length of a partial chunk without header from the size of the file, so
     * a trailer is impossible. */
    bool trailer = header || o->is_full || o->opaque;

    return (struct kvt__form){ header ? KVT__FS_HEADER_BYTES : 0,
                               trailer ? KVT__TRAILER_BYTES : 0, trailer };
}

static struct kvt__form
local_disk_form(const struct kvt__object *o, bool header)
{
    (void)header;
    return fs_form(o, false);
}

static int
fs_frame(const struct kvt__form *form, const struct kvt__object *o,
         const struct kvt__slot *slot, uint32_t crc)
{
    struct kvt__trailer trailer = {
        .payload_bytes = slot->bytes, .crc = crc, .tokens = o->tokens, .id = o->id,
        .id_of_key = o->id_of_key, .payload_at = (uint32_t)form->header_bytes };

    assert(!form->header_bytes || form->header_bytes == KVT__FS_HEADER_BYTES);
    assert(form->has_id == (form->trailer_bytes > 0));
    if (form->header_bytes && slot->bytes > INT32_MAX)
        return kvt__fail(ENOTSUP, "%s: a chunk of %zu bytes does not fit LMCache's "
                         "header; set save_chunk_meta: false or a smaller "
                         "chunk_size.", o->key, slot->bytes);
    if (form->header_bytes)
        kvt__fs_header_put(&o->shape, slot->bytes, slot->payload - form->header_bytes);
    if (form->trailer_bytes)
        kvt__trailer_put(&trailer, slot->payload + slot->bytes);
    return 0;
}

/* ----------------------------------------------------------------- reading */

/* Return true if a file without a valid frame begins with a header, so that the file is a
 * truncated chunk and not a payload without header.  n: bytes at start; file_bytes: the
 * length of the file, which a truncated file's header can name as its payload's. */
static bool
begins_with_header(const unsigned char *start, size_t n, uint64_t file_bytes)
{
    return n >= KVT__FS_HEADER_BYTES &&
           (kvt__fs_header_get(start) == (int64_t)file_bytes ||
            kvt__fs_header_agrees(start));
}

/* Return true if LMCache serialised the payload behind a header (remote_serde: cachegen): format
 * BINARY_BUFFER, or BINARY without a dtype. */
static bool
is_serialised(const struct kvt__shape *shape)
{
    return shape->format == 5 || (shape->format == 4 && !shape->dtype);
}

/* Fill in found for a file that LMCache wrote. */
static int
fs_parse(const unsigned char *start, size_t n, uint64_t file_bytes,
         struct kvt__found *found)
{
    found->payload_bytes = file_bytes;
    if (n >= KVT__FS_HEADER_BYTES && file_bytes > KVT__FS_HEADER_BYTES &&
        kvt__fs_header_get(start) == (int64_t)(file_bytes - KVT__FS_HEADER_BYTES)) {
        found->payload_bytes -= KVT__FS_HEADER_BYTES;
        copy_shape(start, found);
        return is_serialised(&found->shape) ? -ENOENT : 0;
    }
    return begins_with_header(start, n, file_bytes) ? -EBADMSG : 0;
}

static int
local_disk_parse(const unsigned char *start, size_t n, uint64_t file_bytes,
                 struct kvt__found *found)
{
    (void)start;
    (void)n;
    found->payload_bytes = file_bytes;
    return 0;
}

/* Fill in found from the trailer behind a slot's payload.  Return 0, or -EBADMSG if header or
 * trailer is corrupt. */
static int
parse_trailer(const struct kvt__form *form, const struct kvt__slot *slot,
              struct kvt__found *found)
{
    const unsigned char *start = slot->payload - form->header_bytes;
    struct kvt__trailer trailer;

    if ((form->header_bytes && kvt__fs_header_get(start) != (int64_t)slot->bytes) ||
        !kvt__trailer_get(slot->payload + slot->bytes, &trailer) ||
        trailer.payload_bytes != slot->bytes || trailer.payload_at != form->header_bytes)
        return -EBADMSG;
    kvt__found_from_trailer(&trailer, found);
    if (form->header_bytes)
        copy_shape(start, found);
    return 0;
}

int
kvt__layout_unframe(const struct kvt__layout *layout, const struct kvt__form *form,
                    const struct kvt__object *o, const struct kvt__slot *slot,
                    struct kvt__found *found)
{
    size_t file_bytes = form->header_bytes + slot->bytes;
    size_t n = layout->parse_bytes < file_bytes ? layout->parse_bytes : file_bytes;
    struct kvt__found seen = *found;

    assert(layout->trailers || !form->trailer_bytes);
    if (form->trailer_bytes)
        return parse_trailer(form, slot, found);
    int err = layout->parse(slot->payload - form->header_bytes, n, file_bytes, &seen);
    if (err)
        return err;
    if (seen.payload_bytes != slot->bytes ||
        (o->opaque && !seen.has_id)) /* only kvtier stores opaque objects, always with an
                                      * identity */
        return -EBADMSG;
    *found = seen;
    return 0;
}

/* ----------------------------------------------------------------- layouts */

static const struct kvt__form forms[] = {
    { 0, KVT__TRAILER_BYTES, true },
    { 0, 0, false },
    { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES, true },
    { KVT__FS_HEADER_BYTES, 0, false },
};

const struct kvt__layout kvt__layout_fs = {
    .suffix = ".data",
    .encoding = KVT__KEY_FS,
    .choose_path = kvt__path_by_hash,
    .form = fs_form,
    .forms = forms,
    .n_forms = 4,
    .frame = fs_frame,
    .parse = fs_parse,
    .parse_bytes = KVT__FS_HEADER_BYTES,
    .trailers = true,
};

const struct kvt__layout kvt__layout_local_disk = {
    .suffix = ".pt",
    .encoding = KVT__KEY_DISK,
    .choose_path = kvt__path_by_rank,
    .form = local_disk_form,
    .forms = forms,
    .n_forms = 2, /* the forms without header */
    .frame = fs_frame,
    .parse = local_disk_parse,
    .trailers = true,
};
