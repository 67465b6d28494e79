/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for encoded chunks on the way to a tier, and the limit of a tier with encoded chunks. */
#include "encoded-test.h"
#include "memory-test.h"

/* Encode a chunk for a tier with run() (blocks), or for a tier with submit(), and release the
 * encoded chunk.  Return true if the chunk was encoded: for run() outside the pool, otherwise into
 * a slot of the pool. */
static bool
is_encoded_for(const struct memory *m, bool blocks)
{
    struct kvt__tier *tier = m->e.store->levels[0].tier;
    struct kvt__exec *exec = tier->exec, *other = (struct kvt__exec *)tier;
    size_t used = kvt__pool_used(m->pool);
    struct kvt__frame frame;
    struct request r;

    init_kv(&r, &m->e, KVT__TIER_PUT, 1);
    fill_kv(r.req.slot.payload, 1);
    r.req.store = m->e.store;
    tier->exec = blocks ? exec : other;
    int err = kvt__level_encode(&m->e.store->levels[0], &r.req);
    tier->exec = exec;
    free(r.memory);
    if (err) {
        assert_int_equal(err, -ENOSPC);
        assert_null(r.req.staging.payload);
        assert_null(r.req.scratch);
        return false;
    }
    assert_true(blocks == (r.req.scratch != NULL));
    if (blocks)
        assert_int_equal((uintptr_t)r.req.staging.payload % 4096, tier->phase);
    else
        assert_true(kvt__pool_used(m->pool) > 0);
    assert_int_equal(kvt__frame_parse(r.req.staging.payload, r.req.staging.bytes, false, &frame),
                     0);
    kvt__encoded_release(&r.req);
    assert_null(r.req.staging.payload);
    assert_true(kvt__pool_used(m->pool) <= used);
    return true;
}

static void
an_encoded_chunk_waits_in_the_pool_if_there_is_room(void **state)
{
    struct memory *m = *state;

    kvt__store_use_pool(m->e.store, m->pool, 0); /* no effect: all levels are naive */
    reopen(&m->e, lossless);
    assert_false(is_encoded_for(m, false));
    assert_true(is_encoded_for(m, true));
    kvt__store_use_pool(m->e.store, m->pool, 0);
    assert_true(is_encoded_for(m, false));
    assert_true(is_encoded_for(m, true));
    kvt__store_use_pool(m->e.store, m->pool, 1 << 20);
    assert_false(is_encoded_for(m, false));
    assert_true(is_encoded_for(m, true));
}

static void
on_done(struct kvt__store_req *req)
{
    (void)req;
}

static void
an_encoded_chunk_evicts_a_chunk_from_host_memory(void **state)
{
    struct memory *m = *state;

    reopen(&m->e, lossless);
    add_memory(&m->e, worker_memory(m, NULL));
    m->e.space.puts = KVT__PUTS_MEMORY;
    for (unsigned i = 0; i < 2; i++) {
        struct request r;

        request_init(&r, &m->e, KVT__TIER_PUT, i);
        free(r.memory);
        assert_true(kvt__pool_acquire(m->pool, BYTES, 0, &r.req.slot));
        r.req.on_done = on_done;
        kvt__store_submit(m->e.store, &r.req);
        assert_int_equal(r.req.error.code, 0);
        kvt__pool_release(m->pool, &r.req.slot);
    }
    size_t used = kvt__pool_used(m->pool);
    assert_true(used > 0);
    kvt__store_use_pool(m->e.store, m->pool, (1 << 20) - used);
    assert_true(is_encoded_for(m, false));
    assert_true(kvt__pool_used(m->pool) < used);
}

static void
eviction_counts_encoded_bytes(void **state)
{
    static const char *const settings[] = { "max_remote_size=0.0001", "remote_serde=kv4", NULL };
    struct env *e = *state;

    reopen(e, settings);
    for (unsigned i = 0; i < 60; i++)
        assert_int_equal(put_kv(e, i), 0);
    assert_int_equal(used(e), disk_bytes(e));
    assert_true(totals_of(e).n_entries > 13); /* more than naive chunks */
    assert_true(totals_of(e).n_entries < 60);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        MEMORY_TEST(an_encoded_chunk_waits_in_the_pool_if_there_is_room),
        MEMORY_TEST(an_encoded_chunk_evicts_a_chunk_from_host_memory),
        TEST(eviction_counts_encoded_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
