/* SPDX-License-Identifier: Apache-2.0
 *
 * The division of a chunk into planes. */
#include "codec/chunk.h"

#include <assert.h>

/* Return true if the planes of the packing are complete: each layer has its planes. */
static bool
has_all_planes(const struct kvt__chunk_shape *s)
{
    uint64_t of_block;

    switch (s->packing) {
    case KVT__PACKING_NONE:
        return !s->n_layers && s->n_heads == 1;
    case KVT__PACKING_2LTD:
        return s->n_heads == 1 && s->n_planes == 2 * (uint64_t)s->n_layers;
    case KVT__PACKING_MLA:
        return s->n_heads == 1 && s->n_planes == s->n_layers;
    case KVT__PACKING_HEADS:
        return !__builtin_mul_overflow(2 * (uint64_t)s->n_layers, s->n_heads, &of_block) &&
               of_block && s->n_planes % of_block == 0;
    default:
        return false;
    }
}

bool
kvt__chunk_shape_is_valid(const struct kvt__chunk_shape *shape)
{
    return (unsigned)shape->element < KVT__N_ELEMENTS && shape->row && shape->n &&
           shape->n <= KVT__CODEC_MAX_PLANE && shape->n_planes &&
           shape->n_planes <= KVT__CHUNK_MAX_PLANES &&
           (shape->packing == KVT__PACKING_NONE || shape->n % shape->row == 0) &&
           has_all_planes(shape) &&
           kvt__chunk_shape_bytes(shape) <= KVT__CHUNK_MAX_BYTES;
}

size_t
kvt__chunk_plane_bytes(const struct kvt__chunk_shape *shape)
{
    return (size_t)shape->n * kvt__element_bytes(shape->element);
}

uint64_t
kvt__chunk_shape_bytes(const struct kvt__chunk_shape *shape)
{
    return (uint64_t)shape->n_planes * kvt__chunk_plane_bytes(shape);
}

struct kvt__plane_shape
kvt__chunk_plane(const struct kvt__chunk_shape *shape, uint32_t i)
{
    struct kvt__plane_shape plane = { .element = shape->element, .row = shape->row,
                                      .n = shape->n, .n_layers = shape->n_layers };

    assert(i < shape->n_planes);
    switch (shape->packing) {
    case KVT__PACKING_2LTD:
        plane.is_value = i >= shape->n_layers;
        plane.layer = i % shape->n_layers;
        break;
    case KVT__PACKING_MLA:
        plane.layer = i;
        break;
    case KVT__PACKING_HEADS:
        plane.is_value = i % 2;
        plane.layer = i / (2 * shape->n_heads) % shape->n_layers;
        plane.is_transposed = !plane.is_value;
        if (plane.is_transposed)
            plane.row = shape->n / shape->row;
        break;
    default:
        break;
    }
    return plane;
}
