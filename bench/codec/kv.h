/* SPDX-License-Identifier: Apache-2.0
 *
 * A chunk of KV for the codec family of kvtier-bench. */
#ifndef KVT_BENCH_CODEC_KV_H
#define KVT_BENCH_CODEC_KV_H

#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"

/* Fill a chunk of bfloat16 with the statistics of Gemma 3 270M's KV: each column of a plane is
 * normally distributed, with a scale of its own. */
void kv_fill(const struct kvt__plane_shape *shape, size_t n_planes, uint16_t *chunk);

/* Return the entropy of the exponents, in bits for each element: one distribution for each plane,
 * or for each column of a plane. */
double kv_plane_entropy(const struct kvt__plane_shape *shape, size_t n_planes,
                        const uint16_t *chunk);
double kv_column_entropy(const struct kvt__plane_shape *shape, size_t n_planes,
                         const uint16_t *chunk);

/* Return the entropy of the symbols of CacheGen's quantiser in one plane, in bits for each element,
 * with one distribution for the plane.  c: the middle symbol. */
double kv_symbol_entropy(const struct kvt__plane_shape *shape, unsigned c, const uint16_t *plane);

#endif
