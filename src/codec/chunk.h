/* SPDX-License-Identifier: Apache-2.0
 *
 * The division of a chunk into planes.  Pure functions: any thread. */
#ifndef KVT_CODEC_CHUNK_H
#define KVT_CODEC_CHUNK_H

#include "codec/codec.h"

/* The order of the planes in a chunk.  The numbers are stored in chunks. */
enum kvt__packing {
    KVT__PACKING_NONE,  /* planes without known structure */
    KVT__PACKING_2LTD,  /* the K planes of all layers, then the V planes */
    KVT__PACKING_MLA,   /* a plane of each layer */
    KVT__PACKING_HEADS, /* for each block, layer and head: a transposed K plane, and a V plane */
    KVT__N_PACKINGS,
};

struct kvt__chunk_shape {
    enum kvt__element element;
    enum kvt__packing packing;
    uint32_t n_layers; /* 0 with KVT__PACKING_NONE */
    uint32_t n_heads;  /* KVT__PACKING_HEADS; otherwise 1 */
    uint32_t row;      /* elements of a token in a plane */
    uint32_t n;        /* elements of a plane */
    uint32_t n_planes;
};

#define KVT__CHUNK_MAX_PLANES (UINT32_C(1) << 20)
#define KVT__CHUNK_MAX_BYTES (UINT64_C(1) << 34)

/* Return true if the fields describe a chunk; any numbers are safe.  The other functions require a
 * valid shape. */
bool kvt__chunk_shape_is_valid(const struct kvt__chunk_shape *shape);

/* Return the bytes of a plane, and of the chunk. */
size_t kvt__chunk_plane_bytes(const struct kvt__chunk_shape *shape);
uint64_t kvt__chunk_shape_bytes(const struct kvt__chunk_shape *shape);

/* Return the shape of plane i. */
struct kvt__plane_shape kvt__chunk_plane(const struct kvt__chunk_shape *shape, uint32_t i);

#endif
