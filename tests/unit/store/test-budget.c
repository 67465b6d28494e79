/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits: the chunks that are evicted, and the bytes on disk, which never exceed the limit. */
#include "table-file.h"

/* Room for 13 chunks of TAKEN bytes. */
#define LIMIT ((uint64_t)(0.0001 * (1 << 30)))
#define N_FIT ((unsigned)(LIMIT / TAKEN))

static void
check_disk(const struct env *e)
{
    assert_in_range(disk_bytes(e), 0, LIMIT);
    assert_in_range(used(e), disk_bytes(e), LIMIT);
}

static void
the_directory_never_outgrows_the_limit(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < 5 * N_FIT; i++) {
        assert_int_equal(put(e, i), 0);
        check_disk(e);
        assert_int_equal(get(e, i), 0);
    }
    assert_int_equal(e->counters.value[KVT__N_evicted_chunks], 4 * N_FIT);
    assert_int_equal(e->counters.value[KVT__N_evicted_bytes],
                     (uint64_t)4 * N_FIT * TAKEN);
}

static void
the_least_recently_used_chunk_is_evicted_with_its_file(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < N_FIT; i++) {
        assert_int_equal(put(e, i), 0);
        wait_for_tick();
    }
    assert_int_equal(get(e, 0), 0); /* used again */
    wait_for_tick();
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put(e, 100 + i), 0);
    for (unsigned i = 0; i < N_FIT; i++) {
        bool stays = i == 0 || i > 5;

        assert_int_equal(find(e, i), stays);
        assert_int_equal(file_there(e, i), stays);
    }
    check_disk(e);
}

static void
partial_chunks_without_header_keep_the_limit_too(void **state)
{
    static const char *const settings[] = { "max_remote_size=0.0001",
                                            "save_chunk_meta=false", NULL };
    struct env *e = *state;

    reopen_over(e, "", settings);
    for (unsigned i = 0; i < 3 * N_FIT; i++) {
        struct request r;

        request_init(&r, e, KVT__TIER_PUT, i);
        r.req.is_full = false;
        r.req.tokens = 17;
        kvt__store_run(e->store, &r.req);
        assert_int_equal(r.req.error.code, 0);
        check_disk(e);
        r.req.op = KVT__TIER_GET;
        kvt__store_run(e->store, &r.req);
        assert_int_equal(r.req.error.code, 0);
        assert_int_equal(r.req.verified, temp_dir_has_attributes(&e->dir));
        free(r.memory);
    }
}

static void
leased_chunks_survive(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < N_FIT; i++)
        assert_int_equal(put(e, i), 0);
    for (unsigned i = 0; i < 4; i++)
        assert_true(lease(e, i));
    for (unsigned i = 100; i < 100 + 3 * N_FIT; i++) {
        assert_int_equal(put(e, i), 0);
        check_disk(e);
    }
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(get(e, i), 0);
    for (unsigned i = 4; i < N_FIT; i++)
        assert_false(find(e, i));
}

static void
full_of_leased_chunks_a_put_is_enospc_and_nothing_breaks(void **state)
{
    struct env *e = *state;
    struct kvt__lease of_3 = { 0 };

    for (unsigned i = 0; i < N_FIT; i++) {
        assert_int_equal(put(e, i), 0);
        assert_true(lease(e, i));
        if (i == 3)
            of_3 = last_lease;
    }
    uint64_t before = used(e);
    for (unsigned i = 100; i < 110; i++) {
        assert_int_equal(put(e, i), -ENOSPC);
        assert_false(find(e, i));
        assert_false(file_there(e, i));
    }
    assert_int_equal(used(e), before);
    for (unsigned i = 0; i < N_FIT; i++)
        assert_int_equal(get(e, i), 0);
    kvt__store_unlease(e->store, &e->space, &of_3);
    assert_int_equal(put(e, 100), 0);
    assert_false(find(e, 3));
    check_disk(e);
}

static void
a_chunk_larger_than_the_limit_evicts_nothing(void **state)
{
    struct env *e = *state;
    struct request r;
    size_t bytes = LIMIT + 1;

    for (unsigned i = 0; i < N_FIT; i++)
        assert_int_equal(put(e, i), 0);
    request_init(&r, e, KVT__TIER_PUT, 100);
    free(r.memory);
    r.memory = calloc(1, bytes + 2 * KVT__SLOT_MARGIN + 64);
    assert_non_null(r.memory);
    r.req.slot = (struct kvt__slot){ .payload = r.memory + KVT__SLOT_MARGIN, .bytes = bytes };
    r.req.bytes = bytes;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, -ENOSPC);
    free(r.memory);
    for (unsigned i = 0; i < N_FIT; i++)
        assert_int_equal(get(e, i), 0);
}

