/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory: chunks are shared and not copied, chunks in use and leased chunks stay, and no
 * request returns a corrupt chunk. */
#include <glob.h>
#include <pthread.h>

#include "memory-test.h"
#include "own-shm.h"
#include "table/layout.h"

static struct kvt__slot
acquire(const struct memory *m)
{
    struct kvt__slot slot;

    assert_true(kvt__pool_acquire(m->pool, BYTES, 0, &slot));
    return slot;
}

static void
request_ended(struct kvt__store_req *req)
{
    (void)req;
}

/* Put a chunk in host memory alone, from a slot that the caller releases. */
static int
put_slot(const struct memory *m, unsigned i, struct kvt__slot slot)
{
    struct kvt__space space = m->e.space;
    struct kvt__store_req req = {
        .op = KVT__TIER_PUT, .space = &space, .id = id_of(i), .hash.bits = { i },
        .tokens = 256, .is_full = true, .shape = shape_of_all, .slot = slot,
        .bytes = slot.bytes, .on_done = request_ended };

    space.puts = KVT__PUTS_MEMORY;
    kvt__store_submit(m->e.store, &req);
    if (req.error.code == -ENOSPC && !req.error.why[0])
        fail_msg("no sentence");
    return req.error.code;
}

static int
put_in_memory(const struct memory *m, unsigned i)
{
    struct kvt__slot slot;

    if (!kvt__pool_acquire(m->pool, BYTES, 0, &slot))
        return -ENOMEM;
    fill(slot.payload, i);
    int err = put_slot(m, i, slot);
    kvt__pool_release(m->pool, &slot);
    return err;
}

/* Borrow a chunk.  If true, the caller releases the slot of the request. */
static bool
borrow(const struct memory *m, unsigned i, struct kvt__store_req *req)
{
    *req = (struct kvt__store_req){ .op = KVT__TIER_GET, .space = &m->e.space,
                                    .id = id_of(i), .hash.bits = { i }, .bytes = BYTES };
    return kvt__store_acquire_chunk(m->e.store, req);
}

static bool
holds(const struct kvt__slot *slot, unsigned i)
{
    for (size_t at = 0; at < BYTES; at++)
        if (slot->payload[at] != byte_at(i, at))
            return false;
    return true;
}

/* Return true if host memory has the chunk, with the right bytes. */
static bool
has(const struct memory *m, unsigned i)
{
    struct kvt__store_req req;

    if (!borrow(m, i, &req))
        return false;
    assert_true(holds(&req.slot, i));
    kvt__pool_release(m->pool, &req.slot);
    return true;
}

static bool
is_in_memory(const struct env *e, unsigned i)
{
    struct kvt__chunk_key key = key_of(e, i);

    return kvt__store_find(e->store, &key, KVT__IN_MEMORY);
}

static bool
lease_in_memory(const struct env *e, unsigned i)
{
    struct kvt__chunk_key key = key_of(e, i);
    int64_t expires_ns = INT64_MAX;

    return kvt__store_lease(e->store, &key, KVT__IN_MEMORY, kvt__now_ns() + 600 * KVT__NS_PER_S,
                            &last_lease, &expires_ns) == KVT__LEVEL_MEMORY;
}

static bool from_memory; /* result of the last get_into() */

/* GET into a slot of the pool; early: a prefetch. */
static int
get_into(const struct memory *m, unsigned i, bool is_prefetch, struct kvt__slot slot,
         bool *verified)
{
    struct kvt__store_req req = {
        .op = KVT__TIER_GET, .space = &m->e.space, .id = id_of(i), .hash.bits = { i },
        .tokens = 256, .is_full = true, .shape = shape_of_all, .slot = slot, .bytes = BYTES,
        .is_prefetch = is_prefetch };

    memset(slot.payload, 0, BYTES);
    kvt__store_run(m->e.store, &req);
    *verified = req.verified;
    from_memory = req.from_memory;
    return req.error.code;
}

/* ------------------------------------------------------------------- slots */

