/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: a chunk of any packing comes back from its frame; the decoder refuses any other bytes.
 * Buffers have no byte to spare, and the address sanitizer watches. */
#include "codec-test.h"

#include <errno.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "codec/frame.h"

static const struct kvt__id id = { .b = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 } };

static const struct kvt__chunk_shape shapes[] = {
    { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 3, 1, 64, 64 * 32, 6 },
    { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 1, 1, 24, 24 * 70, 2 },
    { KVT__ELEMENT_BF16, KVT__PACKING_MLA, 4, 1, 96, 96 * 64, 4 },
    { KVT__ELEMENT_BF16, KVT__PACKING_HEADS, 2, 2, 32, 32 * 128, 24 },
    { KVT__ELEMENT_F32, KVT__PACKING_HEADS, 1, 1, 64, 64 * 16, 2 },
    { KVT__ELEMENT_F16, KVT__PACKING_NONE, 0, 1, 64, 1000, 5 },
    { KVT__ELEMENT_E4M3, KVT__PACKING_MLA, 2, 1, 64, 64 * 100, 2 },
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

struct chunk {
    const struct kvt__chunk_shape *shape;
    size_t bytes, n; /* n: bytes of the frame */
    unsigned char *original, *decoded, *frame;
};

static struct chunk
make_chunk(const struct kvt__chunk_shape *shape)
{
    struct chunk c = { .shape = shape, .bytes = (size_t)kvt__chunk_shape_bytes(shape) };

    assert_true(kvt__chunk_shape_is_valid(shape));
    c.original = malloc(c.bytes);
    c.decoded = malloc(c.bytes);
    for (uint32_t i = 0; i < shape->n_planes; i++) {
        struct kvt__plane_shape plane = kvt__chunk_plane(shape, i);

        fill_plane(&plane, i, c.original + i * kvt__chunk_plane_bytes(shape));
    }
    return c;
}

static void
encode(struct chunk *c, enum kvt__serde serde)
{
    unsigned char *out = malloc(kvt__frame_room(serde, c->shape));

    c->n = kvt__frame_encode(serde, c->shape, &id, c->original,
                             kvt__crc32c(0, c->original, c->bytes), out);
    free(c->frame);
    c->frame = exact_copy(out, c->n);
    free(out);
}

static void
free_chunk(struct chunk *c)
{
    free(c->original);
    free(c->decoded);
    free(c->frame);
}

static void
set_crc(unsigned char *frame, size_t n)
{
    kvt__put_le32(frame + 12, kvt__crc32c(0, frame + 16, n - 16));
}

/* kvt__frame_verify() needs memory for a plane only. */
static void
assert_verifies(const struct kvt__frame *frame, bool expected)
{
    unsigned char *plane = malloc(kvt__chunk_plane_bytes(&frame->shape));

    assert_non_null(plane);
    assert_int_equal(kvt__frame_verify(frame, plane), expected);
    free(plane);
}

/* ------------------------------------------------------------------------- tests */

static void
a_frame_restores_its_chunk(void **state)
{
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++)
        for (int serde = KVT__SERDE_LOSSLESS; serde < KVT__N_SERDES; serde++) {
            struct chunk c = make_chunk(&shapes[s]);
            struct kvt__frame frame;

            encode(&c, serde);
            if (serde == KVT__SERDE_LOSSLESS)
                assert_true(c.n > 0 && c.n < c.bytes);
            if (c.n) {
                assert_int_equal(kvt__frame_crc(c.frame, c.n), kvt__crc32c(0, c.frame, c.n));
                assert_int_equal(kvt__frame_parse(c.frame, c.n, false, &frame), 0);
                assert_int_equal(frame.serde, serde);
                assert_memory_equal(&frame.shape, &shapes[s], sizeof frame.shape);
                assert_memory_equal(&frame.id, &id, sizeof id);
                assert_true(kvt__frame_decode(&frame, c.decoded));
                assert_int_equal(kvt__crc32c(0, c.decoded, c.bytes), frame.crc);
                assert_verifies(&frame, true);
                frame.crc ^= 1;
                assert_verifies(&frame, false);
                if (!kvt__serde_is_lossy(serde))
                    assert_memory_equal(c.decoded, c.original, c.bytes);
            }
            free_chunk(&c);
        }
}

