/* SPDX-License-Identifier: Apache-2.0
 *
 * cachegen: the error of each element is at most half a step of the quantiser of CacheGen, encoded
 * planes are near the entropy of the symbols, all forms of this processor produce equal bytes, and
 * raw tokens are restored bit for bit. */
#include "codec-test.h"

#include "codec/affine.h"
#include "codec/cachegen.h"

static const enum kvt__element types[] = { KVT__ELEMENT_BF16, KVT__ELEMENT_F16, KVT__ELEMENT_F32 };

/* Encode and decode with each form, and expect the bytes of the plain form.  Return the size of the
 * encoded plane; b->decoded contains the decoded plane. */
static size_t
expect_agreement(const struct kvt__plane_shape *shape, struct buffers *b)
{
    size_t n = kvt__cachegen_encode(&kvt__cachegen_plain, shape, b->plane, b->expected);

    assert_in_range(n, 1, plane_bytes(shape) + 1);
    assert_true(kvt__cachegen_decode(&kvt__cachegen_plain, shape, b->expected, n, b->decoded));
    for (const struct kvt__cachegen_form *const *form = kvt__cachegen_forms(); *form; form++) {
        assert_int_equal(kvt__cachegen_encode(*form, shape, b->plane, b->encoded), n);
        assert_memory_equal(b->encoded, b->expected, n);
        unsigned char *exact = exact_copy(b->encoded, n);
        memset(b->other, 0xa5, plane_bytes(shape));
        assert_true(kvt__cachegen_decode(*form, shape, exact, n, b->other));
        assert_memory_equal(b->other, b->decoded, plane_bytes(shape));
        free(exact);
    }
    return n;
}

/* Return element i. */
static double
number(const struct kvt__plane_shape *shape, const unsigned char *plane, size_t i)
{
    float x;

    kvt__cachegen_plain.load(shape->element, plane + i * kvt__element_bytes(shape->element), 1,
                             &x);
    return x;
}

static size_t
token_of(const struct kvt__plane_shape *shape, size_t i)
{
    return shape->is_transposed ? i % shape->row : i / shape->row;
}

/* Return the largest magnitude of each token; the caller frees the result. */
static double *
maxima(const struct kvt__plane_shape *shape, const unsigned char *plane)
{
    double *max = calloc(shape->n, sizeof *max);

    assert_non_null(max);
    for (size_t i = 0; i < shape->n; i++)
        max[token_of(shape, i)] = fmax(max[token_of(shape, i)], fabs(number(shape, plane, i)));
    return max;
}

/* Check the errors of all elements, except the elements of token number `other`. */
static void
expect_small_errors(const struct kvt__plane_shape *shape, const struct buffers *b, size_t other)
{
    double *max = maxima(shape, b->plane);

    for (size_t i = 0; i < shape->n; i++) {
        double m = max[token_of(shape, i)], half = m / (2 * kvt__cachegen_c(shape));
        double error = fabs(number(shape, b->plane, i) - number(shape, b->decoded, i));
        double rounding = shape->element == KVT__ELEMENT_BF16 ? m * 0x1p-8
                          : shape->element == KVT__ELEMENT_F16 ? fmax(m * 0x1p-11, 0x1p-25)
                                                               : m * 0x1p-22;

        if (token_of(shape, i) != other)
            assert_true(error <= half * 1.00001 + rounding);
    }
    free(max);
}

static size_t
encoded_bytes(const struct kvt__plane_shape *shape, uint64_t seed)
{
    struct buffers b = buffers_for(&kvt__codec_cachegen, shape);

    fill_plane(shape, seed, b.plane);
    size_t n = expect_agreement(shape, &b);
    expect_small_errors(shape, &b, SIZE_MAX);
    buffers_free(&b);
    return n;
}