static void
a_borrowed_slot_is_the_slot_that_was_put(void **state)
{
    struct memory *m = *state;
    struct kvt__slot slot = acquire(m);
    struct kvt__store_req req;

    fill(slot.payload, 1);
    assert_int_equal(put_slot(m, 1, slot), 0);
    assert_int_equal(put_slot(m, 1, slot), -EEXIST);
    assert_true(borrow(m, 1, &req));
    assert_ptr_equal(req.slot.payload, slot.payload);
    assert_int_equal(req.slot.bytes, BYTES);
    assert_true(req.verified);
    kvt__store_run(m->e.store, &req); /* ends without a read */
    assert_int_equal(req.error.code, 0);
    kvt__pool_release(m->pool, &req.slot);
    kvt__pool_release(m->pool, &slot);
    assert_int_equal(kvt__pool_used(m->pool), kvt__pool_footprint(m->pool, BYTES));
    assert_false(borrow(m, 2, &req));
}

static void
a_chunk_in_use_is_not_evicted_and_later_is(void **state)
{
    struct memory *m = *state;
    struct kvt__slot slot = acquire(m);
    struct kvt__store_req req;

    assert_int_equal(put_slot(m, 1, slot), 0);
    assert_false(kvt__store_evict_memory(m->e.store, 1));
    kvt__pool_release(m->pool, &slot);
    assert_true(borrow(m, 1, &req));
    assert_false(kvt__store_evict_memory(m->e.store, 1));
    kvt__pool_release(m->pool, &req.slot);
    assert_true(kvt__store_evict_memory(m->e.store, 1));
    assert_false(borrow(m, 1, &req));
    assert_false(is_in_memory(&m->e, 1));
    assert_int_equal(kvt__pool_used(m->pool), 0);
}

static void
a_full_memory_evicts_the_least_recently_used_chunks(void **state)
{
    struct memory *m = *state;
    struct kvt__chunk_key first = key_of(&m->e, 0);

    for (unsigned i = 0; i < N_CHUNKS; i++) {
        assert_int_equal(put_in_memory(m, i), 0);
        wait_for_tick();
    }
    (void)kvt__store_touch(m->e.store, &first, 0);
    wait_for_tick();
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put_in_memory(m, 100 + i), 0);
    for (unsigned i = 0; i < N_CHUNKS; i++)
        assert_int_equal(has(m, i), i == 0 || i > 3);
    for (unsigned i = 0; i < 3; i++)
        assert_true(has(m, 100 + i));
    assert_int_equal(m->e.counters.value[KVT__N_evicted_chunks], 3);
    assert_int_equal(kvt__pool_used(m->pool),
                     N_CHUNKS * kvt__pool_footprint(m->pool, BYTES));
}

static void
a_leased_chunk_stays_until_the_lease_ends(void **state)
{
    struct memory *m = *state;
    struct kvt__lease leases[N_CHUNKS];

    for (unsigned i = 0; i < N_CHUNKS; i++) {
        assert_int_equal(put_in_memory(m, i), 0);
        assert_true(lease_in_memory(&m->e, i));
        leases[i] = last_lease;
    }
    assert_false(kvt__store_evict_memory(m->e.store, 1));
    assert_int_equal(put_in_memory(m, 100), -ENOSPC);
    for (unsigned i = 0; i < N_CHUNKS; i++)
        assert_true(has(m, i));
    kvt__store_unlease(m->e.store, &m->e.space, &leases[3]);
    assert_int_equal(put_in_memory(m, 100), 0);
    assert_false(has(m, 3));
}

static void
a_chunk_larger_than_the_memory_evicts_nothing(void **state)
{
    struct memory *m = *state;
    struct kvt__slot slot;

    for (unsigned i = 0; i < N_CHUNKS; i++)
        assert_int_equal(put_in_memory(m, i), 0);
    assert_true(kvt__pool_acquire(m->pool,
                                  N_CHUNKS * kvt__pool_footprint(m->pool, BYTES), 0, &slot));
    assert_int_equal(put_slot(m, 100, slot), -ENOSPC);
    kvt__pool_release(m->pool, &slot);
    for (unsigned i = 0; i < N_CHUNKS; i++)
        assert_true(has(m, i));
}

