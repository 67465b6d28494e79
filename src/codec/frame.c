/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: encoded chunks with a header.
 *
 *   0  8 bytes  KVT__FRAME_MAGIC
 *   8  u32      version, 1
 *  12  u32      CRC32C of the frame from byte 16 on
 *  16  u64      bytes of the frame
 *  24  u32      enum kvt__serde
 *  28  u32      CRC32C of the decoded chunk
 *  32  u64      bytes of the decoded chunk
 *  40  16 bytes identity
 *  56  u16, u16 enum kvt__element, enum kvt__packing
 *  60  5 u32    n_layers, n_heads, row, n, n_planes of struct kvt__chunk_shape
 *  80  u32 for each plane: the bytes of the encoded plane
 *
 * The encoded planes follow without gaps. */
#include "codec/frame.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/error.h"

#define VERSION 1u
#define SUMMED_AT 16u /* the first byte of the checksum */

/* ------------------------------------------------------------------------ serdes */

static const struct {
    const char *name;
    const struct kvt__codec *codec;
    bool is_lossy;
} serdes[KVT__N_SERDES] = {
    [KVT__SERDE_NAIVE] = { "naive", NULL, false },
    [KVT__SERDE_LOSSLESS] = { "lossless", &kvt__codec_lossless, false },
    [KVT__SERDE_KV8] = { "kv8", &kvt__codec_kv8, true },
    [KVT__SERDE_KV4] = { "kv4", &kvt__codec_kv4, true },
    [KVT__SERDE_CACHEGEN] = { "cachegen", &kvt__codec_cachegen, true },
};

const char *
kvt__serde_name(enum kvt__serde serde)
{
    return serdes[serde].name;
}

const struct kvt__codec *
kvt__serde_codec(enum kvt__serde serde)
{
    return serdes[serde].codec;
}

bool
kvt__serde_is_lossy(enum kvt__serde serde)
{
    return serdes[serde].is_lossy;
}

bool
kvt__serde_from_name(const char *name, enum kvt__serde *out)
{
    for (int i = 0; i < KVT__N_SERDES; i++)
        if (!strcmp(name, serdes[i].name)) {
            *out = (enum kvt__serde)i;
            return true;
        }
    return false;
}

/* ------------------------------------------------------------------------ encode */

static size_t
header_bytes(const struct kvt__chunk_shape *shape)
{
    return KVT__FRAME_HEADER_BYTES + (size_t)shape->n_planes * 4;
}

/* Return the largest room that the codec needs for a plane. */
static size_t
plane_room(const struct kvt__codec *codec, const struct kvt__chunk_shape *shape)
{
    struct kvt__plane_shape first = kvt__chunk_plane(shape, 0);
    struct kvt__plane_shape last = kvt__chunk_plane(shape, shape->n_planes - 1);
    size_t a = codec->room(&first), b = codec->room(&last);

    return a > b ? a : b;
}

/* A plane begins before the end of the chunk's size, and the last plane's bytes of the buffer are
 * the scratch plane of lossy codecs. */
size_t
kvt__frame_room(enum kvt__serde serde, const struct kvt__chunk_shape *shape)
{
    return header_bytes(shape) + (size_t)kvt__chunk_shape_bytes(shape) +
           plane_room(serdes[serde].codec, shape) +
           (serdes[serde].is_lossy ? kvt__chunk_plane_bytes(shape) : 0);
}

static void
put_header(enum kvt__serde serde, const struct kvt__chunk_shape *shape, const struct kvt__id *id,
           uint32_t crc, size_t n, unsigned char *out)
{
    memcpy(out, KVT__FRAME_MAGIC, 8);
    kvt__put_le32(out + 8, VERSION);
    kvt__put_le32(out + 24, serde);
    kvt__put_le64(out + 16, n);
    kvt__put_le32(out + 28, crc);
    kvt__put_le64(out + 32, kvt__chunk_shape_bytes(shape));
    memcpy(out + 40, id->b, sizeof id->b);
    kvt__put_le32(out + 56, (uint32_t)shape->element | (uint32_t)shape->packing << 16);
    kvt__put_le32(out + 60, shape->n_layers);
    kvt__put_le32(out + 64, shape->n_heads);
    kvt__put_le32(out + 68, shape->row);
    kvt__put_le32(out + 72, shape->n);
    kvt__put_le32(out + 76, shape->n_planes);
    kvt__put_le32(out + 12, kvt__crc32c(0, out + SUMMED_AT, n - SUMMED_AT));
}

/* Add the checksum of a plane as the codec decodes the plane. */
static uint32_t
add_decoded(const struct kvt__codec *codec, const struct kvt__plane_shape *plane,
            const unsigned char *encoded, size_t n, uint32_t crc, unsigned char *scratch)
{
    bool is_plane = codec->decode(plane, encoded, n, scratch);

    assert(is_plane);
    (void)is_plane;
    return kvt__crc32c(crc, scratch, (size_t)plane->n * kvt__element_bytes(plane->element));
}