static void
errors_are_at_most_half_a_step(void **state)
{
    static const uint32_t rows[] = { 1, 2, 7, 16, 31, 32, 33, 80, 128, 576, 1024, 1100 };
    static const uint32_t n_rows[] = { 1, 2, 8, 17, 33, 64, 130 };

    (void)state;
    for (size_t t = 0; t < 3; t++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t k = 0; k < sizeof n_rows / sizeof *n_rows; k++) {
                struct kvt__plane_shape shape = {
                    .element = types[t], .row = rows[r], .n = rows[r] * n_rows[k],
                    .is_transposed = (r + k + t) % 2, .is_value = k % 3 == 0,
                    .layer = (uint32_t)(5 * r), .n_layers = k == 1 ? 1 : 64,
                };

                encoded_bytes(&shape, r * 31 + k);
                shape.is_transposed = !shape.is_transposed;
                shape.n -= shape.n > 1; /* an incomplete row */
                encoded_bytes(&shape, r * 31 + k);
            }
}

static void
planes_of_any_length_are_restored(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 300; n++) {
        struct kvt__plane_shape shape = { .element = types[n % 3], .row = 16, .n = n,
                                          .n_layers = 1, .is_transposed = n % 2 };

        encoded_bytes(&shape, n);
        shape.row = 128;
        encoded_bytes(&shape, n);
    }
}

/* Rows with too many channels for classes; a plane with too many tokens for the codec. */
static void
large_rows_and_many_tokens_are_restored(void **state)
{
    struct kvt__plane_shape wide = { .element = KVT__ELEMENT_BF16, .row = 5000, .n = 5000 * 64,
                                     .n_layers = 32 };
    struct kvt__plane_shape high = { .element = KVT__ELEMENT_BF16, .row = 64, .n = 64 * 5000,
                                     .n_layers = 32, .is_transposed = true };
    struct kvt__plane_shape longest = { .element = KVT__ELEMENT_F32, .row = 4, .n = 4 * 32768,
                                        .n_layers = 32 };

    (void)state;
    assert_true(encoded_bytes(&wide, 1) < plane_bytes(&wide) / 3);
    assert_true(encoded_bytes(&high, 2) < plane_bytes(&high) / 3);
    assert_true(encoded_bytes(&longest, 3) < plane_bytes(&longest));
    longest.n += 4;
    assert_int_equal(encoded_bytes(&longest, 3), plane_bytes(&longest) + 1);
}

static void
the_layer_chooses_the_bins(void **state)
{
    struct kvt__plane_shape shape = { .n_layers = 32 };

    (void)state;
    for (shape.layer = 0; shape.layer < 32; shape.layer++) {
        shape.is_value = false;
        assert_int_equal(kvt__cachegen_c(&shape), shape.layer < 10 ? 15 : 7);
        shape.is_value = true;
        assert_int_equal(kvt__cachegen_c(&shape), shape.layer < 2 ? 15 : 7);
    }
    shape.n_layers = 9;
    assert_int_equal(kvt__cachegen_c(&shape), 15);
}

/* The token's maximum is C, so a step is 1. */
static void
symbols_are_rounded_to_even(void **state)
{
    static const double in[] = { -0.5, 0.5, 1.5, 2.5, 0.51, -1.49, 3, -7 };
    static const double out_15[] = { -1, 1, 1, 3, 1, -1, 3, -7 }; /* q = 15.5 becomes 16 */

    (void)state;
    for (size_t t = 0; t < 3; t++) {
        struct kvt__plane_shape shape = { .element = types[t], .row = 1024, .n = 1024,
                                          .n_layers = 32 };
        struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);

        for (shape.layer = 0; shape.layer < 32; shape.layer += 16) {
            double c = kvt__cachegen_c(&shape);

            for (size_t i = 0; i < 1024; i++)
                put_element(types[t], i == 900 ? -c : in[i % 8],
                            b.plane + i * kvt__element_bytes(types[t]));
            assert_true(expect_agreement(&shape, &b) < plane_bytes(&shape));
            for (size_t i = 0; i < 1024; i++) {
                double expected = i == 900 ? -c : out_15[i % 8];
                assert_true(fabs(number(&shape, b.decoded, i) - expected) <= 0x1p-6);
            }
        }
        buffers_free(&b);
    }
}