static void *
run_requests(void *arg)
{
    struct memory *m = arg;
    struct kvt__store_req req;
    long n_bad = 0;

    for (unsigned i = 0; i < 2000; i++) {
        unsigned number = i * 7 % (2 * N_CHUNKS);
        int err;

        if (i % 3 == 0 && (err = put_in_memory(m, number)))
            n_bad += err != -EEXIST && err != -ENOSPC && err != -ENOMEM;
        else if (i % 9 == 1)
            (void)kvt__store_evict_memory(m->e.store, 1);
        else if (borrow(m, number, &req)) {
            n_bad += !holds(&req.slot, number);
            kvt__pool_release(m->pool, &req.slot);
        }
    }
    return (void *)n_bad;
}

static void
threads_see_whole_chunks_and_leak_no_slot(void **state)
{
    pthread_t threads[4];
    void *n_bad;

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_requests, *state), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &n_bad);
        assert_ptr_equal(n_bad, NULL);
    }
}

/* ------------------------------------------------------------------- checksums */

/* Read a chunk of storage ahead: the first load verifies the payload. */
static void
read_ahead(struct memory *m, unsigned i)
{
    struct kvt__slot slot = acquire(m);
    bool verified;

    assert_int_equal(put(&m->e, i), 0);
    assert_int_equal(get_into(m, i, true, slot, &verified), 0);
    assert_false(verified);
    kvt__pool_release(m->pool, &slot);
    assert_true(is_in_memory(&m->e, i));
}

static void
the_first_load_verifies_a_chunk_that_was_read_ahead(void **state)
{
    struct memory *m = *state;
    struct kvt__store_req req;

    read_ahead(m, 1);
    assert_true(borrow(m, 1, &req));
    assert_false(req.verified);
    kvt__store_run(m->e.store, &req);
    assert_int_equal(req.error.code, 0);
    assert_true(req.verified);
    assert_true(holds(&req.slot, 1));
    kvt__pool_release(m->pool, &req.slot);
    assert_true(borrow(m, 1, &req));
    assert_true(req.verified);
    kvt__pool_release(m->pool, &req.slot);
}

/* The chunk has a lease, and another load uses the slot. */
static void
a_damaged_chunk_leaves_memory_with_its_entry(void **state)
{
    struct memory *m = *state;
    struct kvt__store_req req, other;
    bool verified;

    read_ahead(m, 1);
    assert_true(lease_in_memory(&m->e, 1));
    assert_true(borrow(m, 1, &req) && borrow(m, 1, &other));
    req.slot.payload[BYTES / 2] ^= 1;
    kvt__store_run(m->e.store, &req);
    assert_int_equal(req.error.code, -EBADMSG);
    assert_null(req.slot.payload);
    assert_int_equal(n_warnings, 1);
    assert_false(is_in_memory(&m->e, 1));
    kvt__store_run(m->e.store, &other);
    assert_int_equal(other.error.code, -EBADMSG);
    assert_null(other.slot.payload);
    assert_int_equal(kvt__pool_used(m->pool), 0);
    struct kvt__slot slot = acquire(m);
    assert_int_equal(get_into(m, 1, false, slot, &verified), 0); /* from storage */
    assert_true(verified && holds(&slot, 1));
    kvt__pool_release(m->pool, &slot);
}

/* A slot that was acquired before another thread put the chunk into memory. */
static void
a_get_copies_a_chunk_of_memory_into_its_slot(void **state)
{
    struct memory *m = *state;
    struct kvt__slot slot = acquire(m);
    bool verified;

    assert_int_equal(put_in_memory(m, 1), 0);
    assert_int_equal(get_into(m, 1, false, slot, &verified), 0);
    assert_true(verified && from_memory && holds(&slot, 1));
    assert_false(kvt__pool_is_shared(m->pool, &slot));
    assert_int_equal(get_into(m, 2, false, slot, &verified), -ENOENT);
    kvt__pool_release(m->pool, &slot);
}

