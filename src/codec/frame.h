/* SPDX-License-Identifier: Apache-2.0
 *
 * A frame: the encoded planes of a chunk behind a header, as tiers store the chunk.  The header
 * describes the chunk completely.  Pure functions: any thread; no memory is allocated.
 * docs/formats.md is the norm. */
#ifndef KVT_CODEC_FRAME_H
#define KVT_CODEC_FRAME_H

#include "codec/chunk.h"
#include "key/key.h"

/* Names of the encodings, as in the settings.  The numbers are stored in frames. */
enum kvt__serde {
    KVT__SERDE_NAIVE, /* the chunk itself, without a frame */
    KVT__SERDE_LOSSLESS,
    KVT__SERDE_KV8,
    KVT__SERDE_KV4,
    KVT__SERDE_CACHEGEN,
    KVT__N_SERDES,
};

/* Return the name; the codec, NULL for KVT__SERDE_NAIVE; true if a decoded chunk differs from the
 * original chunk. */
const char *kvt__serde_name(enum kvt__serde serde);
const struct kvt__codec *kvt__serde_codec(enum kvt__serde serde);
bool kvt__serde_is_lossy(enum kvt__serde serde);

/* Find an encoding by its name.  False: no encoding has the name. */
bool kvt__serde_from_name(const char *name, enum kvt__serde *out);

#define KVT__FRAME_MAGIC "KVTFRAME"
#define KVT__FRAME_HEADER_BYTES 80u /* before the sizes of the planes */

/* The header of a frame. */
struct kvt__frame {
    enum kvt__serde serde;
    struct kvt__chunk_shape shape;
    struct kvt__id id;   /* identity of the chunk */
    uint32_t crc;        /* CRC32C of the decoded chunk */
    uint64_t bytes;      /* of the frame */
    const unsigned char *sizes; /* encoded bytes of each plane, u32; borrowed */
    const unsigned char *planes; /* the first encoded plane; borrowed */
};

/* Return the bytes of the buffer for kvt__frame_encode(): the header, the chunk, the codec's room
 * for a plane, and for a lossy codec one more plane. */
size_t kvt__frame_room(enum kvt__serde serde, const struct kvt__chunk_shape *shape);

/* Encode a chunk of kvt__chunk_shape_bytes() into out, a buffer of kvt__frame_room() bytes.  crc:
 * CRC32C of the chunk.  The serde is not KVT__SERDE_NAIVE.  Return the bytes of the frame, fewer
 * than the bytes of the chunk; 0: the frame would not be smaller than the chunk. */
size_t kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                         const struct kvt__id *id, const unsigned char *chunk, uint32_t crc,
                         unsigned char *out);

/* Return the CRC32C of all n bytes of a frame from kvt__frame_encode(), without a pass over the
 * bytes. */
uint32_t kvt__frame_crc(const unsigned char *frame, size_t n);

/* Parse the header of n bytes.  Any bytes whatever are safe.  has_crc: the caller has verified a
 * checksum of all bytes, so this function does not.  *out borrows `in`.  0; -EBADMSG with a
 * sentence: the bytes are no whole frame of this version, or the checksum is wrong. */
int kvt__frame_parse(const unsigned char *in, size_t n, bool has_crc, struct kvt__frame *out);

/* Return true if n bytes, which are no frame of this version, are a frame of another version or with
 * an unknown codec. */
bool kvt__frame_is_unknown(const unsigned char *in, size_t n);

/* Decode the chunk of a parsed frame into a buffer of kvt__chunk_shape_bytes().  False: a plane is
 * corrupt; the buffer has any content.  The caller compares the decoded chunk with frame->crc. */
bool kvt__frame_decode(const struct kvt__frame *frame, unsigned char *chunk);

/* Decode the planes of a parsed frame one after the other into `plane`, a buffer of
 * kvt__chunk_plane_bytes(), and compare the decoded chunk with frame->crc.  False: a plane is
 * corrupt, or the checksum is wrong. */
bool kvt__frame_verify(const struct kvt__frame *frame, unsigned char *plane);

#endif
