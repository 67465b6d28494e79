/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of chunks in memory: files of each layout, and frames.  Buffers have no byte to spare, and
 * the address sanitizer watches. */
#ifndef KVT_COPY_TEST_H
#define KVT_COPY_TEST_H

#include <errno.h>

#include "../codec/codec-test.h"
#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "codec/frame.h"
#include "kvtier.h"
#include "tier/gds/layout.h"

#define MARGIN 8192u /* around a payload, for header and trailer */
#define KEY "org/model@1@0@1a540024b49d3bfe@bfloat16"

static const struct kvt__chunk_shape layout = { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 2, 1, 128,
                                                128 * 64, 4 };
static const struct kvt__shape header = { .format = 1, .dtype = 3, .dims = { 2, 2, 64, 128 } };
#define BYTES (4u * 128 * 64 * 2)

static const struct kvt__object object = { .key = KEY, .is_full = true, .tokens = 64,
                                           .id = { .b = { 1, 2, 3 } }, .shape = header };

/* Fill a chunk of a shape with planes like KV. */
static inline void
fill(const struct kvt__chunk_shape *shape, unsigned char *chunk)
{
    for (uint32_t i = 0; i < shape->n_planes; i++) {
        struct kvt__plane_shape plane = kvt__chunk_plane(shape, i);

        fill_plane(&plane, i, chunk + i * kvt__chunk_plane_bytes(shape));
    }
}

static inline struct kvt_op
op_of(const char *name, const unsigned char *bytes, size_t n)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);

    op.key = name;
    op.buf = malloc(n ? n : 1);
    memcpy(op.buf, bytes, n);
    op.bytes = op.found_bytes = n;
    return op;
}

/* Make the contents of a file of this form. */
static inline struct kvt_op
file_of(const struct kvt__layout *at, const struct kvt__form *form, const char *name)
{
    unsigned char *memory = calloc(1, BYTES + 2 * MARGIN);
    struct kvt__slot slot = { .payload = memory + MARGIN, .bytes = BYTES };

    fill(&layout, slot.payload);
    assert_int_equal(at->frame(form, &object, &slot, kvt__crc32c(0, slot.payload, BYTES)), 0);
    struct kvt_op op = op_of(name, slot.payload - form->header_bytes,
                             form->header_bytes + BYTES + form->trailer_bytes);
    free(memory);
    return op;
}

static inline struct kvt_op
frame_of(enum kvt__serde serde, const struct kvt__chunk_shape *shape)
{
    size_t bytes = kvt__chunk_shape_bytes(shape);
    unsigned char *chunk = malloc(bytes), *out = malloc(kvt__frame_room(serde, shape));

    fill(shape, chunk);
    size_t n = kvt__frame_encode(serde, shape, &object.id, chunk, kvt__crc32c(0, chunk, bytes),
                                 out);
    assert_true(n);
    struct kvt_op op = op_of("copy", out, n);
    free(chunk);
    free(out);
    return op;
}

struct results {
    struct kvt_codec_chunk chunk;
    struct kvt_codec_result codecs[KVT__N_SERDES];
    size_t n;
};

static inline void
on_codec(void *ctx, const struct kvt_codec_chunk *chunk, const struct kvt_codec_result *result)
{
    struct results *r = ctx;

    assert_true(r->n < KVT__N_SERDES);
    assert_true(!result->status == !*result->why);
    r->chunk = *chunk;
    r->codecs[r->n++] = *result;
}

static inline int
measured_error(struct kvt_op *op)
{
    struct results r = { .n = 0 };
    int err = kvt_codec_measure(op, on_codec, &r);

    assert_int_equal(r.n, 0);
    free(op->buf);
    return err;
}

#endif
