/* SPDX-License-Identifier: Apache-2.0
 *
 * kv8 and kv4: the error of each element is at most half a scale of the element's group, all forms
 * of this processor produce equal bytes, and a plane that cannot be quantised is restored bit for
 * bit. */
#include <math.h>

#include "codec-test.h"

#include "codec/affine.h"

static const struct kvt__codec *const codecs[] = { &kvt__codec_kv8, &kvt__codec_kv4 };
static const unsigned bits_of[] = { 8, 4 };
static const uint16_t not_finite[] = { 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81 };

/* Encode and decode by each form; all must agree.  Return the encoded bytes; b->decoded has the
 * decoded plane. */
static size_t
expect_agreement(const struct kvt__plane_shape *shape, unsigned bits, struct buffers *b)
{
    size_t n = kvt__affine_encode(&kvt__affine_plain, bits, shape, b->plane, b->expected);

    assert_in_range(n, 1, plane_bytes(shape) + 1);
    assert_true(kvt__affine_decode(&kvt__affine_plain, bits, shape, b->expected, n, b->decoded));
    for (const struct kvt__affine_form *const *form = kvt__affine_forms(); *form; form++) {
        memset(b->encoded, 0xa5, n);
        assert_int_equal(kvt__affine_encode(*form, bits, shape, b->plane, b->encoded), n);
        assert_memory_equal(b->encoded, b->expected, n);
        unsigned char *exact = exact_copy(b->encoded, n);
        memset(b->other, 0xa5, plane_bytes(shape));
        assert_true(kvt__affine_decode(*form, bits, shape, exact, n, b->other));
        assert_memory_equal(b->other, b->decoded, plane_bytes(shape));
        free(exact);
    }
    return n;
}

/* Check the n elements first, first + step, ... of a group: the error is at most half a scale, and
 * the rounding of scale and element to bfloat16. */
static void
expect_small_errors(unsigned bits, const struct buffers *b, size_t first, size_t step, size_t n)
{
    float min = INFINITY, max = -INFINITY;

    for (size_t i = 0; i < n; i++) {
        float x = kvt__load_bf16(b->plane + 2 * (first + i * step));

        min = fminf(min, x);
        max = fmaxf(max, x);
    }
    float scale = (max - min) / (float)((1u << bits) - 1);
    for (size_t i = 0; i < n; i++) {
        float x = kvt__load_bf16(b->plane + 2 * (first + i * step));
        float y = kvt__load_bf16(b->decoded + 2 * (first + i * step));

        assert_true(fabsf(x - y) <= 0.51f * scale + fmaxf(fabsf(min), fabsf(max)) / 256);
    }
}

static void
expect_all_errors_small(const struct kvt__plane_shape *shape, unsigned bits,
                        const struct buffers *b)
{
    size_t row = shape->row, n_rows = shape->n / row;
    size_t n_tokens = shape->is_transposed ? row : n_rows;
    size_t n_channels = shape->is_transposed ? n_rows : row;

    for (size_t c = 0; c < n_channels; c++)
        for (size_t t = 0; t < n_tokens; t += KVT__GROUP_TOKENS)
            expect_small_errors(bits, b, shape->is_transposed ? c * row + t : t * row + c,
                                shape->is_transposed ? 1 : row,
                                n_tokens - t < KVT__GROUP_TOKENS ? n_tokens - t
                                                                 : KVT__GROUP_TOKENS);
}

static void
errors_are_at_most_half_a_scale(void **state)
{
    static const uint32_t rows[] = { 1, 2, 7, 8, 15, 16, 17, 64, 80, 576, 1024, 1100 };
    static const uint32_t n_rows[] = { 8, 32, 63, 64, 65, 130 };

    (void)state;
    for (size_t k = 0; k < 4; k++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t n = 0; n < sizeof n_rows / sizeof *n_rows; n++) {
                struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = rows[r],
                                                  .n = rows[r] * n_rows[n], .n_layers = 1,
                                                  .is_transposed = k >= 2 };
                struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

                fill_plane(&shape, r * 31 + n, b.plane);
                size_t bytes = expect_agreement(&shape, bits_of[k % 2], &b);
                expect_all_errors_small(&shape, bits_of[k % 2], &b);
                assert_true(k < 2 || rows[r] < 8 || bytes <= plane_bytes(&shape));
                buffers_free(&b);
            }
}

