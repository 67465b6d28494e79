/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoded planes that are cut, extended or changed: no form accesses memory outside of the buffers
 * (the address sanitizer watches), and all forms agree whether a plane can be decoded. */
#include "codec-test.h"

#include "codec/lossless.h"

static struct kvt__plane_shape shape = { .element = KVT__ELEMENT_F16, .row = 80,
                                         .n = 80 * 70 + 3 };

struct fixture {
    unsigned char *encoded, *plane, *other;
    size_t n;
};

static int
setup(void **state)
{
    static struct fixture f;

    f = (struct fixture){ malloc(kvt__codec_lossless.room(&shape)), malloc(plane_bytes(&shape)),
                          malloc(plane_bytes(&shape)), 0 };
    fill_plane(&shape, 9, f.plane);
    f.n = kvt__codec_lossless.encode(&shape, f.plane, f.encoded);
    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    free(f->encoded);
    free(f->plane);
    free(f->other);
    return 0;
}

/* Decode n bytes by each form, from a buffer without a byte to spare.  All forms must agree. */
static bool
decodes(struct fixture *f, const unsigned char *bytes, size_t n)
{
    unsigned char *exact = exact_copy(bytes, n);
    bool is_plane = false, first = true;

    for (const struct kvt__lossless_form *const *form = kvt__lossless_forms(); *form; form++) {
        bool result = kvt__lossless_decode(*form, &shape, exact, n, first ? f->plane : f->other);

        if (!first) {
            assert_int_equal(result, is_plane);
            if (result)
                assert_memory_equal(f->other, f->plane, plane_bytes(&shape));
        }
        is_plane = result;
        first = false;
    }
    free(exact);
    return is_plane;
}

static void
every_cut_is_found(void **state)
{
    struct fixture *f = *state;

    for (size_t n = 0; n < f->n; n++)
        assert_false(decodes(f, f->encoded, n));
    assert_true(decodes(f, f->encoded, f->n));
}

static void
bytes_behind_the_end_are_found(void **state)
{
    struct fixture *f = *state;

    f->encoded[f->n] = 1; /* room() is larger */
    assert_false(decodes(f, f->encoded, f->n + 1));
}

static void
every_other_first_byte_is_found(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(f->encoded[0], 1);
    for (int first = 0; first < 256; first++) {
        f->encoded[0] = (unsigned char)first;
        assert_int_equal(decodes(f, f->encoded, f->n), first == 1);
    }
}

/* Changed codes change the number of escapes; changed mantissas are valid. */
static void
changed_bytes_stay_in_bounds(void **state)
{
    struct fixture *f = *state;
    uint64_t random = 1;

    for (int round = 0; round < 2000; round++) {
        size_t at = next_random(&random) % f->n;
        unsigned char was = f->encoded[at];

        f->encoded[at] ^= (unsigned char)(1 + next_random(&random) % 255);
        decodes(f, f->encoded, f->n);
        f->encoded[at] = was;
    }
}

static void
a_plane_of_bytes_is_never_coded(void **state)
{
    struct kvt__plane_shape bytes = { .element = KVT__ELEMENT_BYTE, .row = 1, .n = shape.n };
    struct fixture *f = *state;

    assert_false(kvt__codec_lossless.decode(&bytes, f->encoded, f->n, f->plane));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_cut_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_behind_the_end_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(every_other_first_byte_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(changed_bytes_stay_in_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(a_plane_of_bytes_is_never_coded, setup, teardown),
    };

    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    shape.is_transposed = true;
    return n_failed + cmocka_run_group_tests(tests, NULL, NULL);
}