static void
a_chunk_of_noise_has_no_frame(void **state)
{
    uint64_t random = 5;

    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        struct chunk c = make_chunk(&shapes[s]);

        for (size_t i = 0; i < c.bytes; i++)
            c.original[i] = (unsigned char)next_random(&random);
        encode(&c, KVT__SERDE_LOSSLESS);
        assert_int_equal(c.n, 0);
        free_chunk(&c);
    }
}

static void
the_smallest_chunk_has_no_frame(void **state)
{
    struct kvt__chunk_shape shape = { KVT__ELEMENT_BYTE, KVT__PACKING_NONE, 0, 1, 1, 1, 1 };
    struct chunk c = make_chunk(&shape);

    (void)state;
    encode(&c, KVT__SERDE_LOSSLESS);
    assert_int_equal(c.n, 0);
    free_chunk(&c);
}

static void
planes_have_the_layer_and_the_side_of_their_packing(void **state)
{
    struct kvt__plane_shape plane = kvt__chunk_plane(&shapes[0], 4);

    (void)state;
    assert_true(plane.is_value && plane.layer == 1 && plane.n_layers == 3 && plane.row == 64);
    plane = kvt__chunk_plane(&shapes[0], 2);
    assert_true(!plane.is_value && plane.layer == 2 && !plane.is_transposed);
    plane = kvt__chunk_plane(&shapes[3], 8 + 4 + 2); /* block 1, layer 1, head 1, K */
    assert_true(!plane.is_value && plane.layer == 1 && plane.is_transposed && plane.row == 128);
    plane = kvt__chunk_plane(&shapes[3], 8 + 1);
    assert_true(plane.is_value && plane.layer == 0 && !plane.is_transposed && plane.row == 32);
    plane = kvt__chunk_plane(&shapes[5], 3);
    assert_int_equal(plane.n_layers, 0);
}

