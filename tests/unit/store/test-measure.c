/* SPDX-License-Identifier: Apache-2.0
 *
 * The codecs are measured with a chunk in memory.  The monotonic clock of the test stands still
 * until a codec moves the clock. */
#include "copy-test.h"
#include "still-clock.h"
#include "wrapped-frame.h"

static const int64_t *pass_ms; /* duration of each pass of a codec; NULL: 0 */
static unsigned n_encodes[KVT__N_SERDES];
static bool fails_to_decode;
static void (*alter)(unsigned char *chunk); /* changes each decoded chunk; may be NULL */

size_t
__wrap_kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                         const struct kvt__id *id, const unsigned char *chunk, uint32_t crc,
                         unsigned char *out)
{
    now_ns += pass_ms ? pass_ms[n_encodes[serde]] * KVT__NS_PER_MS : 0;
    n_encodes[serde]++;
    return __real_kvt__frame_encode(serde, shape, id, chunk, crc, out);
}

bool
__wrap_kvt__frame_decode(const struct kvt__frame *frame, unsigned char *chunk)
{
    bool is_decoded = !fails_to_decode && __real_kvt__frame_decode(frame, chunk);

    if (alter)
        alter(chunk);
    return is_decoded;
}

/* Measure the chunk and free op->buf.  Codec i is the result of serde i + 1. */
static struct results
measure(struct kvt_op *op)
{
    struct results r = { .n = 0 };

    assert_int_equal(kvt_codec_measure(op, on_codec, &r), 0);
    assert_int_equal(r.n, KVT__N_SERDES - 1);
    for (size_t i = 0; i < r.n; i++)
        assert_string_equal(r.codecs[i].codec, kvt__serde_name((enum kvt__serde)(i + 1)));
    free(op->buf);
    return r;
}

/* Return an operation with a naive chunk of zeros and a header.  KV of 2 layers. */
static struct kvt_op
op_with_header(uint32_t format, uint32_t dtype, const uint32_t dims[4], size_t bytes)
{
    unsigned char *chunk = calloc(1, bytes);
    struct kvt_op op = op_of("copy", chunk, bytes);

    op.found = KVT_FOUND_SHAPE;
    op.format = format;
    op.dtype = dtype;
    memcpy(op.dims, dims, sizeof op.dims);
    free(chunk);
    return op;
}

static void
all_codecs_are_measured(void **state)
{
    const struct kvt__form form = { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES, true };
    struct kvt_op op = file_of(&kvt__layout_fs, &form, "copy");

    (void)state;
    assert_int_equal(kvt_file_parse(&op), 0);
    struct results r = measure(&op);
    assert_string_equal(r.chunk.encoding, "naive");
    assert_string_equal(r.chunk.dtype, "bfloat16");
    assert_int_equal(r.chunk.bytes, BYTES);
    assert_true(r.chunk.has_layout && !r.chunk.is_lossy);
    for (size_t i = 0; i < r.n; i++) {
        const struct kvt_codec_result *c = &r.codecs[i];
        struct kvt_op frame = frame_of((enum kvt__serde)(i + 1), &layout);

        assert_int_equal(c->status, 0);
        assert_int_equal(c->encoded_bytes, frame.bytes);
        assert_true(c->encode_ns > 0 && c->decode_ns > 0);
        assert_true(c->max_error >= c->rms_error);
        assert_int_equal(c->rms_error > 0, kvt__serde_is_lossy((enum kvt__serde)(i + 1)));
        free(frame.buf);
    }
    assert_true(r.codecs[KVT__SERDE_KV8 - 1].rms_error < 0.01);
    assert_true(r.codecs[KVT__SERDE_KV4 - 1].rms_error < 0.2);
    assert_true(r.codecs[KVT__SERDE_KV4 - 1].rms_error > r.codecs[KVT__SERDE_KV8 - 1].rms_error);
}