/* Decode each symbol with each maximum.  Some products are halfway between two elements. */
static void
all_forms_round_products_alike(void **state)
{
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        struct kvt__levels levels = { .element = types[t / 2], .c = t % 2 ? 15 : 7 };
        bool is_f16 = levels.element == KVT__ELEMENT_F16;
        uint32_t infinity = is_f16 ? 0x7c00 : 0x7f80;
        size_t n = is_f16 ? 2 * levels.c + 1 : KVT__SYMBOLS; /* a float16 may not overflow */

        for (int s = 0; s < (int)KVT__SYMBOLS; s++)
            levels.level[s] = (float)(s - (int)levels.c) / (float)levels.c;
        for (uint32_t bits = 0; bits < infinity; bits++) {
            unsigned char element[2], expected[2 * KVT__SYMBOLS], decoded[2 * KVT__SYMBOLS];
            uint8_t symbols[KVT__SYMBOLS];
            float max[KVT__SYMBOLS];

            kvt__store_word16(element, bits);
            for (uint8_t s = 0; s < KVT__SYMBOLS; s++) {
                symbols[s] = s;
                kvt__cachegen_plain.load(levels.element, element, 1, &max[s]);
            }
            kvt__cachegen_plain.dequantise(&levels, symbols, n, max, expected);
            for (const struct kvt__cachegen_form *const *form = kvt__cachegen_forms(); *form;
                 form++) {
                (*form)->dequantise(&levels, symbols, n, max, decoded);
                assert_memory_equal(decoded, expected, 2 * n);
            }
        }
    }
}

/* ------------------------------------------------------------------------ special numbers */

static void
put_in_token(const struct kvt__plane_shape *shape, size_t token, double x, unsigned char *plane)
{
    for (size_t i = 0; i < shape->n; i++)
        if (token_of(shape, i) == token)
            put_element(shape->element, x, plane + i * kvt__element_bytes(shape->element));
}

static void
expect_same_token(const struct kvt__plane_shape *shape, const struct buffers *b, size_t token)
{
    size_t bytes = kvt__element_bytes(shape->element);

    for (size_t i = 0; i < shape->n; i++)
        if (token_of(shape, i) == token)
            assert_memory_equal(b->plane + i * bytes, b->decoded + i * bytes, bytes);
}

static void
tokens_of_zeros_stay_zeros(void **state)
{
    (void)state;
    for (size_t t = 0; t < 6; t++) {
        struct kvt__plane_shape shape = { .element = types[t / 2], .row = 80, .n = 80 * 70 - 5,
                                          .n_layers = 32, .is_transposed = t % 2 };
        struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);

        fill_plane(&shape, t, b.plane);
        put_in_token(&shape, 69, 0, b.plane);
        assert_true(expect_agreement(&shape, &b) < plane_bytes(&shape));
        expect_small_errors(&shape, &b, SIZE_MAX);
        expect_same_token(&shape, &b, 69);
        memset(b.plane, 0, plane_bytes(&shape));
        assert_true(expect_agreement(&shape, &b) < plane_bytes(&shape) / 10);
        assert_memory_equal(b.plane, b.decoded, plane_bytes(&shape));
        buffers_free(&b);
    }
}

/* Put the bits of an element into token number 3.  Expect that token 3 is restored bit for bit, and
 * that the other tokens are quantised. */
static void
expect_raw(const struct kvt__plane_shape *shape, uint32_t bits)
{
    struct buffers b = buffers_for(&kvt__codec_cachegen, shape);
    size_t step = shape->is_transposed ? shape->row : 1, bytes = kvt__element_bytes(shape->element);
    size_t first = shape->is_transposed ? 3 : 3 * (size_t)shape->row;

    fill_plane(shape, bits, b.plane);
    put_in_token(shape, 3, 0x1p-120, b.plane); /* as float16: 0 */
    for (size_t i = 0; i < bytes; i++)
        b.plane[(first + 9 * step) * bytes + i] = (unsigned char)(bits >> 8 * i);
    assert_true(expect_agreement(shape, &b) < plane_bytes(shape));
    expect_same_token(shape, &b, 3);
    expect_small_errors(shape, &b, 3);
    buffers_free(&b);
}

static void
nan_infinities_and_tiny_tokens_are_restored(void **state)
{
    static const uint32_t bits[3][6] = {
        { 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x8001 },
        { 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0xffff },
        { 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x80000001 },
    };

    (void)state;
    for (size_t t = 0; t < 3; t++)
        for (size_t v = 0; v < 6; v++)
            for (size_t transposed = 0; transposed < 2; transposed++) {
                struct kvt__plane_shape shape = { .element = types[t], .row = 72, .n = 72 * 65 - 7,
                                                  .n_layers = 32, .is_transposed = transposed };

                expect_raw(&shape, bits[t][v]);
            }
}

