/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoded planes that are cut, extended or changed: no form accesses memory outside of the buffers
 * (the address sanitizer watches), and all forms agree whether a plane can be decoded. */
#include "damage-test.h"

#include "codec/lossless.h"

static struct kvt__plane_shape shape = { .element = KVT__ELEMENT_F16, .row = 80,
                                         .n = 80 * 70 + 3 };

static bool
has_form(size_t form)
{
    return kvt__lossless_forms()[form];
}

static bool
decode_by(size_t form, const unsigned char *bytes, size_t n, unsigned char *plane)
{
    return kvt__lossless_decode(kvt__lossless_forms()[form], &shape, bytes, n, plane);
}

static int
setup(void **state)
{
    static struct fixture f;

    f = fixture_for(&kvt__codec_lossless, &shape);
    f.n = kvt__codec_lossless.encode(&shape, f.plane, f.encoded);
    *state = &f;
    return 0;
}

static void
bytes_behind_the_end_are_found(void **state)
{
    struct fixture *f = *state;

    f->encoded[f->n] = 1; /* room() is larger */
    assert_false(decodes(f, f->encoded, f->n + 1));
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
