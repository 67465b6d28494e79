/* SPDX-License-Identifier: Apache-2.0
 *
 * Planes of cachegen that are cut, extended or changed: no form accesses memory outside of the
 * buffers (the address sanitizer watches), and all forms agree whether a plane can be decoded. */
#include "damage-test.h"

#include "codec/cachegen.h"

#define ROW 96
#define N_ROWS 70

static const struct kvt__plane_shape shape = { .element = KVT__ELEMENT_BF16, .row = ROW,
                                               .n = ROW * N_ROWS + 3, .n_layers = 32 };

/* Offsets in the encoded plane; cachegen.h describes the parts. */
#define MAXIMA 1
#define BITS (MAXIMA + 2 * (N_ROWS + 1))
#define CLASSES (BITS + 1)
#define TABLES (CLASSES + ROW * 3 / 8)

static bool
has_form(size_t form)
{
    return kvt__cachegen_forms()[form];
}

static bool
decode_by(size_t form, const unsigned char *bytes, size_t n, unsigned char *plane)
{
    return kvt__cachegen_decode(kvt__cachegen_forms()[form], &shape, bytes, n, plane);
}

static int
setup(void **state)
{
    static struct fixture f;

    f = fixture_for(&kvt__codec_cachegen, &shape);
    put_element(shape.element, INFINITY, f.plane + 2 * (5 * ROW + 7)); /* a raw token */
    f.n = kvt__codec_cachegen.encode(&shape, f.plane, f.encoded);
    assert_int_equal(f.encoded[0], 1);
    assert_int_equal(f.encoded[BITS], 3);
    *state = &f;
    return 0;
}

static void
bytes_behind_the_end_are_found(void **state)
{
    struct fixture *f = *state;

    for (size_t n = 1; n < 100; n++)
        assert_false(decodes(f, f->encoded, f->n + n));
}

/* A changed maximum is valid if the number is; all other parts must fit together. */
static void
changed_bits_stay_in_bounds(void **state)
{
    struct fixture *f = *state;

    for (size_t at = 0; at < f->n; at += at < TABLES + 600 ? 1 : 5)
        for (int bit = 0; bit < 8; bit++) {
            f->encoded[at] ^= (unsigned char)(1 << bit);
            decodes(f, f->encoded, f->n);
            f->encoded[at] ^= (unsigned char)(1 << bit);
        }
}

static void
changed_words_of_the_stream_are_found(void **state)
{
    struct fixture *f = *state;
    size_t n_found = 0, n = 0;

    for (size_t at = f->n - 2000; at < f->n; at += 10, n++) {
        f->encoded[at] ^= 0x10;
        n_found += !decodes(f, f->encoded, f->n);
        f->encoded[at] ^= 0x10;
    }
    assert_int_equal(n_found, n); /* no checksum, but all states must end at the least state */
}

static void
maxima_that_no_encoder_writes_are_found(void **state)
{
    static const uint32_t wrong[] = { 0x7f81, 0x7fff, 0x8000, 0xff80, 0x0001, 27 * 128 - 1 };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        uint32_t was = kvt__load_word16(f->encoded + MAXIMA + 40);

        kvt__store_word16(f->encoded + MAXIMA + 40, wrong[i]);
        assert_false(decodes(f, f->encoded, f->n));
        kvt__store_word16(f->encoded + MAXIMA + 40, was);
    }
}

static void
wrong_tables_are_found(void **state)
{
    struct fixture *f = *state;
    unsigned char first = f->encoded[TABLES], last = f->encoded[TABLES + 1];
    static const unsigned char ranges[][2] = { { 5, 4 }, { 0, 31 }, { 31, 31 }, { 255, 255 },
                                               { 0, 255 } };

    assert_true(first <= last && last <= 30);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        memcpy(f->encoded + TABLES, ranges[i], 2);
        assert_false(decodes(f, f->encoded, f->n));
    }
    f->encoded[TABLES] = first;
    f->encoded[TABLES + 1] = last;
    for (int x = 0; x < 256; x++) {
        unsigned char was = f->encoded[TABLES + 2]; /* the sum of the frequencies changes */

        f->encoded[TABLES + 2] = (unsigned char)x;
        assert_int_equal(decodes(f, f->encoded, f->n), x == was);
        f->encoded[TABLES + 2] = was;
    }
    for (int bits = 0; bits < 256; bits++) {
        f->encoded[BITS] = (unsigned char)bits;
        assert_int_equal(decodes(f, f->encoded, f->n), bits == 3);
    }
}

static void
random_bytes_stay_in_bounds(void **state)
{
    struct fixture *f = *state;
    uint64_t random = 1;

    for (int round = 0; round < 2000; round++) {
        size_t at = next_random(&random) % f->n, n = 1 + next_random(&random) % 8;
        unsigned char was[8];

        n = n < f->n - at ? n : f->n - at;
        memcpy(was, f->encoded + at, n);
        for (size_t i = 0; i < n; i++)
            f->encoded[at + i] = (unsigned char)next_random(&random);
        decodes(f, f->encoded, f->n);
        memcpy(f->encoded + at, was, n);
    }
}

static void
planes_of_other_shapes_are_never_coded(void **state)
{
    struct kvt__plane_shape other = shape;
    struct fixture *f = *state;

    other.n_layers = 0;
    assert_false(kvt__codec_cachegen.decode(&other, f->encoded, f->n, f->plane));
    other.n_layers = 32;
    other.element = KVT__ELEMENT_BYTE;
    assert_false(kvt__codec_cachegen.decode(&other, f->encoded, f->n, f->plane));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_cut_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_behind_the_end_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(every_other_first_byte_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(changed_bits_stay_in_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(changed_words_of_the_stream_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(maxima_that_no_encoder_writes_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_tables_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(random_bytes_stay_in_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(planes_of_other_shapes_are_never_coded, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