static void
a_plane_of_nan_is_stored_as_it_is(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 64, .n = 64 * 64,
                                      .n_layers = 32 };
    struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);

    (void)state;
    memset(b.plane, 0xff, plane_bytes(&shape));
    assert_int_equal(expect_agreement(&shape, &b), plane_bytes(&shape) + 1);
    assert_memory_equal(b.plane, b.decoded, plane_bytes(&shape));
    buffers_free(&b);
}

/* Subnormal numbers of float16, and the largest and the smallest quantised maxima. */
static void
extreme_numbers_are_quantised(void **state)
{
    static const struct {
        enum kvt__element element;
        double scale;
    } cases[] = {
        { KVT__ELEMENT_BF16, 0x1.fcp127 }, { KVT__ELEMENT_F32, 0x1.fffffep127 },
        { KVT__ELEMENT_F16, 65504 },       { KVT__ELEMENT_BF16, 0x1p-100 },
        { KVT__ELEMENT_F32, 0x1p-100 },    { KVT__ELEMENT_F16, 0x1p-14 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct kvt__plane_shape shape = { .element = cases[k].element, .row = 64, .n = 64 * 64,
                                          .n_layers = 32, .layer = k % 2 ? 31 : 0 };
        struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);

        for (size_t i = 0; i < shape.n; i++)
            put_element(shape.element, cases[k].scale * (1 - (double)(i % 64) / 32),
                        b.plane + i * kvt__element_bytes(shape.element));
        assert_true(expect_agreement(&shape, &b) < plane_bytes(&shape) / 2);
        expect_small_errors(&shape, &b, SIZE_MAX);
        buffers_free(&b);
    }
    for (uint32_t bits = 1; bits < 0x800; bits++) { /* 0 and the maximum only */
        struct kvt__plane_shape shape = { .element = KVT__ELEMENT_F16, .row = 512, .n = 512,
                                          .n_layers = 1 };
        struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);

        for (size_t i = 0; i < shape.n; i++)
            kvt__store_word16(b.plane + 2 * i, i % 5 ? 0 : bits | i % 2 << 15);
        assert_true(expect_agreement(&shape, &b) < plane_bytes(&shape));
        assert_memory_equal(b.plane, b.decoded, plane_bytes(&shape));
        buffers_free(&b);
    }
}

static void
other_planes_are_restored(void **state)
{
    (void)state;
    for (enum kvt__element e = 0; e < KVT__N_ELEMENTS; e++) {
        bool is_known = e == KVT__ELEMENT_BF16 || e == KVT__ELEMENT_F16 || e == KVT__ELEMENT_F32;
        struct kvt__plane_shape shape = { .element = e, .row = 64, .n = 64 * 64,
                                          .n_layers = is_known ? 0 : 32 };
        struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);

        fill_plane(&shape, e, b.plane);
        assert_int_equal(expect_agreement(&shape, &b), plane_bytes(&shape) + 1);
        assert_memory_equal(b.plane, b.decoded, plane_bytes(&shape));
        buffers_free(&b);
    }
}

/* -------------------------------------------------------------------------- sizes */

/* Return the entropy of the plane's symbols in bytes, by a single distribution of the symbols. */
static double
entropy_bytes(const struct kvt__plane_shape *shape, const unsigned char *plane)
{
    double *max = maxima(shape, plane), c = kvt__cachegen_c(shape), bits = 0;
    double counts[KVT__SYMBOLS] = { 0 };

    for (size_t i = 0; i < shape->n; i++)
        counts[(size_t)rint(number(shape, plane, i) * c / max[token_of(shape, i)] + c)]++;
    for (size_t s = 0; s < KVT__SYMBOLS; s++)
        bits -= counts[s] ? counts[s] * log2(counts[s] / shape->n) : 0;
    free(max);
    return bits / 8;
}