/* ------------------------------------------------------------------- threads */

#define N_JOBS 120u

static void
writers_and_readers_at_once_keep_the_limit(void **state)
{
    struct env *e = *state;
    struct request *requests = calloc(N_JOBS, sizeof *requests);

    assert_non_null(requests);
    for (unsigned i = 0; i < N_JOBS; i++)
        request_init(&requests[i], e, i % 2 ? KVT__TIER_GET : KVT__TIER_PUT,
                     i / 2 % (2 * N_FIT));
    run_at_once(e, small, 4, requests, N_JOBS);
    check_disk(e);
    for (unsigned i = 0; i < N_JOBS; i++) {
        const struct kvt__store_req *req = &requests[i].req;

        if (req->op == KVT__TIER_PUT)
            assert_true(!req->error.code || req->error.code == -EEXIST);
        else
            assert_true(req->error.code == -ENOENT ||
                        (!req->error.code &&
                         request_holds(&requests[i], (unsigned)req->hash.bits[0])));
        free(requests[i].memory);
    }
    free(requests);
}

/* All threads need room at the same time and begin with equal victims. */
static void
a_put_that_lost_every_race_still_finds_room(void **state)
{
    static const char *const settings[] = { "max_remote_size=0.0005", NULL };
    struct env *e = *state;
    struct request *requests = calloc(N_JOBS * 4, sizeof *requests);

    assert_non_null(requests);
    for (unsigned i = 0; i < N_JOBS * 4; i++)
        request_init(&requests[i], e, KVT__TIER_PUT, i);
    run_at_once(e, settings, 8, requests, N_JOBS * 4);
    assert_in_range(used(e), disk_bytes(e), 5 * LIMIT);
    for (unsigned i = 0; i < N_JOBS * 4; i++) {
        if (requests[i].req.error.code)
            fail_msg("put %u: %s", i, requests[i].req.error.why);
        free(requests[i].memory);
    }
    free(requests);
}

static void
a_limit_that_was_lowered_holds_after_one_put(void **state)
{
    static const char *const large[] = { "max_remote_size=0.01", NULL };
    struct env *e = *state;

    reopen_over(e, "", large);
    for (unsigned i = 0; i < 400; i++)
        assert_int_equal(put(e, i), 0);
    wait_for_tick();
    reopen_over(e, "", small);
    assert_int_equal(used(e), 400 * TAKEN);
    assert_int_equal(put(e, 1000), 0);
    check_disk(e);
    assert_int_equal(used(e), N_FIT * TAKEN);
    assert_int_equal(get(e, 1000), 0);
}

/* ------------------------------------------------------------------ listing */

static void
a_listing_counts_the_chunks_that_the_index_lost(void **state)
{
    struct env *e = *state;

    for (unsigned i = 0; i < N_FIT; i++)
        assert_int_equal(put(e, i), 0);
    uint64_t before = used(e);
    close_and_lose_index(e);
    e->store = open_over(e, "", small);
    assert_int_equal(used(e), 0);
    list_all(e->store);
    assert_int_equal(used(e), before);
    for (unsigned i = 0; i < N_FIT; i++) {
        assert_int_equal(probe(e, i), 0); /* reads the identity */
        assert_int_equal(get(e, i), 0);
    }
    assert_int_equal(used(e), before);
    assert_int_equal(totals_of(e).n_entries, N_FIT);
    assert_int_equal(totals_of(e).n_unread, 0);
}

