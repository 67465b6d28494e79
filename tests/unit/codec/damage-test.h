/* SPDX-License-Identifier: Apache-2.0
 *
 * An encoded plane, and tests of damaged planes for each codec.  The including source defines
 * has_form() and decode_by(). */
#ifndef KVT_DAMAGE_TEST_H
#define KVT_DAMAGE_TEST_H

#include "codec-test.h"

struct fixture {
    unsigned char *encoded, *plane, *other;
    size_t n, plane_bytes; /* n: bytes of the encoded plane */
};

/* Return true if the codec has a form of this number.  Form 0 is the fastest. */
static bool has_form(size_t form);
static bool decode_by(size_t form, const unsigned char *bytes, size_t n, unsigned char *plane);

static struct fixture
fixture_for(const struct kvt__codec *codec, const struct kvt__plane_shape *shape)
{
    size_t bytes = plane_bytes(shape);
    struct fixture f = { malloc(codec->room(shape)), malloc(bytes), malloc(bytes),
                         .plane_bytes = bytes };

    fill_plane(shape, 9, f.plane);
    return f;
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
    bool is_plane = decode_by(0, exact, n, f->plane);

    for (size_t form = 1; has_form(form); form++) {
        assert_int_equal(decode_by(form, exact, n, f->other), is_plane);
        if (is_plane)
            assert_memory_equal(f->other, f->plane, f->plane_bytes);
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
every_other_first_byte_is_found(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(f->encoded[0], 1);
    for (int first = 0; first < 256; first++) {
        f->encoded[0] = (unsigned char)first;
        assert_int_equal(decodes(f, f->encoded, f->n), first == 1);
    }
}

#endif