size_t
kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                  const struct kvt__id *id, const unsigned char *chunk, uint32_t crc,
                  unsigned char *out)
{
    const struct kvt__codec *codec = serdes[serde].codec;
    size_t plane_bytes = kvt__chunk_plane_bytes(shape), at = header_bytes(shape);
    size_t chunk_bytes = (size_t)kvt__chunk_shape_bytes(shape);
    unsigned char *scratch = out + kvt__frame_room(serde, shape) - plane_bytes;
    uint32_t decoded_crc = 0;

    assert(codec && kvt__chunk_shape_is_valid(shape));
    for (uint32_t i = 0; i < shape->n_planes && at < chunk_bytes; i++) {
        struct kvt__plane_shape plane = kvt__chunk_plane(shape, i);
        size_t n = codec->encode(&plane, chunk + i * plane_bytes, out + at);

        kvt__put_le32(out + KVT__FRAME_HEADER_BYTES + (size_t)i * 4, (uint32_t)n);
        if (serdes[serde].is_lossy)
            decoded_crc = add_decoded(codec, &plane, out + at, n, decoded_crc, scratch);
        at += n;
    }
    if (at >= chunk_bytes)
        return 0;
    put_header(serde, shape, id, serdes[serde].is_lossy ? decoded_crc : crc, at, out);
    return at;
}

uint32_t
kvt__frame_crc(const unsigned char *frame, size_t n)
{
    return kvt__crc32c_join(kvt__crc32c(0, frame, SUMMED_AT), kvt__get_le32(frame + 12),
                            n - SUMMED_AT);
}

/* ------------------------------------------------------------------------ decode */

static int
bad(const char *why)
{
    return kvt__fail(EBADMSG, "the encoded chunk %s.", why);
}

/* Read the shape and the sizes.  0; -EBADMSG with a sentence. */
static int
parse_shape(const unsigned char *in, size_t n, struct kvt__frame *out)
{
    struct kvt__chunk_shape *shape = &out->shape;
    uint64_t sum;

    shape->element = kvt__get_le32(in + 56) & 0xffff;
    shape->packing = kvt__get_le32(in + 56) >> 16;
    shape->n_layers = kvt__get_le32(in + 60);
    shape->n_heads = kvt__get_le32(in + 64);
    shape->row = kvt__get_le32(in + 68);
    shape->n = kvt__get_le32(in + 72);
    shape->n_planes = kvt__get_le32(in + 76);
    if (!kvt__chunk_shape_is_valid(shape) ||
        kvt__get_le64(in + 32) != kvt__chunk_shape_bytes(shape) || header_bytes(shape) > n)
        return bad("has an impossible shape");
    out->sizes = in + KVT__FRAME_HEADER_BYTES;
    out->planes = in + header_bytes(shape);
    sum = header_bytes(shape);
    for (uint32_t i = 0; i < shape->n_planes; i++)
        sum += kvt__get_le32(out->sizes + (size_t)i * 4);
    return sum == n ? 0 : bad("has planes that do not fill the chunk");
}

int
kvt__frame_parse(const unsigned char *in, size_t n, bool has_crc, struct kvt__frame *out)
{
    if (n < KVT__FRAME_HEADER_BYTES || memcmp(in, KVT__FRAME_MAGIC, 8))
        return bad("does not begin with the header of an encoded chunk");
    if (kvt__get_le32(in + 8) != VERSION)
        return bad("has a format of another version of kvtier");
    if (kvt__get_le64(in + 16) != n)
        return bad("is truncated, or too long");
    if (!has_crc && kvt__crc32c_cold(0, in + SUMMED_AT, n - SUMMED_AT) != kvt__get_le32(in + 12))
        return bad("has a wrong checksum");
    uint32_t serde = kvt__get_le32(in + 24);
    if (serde == KVT__SERDE_NAIVE || serde >= KVT__N_SERDES)
        return bad("has a codec that this version of kvtier lacks");
    *out = (struct kvt__frame){ .serde = (enum kvt__serde)serde, .bytes = n,
                                .crc = kvt__get_le32(in + 28) };
    memcpy(out->id.b, in + 40, sizeof out->id.b);
    return parse_shape(in, n, out);
}

bool
kvt__frame_is_unknown(const unsigned char *in, size_t n)
{
    return n >= KVT__FRAME_HEADER_BYTES && !memcmp(in, KVT__FRAME_MAGIC, 8) &&
           (kvt__get_le32(in + 8) != VERSION || kvt__get_le32(in + 24) >= KVT__N_SERDES);
}

/* Decode plane i, whose encoded bytes begin at *at; *at becomes the end of these bytes. */
static bool
decode_plane(const struct kvt__frame *frame, uint32_t i, const unsigned char **at,
             unsigned char *out)
{
    struct kvt__plane_shape plane = kvt__chunk_plane(&frame->shape, i);
    size_t n = kvt__get_le32(frame->sizes + (size_t)i * 4);
    const unsigned char *encoded = *at;

    *at += n;
    return serdes[frame->serde].codec->decode(&plane, encoded, n, out);
}

bool
kvt__frame_decode(const struct kvt__frame *frame, unsigned char *chunk)
{
    size_t plane_bytes = kvt__chunk_plane_bytes(&frame->shape);
    const unsigned char *at = frame->planes;

    for (uint32_t i = 0; i < frame->shape.n_planes; i++)
        if (!decode_plane(frame, i, &at, chunk + i * plane_bytes))
            return false;
    return true;
}

bool
kvt__frame_verify(const struct kvt__frame *frame, unsigned char *plane)
{
    const unsigned char *at = frame->planes;
    uint32_t crc = 0;

    for (uint32_t i = 0; i < frame->shape.n_planes; i++) {
        if (!decode_plane(frame, i, &at, plane))
            return false;
        crc = kvt__crc32c(crc, plane, kvt__chunk_plane_bytes(&frame->shape));
    }
    return crc == frame->crc;
}
