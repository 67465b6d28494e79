/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks in memory for kvtier.h: the contents of a chunk's file, and encoded chunks. */
#include <errno.h>
#include <string.h>

#include "kvtier.h"
#include "store/private.h"
#include "tier/gds/layout.h"

/* ------------------------------------------------------------------------- file */

/* Parse a file with a trailer at the end.  0; -ENODATA: the file has no trailer; -EBADMSG: the file
 * contradicts the trailer. */
static int
parse_trailer(unsigned char *file, size_t n, size_t *payload_at, struct kvt__found *found)
{
    const struct kvt__object object = { .key = "" };
    struct kvt__trailer trailer;
    size_t before = n - KVT__TRAILER_BYTES;

    if (n < KVT__TRAILER_BYTES || !kvt__trailer_get(file + before, &trailer))
        return -ENODATA;
    if ((trailer.payload_at && trailer.payload_at != KVT__FS_HEADER_BYTES) ||
        trailer.payload_at > before || before - trailer.payload_at != trailer.payload_bytes)
        return -EBADMSG;
    const struct kvt__form form = { trailer.payload_at, KVT__TRAILER_BYTES, true };
    const struct kvt__slot slot = { .payload = file + trailer.payload_at,
                                    .bytes = trailer.payload_bytes };

    *payload_at = form.header_bytes;
    return kvt__layout_unframe(&kvt__layout_fs, &form, &object, &slot, found);
}

/* Find the payload of a file without a trailer at the end, and fill in found.  Errors as of
 * kvt__layout.parse. */
static int
parse_start(const unsigned char *file, size_t n, size_t *payload_at, struct kvt__found *found)
{
    *payload_at = 0;
    *found = (struct kvt__found){ .payload_bytes = n };
    if (n >= KVT__FRAME_HEADER_BYTES && !memcmp(file, KVT__FRAME_MAGIC, 8))
        return 0;
    int err = n ? kvt__layout_gds.parse(file, n, n, found) : -EBADMSG;
    if (err == -EBADMSG && n) {
        *found = (struct kvt__found){ 0 };
        err = kvt__layout_fs.parse(file, n, n, found);
    }
    *payload_at = err ? 0 : n - found->payload_bytes;
    return err;
}

void
kvt__op_report(struct kvt_op *op, const struct kvt__found *found, bool verified)
{
    op->found = (verified ? KVT_FOUND_CHECKED : 0) | (found->has_id ? KVT_FOUND_ID : 0) |
                (found->has_id && found->id_of_key ? KVT_FOUND_KEY_ID : 0);
    op->found_bytes = found->payload_bytes;
    op->tokens = found->tokens;
    if (found->has_id)
        memcpy(op->id, found->id.b, sizeof op->id);
    if (op->struct_size >= offsetof(struct kvt_op, expires_ns) && found->has_shape) {
        op->found |= KVT_FOUND_SHAPE;
        op->format = found->shape.format;
        op->dtype = found->shape.dtype;
        memcpy(op->dims, found->shape.dims, sizeof op->dims);
    }
}

int
kvt_file_parse(struct kvt_op *op)
{
    struct kvt__found found = { 0 };
    size_t at;

    if (op->struct_size < offsetof(struct kvt_op, expires_ns) || !op->key ||
        (!op->buf && op->bytes))
        return kvt__fail(EINVAL, "kvt_file_parse: struct_size, key and buf must be set.");
    int err = parse_trailer(op->buf, op->bytes, &at, &found);
    if (err == -ENODATA)
        err = parse_start(op->buf, op->bytes, &at, &found);
    if (err == -ENOENT)
        return kvt__fail(EBADMSG, "%s: LMCache wrote the file in a form that kvtier does not "
                         "read.", op->key);
    if (err)
        return kvt__fail(EBADMSG, "%s: the file is truncated or no chunk.", op->key);
    memmove(op->buf, (unsigned char *)op->buf + at, found.payload_bytes);
    if (found.has_id && kvt__crc32c_cold(0, op->buf, found.payload_bytes) != found.crc)
        return kvt__fail(EBADMSG, "%s: the checksum is wrong.", op->key);
    kvt__op_report(op, &found, found.has_id);
    return 0;
}

/* ------------------------------------------------------------------------ frame */

const char *
kvt_key_encoding(const char *key)
{
    return kvt__serde_name(kvt__serde_of_key(key));
}

/* Decode a frame, and compare the decoded chunk with its checksum.  0; -EBADMSG with a sentence. */
static int
decode(const struct kvt__frame *frame, unsigned char *chunk)
{
    if (!kvt__frame_decode(frame, chunk))
        return kvt__fail(EBADMSG, "the encoded chunk cannot be decoded.");
    if (kvt__crc32c_cold(0, chunk, kvt__chunk_shape_bytes(&frame->shape)) != frame->crc)
        return kvt__fail(EBADMSG, "the checksum of the decoded chunk is wrong.");
    return 0;
}

int
kvt_frame_decode(const void *frame, size_t n, struct kvt_frame *out, void *chunk)
{
    struct kvt__frame parsed;
    int err = kvt__frame_parse(frame, n, false, &parsed);

    if (err)
        return err;
    const struct kvt_frame all = {
        .struct_size = out->struct_size, .codec = kvt__serde_name(parsed.serde),
        .bytes = kvt__chunk_shape_bytes(&parsed.shape),
        .is_lossy = kvt__serde_is_lossy(parsed.serde) };
    memcpy(out, &all, out->struct_size < sizeof all ? out->struct_size : sizeof all);
    return chunk ? decode(&parsed, chunk) : 0;
}
