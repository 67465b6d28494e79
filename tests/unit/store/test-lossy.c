/* SPDX-License-Identifier: Apache-2.0
 *
 * Lossy encodings: a lossy chunk and its names never serve an exact store. */
#include <math.h>

#include "encoded-test.h"

static uint16_t
get16(const unsigned char *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static void
a_lossy_chunk_is_near_the_original(void **state)
{
    unsigned char expected[BYTES], actual[BYTES];
    struct env *e = *state;

    reopen(e, kv8);
    assert_int_equal(put_kv(e, 1), 0);
    assert_true(is_encoded(e, 1, "kv8"));
    assert_int_equal(get_bytes(e, 1, actual), 0);
    fill_kv(expected, 1);
    assert_memory_not_equal(actual, expected, BYTES);
    for (size_t i = 0; i < BYTES / 2; i++) {
        uint32_t a = (uint32_t)get16(actual + 2 * i) << 16;
        uint32_t b = (uint32_t)get16(expected + 2 * i) << 16;
        float x, y;

        memcpy(&x, &a, sizeof x);
        memcpy(&y, &b, sizeof y);
        assert_true(fabsf(x - y) < 0.05f);
    }
}

static void
an_exact_store_never_serves_a_lossy_chunk(void **state)
{
    struct env *e = *state;

    reopen(e, kv8);
    assert_int_equal(put_kv(e, 1), 0);
    assert_int_equal(put_bytes(e, 2, fill_noise), 0); /* naive, by a lossy store */
    reopen(e, lossless);
    assert_false(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), -ENOENT);
    assert_int_equal(probe_kv(e, 1), -ENOENT);
    assert_false(find_kv(e, 2));
    assert_int_equal(get_kv(e, 2), -ENOENT);
    assert_int_equal(put_kv(e, 1), 0);
    assert_true(is_encoded(e, 1, "kv8")); /* both chunks exist */
    assert_int_equal(get_kv(e, 1), 0);
}

static int
run_partial(const struct env *e, enum kvt__tier_op_kind op, unsigned i)
{
    struct request r;

    init_kv(&r, e, op, i);
    r.req.is_full = false;
    r.req.tokens = 25;
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static void
a_lossy_store_prefers_an_exact_chunk_to_a_new_lossy_chunk(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, kv8);
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    assert_int_equal(put_kv(e, 1), -EEXIST);
    assert_false(is_encoded(e, 1, "kv8"));
}

static void
a_store_that_accepts_a_lossy_encoding_reads_it(void **state)
{
    unsigned char actual[BYTES];
    struct env *e = *state;

    reopen(e, kv8);
    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, accepts_kv8);
    assert_int_equal(get_bytes(e, 1, actual), 0);
    assert_int_equal(put_kv(e, 1), 0); /* the new chunk has more bits than the lossy chunk */
    assert_true(is_encoded(e, 1, "inexact-naive"));
}

/* LMCache reads no identities, and a file without header can lose its identity. */
static void
a_lossy_store_writes_no_object_under_lmcaches_names(void **state)
{
    static const char *const *const lossy[] = { kv8, accepts_kv8, lossless_accepts_kv8 };
    struct env *e = *state;

    for (unsigned i = 0; i < sizeof lossy / sizeof *lossy; i++) {
        reopen(e, lossy[i]);
        assert_int_equal(put_bytes(e, 3 * i, fill_noise), 0);
        assert_int_equal(put_kv(e, 3 * i + 1), 0);
        assert_int_equal(run_partial(e, KVT__TIER_PUT, 3 * i + 2), 0);
        assert_true(is_encoded(e, 3 * i, "inexact-naive"));
        for (unsigned k = 3 * i; k < 3 * i + 3; k++) {
            assert_false(file_there(e, k));
            assert_false(is_encoded(e, k, "lossless"));
        }
        assert_int_equal(run_partial(e, KVT__TIER_GET, 3 * i + 2), 0);
    }
    assert_true(is_encoded(e, 7, "inexact-lossless"));
    assert_int_equal(get_kv(e, 7), 0);
}

/* An overwriting PUT does not ask whether another level of the storage has the chunk. */
static void
a_lossy_store_overwrites_no_exact_object(void **state)
{
    struct env *e = *state;
    struct request r;

    reopen(e, kv8);
    init_kv(&r, e, KVT__TIER_PUT, 1);
    fill_noise(r.req.slot.payload, 1);
    r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
    r.req.overwrite = true;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    free(r.memory);
    assert_true(is_encoded(e, 1, "inexact-naive"));
    assert_false(file_there(e, 1));
}

/* Another host, or a process with an older index, does not know the exact object. */
static void
a_lossy_store_without_an_index_leaves_exact_objects_alone(void **state)
{
    static const char *const *const exact[] = { naive, lossless };
    static const char *const *const lossy[] = { accepts_kv8, lossless_accepts_kv8 };
    struct env *e = *state;

    for (unsigned i = 0; i < 2; i++) {
        reopen(e, exact[i]);
        assert_int_equal(put_kv(e, i), 0);
        close_and_lose_index(e);
        e->store = open_over(e, "", lossy[i]);
        assert_int_equal(put_kv(e, i), 0);
        assert_true(is_encoded(e, i, i ? "inexact-lossless" : "inexact-naive"));
        reopen(e, exact[i]);
        assert_int_equal(probe_kv(e, i), 0);
        assert_int_equal(get_kv(e, i), 0);
    }
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_lossy_chunk_is_near_the_original),
        TEST(an_exact_store_never_serves_a_lossy_chunk),
        TEST(a_lossy_store_prefers_an_exact_chunk_to_a_new_lossy_chunk),
        TEST(a_store_that_accepts_a_lossy_encoding_reads_it),
        TEST(a_lossy_store_writes_no_object_under_lmcaches_names),
        TEST(a_lossy_store_overwrites_no_exact_object),
        TEST(a_lossy_store_without_an_index_leaves_exact_objects_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