static void
a_listing_of_more_than_the_limit_makes_room(void **state)
{
    struct env *e = *state;
    char path[300];

    reopen_over(e, "", NULL);
    for (unsigned i = 0; i < 3 * N_FIT; i++)
        assert_int_equal(put(e, i), 0);
    snprintf(path, sizeof path, "%s/no-key.data", e->dir.path);
    write_file(path, "", 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", small);
    list_all(e->store);
    check_disk(e);
    assert_int_equal(disk_bytes(e), N_FIT * TAKEN);
    assert_int_equal(access(path, F_OK), 0);
}

/* The index has no room for wide hashes. */
static void
a_file_that_the_index_cannot_have_is_listed_once(void **state)
{
    struct env *e = *state;
    char path[600];

    snprintf(path, sizeof path, "%s/test-SEP-model@1@0@%064d@bfloat16.data", e->dir.path, 1);
    write_file(path, "x", 1);
    assert_int_equal(put(e, 1), 0);
    list_all(e->store);
    assert_int_equal(totals_of(e).n_entries, 1);
    assert_true(kvt__table_is_listed(e->store->levels[0].index));
}

#define N_EMPTY 300u

/* Otherwise each of several threads would make room for the whole excess, and evict chunks that the
 * other threads have just stored. */
static void
a_lowered_limit_evicts_no_new_chunks(void **state)
{
    static const char *const smaller[] = { "max_remote_size=0.0002", NULL }; /* 26 chunks */
    struct env *e = *state;
    struct request requests[16];

    reopen_over(e, "", NULL);
    for (unsigned i = 0; i < 120; i++)
        assert_int_equal(put(e, i), 0);
    for (unsigned i = 0; i < 16; i++)
        request_init(&requests[i], e, KVT__TIER_PUT, 1000 + i);
    run_at_once(e, smaller, 8, requests, 16);
    for (unsigned i = 0; i < 16; i++) {
        assert_int_equal(requests[i].req.error.code, 0);
        assert_true(find(e, 1000 + i));
        free(requests[i].memory);
    }
    assert_in_range(used(e), 16 * TAKEN, 26 * TAKEN);
    assert_int_equal(disk_bytes(e), used(e));
}

/* A crash of the host can leave many files without bytes, older than all chunks. */
static void
empty_files_do_not_keep_a_put_from_room(void **state)
{
    static const struct timespec old[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
    struct env *e = *state;
    char path[600];

    for (unsigned i = 0; i < N_EMPTY; i++) {
        path_of(e, 1000 + i, path, sizeof path);
        write_file(path, "", 0);
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    }
    list_all(e->store);
    assert_int_equal(totals_of(e).n_unread, N_EMPTY);
    for (unsigned i = 0; i < 2 * N_FIT; i++) {
        assert_int_equal(put(e, i), 0);
        check_disk(e);
    }
    uint64_t n_files = 0;
    for (unsigned i = 0; i < N_EMPTY; i++)
        n_files += file_there(e, 1000 + i);
    assert_int_equal(totals_of(e).n_unread, n_files); /* evicted files have no entry */
}

/* As for a bucket, whose tier keeps the limit. */
static void
evicted_entries_of_a_bucket_leave_the_objects(void **state)
{
    struct env *e = *state;

    e->store->levels[0].tier->enforces_limit = true;
    for (unsigned i = 0; i < 3 * N_FIT; i++)
        assert_int_equal(put(e, i), 0);
    assert_false(find(e, 0));
    for (unsigned i = 0; i < 3 * N_FIT; i++)
        assert_true(file_there(e, i));
    assert_int_equal(e->counters.value[KVT__N_evicted_chunks], 0);
}

/* -------------------------------------------------------------- two processes */

/* The index of a running engine is deleted, or replaced by another version of kvtier. */
static void
an_index_that_was_replaced_is_opened_again(void **state)
{
    struct env *e = *state;
    struct env other = *e;

    for (unsigned round = 0; round < 3; round++) {
        assert_int_equal(put(e, 10 * round), 0);
        delete_table(e);
        if (round)
            unlinkat(private_dir(e), "lock", 0);
        if (round == 2) /* no other process has made the files anew */
            other.store = NULL;
        else
            other.store = open_over(e, "", small);
        assert_int_equal(put(e, 10 * round + 1), 0);
        assert_true(kvt__table_is_current(e->store->levels[0].index));
        assert_int_equal(get(e, 10 * round + 1), 0);
        if (other.store) {
            assert_int_equal(get(&other, 10 * round + 1), 0);
            assert_int_equal(put(&other, 10 * round + 2), 0);
            assert_int_equal(get(e, 10 * round + 2), 0);
        }
        kvt__store_close(other.store);
        list_all(e->store); /* finds the chunks of the old index */
        check_disk(e);
        assert_int_equal(probe(e, 10 * round), 0);
        assert_int_equal(get(e, 10 * round), 0);
    }
    for (unsigned i = 100; i < 100 + 3 * N_FIT; i++)
        assert_int_equal(put(e, i), 0);
    check_disk(e); /* the limit holds, and there was something to evict */
}

/* A second process without the shared index would double the limit. */
static void
a_process_without_shared_index_reads_only(void **state)
{
    struct env *e = *state;
    struct env other = *e;
    int lock = openat(private_dir(e), "lock", O_RDWR | O_CLOEXEC);

    assert_int_equal(put(e, 1), 0);
    for (off_t i = 0; i < TB_N_OWNERS; i++) /* 255 other writers */
        (void)kvt__tb_lock_byte(lock, F_WRLCK, TB_OWNER_BYTE + i);
    other.store = open_over(e, "", small);
    assert_false(kvt__table_is_shared(other.store->levels[0].index));
    assert_int_equal(put(&other, 2), -EROFS);
    assert_false(file_there(e, 2));
    assert_int_equal(probe(&other, 1), 0);
    assert_int_equal(get(&other, 1), 0);
    wait_for_tick(); /* else a chunk of this tick, with fewer uses, is evicted first */
    for (unsigned i = 10; i < 10 + N_FIT - 1; i++)
        assert_int_equal(put(e, i), 0);
    for (unsigned i = 10; i < 10 + N_FIT - 1; i++) /* the private table is full */
        assert_int_equal(probe(&other, i), 0);
    wait_for_tick();
    assert_int_equal(get(e, 1), 0); /* used now; in the other's table longest ago */
    for (unsigned i = 100; i < 104; i++) {
        assert_int_equal(put(e, i), 0);
        assert_int_equal(probe(&other, i), 0);
    }
    assert_false(find(&other, 1));
    assert_true(file_there(e, 1));
    check_disk(e);
    kvt__store_close(other.store);
    close(lock);
}

static void
two_handles_on_one_directory_share_chunks(void **state)
{
    struct env *e = *state, other = *e;

    other.store = open_over(&other, "", small);
    for (unsigned i = 0; i < 3 * N_FIT; i++) {
        struct env *one = i % 2 ? e : &other, *two = i % 2 ? &other : e;

        assert_int_equal(put(one, i), 0);
        assert_true(find(two, i));
        assert_int_equal(get(two, i), 0);
        assert_int_equal(put(two, i), -EEXIST);
        check_disk(e);
        assert_int_equal(used(e), used(&other));
    }
    assert_true(lease(&other, 3 * N_FIT - 1));
    for (unsigned i = 100; i < 100 + 2 * N_FIT; i++)
        assert_int_equal(put(e, i), 0);
    assert_int_equal(get(e, 3 * N_FIT - 1), 0);
    kvt__store_close(other.store);
    assert_int_equal(get(e, 3 * N_FIT - 1), 0);
}

static void
of_two_limits_the_smaller_holds_while_both_are_open(void **state)
{
    static const char *const larger[] = { "max_remote_size=0.001", NULL };
    struct env *e = *state, other = *e;

    other.store = open_over(&other, "", larger);
    for (unsigned i = 0; i < 2 * N_FIT; i++) {
        assert_int_equal(put(&other, i), 0);
        check_disk(e);
    }
    kvt__store_close(e->store);
    for (unsigned i = 100; i < 100 + 2 * N_FIT; i++)
        assert_int_equal(put(&other, i), 0);
    assert_true(disk_bytes(&other) > LIMIT);
    e->store = open_over(e, "", small);
    assert_int_equal(put(e, 1000), 0); /* and makes room again */
    check_disk(e);
    kvt__store_close(other.store);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup_small, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_directory_never_outgrows_the_limit),
        TEST(the_least_recently_used_chunk_is_evicted_with_its_file),
        TEST(partial_chunks_without_header_keep_the_limit_too),
        TEST(leased_chunks_survive),
        TEST(full_of_leased_chunks_a_put_is_enospc_and_nothing_breaks),
        TEST(a_chunk_larger_than_the_limit_evicts_nothing),
        TEST(writers_and_readers_at_once_keep_the_limit),
        TEST(a_put_that_lost_every_race_still_finds_room),
        TEST(a_limit_that_was_lowered_holds_after_one_put),
        TEST(evicted_entries_of_a_bucket_leave_the_objects),
        TEST(a_listing_counts_the_chunks_that_the_index_lost),
        TEST(a_listing_of_more_than_the_limit_makes_room),
        TEST(a_file_that_the_index_cannot_have_is_listed_once),
        TEST(a_lowered_limit_evicts_no_new_chunks),
        TEST(empty_files_do_not_keep_a_put_from_room),
        TEST(two_handles_on_one_directory_share_chunks),
        TEST(an_index_that_was_replaced_is_opened_again),
        TEST(a_process_without_shared_index_reads_only),
        TEST(of_two_limits_the_smaller_holds_while_both_are_open),
    };

    return cmocka_run_group_tests_name("store budget", tests, NULL, NULL);
}