static void
each_type_has_errors_that_its_values_allow(void **state)
{
    static const char *const names[KVT__N_ELEMENTS] = {
        [KVT__ELEMENT_BF16] = "bfloat16", [KVT__ELEMENT_F16] = "half",
        [KVT__ELEMENT_F32] = "float", [KVT__ELEMENT_E4M3] = "uint8",
        [KVT__ELEMENT_E5M2] = "fp8_e5m2" };

    (void)state;
    for (int element = 0; element < KVT__N_ELEMENTS; element++) {
        struct kvt__chunk_shape shape = layout;

        shape.element = (enum kvt__element)element;
        if (element == KVT__ELEMENT_BYTE) /* noise */
            continue;
        struct kvt_op op = frame_of(KVT__SERDE_LOSSLESS, &shape);
        struct results r = measure(&op);
        assert_string_equal(r.chunk.encoding, "lossless");
        assert_string_equal(r.chunk.dtype, names[element]);
        for (size_t i = 0; i < r.n; i++)
            assert_true(r.codecs[i].rms_error < 0.5 &&
                        r.codecs[i].encoded_bytes <= r.chunk.bytes);
    }
}

static void
without_layout_only_lossless_is_measured(void **state)
{
    const struct kvt__form form = { 0, KVT__TRAILER_BYTES, true };
    struct kvt_op op = file_of(&kvt__layout_fs, &form, "/copy/" KEY ".pt");
    struct kvt_op frame = frame_of(KVT__SERDE_LOSSLESS, &layout);

    (void)state;
    assert_int_equal(kvt_file_parse(&op), 0);
    struct results r = measure(&op);
    assert_false(r.chunk.has_layout);
    assert_int_equal(r.codecs[0].status, 0);
    assert_int_equal(r.codecs[0].encoded_bytes, frame.bytes); /* 128 is among the assumed rows */
    for (size_t i = 1; i < r.n; i++)
        assert_int_equal(r.codecs[i].status, -ENOTSUP);
    free(frame.buf);
}

static void
a_header_that_contradicts_the_size_gives_no_layout(void **state)
{
    static const uint32_t dims[][4] = { { 2, 2, 64, 64 }, { 1, 4, 64, 128 }, { 2, 0, 64, 128 },
        { 2, UINT32_MAX, UINT32_MAX, UINT32_MAX }, { 2, 2, 0, 0 }, { 3, 2, 64, 128 },
        { 2, 2, 64 + (UINT32_C(1) << 25), 128 } };

    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        unsigned char *chunk = malloc(BYTES);

        fill(&layout, chunk);
        struct kvt_op op = op_of("copy", chunk, BYTES);
        op.found = KVT_FOUND_SHAPE;
        op.format = 1;
        op.dtype = 3;
        memcpy(op.dims, dims[i], sizeof op.dims);
        assert_false(measure(&op).chunk.has_layout);
        free(chunk);
    }
}

static void
the_header_of_a_chunk_gives_the_layout(void **state)
{
    static const struct {
        uint32_t format, dtype, dims[4];
        size_t bytes;
        bool has_layout;
    } chunks[] = {
        { 1, 3, { 2, 2, 64, 128 }, 4 * 64 * 128 * 2, true },
        { 1, 5, { 2, 2, 64, 128 }, 4 * 64 * 128 * 8, true },
        { 6, 3, { 1, 2, 64, 128 }, 2 * 64 * 128 * 2, true },
        { 2, 3, { 1, 2, 64, 128 }, 2 * 64 * 128 * 2, false },
        { 6, 3, { 2, 2, 64, 128 }, 4 * 64 * 128 * 2, false },
    };
    struct kvt_op op;

    (void)state;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        op = op_with_header(chunks[i].format, chunks[i].dtype, chunks[i].dims, chunks[i].bytes);
        assert_int_equal(measure(&op).chunk.has_layout, chunks[i].has_layout);
    }
    op = op_with_header(1, 3, chunks[0].dims, chunks[0].bytes);
    op.found = 0;
    assert_int_equal(measured_error(&op), -ENOTSUP);
}