static void
a_get_reads_storage_instead_of_a_damaged_copy(void **state)
{
    struct memory *m = *state;
    struct kvt__slot slot = acquire(m);
    struct kvt__store_req req;
    bool verified;

    read_ahead(m, 1);
    assert_true(borrow(m, 1, &req));
    req.slot.payload[0] ^= 1;
    kvt__pool_release(m->pool, &req.slot);
    assert_int_equal(get_into(m, 1, false, slot, &verified), 0);
    assert_true(verified && holds(&slot, 1));
    assert_int_equal(n_warnings, 1);
    kvt__pool_release(m->pool, &slot);
    assert_true(has(m, 1)); /* the chunk in storage */
}

static void
passing_memory_keeps_only_chunks_that_were_read_ahead(void **state)
{
    struct memory *m = *state;
    struct kvt__memory_params params = worker_memory(m, NULL);
    struct kvt__slot slot = acquire(m);
    bool verified;

    kvt__store_close(m->e.store);
    m->e.store = open_over(&m->e, "", NULL);
    params.prefetched_only = true;
    add_memory(&m->e, params);
    assert_int_equal(put_in_memory(m, 1), -EEXIST);
    assert_int_equal(put(&m->e, 1), 0);
    assert_int_equal(get_into(m, 1, false, slot, &verified), 0);
    kvt__pool_release(m->pool, &slot);
    assert_false(is_in_memory(&m->e, 1));
    read_ahead(m, 2);
    assert_true(has(m, 2));
}

/* ------------------------------------------------------------------- read before a promise */

/* Other hosts use the storage, so lookups promise chunks only in host memory. */
static void
open_shared(struct memory *m)
{
    kvt__store_close(m->e.store);
    m->e.store = open_over(&m->e, "fault://shared=1/", NULL);
    add_memory(&m->e, worker_memory(m, NULL));
}

/* The name of an expected chunk can be an object of another program. */
static void
a_search_deletes_no_other_programs_object(void **state)
{
    struct memory *m = *state;
    struct request r;

    open_shared(m);
    write_foreign(&m->e, 1, NULL, BYTES - 100);
    request_init(&r, &m->e, KVT__TIER_GET, 1);
    kvt__store_enter_unread(m->e.store, &r.req);
    assert_true(find(&m->e, 1));
    kvt__store_run(m->e.store, &r.req);
    assert_true(r.req.error.code < 0);
    assert_true(file_there(&m->e, 1));
    assert_false(find(&m->e, 1));
    free(r.memory);
}

/* No other process sees the leases in a private index. */
static void
a_private_index_guarantees_nothing(void **state)
{
    struct memory *m = *state;
    struct kvt__chunk_key key = key_of(&m->e, 1);

    assert_int_equal(put(&m->e, 1), 0);
    assert_true(kvt__store_find(m->e.store, &key, KVT__GUARANTEED));
    atomic_store(&m->e.store->levels[0].reads_only, true);
    assert_false(kvt__store_find(m->e.store, &key, KVT__GUARANTEED));
    assert_true(kvt__store_find(m->e.store, &key, KVT__ANYWHERE));
    assert_true(kvt__store_can_probe(m->e.store, KVT__READ_FIRST, &m->e.space));
}

/* ------------------------------------------------------------------- processes */

static struct memory worker;
static char engine[64];

/* A scheduler's view of the memory of a worker. */
static struct env
open_scheduler(const struct memory *m)
{
    struct env e = m->e;

    e.store = open_over(&e, "", NULL);
    add_memory(&e, (struct kvt__memory_params){ .instance = engine, .sees_all_ranks = true });
    return e;
}

static void
open_worker(struct memory *m)
{
    m->e.store = open_over(&m->e, "", NULL);
    add_memory(&m->e, worker_memory(m, engine));
}

static int
worker_setup(void **state)
{
    env_init(&worker.e);
    open_memory_pool(&worker);
    snprintf(engine, sizeof engine, "test-memory-%d", (int)getpid());
    open_worker(&worker);
    *state = &worker;
    return 0;
}