/* K of vLLM on CPUs: a block has a row of 128 tokens for each channel. */
static void
a_group_of_a_transposed_plane_is_64_tokens_of_a_channel(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 128, .n = 128 * 256,
                                      .n_layers = 1, .is_transposed = true };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    for (uint32_t i = 0; i < shape.n; i++) /* only numbers of different groups are far apart */
        put_element(shape.element, i / 64 % 7 * 100 + i % 64 * 0.25, b.plane + 2 * i);
    assert_int_equal(expect_agreement(&shape, 8, &b), 1 + 256 * 128 + 256 * 2 * 4);
    expect_all_errors_small(&shape, 8, &b);
    assert_int_equal(expect_agreement(&shape, 4, &b), 1 + 256 * 64 + 256 * 2 * 4);
    expect_all_errors_small(&shape, 4, &b);
    shape.row = 16; /* each row is a short group */
    assert_int_equal(expect_agreement(&shape, 8, &b), 1 + 2048 * 16 + 2048 * 4);
    shape.row = 80; /* each row is a group and a short group */
    shape.n = 80 * 100;
    assert_int_equal(expect_agreement(&shape, 4, &b), 1 + 100 * 40 + 100 * 2 * 4);
    expect_all_errors_small(&shape, 4, &b);
    buffers_free(&b);
}

static void
chunks_become_smaller_as_promised(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 1024, .n = 256 * 1024,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    fill_plane(&shape, 5, b.plane);
    assert_int_equal(expect_agreement(&shape, 8, &b), 1 + 1024 * 256 + 4 * 1024 * 4);
    assert_int_equal(expect_agreement(&shape, 4, &b), 1 + 1024 * 128 + 4 * 1024 * 4);
    buffers_free(&b);
}

static void
constant_columns_are_restored(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 48, .n = 48 * 100,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    for (uint32_t i = 0; i < shape.n; i++)
        put_element(shape.element, i % 48 - 20.5, b.plane + 2 * i);
    for (size_t k = 0; k < 2; k++) {
        assert_true(expect_agreement(&shape, bits_of[k], &b) < plane_bytes(&shape));
        assert_memory_equal(b.decoded, b.plane, plane_bytes(&shape));
    }
    memset(b.plane, 0, plane_bytes(&shape));
    expect_agreement(&shape, 4, &b);
    assert_memory_equal(b.decoded, b.plane, plane_bytes(&shape));
    buffers_free(&b);
}

/* The range of a column is larger than the largest float, or too small for a scale. */
static void
extreme_ranges_are_restored(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 32, .n = 32 * 64,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    for (size_t k = 0; k < 2; k++) {
        for (uint32_t i = 0; i < shape.n; i++)
            put_element(shape.element, i / 32 % 2 ? 3e38 : -3e38, b.plane + 2 * i);
        assert_int_equal(expect_agreement(&shape, bits_of[k], &b), plane_bytes(&shape) + 1);
        assert_memory_equal(b.decoded, b.plane, plane_bytes(&shape));
        for (uint32_t i = 0; i < shape.n; i++)
            put_element(shape.element, i / 32 % 2 ? 1e-38 : 2e-38, b.plane + 2 * i);
        assert_int_equal(expect_agreement(&shape, bits_of[k], &b), plane_bytes(&shape) + 1);
        assert_memory_equal(b.decoded, b.plane, plane_bytes(&shape));
    }
    buffers_free(&b);
}

/* The smallest scale, the largest maximum, and the smallest plane with codes. */
static void
limits_of_codes(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 1, .n = 64,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    memset(b.plane, 0, plane_bytes(&shape));
    for (size_t k = 0; k < 2; k++) {
        put_element(shape.element, ldexp((1 << bits_of[k]) - 1, -100), b.plane);
        assert_int_equal(expect_agreement(&shape, bits_of[k], &b), 1 + 4 + 64);
        put_element(shape.element, ldexp((1 << bits_of[k]) - 1, -101), b.plane);
        assert_int_equal(expect_agreement(&shape, bits_of[k], &b), 1 + 128);
        put_element(shape.element, ldexp(255, 119), b.plane);
        assert_int_equal(expect_agreement(&shape, bits_of[k], &b), 1 + 4 + 64);
        put_element(shape.element, ldexp(1, 127), b.plane);
        assert_int_equal(expect_agreement(&shape, bits_of[k], &b), 1 + 128);
    }
    memset(b.plane, 0, plane_bytes(&shape));
    shape.n = 5;
    assert_int_equal(expect_agreement(&shape, 8, &b), 1 + 4 + 5);
    shape.n = 4;
    assert_int_equal(expect_agreement(&shape, 8, &b), 1 + 8);
    buffers_free(&b);
}