static void
a_chunk_without_layout_has_the_shape_that_shrinks_most(void **state)
{
    static const struct {
        struct kvt__chunk_shape shape;
        uint32_t tokens;
        bool is_zero;
    } chunks[] = {
        /* The last of the assumed rows. */
        { { KVT__ELEMENT_BF16, KVT__PACKING_NONE, 0, 1, 8192, 8192 * 64, 1 }, 64, false },
        /* The assumed rows do not divide the chunk. */
        { { KVT__ELEMENT_E4M3, KVT__PACKING_NONE, 0, 1, 64, 1 << 20, 1 }, 3, true },
        { { KVT__ELEMENT_E4M3, KVT__PACKING_NONE, 0, 1, 64, (1 << 20) + 1, 2 }, 0, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        const struct kvt__chunk_shape *shape = &chunks[i].shape;
        size_t bytes = kvt__chunk_shape_bytes(shape);
        unsigned char *chunk = calloc(1, bytes);
        unsigned char *frame = malloc(kvt__frame_room(KVT__SERDE_LOSSLESS, shape));

        if (!chunks[i].is_zero)
            fill(shape, chunk);
        struct kvt_op op = op_of(shape->element == KVT__ELEMENT_BF16 ? "m@1@0@1@bfloat16"
                                                                     : "m@1@0@1@uint8",
                                 chunk, bytes);
        op.tokens = chunks[i].tokens;
        size_t expected = kvt__frame_encode(KVT__SERDE_LOSSLESS, shape, &object.id, chunk, 0,
                                            frame);
        assert_true(expected);
        assert_int_equal(measure(&op).codecs[0].encoded_bytes, expected);
        free(chunk);
        free(frame);
    }
}

static uint32_t altered_bits;
static enum kvt__element altered_element;

static void
put_bits(unsigned char *at, uint32_t bits)
{
    for (uint32_t b = 0; b < kvt__element_bytes(altered_element); b++)
        at[b] = (unsigned char)(bits >> 8 * b);
}

/* Write the same bits to two elements behind a NaN. */
static void
put_two(unsigned char *chunk, uint32_t bits)
{
    uint32_t step = kvt__element_bytes(altered_element);

    put_bits(chunk + step, bits);
    put_bits(chunk + 7 * step, bits);
}

static void
put_altered(unsigned char *chunk)
{
    memset(chunk, 0, BYTES);
    put_two(chunk, altered_bits);
}

static void
the_errors_are_those_of_the_values(void **state)
{
    static const struct {
        enum kvt__element element;
        uint32_t nan, bits, altered;
        double error; /* relative to the value */
    } cases[] = {
        { KVT__ELEMENT_BF16, 0x7fc0, 0x3f80, 0x3fc0, 0.5 },
        { KVT__ELEMENT_BF16, 0x7f80, 0xbf80, 0x3fc0, 2.5 },
        { KVT__ELEMENT_F32, 0x7fc00000, 0x3f800000, 0x3fc00000, 0.5 },
        { KVT__ELEMENT_F16, 0x7e00, 0x3c00, 0x3e00, 0.5 },
        { KVT__ELEMENT_F16, 0x7c00, 0xc000, 0x4000, 2 },
        { KVT__ELEMENT_F16, 0xfc00, 0x0001, 0x0003, 2 }, /* subnormal */
        { KVT__ELEMENT_F16, 0xfe00, 0x0400, 0x03ff, 1.0 / 1024 },
        { KVT__ELEMENT_F16, 0x7c01, 0x7800, 0x7bff, 65504.0 / 32768 - 1 },
        { KVT__ELEMENT_F16, 0x7c00, 0x8000, 0x0000, 0 }, /* -0: all values are 0 */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvt__chunk_shape shape = layout;
        struct results r = { .n = 0 };

        altered_element = shape.element = cases[i].element;
        altered_bits = cases[i].altered;
        uint32_t bytes = kvt__element_bytes(shape.element), n = BYTES / bytes;
        struct kvt_op op = op_with_header(
            1, bytes == 4 ? 4 : shape.element == KVT__ELEMENT_F16 ? 2 : 3,
            (const uint32_t[]){ 2, 2, bytes == 4 ? 32 : 64, 128 }, BYTES);

        put_bits(op.buf, cases[i].nan);
        put_two(op.buf, cases[i].bits);
        alter = put_altered;
        assert_int_equal(kvt_codec_measure(&op, on_codec, &r), 0);
        alter = NULL;
        assert_int_equal(r.codecs[KVT__SERDE_CACHEGEN - 1].status, 0);
        assert_true(fabs(r.codecs[KVT__SERDE_CACHEGEN - 1].rms_error - cases[i].error) < 1e-9);
        assert_true(fabs(r.codecs[KVT__SERDE_CACHEGEN - 1].max_error -
                         cases[i].error * sqrt((n - 1) / 2.0)) < 1e-9);
        assert_int_equal(r.codecs[KVT__SERDE_LOSSLESS - 1].status,
                         cases[i].error > 0 ? -EIO : 0);
        free(op.buf);
    }
}

static void
a_codec_that_cannot_decode_its_frame_is_an_error(void **state)
{
    const struct kvt__form form = { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES, true };
    struct kvt_op op = file_of(&kvt__layout_fs, &form, "copy");

    (void)state;
    assert_int_equal(kvt_file_parse(&op), 0);
    fails_to_decode = true;
    struct results r = measure(&op);
    fails_to_decode = false;
    for (size_t i = 0; i < r.n; i++)
        assert_int_equal(r.codecs[i].status, -EIO);
}

static void
the_fastest_of_few_passes_counts(void **state)
{
    static const struct {
        int64_t ms[8];
        unsigned n;
        int64_t fastest_ns;
    } runs[] = {
        { { 9, 3, 7, 5, 8, 1 }, 5, 3 * KVT__NS_PER_MS },
        { { 60, 1 }, 1, 60 * KVT__NS_PER_MS },
        { { 20, 30, 1 }, 2, 20 * KVT__NS_PER_MS },
        { { 0 }, 5, 1 },
    };
    const struct kvt__form form = { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES, true };

    (void)state;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        struct kvt_op op = file_of(&kvt__layout_fs, &form, "copy");

        assert_int_equal(kvt_file_parse(&op), 0);
        memset(n_encodes, 0, sizeof n_encodes);
        pass_ms = runs[i].ms;
        struct results r = measure(&op);
        pass_ms = NULL;
        for (size_t k = 0; k < r.n; k++) {
            assert_int_equal(n_encodes[k + 1], runs[i].n);
            assert_int_equal(r.codecs[k].encode_ns, runs[i].fastest_ns);
        }
    }
}