static void
impossible_shapes_are_invalid(void **state)
{
    static const struct kvt__chunk_shape bad[] = {
        { KVT__N_ELEMENTS, KVT__PACKING_NONE, 0, 1, 1, 1, 1 },
        { KVT__ELEMENT_BF16, KVT__N_PACKINGS, 1, 1, 1, 1, 1 },
        { KVT__ELEMENT_BF16, KVT__PACKING_NONE, 1, 1, 1, 1, 1 },
        { KVT__ELEMENT_BF16, KVT__PACKING_NONE, 0, 2, 1, 1, 1 },
        { KVT__ELEMENT_BF16, KVT__PACKING_NONE, 0, 1, 0, 1, 1 },
        { KVT__ELEMENT_BF16, KVT__PACKING_NONE, 0, 1, 1, 0, 1 },
        { KVT__ELEMENT_BF16, KVT__PACKING_NONE, 0, 1, 1, KVT__CODEC_MAX_PLANE + 1, 1 },
        { KVT__ELEMENT_BF16, KVT__PACKING_NONE, 0, 1, 1, 1, 0 },
        { KVT__ELEMENT_BF16, KVT__PACKING_NONE, 0, 1, 1, 1, KVT__CHUNK_MAX_PLANES + 1 },
        { KVT__ELEMENT_F32, KVT__PACKING_NONE, 0, 1, 1, KVT__CODEC_MAX_PLANE,
          KVT__CHUNK_MAX_PLANES },
        { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 2, 1, 8, 64, 3 },
        { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 2, 1, 7, 64, 4 },
        { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, UINT32_C(1) << 31, 1, 8, 64, 1 },
        { KVT__ELEMENT_BF16, KVT__PACKING_MLA, 2, 1, 8, 64, 4 },
        { KVT__ELEMENT_BF16, KVT__PACKING_MLA, 2, 2, 8, 64, 2 },
        { KVT__ELEMENT_BF16, KVT__PACKING_HEADS, 0, 1, 8, 64, 2 },
        { KVT__ELEMENT_BF16, KVT__PACKING_HEADS, 1, 0, 8, 64, 2 },
        { KVT__ELEMENT_BF16, KVT__PACKING_HEADS, 2, 2, 8, 64, 12 },
        { KVT__ELEMENT_BF16, KVT__PACKING_HEADS, UINT32_MAX, UINT32_MAX, 8, 64, 2 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(kvt__chunk_shape_is_valid(&bad[i]));
}

/* Parse and decode changed bytes; a frame that passes has the old shape or less bytes. */
static void
try_frame(const struct chunk *c, const unsigned char *bytes, size_t n)
{
    struct kvt__frame frame;

    if (!kvt__frame_parse(bytes, n, true, &frame) &&
        kvt__chunk_shape_bytes(&frame.shape) <= c->bytes)
        (void)kvt__frame_decode(&frame, c->decoded);
}

static void
a_changed_header_is_refused_or_decoded_within_its_buffers(void **state)
{
    struct chunk c = make_chunk(&shapes[3]);
    struct kvt__frame frame;

    (void)state;
    for (int serde = KVT__SERDE_LOSSLESS; serde < KVT__N_SERDES; serde++) {
        encode(&c, serde);
        for (size_t i = 0; i < KVT__FRAME_HEADER_BYTES + 16; i++)
            for (int bit = 0; bit < 8; bit++) {
                c.frame[i] ^= (unsigned char)(1 << bit);
                assert_int_equal(kvt__frame_parse(c.frame, c.n, false, &frame), -EBADMSG);
                set_crc(c.frame, c.n);
                try_frame(&c, c.frame, c.n);
                c.frame[i] ^= (unsigned char)(1 << bit);
                set_crc(c.frame, c.n);
            }
    }
    free_chunk(&c);
}

static void
a_truncated_or_extended_frame_is_refused(void **state)
{
    struct chunk c = make_chunk(&shapes[1]);
    struct kvt__frame frame;

    (void)state;
    encode(&c, KVT__SERDE_LOSSLESS);
    for (size_t n = 0; n < c.n; n += n < 200 ? 1 : 37) {
        unsigned char *cut = exact_copy(c.frame, n);

        assert_int_equal(kvt__frame_parse(cut, n, true, &frame), -EBADMSG);
        free(cut);
    }
    unsigned char *longer = calloc(1, c.n + 1);
    memcpy(longer, c.frame, c.n);
    assert_int_equal(kvt__frame_parse(longer, c.n + 1, true, &frame), -EBADMSG);
    kvt__put_le64(longer + 16, c.n + 1);
    assert_int_equal(kvt__frame_parse(longer, c.n + 1, true, &frame), -EBADMSG);
    free(longer);
    free_chunk(&c);
}

static void
errors_say_why(void **state)
{
    struct chunk c = make_chunk(&shapes[0]);
    struct kvt__frame frame;

    (void)state;
    encode(&c, KVT__SERDE_KV8);
    c.frame[c.n - 1] ^= 1;
    assert_int_equal(kvt__frame_parse(c.frame, c.n, false, &frame), -EBADMSG);
    assert_string_equal(kvt__why(), "the encoded chunk has a wrong checksum.");
    c.frame[8]++;
    assert_int_equal(kvt__frame_parse(c.frame, c.n, false, &frame), -EBADMSG);
    assert_string_equal(kvt__why(),
                        "the encoded chunk has a format of another version of kvtier.");
    free_chunk(&c);
}

static void
encodings_have_names(void **state)
{
    enum kvt__serde serde;

    (void)state;
    for (int i = 0; i < KVT__N_SERDES; i++) {
        assert_true(kvt__serde_from_name(kvt__serde_name(i), &serde));
        assert_int_equal(serde, i);
        assert_true((i == KVT__SERDE_NAIVE) == !kvt__serde_codec(i));
    }
    assert_false(kvt__serde_from_name("kivi", &serde));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_restores_its_chunk),
        cmocka_unit_test(a_chunk_of_noise_has_no_frame),
        cmocka_unit_test(the_smallest_chunk_has_no_frame),
        cmocka_unit_test(planes_have_the_layer_and_the_side_of_their_packing),
        cmocka_unit_test(impossible_shapes_are_invalid),
        cmocka_unit_test(a_changed_header_is_refused_or_decoded_within_its_buffers),
        cmocka_unit_test(a_truncated_or_extended_frame_is_refused),
        cmocka_unit_test(errors_say_why),
        cmocka_unit_test(encodings_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