/* Half a scale above the largest number of bfloat16 would be rounded to infinity. */
static void
finite_numbers_stay_finite(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 1, .n = 64,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    for (uint32_t min = 0; min < UINT32_C(1) << 16; min++)
        for (size_t k = 0; k < 2 && (min & 0x7f80) != 0x7f80; k++) {
            memset(b.plane, 0x7f, plane_bytes(&shape)); /* the largest number */
            memcpy(b.plane, &min, 2);
            size_t n = codecs[k]->encode(&shape, b.plane, b.encoded);
            assert_true(codecs[k]->decode(&shape, b.encoded, n, b.decoded));
            for (uint32_t i = 0; i < shape.n; i++)
                assert_true(isfinite(kvt__load_bf16(b.decoded + 2 * i)));
        }
    buffers_free(&b);
}

static void
nan_and_infinities_are_restored(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 40, .n = 40 * 64,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    for (size_t v = 0; v < sizeof not_finite / sizeof *not_finite; v++)
        for (uint32_t at = 0; at < shape.n; at += 797) {
            fill_plane(&shape, v, b.plane);
            memcpy(b.plane + 2 * at, &not_finite[v], 2);
            for (size_t k = 0; k < 4; k++) {
                shape.is_transposed = k >= 2;
                assert_int_equal(expect_agreement(&shape, bits_of[k % 2], &b),
                                 plane_bytes(&shape) + 1);
                assert_memory_equal(b.decoded, b.plane, plane_bytes(&shape));
            }
        }
    buffers_free(&b);
}

/* NaN or an infinity at each column of a row, and at last in no column. */
static void
all_forms_find_nan_and_infinities(void **state)
{
    enum { N = 2 * KVT__GROUP_TOKENS + 21 };
    unsigned char row[2 * N];
    float min[N], max[N];

    (void)state;
    for (const struct kvt__affine_form *const *form = kvt__affine_forms(); *form; form++)
        for (size_t v = 0; v < sizeof not_finite / sizeof *not_finite; v++)
            for (size_t at = 0; at <= N; at++) {
                bool is_row_finite = true, are_groups_finite = true;

                memset(row, 0, sizeof row);
                memset(min, 0, sizeof min);
                memset(max, 0, sizeof max);
                if (at < N)
                    memcpy(row + 2 * at, &not_finite[v], 2);
                (*form)->measure(row, N, min, max, &is_row_finite);
                (*form)->measure_groups(row, N, min, max, &are_groups_finite);
                assert_int_equal(is_row_finite, at == N);
                assert_int_equal(are_groups_finite, at == N);
            }
}

static void
other_types_are_restored(void **state)
{
    (void)state;
    for (enum kvt__element e = 0; e < KVT__N_ELEMENTS; e++) {
        struct kvt__plane_shape shape = { .element = e, .row = 64, .n = 64 * 64,
                                      .n_layers = 1 };
        struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

        if (e == KVT__ELEMENT_BF16)
            shape.n -= 1; /* an incomplete row */
        shape.is_transposed = e % 2;
        fill_plane(&shape, e, b.plane);
        for (size_t k = 0; k < 2; k++) {
            assert_int_equal(expect_agreement(&shape, bits_of[k], &b), plane_bytes(&shape) + 1);
            assert_memory_equal(b.decoded, b.plane, plane_bytes(&shape));
        }
        buffers_free(&b);
    }
}

static void
planes_without_structure_are_restored(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 64, .n = 64 * 64 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    fill_plane(&shape, 2, b.plane);
    for (size_t k = 0; k < 4; k++) {
        shape.is_transposed = k >= 2;
        assert_int_equal(expect_agreement(&shape, bits_of[k % 2], &b), plane_bytes(&shape) + 1);
        assert_memory_equal(b.decoded, b.plane, plane_bytes(&shape));
    }
    buffers_free(&b);
}