static void
a_lossy_chunk_is_compared_with_its_decoded_chunk(void **state)
{
    struct kvt_op op = frame_of(KVT__SERDE_KV4, &layout);

    (void)state;
    assert_int_equal(kvt_file_parse(&op), 0);
    struct results r = measure(&op);
    assert_string_equal(r.chunk.encoding, "kv4");
    assert_true(r.chunk.is_lossy && r.chunk.has_layout);
    assert_int_equal(r.chunk.bytes, BYTES);
    assert_true(r.codecs[KVT__SERDE_KV8 - 1].rms_error < 0.02);
}

static void
a_chunk_that_no_codec_makes_smaller_keeps_its_size(void **state)
{
    unsigned char noise[4096];
    uint64_t x = 1;

    (void)state;
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)next_random(&x);
    struct kvt_op op = op_of("m@1@0@1@bfloat16", noise, sizeof noise);
    struct results r = measure(&op);
    assert_int_equal(r.codecs[0].encoded_bytes, sizeof noise);
    assert_int_equal(r.codecs[0].decode_ns, 0);
}

static void
a_chunk_of_unknown_type_is_not_measured(void **state)
{
    static const char *const names[] = { "copy", "m@1@0@1@", "m@1@0@1@bfloat16x", "bfloat16",
                                         "m%41bfloat16" };
    struct kvt_op op;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        op = op_of(names[i], (const unsigned char *)"12345678", 8);
        assert_int_equal(measured_error(&op), -ENOTSUP);
    }
    op = op_of("m@1@0@1@half", (const unsigned char *)"1234567", 7);
    assert_int_equal(measured_error(&op), -EBADMSG);
    op = op_of("m@1@0@1@half", (const unsigned char *)"", 0);
    assert_int_equal(measured_error(&op), -EBADMSG);
    op = op_of(KEY "@kvt%lossless", (const unsigned char *)"12345678", 8);
    assert_int_equal(measured_error(&op), -EBADMSG);
    op = op_of("18/97/m%401%400%401%40half%40a%25b.weka1", (const unsigned char *)"12345678", 8);
    assert_string_equal(measure(&op).chunk.dtype, "half");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_codecs_are_measured),
        cmocka_unit_test(each_type_has_errors_that_its_values_allow),
        cmocka_unit_test(without_layout_only_lossless_is_measured),
        cmocka_unit_test(a_header_that_contradicts_the_size_gives_no_layout),
        cmocka_unit_test(the_header_of_a_chunk_gives_the_layout),
        cmocka_unit_test(a_chunk_without_layout_has_the_shape_that_shrinks_most),
        cmocka_unit_test(the_errors_are_those_of_the_values),
        cmocka_unit_test(a_codec_that_cannot_decode_its_frame_is_an_error),
        cmocka_unit_test(the_fastest_of_few_passes_counts),
        cmocka_unit_test(a_lossy_chunk_is_compared_with_its_decoded_chunk),
        cmocka_unit_test(a_chunk_that_no_codec_makes_smaller_keeps_its_size),
        cmocka_unit_test(a_chunk_of_unknown_type_is_not_measured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
