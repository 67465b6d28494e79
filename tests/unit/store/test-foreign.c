/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks without identity, as LMCache writes, in files and in host memory; and requests that must
 * not use such chunks. */
#include "memory-test.h"

static void
write_right(const struct env *e, unsigned i)
{
    write_foreign(e, i, &shape_of_all, BYTES);
}

/* GET a chunk into a slot, and return the result. */
static int
get_into(const struct env *e, unsigned i, bool needs_id, struct kvt__slot slot,
         bool *verified)
{
    struct request r;

    request_init(&r, e, KVT__TIER_GET, i);
    r.req.slot = slot.payload ? slot : r.req.slot;
    r.req.needs_id = needs_id;
    kvt__store_run(e->store, &r.req);
    if (!r.req.error.code && !request_holds(&r, i))
        fail_msg("chunk %u: wrong bytes", i);
    *verified = r.req.verified;
    free(r.memory);
    return r.req.error.code;
}

static const struct kvt__slot none;

/* PUT a chunk with needs_id: such requests use no chunk without identity. */
static int
put_own_only(const struct env *e, unsigned i)
{
    struct request r;

    request_init(&r, e, KVT__TIER_PUT, i);
    r.req.needs_id = true;
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static void
a_file_that_was_written_over_is_a_miss_and_stays(void **state)
{
    struct env *e = *state;
    bool verified;

    assert_int_equal(put(e, 1), 0);
    write_right(e, 1);
    assert_int_equal(get_into(e, 1, true, none, &verified), -ENOENT);
    assert_false(find(e, 1));
    assert_true(file_there(e, 1));
    check_counted(e, 1, 1);
    assert_int_equal(n_warnings, 0);
    assert_int_equal(probe(e, 1), 0); /* other requests take the file */
    check_counted(e, 1, 0);
    assert_int_equal(get_into(e, 1, false, none, &verified), 0);
    assert_false(verified);
    assert_int_equal(get_into(e, 1, true, none, &verified), -ENOENT);
    assert_int_equal(put(e, 1), -EEXIST);
    assert_int_equal(put_own_only(e, 1), 0);
    assert_int_equal(get_into(e, 1, true, none, &verified), 0);
    assert_true(verified);
    check_counted(e, 1, 0);
}

static void
a_chunk_that_lmcache_serialised_is_a_miss_and_stays(void **state)
{
    static const struct kvt__shape pickles[] = {
        { 5, 0, { BYTES / 3 } }, { 4, 0, { BYTES / 3 } }, { 5, 0, { BYTES } } };
    struct env *e = *state;
    bool verified;

    for (unsigned i = 0; i < 3; i++) {
        write_foreign(e, i, &pickles[i], pickles[i].dims[0]);
        assert_int_equal(probe(e, i), -ENOENT);
        assert_false(find(e, i));
        assert_int_equal(get_into(e, i, false, none, &verified), -ENOENT);
        assert_true(file_there(e, i));
    }
    assert_int_equal(n_warnings, 1);
    assert_int_equal(put(e, 0), 0); /* a new chunk replaces the file */
    assert_int_equal(get_into(e, 0, false, none, &verified), 0);
    assert_true(verified);
}

static void
a_leased_file_without_identity_is_not_replaced(void **state)
{
    struct env *e = *state;
    bool verified;

    write_right(e, 1);
    assert_int_equal(probe(e, 1), 0);
    assert_true(lease(e, 1));
    assert_int_equal(put_own_only(e, 1), -EEXIST);
    assert_int_equal(get_into(e, 1, false, none, &verified), 0);
    assert_false(verified);
    kvt__store_unlease(e->store, &e->space, &last_lease);
    assert_int_equal(put_own_only(e, 1), 0);
    check_counted(e, 1, 0);
}

/* A chunk of other weights takes the name of a file of LMCache. */
static void
a_put_replaces_a_file_without_identity(void **state)
{
    struct env *e = *state;
    struct kvt__chunk_key key = key_of(e, 500);
    struct request other;

    write_right(e, 1);
    assert_int_equal(probe(e, 1), 0);
    request_init(&other, e, KVT__TIER_PUT, 1);
    other.req.id = id_of(500);
    kvt__store_run(e->store, &other.req);
    assert_int_equal(other.req.error.code, 0);
    free(other.memory);
    key.hash.bits[0] = 1;
    assert_false(find(e, 1));
    assert_true(kvt__store_find(e->store, &key, KVT__ANYWHERE));
    check_counted(e, 1, 0);
    assert_int_equal(kvt__level_evict(&e->store->levels[0], NULL, 1), TAKEN);
    assert_false(kvt__store_find(e->store, &key, KVT__ANYWHERE));
    assert_false(file_there(e, 1));
}

/* ------------------------------------------------------------------------- shapes */

/* Shapes of chunks of equal size and name. */
static const struct kvt__shape others[] = {
    { 1, 3, { 1, 2, 1, BYTES / 4 } },  /* layers and tokens */
    { 1, 3, { 2, 1, BYTES / 4, 1 } },
    { 1, 3, { 2, 2, 1, BYTES / 8 } },
    { 1, 3, { 1, 1, 1, BYTES / 2 } },
    { 1, 3, { BYTES / 2 } },
    { 1, 2, { 2, 1, 1, BYTES / 4 } },  /* half */
    { 1, 0, { 2, 1, 1, BYTES / 4 } },
    { 6, 3, { 2, 1, 1, BYTES / 4 } },  /* KV_MLA_FMT */
    { 2, 3, { 2, 1, 1, BYTES / 4 } },
    { 0, 3, { 2, 1, 1, BYTES / 4 } },
    { 4, 6, { BYTES } },
    { UINT32_MAX, UINT32_MAX, { UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX } },
};
#define N_OTHERS (sizeof others / sizeof *others)

static void
a_file_of_another_geometry_is_not_found_and_stays(void **state)
{
    struct env *e = *state;
    bool verified;

    for (unsigned i = 0; i < N_OTHERS; i++) {
        write_foreign(e, i, &others[i], BYTES);
        assert_int_equal(probe(e, i), -ENOENT);
        assert_false(find(e, i));
        assert_true(file_there(e, i));
    }
    assert_int_equal(n_warnings, 1); /* for all of them */
    check_counted(e, N_OTHERS, N_OTHERS);
    write_right(e, 0);
    assert_int_equal(probe(e, 0), 0);
    assert_int_equal(get_into(e, 0, false, none, &verified), 0);
    assert_false(verified);
}

/* Another program replaces the file after a probe. */
static void
a_file_of_another_geometry_is_not_read_and_stays(void **state)
{
    struct env *e = *state;
    bool verified;

    for (unsigned i = 0; i < N_OTHERS; i++) {
        assert_int_equal(put(e, i), 0);
        write_foreign(e, i, &others[i], BYTES);
        assert_int_equal(get_into(e, i, false, none, &verified), -ENOENT);
        assert_false(find(e, i));
        assert_true(file_there(e, i));
        check_counted(e, i + 1, 1);
        assert_int_equal(put(e, i), 0);
        assert_int_equal(get_into(e, i, false, none, &verified), 0);
        assert_true(verified);
    }
}

static void
half_has_two_numbers(void **state)
{
    const struct kvt__shape wanted = { 1, 2, { 2, 1, 1, BYTES / 4 } };
    struct env *e = *state;

    for (uint32_t dtype = 0; dtype < 9; dtype++) {
        struct kvt__shape told = wanted;
        struct request r;

        told.dtype = dtype;
        write_foreign(e, dtype, &told, BYTES);
        request_init(&r, e, KVT__TIER_PROBE, dtype);
        r.req.shape = wanted;
        kvt__store_run(e->store, &r.req);
        assert_int_equal(r.req.error.code, dtype == 1 || dtype == 2 ? 0 : -ENOENT);
        free(r.memory);
    }
}

/* ------------------------------------------------------------------- host memory */

static int
borrow(struct memory *m, unsigned i, bool needs_id, bool *verified)
{
    struct kvt__store_req req = { .op = KVT__TIER_GET, .space = &m->e.space,
                                  .id = id_of(i), .bytes = BYTES, .needs_id = needs_id };

    if (!kvt__store_acquire_chunk(m->e.store, &req))
        return -ENOENT;
    *verified = req.verified;
    kvt__pool_release(m->pool, &req.slot);
    return 0;
}

/* GET by way of a slot of the pool, which may stay in memory. */
static int
get_by_pool(struct memory *m, unsigned i, bool needs_id, bool *verified)
{
    struct kvt__slot slot;

    assert_true(kvt__pool_acquire(m->pool, BYTES, 0, &slot));
    int err = get_into(&m->e, i, needs_id, slot, verified);
    kvt__pool_release(m->pool, &slot);
    return err;
}

static void
a_chunk_in_memory_without_identity_is_a_miss(void **state)
{
    struct memory *m = *state;
    struct env *e = &m->e;
    struct kvt__chunk_key key = key_of(e, 1);
    bool verified;

    write_right(e, 1);
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(get_by_pool(m, 1, false, &verified), 0);
    assert_int_equal(borrow(m, 1, false, &verified), 0);
    assert_false(verified);
    assert_int_equal(get_by_pool(m, 1, false, &verified), 0);
    assert_false(verified);
    assert_int_equal(borrow(m, 1, true, &verified), -ENOENT);
    assert_int_equal(get_by_pool(m, 1, true, &verified), -ENOENT);
    key.needs_id = true;
    assert_false(kvt__store_find(e->store, &key, KVT__ANYWHERE));
    assert_true(find(e, 1)); /* other requests still take the chunk */
    assert_int_equal(borrow(m, 1, false, &verified), 0);
    assert_true(file_there(e, 1));
}

/* A GET with needs_id does not use the chunk in memory, and finds kvtier's chunk in the file. */
static void
the_chunk_in_storage_replaces_the_foreign_chunk_in_memory(void **state)
{
    struct memory *m = *state;
    struct env *e = &m->e;
    struct env other;
    bool verified;

    write_right(e, 1);
    assert_int_equal(probe(e, 1), 0);
    assert_int_equal(get_by_pool(m, 1, false, &verified), 0);
    memcpy(&other, e, sizeof other);
    other.store = open_over(&other, "", NULL);
    struct request r;
    request_init(&r, &other, KVT__TIER_PUT, 1);
    r.req.overwrite = true;
    kvt__store_run(other.store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    free(r.memory);
    kvt__store_close(other.store);
    assert_int_equal(get_by_pool(m, 1, true, &verified), 0);
    assert_true(verified);
    assert_int_equal(borrow(m, 1, true, &verified), 0);
    assert_true(verified);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_that_was_written_over_is_a_miss_and_stays),
        TEST(a_file_of_another_geometry_is_not_found_and_stays),
        TEST(a_file_of_another_geometry_is_not_read_and_stays),
        TEST(half_has_two_numbers),
        TEST(a_chunk_that_lmcache_serialised_is_a_miss_and_stays),
        TEST(a_leased_file_without_identity_is_not_replaced),
        TEST(a_put_replaces_a_file_without_identity),
        MEMORY_TEST(a_chunk_in_memory_without_identity_is_a_miss),
        MEMORY_TEST(the_chunk_in_storage_replaces_the_foreign_chunk_in_memory),
    };

    return cmocka_run_group_tests_name("chunks without identity", tests, NULL, NULL);
}
