/* SPDX-License-Identifier: Apache-2.0
 *
 * The lossless codec restores each bit, for all types and shapes and any bytes.  All forms of this
 * processor produce the bytes of the plain form.  KV becomes smaller; no plane grows by more than a
 * byte. */
#include "codec-test.h"

#include "codec/lossless.h"

/* Encode and decode by each form.  Return the encoded bytes. */
static size_t
expect_restored(const struct kvt__plane_shape *shape, struct buffers *b)
{
    size_t n = kvt__lossless_encode(&kvt__lossless_plain, shape, b->plane, b->expected);

    assert_in_range(n, 1, plane_bytes(shape) + 1);
    for (const struct kvt__lossless_form *const *form = kvt__lossless_forms(); *form; form++) {
        memset(b->encoded, 0xa5, n);
        memset(b->decoded, 0xa5, plane_bytes(shape));
        assert_int_equal(kvt__lossless_encode(*form, shape, b->plane, b->encoded), n);
        assert_memory_equal(b->encoded, b->expected, n);
        unsigned char *exact = exact_copy(b->encoded, n);
        assert_true(kvt__lossless_decode(*form, shape, exact, n, b->decoded));
        assert_memory_equal(b->decoded, b->plane, plane_bytes(shape));
        free(exact);
    }
    return n;
}

static double
ratio(const struct kvt__plane_shape *shape, uint64_t seed)
{
    struct buffers b = buffers_for(&kvt__codec_lossless, shape);

    fill_plane(shape, seed, b.plane);
    double result = (double)plane_bytes(shape) / (double)expect_restored(shape, &b);
    buffers_free(&b);
    return result;
}

static void
planes_of_kv_become_smaller(void **state)
{
    static const double at_least[KVT__N_ELEMENTS] = {
        [KVT__ELEMENT_BF16] = 1.40, [KVT__ELEMENT_F16] = 1.11, [KVT__ELEMENT_F32] = 1.16,
        [KVT__ELEMENT_E4M3] = 1.05, [KVT__ELEMENT_E5M2] = 1.15,
    };

    (void)state;
    for (enum kvt__element e = KVT__ELEMENT_BF16; e < KVT__N_ELEMENTS; e++) {
        struct kvt__plane_shape shape = { .element = e, .row = 1024, .n = 256 * 1024 };

        assert_true(ratio(&shape, 1) >= at_least[e]);
        shape.is_transposed = true;
        shape.row = 128;
        assert_true(ratio(&shape, 1) >= at_least[e]);
    }
}

static void
shapes_of_all_sizes_are_restored(void **state)
{
    static const uint32_t rows[] = { 1, 7, 63, 64, 65, 80, 96, 128, 576, 1000, 1024 };
    static const uint32_t n_rows[] = { 1, 2, 15, 16, 17, 33, 100 };

    (void)state;
    for (enum kvt__element e = 0; e < KVT__N_ELEMENTS; e++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t n = 0; n < sizeof n_rows / sizeof *n_rows; n++) {
                struct kvt__plane_shape shape = { .element = e, .row = rows[r],
                                                  .n = rows[r] * n_rows[n] };

                ratio(&shape, r * 31 + n);
                shape.is_transposed = true;
                ratio(&shape, r * 31 + n);
            }
}

static void
incomplete_rows_are_restored(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 300; n++) {
        struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 128, .n = n };

        ratio(&shape, n);
        shape.is_transposed = true;
        ratio(&shape, n);
    }
}

/* NaN, infinities, subnormal numbers and both zeros are among the bytes. */
static void
any_bytes_are_restored(void **state)
{
    (void)state;
    for (enum kvt__element e = 0; e < KVT__N_ELEMENTS; e++) {
        struct kvt__plane_shape shape = { .element = e, .row = 64, .n = 64 * 100 + 5 };
        struct buffers b = buffers_for(&kvt__codec_lossless, &shape);
        uint64_t random = e;

        for (size_t i = 0; i < plane_bytes(&shape); i++)
            b.plane[i] = (unsigned char)next_random(&random);
        expect_restored(&shape, &b);
        memset(b.plane, 0, plane_bytes(&shape));
        expect_restored(&shape, &b);
        memset(b.plane, 0xff, plane_bytes(&shape));
        expect_restored(&shape, &b);
        buffers_free(&b);
    }
}

/* Each element has an exponent far from the other exponents of its column. */
static void
a_plane_of_escapes_is_stored_as_it_is(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 64, .n = 64 * 64 };
    struct buffers b = buffers_for(&kvt__codec_lossless, &shape);

    (void)state;
    for (uint32_t i = 0; i < shape.n; i++)
        put_element(shape.element, ldexp(1, (int)(i / 64 * 97 % 250) - 125), b.plane + 2 * i);
    assert_int_equal(expect_restored(&shape, &b), plane_bytes(&shape) + 1);
    buffers_free(&b);
}