static void
a_scheduler_finds_and_leases_the_chunks_of_a_worker(void **state)
{
    struct memory *m = *state;
    struct env scheduler = open_scheduler(m);
    struct kvt__lease leases[N_CHUNKS];

    for (unsigned i = 0; i < N_CHUNKS; i++) {
        assert_false(is_in_memory(&scheduler, i));
        assert_int_equal(put_in_memory(m, i), 0);
        assert_true(is_in_memory(&scheduler, i));
        assert_true(lease_in_memory(&scheduler, i));
        leases[i] = last_lease;
    }
    assert_int_equal(put_in_memory(m, 100), -ENOSPC);
    kvt__store_unlease(scheduler.store, &scheduler.space, &leases[0]);
    assert_int_equal(put_in_memory(m, 100), 0);
    assert_false(is_in_memory(&scheduler, 0));
    kvt__store_close(scheduler.store);
}

static void
the_memory_of_an_ended_worker_is_unmapped(void **state)
{
    struct memory *m = *state;
    struct env scheduler = open_scheduler(m);

    assert_int_equal(put_in_memory(m, 1), 0);
    kvt__store_refresh_liveness(scheduler.store);
    assert_true(is_in_memory(&scheduler, 1));
    kvt__store_close(m->e.store);
    kvt__store_refresh_liveness(scheduler.store);
    assert_false(is_in_memory(&scheduler, 1));
    assert_false(lease_in_memory(&scheduler, 1));
    open_worker(m); /* another worker of the rank */
    kvt__store_refresh_liveness(scheduler.store);
    assert_false(is_in_memory(&scheduler, 1));
    assert_int_equal(put_in_memory(m, 2), 0);
    assert_true(is_in_memory(&scheduler, 2));
    kvt__store_close(scheduler.store);
}

/* Another program overwrote the index: the pool gets its memory back. */
static void
slots_of_a_garbage_index_are_released(void **state)
{
    static const uint32_t replaced = TB_REPLACED;
    struct memory *m = *state;
    char pattern[80];
    glob_t found;

    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(put_in_memory(m, i), 0);
    snprintf(pattern, sizeof pattern, "/dev/shm/kvtier-%u/*/table", (unsigned)geteuid());
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    int fd = open(found.gl_pathv[0], O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, &replaced, sizeof replaced,
                            offsetof(struct tb_header, use)), sizeof replaced);
    close(fd);
    globfree(&found);
    assert_int_equal(put_in_memory(m, 4), -EIO);
    assert_int_equal(kvt__pool_used(m->pool), 0);
    assert_false(is_in_memory(&m->e, 1));
}

#define WORKER(fn) cmocka_unit_test_setup_teardown(fn, worker_setup, memory_teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        MEMORY_TEST(a_borrowed_slot_is_the_slot_that_was_put),
        MEMORY_TEST(a_chunk_in_use_is_not_evicted_and_later_is),
        MEMORY_TEST(a_full_memory_evicts_the_least_recently_used_chunks),
        MEMORY_TEST(a_leased_chunk_stays_until_the_lease_ends),
        MEMORY_TEST(a_chunk_larger_than_the_memory_evicts_nothing),
        MEMORY_TEST(threads_see_whole_chunks_and_leak_no_slot),
        MEMORY_TEST(the_first_load_verifies_a_chunk_that_was_read_ahead),
        MEMORY_TEST(a_damaged_chunk_leaves_memory_with_its_entry),
        MEMORY_TEST(a_get_copies_a_chunk_of_memory_into_its_slot),
        MEMORY_TEST(a_get_reads_storage_instead_of_a_damaged_copy),
        MEMORY_TEST(passing_memory_keeps_only_chunks_that_were_read_ahead),
        MEMORY_TEST(a_search_deletes_no_other_programs_object),
        MEMORY_TEST(a_private_index_guarantees_nothing),
        WORKER(a_scheduler_finds_and_leases_the_chunks_of_a_worker),
        WORKER(the_memory_of_an_ended_worker_is_unmapped),
        WORKER(slots_of_a_garbage_index_are_released),
    };

    (void)own_shm(NULL); /* workers of other programs would remove the directories */
    return cmocka_run_group_tests_name("host memory", tests, NULL, NULL);
}