/* Subnormal numbers and zeros of both signs, in any order: all forms find the same scales. */
static void
forms_agree_about_small_numbers(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 144, .n = 144 * 130,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);
    uint64_t random = 3;

    (void)state;
    for (int round = 0; round < 40; round++) {
        uint16_t mask = round % 4 ? 0x8000 : 0x807f; /* zeros, or subnormal numbers */

        for (uint32_t i = 0; i < shape.n; i++) {
            uint16_t x = (uint16_t)(next_random(&random) & mask);

            if (next_random(&random) % 64 < (uint64_t)round % 8)
                x = (uint16_t)(0x3f80 | next_random(&random) % 2 << 15);
            memcpy(b.plane + 2 * i, &x, 2);
        }
        for (size_t k = 0; k < 4; k++) {
            shape.is_transposed = k >= 2;
            expect_agreement(&shape, bits_of[k % 2], &b);
            expect_all_errors_small(&shape, bits_of[k % 2], &b);
        }
    }
    buffers_free(&b);
}

static void
planes_that_were_never_encoded_are_refused(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 64, .n = 64 * 64,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    fill_plane(&shape, 1, b.plane);
    for (size_t k = 0; k < 2; k++) {
        size_t n = codecs[k]->encode(&shape, b.plane, b.encoded);

        assert_true(codecs[k]->decode(&shape, b.encoded, n, b.decoded));
        assert_false(codecs[k]->decode(&shape, b.encoded, n - 1, b.decoded));
        assert_false(codecs[k]->decode(&shape, b.encoded, n + 1, b.decoded));
        assert_false(codecs[k]->decode(&shape, b.encoded, 0, b.decoded));
        b.encoded[0] ^= 2;
        assert_false(codecs[k]->decode(&shape, b.encoded, n, b.decoded));
        b.encoded[0] ^= 2;
        for (size_t at = 1; at <= 129; at += 128) { /* a minimum; a scale */
            memcpy(b.expected, b.encoded, n);
            b.expected[at] = 0x80;
            b.expected[at + 1] = 0x7f;
            for (const struct kvt__affine_form *const *f = kvt__affine_forms(); *f; f++)
                assert_false(kvt__affine_decode(*f, bits_of[k], &shape, b.expected, n,
                                                b.decoded));
        }
    }
    buffers_free(&b);
}

static void
the_codecs_use_the_fastest_form(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 128, .n = 128 * 64,
                                      .n_layers = 1 };
    struct buffers b = buffers_for(&kvt__codec_kv8, &shape);

    (void)state;
    expect_fastest(kvt__affine_forms()[0]->name);
    fill_plane(&shape, 4, b.plane);
    for (size_t k = 0; k < 2; k++) {
        size_t n = expect_agreement(&shape, bits_of[k], &b);

        assert_int_equal(codecs[k]->encode(&shape, b.plane, b.encoded), n);
        assert_memory_equal(b.encoded, b.expected, n);
        assert_true(codecs[k]->decode(&shape, b.encoded, n, b.other));
        assert_memory_equal(b.other, b.decoded, plane_bytes(&shape));
    }
    buffers_free(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_at_most_half_a_scale),
        cmocka_unit_test(a_group_of_a_transposed_plane_is_64_tokens_of_a_channel),
        cmocka_unit_test(chunks_become_smaller_as_promised),
        cmocka_unit_test(constant_columns_are_restored),
        cmocka_unit_test(extreme_ranges_are_restored),
        cmocka_unit_test(limits_of_codes),
        cmocka_unit_test(finite_numbers_stay_finite),
        cmocka_unit_test(nan_and_infinities_are_restored),
        cmocka_unit_test(all_forms_find_nan_and_infinities),
        cmocka_unit_test(other_types_are_restored),
        cmocka_unit_test(planes_without_structure_are_restored),
        cmocka_unit_test(forms_agree_about_small_numbers),
        cmocka_unit_test(planes_that_were_never_encoded_are_refused),
        cmocka_unit_test(the_codecs_use_the_fastest_form),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