/* A column with a few large values: the base is below the largest exponent. */
static void
outliers_cost_only_their_own_escapes(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 64, .n = 64 * 256 };
    struct buffers b = buffers_for(&kvt__codec_lossless, &shape);

    (void)state;
    fill_plane(&shape, 3, b.plane);
    size_t without = expect_restored(&shape, &b);
    for (uint32_t i = 0; i < shape.n; i += 64 * 32) /* rows that are samples */
        for (uint32_t c = 0; c < 64; c++)
            put_element(shape.element, 64, b.plane + 2 * (i + c));
    assert_true(expect_restored(&shape, &b) < without + shape.n / 8);
    buffers_free(&b);
}

/* Each row has exponents of its own: one base for 128 or 64 elements of the row suffices. */
static void
rows_of_a_transposed_plane_need_no_escapes(void **state)
{
    static const uint32_t rows[] = { 64, 128, 192, 256 };

    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        uint32_t row = rows[r], span = row % 128 ? 64 : 128;
        struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = row, .n = row * 90,
                                          .is_transposed = true };
        struct buffers b = buffers_for(&kvt__codec_lossless, &shape);

        for (uint32_t i = 0; i < shape.n; i++)
            put_element(shape.element, ldexp(1, (int)(i / row) - (int)(i % 7)), b.plane + 2 * i);
        assert_int_equal(expect_restored(&shape, &b), 1 + shape.n / span + shape.n / 64 * 88);
        buffers_free(&b);
    }
}

/* Return the escapes of a channel with n elements, `step` apart, and the best base: at most 9 less
 * than the largest exponent. */
static uint32_t
fewest_escapes(const unsigned char *plane, size_t step, uint32_t n)
{
    uint32_t counts[256] = { 0 }, largest = 0, fewest = n;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t exponent = (uint32_t)(plane[2 * i * step + 1] & 0x7f) << 1
                          | plane[2 * i * step] >> 7;

        counts[exponent]++;
        largest = exponent > largest ? exponent : largest;
    }
    for (uint32_t base = largest; base + 10 > largest; base--) {
        uint32_t escapes = n;

        for (uint32_t code = 0; code < 7; code++)
            escapes -= counts[base - code];
        fewest = escapes < fewest ? escapes : fewest;
    }
    return fewest;
}

/* The exponents of a channel are spread so far that the choice of the base matters. */
static void
bases_have_the_fewest_escapes(void **state)
{
    uint64_t random = 11;

    (void)state;
    for (int round = 0; round < 40; round++) {
        bool is_transposed = round % 2;
        uint32_t n_tokens = is_transposed ? 128 : 64, n_channels = is_transposed ? 40 : 64;
        struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16,
                                          .row = is_transposed ? n_tokens : n_channels,
                                          .n = n_tokens * n_channels,
                                          .is_transposed = is_transposed };
        size_t escapes = 0;
        struct buffers b = buffers_for(&kvt__codec_lossless, &shape);

        for (uint32_t i = 0; i < shape.n; i++) {
            int a = (int)(next_random(&random) % (uint64_t)(6 + round % 3));
            int c = (int)(next_random(&random) % (uint64_t)(3 + round % 4));

            put_element(shape.element, ldexp(1, a + (a < 3 ? 0 : c) - 20), b.plane + 2 * i);
        }
        for (uint32_t c = 0; c < n_channels; c++)
            escapes += is_transposed ? fewest_escapes(b.plane + 2 * c * n_tokens, 1, n_tokens)
                                     : fewest_escapes(b.plane + 2 * c, n_channels, n_tokens);
        assert_in_range(escapes, 1, shape.n / 2);
        assert_int_equal(expect_restored(&shape, &b),
                         1 + n_channels + shape.n / 64 * 88 + escapes);
        buffers_free(&b);
    }
}

/* Behind 64 samples of each column the plane has half a row. */
static void
a_column_has_at_most_64_samples(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 128,
                                      .n = 128 * 64 + 64 };

    (void)state;
    assert_true(ratio(&shape, 5) > 1.3);
}

static void
a_coded_plane_has_at_most_the_bytes_of_the_plane(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 64, .n = 64 * 16 };
    struct buffers b = buffers_for(&kvt__codec_lossless, &shape);
    uint32_t n_escapes = 2 * shape.n - (1 + 64 + 16 * 88);

    (void)state;
    for (uint32_t i = 0; i < shape.n; i++)
        put_element(shape.element, i < shape.n - n_escapes ? 1 : 1e-10, b.plane + 2 * i);
    assert_int_equal(expect_restored(&shape, &b), plane_bytes(&shape));
    assert_int_equal(b.expected[0], 1);
    put_element(shape.element, 1e-10, b.plane + 2 * (shape.n - n_escapes - 1));
    assert_int_equal(expect_restored(&shape, &b), plane_bytes(&shape) + 1);
    buffers_free(&b);
}