/* Channels with a scale of their own have classes; equal channels gain nothing from classes. */
static void
planes_of_kv_are_near_the_entropy(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 8; k++) {
        struct kvt__plane_shape shape = { .element = types[k % 3], .row = k % 2 ? 256 : 1024,
                                          .n = 256 * 1024, .n_layers = 32, .layer = 4 * k,
                                          .is_transposed = k % 2 };
        struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);

        fill_plane(&shape, 5, b.plane);
        assert_true((double)expect_agreement(&shape, &b) <=
                    entropy_bytes(&shape, b.plane) * (k % 2 ? 1.03 : 0.9));
        for (uint64_t i = 0, random = k; i < shape.n; i++)
            put_element(shape.element, next_normal(&random),
                        b.plane + i * kvt__element_bytes(shape.element));
        assert_true((double)expect_agreement(&shape, &b) <=
                    entropy_bytes(&shape, b.plane) * 1.03);
        buffers_free(&b);
    }
}

static void
a_buffer_needs_less_than_a_mebibyte_more_than_the_plane(void **state)
{
    static const uint32_t rows[] = { 1, 16, 64, 1024, 4096, 5000, 100000 };

    (void)state;
    for (size_t t = 0; t < 3; t++)
        for (size_t r = 0; r < 2 * sizeof rows / sizeof *rows; r++)
            for (uint32_t n = 1; n <= KVT__CODEC_MAX_PLANE; n *= 2) {
                struct kvt__plane_shape shape = { .element = types[t], .row = rows[r / 2], .n = n,
                                                  .n_layers = 32, .is_transposed = r % 2 };

                assert_in_range(kvt__codec_cachegen.room(&shape), plane_bytes(&shape) + 1,
                                plane_bytes(&shape) + (1 << 20));
            }
}

/* The numbers need no mathematical functions: the last bits of a result depend on the library. */
static void
all_processors_write_the_same_bytes(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 64, .n = 64 * 200,
                                      .n_layers = 32 };
    struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);
    uint32_t digest = 2166136261; /* FNV-1a */

    (void)state;
    for (uint64_t i = 0, random = 1; i < shape.n; i++) {
        uint64_t x = next_random(&random);

        put_element(shape.element, (double)(x % 256 * (x >> 8 & 255)) * (i % 7 ? 1 : -1) /
                                       (double)(1 + i % 64),
                    b.plane + 2 * i);
    }
    size_t n = expect_agreement(&shape, &b);
    assert_int_equal(b.encoded[1 + 200 * 2], 3); /* 8 classes */
    for (size_t i = 0; i < n; i++)
        digest = (digest ^ b.encoded[i]) * 16777619;
    assert_int_equal(digest, 0xd06b36c3);
    buffers_free(&b);
}

static void
the_codec_uses_the_fastest_form(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 128, .n = 128 * 256,
                                      .n_layers = 32 };
    struct buffers b = buffers_for(&kvt__codec_cachegen, &shape);

    (void)state;
    expect_fastest(kvt__cachegen_forms()[0]->name);
    fill_plane(&shape, 4, b.plane);
    size_t n = expect_agreement(&shape, &b);
    assert_int_equal(kvt__codec_cachegen.encode(&shape, b.plane, b.encoded), n);
    assert_memory_equal(b.encoded, b.expected, n);
    assert_true(kvt__codec_cachegen.decode(&shape, b.encoded, n, b.other));
    assert_memory_equal(b.other, b.decoded, plane_bytes(&shape));
    buffers_free(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_are_at_most_half_a_step),
        cmocka_unit_test(planes_of_any_length_are_restored),
        cmocka_unit_test(large_rows_and_many_tokens_are_restored),
        cmocka_unit_test(the_layer_chooses_the_bins),
        cmocka_unit_test(symbols_are_rounded_to_even),
        cmocka_unit_test(all_forms_round_products_alike),
        cmocka_unit_test(tokens_of_zeros_stay_zeros),
        cmocka_unit_test(nan_infinities_and_tiny_tokens_are_restored),
        cmocka_unit_test(a_plane_of_nan_is_stored_as_it_is),
        cmocka_unit_test(extreme_numbers_are_quantised),
        cmocka_unit_test(other_planes_are_restored),
        cmocka_unit_test(planes_of_kv_are_near_the_entropy),
        cmocka_unit_test(a_buffer_needs_less_than_a_mebibyte_more_than_the_plane),
        cmocka_unit_test(all_processors_write_the_same_bytes),
        cmocka_unit_test(the_codec_uses_the_fastest_form),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