/* Columns have bases of their own if the plane has at least 16 times as many elements as bases. */
static void
small_planes_have_few_bases(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 128, .n = 128 * 16 };
    struct buffers b = buffers_for(&kvt__codec_lossless, &shape);

    (void)state;
    for (uint32_t i = 0; i < shape.n; i++)
        put_element(shape.element, ldexp(1, i % 128 < 64 ? 0 : 20), b.plane + 2 * i);
    assert_int_equal(expect_restored(&shape, &b), 1 + 128 + shape.n / 64 * 88);
    shape.n -= 64;
    assert_int_equal(expect_restored(&shape, &b), 1 + 64 + shape.n / 64 * 88 + 16 * 64);
    buffers_free(&b);
}

/* Fill a plane with elements that need escapes, except in the rows that choose the bases. */
static void
fill_with_escapes(const struct kvt__plane_shape *shape, unsigned char *plane)
{
    for (uint32_t i = 0; i < shape->n; i++)
        put_element(shape->element, shape->n >= 64 && i / shape->row % 16 == 0 ? 8 : 0.001,
                    plane + (size_t)i * kvt__element_bytes(shape->element));
}

/* The escapes fill the buffer: without a sample the bases are 0, and each element needs an escape.
 * The address sanitizer watches the end of the buffer. */
static void
room_is_as_large_as_encode_needs(void **state)
{
    (void)state;
    for (enum kvt__element e = KVT__ELEMENT_BF16; e < KVT__N_ELEMENTS; e++)
        for (uint32_t n = 1; n < 64 * 1024; n = n < 70 ? n + 1 : n * 3) {
            struct kvt__plane_shape shape = { .element = e, .row = 64, .n = n,
                                              .is_transposed = n % 4 == 2 };
            size_t room = kvt__codec_lossless.room(&shape);
            struct buffers b = buffers_for(&kvt__codec_lossless, &shape);

            fill_with_escapes(&shape, b.plane);
            memset(b.expected, 0, room);
            expect_restored(&shape, &b);
            if (e == KVT__ELEMENT_BF16 && n == 63)
                assert_int_equal(b.expected[room - 2], 127 - 10); /* the last element's escape */
            buffers_free(&b);
        }
    struct kvt__plane_shape bytes = { .element = KVT__ELEMENT_BYTE, .row = 1, .n = 1000 };
    assert_int_equal(kvt__codec_lossless.room(&bytes), 1001);
}

/* Random shapes and bytes; some planes have few different bytes. */
static void
random_planes_are_restored(void **state)
{
    uint64_t random = 7;

    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct kvt__plane_shape shape = {
            .element = next_random(&random) % KVT__N_ELEMENTS,
            .row = 1 + (uint32_t)(next_random(&random) % (round % 2 ? 300 : 8)),
            .n = 1 + (uint32_t)(next_random(&random) % 3000),
            .is_transposed = next_random(&random) % 2,
            .n_layers = 1,
        };
        struct buffers b = buffers_for(&kvt__codec_lossless, &shape);
        uint64_t kept = next_random(&random);

        for (size_t i = 0; i < plane_bytes(&shape); i++)
            b.plane[i] = (unsigned char)(next_random(&random) & kept >> i % 4 * 8);
        expect_restored(&shape, &b);
        buffers_free(&b);
    }
}

static void
the_codec_uses_the_fastest_form(void **state)
{
    struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = 128, .n = 128 * 256 };
    struct buffers b = buffers_for(&kvt__codec_lossless, &shape);

    (void)state;
    expect_fastest(kvt__lossless_forms()[0]->name);
    fill_plane(&shape, 4, b.plane);
    size_t n = kvt__lossless_encode(&kvt__lossless_plain, &shape, b.plane, b.expected);
    assert_int_equal(kvt__codec_lossless.encode(&shape, b.plane, b.encoded), n);
    assert_memory_equal(b.encoded, b.expected, n);
    assert_true(kvt__codec_lossless.decode(&shape, b.encoded, n, b.decoded));
    assert_memory_equal(b.decoded, b.plane, plane_bytes(&shape));
    buffers_free(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planes_of_kv_become_smaller),
        cmocka_unit_test(shapes_of_all_sizes_are_restored),
        cmocka_unit_test(incomplete_rows_are_restored),
        cmocka_unit_test(any_bytes_are_restored),
        cmocka_unit_test(a_plane_of_escapes_is_stored_as_it_is),
        cmocka_unit_test(outliers_cost_only_their_own_escapes),
        cmocka_unit_test(rows_of_a_transposed_plane_need_no_escapes),
        cmocka_unit_test(bases_have_the_fewest_escapes),
        cmocka_unit_test(a_column_has_at_most_64_samples),
        cmocka_unit_test(a_coded_plane_has_at_most_the_bytes_of_the_plane),
        cmocka_unit_test(small_planes_have_few_bases),
        cmocka_unit_test(room_is_as_large_as_encode_needs),
        cmocka_unit_test(random_planes_are_restored),
        cmocka_unit_test(the_codec_uses_the_fastest_form),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
